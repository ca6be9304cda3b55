//! The failures of a run, as facts, and rules over them: has the newest one come back?
//!
//! | rule | the same failure | then the run |
//! |---|---|---|
//! | `comes_back` | an exception, or a cause that may pass, at the same step | ends |
//! | `is_one_problem` | a hang or a crash, a few steps away | uses a rung that relieves it |
//! | `stays_nan` | NaN on the same rung, no finite loss since | ends |
//! | `blames_checkpoint` | the same end, soon after the same checkpoint | goes one checkpoint back |
//! | `blameless` | the same end, after an older checkpoint too | puts the checkpoints back at its end |
//! | `may_blame_data` | the same end at the same step | skips the data of the step |
//! | `has_jumped_near` | a jump of the loss, near the same step | uses a rung that relieves it |
//! | `count` | the host ran out of memory | loads data sparingly |

use super::fault::Fault;
use super::machine::Policy;
use crate::faults;
use crate::faults::response::Response;
use crate::protocol::worker::FailureClass;
use serde::{Deserialize, Serialize};

/// Failures of one class that are kept.
const EACH: usize = 8;
/// A failure within this many steps after a load may be the checkpoint's fault: one that verifies can hold bad state.
const NEAR: u64 = 20;
/// Two hangs or crashes within this many steps count as one problem.
const ONE_PROBLEM: u64 = 2000;

/// A failure of a worker, or a jump of the loss that a rollback answered without skipping data.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// Its class.
    pub class: FailureClass,
    /// Xid number.
    pub xid: Option<u32>,
    /// Key that identifies equal ends; none for those that say nothing about the loaded checkpoint.
    pub kind: Option<String>,
    /// The text of an exception.
    pub text: Option<String>,
    /// It may be transient.
    pub may_pass: bool,
    /// The rung.
    pub rung: usize,
    /// The newest step; 0 before the first.
    pub step: u64,
    /// The checkpoint that the worker had loaded.
    pub loaded: Option<u64>,
    /// The newest checkpoint.
    pub durable: Option<u64>,
    /// A loss was finite since.
    pub has_progress: bool,
    /// How the next worker differs.
    pub answer: Option<Answer>,
}

/// A difference in how the next worker runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It loads an older checkpoint.
    GoesBack,
    /// It skips the data of the step.
    SkipsData,
}

impl Failure {
    /// Reports whether data may have caused both failures: the process ended in the same way at the same step.
    fn shares_data(&self, other: &Self) -> bool {
        let may_be_data = matches!(self.class, FailureClass::Panic | FailureClass::Crash | FailureClass::Unknown);
        let is_same = self.kind == other.kind && (self.class, self.step) == (other.class, other.step);
        may_be_data && is_same && self.kind.is_some()
    }

    /// Reports whether the worker failed soon after it had loaded a checkpoint.
    fn is_soon(&self) -> bool {
        self.loaded.is_some_and(|loaded| self.step.saturating_sub(loaded) <= NEAR)
    }
}

/// The failures of a run, oldest first. Stored, so that they survive the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Failures {
    failures: Vec<Failure>,
}

/// The failures, and facts of an earlier version. Those that are not read cost one restart at most.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Stored {
    failures: Vec<Failure>,
    lean: bool,
    #[serde(alias = "hung_at")]
    restarted_at: Option<u64>,
    jumped_at: Option<u64>,
}

impl From<Stored> for Failures {
    fn from(Stored { failures, lean, restarted_at, jumped_at }: Stored) -> Self {
        let of = |class, step| Failure { class, step, ..Failure::default() };
        let lean = lean.then(|| of(FailureClass::HostOutOfMemory, 0));
        let restarted = restarted_at.map(|step| of(FailureClass::Hang, step));
        let jumped = jumped_at.map(|step| of(FailureClass::LossSpike, step));
        Self { failures: lean.into_iter().chain(restarted).chain(jumped).chain(failures).collect() }
    }
}

impl Failures {
    fn record(&mut self, failure: Failure) {
        if self.count(failure.class) == EACH {
            let oldest = self.failures.iter().position(|old| old.class == failure.class);
            oldest.map(|index| self.failures.remove(index));
        }
        self.failures.push(failure);
    }

    /// Records a finite loss.
    pub fn record_progress(&mut self) {
        self.failures.iter_mut().for_each(|failure| failure.has_progress = true);
    }

