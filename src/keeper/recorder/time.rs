//! Charges the passing time to the parts of the run's wall time.

use super::{Recorder, now_ms};
use crate::protocol::control::RunState;
use crate::protocol::time_spent::{Part, first_line_ms};
use std::collections::BTreeMap;
use std::time::Instant;

/// Longest time between two writes of the account to the store.
const WRITTEN_EVERY_MS: i64 = 10_000;

/// The time that has not been charged yet, and what may still turn out to be lost.
#[derive(Debug, Default)]
pub(super) struct Stopwatch {
    /// When time was last charged, and the part that passes since; none while the run is over.
    running: Option<(Instant, Part)>,
    /// Charges since the last step: if the worker hangs or dies, they were in vain.
    since_step: BTreeMap<Part, u64>,
    /// A worker ended unasked, and the next one has taken no step yet.
    is_recovering: bool,
    first_step: Option<FirstStep>,
    written_ms: i64,
}

/// The first step of a worker that told only by it that it trains: the step is charged to the start, until the next one shows
/// how long a step takes.
#[derive(Debug)]
struct FirstStep {
    step: u64,
    start_ms: u64,
    was_recovering: bool,
}

impl Recorder {
    /// Charges the time since an earlier keeper: of a pause as such; none of a run that had ended.
    pub(super) fn account_for_gap(&mut self) {
        let as_of = std::mem::replace(&mut self.status.time.as_of_ms, now_ms());
        let part = match self.status.state {
            RunState::Paused => Some(Part::Paused),
            state => Part::of(state).map(|_| Part::Other),
        };
        if let Some(part) = part.filter(|part| as_of > 0 && self.counts(*part)) {
            self.status.time.charge(part, now_ms().saturating_sub(as_of).max(0).unsigned_abs());
        }
    }

    /// Charges the time that has passed to the part that it was spent in; `state` is spent from now on.
    pub fn account(&mut self, state: RunState) {
        self.charge_passed();
        let part = Part::of(state).filter(|part| self.counts(*part));
        self.stopwatch.running = part.map(|part| (Instant::now(), part));
        let now = now_ms();
        self.status.time.as_of_ms = now;
        if now - self.stopwatch.written_ms >= WRITTEN_EVERY_MS {
            self.stopwatch.written_ms = now;
            self.dirty = true;
        }
    }

    /// Reports whether time counts: a run that waits in the queue for its first start costs nothing.
    fn counts(&self, part: Part) -> bool {
        self.status.attempts > 0 || !matches!(part, Part::Card | Part::Paused | Part::Other)
    }

    fn charge_passed(&mut self) {
        let Some((since, part)) = &mut self.stopwatch.running else { return };
        let ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(0);
        // The rest of a millisecond counts the next time.
        *since += std::time::Duration::from_millis(ms);
        let part = *part;
        self.status.time.charge(part, ms);
        *self.stopwatch.since_step.entry(part).or_default() += ms;
        if self.stopwatch.is_recovering && !matches!(part, Part::Paused | Part::Card) {
            self.status.time.lost_to_faults_ms += ms;
        }
    }

    /// Notes the start of a worker.
    pub(super) fn account_for_attempt(&mut self) {
        self.charge_passed();
        self.stopwatch.since_step.clear();
        self.stopwatch.first_step = None;
    }

    /// Notes a step: the time before it was not in vain.
    pub(super) fn account_for_step(&mut self, step: u64) {
        self.charge_passed();
        let since = std::mem::take(&mut self.stopwatch.since_step);
        let was_recovering = std::mem::take(&mut self.stopwatch.is_recovering);
        let ms = |part| since.get(&part).copied().unwrap_or(0);
        match self.stopwatch.first_step.take() {
            Some(first) => self.move_first_step(&first, step, ms(Part::Steps)),
            None if ms(Part::Start) > 0 && ms(Part::Steps) == 0 => {
                self.stopwatch.first_step = Some(FirstStep { step, start_ms: ms(Part::Start), was_recovering });
            }
            None => {}
        }
    }

