//! Reads a line of text as keys and numbers: `step 10 loss 2.3`, `iter 10: loss 3.2000, time 5.00ms`,
//! `{'loss': '3.214', 'epoch': 1.0}`, `iteration 10/ 50 | lm loss: 1.0E+01 | grad norm: 2.3 |`, `[2,  2000] loss: 1.5`.

use super::clock::Epoch;
use super::names::{self, Role};
use super::token::{Token, tokens};

/// Maximum number of words in a key; more is prose.
const MAX_WORDS: usize = 6;
/// Keys read of one line.
const MAX_KEYS: usize = 2 * names::MAX_NAMES;
/// A line says within its first words whether it reports an evaluation.
const FIRST_WORDS: usize = 3;
/// Words before a key that do not change its meaning.
const FILLERS: [&str; 12] =
    ["info", "debug", "warning", "root", "the", "with", "and", "current", "now", "main", "train", "training"];
/// Words before the key of an evaluation that do not change its meaning; an `epoch loss` is not that of a step.
const BEFORE_EVALUATION: [&str; 2] = ["epoch", "final"];
/// Wrappers around a printed number.
const WRAPPERS: [&str; 7] = ["tensor", "array", "float", "np.float64", "np.float32", "numpy.float64", "item"];
/// Numbers that name a run, not a measurement.
const LABELS: [&str; 2] = ["v_num", "pid"];

/// The content of a line that reports metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Line {
    pub step: Option<u64>,
    /// The count that the step is out of.
    pub out_of: Option<u64>,
    pub total_steps: Option<u64>,
    pub epoch: Option<Epoch>,
    pub values: Vec<(String, f64)>,
    /// The line reports an evaluation.
    pub is_evaluation: bool,
    /// Its evaluation is that of the test set.
    pub is_test: bool,
    /// An accuracy was printed with a percent sign, and is a share already.
    pub has_percent: bool,
    /// Words that are not part of a key.
    pub other_words: Vec<String>,
}

impl Line {
    /// Reads all keys and numbers of a text.
    pub fn read(text: &str) -> Self {
        let mut reader = Reader::default();
        let (pair, text) = split_pair(text).map_or((None, text), |(pair, text)| (Some(pair), text));
        for token in tokens(text) {
            reader.take(token);
        }
        let mut line = reader.finish();
        if let Some((epoch, count)) = pair.filter(|_| line.has_training_loss() && line.step.is_none()) {
            line.step = Some(count);
            line.epoch = line.epoch.or(Epoch::read(epoch, None));
        }
        line
    }

    /// Reports whether the line contains a value that was not measured in an evaluation.
    pub fn has_other_than_evaluation(&self) -> bool {
        self.values.iter().any(|(name, _)| !names::is_of_evaluation(name))
    }

    /// Reports whether the line contains a value that was measured in an evaluation.
    pub fn has_evaluation(&self) -> bool {
        self.values.iter().any(|(name, _)| names::is_of_evaluation(name))
    }

    /// Reports whether the line contains a metric that downshift knows, or nothing but keys and numbers with a step.
    pub fn reports_metrics(&self) -> bool {
        let known = |(name, _): &(String, f64)| names::is_loss(name) || matches!(names::role(name), Role::Known(_));
        self.values.iter().any(known) || (self.step.is_some() && !self.values.is_empty() && self.other_words.is_empty())
    }

    /// Reports whether the line contains a loss of training.
    pub fn has_training_loss(&self) -> bool {
        !self.is_evaluation && self.values.iter().any(|(name, _)| name == "loss")
    }
}

/// Splits `[2,  2000] loss: 1.5`, the form of PyTorch's tutorials, into the epoch, the step and the rest.
fn split_pair(text: &str) -> Option<((&str, u64), &str)> {
    let (inside, rest) = text.trim_start().strip_prefix('[')?.split_once(']')?;
    let (epoch, count) = inside.split_once(',')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (epoch, count) = (epoch.trim(), count.trim());
    let count = names::parse_count(count).filter(|_| is_number(epoch) && is_number(count))?;
    Some(((epoch, count), rest))
}

