//! Records where an attempt trains on. A worker of ours has loaded its checkpoint when it says so; the script of a command
//! may have found none, or another one.

use super::Recorder;
use crate::keeper::sentences;
use crate::protocol::control::{JournalKind, Update};
use crate::protocol::resumed::Resumed;
use crate::protocol::worker::{Hello, Level};

impl Recorder {
    /// Takes down where a worker says it resumes. The steps that are taken again are counted once that is known.
    pub(super) fn begin_resume(&mut self, hello: &Hello) {
        // Only a command has a level.
        let is_command = self.status.level.is_some();
        let claim = |step| Resumed::Unverified { asked: step, counts_from: None };
        let loaded = |step| Resumed::Verified { step, file: None };
        self.status.resumed = if is_command { hello.resumed_from.map(claim) } else { hello.resumed_from.map(loaded) };
        let known = self.status.resumed.as_ref().filter(|resumed| resumed.is_known());
        let known = known.map(Resumed::step);
        self.tell_passage(known);
        match known {
            Some(step) => self.take_back(step),
            // A script that resumes by itself says so only by its first step.
            None => self.before_first_step = self.before_first_step.or(Some(self.status.step)),
        }
    }

    /// Sets the run to a step and its clock; evaluations count up to `learned`.
    pub(super) fn begin_at(&mut self, (step, samples): (u64, u64), learned: u64) {
        self.recall_learning(learned);
        if step < self.status.step {
            // The last one is that of a step that is taken again.
            self.status.loss = self.read_store(|store| store.loss_up_to(step)).ok().flatten();
        }
        (self.status.step, self.status.samples) = (step, samples);
        self.furthest_step = step;
    }

    /// Records where a command trains on, and counts from there.
    pub(super) fn record_resumed(&mut self, resumed: &Resumed, samples: u64) {
        if self.status.resumed.as_ref() == Some(resumed) {
            return;
        }
        let (asked, step) = (resumed.asked(), resumed.step());
        let before = self.before_first_step.unwrap_or(self.status.step);
        if resumed.is_known() {
            self.tell_passage(Some(step));
            if self.before_first_step.is_some() {
                self.take_back(step);
                self.begin_at((step, samples), step);
            } else if step < asked && self.status.step < asked {
                // Its first steps were shown, and counted for none: those up to the checkpoint were taken already.
                self.take_back_from(asked, self.status.step);
                self.furthest_step = self.status.step;
            }
            let from_step = Some(step).filter(|step| *step > 0);
            if step != asked && self.row.from_step != from_step {
                self.row.from_step = from_step;
                self.put_attempt();
                // Listeners read the curve again: another part of it counts.
                self.updates.push(Update::WentBack { step });
            }
        }
        let again = if self.passage.is_some() { 0 } else { before.saturating_sub(step) };
        let level = if resumed.is_doubtful() { Level::Warn } else { Level::Info };
        self.note(level, JournalKind::Worker, sentences::resumed(resumed, again));
        self.status.resumed = Some(resumed.clone());
    }

