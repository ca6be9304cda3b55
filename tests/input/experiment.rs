//! Shifts preserve the experiment: random ladders, shifts, deaths and skipped steps, simulated on the clock
//! of the run without tensors or processes. The surviving steps (the history that checkpoints carry on)
//! consume every sample of every epoch exactly once, at the learning rate the schedule plans for that moment.
#![expect(clippy::unwrap_used, reason = "a test")]

use downshift::recipe::batch::{BatchPlan, Position};
use downshift::recipe::order::epoch_order;
use downshift::recipe::schedule::{Schedule, ScheduleKind};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SEED: u64 = 7;

#[derive(Debug, Clone, Copy)]
struct Rung {
    micro_batch: u64,
    accumulation: u64,
    lr: f64,
    warmup: f64,
}

/// An event after a number of steps.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Shift(usize),
    Save,
    Die,
    Skip,
}

#[derive(Debug, Clone, Copy)]
struct World {
    epoch_samples: u64,
    units: u64,
    epochs: u64,
    kind: ScheduleKind,
}

/// One surviving step.
#[derive(Debug, Clone, PartialEq)]
struct Step {
    epoch: u64,
    samples: Vec<u32>,
    clock: u64,
    lr: f64,
    rung: usize,
    skipped: bool,
}

/// The position of a run and the steps that led there: the content of a checkpoint.
#[derive(Debug, Clone, Default)]
struct Line {
    at: Position,
    warmup: Option<f64>,
    warmup_from: u64,
    rung: usize,
    steps: Vec<Step>,
}

impl World {
    fn total(&self) -> u64 {
        self.epochs * self.epoch_samples * self.units
    }

    fn schedule(&self, rung: &Rung) -> Schedule {
        Schedule { kind: self.kind, warmup: rung.warmup, end: 0.1 }
    }

    /// Starts a worker on `rung` from the state in `line`.
    fn start(&self, line: &mut Line, ladder: &[Rung], rung: usize) {
        let schedule = self.schedule(&ladder[rung]);
        line.warmup_from = schedule.warmup_begin(line.warmup, line.warmup_from, line.at.samples);
        line.warmup = Some(schedule.warmup);
        line.rung = rung;
    }

    fn step(&self, line: &mut Line, ladder: &[Rung], skipped: bool) {
        let Rung { micro_batch, accumulation, lr, .. } = ladder[line.rung];
        let plan = BatchPlan { epoch_samples: self.epoch_samples, units: self.units, micro_batch, accumulation };
        let step = plan.step(line.at);
        let order = epoch_order(SEED, step.epoch, usize::try_from(self.epoch_samples).unwrap());
        let samples = step.micro_batches.iter().flat_map(|range| order[range.clone()].to_vec()).collect();
        line.at = step.after;
        let clock = step.after.samples;
        let lr = self.schedule(&ladder[line.rung]).lr_warming(lr, clock, self.total(), line.warmup_from);
        line.steps.push(Step { epoch: step.epoch, samples, clock, lr, rung: line.rung, skipped });
    }

    /// Plays a whole run. Deaths lose everything since the last save; every shift saves first.
    fn play(&self, ladder: &[Rung], turns: &[(u64, Turn)]) -> Vec<Step> {
        let mut line = Line::default();
        let mut saved = line.clone();
        self.start(&mut line, ladder, 0);
        // A durable step is not saved again, whoever is at it.
        let save = |line: &Line, saved: &mut Line| {
            if line.at != saved.at {
                *saved = line.clone();
            }
        };
        for (steps, turn) in turns {
            for _ in 0..*steps {
                if line.at.samples < self.total() {
                    self.step(&mut line, ladder, false);
                }
            }
            match turn {
                Turn::Save => save(&line, &mut saved),
                Turn::Die => {
                    let rung = line.rung;
                    line = saved.clone();
                    self.start(&mut line, ladder, rung);
                }
                Turn::Shift(to) => {
                    save(&line, &mut saved);
                    line = saved.clone();
                    self.start(&mut line, ladder, to % ladder.len());
                }
                Turn::Skip if line.at.samples < self.total() => self.step(&mut line, ladder, true),
                Turn::Skip => {}
            }
        }
        while line.at.samples < self.total() {
            self.step(&mut line, ladder, false);
        }
        line.steps
    }
}

fn world() -> impl Strategy<Value = World> {
    let kind = prop_oneof![Just(ScheduleKind::Cosine), Just(ScheduleKind::Linear), Just(ScheduleKind::Constant)];
    (1u64..120, 1u64..4, 1u64..4, kind).prop_map(|(epoch_samples, units, epochs, kind)| World {
        epoch_samples,
        units,
        epochs,
        kind,
    })
}

