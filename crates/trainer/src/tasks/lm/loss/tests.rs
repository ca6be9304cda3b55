use super::{MIN_TOKENS, Term, Terms, mean_loss, mean_loss_by, token_losses};
use crate::native::Scope;
use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData, activation, backend::Backend};

type Cpu = Autodiff<Flex>;
/// Each x and its W.
type Pairs<B> = Vec<[Tensor<B, 2>; 2]>;

/// Returns the terms of these factors.
fn terms<B: Backend>(pairs: &Pairs<B>) -> Terms<B> {
    pairs.iter().cloned().map(Term::new).collect()
}

/// Returns deterministic pseudo-random values between -1 and 1.
fn numbers(rows: usize, columns: usize, salt: usize) -> Tensor<Cpu, 2> {
    let value = |at: usize| (((at + 7 * salt) * 7919) % 2003) as f32 / 1001.0 - 1.0;
    let values: Vec<f32> = (0..rows * columns).map(value).collect();
    Tensor::from_data(TensorData::new(values, [rows, columns]), &FlexDevice)
}

fn targets(tokens: usize, vocabulary: usize) -> Tensor<Flex, 1, Int> {
    let values: Vec<i32> = (0..tokens).map(|token| i32::try_from(token * 31 % vocabulary).unwrap()).collect();
    Tensor::from_data(TensorData::new(values, [tokens]), &FlexDevice)
}

/// A layer, its adapter and its bias.
fn pairs(tokens: usize, vocabulary: usize) -> Pairs<Cpu> {
    let pair = |size: usize, salt: usize| {
        [numbers(tokens, size, salt).require_grad(), numbers(size, vocabulary, salt + 1).require_grad()]
    };
    vec![pair(9, 0), pair(3, 2), [Tensor::ones([tokens, 1], &FlexDevice), numbers(1, vocabulary, 5).require_grad()]]
}

fn reference(pairs: &Pairs<Cpu>, targets: &Tensor<Flex, 1, Int>) -> Tensor<Cpu, 1> {
    let logits = pairs.iter().map(|[x, w]| x.clone().matmul(w.clone())).reduce(|sum, more| sum + more).unwrap();
    let [tokens] = targets.dims();
    let targets = Tensor::<Cpu, 2, Int>::from_inner(targets.clone().reshape([tokens, 1]));
    activation::log_softmax(logits, 1).gather(1, targets).mean().neg()
}

fn values(data: &TensorData) -> Vec<f64> {
    data.iter::<f64>().collect()
}

/// Returns the distance of two tensors, relative to the size of the second.
fn relative_distance(found: &TensorData, wanted: &TensorData) -> f64 {
    assert_eq!(found.shape, wanted.shape);
    let size = |numbers: Vec<f64>| numbers.iter().map(|n| n * n).sum::<f64>().sqrt();
    let difference = values(found).iter().zip(values(wanted)).map(|(f, w)| f - w).collect();
    size(difference) / size(values(wanted))
}

#[test]
fn loss_and_gradients_match_full_logits_for_every_chunk_size() {
    for native in [true, false] {
        let _operations = Scope::new(native);
        compare_with_full_logits();
    }
}

fn compare_with_full_logits() {
    let (tokens, vocabulary) = (3 * MIN_TOKENS + 5, 53);
    let (pairs, targets) = (pairs(tokens, vocabulary), targets(tokens, vocabulary));
    let wanted = reference(&pairs, &targets);
    let reference_grads = wanted.clone().mul_scalar(3.0).backward();
    for most in [1, 20 * vocabulary, usize::MAX] {
        let loss = mean_loss_by(most, &terms(&pairs), &targets);
        assert!(relative_distance(&loss.to_data(), &wanted.to_data()) < 1e-6, "{most}");
        let found = loss.mul_scalar(3.0).backward();
        for tensor in pairs.iter().flatten() {
            let Some(wanted) = tensor.grad(&reference_grads) else {
                assert!(tensor.grad(&found).is_none());
                continue;
            };
            let distance = relative_distance(&tensor.grad(&found).unwrap().into_data(), &wanted.into_data());
            assert!(distance < 1e-6, "{distance} with {most}");
        }
    }
    let inner: Pairs<Flex> = pairs.iter().map(|pair| pair.clone().map(Tensor::inner)).collect();
    let each = token_losses(&terms(&inner), &targets).into_data();
    assert_eq!(each.shape.to_vec(), [tokens]);
    let mean = values(&each).iter().sum::<f64>() / tokens as f64;
    assert!((mean - values(&wanted.into_data())[0]).abs() < 1e-6);
}

