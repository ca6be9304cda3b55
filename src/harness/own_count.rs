//! The steps that a script counts itself: after a resume they go on, or they begin again. The run counts the updates that were
//! made, so a count that begins again is laid behind the checkpoint.

use super::progress::trail::Trail;
use super::resume_point::Chosen;
use super::run_loop::{Harness, Report};
use super::{HarnessArgs, earlier_outputs};
use crate::config::command::{StepCount, names_rest};
use crate::format::count;
use crate::log_metrics::Reading;
use crate::protocol::resumed::{Evidence, Printed, Resumed};
use crate::protocol::worker::{Event, Level};
use crate::untrusted::thread::run_beside;
use std::borrow::Cow;
use std::time::Duration;

/// How the script counts in an attempt that resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct OwnCount {
    /// None until it shows.
    known: Option<StepCount>,
    /// The script is told how much is left, so it ends where the run does.
    knows_rest: bool,
}

impl OwnCount {
    /// Returns what is known at the start.
    pub(super) fn of(args: &HarnessArgs, chosen: &Chosen) -> Self {
        let declared = args.spec.resume.as_ref().and_then(|resume| resume.count);
        // A companion that restores the training reports the steps itself.
        let known = if matches!(chosen, Chosen::Script(_)) { declared } else { Some(StepCount::Continues) };
        Self { known, knows_rest: names_rest(&args.spec) }
    }

    /// Returns the count of a script that is known.
    #[cfg(test)]
    pub(super) fn known(count: StepCount) -> Self {
        Self { known: Some(count), knows_rest: false }
    }

    /// Reports whether it begins again.
    pub(super) fn restarts(self) -> bool {
        self.known == Some(StepCount::Restarts)
    }

    /// Learns from the first step that is printed by a script that trains on from its checkpoint. Reports whether it begins again.
    fn learn(&mut self, evidence: &Evidence, step: Option<u64>) -> bool {
        let first = match evidence.printed {
            Some(Printed::Step(first)) => Some(first),
            Some(Printed::Uncertain(_)) => None,
            None => step.filter(|step| *step > 0),
        };
        let (None, Some(first)) = (self.known, first) else { return false };
        let restarts = evidence.restarts_at(first);
        self.known = Some(if restarts { StepCount::Restarts } else { StepCount::Continues });
        restarts
    }

    /// Returns the last step of the run for that of the script, which trains on from a step.
    pub(super) fn total_on_clock(self, total: u64, from: u64) -> u64 {
        if self.restarts() && !self.knows_rest { total.saturating_add(from) } else { total }
    }
}