    fn tell_passage(&mut self, step: Option<u64>) {
        if let Some(passage) = &mut self.passage {
            passage.resume_from(step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Recorder;
    use crate::keeper::status_snapshot::blank_record;
    use crate::protocol::blank;
    use crate::protocol::control::Update;
    use crate::protocol::resumed::{ActualStart, Resumed};
    use crate::protocol::worker::{CommandNews, Event, Step};
    use crate::store::writer::Writer;
    use serde_json::json;
    use std::ops::RangeInclusive;
    use std::time::Duration;

    /// Returns the recorder of a run that took 60 steps, and whose next worker is asked to resume from step 40.
    fn resumed_at_40(level: Option<u8>) -> (tempfile::TempDir, Recorder) {
        let dir = tempfile::TempDir::new().unwrap();
        let mut status = blank::status();
        (status.rungs, status.level) = (vec![blank_record("full")], level);
        let mut recorder = Recorder::new(Writer::open(&dir.path().join("run.db")).unwrap(), status).unwrap();
        let hello = |step: Option<u64>| -> Event {
            let hello = json!({
                "event": "hello", "protocol": 1, "build": "", "pid": 7, "device": "cpu", "backend": "command",
                "parameters": 0, "resumed_from": step, "position": { "epoch": 0, "offset": 0, "samples": 0 },
                "epoch_units": 0, "total_units": 0, "total_steps": 0, "unit": "samples",
            });
            serde_json::from_value(hello).unwrap()
        };
        recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        recorder.record_event(&hello(None), Duration::ZERO);
        train(&mut recorder, 1..=60);
        recorder.flush();
        recorder.begin_attempt(0, "full", "restart", Duration::ZERO).unwrap();
        recorder.record_event(&hello(Some(40)), Duration::ZERO);
        (dir, recorder)
    }

    fn train(recorder: &mut Recorder, steps: RangeInclusive<u64>) {
        for step in steps {
            let event = Event::Step(Step { step, samples: step, loss: Some(1.0), ..Step::default() });
            recorder.record_event(&event, Duration::ZERO);
        }
    }

    fn learn(recorder: &mut Recorder, resumed: Resumed) {
        let samples = resumed.step();
        let news = CommandNews::Resumed { resumed, samples };
        recorder.record_event(&Event::Command { news }, Duration::ZERO);
    }

    fn journal(recorder: &mut Recorder) -> Vec<String> {
        let updates = recorder.take_updates().into_iter();
        updates.filter_map(|update| if let Update::Journal(row) = update { Some(row.text) } else { None }).collect()
    }

    #[test]
    fn a_worker_of_ours_has_resumed_when_it_says_so() {
        let (_dir, mut recorder) = resumed_at_40(None);
        assert_eq!(recorder.status.resumed, Some(Resumed::Verified { step: 40, file: None }));
        let wanted = "worker 7 resumed at step 40 on cpu (command), and takes 20 steps again";
        assert_eq!(journal(&mut recorder).pop().unwrap(), wanted);
        assert_eq!(recorder.status.rungs[0].steps, 40);
    }

    #[test]
    fn the_resume_of_a_command_is_said_and_counted_once_it_is_known() {
        let beginning = || Resumed::Contradicted { asked: 40, found: ActualStart::Beginning };
        let other = |step| Resumed::Contradicted { asked: 40, found: ActualStart::Checkpoint { step, file: None } };
        let verified = || Resumed::Verified { step: 40, file: None };
        for (resumed, from_step, said) in [
            (verified(), Some(40), "resumed at step 40, and takes 20 steps again"),
            (other(20), Some(20), "the script trains on from step 20, and takes 40 steps again"),
            (other(50), Some(50), "the script trains on from step 50, and takes 10 steps again"),
            (beginning(), None, "the script starts from scratch, and takes 60 steps again"),
        ] {
            let (_dir, mut recorder) = resumed_at_40(Some(1));
            let first = journal(&mut recorder).pop().unwrap();
            assert_eq!(first, "worker 7 is asked to resume from step 40 on cpu (command); not verified yet");
            assert_eq!(recorder.status.resumed, Some(Resumed::Unverified { asked: 40, counts_from: None }));
            learn(&mut recorder, resumed.clone());
            let last = journal(&mut recorder).pop().unwrap();
            assert!(last.ends_with(said), "{last}");
            learn(&mut recorder, resumed.clone());
            assert_eq!(journal(&mut recorder), [""; 0], "once");
            let step = from_step.unwrap_or(0);
            assert_eq!((recorder.status.step, recorder.row.from_step), (step, from_step), "{said}");
            train(&mut recorder, step + 1..=step + 5);
            assert_eq!((recorder.status.step, recorder.status.rungs[0].steps), (step + 5, step + 5), "{said}");
        }
    }

    #[test]
    fn what_becomes_known_after_the_first_step_corrects_the_attempt_and_not_its_place() {
        let (_dir, mut recorder) = resumed_at_40(Some(1));
        train(&mut recorder, 1..=3);
        assert_eq!(recorder.row.from_step, Some(40));
        learn(&mut recorder, Resumed::Contradicted { asked: 40, found: ActualStart::Beginning });
        assert_eq!((recorder.status.step, recorder.row.from_step), (3, None));
        train(&mut recorder, 4..=6);
        assert_eq!(recorder.status.rungs[0].steps, 6);
        assert!(recorder.take_updates().contains(&Update::WentBack { step: 0 }), "the curve is read again");
    }
}
