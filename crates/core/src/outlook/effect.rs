//! Whether a change of rung would change anything on the machine that a run is on.

use crate::recipe::class::compare_presets;
use serde_json::Value;

/// The machine and the script that a rung would change.
pub struct Surroundings<F> {
    /// The worker trains without a GPU.
    pub is_without_gpu: bool,
    /// Whether the script ignores a knob.
    pub ignores: F,
}

impl<F: Fn(&str) -> bool> Surroundings<F> {
    /// Reports whether a change between two rungs has an effect, as far as known: the script follows it, and it is none of a
    /// GPU while there is none.
    pub fn has_effect(&self, from: &Value, to: &Value) -> bool {
        let is_idle = |path: &str| (self.ignores)(path) || self.is_without_gpu && is_variable_of_gpu(path);
        let changes = compare_presets(from, to);
        changes.is_empty() || changes.iter().any(|change| !is_idle(&change.path))
    }

    /// Returns the nearest rung below this one that has an effect; the next one if none has. `knobs`: those of each rung.
    pub fn rung_below<'a>(&self, here: usize, knobs: impl IntoIterator<Item = &'a Value>) -> usize {
        let mut rungs = knobs.into_iter().enumerate().skip(here);
        let Some((_, full)) = rungs.next() else { return here + 1 };
        rungs.find(|(_, knobs)| self.has_effect(full, knobs)).map_or(here + 1, |(rung, _)| rung)
    }
}

/// Reports whether a knob is an environment variable that only CUDA reads, or PyTorch's allocator for it.
fn is_variable_of_gpu(path: &str) -> bool {
    let Some(name) = path.strip_prefix("environment.") else { return false };
    ["CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "PYTORCH_CUDA_", "TORCH_NCCL_"].iter().any(|start| name.starts_with(start))
        || name == "PYTORCH_ALLOC_CONF"
}

#[cfg(test)]
mod tests {
    use super::Surroundings;
    use serde_json::json;

    #[test]
    fn a_step_down_passes_over_rungs_that_change_nothing_here() {
        let segments = json!({ "environment": { "PYTORCH_ALLOC_CONF": "x" }, "training": { "micro_batch": 8 } });
        let half = json!({ "environment": { "PYTORCH_ALLOC_CONF": "x" }, "training": { "micro_batch": 4 } });
        let full = json!({ "environment": {}, "training": { "micro_batch": 8 } });
        let ladder = [full, segments, half];
        let below = |is_without_gpu, ignored: &str, here| {
            Surroundings { is_without_gpu, ignores: |path: &str| path == ignored }.rung_below(here, &ladder)
        };
        assert_eq!(below(false, "", 0), 1);
        assert_eq!(below(true, "", 0), 2);
        assert_eq!(below(true, "", 1), 2);
        assert_eq!(below(true, "training.micro_batch", 0), 1, "no rung changes anything");
        assert_eq!(below(true, "", 2), 3, "there is none below");
    }
}