/// Returns a reading with the step of the run.
pub(super) fn lay_behind(reading: Cow<'_, Reading>, step: u64) -> Cow<'_, Reading> {
    if step == 0 || reading.step.is_none() && reading.total_steps.is_none() {
        return reading;
    }
    let behind = |own: Option<u64>| own.map(|own| own.saturating_add(step));
    let (step, total_steps) = (behind(reading.step), behind(reading.total_steps));
    Cow::Owned(Reading { step, total_steps, ..reading.into_owned() })
}

/// Returns the step of a checkpoint whose name has a number, in an attempt that counts anew behind a step. The name counts as the
/// output does, or as the run; or it begins elsewhere, as where a script skips whole epochs: then the step that had been taken
/// when the checkpoint was written decides.
pub(super) fn place_number(number: u64, behind: u64, trail: &Trail, written: Duration) -> u64 {
    let own = number.saturating_add(behind);
    let Some((taken, gap)) = trail.find_step_within(written) else { return own };
    let of_run = Some(number).filter(|number| *number > behind);
    let nearest = of_run.into_iter().chain([own]).min_by_key(|step| step.abs_diff(taken)).unwrap_or(own);
    if nearest.abs_diff(taken) <= gap.saturating_mul(2) { nearest } else { taken }
}

impl Harness {
    /// Learns how the script counts, once it is known that it trains on from its checkpoint.
    pub(super) fn learn_own_count(&mut self, reading: &Reading) {
        let check = &mut self.resume_check;
        let trains_on = matches!(check.known(), Some(Resumed::Verified { .. })) || check.evidence.has_trained_weights();
        // A companion that restored the training counts itself.
        if !trains_on || self.companion.reports_each_step() || !check.count.learn(&check.evidence, reading.step) {
            return;
        }
        self.progress.trail = Trail::default();
        self.progress.total = self.progress.total.map(|total| self.resume_check.total_on_clock(total));
        self.send_length();
        let step = self.resume_check.counts_behind();
        let [last, next] = [step, step + 1].map(count);
        let text = format!(
            "the script counts its steps from the beginning again after checkpoint {last}: its step 1 is step {next} of the run. \
             Its next files have the names of those before, so checkpoints are copied"
        );
        self.link.send(&Event::Note { level: Level::Info, text });
        self.keep_earlier_outputs();
    }

    /// Copies the outputs of earlier attempts, before the script writes others in their place.
    fn keep_earlier_outputs(&self) {
        let (args, reports) = (self.args.clone(), self.reports.clone());
        run_beside("copy", move || {
            let _ = reports.send(Report::Kept(earlier_outputs::keep(&args)));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{OwnCount, lay_behind, place_number};
    use crate::config::command::StepCount;
    use crate::harness::progress::trail::Trail;
    use crate::harness::resume_check::ResumeCheck;
    use crate::log_metrics::Reading;
    use crate::protocol::resumed::{Evidence, LossesBefore, Printed};
    use std::borrow::Cow;
    use std::time::Duration;

    #[test]
    fn the_first_step_after_a_resume_tells_how_the_script_counts() {
        let learn = |printed, step, interval| {
            let before = LossesBefore { interval, ..LossesBefore::default() };
            let mut count = OwnCount::default();
            count.learn(&Evidence { asked: 200, printed, before, ..Evidence::default() }, step);
            count.known
        };
        assert_eq!(learn(None, Some(1), 1), Some(StepCount::Restarts));
        assert_eq!(learn(Some(Printed::Step(1)), Some(7), 1), Some(StepCount::Restarts), "the first one counts");
        assert_eq!(learn(None, Some(10), 10), Some(StepCount::Restarts), "every tenth step is printed");
        assert_eq!(learn(None, Some(201), 1), Some(StepCount::Continues));
        assert_eq!(learn(None, Some(200), 1), Some(StepCount::Continues), "it counts from 0");
        assert_eq!(learn(None, Some(150), 1), Some(StepCount::Continues), "it repeats steps");
        assert_eq!(learn(Some(Printed::Uncertain(1)), Some(1), 1), None, "it may be that of an epoch");
        assert_eq!(learn(None, Some(0), 1), None);
    }

    #[test]
    fn a_resume_does_not_lengthen_a_run() {
        let check = |length| ResumeCheck::at(20, StepCount::Restarts, length);
        let total = |length, printed| {
            let reading = Reading { step: Some(3), total_steps: Some(printed), ..Reading::default() };
            let laid = check(length).lay_behind(Cow::Borrowed(&reading)).into_owned();
            (laid.step, laid.total_steps, check(length).total_on_clock(printed))
        };
        assert_eq!(total(None, 36), (Some(23), Some(56), 56));
        assert_eq!(total(Some(40), 36), (Some(23), Some(40), 40), "it skipped a part of an epoch, and counts the rest");
        assert_eq!(total(Some(40), 20), (Some(23), Some(40), 40));
        assert_eq!(total(Some(90), 20), (Some(23), Some(40), 40), "a shorter one counts");
        assert_eq!(total(Some(40), 40).1, Some(60), "it takes all its steps once more");
    }

    #[test]
    fn a_count_that_begins_again_is_laid_behind_the_checkpoint() {
        let reading = Reading { step: Some(3), total_steps: Some(40), ..Reading::default() };
        let laid = lay_behind(Cow::Borrowed(&reading), 20);
        assert_eq!((laid.step, laid.total_steps), (Some(23), Some(60)));
        assert!(matches!(lay_behind(Cow::Borrowed(&reading), 0), Cow::Borrowed(_)));
        let restarts = OwnCount { known: Some(StepCount::Restarts), knows_rest: false };
        assert_eq!(restarts.total_on_clock(40, 20), 60);
        assert_eq!(OwnCount { knows_rest: true, ..restarts }.total_on_clock(40, 20), 40);
        assert_eq!(OwnCount::default().total_on_clock(40, 20), 40);
    }

    #[test]
    fn the_number_of_a_checkpoint_is_the_scripts_or_the_runs() {
        let at = Duration::from_secs;
        let mut trail = Trail::default();
        assert_eq!(place_number(10, 20, &trail, at(9)), 30, "no step below 20 is taken any more");
        for step in 21..=60 {
            trail.record(step, at(step));
        }
        assert_eq!(place_number(10, 20, &trail, at(30)), 30);
        assert_eq!(place_number(40, 20, &trail, at(40)), 40, "these names count on");
        assert_eq!(place_number(40, 20, &trail, at(60)), 60);
        assert_eq!(place_number(10, 20, &trail, at(26)), 26, "the name counts from the beginning of an epoch");
        let mut sparse = Trail::default();
        for step in [30, 40, 50] {
            sparse.record(step, at(step));
        }
        assert_eq!(place_number(15, 20, &sparse, at(36)), 35, "every tenth step is printed");
    }
}
