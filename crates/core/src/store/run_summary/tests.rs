use super::column::{Column, sort_runs};
use super::{COLUMNS, RunIndex, RunSummary, Times, stamp};
use crate::config::best::{Best as Ranking, Goal};
use crate::protocol::blank;
use crate::protocol::control::{Best, JournalKind, JournalRow, StepRow};
use crate::protocol::metrics::Metrics;
use crate::protocol::worker::Level;
use crate::store::batch::AttemptRow;
use crate::store::labels::{self, LabelEdit, edit_labels};
use crate::store::run_dir::RunDir;
use crate::store::writer::{Batch, Writer};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn row(attempt: u64, step: u64, loss: f64) -> StepRow {
    StepRow {
        attempt,
        rung: 0,
        step,
        samples: step,
        epoch: 0,
        loss: Some(loss),
        lr: None,
        grad_norm: None,
        skipped: false,
        data_wait_ms: 0.0,
        compute_ms: 1.0,
        time_ms: 0,
        metrics: Metrics::new(),
    }
}

fn attempt(id: u64, started_ms: i64, ended_ms: Option<i64>) -> (u64, AttemptRow) {
    (id, AttemptRow { id, started_ms, ended_ms, ..AttemptRow::default() })
}

fn journal(id: i64, time_ms: i64) -> JournalRow {
    let kind = JournalKind::Note;
    JournalRow { id, time_ms, step: None, level: Level::Info, kind, text: String::new() }
}

fn begun(runs: &Path, name: &str) -> (RunDir, Writer) {
    let path = runs.join(name);
    fs::create_dir(&path).unwrap();
    fs::write(path.join("run.yaml"), "").unwrap();
    let run = RunDir::open(&path).unwrap();
    let writer = Writer::open(&run.file("run.db")).unwrap();
    (run, writer)
}

#[test]
fn a_summary_has_the_times_of_all_workers_and_the_curve_of_the_newest() {
    let runs = tempfile::tempdir().unwrap();
    let (_, mut writer) = begun(runs.path(), "a");
    // The first worker reached step 600; the second one redid it from step 301.
    let mut steps: Vec<StepRow> = (1..=600).map(|step| row(1, step, 9.0)).collect();
    steps.extend((301..=1_000).map(|step| row(2, step, 1.0)));
    let attempts = BTreeMap::from([attempt(1, 1_000, Some(61_000)), attempt(2, 100_000, None)]);
    let journal = vec![journal(1, 1_500), journal(2, 130_000)];
    writer.append(&Batch { steps, journal, attempts, ..Batch::default() }).unwrap();
    let index = RunIndex::new(runs.path().to_owned());
    let [run] = &index.list()[..] else { panic!("one run") };
    let times = Times {
        started_ms: Some(1_000),
        last_ms: Some(130_000),
        ended_workers_ms: 60_000,
        open_since_ms: Some(100_000),
    };
    assert_eq!(run.times, times);
    // The second worker is gone: it counts until the newest sign of life.
    assert_eq!(run.duration_ms(999_000), Some(90_000));
    assert_eq!(run.curve.len(), COLUMNS);
    let old = run.curve.iter().take_while(|loss| **loss > 8.0).count();
    assert!((6..=8).contains(&old) && run.curve[old..].iter().all(|loss| *loss < 2.0), "{:?}", run.curve);
    assert_eq!(RunSummary::default().duration_ms(5), None);
}

#[test]
fn a_worker_that_died_with_its_keeper_lived_until_its_last_step() {
    let runs = tempfile::tempdir().unwrap();
    let (_, mut writer) = begun(runs.path(), "a");
    let steps: Vec<StepRow> = (1..=10).map(|step| row(1, step, 1.0)).collect();
    let last_ms = steps[9].time_ms;
    let attempts =
        BTreeMap::from([attempt(1, last_ms - 5_000, None), attempt(2, last_ms + 9_000, Some(last_ms + 10_000))]);
    writer.append(&Batch { steps, attempts, ..Batch::default() }).unwrap();
    let index = RunIndex::new(runs.path().to_owned());
    assert_eq!(index.list()[0].duration_ms(last_ms + 99_000), Some(6_000));
}

