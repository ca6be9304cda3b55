use crate::activation::Gelu;
use crate::adamw::Factors;
use crate::attention::Sizes;
use crate::convolution::{Picture, TAPS};
use crate::norm::{Norm, NormGrads};
use crate::simd::{Level, WIDEST};
use crate::{activation, adamw, attention, convolution, cross_entropy, linear, math, norm};

/// Returns values between -2 and 2.
fn numbers(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|at| 2.0 * ((at * 7 + salt * 13) as f32 * 1.3).sin()).collect()
}

/// The bits that each kernel writes. The inputs are large enough for each of several threads, and no multiple of a block.
type Outputs = Vec<(&'static str, Vec<u32>)>;

fn bits<const N: usize>(written: [Vec<f32>; N]) -> Vec<u32> {
    written.into_iter().flatten().map(f32::to_bits).collect()
}

fn activations() -> Outputs {
    let [x, up, grad] = [1, 2, 3].map(|salt| numbers(70_001, salt));
    let one = |fill: &dyn Fn(&mut [f32])| {
        let mut out = grad.clone();
        fill(&mut out);
        bits([out])
    };
    let mut grads = [vec![0.0; x.len()], vec![0.0; x.len()]];
    let [of_gate, of_up] = &mut grads;
    activation::swiglu_grad([&x, &up, &grad], [of_gate, of_up]);
    vec![
        ("gelu", one(&|out| activation::gelu(&x, Gelu::Exact, out))),
        ("gelu by tanh", one(&|out| activation::gelu(&x, Gelu::Tanh, out))),
        ("gelu, gradient", one(&|out| activation::gelu_grad(&x, Gelu::Exact, out))),
        ("gelu by tanh, gradient", one(&|out| activation::gelu_grad(&x, Gelu::Tanh, out))),
        ("swiglu", one(&|out| activation::swiglu([&x, &up], out))),
        ("swiglu, gradient", bits(grads)),
    ]
}

fn optimizer() -> Outputs {
    let grad = numbers(70_001, 4);
    let mut state = [numbers(grad.len(), 5), numbers(grad.len(), 6), vec![0.5; grad.len()]];
    let [weights, first, second] = &mut state;
    let factors = Factors { scale: 0.5, betas: [0.9, 0.999], rate: 1e-2, correction: 0.9, epsilon: 1e-8, keep: 0.999 };
    adamw::update(&grad, factors, [weights, first, second]);
    let mut scaled = grad.clone();
    adamw::scale(&mut scaled, 0.3);
    vec![
        ("adamw", bits(state)),
        ("scale", bits([scaled])),
        ("sum of squares", bits([vec![adamw::sum_of_squares(&grad)]])),
    ]
}

fn attention_of(rotary: bool) -> Vec<u32> {
    let (batch, length, heads, kv_heads, size) = (3, 67, 4, 2, 18);
    let tables = [7, 8].map(|salt| numbers(length * size, salt));
    let [cos, sin] = &tables;
    let sizes = Sizes { batch, length, heads, kv_heads, size, rotary: rotary.then_some([cos, sin]) };
    let of_heads = |heads: usize, salt| numbers(batch * length * heads * size, salt);
    let (q, k, v, grad) = (of_heads(heads, 9), of_heads(kv_heads, 10), of_heads(kv_heads, 11), of_heads(heads, 12));
    let (mut out, mut sums) = (vec![0.0; q.len()], vec![0.0; batch * heads * length]);
    attention::forward([&q, &k, &v], sizes, &mut out, &mut sums);
    let mut grads = [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]];
    let [of_q, of_k, of_v] = &mut grads;
    attention::backward([&q, &k, &v], [&out, &sums, &grad], sizes, [of_q, of_k, of_v]);
    [bits([out, sums]), bits(grads)].concat()
}

fn convolutions() -> Outputs {
    let picture = Picture { batch: 40, size: [33, 31], channels: 7, stride: 1 };
    let pixels = 40 * 33 * 31 * 7;
    let (x, filter, grad, of_patches) =
        (numbers(pixels, 13), numbers(TAPS * 7, 14), numbers(pixels, 15), numbers(TAPS * pixels, 16));
    let one = |length: usize, fill: &dyn Fn(&mut [f32])| {
        let mut out = vec![0.0; length];
        fill(&mut out);
        bits([out])
    };
    let means = numbers(40 * 7, 17);
    vec![
        ("depthwise", one(pixels, &|out| convolution::depthwise(&x, &filter, picture, out))),
        ("depthwise, of x", one(pixels, &|out| convolution::depthwise_input_grad(&filter, &grad, picture, out))),
        ("depthwise, of filter", one(TAPS * 7, &|out| convolution::depthwise_filter_grad(&x, &grad, picture, out))),
        ("patches", one(TAPS * pixels, &|out| convolution::patches(&x, picture, out))),
        ("patches, gradient", one(pixels, &|out| convolution::patches_grad(&of_patches, picture, out))),
        ("mean of pixels", one(40 * 7, &|out| convolution::mean_pixels(&x, picture, out))),
        ("mean of pixels, gradient", one(pixels, &|out| convolution::mean_pixels_grad(&means, picture, out))),
    ]
}

