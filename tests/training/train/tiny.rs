//! A task of a few hundred parameters: two noisy classes in six dimensions, a perceptron with one
//! hidden layer and dropout.

use burn::module::{AutodiffModule, Module};
use burn::nn::{
    Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, loss::CrossEntropyLossConfig,
};
use burn::tensor::{
    Int, Tensor, TensorData, activation,
    backend::{AutodiffBackend, Backend, BackendTypes},
};
use downshift::burn;
use downshift::config::problem::Problem;
use downshift::recipe::seed::{Purpose, Stream};
use downshift::train::task::{BatchRequest, DataError, Pass, Split, Tally, Task, Train};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const INPUTS: usize = 6;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    samples: usize,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    hidden: usize,
    dropout: f64,
}

pub struct Data {
    inputs: Vec<[f32; INPUTS]>,
    labels: Vec<i32>,
    training: usize,
}

pub struct Batch {
    inputs: Vec<f32>,
    labels: Vec<i32>,
}

pub struct Tiny;

impl Task for Tiny {
    const NAME: &'static str = "tiny";
    const METRICS: &'static [&'static str] = &["accuracy"];
    type DataConfig = DataConfig;
    type ModelConfig = ModelConfig;
    type Data = Data;
    type Batch = Batch;

    fn check(_data: &DataConfig, _model: &ModelConfig) -> Vec<Problem> {
        Vec::new()
    }

    fn resolve_paths(_data: &mut DataConfig, _absolute: &dyn Fn(&str) -> String) {}

    fn load(data: &DataConfig, _model: &ModelConfig, _seed: u64) -> Result<Data, DataError> {
        if data.samples > 1000 {
            return Err(DataError { file: "tiny.bin".into(), offset: Some(1000), message: "it ends here".into() });
        }
        let mut stream = Stream::new(1);
        let total = data.samples + 10;
        let labels: Vec<i32> = (0..total).map(|_| i32::from(stream.unit() < 0.5)).collect();
        let mut value = |label: i32| stream.unit() - 0.5 + if label == 1 { 0.2 } else { -0.2 };
        let inputs = labels.iter().map(|label| std::array::from_fn(|_| value(*label))).collect();
        Ok(Data { inputs, labels, training: data.samples })
    }

    fn len(data: &Data, split: Split) -> usize {
        match split {
            Split::Training => data.training,
            Split::Validation => data.labels.len() - data.training,
        }
    }

    fn batch(data: &Data, request: BatchRequest<'_>) -> Batch {
        let first = if request.split == Split::Training { 0 } else { data.training };
        let (mut inputs, mut labels) = (Vec::new(), Vec::new());
        for index in request.indices {
            let at = first + *index as usize;
            // Augmentation must be a pure function of seed, epoch and sample.
            let counters = [request.epoch, u64::from(*index), 0];
            let noise = Stream::for_purpose(request.seed, Purpose::Augmentation, counters).unit() * 0.01;
            inputs.extend(data.inputs[at].iter().map(|value| value + noise));
            labels.push(data.labels[at]);
        }
        Batch { inputs, labels }
    }
}

#[derive(Module, Debug)]
pub struct Model<B: Backend> {
    blocks: Vec<Linear<B>>,
    norm: LayerNorm<B>,
    dropout: Dropout,
    head: Linear<B>,
}

impl<B: Backend> Model<B> {
    fn forward(&self, mut values: Tensor<B, 2>) -> Tensor<B, 2> {
        for block in &self.blocks {
            values = self.dropout.forward(activation::relu(block.forward(values)));
        }
        self.head.forward(self.norm.forward(values))
    }
}

fn tensors<B: Backend>(batch: Batch, device: &B::Device) -> (Tensor<B, 2>, Tensor<B, 1, Int>) {
    let count = batch.labels.len();
    (
        Tensor::from_data(TensorData::new(batch.inputs, [count, INPUTS]), device),
        Tensor::from_data(TensorData::new(batch.labels, [count]), device),
    )
}

impl<B: AutodiffBackend> Train<B> for Tiny {
    type Model = Model<B>;

    fn init(model: &ModelConfig, _data: &Data, device: &B::Device) -> Model<B> {
        Model {
            blocks: vec![LinearConfig::new(INPUTS, model.hidden).init(device)],
            norm: LayerNormConfig::new(model.hidden).init(device),
            dropout: DropoutConfig::new(model.dropout).init(),
            head: LinearConfig::new(model.hidden, 2).init(device),
        }
    }

    fn loss(model: &Model<B>, batch: Batch, pass: &Pass<'_, B>) -> Tensor<B, 1> {
        let (inputs, labels) = tensors::<B>(batch, pass.device);
        CrossEntropyLossConfig::new().init(pass.device).forward(model.forward(inputs), labels)
    }

    fn evaluate(
        model: &<Model<B> as AutodiffModule<B>>::InnerModule,
        batch: Batch,
        device: &<B::InnerBackend as BackendTypes>::Device,
    ) -> Tally {
        let count = batch.labels.len() as u64;
        let (inputs, labels) = tensors::<B::InnerBackend>(batch, device);
        let logits = model.forward(inputs);
        let answers = logits.clone().argmax(1).squeeze_dim::<1>(1);
        let correct: i64 = answers.equal(labels.clone()).int().sum().into_data().iter::<i64>().sum();
        let loss = CrossEntropyLossConfig::new().init(device).forward(logits, labels);
        let mean: f64 = loss.into_data().iter::<f64>().sum();
        Tally {
            loss_sum: mean * count as f64,
            count,
            sums: BTreeMap::from([("accuracy", correct as f64)]),
            ..Tally::default()
        }
    }
}
