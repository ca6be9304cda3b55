//! Native operations against the same composed of Burn's.

use super::Scope;
use super::ops::{self, AttentionShape, Gelu, NormOptions};
use crate::lora::Lora;
use crate::params::{TensorReader, Tensors, add_gradients, erase_rank, with_rank};
use crate::shape_backend::{BackendModel, LeasedDevice, Ledger, ShapeBackend};
use crate::task::Pass;
use crate::tasks::lm::layer_builder::ModelSpec;
use crate::tasks::lm::model::Transformer;
use crate::tasks::lm::shape::{Activation, Family, Shape};
use crate::tasks::vision::VisionModel;
use crate::tasks::vision::model::Classifier;
use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::module::AutodiffModule;
use burn::tensor::{Int, Tensor, TensorData};
use downshift_kernels::adamw::Factors;
use std::collections::BTreeMap;

type Cpu = Autodiff<Flex>;

/// Returns values between -2 and 2.
fn numbers(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|at| 2.0 * ((at * 7 + salt * 13) as f32 * 1.3).sin()).collect()
}

fn tensor<const D: usize>(shape: [usize; D], salt: usize) -> Tensor<Cpu, D> {
    Tensor::from_data(TensorData::new(numbers(shape.iter().product(), salt), shape), &FlexDevice)
}

fn near(found: &TensorData, wanted: &TensorData, what: &str) {
    let most = wanted.iter::<f32>().fold(0.0_f32, |most, value| most.max(value.abs()));
    for (at, (found, wanted)) in found.iter::<f32>().zip(wanted.iter::<f32>()).enumerate() {
        assert!((found - wanted).abs() <= 2e-5 * most.max(1e-3), "{what}, value {at}: {found} instead of {wanted}");
    }
    assert_eq!(found.shape, wanted.shape, "{what}");
}

/// Returns the output of an operation and the gradients of its inputs, with a different gradient for each value.
fn run<const D: usize>(
    inputs: &[Vec<f32>],
    operation: impl Fn(&[Tensor<Cpu, 1>]) -> Tensor<Cpu, D>,
) -> Vec<TensorData> {
    let leaf = |values: &Vec<f32>| Tensor::<Cpu, 1>::from_floats(values.as_slice(), &FlexDevice).require_grad();
    let inputs: Vec<_> = inputs.iter().map(leaf).collect();
    let output = operation(&inputs);
    let grads = (output.clone() * tensor(output.dims(), 5)).sum().backward();
    let grads = inputs.iter().map(|input| input.grad(&grads).expect("each input has a gradient").into_data());
    std::iter::once(output.into_data()).chain(grads).collect()
}

/// Compares an operation with the same composed of Burn's.
fn compare<const D: usize>(
    what: &str,
    sizes: &[usize],
    native: impl Fn(&[Tensor<Cpu, 1>]) -> Option<Tensor<Cpu, D>>,
    composed: impl Fn(&[Tensor<Cpu, 1>]) -> Tensor<Cpu, D>,
) {
    let inputs: Vec<Vec<f32>> = sizes.iter().enumerate().map(|(salt, size)| numbers(*size, salt)).collect();
    let found = run(&inputs, |inputs| native(inputs).expect("native operations apply"));
    for (place, (found, wanted)) in found.into_iter().zip(run(&inputs, composed)).enumerate() {
        near(&found, &wanted, &format!("{what}, part {place}"));
    }
    let _off = Scope::new(false);
    let leaves: Vec<_> = inputs.iter().map(|values| Tensor::from_floats(values.as_slice(), &FlexDevice)).collect();
    assert!(native(&leaves).is_none(), "{what} is native although it is disabled");
}

#[test]
fn linear_layers_match() {
    for (from, to) in [(3, 5), (33, 17)] {
        let [x, w] = [[4, 7, from], [1, from, to]];
        let sizes = [28 * from, from * to, to];
        compare(
            "linear",
            &sizes,
            |i| ops::linear(&i[0].clone().reshape(x), &i[1].clone().reshape([from, to]), Some(&i[2])),
            |i| i[0].clone().reshape(x).matmul(i[1].clone().reshape(w)) + i[2].clone().reshape([1, 1, to]),
        );
        compare(
            "linear without bias",
            &sizes[..2],
            |i| ops::linear(&i[0].clone().reshape(x), &i[1].clone().reshape([from, to]), None),
            |i| i[0].clone().reshape(x).matmul(i[1].clone().reshape(w)),
        );
    }
}

