//! Every shipped ladder, walked down rung by rung and back up: each attempt continues where the previous one
//! stopped, and reports what happened to state that no longer fits.

use super::harness::{Told, args, live, registry};
use downshift::config::knobs::Preset;
use downshift::config::run::{Run, Source};
use downshift::protocol::worker::{DoneReason, Event, Order};
use downshift::shipped;
use downshift::store::checkpoint;
use downshift::train::job::WorkerArgs;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Steps on each rung.
const STEPS: u64 = 2;

/// Returns a shipped run with so little data that a step takes almost no time.
fn shipped(name: &str, dir: &Path) -> Run {
    let text = dir.join("short.txt");
    fs::write(
        &text,
        include_str!("../../../crates/trainer/assets/persuasion.txt").chars().take(9000).collect::<String>(),
    )
    .unwrap();
    let (file, run_file) = shipped::run_file(Path::new(name)).unwrap();
    let source = if run_file.contains("task: lm") { text.display().to_string() } else { "embedded:digits".to_owned() };
    let overrides = [("data.source", source.as_str()), ("evaluation.every", "never"), ("checkpoint.every", "never")]
        .map(|(path, value)| (path.to_owned(), value.to_owned()));
    let read = Run::read(&Source { file, text: run_file, base: dir, overrides: &overrides }, &registry());
    read.unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// Runs an attempt of a few steps on a rung, from where the previous one stopped.
fn visit(run: &Run, rung: usize, attempt: u64, dir: &Path) -> Told {
    let preset = Preset { checkpoint: run.rungs[0].preset.checkpoint.clone(), ..run.rungs[rung].preset.clone() };
    let until = attempt * STEPS;
    let order = WorkerArgs {
        task: run.task.clone(),
        rung,
        rung_name: run.rungs[rung].name.clone(),
        attempt,
        require_checkpoint: attempt > 1,
        ..args(dir, serde_json::to_value(preset).unwrap())
    };
    live(order, &[(until, Order::Stop { checkpoint: true })])
}

/// Walks down the whole ladder and back up to its top.
fn walk(name: &str) -> Vec<(String, Told)> {
    walk_along(name, |run| (0..run.rungs.len()).chain([0]).collect())
}

/// Walks along these rungs in turn.
fn walk_along(name: &str, way: impl Fn(&Run) -> Vec<usize>) -> Vec<(String, Told)> {
    let (dir, run_dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let run = shipped(name, dir.path());
    let way = way(&run);
    let mut told = Vec::new();
    for (attempt, rung) in (1..).zip(way) {
        if let Some(barrier) = told.last().and_then(|(at, _)| run.barrier(*at, rung)) {
            panic!("{name}: {barrier}");
        }
        let life = visit(&run, rung, attempt, run_dir.path());
        let at = format!("{name} on {}", run.rungs[rung].name);
        assert_eq!(life.outcome, Ok(DoneReason::Stopped), "{at}");
        let curve = life.curve();
        let steps: Vec<u64> = curve.iter().map(|(step, ..)| *step).collect();
        assert_eq!(steps, [attempt * STEPS - 1, attempt * STEPS], "{at}");
        assert!(curve.iter().all(|(_, loss, norm)| loss.is_finite() && norm.is_finite()), "{at}: {curve:?}");
        let before = Some((attempt - 1) * STEPS).filter(|step| *step > 0);
        assert!(life.has(|event| matches!(event, Event::Hello(hello) if hello.resumed_from == before)), "{at}");
        told.push((rung, life));
    }
    assert!(checkpoint::newest_valid(run_dir.path()).0.is_some());
    told.into_iter().map(|(rung, life)| (run.rungs[rung].name.clone(), life)).collect()
}

fn notes(told: &Told) -> String {
    let texts = told.events.iter().filter_map(|event| match event {
        Event::Note { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_ladders_of_vision_are_walked_down_and_up() {
    for name in ["digits", "cifar10", "sizes", "search"] {
        walk(name);
    }
}

#[test]
fn the_ladders_of_text_are_walked_down_and_up() {
    walk("text");
    walk("lora");
    walk("stable");
}

#[test]
fn the_fine_tuning_ladder_is_walked_from_b_original_to_the_head_only() {
    let told = walk("finetune");
    let names: Vec<&str> = told.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["full", "b", "b-safe", "b-ultra-safe", "a", "full"]);
    let trained = |told: &Told| -> u64 {
        let notes = notes(told);
        let count = notes.split("trains ").nth(1).unwrap_or_else(|| panic!("{notes}"));
        count.split(' ').next().unwrap().parse().unwrap()
    };
    let counts: Vec<u64> = told.iter().map(|(_, told)| trained(told)).collect();
    assert_eq!((counts[0], counts[0], counts[0]), (counts[1], counts[2], counts[5]));
    assert!(counts[2] > counts[3] && counts[3] > counts[4], "{counts:?}");
    let cut = notes(&told[3].1);
    assert!(cut.contains("rank 16 → 8") && cut.contains("moments of changed parameters start at zero"), "{cut}");
    assert!(notes(&told[5].1).contains("rank 8 → 16"));
}

#[test]
fn fine_tuning_climbs_from_the_head_over_ultra_safe_to_b() {
    let told = walk_along("finetune", |run| {
        ["a", "b-ultra-safe", "b"].iter().map(|name| run.rung_named(name).unwrap()).collect()
    });
    assert!(!notes(&told[1].1).contains("rank"), "both train at rank 8: {}", notes(&told[1].1));
    let grown = notes(&told[2].1);
    assert!(grown.contains("rank 8 → 16") && grown.contains("moments of changed parameters start at zero"), "{grown}");
}
