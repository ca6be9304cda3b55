//! Trouble as data: `trouble: [{ step: 120, attempts: 1, signal: 11 }]`.
//!
//! `step` is when it strikes (or `samples`, on the clock, or `load`, or `save`), `attempts` the number of
//! attempts it strikes in (default: all), `rungs` the number of rungs from the fastest. The kind is one of
//! `signal`, `code`, `class` (a reported failure and its code), `hang` (`quiet`, or `talking`: still
//! sending notes), `spike` (the loss to report), `silence_ms` (in the phase of that name).

use crate::Failing;
use serde_json::Value;
use std::sync::mpsc;

/// The moment a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Before the first step.
    Load,
    /// At a step, with the clock before it.
    Step(u64, u64),
    /// During a save.
    Save,
}

/// Returns the faults of a scenario that strike now.
pub fn active_faults(scenario: &Value, moment: Moment, attempt: u64, rung: usize) -> Vec<Value> {
    let troubles = scenario["trouble"].as_array().cloned().unwrap_or_default();
    let strikes = |trouble: &Value| {
        let alive = trouble["attempts"].as_u64().is_none_or(|last| attempt <= last);
        let here = trouble["rungs"].as_u64().is_none_or(|rungs| (rung as u64) < rungs);
        let later = trouble["from_attempt"].as_u64().is_none_or(|first| attempt >= first);
        let number = |key: &str| trouble[key].as_u64();
        let now = match moment {
            Moment::Load => trouble["load"] == true,
            Moment::Save => trouble["save"] == true,
            Moment::Step(step, samples) => {
                let end = number("last").or(number("step"));
                number("step").zip(end).is_some_and(|(first, end)| (first..=end).contains(&step))
                    || number("samples") == Some(samples)
            }
        };
        alive && here && later && now
    };
    troubles.into_iter().filter(strikes).collect()
}

/// Ignores SIGTERM, like a worker stuck in a driver.
pub fn ignore_term() -> Failing<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (ready, listening) = mpsc::channel();
    std::thread::spawn(move || {
        runtime.block_on(async {
            let stream = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
            let _ = ready.send(());
            if let Ok(mut stream) = stream {
                while stream.recv().await.is_some() {}
            }
        });
    });
    Ok(listening.recv()?)
}
