//! A task that is nothing but state: stacked square layers, fed four samples.

use burn::module::{AutodiffModule, Module};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{
    Tensor, TensorData,
    backend::{AutodiffBackend, Backend, BackendTypes},
};
use downshift::burn;
use downshift::config::problem::Problem;
use downshift::recipe::seed::Stream;
use downshift::train::task::{BatchRequest, DataError, Pass, Split, Tally, Task, Train};
use serde::{Deserialize, Serialize};

/// Input and output width of each layer.
pub const WIDTH: usize = 1024;
/// Weights and two moments, in 32 bits.
const BYTES_PER_PARAMETER: f64 = 12.0;
const SAMPLES: usize = 64;

/// Returns the number of layers whose state has at least this many bytes.
pub fn layers_of(bytes: f64) -> usize {
    (bytes / BYTES_PER_PARAMETER / (WIDTH * (WIDTH + 1)) as f64).ceil() as usize
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    layers: usize,
}

#[derive(Module, Debug)]
pub struct Stack<B: Backend> {
    layers: Vec<Linear<B>>,
}

impl<B: Backend> Stack<B> {
    /// Mean square of the output: gradients reach every layer.
    fn loss(&self, batch: Vec<f32>, device: &B::Device) -> Tensor<B, 1> {
        let count = batch.len() / WIDTH;
        let mut values = Tensor::<B, 2>::from_data(TensorData::new(batch, [count, WIDTH]), device);
        for layer in &self.layers {
            values = values.clone() + layer.forward(values).tanh().mul_scalar(0.1);
        }
        values.square().mean()
    }
}

pub struct Layers;

impl Task for Layers {
    const NAME: &'static str = "layers";
    type DataConfig = DataConfig;
    type ModelConfig = ModelConfig;
    type Data = ();
    type Batch = Vec<f32>;

    fn check(_data: &DataConfig, _model: &ModelConfig) -> Vec<Problem> {
        Vec::new()
    }

    fn resolve_paths(_data: &mut DataConfig, _absolute: &dyn Fn(&str) -> String) {}

    fn load(_data: &DataConfig, _model: &ModelConfig, _seed: u64) -> Result<(), DataError> {
        Ok(())
    }

    fn len((): &(), split: Split) -> usize {
        if split == Split::Training { SAMPLES } else { 0 }
    }

    fn batch((): &(), request: BatchRequest<'_>) -> Vec<f32> {
        let sample = |index: &u32| {
            let mut stream = Stream::new(u64::from(*index));
            (0..WIDTH).map(move |_| stream.unit() - 0.5)
        };
        request.indices.iter().flat_map(sample).collect()
    }
}

impl<B: AutodiffBackend> Train<B> for Layers {
    type Model = Stack<B>;

    fn init(model: &ModelConfig, (): &(), device: &B::Device) -> Stack<B> {
        Stack { layers: (0..model.layers).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device)).collect() }
    }

    fn loss(model: &Stack<B>, batch: Vec<f32>, pass: &Pass<'_, B>) -> Tensor<B, 1> {
        model.loss(batch, pass.device)
    }

    fn evaluate(
        model: &<Stack<B> as AutodiffModule<B>>::InnerModule,
        batch: Vec<f32>,
        device: &<B::InnerBackend as BackendTypes>::Device,
    ) -> Tally {
        let count = (batch.len() / WIDTH) as u64;
        let mean: f64 = model.loss(batch, device).into_data().iter::<f64>().sum();
        Tally { loss_sum: mean * count as f64, count, ..Tally::default() }
    }
}
