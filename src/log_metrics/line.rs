//! Reads a line of text as keys and numbers: `step 10 loss 2.3`, `iter 10: loss 3.2000, time 5.00ms`,
//! `{'loss': '3.214', 'epoch': 1.0}`, `iteration 10/ 50 | lm loss: 1.0E+01 | grad norm: 2.3 |`, `Epoch: [0][3/8] Loss 2.3`.

mod reader;

use super::clock::{Epoch, Extent, Position};
use super::heads::{Form, Head};
use super::names::{self, Role};
use super::time_left;
use reader::Reader;
use std::time::Duration;

/// Words of a line that begins an epoch.
const AROUND_EPOCH: [&str; 8] = ["epoch", "time", "start", "starting", "begin", "beginning", "training", "train"];

/// The content of a line that reports metrics.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Line {
    pub step: Option<u64>,
    /// A word for a step names it, not its place in the line.
    pub names_step: bool,
    /// That word may count parts of a step.
    pub is_finer: bool,
    /// The count that the step is out of.
    pub out_of: Option<u64>,
    pub total_steps: Option<u64>,
    pub epoch: Option<Epoch>,
    pub values: Vec<(String, f64)>,
    /// The line reports an evaluation.
    pub is_evaluation: bool,
    /// Its evaluation is that of the test set.
    pub is_test: bool,
    /// It says that it is the final one.
    pub is_final: bool,
    /// A count that it shows with its end, of anything but epochs: an evaluation that does so is under way.
    pub progress: Option<u64>,
    /// The steps that its count covers.
    pub extent: Extent,
    pub form: LineForm,
    /// An accuracy was printed with a percent sign, and is a share already.
    pub has_percent: bool,
    /// The time until the end of the training.
    pub time_left: Option<Duration>,
    /// Words that are not part of a key.
    pub other_words: Vec<String>,
}

/// A form of lines that needs the lines before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LineForm {
    #[default]
    Plain,
    /// Its step ends the epoch that a line above names.
    EndsEpoch,
    /// It names parts of the step, too: several lines may report one.
    OfParts,
    /// Its count is that of samples.
    OfSamples,
}

impl Line {
    /// Reads all keys and numbers of a text.
    pub fn read(text: &str) -> Self {
        let Some(head) = Head::read(text) else { return Reader::default().read(text) };
        let mut line = Reader::default().read(&head.rest);
        let measures = |(name, _): &(String, f64)| names::is_loss(name) && !names::is_of_evaluation(name);
        let is_training = !line.is_evaluation && line.step.is_none() && line.values.iter().any(measures);
        if is_training || matches!(head.form, Form::Round | Form::Step) {
            line.names_step = head.form == Form::Step;
            (line.step, line.out_of) = (Some(head.step), head.out_of);
            line.epoch = line.epoch.or(head.epoch);
            if head.epoch.is_some() && head.out_of.is_some() {
                line.extent = Extent::Epoch;
            }
            if head.form == Form::OfEpoch {
                line.form = LineForm::EndsEpoch;
            }
        }
        if head.form == Form::Round {
            line.is_evaluation = false;
            names::add_objective(&mut line.values);
        }
        line
    }

    /// Reads a line of a stream.
    pub fn read_whole(text: &str) -> Self {
        let line = Self::read(text);
        let counts = line.step.is_some() && !line.is_evaluation && line.reports_metrics();
        Self { time_left: counts.then(|| time_left::read(text)).flatten(), ..line }
    }

    /// Reads what a bar shows beside its count.
    pub fn read_beside_bar(text: &str) -> Self {
        Reader::beside_bar().read(text)
    }

    /// Returns where it lies in the training, with this count.
    pub fn position(&self, count: u64) -> Position {
        Position {
            count,
            out_of: self.out_of,
            // A fraction of an epoch says nothing about where the count begins.
            epoch: self.epoch.filter(|epoch| epoch.value.fract() == 0.0),
            extent: self.extent,
        }
    }