    /// Forgets the newest failures, of a rung that cannot start: they say nothing about the rung that the run goes back to.
    pub fn forget_trial(&mut self) {
        let Some((rung, step)) = self.failures.last().map(|newest| (newest.rung, newest.step)) else { return };
        // A host that ran out of memory is as small on any rung.
        let is_kept = |failure: &Failure| failure.class == FailureClass::HostOutOfMemory;
        self.failures.retain(|failure| (failure.rung, failure.step) != (rung, step) || is_kept(failure));
    }

    /// Returns the number of failures of a class that are kept.
    #[must_use]
    pub fn count(&self, class: FailureClass) -> usize {
        self.failures.iter().filter(|failure| failure.class == class).count()
    }

    /// Returns the failures of workers, newest first.
    pub(super) fn of_workers(&self) -> impl Iterator<Item = &Failure> {
        self.failures.iter().rev().filter(|failure| failure.class != FailureClass::LossSpike)
    }

    /// Returns the failures that may be the checkpoint's fault, newest first.
    fn with_kind(&self) -> impl Iterator<Item = &Failure> {
        self.of_workers().filter(|failure| failure.kind.is_some())
    }

    /// Reports whether an exception, or a cause that may pass, ended two workers in a row at one step. An exception, and a
    /// checkpoint that cannot be read, must also come back after another checkpoint, or after there was none to go back to: the
    /// one that was loaded may be to blame.
    pub(super) fn comes_back(&self) -> bool {
        let [now, before] = self.of_workers().take(2).collect::<Vec<_>>()[..] else { return false };
        let is_same = match now.class {
            FailureClass::Exception => now.text == before.text,
            _ => now.may_pass && before.may_pass,
        };
        let is_at_begin = now.step == 0 && now.loaded.is_none();
        let has_no_other = before.answer == Some(Answer::GoesBack);
        let is_certain = match now.class {
            FailureClass::Exception | FailureClass::Checkpoint => {
                is_at_begin || now.loaded != before.loaded || has_no_other
            }
            _ => now.durable <= before.durable,
        };
        is_same && is_certain && (now.class, now.step) == (before.class, before.step)
    }

    /// Reports whether a failure that a restart answers the first time came shortly before this step, too.
    pub(super) fn is_one_problem(&self, step: u64) -> bool {
        let response = |failure: &Failure| faults::response(failure.class, failure.xid, None);
        let mut retried =
            self.of_workers().skip(1).filter(|failure| matches!(response(failure), Response::AgainThen(_)));
        retried.next().is_some_and(|before| step.abs_diff(before.step) < ONE_PROBLEM)
    }

    /// Reports whether NaN ended two workers in a row on one rung, and no loss was finite in between. Soon after a load, the
    /// checkpoint may be the cause, and an older one helps.
    pub(super) fn stays_nan(&self) -> bool {
        let [now, before] = self.of_workers().take(2).collect::<Vec<_>>()[..] else { return false };
        let is_nan = [now, before].iter().all(|failure| failure.class == FailureClass::NonFinite);
        is_nan && now.rung == before.rung && !before.has_progress && !now.is_soon()
    }

    /// Reports whether two workers in a row failed in the same way, soon after they had loaded the same checkpoint. Ends from
    /// outside in between do not count.
    pub(super) fn blames_checkpoint(&self) -> bool {
        let newest = self.of_workers().next().filter(|newest| newest.kind.is_some());
        newest.zip(self.with_kind().nth(1)).is_some_and(|(now, before)| {
            let is_same = (&now.kind, now.loaded) == (&before.kind, before.loaded);
            is_same && now.is_soon() && before.is_soon() && before.answer != Some(Answer::GoesBack)
        })
    }

    /// Notes how the newest failure is answered.
    pub(super) fn answer_newest(&mut self, answer: Answer) {
        self.failures.last_mut().into_iter().for_each(|failure| failure.answer = Some(answer));
    }

    /// Returns the checkpoints that the run went back from in vain: a worker that had loaded another one failed in the same
    /// way. Empty once training is past them.
    pub(super) fn blameless(&self) -> Vec<u64> {
        let Some(now) = self.with_kind().next() else { return Vec::new() };
        let is_near = |failure: &Failure| now.step <= failure.loaded.unwrap_or(0) + NEAR;
        let is_suspect = |failure: &&Failure| failure.answer == Some(Answer::GoesBack) && is_near(failure);
        let alike = self.failures.iter().filter(|failure| failure.kind == now.kind);
        let since: Vec<_> = alike.skip_while(|failure| !is_suspect(failure)).collect();
        if since.iter().all(|failure| failure.loaded == since[0].loaded) {
            return Vec::new();
        }
        let durable = self.failures.last().and_then(|newest| newest.durable);
        let suspects = since.into_iter().filter(is_suspect).filter_map(|failure| failure.loaded);
        suspects.filter(|step| Some(*step) > durable).collect()
    }

