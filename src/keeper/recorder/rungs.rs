//! The record of each rung: its share of the curve, and its speed.

use super::Recorder;
use crate::protocol::control::RungRecord;
use crate::protocol::progress::began_after;

/// Steps in a row on one rung.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    rung: usize,
    steps: u64,
}

impl Recorder {
    pub(super) fn measure_rung(&mut self, taken: u64) {
        let rung = self.attempt.rung;
        match self.stretches.last_mut().filter(|last| last.rung == rung) {
            Some(last) => last.steps += taken,
            None => self.stretches.push(Stretch { rung, steps: taken }),
        }
        if let Some(record) = self.status.rungs.get_mut(rung) {
            record.steps += taken;
            if let Some(pace) = self.attempt.pace() {
                (record.steps_per_s, record.units_per_s) = (Some(pace.steps_per_s), Some(pace.units_per_s));
            }
        }
    }

    /// Takes back the steps beyond the one from which the run trains on, so that the rungs together have as many as the
    /// run: those steps are taken again.
    pub(super) fn take_back(&mut self, step: u64) {
        let before = self.before_first_step.take().unwrap_or(self.status.step);
        self.take_back_from(before, step);
    }

    /// Takes back steps at the first step of an attempt that did not say where it begins, or did not prove it.
    pub(super) fn place(&mut self, first: u64) {
        let Some(before) = self.before_first_step.take() else { return };
        let asked = self.row.from_step.filter(|asked| *asked > 0);
        let began = asked.unwrap_or_else(|| self.step_before(first));
        self.take_back_from(before, began);
        if began > 0 && asked.is_none() {
            self.row.from_step = Some(began);
            self.put_attempt();
        }
    }

    /// Returns the step after which a script began that says only its first one: a script that resumes by itself goes on behind a
    /// step that an earlier attempt printed.
    fn step_before(&mut self, first: u64) -> u64 {
        self.persist();
        let printed = self.read_store(|store| store.step_before(first)).ok().flatten();
        printed.unwrap_or(0).max(began_after(first))
    }

    pub(super) fn take_back_from(&mut self, before: u64, step: u64) {
        let back = before.saturating_sub(step);
        self.account_for_repeated(step, before);
        take_back(&mut self.status.rungs, &mut self.stretches, back);
    }
}

/// Takes back steps: those of the newest stretch first. An earlier keeper's stretches are not known; its steps count as
/// those of the rung with the most.
fn take_back(rungs: &mut [RungRecord], stretches: &mut Vec<Stretch>, mut back: u64) {
    while back > 0 {
        let newest = stretches.pop();
        let most = || rungs.iter().enumerate().max_by_key(|(_, record)| record.steps).map(|(rung, _)| rung);
        let Some(rung) = newest.map(|stretch| stretch.rung).or_else(most) else { return };
        let Some(record) = rungs.get_mut(rung) else { continue };
        let steps = newest.map_or(record.steps, |stretch| stretch.steps);
        let less = steps.min(back).min(record.steps);
        record.steps -= less;
        match newest.filter(|stretch| stretch.steps > back) {
            Some(stretch) => {
                stretches.push(Stretch { steps: stretch.steps - back, ..stretch });
                return;
            }
            // Nothing is left to take back.
            None if newest.is_none() && less == 0 => return,
            None => back -= steps.min(back),
        }
    }
}

/// Returns the steps that were taken since the last known one: a command may print only every tenth, or one of them twice.
pub(super) fn steps_taken(last: u64, step: u64) -> u64 {
    let last = if last == 0 { began_after(step) } else { last };
    step.saturating_sub(last)
}

#[cfg(test)]
mod tests {
    use super::{Stretch, steps_taken, take_back};
    use crate::keeper::recorder::Recorder;
    use crate::keeper::status_snapshot::blank_record;
    use crate::protocol::blank;
    use crate::protocol::worker::{CommandNews, Event, Step};
    use crate::recipe::batch::Position;
    use crate::store::writer::Writer;
    use serde_json::json;
    use std::ops::RangeInclusive;
    use std::time::Duration;

    fn hello(resumed_from: Option<u64>) -> Event {
        Event::Hello(
            serde_json::from_value(json!({
                "protocol": 1, "build": "", "pid": 1, "device": "cpu", "backend": "command", "parameters": 0,
                "resumed_from": resumed_from, "position": Position::default(), "epoch_units": 0, "total_units": 0,
                "total_steps": 0, "unit": "samples",
            }))
            .unwrap(),
        )
    }

    fn begun() -> (tempfile::TempDir, Recorder) {
        let dir = tempfile::TempDir::new().unwrap();
        let mut status = blank::status();
        status.rungs = vec![blank_record("full")];
        let mut recorder = Recorder::new(Writer::open(&dir.path().join("run.db")).unwrap(), status).unwrap();
        recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        (dir, recorder)
    }

