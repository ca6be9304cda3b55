//! Records the state of the layers, and the parameter that was first not finite.

use super::Recorder;
use crate::protocol::control::{LayerRow, Update};
use crate::protocol::samples::{FIRST_NON_FINITE, LayerStats, NonFiniteParameter};
use crate::protocol::worker::Skipped;
use std::collections::BTreeSet;

impl Recorder {
    pub(super) fn record_layers(&mut self, stats: &LayerStats, time_ms: i64) {
        let row = LayerRow { attempt: self.attempt.id, time_ms, stats: stats.clone() };
        self.batch.layers.push(row.clone());
        self.updates.push(Update::Layers(row));
    }

    /// Records the parameter of the run's first skipped step that names one. A step that only the loss scale dropped
    /// names where f16 overflows, which is normal.
    pub(super) fn record_non_finite(&mut self, skipped: &Skipped) {
        let Some(parameter) = skipped.parameter.clone().filter(|_| !skipped.rescaled) else { return };
        if !self.knows_non_finite {
            self.knows_non_finite = true;
            self.put_fact(FIRST_NON_FINITE, &NonFiniteParameter { step: skipped.step, parameter });
        }
    }

    /// Returns the steps of the checkpoints on disk.
    pub fn kept_steps(&self) -> BTreeSet<u64> {
        self.checkpoints.iter().filter(|row| row.kept).map(|row| row.step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Recorder;
    use crate::protocol::blank;
    use crate::protocol::control::Update;
    use crate::protocol::samples::{Layer, LayerStats, NonFiniteParameter};
    use crate::protocol::worker::{Event, Saved, Skipped};
    use crate::store::database::open_writer;
    use crate::store::reader::Reader;
    use crate::store::rows::MOST_LAYERS;
    use crate::store::run_dir::RunDir;
    use crate::store::writer::Writer;
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::time::Duration;

    fn recorder(path: &Path) -> Recorder {
        Recorder::new(Writer::open(path).unwrap(), blank::status()).unwrap()
    }

    fn reader(dir: &Path) -> Reader {
        std::fs::write(dir.join("run.yaml"), "").unwrap();
        Reader::open(&RunDir::open(dir).unwrap()).unwrap()
    }

    fn skipped(step: u64, parameter: Option<&str>, rescaled: bool) -> Event {
        let (what, place, parameter) = ("gradient".to_owned(), String::new(), parameter.map(str::to_owned));
        let applied = false;
        Event::Skipped(Skipped { step, samples: step, epoch: 0, lr: 0.1, what, place, parameter, rescaled, applied })
    }

    #[test]
    fn layers_and_samples_reach_listeners_and_the_store() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("run.db");
        let mut recorder = recorder(&path);
        let stats = |step, weight_norm| {
            let layer = Layer { name: "head".to_owned(), weight_norm, dead: Some(0.25), ..Layer::default() };
            LayerStats { step, layers: vec![layer] }
        };
        let attempt = recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        for event in [Event::Layers(stats(4, 1.5)), Event::Samples { step: 4 }, Event::Layers(stats(8, 2.5))] {
            recorder.record_event(&event, Duration::ZERO);
        }
        let updates = recorder.take_updates();
        assert!(updates.contains(&Update::Samples { step: 4 }));
        assert_eq!(updates.iter().filter(|update| matches!(update, Update::Layers(_))).count(), 2);
        recorder.flush();
        let reader = reader(dir.path());
        let rows = reader.layers(None).unwrap();
        assert_eq!(rows.iter().map(|row| row.stats.clone()).collect::<Vec<_>>(), [stats(4, 1.5), stats(8, 2.5)]);
        assert_eq!(rows[0].attempt, attempt);
        assert_eq!(reader.layers(Some(4)).unwrap(), rows[1..]);
    }

    #[test]
    fn only_the_newest_layers_are_kept() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("run.db");
        let mut recorder = recorder(&path);
        recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        let most = MOST_LAYERS.unsigned_abs();
        let record = |recorder: &mut Recorder, step| {
            let stats = LayerStats { step, layers: Vec::new() };
            recorder.record_event(&Event::Layers(stats), Duration::ZERO);
        };
        (1..=most + 5).for_each(|step| record(&mut recorder, step));
        recorder.flush();
        // An attempt that went back: its evaluations are newer than those of later steps.
        recorder.begin_attempt(0, "full", "restart", Duration::ZERO).unwrap();
        record(&mut recorder, 3);
        recorder.flush();
        let stored = || -> Vec<(u64, u64)> {
            let rows = reader(dir.path()).layers(None).unwrap();
            rows.iter().map(|row| (row.attempt, row.stats.step)).collect()
        };
        let expected: Vec<(u64, u64)> = (7..=most + 5).map(|step| (1, step)).chain([(2, 3)]).collect();
        assert_eq!(stored(), expected);
        // A store of before may hold more.
        let older = open_writer(&path, Duration::ZERO).unwrap().0;
        let all: i64 = older.query_row("SELECT count(*) FROM layers", [], |row| row.get(0)).unwrap();
        assert_eq!(all, MOST_LAYERS);
        older.execute("INSERT INTO layers SELECT 0, step, time_ms, layers FROM layers", []).unwrap();
        assert_eq!(stored(), expected);
    }

    #[test]
    fn the_first_parameter_that_was_not_finite_stays_on_record() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("run.db");
        let mut first = recorder(&path);
        for event in [skipped(3, Some("a.weight"), true), skipped(5, None, false), skipped(7, Some("b.weight"), false)]
        {
            first.record_event(&event, Duration::ZERO);
        }
        first.flush();
        drop(first);
        let mut second = recorder(&path);
        second.record_event(&skipped(9, Some("c.weight"), false), Duration::ZERO);
        second.flush();
        let found = reader(dir.path()).first_non_finite();
        assert_eq!(found, Some(NonFiniteParameter { step: 7, parameter: "b.weight".to_owned() }));
    }

    #[test]
    fn samples_of_a_checkpoint_that_is_kept_are_kept() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut recorder = recorder(&dir.path().join("run.db"));
        for step in [4, 8] {
            let path = format!("checkpoints/step-{step:09}");
            let saved = Saved { path, step, samples: step, bytes: 1, ..Saved::default() };
            recorder.record_event(&Event::Saved(saved), Duration::ZERO);
        }
        recorder.checkpoints[0].kept = false;
        assert_eq!(recorder.kept_steps(), BTreeSet::from([8]));
    }
}
