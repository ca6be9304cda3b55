//! A custom task: on which of two interleaved spirals does a point lie? Cockpit, ladder, checkpoints
//! and restarts all work with it:
//! `cargo run --release --example own_task -- run examples/own_task.yaml`

use downshift::burn;

use burn::module::{AutodiffModule, Module};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::backend::{AutodiffBackend, Backend, BackendTypes};
use burn::tensor::{ElementConversion, Int, Tensor, TensorData, activation};
use downshift::{
    BatchRequest, DataError, Pass, Problem, Purpose, Registry, Sample, Samples, Split, Stream, Tally, Task, TaskSample,
    Train,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

struct Spirals;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DataConfig {
    /// Training points; a fifth as many are held out.
    points: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelConfig {
    /// Width of the two hidden layers.
    width: usize,
}

/// Points and the spiral each lies on.
struct Points(Vec<([f32; 2], i32)>);

impl Task for Spirals {
    const NAME: &'static str = "spirals";
    /// Share of right answers, and mean probability of the right answer.
    const METRICS: &'static [&'static str] = &["accuracy", "confidence"];
    type DataConfig = DataConfig;
    type ModelConfig = ModelConfig;
    type Data = [Points; 2];
    type Batch = Points;

    fn check(data: &DataConfig, _model: &ModelConfig) -> Vec<Problem> {
        let wrong = match data.points {
            0..5 => "this leaves no point to hold out",
            5..=10_000_000 => return Vec::new(),
            _ => "this is more than fit into memory",
        };
        vec![Problem::at("data.points", wrong, "1000 works")]
    }

    fn resolve_paths(_data: &mut DataConfig, _absolute: &dyn Fn(&str) -> String) {}

    fn load(data: &DataConfig, _model: &ModelConfig, seed: u64) -> Result<[Points; 2], DataError> {
        let mut stream = Stream::for_purpose(seed, Purpose::Task, [0; 3]);
        let mut points = |count| Points((0..count).map(|_| point(&mut stream)).collect());
        Ok([points(data.points), points(data.points / 5)])
    }

    fn parameters(model: &ModelConfig, _data: &[Points; 2]) -> Option<u128> {
        let width = model.width as u128;
        Some((2 + 1) * width + (width + 1).saturating_mul(width) + (width + 1) * 2)
    }

    fn len([training, validation]: &[Points; 2], split: Split) -> usize {
        if split == Split::Training { training.0.len() } else { validation.0.len() }
    }

    fn batch([training, validation]: &[Points; 2], request: BatchRequest<'_>) -> Points {
        let part = if request.split == Split::Training { training } else { validation };
        Points(request.indices.iter().map(|index| part.0[*index as usize]).collect())
    }
}

/// Draws a point on one of the spirals, two turns long, with a little noise.
fn point(stream: &mut Stream) -> ([f32; 2], i32) {
    let spiral = i32::from(stream.unit() < 0.5);
    let along = stream.unit().sqrt();
    let angle = std::f32::consts::PI * (4.0 * along + spiral as f32);
    let mut noise = || 0.03 * (stream.unit() - 0.5);
    ([along * angle.cos() + noise(), along * angle.sin() + noise()], spiral)
}

#[derive(Module, Debug)]
struct Network<B: Backend> {
    layers: [Linear<B>; 3],
}

impl<B: Backend> Network<B> {
    /// Maps points `[batch, 2]` to logits `[batch, 2]`; also returns the labels `[batch, 1]`.
    fn forward(&self, points: &Points, device: &B::Device) -> (Tensor<B, 2>, Tensor<B, 2, Int>) {
        let (places, answers): (Vec<[f32; 2]>, Vec<i32>) = points.0.iter().copied().unzip();
        let x = Tensor::from_data(TensorData::new(places.concat(), [answers.len(), 2]), device);
        let answers = TensorData::new(answers, [points.0.len(), 1]);
        let [first, second, last] = &self.layers;
        let hidden = activation::gelu(second.forward(activation::gelu(first.forward(x))));
        (last.forward(hidden), Tensor::from_data(answers, device))
    }
}

impl<B: AutodiffBackend> Train<B> for Spirals {
    type Model = Network<B>;

    fn init(model: &ModelConfig, _data: &[Points; 2], device: &B::Device) -> Network<B> {
        let sizes = [[2, model.width], [model.width, model.width], [model.width, 2]];
        Network { layers: sizes.map(|[from, to]| LinearConfig::new(from, to).init(device)) }
    }

    fn loss(model: &Network<B>, batch: Points, pass: &Pass<'_, B>) -> Tensor<B, 1> {
        let (logits, answers) = model.forward(&batch, pass.device);
        activation::log_softmax(logits, 1).gather(1, answers).mean().neg()
    }

    fn evaluate(
        model: &<Network<B> as AutodiffModule<B>>::InnerModule,
        batch: Points,
        device: &<B::InnerBackend as BackendTypes>::Device,
    ) -> Tally {
        let (logits, answers) = model.forward(&batch, device);
        let scores = activation::log_softmax(logits, 1);
        let right = scores.clone().argmax(1).equal(answers.clone()).int().sum().into_scalar().elem();
        let answered = scores.gather(1, answers);
        let confidence = answered.clone().exp().sum().into_scalar().elem();
        let loss_sum = answered.sum().neg().into_scalar().elem();
        let sums = BTreeMap::from([("accuracy", right), ("confidence", confidence)]);
        Tally { loss_sum, count: batch.0.len() as u64, sums, ..Tally::default() }
    }

    /// Shows the answers to a few held-out points.
    fn samples(
        model: &<Network<B> as AutodiffModule<B>>::InnerModule,
        [_, validation]: &[Points; 2],
        _total: &Tally,
        device: &<B::InnerBackend as BackendTypes>::Device,
    ) -> Samples {
        let shown = Points(validation.0.iter().take(8).copied().collect());
        let (logits, _) = model.forward(&shown, device);
        let scores: Vec<f32> = activation::softmax(logits, 1).into_data().iter().collect();
        let show = |(([x, y], label), scores): (&([f32; 2], i32), &[f32])| {
            let answer = usize::from(scores[1] > scores[0]);
            let sample = Sample {
                name: Some(format!("({x:.2}, {y:.2})")),
                label: Some(format!("spiral {label}")),
                answer: Some(format!("spiral {answer}")),
                confidence: Some(scores[answer]),
                ..Sample::default()
            };
            TaskSample { sample, picture: None }
        };
        Samples { list: shown.0.iter().zip(scores.chunks_exact(2)).map(show).collect(), confusion: None }
    }
}

fn main() -> std::process::ExitCode {
    downshift::main_with(&Registry::with_builtin().with::<Spirals>())
}
