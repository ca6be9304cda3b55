//! Collects the evidence of where the command trains on, and lets [`judge`] decide. If that is elsewhere than it was asked
//! to, its steps count from there.

use super::counting::{recall_counting, recall_length};
use super::own_count::{OwnCount, lay_behind};
use super::prepare::{output_patterns, size_of};
use super::resume_point::Chosen;
use super::run_loop::Harness;
use super::{HarnessArgs, progress};
#[cfg(test)]
use crate::config::command::StepCount;
use crate::log_metrics::{OutputReader, Reading};
use crate::protocol::companion::Introduction;
use crate::protocol::resumed::{Evidence, Load, Loaded, Loads, Printed, Resumed, judge};
use crate::protocol::worker::{CommandNews, Event};
use crate::store::losses::losses_before;
use crate::store::{adopted, checkpoint};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time in which more may follow the first step in the output.
const MORE_FOLLOWS: Duration = Duration::from_secs(2);

/// The resume of this attempt, as far as it is known.
#[derive(Debug, Default)]
pub struct ResumeCheck {
    pub(super) evidence: Evidence,
    /// How the script counts its steps.
    pub(super) count: OwnCount,
    /// The checkpoints of the run, with their steps; the one asked for comes first.
    checkpoints: Vec<(PathBuf, u64)>,
    /// The newest judgement; none for a fresh start.
    judged: Option<Resumed>,
    /// When the output named its first step.
    printed_at: Option<Duration>,
    /// A step was sent.
    has_stepped: bool,
    /// The last step of the run, as an earlier attempt printed it.
    length: Option<u64>,
    /// The same, or else as the run file says it.
    pub(super) known_length: Option<u64>,
    /// Steps and samples by which a companion is wrong that counts on from the checkpoint asked for.
    renumbered: Option<Renumbered>,
}

#[derive(Debug, Clone, Copy)]
struct Renumbered {
    from: (u64, u64),
    to: (u64, u64),
}

impl Renumbered {
    fn apply(self, step: &mut u64, samples: &mut u64) {
        *step = step.saturating_sub(self.from.0).saturating_add(self.to.0);
        *samples = samples.saturating_sub(self.from.1).saturating_add(self.to.1);
    }
}

impl ResumeCheck {
    /// Begins to watch an attempt that resumes from this checkpoint.
    pub(super) fn begin(args: &HarnessArgs, chosen: Option<&Chosen>) -> Self {
        let Some(chosen) = chosen.filter(|_| !args.purpose.is_temporary()) else { return Self::default() };
        let (run_dir, asked) = (args.run_dir.path(), chosen.step());
        let mut checkpoints = match chosen {
            Chosen::Container { point, .. } => vec![(point.path.clone(), asked)],
            Chosen::Script(adopted) => vec![(adopted.path.clone(), asked), (adopted.original().path, asked)],
        };
        for adopted in adopted::list(run_dir).into_iter().chain(adopted::list_aside(run_dir)) {
            let original = adopted.original().path;
            checkpoints.extend([(adopted.path, adopted.step), (original, adopted.step)]);
        }
        checkpoints.extend(checkpoint::list(run_dir).into_iter().map(|entry| (entry.path, entry.step)));
        let others = checkpoints.iter().map(|(_, step)| *step).filter(|step| *step != asked).collect();
        // Where the store cannot be read, the losses say nothing.
        let before = losses_before(&args.run_dir, asked).unwrap_or_default();
        let place = |(path, step): (PathBuf, u64)| (path.canonicalize().unwrap_or(path), step);
        let count = OwnCount::of(args, chosen);
        let length = recall_length(&args.run_dir);
        Self {
            length,
            known_length: size_of(args).2.or(length),
            evidence: Evidence { asked, others, before, counts_anew: count.restarts(), ..Evidence::default() },
            count,
            checkpoints: checkpoints.into_iter().map(place).collect(),
            judged: Some(Resumed::Unverified { asked, counts_from: None }),
            ..Self::default()
        }
    }

    /// Returns the check of an attempt that trains on from a step, and counts so.
    #[cfg(test)]
    pub(super) fn at(step: u64, count: StepCount, length: Option<u64>) -> Self {
        let judged = Some(Resumed::Verified { step, file: None });
        Self { judged, length, known_length: length, count: OwnCount::known(count), ..Self::default() }
    }

    /// Returns the step behind which the script's own count is laid; 0 if it counts as the run does.
    pub(super) fn counts_behind(&self) -> u64 {
        self.judged.as_ref().filter(|_| self.count.restarts()).map_or(0, Resumed::step)
    }

    /// Returns the last step of the run for that of the script.
    pub(super) fn total_on_clock(&self, total: u64) -> u64 {
        let total = self.count.total_on_clock(total, self.counts_behind());
        self.length.map_or(total, |length| total.min(length))
    }

