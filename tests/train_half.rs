//! Training in 16 bits: the module computes in bfloat16, the master weights are f32 and survive a checkpoint to
//! the last bit. A separate test binary, because the number format is a property of the device for the lifetime
//! of the process. (Run files refuse 16 bits on the CPU: it is slow there.)
#![cfg(feature = "train")]
#![cfg_attr(feature = "train", expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking"))]

#[path = "training/train/halves.rs"]
mod halves;
#[path = "training/train/harness.rs"]
#[expect(dead_code, reason = "shared with the tests in f32")]
mod harness;
#[path = "training/train/marked.rs"]
mod marked;
#[path = "training/train/poison.rs"]
mod poison;
#[path = "training/train/sixteen.rs"]
mod sixteen;
#[path = "training/train/tiny.rs"]
mod tiny;

/// Largest relative difference between a gradient in this format and in f32.
#[cfg(test)]
const APART: f64 = 0.1;

#[cfg(test)]
fn prepare() {
    sixteen::prepare(downshift::burn::tensor::FloatDType::BF16);
}

#[cfg(test)]
mod tests {
    use crate::harness::{args, live, preset, tensors, with};
    use downshift::protocol::worker::{DoneReason, Order};
    use safetensors::SafeTensors;
    use serde_json::json;
    use tempfile::TempDir;

    #[test]
    fn frozen_weights_keep_full_precision_in_a_16_bit_module() {
        crate::prepare();
        let dir = TempDir::new().unwrap();
        let stop = |step| [(step, Order::Stop { checkpoint: true })];
        let told = live(args(dir.path(), preset(0.0)), &stop(6));
        assert_eq!(told.outcome, Ok(DoneReason::Stopped));
        let frozen = with(preset(0.0), &[("training.trained", json!("head"))]);
        assert_eq!(live(args(dir.path(), frozen), &stop(12)).outcome, Ok(DoneReason::Stopped));
        let ([before, after], mut full) = ([6, 12].map(|step| tensors(dir.path(), step).0), 0);
        let [before, after] = [&before, &after].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
        for name in ["blocks.0.weight", "blocks.0.bias"] {
            let data = before.tensor(name).unwrap().data();
            assert!(data == after.tensor(name).unwrap().data(), "{name} has moved");
            full += data.chunks(4).filter(|bytes| bytes[..2] != [0, 0]).count();
        }
        assert!(full > 0, "rounding would not be noticed");
        assert!(before.tensor("head.weight").unwrap().data() != after.tensor("head.weight").unwrap().data());
    }

    #[test]
    fn weights_in_full_precision_survive_a_checkpoint() {
        crate::prepare();
        let (whole_dir, dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let whole = live(args(whole_dir.path(), preset(0.3)), &[]);
        assert_eq!(whole.outcome, Ok(DoneReason::Finished));
        let loss = whole.evals();
        assert!(loss.last().unwrap().1 < 0.65, "it does not learn: {loss:?}");
        live(args(dir.path(), preset(0.3)), &[(11, Order::Stop { checkpoint: true })]);
        let rest = live(args(dir.path(), preset(0.3)), &[]);
        assert_eq!(rest.curve()[..], whole.curve()[11..]);
        assert_eq!(tensors(dir.path(), 24), tensors(whole_dir.path(), 24));

        let (model, _) = tensors(dir.path(), 24);
        let file = SafeTensors::deserialize(&model).unwrap();
        let weight = file.tensor("head.weight").unwrap();
        // bfloat16 has zeros in the lower half of each f32.
        let full = weight.data().chunks(4).filter(|bytes| bytes[..2] != [0, 0]).count();
        assert!(full > 0, "the weights were rounded to 16 bits");
    }
}
