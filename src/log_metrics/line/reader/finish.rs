//! Puts together what a line said.

use super::{Before, Reader};
use crate::log_metrics::clock::Extent;
use crate::log_metrics::line::{Line, LineForm};
use crate::log_metrics::names;

/// Parts of the names of readings of the machine, which an evaluation does not measure.
const OF_MACHINE: [&str; 7] = ["time", "data", "data_time", "memory", "max_mem", "mem", "speed"];

impl Reader<'_> {
    pub(super) fn finish(mut self) -> Line {
        self.drop_words();
        let set = self.found.iter().find_map(|(key, _)| names::evaluation_set(key));
        self.line.is_test = set.map_or(self.line.is_test, names::is_test_set);
        let has_loss = self.found.iter().any(|(key, _)| names::is_loss(key));
        let is_named = self.line.step.is_some() && self.line.form != LineForm::OfParts;
        self.place(has_loss);
        // Scores alone are those of a data set.
        let is_score = |(key, _): &(String, f64)| names::is_score(key) && !names::names_place(key);
        let is_of_training = self.is_of_training || self.batch.is_some();
        let may_be_alone = self.line.step.is_none() && !has_loss && !self.is_beside_bar && !is_of_training;
        self.line.is_evaluation |= may_be_alone && self.found.iter().any(is_score);
        if self.line.is_evaluation {
            if self.line.progress.is_some() {
                for (place, mean) in std::mem::take(&mut self.means) {
                    let scale = if names::is_in_percent(&self.found[place].0) { 100.0 } else { 1.0 };
                    self.found[place].1 = mean / scale;
                }
            }
            self.found.retain(|(key, _)| !OF_MACHINE.contains(&key.as_str()) && !key.ends_with("_time"));
            for (key, _) in &mut self.found {
                if !names::names_place(key) {
                    *key = format!("eval_{key}");
                }
            }
        }
        names::take_for_evaluation(&mut self.found);
        let mut values = names::canonical_values(self.found);
        // An evaluation that a step's line reports may also measure training data: that is not the step's loss.
        let has_eval = values.iter().any(|(name, _)| name == "eval_loss");
        if is_named && has_eval && !values.iter().any(|(name, _)| name == "train_loss") {
            for (name, _) in &mut values {
                if name == "loss" {
                    "train_loss".clone_into(name);
                }
            }
        }
        Line { values, ..self.line }
    }

    /// Gives a line of the training the step that no key names.
    fn place(&mut self, has_loss: bool) {
        if self.line.step.is_some() || self.line.is_evaluation || self.found.is_empty() {
            return;
        }
        let measures = has_loss || self.found.iter().any(|(key, _)| names::is_score(key));
        let batch = self.batch.filter(|_| measures && self.line.epoch.is_some()).map(|batch| (batch, None));
        if let Some((step, out_of)) = self.position.or(batch) {
            (self.line.step, self.line.out_of) = (Some(step), out_of);
            if self.line.epoch.is_some() {
                self.line.extent = match self.behind {
                    None | Some(Before::Epoch(false)) => Extent::Epoch,
                    Some(_) => Extent::EpochFromZero,
                };
            }
        }
    }
}