#[test]
fn a_transposed_weight_gets_a_transposed_gradient() {
    let (x, w, targets) = (numbers(20, 9, 0), numbers(9, 31, 1).require_grad(), targets(20, 31));
    let turned = Tensor::<Cpu, 2>::from_inner(w.clone().inner().transpose()).require_grad();
    let plain = mean_loss(&vec![Term::new([x.clone(), w.clone()])], &targets);
    let other = mean_loss(&vec![Term { x, weight: turned.clone(), transposed: true }], &targets);
    assert!(relative_distance(&other.to_data(), &plain.to_data()) < 1e-6);
    let (wanted, found) = (w.grad(&plain.backward()).unwrap(), turned.grad(&other.backward()).unwrap());
    assert!(relative_distance(&found.transpose().into_data(), &wanted.into_data()) < 1e-6);
}

#[test]
fn frozen_terms_get_no_gradient_and_do_not_affect_the_others() {
    let all = pairs(20, 31);
    let targets = targets(20, 31);
    let mut some = all.clone();
    some[0][1] = Tensor::from_inner(some[0][1].clone().inner());
    let (one, two) = (mean_loss(&terms(&all), &targets).backward(), mean_loss(&terms(&some), &targets).backward());
    assert!(some[0][1].grad(&two).is_none());
    for (tensor, same) in [(&all[0][0], &some[0][0]), (&all[1][1], &some[1][1]), (&all[2][1], &some[2][1])] {
        assert_eq!(tensor.grad(&one).unwrap().into_data(), same.grad(&two).unwrap().into_data());
    }
}

#[test]
fn losses_match_the_formula_in_f32_for_every_precision() {
    let x = Tensor::<Flex, 2>::from_floats([[0.0, 0.0], [3.0, 1.0]], &FlexDevice);
    let one = Tensor::<Flex, 2>::from_floats([[1.0, 0.0], [0.0, 1.0]], &FlexDevice);
    let targets = Tensor::<Flex, 1, Int>::from_ints([0, 1], &FlexDevice);
    let losses = values(&token_losses(&terms(&vec![[x.clone(), one.clone()]]), &targets).into_data());
    let wanted = [2f64.ln(), (1.0 + 2f64.exp()).ln()];
    assert!(losses.iter().zip(wanted).all(|(loss, wanted)| (loss - wanted).abs() < 1e-6), "{losses:?}");
    let half = vec![[x.cast(FloatDType::BF16), one.clone().cast(FloatDType::BF16)]];
    assert_eq!(token_losses(&terms(&half), &targets).dtype(), DType::F32);
    // With a gap of 200 between logits, the loss equals that gap instead of infinity.
    let far = vec![[Tensor::<Flex, 2>::from_floats([[200.0, 0.0], [0.0, 0.0]], &FlexDevice), one]];
    let losses = values(&token_losses(&terms(&far), &Tensor::from_ints([1, 0], &FlexDevice)).into_data());
    assert!((losses[0] - 200.0).abs() < 1e-4, "{losses:?}");
}

#[test]
fn sixteen_bits_get_gradients_in_sixteen_bits_near_the_exact_ones() {
    let (tokens, vocabulary) = (40, 53);
    let exact = pairs(tokens, vocabulary);
    let targets = targets(tokens, vocabulary);
    let reference_grads = reference(&exact, &targets).backward();
    let half: Pairs<Cpu> = exact
        .iter()
        .map(|term| term.clone().map(|tensor| Tensor::from_inner(tensor.inner().cast(FloatDType::F16)).require_grad()))
        .collect();
    let found = mean_loss(&terms(&half), &targets).backward();
    for (tensor, wanted) in half.iter().flatten().zip(exact.iter().flatten()) {
        let Some(wanted) = wanted.grad(&reference_grads) else { continue };
        let gradient = tensor.grad(&found).unwrap();
        assert_eq!(gradient.dtype(), DType::F16);
        let distance = relative_distance(&gradient.into_data(), &wanted.into_data());
        assert!(distance < 5e-3, "{distance}");
    }
}
