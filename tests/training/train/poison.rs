//! Wherever a NaN or infinity appears (the loss, one gradient element, any micro-batch), the whole step is
//! dropped and reported, and weights and moments are as if it had never happened.

use super::harness::{Told, args, live, preset, tensors, with};
use super::marked::{MOST_SAMPLES, Poison};
use downshift::protocol::inject::Inject;
use downshift::protocol::worker::{DoneReason, Event};
use downshift::recipe::batch::{BatchPlan, Position};
use downshift::recipe::order::epoch_order;
use downshift::store::checkpoint::{self, STATE, state::TrainState};
use downshift::train::job::WorkerArgs;
use proptest::prelude::*;
use safetensors::SafeTensors;
use serde_json::json;
use std::path::Path;
use tempfile::TempDir;

#[derive(Debug, Clone)]
struct Case {
    samples: u64,
    micro_batch: u64,
    accumulation: u64,
    seed: u64,
    poison: Vec<(u32, Poison)>,
}

/// A step that must be dropped, and the reason.
#[derive(Debug, PartialEq)]
struct Drop {
    step: u64,
    what: String,
    place: String,
}

const EPOCHS: u64 = 2;

fn cases() -> impl Strategy<Value = Case> {
    let kinds = [
        Poison::LossNan,
        Poison::LossInf,
        Poison::LossMinusInf,
        Poison::GradientNan,
        Poison::GradientInf,
        Poison::GradientHuge,
    ];
    let poison = prop::collection::vec((0u32..20, prop::sample::select(kinds.to_vec())), 1..4);
    (2u64..=MOST_SAMPLES, 1u64..5, 1u64..5, any::<u64>(), poison).prop_map(
        |(samples, micro_batch, accumulation, seed, mut poison)| {
            for (sample, _) in &mut poison {
                *sample %= samples as u32;
            }
            Case { samples, micro_batch, accumulation, seed, poison }
        },
    )
}

impl Case {
    fn args(&self, run: &Path, poison: &[(u32, Poison)]) -> WorkerArgs {
        let knobs = [
            ("data", json!({ "samples": self.samples, "marks": false, "poison": poison })),
            ("model", json!({})),
            ("training.epochs", json!(EPOCHS)),
            ("training.micro_batch", json!(self.micro_batch)),
            ("training.accumulation", json!(self.accumulation)),
            ("training.seed", json!(self.seed)),
            ("evaluation.every", json!("never")),
        ];
        let mut args = args(run, with(preset(0.0), &knobs));
        (args.task, args.skips_in_a_row) = ("marked".into(), 1000);
        args
    }

    /// Derives from the data plan which steps hold a poisoned sample, and where it shows.
    fn expected(&self) -> (u64, Vec<Drop>) {
        let Self { samples, micro_batch, accumulation, .. } = *self;
        let plan = BatchPlan { epoch_samples: samples, units: 1, micro_batch, accumulation };
        let (mut at, mut step, mut drops) = (Position::default(), 0, Vec::new());
        while at.samples < EPOCHS * samples {
            step += 1;
            let next = plan.step(at);
            let order = epoch_order(self.seed, next.epoch, samples as usize);
            let found = |wanted: &dyn Fn(Poison) -> bool| {
                let poisoned = |sample: &u32| self.poison.iter().any(|(at, kind)| at == sample && wanted(*kind));
                next.micro_batches.iter().position(|range| order[range.clone()].iter().any(poisoned))
            };
            if let Some(micro) = found(&Poison::is_in_loss) {
                let place = format!("micro-batch {} of {}", micro + 1, next.micro_batches.len());
                drops.push(Drop { step, what: "loss".into(), place });
            } else if found(&|_| true).is_some() {
                let finite = found(&|kind| kind != Poison::GradientHuge).is_none();
                let place = if finite { "the norm over all parameters overflows" } else { "layer.weight" };
                drops.push(Drop { step, what: "gradient".into(), place: place.into() });
            }
            at = next.after;
        }
        (step, drops)
    }
}

fn dropped(told: &Told) -> Vec<Drop> {
    let drop = |event: &Event| match event {
        Event::Skipped(skipped) => {
            let named = skipped.place == "layer.weight";
            assert_eq!(skipped.parameter.as_deref(), named.then_some("layer.weight"));
            Some(Drop { step: skipped.step, what: skipped.what.clone(), place: skipped.place.clone() })
        }
        _ => None,
    };
    told.events.iter().filter_map(drop).collect()
}

fn all_finite(file: &[u8]) -> bool {
    let numbers = |bytes: &[u8]| bytes.as_chunks().0.iter().all(|number| f32::from_le_bytes(*number).is_finite());
    SafeTensors::deserialize(file).unwrap().iter().all(|(_, view)| numbers(view.data()))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn no_nan_or_infinity_reaches_weights_or_moments(case in cases()) {
        super::prepare();
        let (last, drops) = case.expected();
        let struck = TempDir::new().unwrap();
        let told = live(case.args(struck.path(), &case.poison), &[]);
        prop_assert_eq!(told.outcome.as_ref(), Ok(&DoneReason::Finished));
        prop_assert_eq!(&dropped(&told), &drops);
        // The same run with clean data, with those steps dropped by hand.
        let clean = TempDir::new().unwrap();
        let mut args = case.args(clean.path(), &[]);
        let list: Vec<String> = drops.iter().map(|drop| format!("nan@{}", drop.step)).collect();
        args.inject = Inject::parse_list(&list.join(",")).unwrap();
        live(args, &[]);
        let (model, optimizer) = tensors(struck.path(), last);
        prop_assert!(all_finite(&model) && all_finite(&optimizer));
        prop_assert_eq!((model, optimizer), tensors(clean.path(), last));
        let loaded = checkpoint::newest_valid(struck.path()).0.unwrap();
        let state: TrainState = serde_json::from_slice(&loaded.files[STATE]).unwrap();
        prop_assert_eq!((state.skipped, state.optimizer_time), (drops.len() as u64, last - drops.len() as u64));
    }
}
