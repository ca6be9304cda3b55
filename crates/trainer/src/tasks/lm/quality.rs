//! The quality of a language model: the perplexity on a second text, and how varied the texts are that it writes.

use super::model::Transformer;
use super::text::{Codec, tokenize_sources};
use super::{Corpus, TextBatch, generate, sum_losses};
use crate::task::{DataError, Tally};
use crate::tasks::files;
use burn::tensor::backend::Backend;
use std::collections::BTreeSet;
use std::path::Path;

/// Number of texts that the model writes.
const TEXTS: usize = 16;

/// Returns the perplexity on a text: `exp` of the mean loss of its tokens, in windows that do not overlap. A rest that
/// fills no window does not count.
pub fn perplexity<B: Backend>(
    model: &Transformer<B>,
    data: &Corpus,
    text: &Path,
    micro_batch: u64,
    device: &B::Device,
) -> Result<f64, DataError> {
    let tokens = read_text(text, &data.codec, data.spec.shape.vocabulary)?;
    let length = data.sequence.min(tokens.len() - 1);
    let windows: Vec<&[u32]> =
        (0..(tokens.len() - 1) / length).map(|at| &tokens[at * length..=(at + 1) * length]).collect();
    let mut total = Tally::default();
    for windows in windows.chunks(usize::try_from(micro_batch).unwrap_or(usize::MAX).max(1)) {
        total.add(&sum_losses(model, TextBatch::of_windows(windows), device));
    }
    Ok(total.mean_loss().exp())
}

/// Returns the tokens of a second text.
fn read_text(text: &Path, codec: &Codec, vocabulary: usize) -> Result<Vec<u32>, DataError> {
    if !text.is_file() {
        return Err(files::data_error(text, "is not a file; set quality.text to a text file"));
    }
    let tokens = tokenize_sources(&[text.display().to_string()], codec)?;
    if tokens.len() < 2 {
        return Err(files::data_error(text, "has fewer than two tokens; set quality.text to a longer text"));
    }
    match tokens.iter().find(|token| **token as usize >= vocabulary) {
        Some(token) => {
            Err(files::data_error(text, format!("has token {token}, beyond the vocabulary of {vocabulary}")))
        }
        None => Ok(tokens),
    }
}

/// Returns distinct-1 and distinct-2 of texts that the model writes, each after another part of the held-out text.
pub fn distinct<B: Backend>(model: &Transformer<B>, data: &Corpus, device: &B::Device) -> Option<[f64; 2]> {
    let length = data.sequence.min(generate::MAX_TOKENS);
    let prompt = (length / 4).clamp(1, data.validation.len());
    let places = data.validation.len() - prompt;
    let write = |number: usize| {
        let start = number * places / TEXTS;
        let written =
            generate::continue_tokens(model, &data.validation[start..start + prompt], length, number as u64, device);
        data.codec.decode(&written)
    };
    distinct_words(&(0..TEXTS).map(write).collect::<Vec<_>>())
}

/// Returns the numbers of distinct words and of distinct pairs of words, as shares of all words (Li et al., 2016);
/// none for texts without words.
fn distinct_words(texts: &[String]) -> Option<[f64; 2]> {
    let words: Vec<Vec<&str>> = texts.iter().map(|text| text.split_whitespace().collect()).collect();
    let count: usize = words.iter().map(Vec::len).sum();
    let single: BTreeSet<&str> = words.iter().flatten().copied().collect();
    let pairs: BTreeSet<(&str, &str)> =
        words.iter().flat_map(|words| words.windows(2).map(|pair| (pair[0], pair[1]))).collect();
    let share = |distinct: usize| distinct as f64 / count as f64;
    (count > 0).then(|| [share(single.len()), share(pairs.len())])
}

#[cfg(test)]
mod tests {
    use super::{distinct, distinct_words, perplexity};
    use crate::task::Task;
    use crate::tasks::lm::model::Transformer;
    use crate::tasks::lm::{LanguageModel, Sources, TextData, TextModel};
    use burn::backend::{Flex, flex::FlexDevice};
    use burn::tensor::{Int, Tensor, activation::log_softmax};
    use std::fs;

    #[test]
    fn distinct_words_and_pairs_are_shares_of_all_words() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        // a, b, c of six words; ab, ba, ac.
        assert_eq!(distinct_words(&texts(&["a b a b", "a c"])), Some([0.5, 0.5]));
        assert_eq!(distinct_words(&texts(&["x x x x", "", "x"])), Some([0.2, 0.2]));
        assert_eq!(distinct_words(&texts(&["one two three"])), Some([1.0, 2.0 / 3.0]));
        assert_eq!(distinct_words(&texts(&["", " \n"])), None);
    }

    #[test]
    fn the_perplexity_is_that_of_each_token_in_its_window() {
        let model = TextModel { layers: Some(1), heads: Some(1), width: Some(8), sequence: 5, ..TextModel::default() };
        let (source, tokenizer) = (Sources::One("embedded:text".into()), Some("bytes".into()));
        let data = TextData { source, tokenizer, validation: 0.1, prompt: None };
        let corpus = LanguageModel::load(&data, &model, 7).unwrap();
        let net = Transformer::<Flex>::new(&corpus.spec, &FlexDevice);
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("second.txt");
        for (text, windows) in [("hello world of", vec![[0, 6], [5, 11]]), ("abc", vec![[0, 3]])] {
            fs::write(&file, text).unwrap();
            // Each window alone, without the loss of the task: minus the log-probability of each successor.
            let (mut sum, mut count) = (0.0, 0.0);
            for [start, end] in windows {
                let tokens: Vec<i32> = text.as_bytes()[start..end].iter().map(|byte| i32::from(*byte)).collect();
                let (inputs, targets) = (&tokens[..tokens.len() - 1], &tokens[1..]);
                let logits = net.forward(Tensor::<Flex, 1, Int>::from_data(inputs, &FlexDevice).unsqueeze());
                let scores: Vec<f32> = log_softmax(logits, 2).into_data().iter().collect();
                for (scores, target) in scores.chunks(256).zip(targets) {
                    sum -= f64::from(scores[usize::try_from(*target).unwrap()]);
                    count += 1.0;
                }
            }
            let expected = (sum / count).exp();
            for micro_batch in [1, 8] {
                let found = perplexity(&net, &corpus, &file, micro_batch, &FlexDevice).unwrap();
                assert!((found - expected).abs() < 1e-3 * expected, "{text}: {found} and {expected}");
            }
        }
        fs::write(&file, "x").unwrap();
        for file in [file, place.path().join("missing")] {
            let error = perplexity(&net, &corpus, &file, 1, &FlexDevice).unwrap_err().to_string();
            assert!(error.contains("set quality.text"), "{error}");
        }
        let shares = distinct(&net, &corpus, &FlexDevice);
        assert_eq!(shares, distinct(&net, &corpus, &FlexDevice), "the same texts at every measurement");
        assert!(shares.is_none_or(|shares| shares.iter().all(|share| (0.0..=1.0).contains(share))), "{shares:?}");
    }
}
