//! The real loop on random ladders, with shifts, deaths and skipped steps: every sample of every epoch is
//! consumed exactly once, except those of skipped steps, at the planned rate, on the rung the worker was given.
//! Each loss encodes the samples it comes from.

use super::harness::{Told, args, live, preset, with};
use super::marked::MOST_SAMPLES;
use downshift::protocol::inject::{Fault, Inject};
use downshift::protocol::worker::{DoneReason, Event, Order};
use downshift::recipe::schedule::{Schedule, ScheduleKind};
use downshift::store::checkpoint::{self, STATE, state::TrainState};
use downshift::train::job::WorkerArgs;
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

#[derive(Debug, Clone, Copy)]
struct Rung {
    micro_batch: u64,
    accumulation: u64,
    lr: f64,
    warmup: f64,
}

/// A worker attempt: its rung, its number of steps, and whether they were saved at its end.
type Part = (usize, u64, bool);

#[derive(Debug, Clone)]
struct Case {
    samples: u64,
    epochs: u64,
    seed: u64,
    ladder: Vec<Rung>,
    parts: Vec<Part>,
    skips: Vec<u64>,
}

/// A surviving step.
#[derive(Debug)]
struct Taken {
    epoch: u64,
    clock: u64,
    lr: f64,
    /// None if it was skipped.
    loss: Option<f64>,
    rung: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let rung = (1u64..6, 1u64..4, 1u32..5, 0.0f64..0.5).prop_map(|(micro_batch, accumulation, lr, warmup)| Rung {
        micro_batch,
        accumulation,
        lr: f64::from(lr) / 400.0,
        warmup,
    });
    let ladder = prop::collection::vec(rung, 1..4);
    let parts = prop::collection::vec((0usize..3, 1u64..8, any::<bool>()), 0..6);
    let skips = prop::collection::vec(1u64..40, 0..5);
    (1u64..=MOST_SAMPLES, 1u64..4, any::<u64>(), ladder, parts, skips)
        .prop_map(|(samples, epochs, seed, ladder, parts, skips)| Case { samples, epochs, seed, ladder, parts, skips })
}

impl Case {
    fn args(&self, run: &Path, rung: usize) -> WorkerArgs {
        let Rung { micro_batch, accumulation, lr, warmup } = self.ladder[rung];
        let knobs = [
            ("data", json!({ "samples": self.samples, "marks": true, "poison": [] })),
            ("model", json!({})),
            ("training.epochs", json!(self.epochs)),
            ("training.micro_batch", json!(micro_batch)),
            ("training.accumulation", json!(accumulation)),
            ("training.seed", json!(self.seed)),
            ("optimizer.lr", json!(lr)),
            ("optimizer.schedule", json!({ "kind": "cosine", "warmup": warmup, "final": 0.1 })),
            ("evaluation.every", json!("never")),
        ];
        let mut args = args(run, with(preset(0.0), &knobs));
        (args.task, args.rung, args.skips_in_a_row) = ("marked".into(), rung, 1000);
        args.inject =
            self.skips.iter().map(|at| Inject { fault: Fault::Nan, first: *at, last: *at, always: true }).collect();
        args
    }

    /// Runs all attempts to the end of the run; returns the surviving steps.
    fn play(&self) -> Vec<Taken> {
        let dir = TempDir::new().unwrap();
        let mut line: Vec<Taken> = Vec::new();
        for (rung, steps, saved) in self.parts.iter().copied().chain([(0, u64::MAX, true)]) {
            let rung = rung % self.ladder.len();
            let durable = line.len() as u64;
            let stop = (durable.saturating_add(steps), Order::Stop { checkpoint: saved });
            let told = live(self.args(dir.path(), rung), &[stop]);
            let from = (durable > 0).then_some(durable);
            assert!(told.has(|event| matches!(event, Event::Hello(hello) if hello.resumed_from == from)), "{told:?}");
            let finished = told.outcome == Ok(DoneReason::Finished);
            if saved || finished {
                line.extend(taken(&told, rung));
                let loaded = checkpoint::newest_valid(dir.path()).0.unwrap();
                let state: TrainState = serde_json::from_slice(&loaded.files[STATE]).unwrap();
                assert_eq!((state.rung, state.step), (rung, line.len() as u64), "by the worker's own word");
            }
            if finished {
                break;
            }
        }
        line
    }

    fn total(&self) -> u64 {
        self.samples * self.epochs
    }
}

fn taken(told: &Told, rung: usize) -> Vec<Taken> {
    let step = |event: &Event| match event {
        Event::Step(step) => {
            Some(Taken { epoch: step.epoch, clock: step.samples, lr: step.lr.unwrap(), loss: step.loss, rung })
        }
        Event::Skipped(step) => Some(Taken { epoch: step.epoch, clock: step.samples, lr: step.lr, loss: None, rung }),
        _ => None,
    };
    told.events.iter().filter_map(step).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn shifts_deaths_and_skips_keep_the_experiment(case in cases()) {
        super::prepare();
        let line = case.play();
        let mut epochs: BTreeMap<u64, (u32, u64)> = BTreeMap::new();
        let (mut clock, mut before, mut began) = (0, case.ladder[line[0].rung], 0);
        for step in &line {
            let count = step.clock - clock;
            let (seen, skipped) = epochs.entry(step.epoch).or_default();
            match step.loss {
                None => *skipped += count,
                Some(loss) => {
                    let sum = loss * count as f64;
                    prop_assert!((sum - sum.round()).abs() < 0.3, "{sum} is not a sum of marks");
                    let marks = sum.round() as u32;
                    prop_assert_eq!(u64::from(marks.count_ones()), count, "each sample of the step once");
                    prop_assert_eq!(*seen & marks, 0, "a sample comes twice in an epoch");
                    *seen |= marks;
                }
            }
            let rung = case.ladder[step.rung];
            if rung.warmup > before.warmup {
                began = clock;
            }
            let schedule = Schedule { kind: ScheduleKind::Cosine, warmup: rung.warmup, end: 0.1 };
            let planned = schedule.lr(rung.lr, step.clock, case.total());
            let warmed = (step.clock - began) as f64 / case.total() as f64;
            if began > 0 && warmed < rung.warmup {
                let plan_warmed = (step.clock as f64 / case.total() as f64).min(rung.warmup);
                prop_assert!((step.lr - planned * warmed / plan_warmed).abs() < 1e-12, "{step:?}");
            } else {
                prop_assert_eq!(step.lr.to_bits(), planned.to_bits());
            }
            (before, clock) = (rung, step.clock);
        }
        prop_assert_eq!(clock, case.total());
        prop_assert_eq!(epochs.len() as u64, case.epochs);
        for (seen, skipped) in epochs.values() {
            prop_assert_eq!(u64::from(seen.count_ones()) + skipped, case.samples);
        }
    }
}