    /// Reports whether the newest failure came at the same step before, and the data of that step is not skipped yet.
    pub(super) fn may_blame_data(&self) -> bool {
        let Some(now) = self.of_workers().next() else { return false };
        let same: Vec<_> = self.of_workers().skip(1).filter(|before| now.shares_data(before)).collect();
        !same.is_empty() && same.iter().all(|before| before.answer != Some(Answer::SkipsData))
    }

    /// Reports whether the loss jumped at most this many steps away, when it last did.
    pub(super) fn has_jumped_near(&self, step: u64, near: u64) -> bool {
        let last = self.failures.iter().rev().find(|failure| failure.class == FailureClass::LossSpike);
        last.is_some_and(|last| last.step.abs_diff(step) <= near)
    }
}

impl Policy {
    /// Records a failure of the newest worker, or a jump of its loss.
    pub(super) fn record_failure(&mut self, fault: &Fault, step: u64) {
        self.ledger.failures.record(Failure {
            class: fault.class,
            xid: fault.xid,
            kind: fault.kind.clone(),
            text: (fault.class == FailureClass::Exception).then(|| fault.text.clone()),
            may_pass: fault.may_pass,
            rung: self.worker.rung,
            step,
            loaded: self.position.loaded,
            durable: self.position.durable,
            ..Failure::default()
        });
    }
}

/// Returns the response to a cause that may pass: one restart, before the response of its class.
pub(super) fn response_in_time(response: Response, fault: &Fault, comes_back: bool) -> Response {
    if response.ends_run() && fault.may_pass && !comes_back { Response::Again } else { response }
}

#[cfg(test)]
mod tests {
    use super::{Answer, EACH, Failure, Failures, response_in_time};
    use crate::faults::response;
    use crate::policy::fault::Fault;
    use crate::policy::ledger::Ledger;
    use crate::protocol::worker::FailureClass;

    fn failure(class: FailureClass, step: u64) -> Failure {
        Failure { class, step, ..Failure::default() }
    }

    #[test]
    fn the_newest_failures_of_each_class_are_kept() {
        let mut failures = Failures::default();
        failures.record(failure(FailureClass::HostOutOfMemory, 1));
        (0..100).for_each(|step| failures.record(failure(FailureClass::Hang, step)));
        assert_eq!((failures.count(FailureClass::HostOutOfMemory), failures.count(FailureClass::Hang)), (1, EACH));
        assert!(failures.is_one_problem(98 + 1999) && !failures.is_one_problem(98 + 2000), "the newest is another one");
    }