    /// Returns a reading with the step of the run.
    pub(super) fn lay_behind<'a>(&self, reading: Cow<'a, Reading>) -> Cow<'a, Reading> {
        let own_total = reading.total_steps;
        let laid = lay_behind(reading, self.counts_behind());
        // Some scripts print what is left, and some a part of an epoch more. One that prints no less than before takes all its
        // steps once more.
        let prints_rest = own_total.zip(self.known_length).is_some_and(|(own, length)| own < length);
        match laid.total_steps.zip(self.known_length).filter(|_| prints_rest && self.counts_behind() > 0) {
            Some((total, length)) if total > length => {
                Cow::Owned(Reading { total_steps: Some(length), ..laid.into_owned() })
            }
            _ => laid,
        }
    }

    /// Returns the step after which the output counts, in an attempt that resumes from this one.
    pub(super) fn first_count(&self, step: u64) -> u64 {
        if self.count.restarts() { 0 } else { step }
    }

    /// Reports whether the judgement may still change.
    fn is_open(&self) -> bool {
        self.judged.as_ref().is_some_and(|judged| !judged.is_known())
    }

    /// Reports whether all has been seen that is seen together.
    fn is_ready(&self, now: Duration) -> bool {
        let Evidence { told, loads, loss, .. } = &self.evidence;
        told.is_some() || loads.is_some() || loss.is_some() || self.has_waited(now)
    }

    /// Reports whether the output has named a step for a while.
    fn has_waited(&self, now: Duration) -> bool {
        self.printed_at.is_some_and(|at| now.saturating_sub(at) >= MORE_FOLLOWS)
    }

    fn step_of(&self, file: &Path) -> Option<u64> {
        self.checkpoints.iter().find(|(path, _)| file.starts_with(path)).map(|(_, step)| *step)
    }

    /// Takes in the first step and the first loss of the output.
    fn observe(&mut self, reading: &Reading, now: Duration) {
        if progress::is_eval(reading) {
            return;
        }
        if self.evidence.printed.is_none() && !self.evidence.counts_anew {
            // A bar is drawn at 0 before it is moved to where the training goes on.
            let [step, count] = [reading.step, reading.count_started_over].map(|number| number.filter(|it| *it > 0));
            self.evidence.printed = count.map(Printed::Uncertain).or(step.map(Printed::Step));
            self.printed_at = self.evidence.printed.map(|_| now);
        }
        let loss = reading.value("loss").filter(|loss| loss.is_finite());
        self.evidence.loss = self.evidence.loss.or(loss);
    }

    /// Returns an event of a companion with the numbers that count.
    pub(super) fn renumber(&self, mut event: Event) -> Event {
        let Some(renumbered) = self.renumbered else { return event };
        match &mut event {
            Event::Step(step) => renumbered.apply(&mut step.step, &mut step.samples),
            Event::Skipped(skipped) => renumbered.apply(&mut skipped.step, &mut skipped.samples),
            _ => {}
        }
        event
    }

    /// Counts as another process of the command does, which resumes from a later checkpoint.
    pub(super) fn trust_numbers(&mut self) {
        self.renumbered = None;
    }

    /// Returns the news for a keeper that takes over.
    pub(super) fn known(&self) -> Option<&Resumed> {
        self.judged.as_ref().filter(|judged| judged.is_known())
    }
}

impl Harness {
    /// Takes in what the process had loaded before its first optimizer step.
    pub(super) fn observe_loads(&mut self, loaded: Loaded) {
        let Loaded { files, optimizer_steps, restored } = loaded;
        let check = &mut self.resume_check;
        if check.evidence.loads.is_some() || !check.is_open() {
            return;
        }
        let place = |path: PathBuf| path.canonicalize().unwrap_or(path);
        let files = files.into_iter().map(|file| (place(file.path), file.step));
        let files = files.map(|(file, holds)| Load { checkpoint: check.step_of(&file), holds, file }).collect();
        check.evidence.loads = Some(Loads { files, optimizer_steps, restored });
        self.settle_resume(true);
    }

    /// Takes in the step that a companion has restored. One that only watches steps does not know it.
    pub(super) fn observe_restored(&mut self, introduction: &Introduction) {
        if introduction.framework.sees_losses() && self.resume_check.is_open() {
            self.resume_check.evidence.told = Some(introduction.resumed_from.unwrap_or(0));
            self.settle_resume(true);
        }
    }

