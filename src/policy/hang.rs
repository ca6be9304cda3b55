//! Decides when silence is a hang: one limit per phase, learned from earlier steps.

use crate::config::watch::{self, span};
use crate::protocol::worker::Phase;
use std::collections::VecDeque;
use std::time::Duration;

/// First steps of a fresh worker that are not judged: caches fill and kernels are tuned.
const FREE_STEPS: u64 = 5;
/// Steps before the limit is learned.
const LEARNED_AFTER: usize = 16;
/// Steps in the learning window.
const WINDOW: usize = 64;

/// Watches one worker's progress.
#[derive(Debug, Clone)]
pub struct HangWatch {
    least: Duration,
    limits: watch::Hang,
    phase: Phase,
    since: Duration,
    steps: u64,
    took: VecDeque<Duration>,
    longest_eval: Option<Duration>,
}

impl HangWatch {
    /// Creates the watch of a worker that starts now.
    #[must_use]
    pub fn new(knobs: &watch::Watch, now: Duration) -> Self {
        let (least, limits) = (span(knobs.hang_min), knobs.hang);
        Self { least, limits, phase: Phase::Starting, since: now, steps: 0, took: VecDeque::new(), longest_eval: None }
    }

    /// Records that the worker entered another phase.
    pub fn phase(&mut self, phase: Phase, now: Duration) {
        if self.phase == Phase::Evaluating && phase != Phase::Evaluating {
            let took = now.saturating_sub(self.since);
            self.longest_eval = self.longest_eval.max(Some(took));
        }
        self.phase = phase;
        self.since = now;
    }

    /// Records an attempted step: the only sign of progress while training.
    pub fn step(&mut self, now: Duration) {
        self.steps += 1;
        if self.steps > FREE_STEPS && self.phase == Phase::Training {
            self.took.push_back(now.saturating_sub(self.since));
            if self.took.len() > WINDOW {
                self.took.pop_front();
            }
        }
        self.since = now;
    }

    /// Excludes the time that the keeper itself stalled: it is not the worker's silence.
    pub fn forgive(&mut self, delay: Duration, now: Duration) {
        self.since = (self.since + delay).min(now);
    }

    /// Returns the moment when silence becomes a hang.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.since + self.limit()
    }

    /// Returns how long the worker may be silent now.
    #[must_use]
    pub fn limit(&self) -> Duration {
        let learned = |longest: Duration| longest.mul_f64(self.limits.factor).max(self.least);
        match self.phase {
            Phase::Starting => span(self.limits.starting),
            Phase::Compiling => span(self.limits.compiling),
            Phase::Checkpointing => span(self.limits.checkpointing),
            Phase::Evaluating => self.longest_eval.map_or(span(self.limits.evaluating), learned),
            Phase::Training if self.took.len() >= LEARNED_AFTER => learned(self.longest_step()),
            Phase::Training => span(self.limits.first_steps).max(self.least),
        }
    }

    /// Returns the longest step in the window.
    #[must_use]
    pub fn longest_step(&self) -> Duration {
        self.took.iter().max().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::HangWatch;
    use crate::config::watch::Watch;
    use crate::protocol::worker::Phase;
    use std::time::Duration;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_limit_is_learned_from_steps_and_never_below_the_least() {
        let mut watch = HangWatch::new(&Watch::default(), seconds(0));
        watch.phase(Phase::Training, seconds(1));
        let mut now = seconds(1);
        for _ in 0..21 {
            now += seconds(4);
            watch.step(now);
        }
        assert_eq!(watch.limit(), seconds(20));
        for _ in 0..64 {
            now += Duration::from_millis(5);
            watch.step(now);
        }
        assert_eq!(watch.limit(), seconds(10));
        assert_eq!(watch.deadline(), now + seconds(10));
    }

    #[test]
    fn slow_first_steps_and_long_phases_are_not_hangs() {
        let mut watch = HangWatch::new(&Watch::default(), seconds(0));
        assert!(watch.limit() >= seconds(600));
        watch.phase(Phase::Compiling, seconds(5));
        assert!(watch.limit() >= seconds(900));
        watch.phase(Phase::Training, seconds(300));
        assert!(watch.limit() >= seconds(180));
        watch.phase(Phase::Checkpointing, seconds(400));
        assert!(watch.limit() >= seconds(420));
    }
}