    #[test]
    fn the_ledger_of_an_earlier_version_loads_with_its_facts() {
        let old = r#"{"hung_at": 7, "raised_at": {"text": "x", "step": 1, "loaded": null}, "lean": true, "jumped_at": 90,
            "poison": [3, "signal 11"], "ended_in_nan": true, "left_out": 5, "unusable": {"1": "exit code 2"}}"#;
        let mut ledger: Ledger = serde_json::from_str(old).unwrap();
        assert!(ledger.is_lean() && ledger.unusable.contains_key(&1) && ledger.failures.has_jumped_near(95, 5));
        ledger.failures.record(failure(FailureClass::Hang, 9));
        assert!(ledger.failures.is_one_problem(9));
        let stored = serde_json::to_string(&ledger).unwrap();
        assert_eq!(serde_json::from_str::<Ledger>(&stored).unwrap(), ledger, "it survives the keeper");
    }

    /// Records a failure. Returns whether the run goes one checkpoint back.
    fn goes_back(failures: &mut Failures, loaded: Option<u64>, step: u64, kind: Option<&str>) -> bool {
        let kind = kind.map(str::to_owned);
        failures.record(Failure { loaded, kind, durable: Some(10), ..failure(FailureClass::Panic, step) });
        let is_blamed = failures.blames_checkpoint();
        if is_blamed {
            failures.answer_newest(Answer::GoesBack);
        }
        is_blamed
    }

    #[test]
    fn checkpoints_that_failed_like_an_older_one_are_innocent() {
        /// A name, the failures (loaded, step, kind), and the innocent checkpoints.
        type Case = (&'static str, &'static [(u64, u64, &'static str)], &'static [u64]);
        let table: [Case; 7] = [
            ("only one failed", &[(100, 101, "x"), (100, 101, "x")], &[]),
            ("the older one failed alike", &[(100, 101, "x"), (100, 101, "x"), (50, 51, "x")], &[100]),
            ("both failed twice", &[(100, 101, "x"), (100, 101, "x"), (50, 51, "x"), (50, 51, "x")], &[100, 50]),
            ("the older one failed in another way", &[(100, 101, "x"), (100, 101, "x"), (50, 51, "y")], &[]),
            ("the older one failed further on", &[(100, 101, "x"), (100, 101, "x"), (50, 101, "x")], &[100]),
            ("the older one trained past it", &[(100, 101, "x"), (100, 101, "x"), (50, 121, "x")], &[]),
            (
                "a later one fails",
                &[(100, 101, "x"), (100, 101, "x"), (50, 190, "x"), (180, 181, "x"), (180, 181, "x")],
                &[],
            ),
        ];
        for (name, faults, wanted) in table {
            let mut failures = Failures::default();
            for (loaded, step, kind) in faults {
                goes_back(&mut failures, Some(*loaded), *step, Some(kind));
            }
            assert_eq!(failures.blameless(), wanted, "{name}");
            failures.failures.last_mut().unwrap().durable = Some(1000);
            assert_eq!(failures.blameless(), [0; 0], "{name}: training is beyond them");
        }
    }

    #[test]
    fn the_same_failure_twice_just_after_the_same_load_goes_back() {
        let at = |loaded, step, kind| (Some(loaded), step, Some(kind));
        let outside = (Some(100), 105, None);
        let table = [
            ("once", vec![at(100, 105, "panic")], false),
            ("twice", vec![at(100, 105, "panic"), at(100, 101, "panic")], true),
            ("at the very load", vec![at(100, 100, "panic"), at(100, 100, "panic")], true),
            ("at the edge", vec![at(100, 120, "panic"), at(100, 120, "panic")], true),
            ("beyond it", vec![at(100, 121, "panic"), at(100, 121, "panic")], false),
            ("another failure", vec![at(100, 105, "panic"), at(100, 105, "device fault")], false),
            ("another checkpoint", vec![at(100, 105, "panic"), at(104, 105, "panic")], false),
            ("progress in between", vec![at(100, 105, "panic"), at(100, 300, "panic"), at(100, 105, "panic")], false),
            ("killed from outside", vec![outside, outside, outside], false),
            ("a kill in between", vec![at(100, 105, "panic"), outside, at(100, 105, "panic")], true),
            ("a kill after it", vec![at(100, 105, "panic"), at(100, 105, "panic"), outside], false),
            ("nothing was loaded", vec![(None, 5, Some("panic")), (None, 5, Some("panic"))], false),
            ("after going back", vec![at(100, 101, "x"), at(100, 101, "x"), at(50, 51, "x")], false),
            ("and back again", vec![at(100, 101, "x"), at(100, 101, "x"), at(50, 51, "x"), at(50, 51, "x")], true),
        ];
        for (name, faults, wanted) in table {
            let mut failures = Failures::default();
            let went_back =
                faults.into_iter().map(|(loaded, step, kind)| goes_back(&mut failures, loaded, step, kind)).last();
            assert_eq!(went_back, Some(wanted), "{name}");
        }
    }

    #[test]
    fn every_class_that_ends_a_run_does_so_at_once_unless_it_may_pass() {
        use FailureClass::{Checkpoint, Config, Data, DiskFull, Driver, GpuLost};
        for class in FailureClass::ALL {
            let answer = response(class, None, None);
            let ends = |may_pass: bool, comes_back: bool| {
                let fault = Fault { may_pass, ..Fault::new(class, "x") };
                response_in_time(answer, &fault, comes_back).ends_run()
            };
            let is_final = matches!(class, Checkpoint | Config | Data | DiskFull | Driver | GpuLost);
            assert_eq!(ends(false, false), is_final, "{class}: at its first occurrence");
            assert!(!ends(true, false), "{class}: if it may pass");
            assert_eq!(ends(true, true), is_final, "{class}: once it comes back");
        }
    }
}