#[test]
fn norms_match() {
    let options = NormOptions { epsilon: 1e-5, relu: false };
    for width in [5, 40] {
        let shape = [6, 7, width];
        let scaled = |x: Tensor<Cpu, 3>, i: &[Tensor<Cpu, 1>]| {
            let size = x.clone().square().mean_dim(2).add_scalar(1e-5).sqrt();
            x / size * i[1].clone().reshape([1, 1, width])
        };
        let layer = |i: &[Tensor<Cpu, 1>]| {
            let x = i[0].clone().reshape(shape);
            scaled(x.clone() - x.mean_dim(2), i) + i[2].clone().reshape([1, 1, width])
        };
        let sizes = [42 * width, width, width];
        let x = |i: &[Tensor<Cpu, 1>]| i[0].clone().reshape(shape);
        compare("layer norm", &sizes, |i| ops::norm(&x(i), &i[1], Some(&i[2]), options), layer);
        compare("RMS norm", &sizes[..2], |i| ops::norm(&x(i), &i[1], None, options), |i| scaled(x(i), i));
        let relu = NormOptions { relu: true, ..options };
        compare(
            "layer norm and ReLU",
            &sizes,
            |i| ops::norm(&x(i), &i[1], Some(&i[2]), relu),
            |i| burn::tensor::activation::relu(layer(i)),
        );
    }
}

#[test]
fn activations_match() {
    // Beyond a whole piece, and with values that saturate.
    let far = |x: &Tensor<Cpu, 1>| x.clone() * 6.0;
    let tanh = |x: Tensor<Cpu, 1>| {
        let inner = (x.clone() + x.clone().powi_scalar(3) * 0.044_715) * std::f64::consts::FRAC_2_PI.sqrt();
        x * 0.5 * (inner.tanh() + 1.0)
    };
    let gelu = burn::tensor::activation::gelu;
    compare("GELU", &[1500], |i| ops::gelu(&far(&i[0]), Gelu::Exact), |i| gelu(far(&i[0])));
    compare("GELU by tanh", &[1500], |i| ops::gelu(&far(&i[0]), Gelu::Tanh), |i| tanh(far(&i[0])));
    compare(
        "SwiGLU",
        &[1500, 1500],
        |i| ops::swiglu(&far(&i[0]), &i[1]),
        |i| burn::tensor::activation::silu(far(&i[0])) * i[1].clone(),
    );
}

#[test]
fn attention_matches_for_shared_heads_rotations_and_lengths_beyond_a_block() {
    for (length, heads, kv_heads) in [(5, 4, 2), (67, 2, 2), (130, 2, 1)] {
        let (batch, size) = (2, 6);
        let [cos, sin] = [f32::cos, f32::sin].map(|of| {
            let angle = |at: usize| (at / size) as f32 / 7_f32.powi((at % (size / 2)) as i32);
            let values: Vec<f32> = (0..length * size).map(|at| of(angle(at))).collect();
            Tensor::<Cpu, 4>::from_data(TensorData::new(values, [1, 1, length, size]), &FlexDevice)
        });
        for rotates in [false, true] {
            let rows = |x: &Tensor<Cpu, 1>, heads: usize| x.clone().reshape([batch, length, heads * size]);
            let native = |i: &[Tensor<Cpu, 1>]| {
                let inputs = [rows(&i[0], heads), rows(&i[1], kv_heads), rows(&i[2], kv_heads)];
                let shape = AttentionShape { heads, kv_heads };
                ops::attention(inputs.each_ref(), rotates.then_some([&cos, &sin]), shape)
            };
            let composed = |i: &[Tensor<Cpu, 1>]| {
                let by_head = |x: &Tensor<Cpu, 1>, count: usize| {
                    rows(x, count).reshape([batch, length, count, size]).swap_dims(1, 2)
                };
                let turned = |x: Tensor<Cpu, 4>| {
                    let (first, second) = (x.clone().narrow(3, 0, size / 2), x.clone().narrow(3, size / 2, size / 2));
                    let turned = x.clone() * cos.clone() + Tensor::cat(vec![-second, first], 3) * sin.clone();
                    if rotates { turned } else { x }
                };
                let shared = |x: Tensor<Cpu, 4>| {
                    let wide = x.unsqueeze_dim::<5>(2).repeat_dim(2, heads / kv_heads);
                    wide.reshape([batch, heads, length, size])
                };
                let (q, k) = (turned(by_head(&i[0], heads)), shared(turned(by_head(&i[1], kv_heads))));
                let later = Tensor::<Cpu, 2>::ones([length, length], &FlexDevice).triu(1).equal_elem(1.0);
                let scores = q.matmul(k.swap_dims(2, 3)) / (size as f64).sqrt();
                let scores = scores.mask_fill(later.unsqueeze::<4>().expand([batch, heads, length, length]), -1e30);
                let mixed = burn::tensor::activation::softmax(scores, 3).matmul(shared(by_head(&i[2], kv_heads)));
                mixed.swap_dims(1, 2).reshape([batch, length, heads * size])
            };
            let [wide, narrow] = [heads, kv_heads].map(|count| batch * length * count * size);
            compare(&format!("attention over {length}"), &[wide, narrow, narrow], native, composed);
        }
    }
}