    /// Takes in a reading before it counts. Returns it with its step, if that has become certain: a script that starts from
    /// scratch counts from its beginning.
    pub(super) fn check_resume<'a>(&mut self, reading: &'a Reading, now: Duration) -> Cow<'a, Reading> {
        let mut own = Cow::Borrowed(reading);
        if self.resume_check.is_open() {
            self.resume_check.observe(reading, now);
            self.settle_resume(false);
            let known = self.resume_check.known().map(Resumed::step);
            if let (Some(0), Some(count)) = (known, reading.count_started_over) {
                own = Cow::Owned(Reading { step: Some(count), count_started_over: None, ..reading.clone() });
            }
        }
        if !progress::is_eval(reading) {
            self.learn_own_count(reading);
        }
        self.resume_check.lay_behind(own)
    }

    /// Judges before a step is sent: what counts again depends on it.
    pub(super) fn settle_before(&mut self, event: &Event) {
        if matches!(event, Event::Step(_) | Event::Skipped(_)) {
            self.settle_resume(true);
            self.resume_check.has_stepped = true;
        }
    }

    /// Judges what was seen: at once, or as soon as nothing more is expected.
    pub(super) fn settle_resume(&mut self, at_once: bool) {
        let check = &mut self.resume_check;
        let now = self.began.elapsed();
        if !check.is_open() || !at_once && !check.is_ready(now) {
            return;
        }
        let resumed = judge(&check.evidence);
        // A script may print its first line before the update by which its companion knows more.
        let may_follow = !at_once && !resumed.is_known() && !check.has_waited(now);
        if may_follow || check.judged.as_ref() == Some(&resumed) {
            return;
        }
        check.judged = Some(resumed.clone());
        let samples = self.go_on_from(&resumed);
        self.link.send(&Event::Command { news: CommandNews::Resumed { resumed, samples } });
    }

    /// Counts from the step at which the command trains on. Returns the run's clock there.
    fn go_on_from(&mut self, resumed: &Resumed) -> u64 {
        let (asked, step) = (resumed.asked(), resumed.step());
        let samples = if step == 0 { 0 } else { self.progress.samples(step) };
        if step == asked || self.resume_check.has_stepped {
            return samples;
        }
        let observes = |introduction: &Introduction| !introduction.framework.sees_losses();
        if self.companion.introduced().is_some_and(observes) {
            let (from, to) = ((asked, self.hello.position.samples), (step, samples));
            self.resume_check.renumbered = Some(Renumbered { from, to });
        }
        if self.resume_check.count.restarts() {
            let is_rest = |total: u64| self.resume_check.count.total_on_clock(total.saturating_sub(asked), step);
            let known = self.resume_check.known_length.map(|length| self.resume_check.total_on_clock(length));
            self.progress.total = known.or(self.progress.total.map(is_rest));
        }
        self.hello.resumed_from = Some(step).filter(|step| *step > 0);
        self.hello.position.samples = samples;
        self.progress.go_on_from(step, samples);
        // A reader that placed its first count knows its place; another one begins with what is printed next.
        if matches!(self.resume_check.evidence.printed, Some(Printed::Uncertain(_))) {
            // The start has noted patterns that are invalid.
            let patterns = output_patterns(&self.args, &mut Vec::new());
            let learnt = recall_counting(&self.args.run_dir);
            self.reader = OutputReader::new(&patterns).resumed(step).recalling(learnt);
        }
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::{Renumbered, ResumeCheck};
    use crate::harness::progress::tests::step_event;
    use crate::log_metrics::Reading;
    use crate::protocol::resumed::{Evidence, Printed, Resumed};
    use crate::protocol::worker::Event;
    use std::path::Path;
    use std::time::Duration;

    fn open() -> ResumeCheck {
        ResumeCheck {
            evidence: Evidence { asked: 40, ..Evidence::default() },
            judged: Some(Resumed::Unverified { asked: 40, counts_from: None }),
            ..ResumeCheck::default()
        }
    }

    #[test]
    fn the_first_step_waits_a_moment_for_its_loss() {
        let at = Duration::from_millis;
        let reading = |step: Option<u64>, values: &[(&str, f64)]| {
            let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            Reading { step, values, ..Reading::default() }
        };
        let mut check = open();
        check.observe(&reading(Some(90), &[("val_loss", 3.0)]), at(50));
        assert_eq!(check.evidence.printed, None, "an evaluation of the checkpoint");
        check.observe(&reading(Some(0), &[]), at(60));
        check.observe(&reading(Some(41), &[]), at(100));
        check.observe(&reading(Some(42), &[("loss", f64::NAN)]), at(200));
        assert_eq!((check.evidence.printed, check.evidence.loss), (Some(Printed::Step(41)), None));
        assert!(!check.is_ready(at(1_000)) && check.is_ready(at(2_100)));
        check.observe(&reading(Some(43), &[("loss", 0.5)]), at(300));
        assert!(check.is_ready(at(300)) && check.evidence.loss == Some(0.5));
    }

    #[test]
    fn a_file_belongs_to_the_checkpoint_whose_folder_holds_it() {
        let checkpoints = vec![("/out/step-4".into(), 4), ("/out/step-40".into(), 40)];
        let check = ResumeCheck { checkpoints, ..open() };
        assert_eq!(check.step_of(Path::new("/out/step-40/model.pt")), Some(40));
        assert_eq!(check.step_of(Path::new("/out/step-40")), Some(40));
        assert_eq!(check.step_of(Path::new("/out/step-400")), None);
    }

    #[test]
    fn the_steps_of_a_companion_that_counts_from_the_checkpoint_are_put_right() {
        let check = ResumeCheck { renumbered: Some(Renumbered { from: (40, 40), to: (0, 0) }), ..open() };
        let Event::Step(step) = check.renumber(step_event(41)) else { panic!("a step") };
        assert_eq!((step.step, step.samples), (1, 1));
        let ahead = ResumeCheck { renumbered: Some(Renumbered { from: (40, 40), to: (60, 60) }), ..open() };
        let Event::Step(step) = ahead.renumber(step_event(41)) else { panic!("a step") };
        assert_eq!((step.step, step.samples), (61, 61));
    }
}