#[derive(Default)]
struct Reader<'a> {
    line: Line,
    found: Vec<(String, f64)>,
    words: Vec<&'a str>,
    /// A separator follows the words.
    separated: bool,
    seen_words: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, token: Token<'a>) {
        match token {
            Token::Word(word) => self.take_word(word),
            // `number of nan iterations: 0`, unlike `loss nan`.
            Token::Number(word) if self.is_within_key(word) => self.take_word(word),
            Token::Number(text) => {
                self.take_number(text, None);
                self.end_key();
            }
            Token::Percent(text) => {
                let known = self.found.len();
                self.take_number(text, None);
                if let Some((_, value)) = self.found[known..].iter_mut().find(|(key, _)| names::is_accuracy(key)) {
                    *value /= 100.0;
                    self.line.has_percent = true;
                }
                self.end_key();
            }
            Token::Fraction(text, out_of) => {
                self.take_number(text, Some(out_of));
                self.end_key();
            }
            // `loss=2.3`: only the word at the sign is the key. `lm loss: 2.3`: all of them.
            Token::Mark('=', false) if !self.words.is_empty() => {
                let last = self.words.pop();
                self.drop_words();
                self.words.extend(last);
                self.separated = true;
            }
            // `Step [10/50]`, `elapsed time (ms): 5`
            Token::Mark(':' | '=' | '[', _) if !self.words.is_empty() => self.separated = true,
            Token::Mark('(' | ')', _) => {}
            Token::Other | Token::Mark(..) => self.drop_words(),
        }
    }

    fn is_within_key(&self, word: &str) -> bool {
        word.starts_with(|letter: char| letter.is_ascii_alphabetic()) && !self.separated && self.key().is_none()
    }

    fn take_word(&mut self, word: &'a str) {
        self.seen_words += 1;
        if self.seen_words <= FIRST_WORDS && names::is_evaluation(word) {
            self.line.is_evaluation = true;
            self.line.is_test = names::is_test_set(word);
        }
        if self.separated && WRAPPERS.contains(&word) {
            return;
        }
        // `validation loss at iteration 100`: the step is the key, the rest is prose.
        let is_at = word.eq_ignore_ascii_case("at");
        if self.separated || is_at {
            self.drop_words();
        }
        if !is_at {
            self.words.push(word);
        }
    }

    fn take_number(&mut self, text: &str, out_of: Option<&str>) {
        let Some((key, role)) = self.key() else { return };
        let is_fraction = out_of.is_some();
        match role {
            Role::Step if self.line.step.is_none() => {
                self.line.step = names::parse_count(text);
                self.line.out_of = out_of.and_then(names::parse_count);
            }
            Role::TotalSteps if !is_fraction => self.line.total_steps = names::parse_count(text),
            Role::Epoch if self.line.epoch.is_none() => self.line.epoch = Epoch::read(text, out_of),
            Role::Known(_) | Role::Own
                if !is_fraction && self.found.len() < MAX_KEYS && !LABELS.contains(&key.as_str()) =>
            {
                self.found.extend(text.parse().ok().map(|value| (key, value)));
            }
            _ => {}
        }
        self.words.clear();
    }

    /// Returns the key that the words make, and the role of its number; none when they are prose.
    fn key(&self) -> Option<(String, Role)> {
        if self.words.is_empty() || self.words.len() > MAX_WORDS {
            return None;
        }
        let whole = names::sanitise(&self.words.join("_"));
        let mut fillers = self.words.iter();
        let mut is_summary = false;
        while !fillers.as_slice().is_empty() {
            let key = names::sanitise(&fillers.as_slice().join("_"));
            let role = names::role(&key);
            let of_evaluation = matches!(&role, Role::Known(name) if names::is_of_evaluation(name));
            if role != Role::Own && (of_evaluation || !is_summary) {
                return Some((key, role));
            }
            let is_one_of = |word: &&str, list: &[&str]| list.iter().any(|filler| word.eq_ignore_ascii_case(filler));
            let Some(word) = fillers.next() else { break };
            let is_before_evaluation = is_one_of(word, &BEFORE_EVALUATION);
            is_summary |= is_before_evaluation;
            if !is_before_evaluation && !is_one_of(word, &FILLERS) {
                break;
            }
        }
        self.separated.then_some((whole, Role::Own))
    }

    fn end_key(&mut self) {
        self.drop_words();
    }

    fn drop_words(&mut self) {
        for word in self.words.drain(..) {
            if self.line.other_words.len() < MAX_WORDS {
                self.line.other_words.push(word.to_ascii_lowercase());
            }
        }
        self.separated = false;
    }

    fn finish(mut self) -> Line {
        self.drop_words();
        let set = self.found.iter().find_map(|(key, _)| names::evaluation_set(key));
        self.line.is_test = set.map_or(self.line.is_test, names::is_test_set);
        if self.line.is_evaluation {
            for (key, _) in &mut self.found {
                if !names::names_place(key) && names::role(key) != Role::Own {
                    *key = format!("eval_{key}");
                }
            }
        }
        names::take_for_evaluation(&mut self.found);
        let mut values = names::canonical_values(self.found);
        // An evaluation that a step's line reports may also measure training data: that is not the step's loss.
        let has_eval = values.iter().any(|(name, _)| name == "eval_loss");
        if self.line.step.is_some() && has_eval && !values.iter().any(|(name, _)| name == "train_loss") {
            for (name, _) in &mut values {
                if name == "loss" {
                    "train_loss".clone_into(name);
                }
            }
        }
        Line { values, ..self.line }
    }
}

