//! Steps on a backend as Burn brings it.

#![expect(deprecated, reason = "candle is one of the backends that are compared")]

use super::ours;
use super::took::{COMPARED, Outcome, Took, median};
use burn::backend::{Autodiff, Candle, Flex, NdArray};
use burn::module::{AutodiffModule, Module, ModuleMapper, Param};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, Tensor, TensorData};
use downshift::config::knobs::Preset;
use downshift::recipe::order::epoch_order;
use downshift::train::task::{BatchRequest, Pass, Split, Task, Train};
use downshift::train::tasks::{lm::LanguageModel, vision::Vision};
use downshift::train::{memory, native};
use safetensors::SafeTensors;
use std::path::Path;
use std::time::Instant;

/// The backends, downshift's own operations first.
pub const BACKENDS: &[&str] = &[
    "downshift",
    "burn-flex",
    "burn-ndarray with OpenBLAS",
    "burn-candle",
    #[cfg(feature = "torch")]
    "burn-tch",
];

/// Takes the steps of a case on a backend and prints what they took.
pub fn run(backend: &str, folder: &Path, steps: usize) -> Outcome<()> {
    match backend {
        "downshift" => ours::run(folder, steps),
        "burn-flex" => by_task::<Autodiff<Flex>>(folder, steps),
        "burn-ndarray with OpenBLAS" => by_task::<Autodiff<NdArray>>(folder, steps),
        "burn-candle" => by_task::<Autodiff<Candle>>(folder, steps),
        #[cfg(feature = "torch")]
        "burn-tch" => by_task::<Autodiff<burn::backend::LibTorch>>(folder, steps),
        other => Err(format!("unknown backend `{other}`").into()),
    }
}

fn by_task<A: AutodiffBackend>(folder: &Path, steps: usize) -> Outcome<()>
where
    LanguageModel: Train<A>,
    Vision: Train<A>,
{
    let (task, preset): (String, Preset) = serde_json::from_slice(&std::fs::read(folder.join("preset.json"))?)?;
    let took = match task.as_str() {
        Vision::NAME => train::<A, Vision>(&preset, folder, steps)?,
        _ => train::<A, LanguageModel>(&preset, folder, steps)?,
    };
    println!("{}", serde_json::to_string(&took)?);
    Ok(())
}

fn train<A: AutodiffBackend, T: Train<A>>(preset: &Preset, folder: &Path, steps: usize) -> Outcome<Took>
where
    T::Model: AutodiffModule<A>,
{
    // None of downshift's operations: what a task is made of is computed by Burn.
    let _stock = native::Scope::new(false);
    let before = memory::resident_bytes().unwrap_or(0);
    let device = A::Device::default();
    let model_config: T::ModelConfig = serde_json::from_value(serde_json::to_value(&preset.model)?)?;
    let data_config: T::DataConfig = serde_json::from_value(serde_json::to_value(&preset.data)?)?;
    let data = T::load(&data_config, &model_config, preset.training.seed)?;
    let mut model = load_weights::<A, _>(T::init(&model_config, &data, &device), folder, &device)?;
    let knobs = &preset.optimizer;
    let mut optimizer = AdamWConfig::new().with_weight_decay(knobs.weight_decay as f32).init();
    let order = epoch_order(preset.training.seed, 0, T::len(&data, Split::Training));
    let batches: Vec<&[u32]> = order.chunks_exact(preset.training.micro_batch as usize).collect();
    let (mut losses, mut times) = (Vec::new(), Vec::new());
    for step in 0..COMPARED + steps {
        let began = Instant::now();
        let indices = batches[step % batches.len()];
        let request = BatchRequest { split: Split::Training, indices, epoch: 0, seed: preset.training.seed };
        let loss = T::loss(&model, T::batch(&data, request), &Pass::plain(&device));
        losses
            .push(loss.clone().into_data().convert::<f64>().to_vec::<f64>().map_err(|error| format!("{error:?}"))?[0]);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(knobs.lr, model, gradients);
        times.push(began.elapsed().as_secs_f64());
    }
    let peak_bytes = memory::peak_bytes().unwrap_or(0).saturating_sub(before);
    let step_s = median(times.split_off(COMPARED));
    losses.truncate(COMPARED);
    Ok(Took { losses, step_s, peak_bytes })
}

/// Puts the initial weights of the case into a model.
fn load_weights<A: AutodiffBackend, M: Module<A>>(model: M, folder: &Path, device: &A::Device) -> Outcome<M> {
    struct Loader<'a, A: AutodiffBackend> {
        path: Vec<String>,
        weights: &'a SafeTensors<'a>,
        missing: Vec<String>,
        device: &'a A::Device,
    }
    impl<A: AutodiffBackend> ModuleMapper<A> for Loader<'_, A> {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<A, D>>) -> Param<Tensor<A, D>> {
            let path = self.path.join(".");
            let Ok(view) = self.weights.tensor(&path) else {
                self.missing.push(path);
                return param;
            };
            let data = TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), DType::F32);
            let (id, old, mapper) = param.consume();
            let tensor = Tensor::from_data(data, self.device).set_require_grad(old.is_require_grad());
            Param::from_mapped_value(id, tensor, mapper)
        }
    }
    let bytes = std::fs::read(folder.join("weights.safetensors"))?;
    let weights = SafeTensors::deserialize(&bytes)?;
    let mut loader = Loader::<A> { path: Vec::new(), weights: &weights, missing: Vec::new(), device };
    let model = model.map(&mut loader);
    if loader.missing.is_empty() {
        Ok(model)
    } else {
        Err(format!("no weights for {}", loader.missing.join(", ")).into())
    }
}
