//! Records that a process of a command ended, and that the next one trains on from an earlier step of the same attempt.

use super::Recorder;
use crate::keeper::sentences;
use crate::protocol::control::{JournalKind, Update};
use crate::protocol::worker::Level;

impl Recorder {
    /// Forgets what the dead process did beyond the step from which the command trains on: its rows would hide those of
    /// the next process, which have the same attempt and steps, and its evaluations would rank other weights.
    pub(super) fn record_going_back(&mut self, step: u64, samples: u64) {
        self.note(Level::Warn, JournalKind::Worker, sentences::went_back(step));
        self.take_back(step);
        (self.status.step, self.status.samples) = (step, samples);
        self.furthest_step = step;
        self.evals.split_off(&step.saturating_add(1));
        self.curve.go_back(step, &self.ranking);
        let newest = self.evals.last_key_value().map(|(_, eval)| eval.clone());
        self.status.eval = newest.or(self.status.eval.take().filter(|eval| eval.step <= step));
        self.batch.go_back(self.attempt.id, step);
        self.dirty = true;
        self.restart_proving(step);
        // Listeners read the store again.
        self.updates.push(Update::WentBack { step });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Recorder;
    use crate::protocol::control::{JournalKind, Status, Update};
    use crate::protocol::samples::LayerStats;
    use crate::protocol::worker::{CommandNews, Eval, Event, ReducedRate, Saved, Step};
    use crate::store::database::open_reader;
    use crate::store::reader::Reader;
    use crate::store::run_dir::RunDir;
    use crate::store::summary::BLOCK;
    use crate::store::writer::Writer;
    use serde_json::json;
    use std::path::Path;
    use std::time::Duration;

    fn begun(dir: &Path) -> Recorder {
        let status: Status = serde_json::from_value(json!({
            "run": "run", "state": "training", "rung": 0, "rung_name": "full", "step": 0, "samples": 0,
            "unit": "samples", "attempts": 1, "restarts": 0, "pauses": 0, "shifts": 0, "skipped": 0,
            "autopilot": true, "rungs": [], "run_dir": "run",
        }))
        .unwrap();
        let mut recorder = Recorder::new(Writer::open(&dir.join("run.db")).unwrap(), status).unwrap();
        recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        recorder
    }

    fn record(recorder: &mut Recorder, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| recorder.record_event(&event, Duration::ZERO));
    }

    fn step(step: u64, loss: f64) -> Event {
        Event::Step(Step { step, samples: step, loss: Some(loss), ..Step::default() })
    }

    fn eval(step: u64, loss: f64) -> Event {
        Event::Eval(Eval { step, samples: step, loss: Some(loss), ..Eval::default() })
    }

    fn went_back(step: u64) -> Event {
        Event::Command { news: CommandNews::WentBack { step, samples: step } }
    }

    fn reader(dir: &Path) -> Reader {
        std::fs::write(dir.join("run.yaml"), "").unwrap();
        Reader::open(&RunDir::open(dir).unwrap()).unwrap()
    }