/// Generates rungs that split one effective batch differently: class A.
fn same_problem() -> impl Strategy<Value = Vec<Rung>> {
    let splits = prop::collection::vec(0u32..4, 1..5);
    (1u64..4, splits, 0.0f64..0.5).prop_map(|(base, splits, warmup)| {
        let rung = |split: u32| Rung { micro_batch: base << split, accumulation: 8 >> split, lr: 1.0, warmup };
        splits.into_iter().map(rung).collect()
    })
}

/// Generates rungs that change the batch, the rate and the warmup: class B.
fn any_ladder() -> impl Strategy<Value = Vec<Rung>> {
    let rung = (1u64..20, 1u64..5, 1u32..5, 0.0f64..0.5);
    prop::collection::vec(rung, 1..5).prop_map(|rungs| {
        let rung = |(micro_batch, accumulation, lr, warmup)| Rung {
            micro_batch,
            accumulation,
            lr: f64::from(lr) / 4.0,
            warmup,
        };
        rungs.into_iter().map(rung).collect()
    })
}

fn turns() -> impl Strategy<Value = Vec<(u64, Turn)>> {
    let turn = prop_oneof![(0usize..5).prop_map(Turn::Shift), Just(Turn::Save), Just(Turn::Die), Just(Turn::Skip)];
    prop::collection::vec((0u64..12, turn), 0..25)
}

/// Counts how often each sample of each epoch was consumed.
fn consumed(steps: &[Step]) -> BTreeMap<(u64, u32), u32> {
    let mut times = BTreeMap::new();
    for step in steps {
        for sample in &step.samples {
            *times.entry((step.epoch, *sample)).or_default() += 1;
        }
    }
    times
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_sample_of_every_epoch_is_consumed_exactly_once(world in world(), ladder in any_ladder(), turns in turns()) {
        let steps = world.play(&ladder, &turns);
        let times = consumed(&steps);
        prop_assert_eq!(times.len() as u64, world.epochs * world.epoch_samples);
        prop_assert!(times.values().all(|times| *times == 1));
        // A skipped step consumes its samples, and only samples listed as skipped are lost.
        let taken: usize = steps.iter().filter(|step| !step.skipped).map(|step| step.samples.len()).sum();
        let listed: usize = steps.iter().filter(|step| step.skipped).map(|step| step.samples.len()).sum();
        prop_assert_eq!((taken + listed) as u64, world.epochs * world.epoch_samples);
    }

    #[test]
    fn the_rate_is_as_planned_but_within_a_warm_up_that_a_shift_has_lengthened(
        world in world(), ladder in any_ladder(), turns in turns(),
    ) {
        let (mut before, mut clock, mut began) = (ladder[0], 0, 0);
        for step in world.play(&ladder, &turns) {
            let rung = ladder[step.rung];
            if rung.warmup > before.warmup {
                began = clock;
            }
            let planned = world.schedule(&rung).lr(rung.lr, step.clock, world.total());
            let warmed = (step.clock - began) as f64 / world.total() as f64;
            if began == 0 || warmed >= rung.warmup {
                prop_assert_eq!(step.lr.to_bits(), planned.to_bits());
            } else {
                // Linear from zero; within the first warmup the plan itself is linear.
                let plan_warmed = (step.clock as f64 / world.total() as f64).min(rung.warmup);
                prop_assert!((step.lr - planned * warmed / plan_warmed).abs() < 1e-9, "{:?}: {planned}", step);
            }
            (before, clock) = (rung, step.clock);
        }
    }

    #[test]
    fn on_a_class_a_ladder_the_broken_run_is_the_unbroken_one(world in world(), ladder in same_problem(), turns in turns()) {
        let bare = |steps: Vec<Step>| steps.into_iter().map(|step| (step.epoch, step.samples, step.clock, step.lr)).collect::<Vec<_>>();
        prop_assert_eq!(bare(world.play(&ladder, &turns)), bare(world.play(&ladder, &[])));
    }
}

/// The properties above must be able to fail: a worker that stores the number of batches done, and multiplies
/// it by the batch of its current rung, repeats or omits samples.
#[test]
fn a_clock_in_batches_is_noticed() {
    let world = World { epoch_samples: 40, units: 1, epochs: 1, kind: ScheduleKind::Constant };
    let rung = |micro_batch| Rung { micro_batch, accumulation: 1, lr: 1.0, warmup: 0.0 };
    let ladder = [rung(8), rung(4)];
    let mut line = Line::default();
    world.start(&mut line, &ladder, 0);
    world.step(&mut line, &ladder, false);
    world.step(&mut line, &ladder, false);
    world.start(&mut line, &ladder, 1);
    line.at.offset = 2 * 4;
    while line.at.epoch == 0 {
        world.step(&mut line, &ladder, false);
    }
    assert!(consumed(&line.steps).values().any(|times| *times > 1));
}
