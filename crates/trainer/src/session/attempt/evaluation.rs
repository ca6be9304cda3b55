//! Evaluations of an attempt: when one is due, and what is told of its results.

use super::{Attempt, is_due, unix_ms};
use crate::evaluate::Means;
use crate::layers::{self, ParameterStats};
use crate::samples::{self, Samples};
use downshift_core::protocol::control::EvalRow;
use downshift_core::protocol::samples::LayerStats;
use downshift_core::protocol::worker::{Eval, Event, Level};
use downshift_core::recipe::batch::StepPlan;
use downshift_core::store::checkpoint::state::Row;

impl Attempt<'_> {
    /// Records an evaluation on the validation set.
    pub fn record_evaluation(&mut self, means: Option<Means>) {
        self.state.trained_s = self.trained_s();
        self.state.evaluated_at_s = self.state.trained_s;
        let Some(means) = means else { return };
        if !means.loss.is_finite() {
            let text = format!("the validation loss after step {} is NaN or infinite", self.state.step);
            self.note(Level::Warn, text);
            return;
        }
        let (step, samples) = (self.state.step, self.state.position.samples);
        let reduced = self.follow_plateau(&means);
        let eval = Eval { step, samples, loss: Some(means.loss), metrics: means.metrics, reduced };
        self.is_best = self.saver.is_new_best(&eval);
        self.state.best_eval_loss = Some(self.state.best_eval_loss.map_or(means.loss, |best| best.min(means.loss)));
        self.state.eval = Some(eval.clone());
        let row = EvalRow { attempt: self.args.attempt, time_ms: unix_ms(), eval: eval.clone() };
        self.saver.add_row(Row::Eval(row));
        self.sink.send(Event::Eval(eval));
    }

    /// Writes the samples of an evaluation. Training goes on if they cannot be written.
    pub fn record_samples(&self, samples: Samples) {
        let step = self.state.step;
        match samples::store(&self.args.run_dir, step, samples) {
            Ok(true) => self.sink.send(Event::Samples { step }),
            Ok(false) => {}
            Err(error) => {
                let text = format!("the samples of an evaluation cannot be written: {error}");
                self.note(Level::Warn, text);
            }
        }
    }

    /// Records the layers as they were in the latest update.
    pub fn record_layers(&mut self, parameters: &[ParameterStats]) {
        let layers = layers::layers(parameters, &std::mem::take(&mut self.non_finite));
        if !layers.is_empty() {
            self.sink.send(Event::Layers(LayerStats { step: self.state.step, layers }));
        }
    }

    /// Reports whether an evaluation is due after the step that is about to end: it is the last one, or the
    /// time has come.
    pub fn evaluation_is_due(&self, plan: &StepPlan, is_last: bool) -> bool {
        let since_s = self.trained_s() - self.state.evaluated_at_s;
        is_last
            || is_due(self.args.preset.evaluation.every, self.state.step + 1, [plan.epoch, plan.after.epoch], since_s)
    }
}