#[test]
fn convolutions_match() {
    use burn::tensor::module::conv2d;
    use burn::tensor::ops::ConvOptions;
    for (stride, [height, width], channels) in [(1, [5, 4], 3), (2, [7, 6], 17), (2, [1, 1], 2), (4, [9, 8], 2)] {
        let batch = 3;
        let by_pixel = |x: &Tensor<Cpu, 1>| x.clone().reshape([batch, height, width, channels]);
        let convolved = |x: &Tensor<Cpu, 1>, filter: Tensor<Cpu, 4>, groups: usize| {
            let options = ConvOptions::new([stride; 2], [1, 1], [1, 1], groups);
            conv2d(by_pixel(x).permute([0, 3, 1, 2]), filter, None, options).permute([0, 2, 3, 1])
        };
        let pixels = batch * height * width * channels;
        compare(
            "depthwise",
            &[pixels, 9 * channels],
            |i| ops::depthwise(&by_pixel(&i[0]), &i[1].clone().reshape([9, channels]), stride),
            |i| {
                let filter = i[1].clone().reshape([9, channels]).transpose().reshape([channels, 1, 3, 3]);
                convolved(&i[0], filter, channels)
            },
        );
        compare(
            "mean over pixels",
            &[pixels],
            |i| ops::mean_pixels(&by_pixel(&i[0])),
            |i| by_pixel(&i[0]).reshape([batch, height * width, channels]).mean_dim(1).reshape([batch, channels]),
        );
        compare(
            "convolution by patches",
            &[pixels, 9 * channels * 4],
            |i| {
                let patches = ops::patches(&by_pixel(&i[0]), stride)?;
                ops::linear(&patches, &i[1].clone().reshape([9 * channels, 4]), None)
            },
            |i| convolved(&i[0], i[1].clone().reshape([3, 3, channels, 4]).permute([3, 2, 0, 1]), 1),
        );
    }
}

/// Returns the loss and the gradients of all parameters.
fn loss_and_grads<M: AutodiffModule<Cpu>>(model: &M, loss: &Tensor<Cpu, 1>) -> BTreeMap<String, TensorData> {
    let mut sum = Tensors::<Flex>::new();
    add_gradients::<Cpu, _>(model, &mut loss.backward(), 1.0, true, &mut sum);
    let mut reader = TensorReader::<Flex>::default();
    for (path, grad) in sum {
        reader.add(path, grad);
    }
    let read = reader.read_all().unwrap().into_iter().map(|(path, data)| (path, (*data).clone()));
    read.chain([("loss".to_owned(), loss.clone().into_data())]).collect()
}

/// Compares all gradients of a pass with and without native operations.
fn compare_passes<M: AutodiffModule<Cpu>>(what: &str, model: &M, loss: impl Fn(&M) -> Tensor<Cpu, 1>) {
    let [wanted, found] = [false, true].map(|native| {
        let _operations = Scope::new(native);
        loss_and_grads(model, &loss(model))
    });
    assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>(), "{what}");
    assert!(found.len() > 2, "{what}");
    for (path, found) in found {
        near(&found, &wanted[&path], &format!("{what}, {path}"));
    }
}

fn decoder(family: Family, activation: Activation, lora: Option<Lora>) -> ModelSpec {
    let shape = Shape {
        family,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_size: 6,
        width: 20,
        hidden: 36,
        vocabulary: 50,
        positions: 70,
        epsilon: 1e-5,
        theta: 10_000.0,
        activation,
        attention_bias: family == Family::Gpt2,
        hidden_bias: family == Family::Gpt2,
        tied: family == Family::Gpt2,
    };
    ModelSpec { shape, sequence: 70, dropout: 0.0, lora }
}