    /// Returns the step, and its end, of a line that names nothing else: `Learning iteration 1/101`. Its values follow.
    pub fn heads_step(&self) -> Option<(u64, Option<u64>)> {
        let says_more = !self.values.is_empty() || self.epoch.is_some() || !self.other_words.is_empty();
        self.step.filter(|_| !says_more && !self.is_evaluation).map(|step| (step, self.out_of))
    }

    /// Reports whether a line that reports no metrics begins an epoch: `Epoch 2/5`, `Start epoch 2`, `Epoch: 02 | Epoch Time: 5s`.
    pub fn heads_epoch(&self) -> bool {
        self.other_words.iter().all(|word| AROUND_EPOCH.contains(&word.as_str()))
    }

    /// Counts the values as those of an evaluation.
    pub fn into_evaluation(mut self) -> Self {
        for (name, _) in self.values.iter_mut().filter(|(name, _)| !names::is_of_evaluation(name)) {
            *name = format!("eval_{name}");
        }
        Self { step: None, out_of: None, is_evaluation: true, ..self }
    }

    /// Adds what a later line reports of the same evaluation; its values replace earlier ones.
    pub fn merge(&mut self, later: Self) {
        self.values.retain(|(name, _)| !later.values.iter().any(|(known, _)| known == name));
        self.values.extend(later.values);
        self.epoch = later.epoch.or(self.epoch);
        self.is_test |= later.is_test;
        self.has_percent |= later.has_percent;
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
        let known = |(name, _): &(String, f64)| {
            let is_score = names::is_score(name) || (self.is_evaluation && names::has_score(name));
            is_score || names::is_loss(name) || matches!(names::role(name), Role::Known(_))
        };
        self.values.iter().any(known) || (self.step.is_some() && !self.values.is_empty() && self.other_words.is_empty())
    }

    /// Reports whether the line contains a loss of training.
    pub fn has_training_loss(&self) -> bool {
        !self.is_evaluation && self.values.iter().any(|(name, _)| name == "loss")
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, LineForm};
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
            ("Cost after iteration 100: 0.6", Some(100), None, values(&[("loss", 0.6)])),
            ("Training loss (for one batch) at step 200: 1.5", Some(200), None, values(&[("loss", 1.5)])),
            ("Validation loss at step 200: 1.5", Some(200), None, values(&[("eval_loss", 1.5)])),
            ("{'loss': 2.5, 'global_step/max_steps': '5/100'}", Some(5), Some(100), values(&[("loss", 2.5)])),
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
    fn a_position_needs_no_word_for_the_step() {
        let epoch = |line: &Line| line.epoch.map(|epoch| (epoch.value, epoch.count));
        for (text, wanted) in [
            ("| epoch   2 |    40/   49 batches | lr 20.00 | loss  6.53 |", (Some(40), Some(49), Some((2.0, None)))),
            ("Epoch: [0][3/8]\tTime 0.5 (0.6)\tLoss 6.9e+00 (7.0e+00)", (Some(3), Some(8), Some((0.0, None)))),
            ("Epoch: [0]  [1/6]  eta: 0:00:11  lr: 0.002  loss: 7.5 (7.9)", (Some(1), Some(6), Some((0.0, None)))),
            ("Train: 0 [  50/1251 (  4%)]  Loss: 6.93 (6.93)", (Some(50), Some(1251), Some((0.0, None)))),
            ("x - mmengine - INFO - Epoch(train)  [1][ 50/100]  loss: 2.0", (Some(50), Some(100), Some((1.0, None)))),
            ("Iter(train) [ 50/100]  lr: 1e-4  loss: 2.0", (Some(50), Some(100), None)),
            ("Epoch 2/3, Batch 3/5, Loss: 0.5", (Some(3), Some(5), Some((2.0, Some(3))))),
            ("Epoch 2 Batch 30 Loss 0.5", (Some(30), None, Some((2.0, None)))),
            ("Epoch 2 of 3, step 3 of 5: loss 0.5", (Some(3), Some(5), Some((2.0, Some(3))))),
            ("Epoch 1 | iter 10 step 5 | loss train: 2.1, val: n/a", (Some(5), None, Some((1.0, None)))),
            ("eta: N/A  iter: 19/1500  total_loss: 5.9", (Some(19), Some(1500), None)),
            ("completed step: 10, seconds: 1.5, loss: 8.125", (Some(10), None, None)),
            (
                "Training epoch 0, iteration 9/99 | global_step: 9 | reduced_train_loss: 11.5",
                (Some(9), None, Some((0.0, None))),
            ),
            ("Round 2/20: loss 0.5", (None, None, Some((2.0, Some(20))))),
            // Settings, data that is loaded.
            ("batch: 16, lr: 0.1, loss: 3", (None, None, None)),
            ("3/4 shards, loss 0.5", (None, None, None)),
            ("Test: [3/8]  Loss 0.5 (0.6)", (None, None, None)),
        ] {
            let line = Line::read(text);
            assert_eq!((line.step, line.out_of, epoch(&line)), wanted, "{text}");
            assert!(line.reports_metrics(), "{text}");
        }
    }