    /// Moves the time of a worker's first step from its start to the steps. The next one tells how long it took.
    fn move_first_step(&mut self, first: &FirstStep, next: u64, next_ms: u64) {
        let took = first_line_ms(first.step, next, next_ms as f64).round() as u64;
        let moved = self.status.time.transfer(Part::Start, Part::Steps, took.min(first.start_ms));
        if first.was_recovering {
            self.status.time.lost_to_faults_ms = self.status.time.lost_to_faults_ms.saturating_sub(moved);
        }
    }

    /// Notes that the worker has hung since its last step.
    pub fn account_for_hang(&mut self) {
        // Once it is being ended, that is known already.
        if matches!(self.stopwatch.running, Some((_, Part::Stop))) {
            return;
        }
        self.charge_passed();
        for (part, ms) in std::mem::take(&mut self.stopwatch.since_step) {
            let lost = self.status.time.transfer(part, Part::Hung, ms);
            self.status.time.lost_to_faults_ms += lost;
        }
    }

    /// Notes that the worker ended unasked: the step that it was taking is taken again.
    pub(super) fn account_for_fault(&mut self) {
        self.charge_passed();
        let tail = std::mem::take(&mut self.stopwatch.since_step);
        let lost = tail.get(&Part::Steps).map_or(0, |ms| self.status.time.transfer(Part::Steps, Part::Repeated, *ms));
        self.status.time.lost_to_faults_ms += lost;
        self.status.time.faults += 1;
        self.stopwatch.is_recovering = true;
    }