#[test]
fn only_a_store_that_changed_is_read_again_and_labels_are_always_current() {
    let runs = tempfile::tempdir().unwrap();
    let (run, mut writer) = begun(runs.path(), "a");
    writer.append(&Batch { steps: vec![row(1, 1, 4.0)], ..Batch::default() }).unwrap();
    let index = RunIndex::new(runs.path().to_owned());
    assert_eq!(index.list()[0].curve, [4.0]);
    // A planted value shows whether the index remembers it.
    for (_, stored) in index.known.lock().unwrap().values_mut() {
        stored.curve = vec![7.0];
    }
    edit_labels(&run, LabelEdit::SetNote("seen".to_owned())).unwrap();
    let again = index.list();
    assert_eq!((&again[0].curve[..], again[0].labels.note.as_str()), (&[7.0][..], "seen"));
    fs::write(run.file(labels::FILE), "half a fi").unwrap();
    let error = index.list()[0].labels_error.clone().unwrap();
    assert!(error.contains("labels.json") && error.ends_with("repair the file, or delete it"), "{error}");
    writer.append(&Batch { steps: vec![row(1, 2, 2.0)], ..Batch::default() }).unwrap();
    assert_eq!(index.list()[0].curve, [4.0, 2.0]);
    drop(writer);
    fs::remove_dir_all(run.path()).unwrap();
    assert!(index.list().is_empty() && index.known.lock().unwrap().is_empty());
}

#[test]
fn a_short_run_has_a_column_per_step_and_an_empty_one_none() {
    let runs = tempfile::tempdir().unwrap();
    let (_, mut writer) = begun(runs.path(), "a");
    begun(runs.path(), "b");
    let steps = [3.0, f64::INFINITY, 1.0];
    let steps = (1..).zip(steps).map(|(step, loss)| row(1, step, loss)).collect();
    writer.append(&Batch { steps, ..Batch::default() }).unwrap();
    let mut all = RunIndex::new(runs.path().to_owned()).list();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!((&all[0].curve[..], &all[1].curve[..]), (&[3.0, 1.0][..], &[][..]));
    assert_eq!((all[1].status.clone(), all[1].times), (None, Times::default()));
}

#[test]
fn a_store_that_could_not_be_read_once_is_read_again() {
    let runs = tempfile::tempdir().unwrap();
    let (run, mut writer) = begun(runs.path(), "a");
    writer.append(&Batch { steps: vec![row(1, 1, 4.0)], ..Batch::default() }).unwrap();
    drop(writer);
    let path = run.file("run.db");
    let (store, before) = (fs::read(&path).unwrap(), stamp(&run));
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let write = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert_eq!(stamp(&run), before, "nobody sees that the file changed");
    };
    write(&vec![0xff; store.len()]);
    let index = RunIndex::new(runs.path().to_owned());
    assert!(index.list()[0].curve.is_empty());
    write(&store);
    assert_eq!(index.list()[0].curve, [4.0]);
}

#[test]
fn a_command_without_journal_lines_lived_until_its_newest_step() {
    let runs = tempfile::tempdir().unwrap();
    let (_, mut writer) = begun(runs.path(), "a");
    let steps = vec![StepRow { time_ms: 13_000, ..row(1, 1, 4.0) }];
    let attempts = BTreeMap::from([attempt(1, 1_000, None)]);
    writer.append(&Batch { steps, journal: vec![journal(1, 1_000)], attempts, ..Batch::default() }).unwrap();
    assert_eq!(RunIndex::new(runs.path().to_owned()).list()[0].duration_ms(99_000), Some(12_000));
}

#[test]
fn a_run_that_waits_for_its_first_worker_is_sorted_by_its_run_file() {
    let at = |name: &str, started_ms, created_ms| RunSummary {
        name: name.to_owned(),
        created_ms,
        times: Times { started_ms, ..Times::default() },
        ..RunSummary::default()
    };
    let mut all = [at("old", Some(5), Some(4)), at("waiting", None, Some(9)), at("older", Some(2), Some(2))];
    sort_runs(&mut all, |run| run, Column::Started, false, 0);
    assert_eq!(all.map(|run| run.name), ["waiting", "old", "older"]);
}

#[test]
fn runs_with_opposite_goals_have_one_order() {
    let ranked = |number: usize| {
        let goal = if number.is_multiple_of(2) { Goal::Min } else { Goal::Max };
        let value = ((number * 37) % 101) as f64;
        let mut status = blank::status();
        status.best = Some(Best { step: 1, eval_loss: None, metric: "score".to_owned(), value });
        let ranking = Ranking { metric: "score".to_owned(), goal };
        RunSummary { status: Some(status), ranking, ..RunSummary::default() }
    };
    let mut all: Vec<RunSummary> = (0..100).map(ranked).collect();
    sort_runs(&mut all, |run| run, Column::Best, false, 0);
    let value = |run: &RunSummary| run.status.as_ref().unwrap().best.as_ref().unwrap().value;
    assert!(all.is_sorted_by_key(|run| run.ranking.goal), "one goal after the other");
    assert!(all[..50].is_sorted_by(|a, b| value(a) <= value(b)) && all[50..].is_sorted_by(|a, b| value(a) >= value(b)));
}