    #[test]
    fn a_percentage_behind_the_count_of_an_epoch_is_one_of_samples() {
        for text in
            ["Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3", "Train Epoch: 1 [   640/ 60000 (  1%)] Loss: 2.3 (2.3)"]
        {
            let line = Line::read(text);
            assert_eq!((line.form, line.step, line.out_of), (LineForm::OfSamples, Some(640), Some(60_000)), "{text}");
        }
        assert_eq!(Line::read("Train: 0 [  50/1251 (  4%)]  Loss: 6.93").form, LineForm::Plain);
    }

    #[test]
    fn scores_alone_are_an_evaluation() {
        for (text, wanted) in [
            ("Accuracy: 9812/10000 (98%)", values(&[("eval_accuracy", 0.9812)])),
            ("Accuracy of the network on the 10000 test images: 81 %", values(&[("eval_accuracy", 0.81)])),
            (" *   Acc@1 3.125 Acc@5 12.500", values(&[("eval_accuracy", 0.03125), ("eval_accuracy_top5", 0.125)])),
            ("top-1: 75%  top-5: 93.75%", values(&[("eval_accuracy", 0.75), ("eval_accuracy_top5", 0.9375)])),
            ("Test: [3/8]  Loss 9.0 (0.5)  Acc@1  1.00 (50.00)", values(&[("eval_loss", 0.5), ("eval_accuracy", 0.5)])),
            ("mIoU: 45.21", values(&[("eval_miou", 45.21)])),
            ("R@1: 43.1 - R@5: 70.2", values(&[("eval_r@1", 43.1), ("eval_r@5", 70.2)])),
            ("valid WER: 12.5", values(&[("eval_wer", 12.5)])),
            ("clip_val_loss: 0.5", values(&[("eval_loss", 0.5)])),
            ("Epoch(val) [1][200] bbox_mAP: 0.5, time: 3.0", values(&[("eval_bbox_map", 0.5)])),
            (
                "2epoch results: [train] [valid] loss_ctc=50.5, loss=45.5, cer=0.5",
                values(&[("eval_loss_ctc", 50.5), ("eval_loss", 45.5), ("eval_cer", 0.5)]),
            ),
            ("Overall accuracy: 0.5", values(&[("eval_accuracy", 0.5)])),
        ] {
            let line = Line::read(text);
            assert!(line.reports_metrics() && !line.has_other_than_evaluation(), "{text}");
            assert_eq!((line.step, line.values), (None, wanted), "{text}");
        }
        assert!(!Line::read("Accuracy for class: plane is 58.4 %").reports_metrics());
        assert_eq!(Line::read("train accuracy: 0.5").values, values(&[("accuracy", 0.5)]));
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