#[cfg(test)]
mod tests {
    use super::Line;
    use crate::log_metrics::clock::Epoch;

    fn read(text: &str) -> (Option<u64>, Option<u64>, Vec<(String, f64)>) {
        let line = Line::read(text);
        (line.step, line.out_of, line.values)
    }

    fn values(pairs: &[(&str, f64)]) -> Vec<(String, f64)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn plain_lines() {
        for (text, step, out_of, wanted) in [
            ("step 10 loss 2.3", Some(10), None, values(&[("loss", 2.3)])),
            ("step=10, loss=2.3, lr=1e-4", Some(10), None, values(&[("loss", 2.3), ("lr", 1e-4)])),
            ("Step: 10 | Loss: 2.3", Some(10), None, values(&[("loss", 2.3)])),
            ("epoch final val loss 0.15 acc 0.9", None, None, values(&[("eval_loss", 0.15), ("eval_accuracy", 0.9)])),
            ("Epoch loss: 0.43", None, None, values(&[("epoch_loss", 0.43)])),
            ("[2026-11-22 10:00:01,123][INFO] - step 10 loss 2.3", Some(10), None, values(&[("loss", 2.3)])),
            ("INFO:root:step 10, train loss: 2.3", Some(10), None, values(&[("loss", 2.3)])),
            ("Step [100/600], Loss: 0.5000", Some(100), Some(600), values(&[("loss", 0.5)])),
            (
                "{'loss': '3.214', 'grad_norm': '1.5', 'learning_rate': '5e-05'}",
                None,
                None,
                values(&[("loss", 3.214), ("grad_norm", 1.5), ("lr", 5e-5)]),
            ),
            ("{\"step\": 10, \"loss\": 2.5}", Some(10), None, values(&[("loss", 2.5)])),
            ("step 4 loss tensor(2.5, grad_fn=<NllLossBackward0>)", Some(4), None, Vec::new()),
            ("step 4 loss: tensor(2.5, grad_fn=<NllLossBackward0>)", Some(4), None, values(&[("loss", 2.5)])),
            ("step=10 reward=3.5 custom=1", Some(10), None, values(&[("reward", 3.5), ("custom", 1.0)])),
            (
                "Validation: loss 0.5, accuracy: 91.5%",
                None,
                None,
                values(&[("eval_loss", 0.5), ("eval_accuracy", 0.915)]),
            ),
            ("Epoch 3: train loss 0.5 val loss 0.6", None, None, values(&[("loss", 0.5), ("eval_loss", 0.6)])),
        ] {
            let (found_step, found_total, found) = read(text);
            assert_eq!((found_step, found_total, found), (step, out_of, wanted), "{text}");
            assert!(Line::read(text).reports_metrics() || text.contains("loss tensor"), "{text}");
        }
    }

