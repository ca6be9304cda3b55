//! Finds in the store of a drill how the keeper recovered from each fault: which attempt the fault ended, and
//! which one followed.

use crate::cli::Failure;
use crate::protocol::cause::Cause;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::FailureClass;
use crate::store::reader::Reader;
use crate::store::run_dir::RunDir;
use crate::store::writer::AttemptRow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// A fault of the drill, and the expected response.
pub struct Exercise {
    /// Its name in the table.
    pub name: &'static str,
    /// The cause of the attempt's end, as the keeper judged it; none for the climb, which no fault causes.
    class: Option<FailureClass>,
    /// The next attempt's rung, compared with that of the attempt before it.
    rung: Ordering,
}

const fn fault(name: &'static str, class: FailureClass, rung: Ordering) -> Exercise {
    Exercise { name, class: Some(class), rung }
}

/// The faults, in order.
pub const FAULTS: [Exercise; 5] = [
    fault("out of device memory", FailureClass::DeviceOutOfMemory, Ordering::Greater),
    fault("burst of NaN losses", FailureClass::NonFinite, Ordering::Greater),
    fault("hang", FailureClass::Hang, Ordering::Equal),
    fault("kill -9", FailureClass::Killed, Ordering::Equal),
    fault("hot GPU", FailureClass::Overheating, Ordering::Equal),
];

/// The climb back to a faster rung.
pub const CLIMB: Exercise = Exercise { name: "climb back", class: None, rung: Ordering::Less };

/// The response to a fault.
pub struct Recovery {
    /// The reason for the next attempt, as a sentence.
    pub response: String,
    /// Time from the fault to the next attempt's first step; none if it took no step.
    pub took_ms: Option<i64>,
}

impl Recovery {
    /// Reports whether training continued.
    pub fn is_complete(&self) -> bool {
        self.took_ms.is_some()
    }
}

/// The traces of a drill in its store.
pub struct Tracks {
    attempts: Vec<AttemptRow>,
    causes: BTreeMap<u64, Cause>,
    /// Times of each attempt's first and last step.
    steps: BTreeMap<u64, (i64, i64)>,
    /// Times of the faults.
    faults: Vec<i64>,
}

impl Tracks {
    /// Reads the store; `heated_ms` is when the GPU got hot, which no worker reports.
    pub fn read(dir: &RunDir, heated_ms: Option<i64>) -> Result<Self, Failure> {
        let reader = Reader::open(dir)?;
        let mut steps: BTreeMap<u64, (i64, i64)> = BTreeMap::new();
        reader.each_step(|row| steps.entry(row.attempt).or_insert((row.time_ms, row.time_ms)).1 = row.time_ms)?;
        let journal = reader.journal(10_000)?;
        let injected = journal.iter().filter(|row| row.kind == JournalKind::Injected).map(|row| row.time_ms);
        let faults = injected.chain(heated_ms).collect();
        Ok(Self { attempts: reader.attempts()?, causes: reader.causes().into_iter().collect(), steps, faults })
    }

    /// Reports whether the run has recovered from the last fault, and climbed.
    pub fn are_complete(&self) -> bool {
        [&FAULTS[FAULTS.len() - 1], &CLIMB]
            .into_iter()
            .all(|it| self.find_recovery(it).is_some_and(|it| it.is_complete()))
    }

    /// Finds the attempt that the exercise ended, and the one that followed as expected.
    pub fn find_recovery(&self, exercise: &Exercise) -> Option<Recovery> {
        let class = |attempt: &AttemptRow| self.causes.get(&attempt.id).map(|cause| cause.class);
        let matches = |earlier: &AttemptRow, next: &AttemptRow| {
            class(earlier) == exercise.class && next.rung.cmp(&earlier.rung) == exercise.rung
        };
        let (earlier, next) =
            self.attempts.iter().zip(self.attempts.iter().skip(1)).find(|(earlier, next)| matches(earlier, next))?;
        let arrived = self.steps.get(&next.id).map(|(first, _)| *first);
        let took_ms = arrived.zip(self.begin(earlier)).map(|(arrived, began)| arrived - began);
        Some(Recovery { response: next.reason.clone(), took_ms })
    }

    /// Returns when the attempt's fault struck; without a fault, its last step.
    fn begin(&self, attempt: &AttemptRow) -> Option<i64> {
        let lived = attempt.started_ms..=attempt.ended_ms.unwrap_or(i64::MAX);
        let fault = self.faults.iter().copied().filter(|time_ms| lived.contains(time_ms)).max();
        fault.or_else(|| self.steps.get(&attempt.id).map(|(_, last)| *last))
    }
}

#[cfg(test)]
mod tests {
    use super::{CLIMB, FAULTS, Tracks};
    use crate::protocol::cause::Cause;
    use crate::protocol::worker::FailureClass;
    use crate::store::writer::AttemptRow;

    fn attempt(id: u64, rung: usize, lived: (i64, i64), reason: &str) -> AttemptRow {
        let (started_ms, ended_ms, reason) = (lived.0, Some(lived.1), reason.to_owned());
        AttemptRow { id, rung, reason, started_ms, ended_ms, ..AttemptRow::default() }
    }

    fn tracks() -> Tracks {
        Tracks {
            attempts: vec![
                attempt(1, 0, (0, 110), "begin"),
                attempt(2, 0, (120, 500), "restart after: killed by SIGKILL"),
                attempt(3, 1, (510, 900), "shift down: full → safe after: out of device memory"),
                attempt(4, 0, (910, 990), "climb: safe → full after 200 clean steps"),
            ],
            causes: [(1, FailureClass::Killed), (2, FailureClass::DeviceOutOfMemory)]
                .map(|(id, class)| (id, Cause::new(class, Vec::new())))
                .into(),
            steps: [(1, (10, 100)), (2, (400, 480)), (3, (700, 890)), (4, (980, 985))].into(),
            faults: vec![100, 480],
        }
    }

    #[test]
    fn a_recovery_is_timed_from_the_fault_to_the_first_new_step() {
        let found = |exercise| tracks().find_recovery(exercise).map(|found| (found.response, found.took_ms));
        let [memory, _, hang, kill, _] = &FAULTS;
        assert_eq!(found(kill), Some(("restart after: killed by SIGKILL".to_owned(), Some(300))));
        assert_eq!(found(memory).and_then(|(_, took)| took), Some(220));
        assert_eq!(found(&CLIMB).and_then(|(_, took)| took), Some(90), "from the last step: no fault caused it");
        assert_eq!(found(hang), None);
    }

    #[test]
    fn only_the_expected_response_with_a_new_step_is_a_recovery() {
        let mut other = tracks();
        other.attempts[1].rung = 1;
        assert!(other.find_recovery(&FAULTS[3]).is_none(), "a killed worker restarts on its rung");
        let mut stuck = tracks();
        stuck.steps.remove(&2);
        assert!(stuck.find_recovery(&FAULTS[3]).is_some_and(|found| !found.is_complete()));
    }
}
