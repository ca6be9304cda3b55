//! Training in f16 with a loss scale: it is halved when a gradient overflows, kept in checkpoints, and does not
//! affect the gradients. A separate test binary, like the one for bfloat16. (Run files refuse 16 bits on the
//! CPU: it is slow there.)
#![cfg(feature = "train")]
#![cfg_attr(feature = "train", expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking"))]

#[path = "training/train/halves.rs"]
mod halves;
#[path = "training/train/harness.rs"]
#[expect(dead_code, reason = "shared with the tests in f32")]
mod harness;
#[path = "training/train/marked.rs"]
#[expect(dead_code, reason = "shared with the tests in f32")]
mod marked;
#[path = "training/train/sixteen.rs"]
mod sixteen;
#[path = "training/train/tiny.rs"]
mod tiny;

/// Largest relative difference between a gradient in this format and in f32.
#[cfg(test)]
const APART: f64 = 0.0125;

#[cfg(test)]
fn prepare() {
    sixteen::prepare(downshift::burn::tensor::FloatDType::F16);
}

#[cfg(test)]
mod tests {
    use crate::harness::{Told, args, live, preset, tensors, with};
    use crate::marked::Poison;
    use downshift::protocol::worker::{DoneReason, Event, FailureClass, Order, Skipped};
    use downshift::recipe::loss_scale::LossScale;
    use downshift::store::checkpoint::{self, STATE, state::TrainState};
    use serde_json::json;
    use std::path::Path;
    use tempfile::TempDir;

    const STOP: Order = Order::Stop { checkpoint: true };

    fn skipped(told: &Told) -> Vec<Skipped> {
        let skip = |event: &Event| match event {
            Event::Skipped(skipped) => Some(skipped.clone()),
            _ => None,
        };
        told.events.iter().filter_map(skip).collect()
    }

    fn state(run: &Path, step: u64) -> TrainState {
        let loaded = checkpoint::load(&run.join(checkpoint::relative_path(step))).unwrap();
        serde_json::from_slice(&loaded.files[STATE]).unwrap()
    }

    #[test]
    fn an_overflow_halves_the_scale_and_a_resumed_run_keeps_it() {
        crate::prepare();
        let whole_dir = TempDir::new().unwrap();
        let whole = live(args(whole_dir.path(), preset(0.3)), &[]);
        assert_eq!(whole.outcome, Ok(DoneReason::Finished));
        let skips = skipped(&whole);
        // A loss in f16 passes 65536 back, which overflows f16: at least the first step is lost.
        assert!((1..6).contains(&skips.len()), "{skips:?}");
        for (skip, power) in skips.iter().zip(0..) {
            let [before, after] = [65_536 >> power, 32_768 >> power];
            assert!(skip.rescaled && skip.what == "gradient");
            assert!(skip.place.ends_with(&format!("; loss scale {before} → {after}")), "{skip:?}");
        }
        let last = state(whole_dir.path(), 24);
        let drops = skips.len() as u64;
        assert_eq!((last.skipped, last.skips_in_a_row, last.optimizer_time), (drops, 0, 24 - drops));
        assert_eq!(last.loss_scale.map(|scale| scale.scale as u64), Some(65_536 >> drops));
        let evals = whole.evals();
        assert!(evals.last().unwrap().1 < 0.65, "it does not learn: {evals:?}");
        for stop in [1, 2, 11] {
            let dir = TempDir::new().unwrap();
            let one = live(args(dir.path(), preset(0.3)), &[(stop, STOP)]);
            let kept = state(dir.path(), stop).loss_scale.unwrap();
            assert!(kept.scale < LossScale::default().scale);
            let two = live(args(dir.path(), preset(0.3)), &[]);
            let joined: Vec<_> = one.curve().into_iter().chain(two.curve()).collect();
            assert_eq!(joined, whole.curve(), "stopped at {stop}");
            assert_eq!([skipped(&one), skipped(&two)].concat(), skips);
            assert!(tensors(dir.path(), 24) == tensors(whole_dir.path(), 24));
            assert_eq!(state(dir.path(), 24).loss_scale, last.loss_scale);
        }
    }

    #[test]
    fn offloading_master_weights_changes_nothing() {
        crate::prepare();
        let run = |moments: &str, offload: bool| {
            let knobs = [("optimizer.moments", json!(moments)), ("optimizer.offload", json!(offload))];
            let dir = TempDir::new().unwrap();
            let preset = with(with(preset(0.3), &[("model.hidden", json!(2048))]), &knobs);
            // Interrupted, so that state also comes from a checkpoint.
            live(args(dir.path(), preset.clone()), &[(9, STOP)]);
            assert_eq!(live(args(dir.path(), preset), &[]).outcome, Ok(DoneReason::Finished));
            tensors(dir.path(), 24)
        };
        for moments in ["f32", "8bit"] {
            assert!(run(moments, false) == run(moments, true), "{moments}");
        }
    }

    #[test]
    fn an_overflow_that_no_scale_prevents_ends_the_worker() {
        crate::prepare();
        let dir = TempDir::new().unwrap();
        let poison: Vec<_> = (0..20).map(|sample| (sample, Poison::GradientInf)).collect();
        let knobs = [
            ("data", json!({ "samples": 20, "marks": false, "poison": poison })),
            ("model", json!({})),
            ("training.micro_batch", json!(1)),
            ("training.accumulation", json!(1)),
            ("evaluation.every", json!("never")),
        ];
        let mut args = args(dir.path(), with(preset(0.0), &knobs));
        args.task = "marked".into();
        let told = live(args, &[]);
        assert_eq!(told.outcome.as_ref().unwrap_err().class, FailureClass::NonFinite);
        let rescaled: Vec<bool> = skipped(&told).iter().map(|skip| skip.rescaled).collect();
        // 65536 is halved 16 times; five more in a row are too many.
        assert_eq!(rescaled, [vec![true; 16], vec![false; 5]].concat());
    }
}