    #[test]
    fn an_epoch_is_read_with_its_count() {
        let line = Line::read("Epoch [2/5], Step [10/60], Loss: 0.5");
        assert_eq!(line.epoch, Some(Epoch { value: 2.0, count: Some(5), zero_based: false }));
        assert_eq!(Line::read("{'loss': 2.3, 'epoch': 0.25}").epoch.map(|epoch| epoch.value), Some(0.25));
    }

    #[test]
    fn prose_is_no_metric() {
        for text in [
            "Resuming from checkpoint-100",
            "epoch best val loss 0.15",
            "Loading 5 files at 12:30:45",
            "GPU 0: NVIDIA H100, 80 GB",
            "Serving on port: 8080",
            "Saved checkpoint at step 100",
            "total parameters: 124000000",
            "loss function: cross entropy",
            "http://localhost:6006/",
            "step by step guide: 3",
            "",
        ] {
            assert!(!Line::read(text).reports_metrics(), "{text}: {:?}", Line::read(text));
        }
    }

    #[test]
    fn nan_and_infinity_are_values() {
        let line = Line::read("step 3 loss nan grad_norm: -inf");
        assert!(line.values[0].1.is_nan());
        assert_eq!(line.values[1], ("grad_norm".to_owned(), f64::NEG_INFINITY));
    }

    /// Not recorded: made from the format strings of karpathy/nanoGPT, `train.py` (3adf61e):
    /// `iter {iter_num}: loss {lossf:.4f}, time {dt*1000:.2f}ms, mfu {running_mfu*100:.2f}%` and
    /// `step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}`.
    #[test]
    fn nanogpt() {
        assert_eq!(read("iter 10: loss 3.2000, time 5.00ms, mfu 1.25%"), (Some(10), None, values(&[("loss", 3.2)])));
        let wanted = values(&[("train_loss", 4.2821), ("eval_loss", 4.2903)]);
        assert_eq!(read("step 250: train loss 4.2821, val loss 4.2903"), (Some(250), None, wanted));
    }

    /// Not recorded: made from the format strings of NVIDIA/Megatron-LM, `megatron/training/training.py` (d98e8a6).
    /// `training_log` joins ` iteration {:8d}/{:8d} |`, ` consumed samples: {:12d} |`, ` elapsed time per iteration (ms): {:.1f} |`,
    /// ` learning rate: {:.6E} |`, ` global batch size: {:5d} |`, ` {}: {:.6E} |` for each loss, ` loss scale: {:.1f} |`,
    /// ` grad norm: {:.3f} |`, ` number of skipped iterations: {:3d} |`, ` number of nan iterations: {:3d} |`;
    /// `evaluate_and_print_results` joins ` validation loss at {} | `, `{} value: {:.6E} | `, `{} PPL: {:.6E} | `.
    #[test]
    fn megatron() {
        let text = " [2026-11-22 10:00:00.123456] iteration       10/      50 | consumed samples:          160 | \
                    elapsed time per iteration (ms): 123.4 | learning rate: 1.500000E-04 | global batch size:    16 | \
                    lm loss: 1.098612E+01 | loss scale: 1.0 | grad norm: 2.345 | number of skipped iterations:   0 | \
                    number of nan iterations:   0 |";
        let (step, out_of, found) = read(text);
        assert_eq!((step, out_of), (Some(10), Some(50)));
        let wanted = values(&[
            ("consumed_samples", 160.0),
            ("elapsed_time_per_iteration_ms", 123.4),
            ("lr", 1.5e-4),
            ("global_batch_size", 16.0),
            ("loss", 10.98612),
            ("loss_scale", 1.0),
            ("grad_norm", 2.345),
            ("number_of_skipped_iterations", 0.0),
            ("number_of_nan_iterations", 0.0),
        ]);
        assert_eq!(found, wanted);
        let text = " validation loss at iteration 100 | lm loss value: 1.080000E+01 | lm loss PPL: 4.902080E+04 | ";
        assert_eq!(read(text), (Some(100), None, values(&[("eval_loss", 10.8), ("eval_perplexity", 49020.8)])));
    }
}
