//! The learning rate of a step: the schedule, times the factor that plateaus gave it.

use super::Attempt;
use crate::evaluate::Means;
use downshift_core::protocol::worker::ReducedRate;
use downshift_core::recipe::phases::SearchPhase;
use downshift_core::recipe::plateau::Reduction;

impl Attempt<'_> {
    /// Returns the learning rate of the step of a phase that ends when the clock shows `samples`. The rate of an
    /// architecture is constant.
    pub fn learning_rate(&self, phase: SearchPhase, samples: u64) -> f64 {
        match phase {
            SearchPhase::Weights => self.scheduled_rate(samples) * self.plateau_factor(),
            SearchPhase::Architecture => self.args.preset.optimizer.architecture.unwrap_or_default().lr,
        }
    }

    fn scheduled_rate(&self, samples: u64) -> f64 {
        let knobs = &self.args.preset.optimizer;
        knobs.schedule.lr_warming(knobs.lr, samples, self.total_units, self.state.warmup_from)
    }

    /// Returns the factor that plateaus gave the learning rate. A rung without the rule keeps its scheduled rate.
    fn plateau_factor(&self) -> f64 {
        let state = self.state.plateau.as_ref().filter(|_| self.args.preset.optimizer.plateau.is_some());
        state.map_or(1.0, |state| state.factor)
    }

    /// Takes an evaluation into the rule for plateaus, if the rung has it. Returns the reduction that it causes.
    pub(super) fn follow_plateau(&mut self, means: &Means) -> Option<ReducedRate> {
        let knobs = &self.args.preset.optimizer;
        // After the last step there is no rate to lower.
        let plateau = knobs.plateau.as_ref().filter(|_| self.state.position.samples < self.total_units)?;
        let (step, ranking) = (self.state.step, plateau.ranking());
        let measured = plateau.measure(step, Some(means.loss), &means.metrics, &ranking)?;
        let state = self.state.plateau.get_or_insert_default();
        let Reduction { from, to, evaluations } = state.record(&plateau.rule, knobs.lr, measured)?;
        let scheduled = self.scheduled_rate(self.state.position.samples);
        let metric = plateau.by.metric.clone();
        Some(ReducedRate { step, from: scheduled * from, to: scheduled * to, factor: to, metric, evaluations })
    }
}
