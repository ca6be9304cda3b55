//! Continues a prompt, to show what the model has learned.
//!
//! Each token is a pass over all tokens before it: no state is kept between them, so nothing of the model changes for
//! it. The prompt and the random numbers are the same at every evaluation of a run: what differs is the model.

use super::model::{ForwardOptions, Transformer};
use burn::tensor::{FloatDType, Int, Tensor, TensorData, backend::Backend};
use downshift_core::recipe::seed::{Purpose, Stream};

/// The most tokens of a sample, its prompt included.
pub const MAX_TOKENS: usize = 128;
/// Lengths of passes are multiples of this, so that a GPU compiles few kernels.
const STRIDE: usize = 32;
/// Below 1, likely tokens are drawn more often than the model says.
const TEMPERATURE: f64 = 0.8;

/// Returns the tokens that follow `prompt`, up to `length` tokens in all, which fit into the model's context. Texts of
/// different numbers draw different random numbers.
pub fn continue_tokens<B: Backend>(
    model: &Transformer<B>,
    prompt: &[u32],
    length: usize,
    number: u64,
    device: &B::Device,
) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    let mut stream = Stream::for_purpose(0, Purpose::Samples, [number, 0, 0]);
    while (1..length).contains(&tokens.len()) {
        let logits = next_logits(model, &tokens, length, device);
        tokens.push(draw_token(&logits, stream.unit()));
    }
    tokens.split_off(prompt.len())
}

/// Returns the logits of the token after `tokens`. A pass is causal, so what fills it up to its length is not seen.
fn next_logits<B: Backend>(model: &Transformer<B>, tokens: &[u32], length: usize, device: &B::Device) -> Vec<f32> {
    let last = tokens.len() - 1;
    let padded = tokens.len().next_multiple_of(STRIDE).min(length);
    let mut inputs: Vec<i32> = tokens.iter().map(|token| token.cast_signed()).collect();
    inputs.resize(padded, 0);
    let inputs = Tensor::<B, 2, Int>::from_data(TensorData::new(inputs, [1, padded]), device);
    let options = ForwardOptions::plain();
    let hidden = model.hidden_states(inputs, &options).narrow(1, last, 1);
    let terms = model.logit_terms(hidden, &options).into_iter();
    let logits = terms.map(|term| term.product().cast(FloatDType::F32)).reduce(|sum, term| sum + term);
    logits.map(|logits| logits.into_data().iter().collect()).unwrap_or_default()
}

/// Draws a token by its probability; `unit` is a random number in `[0, 1)`.
fn draw_token(logits: &[f32], unit: f32) -> u32 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: &f32| (f64::from(logit - highest) / TEMPERATURE).exp();
    let total: f64 = logits.iter().map(weight).sum();
    let mut left = f64::from(unit) * total;
    let drawn = logits.iter().position(|logit| {
        left -= weight(logit);
        left < 0.0
    });
    drawn.map_or(0, |token| token as u32)
}

#[cfg(test)]
mod tests {
    use super::{STRIDE, TEMPERATURE, Transformer, continue_tokens, draw_token, next_logits};
    use crate::tasks::lm::model_config::{TextModel, build_spec};
    use burn::backend::{Flex, flex::FlexDevice};
    use burn::tensor::{Int, Tensor};

    #[test]
    fn the_next_token_depends_on_all_tokens_before_it_and_on_nothing_else() {
        let config =
            TextModel { layers: Some(2), heads: Some(2), width: Some(16), sequence: 50, ..TextModel::default() };
        let model = Transformer::<Flex>::new(&build_spec(&config, 256).unwrap(), &FlexDevice);
        let tokens: Vec<u32> = (0..45).map(|n| n * 37 % 256).collect();
        for length in [1, STRIDE - 1, STRIDE, STRIDE + 1, 45] {
            let seen: Vec<i32> = tokens[..length].iter().map(|token| token.cast_signed()).collect();
            let whole = model.forward(Tensor::<Flex, 1, Int>::from_data(&seen[..], &FlexDevice).unsqueeze());
            let wanted: Vec<f32> = whole.narrow(1, length - 1, 1).into_data().iter().collect();
            let found = next_logits(&model, &tokens[..length], 50, &FlexDevice);
            assert_eq!(found.len(), 256);
            assert!(found.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-4), "{length} tokens");
        }
        let written = continue_tokens(&model, &tokens[..10], 50, 0, &FlexDevice);
        assert_eq!(written.len(), 40);
        assert_eq!(written, continue_tokens(&model, &tokens[..10], 50, 0, &FlexDevice), "the same at every evaluation");
        assert!(continue_tokens(&model, &tokens[..10], 10, 0, &FlexDevice).is_empty());
        assert!(continue_tokens(&model, &[], 50, 0, &FlexDevice).is_empty(), "nothing to continue");
    }

    #[test]
    fn tokens_are_drawn_by_their_probability() {
        let logits = [0.0_f32, 2.0, f32::NEG_INFINITY, 1.0];
        let weights = logits.map(|logit| (f64::from(logit) / TEMPERATURE).exp());
        let total: f64 = weights.iter().sum();
        let draws = 10_000_u16;
        let mut counts = [0_u32; 4];
        for draw in 0..draws {
            counts[draw_token(&logits, f32::from(draw) / f32::from(draws)) as usize] += 1;
        }
        for (count, weight) in counts.into_iter().zip(weights) {
            assert!((f64::from(count) / f64::from(draws) - weight / total).abs() < 1e-3, "{counts:?}");
        }
        assert_eq!(draw_token(&[f32::NAN; 3], 0.5), 0);
        assert_eq!(draw_token(&[], 0.5), 0);
    }
}