    #[test]
    fn the_loss_of_a_step_that_is_taken_again_is_not_shown_beside_the_step_resumed_from() {
        let (_dir, mut recorder) = begun();
        let mut shown = |event: Event| {
            recorder.persist();
            recorder.record_event(&event, Duration::ZERO);
            (recorder.status.step, recorder.status.loss)
        };
        let step =
            |step: u64| Event::Step(Step { step, samples: step, loss: Some(1.0 / step as f64), ..Step::default() });
        let loss = |step: u64| Some(1.0 / step as f64);
        assert_eq!(shown(step(5)), (5, loss(5)));
        assert_eq!(shown(step(10)), (10, loss(10)));
        assert_eq!(shown(hello(Some(10))), (10, loss(10)), "nothing is taken again");
        assert_eq!(shown(hello(Some(7))), (7, loss(5)), "the newest loss up to that step");
        assert_eq!(shown(step(8)), (8, loss(8)));
        assert_eq!(shown(hello(Some(3))), (3, None));
    }

    #[test]
    fn lines_that_leave_out_steps_count_them_and_an_adopted_training_counts_its_own() {
        let cases = [(0, 1, 1), (0, 10, 10), (10, 20, 10), (20, 20, 0), (0, 12_000, 1), (12_000, 12_010, 10)];
        for (last, step, taken) in cases {
            assert_eq!(steps_taken(last, step), taken, "{last} to {step}");
        }
    }

    #[test]
    fn redone_steps_count_once_on_the_rung_that_took_them() {
        let stretch = |(rung, steps): &(usize, u64)| Stretch { rung: *rung, steps: *steps };
        let rest = |known: &[(usize, u64)], steps: [u64; 2], back: u64| {
            let mut rungs: Vec<_> = steps
                .iter()
                .map(|steps| {
                    let mut record = blank_record("rung");
                    record.steps = *steps;
                    record
                })
                .collect();
            let mut stretches: Vec<Stretch> = known.iter().map(stretch).collect();
            take_back(&mut rungs, &mut stretches, back);
            ([rungs[0].steps, rungs[1].steps], stretches.iter().map(|it| (it.rung, it.steps)).collect::<Vec<_>>())
        };
        let visited = [(0, 100), (1, 50), (0, 30)];
        assert_eq!(rest(&visited, [130, 50], 0), ([130, 50], visited.to_vec()));
        assert_eq!(rest(&visited, [130, 50], 20), ([110, 50], vec![(0, 100), (1, 50), (0, 10)]));
        assert_eq!(rest(&visited, [130, 50], 60), ([100, 20], vec![(0, 100), (1, 20)]));
        assert_eq!(rest(&visited, [130, 50], 180), ([0, 0], vec![]), "from the beginning");
        assert_eq!(rest(&[(1, 5)], [70, 25], 10), ([65, 20], vec![]), "another keeper took the others");
        assert_eq!(rest(&[], [0, 0], 10), ([0, 0], vec![]));
    }

    #[test]
    fn the_rungs_have_as_many_steps_as_the_run_after_it_went_back() {
        let (_dir, mut recorder) = begun();
        let mut train = |event: Event, steps: RangeInclusive<u64>| {
            recorder.record_event(&event, Duration::ZERO);
            for step in steps {
                recorder.record_event(&Event::Step(Step { step, samples: step, ..Step::default() }), Duration::ZERO);
            }
            (recorder.status.step, recorder.status.rungs[0].steps, recorder.status.taken_steps())
        };
        assert_eq!(train(hello(None), 1..=10), (10, 10, 10));
        let news = CommandNews::WentBack { step: 4, samples: 4 };
        assert_eq!(train(Event::Command { news }, 5..=6), (6, 6, 6));
        assert_eq!(train(hello(Some(3)), 4..=8), (8, 8, 8));
        assert_eq!(train(hello(None), 1..=2), (2, 2, 2), "from the beginning");
        assert_eq!(train(Event::Command { news: CommandNews::WentBack { step: 0, samples: 0 } }, 1..=5_000).1, 5_000);
        assert_eq!(train(hello(None), 4_991..=5_010), (5_010, 5_010, 5_010), "the script resumed by itself");
        assert_eq!(recorder.row.from_step, Some(4_990), "its attempt did not start at the beginning");
    }

    #[test]
    fn a_script_that_resumes_by_itself_goes_on_behind_a_step_that_was_printed() {
        // Steps of the first attempt, of the next one, and where that one began.
        let cases = [
            ((1..=105).step_by(1), 101, 100),
            ((1..=105).step_by(1), 1, 0),
            ((1..=105).step_by(1), 106, 105),
            ((10..=100).step_by(10), 110, 100),
            ((10..=100).step_by(10), 60, 50),
            ((10..=100).step_by(10), 10, 0),
        ];
        for (printed, first, began) in cases {
            let (_dir, mut recorder) = begun();
            let step = |step: u64| Event::Step(Step { step, samples: step, ..Step::default() });
            recorder.record_event(&hello(None), Duration::ZERO);
            printed.for_each(|number| recorder.record_event(&step(number), Duration::ZERO));
            recorder.begin_attempt(0, "full", "restart", Duration::ZERO).unwrap();
            recorder.record_event(&hello(None), Duration::ZERO);
            recorder.record_event(&step(first), Duration::ZERO);
            assert_eq!(recorder.row.from_step.unwrap_or(0), began, "it prints step {first}");
        }
    }
}
