//! One operation on an edge of a cell.

use super::genotype::Operation;
use crate::lora::projection::affine;
use crate::native::ops;
use crate::tasks::norm::{Norm, normalize};
use burn::module::Module;
use burn::nn::{
    Linear, LinearConfig, PaddingConfig2d,
    conv::{Conv2d, Conv2dConfig},
};
use burn::tensor::{
    Tensor, activation,
    backend::Backend,
    module::{avg_pool2d, max_pool2d},
};

/// The epsilon of the norms.
pub const EPSILON: f64 = 1e-5;

/// How the operations of a network are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    /// Whether norms have a scale and a shift. A search leaves both out: a scale would trade against the strengths.
    pub scaled_norms: bool,
    /// Whether 3×3 separable convolutions use the native operation where there is one.
    pub fused_separable: bool,
}

/// An operation with its weights: `[batch, height, width, channels]` to the same shape, or to ⌈height / 2⌉ and ⌈width /
/// 2⌉ with stride 2.
#[derive(Debug, Module)]
pub struct CellOperation<B: Backend> {
    /// The place in [`Operation::ALL`].
    kind: usize,
    stride: usize,
    fused: bool,
    depthwise: Option<Conv2d<B>>,
    pointwise: Option<Linear<B>>,
    norm: Option<Norm<B>>,
}

impl<B: Backend> CellOperation<B> {
    /// Returns a fresh operation.
    pub fn new(operation: Operation, channels: usize, stride: usize, build: Build, device: &B::Device) -> Self {
        let kernel = operation.kernel();
        let resamples = operation == Operation::SkipConnect && stride > 1;
        let bare = operation == Operation::None || operation == Operation::SkipConnect && stride == 1;
        Self {
            kind: Operation::ALL.iter().position(|other| *other == operation).unwrap_or(0),
            stride,
            fused: build.fused_separable,
            depthwise: kernel.map(|(size, dilation)| depthwise(channels, size, stride, dilation, device)),
            pointwise: (kernel.is_some() || resamples).then(|| pointwise([channels, channels], device)),
            norm: (build.scaled_norms && !bare).then(|| Norm::new(channels, true, EPSILON, device)),
        }
    }

    /// Returns its column in the architecture.
    pub fn column(&self) -> usize {
        self.kind
    }

    /// Reports whether it hands on its input.
    pub fn is_skip(&self) -> bool {
        self.operation() == Operation::SkipConnect
    }

    fn operation(&self) -> Operation {
        Operation::ALL.get(self.kind).copied().unwrap_or(Operation::None)
    }

    /// Applies the operation.
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        match self.operation() {
            Operation::SkipConnect if self.stride == 1 => x,
            Operation::SkipConnect => self.norm(self.mix_channels(every_second_pixel(x))),
            Operation::None => self.none(x),
            Operation::MaxPool3 => {
                let stride = [self.stride; 2];
                self.norm(by_channel(x, |x| max_pool2d(x, [3, 3], stride, [1, 1], [1, 1], false)))
            }
            Operation::AveragePool3 => {
                let stride = [self.stride; 2];
                self.norm(by_channel(x, |x| avg_pool2d(x, [3, 3], stride, [1, 1], false, false)))
            }
            Operation::Separable3 | Operation::Separable5 | Operation::Dilated3 => {
                let filtered = self.filter(activation::relu(x));
                self.norm(self.mix_channels(filtered))
            }
        }
    }

    fn none(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let x = if self.stride > 1 { every_second_pixel(x) } else { x };
        x.zeros_like()
    }

    /// The depthwise convolution.
    fn filter(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let Some(depthwise) = &self.depthwise else { return x };
        let native = self.fused && self.operation() == Operation::Separable3 && ops::applies(&x);
        let filtered = native.then(|| {
            let weight = depthwise.weight.val();
            let channels = weight.dims()[0];
            ops::depthwise(&x, &weight.reshape([channels, 9]).transpose(), self.stride)
        });
        filtered.flatten().unwrap_or_else(|| by_channel(x, |x| depthwise.forward(x)))
    }

    fn mix_channels(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        match &self.pointwise {
            Some(pointwise) => affine(x, pointwise.weight.val(), None),
            None => x,
        }
    }

    fn norm(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        match &self.norm {
            Some(norm) => norm.forward(x),
            None => normalize(x, EPSILON),
        }
    }
}

