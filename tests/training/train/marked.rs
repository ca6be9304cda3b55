//! A task whose losses encode which samples went into them, and whose samples can be poisoned: with a
//! non-finite loss or a single non-finite gradient element.

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

/// The most samples that fit into the digits of a loss.
pub const MOST_SAMPLES: u64 = 20;
const INPUTS: usize = 8;

/// The effect of a sample on its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Poison {
    LossNan,
    LossInf,
    LossMinusInf,
    GradientNan,
    GradientInf,
    /// Finite, but its square is not.
    GradientHuge,
}

impl Poison {
    pub fn is_in_loss(self) -> bool {
        matches!(self, Self::LossNan | Self::LossInf | Self::LossMinusInf)
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    samples: u64,
    /// The loss of a sample is 2 to the power of its index; nothing is learned.
    marks: bool,
    poison: Vec<(u32, Poison)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {}

pub struct Batch {
    inputs: Vec<f32>,
    targets: Vec<f32>,
    marks: Option<Vec<f32>>,
    /// The poison, and the weight element whose gradient it affects.
    poison: Vec<(Poison, usize)>,
}

#[derive(Module, Debug)]
pub struct Model<B: Backend> {
    layer: Linear<B>,
}

pub struct Marked;

impl Task for Marked {
    const NAME: &'static str = "marked";
    type DataConfig = DataConfig;
    type ModelConfig = ModelConfig;
    type Data = DataConfig;
    type Batch = Batch;

    fn check(_data: &DataConfig, _model: &ModelConfig) -> Vec<Problem> {
        Vec::new()
    }

    fn resolve_paths(_data: &mut DataConfig, _absolute: &dyn Fn(&str) -> String) {}

    fn load(data: &DataConfig, _model: &ModelConfig, _seed: u64) -> Result<DataConfig, DataError> {
        let DataConfig { samples, marks, .. } = *data;
        Ok(DataConfig { samples, marks, poison: data.poison.clone() })
    }

    fn len(data: &DataConfig, split: Split) -> usize {
        if split == Split::Training { usize::try_from(data.samples).unwrap() } else { 0 }
    }

    fn batch(data: &DataConfig, request: BatchRequest<'_>) -> Batch {
        let (mut inputs, mut targets, mut poison) = (Vec::new(), Vec::new(), Vec::new());
        for index in request.indices {
            let mut stream = Stream::new(u64::from(*index));
            inputs.extend((0..INPUTS).map(|_| stream.unit() - 0.5));
            targets.push(stream.unit());
            let here = data.poison.iter().filter(|(sample, _)| sample == index);
            poison.extend(here.map(|(sample, kind)| (*kind, *sample as usize % INPUTS)));
        }
        let marks = data.marks.then(|| request.indices.iter().map(|index| (1_u32 << index) as f32).collect());
        Batch { inputs, targets, marks, poison }
    }
}

/// Returns a poison's contribution to the loss, given a weight and a detached copy of it.
fn added<B: Backend>(poison: Poison, weight: Tensor<B, 2>, still: Tensor<B, 2>) -> Tensor<B, 1> {
    let everywhere = |value: f32| still.zeros_like().sum().add_scalar(value);
    match poison {
        Poison::LossNan => everywhere(f32::NAN),
        Poison::LossInf => everywhere(f32::INFINITY),
        Poison::LossMinusInf => everywhere(f32::NEG_INFINITY),
        // Zero, with an infinite gradient.
        Poison::GradientInf => (weight - still).sqrt().sum(),
        Poison::GradientNan => (weight - still).sqrt().mul_scalar(0.0).sum(),
        Poison::GradientHuge => (weight - still).mul_scalar(1e30).sum(),
    }
}

impl<B: AutodiffBackend> Train<B> for Marked {
    type Model = Model<B>;

    fn init(_model: &ModelConfig, _data: &DataConfig, device: &B::Device) -> Model<B> {
        Model { layer: LinearConfig::new(INPUTS, 1).init(device) }
    }

    fn loss(model: &Model<B>, batch: Batch, pass: &Pass<'_, B>) -> Tensor<B, 1> {
        let count = batch.targets.len();
        let inputs = Tensor::<B, 2>::from_data(TensorData::new(batch.inputs, [count, INPUTS]), pass.device);
        let targets = Tensor::<B, 2>::from_data(TensorData::new(batch.targets, [count, 1]), pass.device);
        let mut loss = (model.layer.forward(inputs) - targets).square().mean();
        if let Some(marks) = batch.marks {
            loss =
                loss.mul_scalar(0.0) + Tensor::<B, 1>::from_data(TensorData::new(marks, [count]), pass.device).mean();
        }
        for (poison, element) in batch.poison {
            let weight = model.layer.weight.val().slice([element..element + 1, 0..1]);
            let still = weight.clone().detach();
            loss = loss + added(poison, weight, still);
        }
        loss
    }

    fn evaluate(
        _model: &<Model<B> as AutodiffModule<B>>::InnerModule,
        _batch: Batch,
        _device: &<B::InnerBackend as BackendTypes>::Device,
    ) -> Tally {
        Tally::default()
    }
}