#[test]
fn whole_models_have_the_same_gradients_both_ways() {
    let lora =
        Lora { rank: 3, alpha: None, dropout: 0.0, targets: vec!["query".into(), "head".into()], init_from: None };
    for (family, activation, lora) in [
        (Family::Gpt2, Activation::Gelu, None),
        (Family::Gpt2, Activation::GeluTanh, None),
        (Family::Llama, Activation::Silu, Some(lora)),
    ] {
        let model = Transformer::<Cpu>::new(&decoder(family, activation, lora), &FlexDevice);
        let tokens = |salt: i64| {
            let tokens = Tensor::<Flex, 1, Int>::arange(0..3 * 70, &FlexDevice) * 37 + salt;
            tokens.remainder_scalar(50).reshape([3, 70])
        };
        for gradient_checkpointing in [false, true] {
            let pass = Pass { gradient_checkpointing, ..Pass::plain(&FlexDevice) };
            compare_passes(&format!("{family:?}"), &model, |model| model.loss(tokens(3), tokens(5), &pass));
        }
    }
    for shape in [[1, 8, 8], [3, 40, 33]] {
        let config = VisionModel { channels: 6, layers: 3, ..VisionModel::default() };
        let model = Classifier::<Cpu>::new(&config, shape, 5, &FlexDevice);
        let images = tensor([4, shape[0], shape[1], shape[2]], 1).inner();
        let labels = Tensor::<Flex, 2, Int>::from_ints([[0], [3], [4], [1]], &FlexDevice);
        for gradient_checkpointing in [false, true] {
            let pass = Pass { gradient_checkpointing, ..Pass::plain(&FlexDevice) };
            compare_passes("classifier", &model, |model| model.loss(images.clone(), labels.clone(), &pass));
        }
    }
}

#[test]
fn an_update_in_place_leaves_shared_weights_alone() {
    let values = |salt| erase_rank(tensor([5000], salt).inner());
    let (mut state, grad) = ([values(1), values(2), erase_rank(tensor([5000], 3).inner().abs())], values(4));
    let shared = state[0].clone();
    let before = with_rank::<Flex, 1>(shared.clone()).into_data();
    let factors = Factors { scale: 1.0, betas: [0.9, 0.99], rate: 0.1, correction: 0.5, epsilon: 1e-8, keep: 0.99 };
    assert!(ops::update::<Flex>(state.each_mut(), &grad, factors));
    assert_eq!(with_rank::<Flex, 1>(shared).into_data(), before);
    assert_ne!(with_rank::<Flex, 1>(state[0].clone()).into_data(), before);
}

#[test]
fn the_memory_plan_counts_native_operations_on_the_cpu_alone() {
    let peak = |backend| {
        let leased = LeasedDevice::new(backend, None);
        let x = Tensor::<ShapeBackend, 4>::zeros([8, 16, 16, 64], leased.device()).require_grad();
        leased.read(Ledger::take_peak);
        let y = ops::mean_pixels(&x);
        (y.is_some(), leased.read(Ledger::take_peak).peak)
    };
    let (input, output) = (8 * 16 * 16 * 64 * 4, 8 * 64 * 4);
    assert_eq!(peak(BackendModel::Flex), (true, input + output), "the input and the output");
    assert!(!peak(BackendModel::Cube(burn::tensor::FloatDType::F32)).0);
}

#[cfg(feature = "cuda")]
#[test]
fn a_linear_layer_of_gelu_on_a_gpu_keeps_only_its_input() {
    let leased = LeasedDevice::new(BackendModel::Cube(burn::tensor::FloatDType::BF16), None);
    let live = || leased.read(|ledger| ledger.live());
    let zeros = |shape: [usize; 2]| Tensor::<ShapeBackend, 2>::zeros(shape, leased.device());
    let (x, weight) = (zeros([64, 32]).require_grad(), zeros([32, 8]));
    assert!(ops::gelu_linear(&x, Gelu::Exact, &weight, None).is_none(), "W is frozen");
    let weight = weight.require_grad();
    let before = live();
    let y = ops::gelu_linear(&x, Gelu::Exact, &weight, None);
    assert_eq!((y.is_some(), live() - before), (true, 64 * 8 * 2), "the output");
}

mod bits;