    /// Moves the time of the steps after `after` to those that are taken again.
    pub(super) fn account_for_repeated(&mut self, after: u64, until: u64) {
        if until <= after {
            return;
        }
        // The rows of the lost steps may not be in the store yet.
        self.persist();
        let ms = self.read_store(|store| store.time_of_steps(after, until)).unwrap_or(0.0);
        let lost = self.status.time.transfer(Part::Steps, Part::Repeated, ms.round() as u64);
        if self.stopwatch.is_recovering {
            self.status.time.lost_to_faults_ms += lost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Recorder;
    use crate::protocol::blank;
    use crate::protocol::control::RunState;
    use crate::protocol::time_spent::{Part, TimeSpent};
    use crate::protocol::worker::{Event, Step};
    use crate::store::writer::Writer;
    use std::path::Path;
    use std::time::Duration;

    fn recorder(dir: &Path) -> Recorder {
        Recorder::new(Writer::open(&dir.join("run.db")).unwrap(), blank::status()).unwrap()
    }

    fn step(recorder: &mut Recorder, step: u64, time_ms: i64) {
        let step = Step { step, samples: step, loss: Some(1.0), time_ms: Some(time_ms), ..Step::default() };
        recorder.record_event(&Event::Step(step), Duration::ZERO);
    }

    /// Pretends that this much time has passed.
    fn pass(recorder: &mut Recorder, ms: u64) {
        let (since, _) = recorder.stopwatch.running.as_mut().unwrap();
        *since = since.checked_sub(Duration::from_millis(ms)).unwrap();
    }

    /// Compares up to the milliseconds that the test itself takes.
    fn near(time: &TimeSpent, part: Part, ms: u64) {
        let is = time.ms(part);
        assert!((ms..ms + 1_000).contains(&is), "{part:?}: {is} instead of {ms}: {time:?}");
    }

    #[test]
    fn a_fault_costs_its_lost_steps_and_the_way_to_the_next_one() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut recorder = recorder(dir.path());
        recorder.account(RunState::Starting);
        recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        pass(&mut recorder, 5_000);
        recorder.account(RunState::Training);
        pass(&mut recorder, 100_000);
        for number in 0..=10 {
            step(&mut recorder, number, i64::try_from(number).unwrap() * 10_000);
        }
        // It dies 4 s into step 11, and the next worker goes on from step 8.
        pass(&mut recorder, 4_000);
        recorder.record_exit("killed by SIGKILL", true);
        recorder.account(RunState::BackingOff);
        pass(&mut recorder, 7_000);
        recorder.account(RunState::Starting);
        recorder.begin_attempt(0, "full", "restart", Duration::ZERO).unwrap();
        recorder.take_back(8);
        recorder.status.step = 8;
        pass(&mut recorder, 3_000);
        recorder.account(RunState::Training);
        step(&mut recorder, 9, 200_000);
        let time = recorder.status.time.clone();
        near(&time, Part::Start, 8_000);
        near(&time, Part::BackOff, 7_000);
        near(&time, Part::Repeated, 24_000);
        near(&time, Part::Steps, 80_000);
        assert_eq!(time.faults, 1);
        assert!((34_000..36_000).contains(&time.lost_to_faults_ms), "{time:?}");
        assert_eq!(time.ms(Part::Other), 0);
    }

    #[test]
    fn the_first_step_of_a_script_belongs_to_its_steps() {
        // The step numbers of its first two lines; start with the first step, then 3 s to the second; the steps' share.
        for (lines, start, steps) in [([1, 2], 4_000, 6_000), ([10, 20], 4_000, 6_000), ([1, 2], 2_000, 5_000)] {
            let dir = tempfile::TempDir::new().unwrap();
            let mut recorder = recorder(dir.path());
            recorder.account(RunState::Starting);
            recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
            pass(&mut recorder, start);
            step(&mut recorder, lines[0], 4_000);
            recorder.account(RunState::Training);
            pass(&mut recorder, 3_000);
            step(&mut recorder, lines[1], 7_000);
            near(&recorder.status.time, Part::Steps, steps);
            near(&recorder.status.time, Part::Start, start + 3_000 - steps);
        }
    }

    #[test]
    fn steps_that_a_script_takes_again_from_its_beginning_are_lost_to_the_fault() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut recorder = recorder(dir.path());
        recorder.account(RunState::Training);
        recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        pass(&mut recorder, 60_000);
        (1..=6).for_each(|number| step(&mut recorder, number, i64::try_from(number).unwrap() * 10_000));
        recorder.record_exit("killed by SIGKILL", true);
        recorder.begin_attempt(0, "full", "restart", Duration::ZERO).unwrap();
        recorder.before_first_step = Some(6);
        step(&mut recorder, 1, 80_000);
        near(&recorder.status.time, Part::Repeated, 60_000);
        let lost = recorder.status.time.lost_to_faults_ms;
        assert!((60_000..61_000).contains(&lost), "{lost}");
    }

    #[test]
    fn the_queue_before_the_first_start_costs_nothing() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut recorder = recorder(dir.path());
        recorder.status.attempts = 0;
        for state in [RunState::AwaitingCard, RunState::Paused] {
            recorder.account(state);
            assert!(recorder.stopwatch.running.is_none(), "{state:?}");
        }
        recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        recorder.account(RunState::AwaitingCard);
        pass(&mut recorder, 9_000);
        recorder.account(RunState::Training);
        near(&recorder.status.time, Part::Card, 9_000);
    }

    #[test]
    fn a_hang_and_the_night_without_a_keeper_are_told_from_steps() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut first = recorder(dir.path());
        first.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        first.account(RunState::Training);
        pass(&mut first, 20_000);
        step(&mut first, 1, 0);
        pass(&mut first, 60_000);
        first.account_for_hang();
        near(&first.status.time, Part::Steps, 20_000);
        near(&first.status.time, Part::Hung, 60_000);
        first.account(RunState::Training);
        first.status.time.as_of_ms -= 30_000;
        first.mark_changed();
        first.flush();
        let second = recorder(dir.path());
        near(&second.status.time, Part::Other, 30_000);
        let before = first.status.time.wall_ms();
        assert!(second.status.time.wall_ms() >= before + 30_000);
        // A run that had ended does not count the days until it is resumed.
        first.status.state = RunState::Stopped;
        first.mark_changed();
        first.flush();
        near(&recorder(dir.path()).status.time, Part::Other, 0);
    }
}