fn products() -> Outputs {
    let [rows, from, to] = [517, 301, 403];
    let (x, w, grad, bias) =
        (numbers(rows * from, 18), numbers(from * to, 19), numbers(rows * to, 20), numbers(to, 21));
    let mut all = [vec![0.0; rows * to], vec![0.0; rows * to], vec![0.0; rows * from], vec![0.0; from * to]];
    let [y, with_bias, of_x, of_w] = &mut all;
    linear::forward(&x, &w, None, [from, to], y);
    linear::forward(&x, &w, Some(&bias), [from, to], with_bias);
    linear::input_grad(&grad, &w, [from, to], of_x);
    linear::weight_grad(&x, &grad, [from, to], of_w);
    vec![("linear", bits(all))]
}

fn rows_of_numbers() -> Outputs {
    // Enough rows for each of several threads.
    let (rows, width) = (4_001, 64);
    let (x, grad, gamma, beta) =
        (numbers(rows * width, 22), numbers(rows * width, 23), numbers(width, 24), numbers(width, 25));
    let mut all: Outputs = Vec::new();
    for (name, beta, relu) in
        [("RMS norm", None, false), ("layer norm", Some(&beta[..]), false), ("with ReLU", Some(&beta[..]), true)]
    {
        let norm = Norm { gamma: &gamma, beta, epsilon: 1e-5, relu };
        let mut written =
            [vec![0.0; x.len()], vec![0.0; 2 * rows], vec![0.0; x.len()], vec![0.0; width], vec![0.0; width]];
        let [y, stats, of_x, of_gamma, of_beta] = &mut written;
        norm::forward(&x, norm, y, stats);
        let wanted = NormGrads { x: Some(of_x), gamma: Some(of_gamma), beta: beta.is_some().then_some(of_beta) };
        norm::backward([&x, stats, &grad], norm, wanted);
        all.push((name, bits(written)));
    }
    let targets: Vec<f32> = (0..rows).map(|row| (row % width) as f32).collect();
    let mut written = [x, vec![0.0; rows], vec![0.0; width]];
    let [logits, losses, bias] = &mut written;
    cross_entropy::losses_and_grads(logits, &targets, losses);
    linear::bias_grad(&grad, bias);
    all.push(("cross-entropy and bias", bits(written)));
    all
}

fn outputs() -> Outputs {
    let attention = vec![("attention", attention_of(false)), ("attention with rotations", attention_of(true))];
    [activations(), optimizer(), attention, convolutions(), products(), rows_of_numbers()].concat()
}

/// Returns the outputs in a pool of this size, of loops no wider than this level.
fn outputs_with(threads: usize, level: Level) -> Outputs {
    let pool =
        rayon::ThreadPoolBuilder::new().num_threads(threads).start_handler(move |_| WIDEST.set(level)).build().unwrap();
    pool.install(outputs)
}

fn assert_same(found: &Outputs, wanted: &Outputs, what: &str) {
    for ((name, found), (_, wanted)) in found.iter().zip(wanted) {
        let differing = found.iter().zip(wanted).filter(|(found, wanted)| found != wanted).count();
        assert_eq!((found.len(), differing), (wanted.len(), 0), "{name}, {what}");
    }
}

#[test]
fn neither_threads_nor_the_simd_level_change_a_bit() {
    let one = outputs_with(1, Level::Avx512);
    for (name, written) in &one {
        assert!(written.iter().any(|bits| *bits != 0), "{name} writes nothing");
    }
    for threads in [2, 3, 5] {
        assert_same(&outputs_with(threads, Level::Avx512), &one, &format!("{threads} threads"));
    }
    for level in [Level::Avx2, Level::Portable] {
        assert_same(&outputs_with(1, level), &one, &level.to_string());
    }
}

#[test]
fn exponentials_are_exact_to_rounding_and_overflow() {
    for x in (-860..880).map(|tenth| tenth as f32 / 10.0) {
        let (found, wanted) = (f64::from(math::exp(x)), f64::from(x).exp());
        assert!((found / wanted - 1.0).abs() < 2.5e-7, "exp {x}: {found} instead of {wanted}");
    }
    assert!(math::exp(100.0).is_infinite() && math::exp(f32::NAN).is_nan());
}