/// Returns a pointwise convolution without a bias, which the norm behind it would take away.
pub fn pointwise<B: Backend>([from, to]: [usize; 2], device: &B::Device) -> Linear<B> {
    LinearConfig::new(from, to).with_bias(false).init(device)
}

/// Returns every second pixel of both directions.
pub fn every_second_pixel<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 4> {
    by_channel(x, |x| avg_pool2d(x, [1, 1], [2, 2], [0, 0], true, false))
}

/// Runs `apply` on `[batch, channels, height, width]`, as Burn's convolutions and pools need it.
fn by_channel<B: Backend>(x: Tensor<B, 4>, apply: impl FnOnce(Tensor<B, 4>) -> Tensor<B, 4>) -> Tensor<B, 4> {
    apply(x.permute([0, 3, 1, 2])).permute([0, 2, 3, 1])
}

/// Returns a depthwise convolution that keeps the size, except for its stride.
fn depthwise<B: Backend>(
    channels: usize,
    size: usize,
    stride: usize,
    dilation: usize,
    device: &B::Device,
) -> Conv2d<B> {
    let pad = (size - 1) / 2 * dilation;
    Conv2dConfig::new([channels, channels], [size, size])
        .with_stride([stride, stride])
        .with_dilation([dilation, dilation])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
        .with_groups(channels)
        .with_bias(false)
        .init(device)
}

#[cfg(test)]
mod tests {
    use super::{Build, CellOperation, every_second_pixel};
    use crate::native;
    use crate::tasks::cells::genotype::Operation;
    use burn::backend::{Autodiff, Flex, flex::FlexDevice};
    use burn::module::Module;
    use burn::tensor::{Tensor, TensorData, backend::Backend};

    type Cpu = Autodiff<Flex>;
    const SHAPE: [usize; 4] = [2, 5, 6, 6];

    /// The step of differences.
    const STEP: f32 = 2e-3;

    /// Values farther from each other and from zero than a step, so that no maximum and no ReLU changes sides.
    fn values() -> Vec<f32> {
        let count = SHAPE.iter().product::<usize>();
        (0..count).map(|at| ((at * 73 % count) as f32 + 0.5) / count as f32 * 4.0 - 2.0).collect()
    }

    /// Compares the gradient of the input of `apply` with central differences.
    fn check(name: &str, apply: impl Fn(Tensor<Cpu, 4>) -> Tensor<Cpu, 4>) {
        let tensor = |values: Vec<f32>| Tensor::<Cpu, 4>::from_data(TensorData::new(values, SHAPE), &FlexDevice);
        let loss = |x: Tensor<Cpu, 4>| {
            let y = apply(x);
            let weights = (0..y.shape().num_elements()).map(|at| ((at as f32) * 0.7).cos()).collect::<Vec<_>>();
            let weights = Tensor::<Cpu, 4>::from_data(TensorData::new(weights, y.dims()), &FlexDevice);
            (y * weights).sum()
        };
        let x = tensor(values()).require_grad();
        let grads = loss(x.clone()).backward();
        let found: Vec<f32> = x.grad(&grads).unwrap().into_data().iter().collect();
        for place in (0..found.len()).step_by(17) {
            let [ahead, behind]: [f32; 2] = [STEP, -STEP].map(|change| {
                let mut moved = values();
                moved[place] += change;
                loss(tensor(moved)).into_scalar()
            });
            let wanted = (ahead - behind) / (2.0 * STEP);
            let near = (found[place] - wanted).abs() < 0.02 * wanted.abs().max(1.0);
            assert!(near, "{name} at {place}: {} and {wanted}", found[place]);
        }
    }

    #[test]
    fn the_gradient_of_every_operation_equals_differences() {
        let build = Build { scaled_norms: false, fused_separable: true };
        for native in [true, false] {
            let _operations = native::Scope::new(native);
            check("every second pixel", every_second_pixel);
            for operation in Operation::ALL.into_iter().filter(|operation| *operation != Operation::None) {
                for stride in [1, 2] {
                    Cpu::seed(&FlexDevice, 5);
                    let op = CellOperation::<Cpu>::new(operation, SHAPE[3], stride, build, &FlexDevice);
                    check(&format!("{operation:?}/{stride}, native {native}"), |x| op.forward(x));
                    let frozen = op.no_grad();
                    check(&format!("{operation:?}/{stride}, native {native}, frozen"), |x| frozen.forward(x));
                }
            }
        }
    }
}