    #[test]
    fn the_store_holds_the_steps_of_the_process_that_trains_on() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut recorder = begun(dir.path());
        let end = 3 * BLOCK;
        record(&mut recorder, (1..=end).map(|number| step(number, 1.0)));
        record(&mut recorder, [eval(end, 0.1), Event::Layers(LayerStats { step: end, layers: Vec::new() })]);
        recorder.flush();
        // Rows that the store has not taken yet go as well.
        record(&mut recorder, [step(end + 1, 1.0), went_back(BLOCK + 10)]);
        record(&mut recorder, (BLOCK + 11..=2 * BLOCK + 5).map(|number| step(number, 2.0)));
        record(&mut recorder, [went_back(2 * BLOCK)]);
        record(&mut recorder, [step(2 * BLOCK + 1, 3.0), eval(2 * BLOCK + 1, 0.5)]);
        recorder.flush();
        let reader = reader(dir.path());
        let mut losses = Vec::new();
        reader.each_step(|row| losses.push((row.step, row.loss.unwrap()))).unwrap();
        let of = |number| {
            if number <= BLOCK + 10 {
                1.0
            } else if number <= 2 * BLOCK {
                2.0
            } else {
                3.0
            }
        };
        let expected: Vec<(u64, f64)> = (1..=2 * BLOCK + 1).map(|number| (number, of(number))).collect();
        assert!(losses == expected, "{} rows up to {:?}", losses.len(), losses.last());
        let evals: Vec<u64> = reader.evals().unwrap().iter().map(|row| row.eval.step).collect();
        assert_eq!((evals, reader.layers(None).unwrap().len()), (vec![2 * BLOCK + 1], 0));
        let connection = open_reader(&dir.path().join("run.db")).unwrap();
        let mut summaries = connection.prepare("SELECT block FROM summaries ORDER BY block").unwrap();
        let blocks: Vec<i64> = summaries.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        assert_eq!(blocks, [0, 1], "the newest block still grows");
        assert!(recorder.take_updates().contains(&Update::WentBack { step: 2 * BLOCK }));
    }

    #[test]
    fn a_lower_learning_rate_is_noted_and_forgotten_with_its_evaluation() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut recorder = begun(dir.path());
        let reduced =
            ReducedRate { step: 500, from: 0.002, to: 0.001, factor: 0.5, metric: "loss".to_owned(), evaluations: 4 };
        let lowers = Eval { step: 500, samples: 500, loss: Some(0.5), reduced: Some(reduced), ..Eval::default() };
        record(&mut recorder, [eval(400, 0.5), Event::Eval(lowers.clone())]);
        assert_eq!(recorder.status.reduced, lowers.reduced);
        recorder.flush();
        let journal = reader(dir.path()).journal(1).unwrap();
        let wanted = "learning rate 0.002 → 0.001: validation loss has not improved for 4 evaluations";
        assert_eq!((journal[0].kind, journal[0].text.as_str()), (JournalKind::Rate, wanted));
        // The store and a worker that resumes behind it and before it.
        let hello = |step: u64| -> Event {
            let hello = json!({
                "event": "hello", "protocol": 1, "build": "0", "pid": 1, "device": "cpu", "backend": "f32",
                "parameters": 1, "resumed_from": step, "position": { "epoch": 0, "offset": step, "samples": step }, "epoch_units": 1000,
                "total_units": 1000, "total_steps": 1000, "unit": "samples",
            });
            serde_json::from_value(hello).unwrap()
        };
        record(&mut recorder, [hello(600)]);
        assert_eq!(recorder.status.reduced, lowers.reduced);
        record(&mut recorder, [hello(499)]);
        assert_eq!(recorder.status.reduced, None);
    }

    #[test]
    fn evaluations_of_the_dead_process_neither_rank_nor_count() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut recorder = begun(dir.path());
        record(&mut recorder, [eval(500, 0.5), eval(700, 0.1), eval(800, 0.2), went_back(600)]);
        assert_eq!(recorder.learning().since_best(), Some(0));
        assert_eq!(recorder.status.eval.as_ref().map(|eval| eval.step), Some(500));
        let saved = Saved { path: "checkpoints/step-000000700".to_owned(), step: 700, ..Saved::default() };
        record(&mut recorder, [eval(700, 0.4), Event::Saved(saved)]);
        assert_eq!(recorder.status.best.as_ref().and_then(|best| best.eval_loss), Some(0.4));
        assert_eq!(recorder.learning().since_best(), Some(0), "0.4 is better than 0.5");
        // Redone evaluations are never better than those that they repeat.
        for _ in 0..5 {
            record(&mut recorder, [went_back(600), eval(700, 0.4), eval(800, 0.45)]);
        }
        assert_eq!(recorder.learning().since_best(), Some(1));
    }
}
