use super::{NEWEST, Piece};
use crate::protocol::control::{CheckpointRow, StepRow};
use crate::protocol::metrics::Metrics;
use crate::store::database::open_reader;
use crate::store::reader::Reader;
use crate::store::summary::{Bucket, Metric, Point};
use crate::store::writer::{AttemptRow, Batch, Writer};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

const NAMES: [&str; 2] = ["val/fid", "accuracy"];

fn row(attempt: u64, step: u64) -> StepRow {
    let skipped = (step * 7 + attempt).is_multiple_of(53);
    StepRow {
        attempt,
        rung: usize::try_from(attempt).unwrap() % 3,
        step,
        samples: step * 32,
        epoch: 0,
        loss: (!skipped).then(|| ((step * 31 + attempt * 17) % 101) as f64),
        lr: Some(1e-3),
        grad_norm: (!skipped).then_some(1.0),
        skipped,
        data_wait_ms: 1.0,
        compute_ms: 9.0,
        time_ms: step as i64 * 10,
        metrics: if step % 5 == attempt % 5 {
            Metrics::from([(NAMES[step as usize % 2].to_owned(), step as f64)])
        } else {
            Metrics::new()
        },
    }
}

fn written(path: &Path, rows: &[StepRow], batch: usize) -> Reader {
    let mut writer = Writer::open(path).unwrap();
    for steps in rows.chunks(batch) {
        writer.append(&Batch { steps: steps.to_vec(), ..Batch::default() }).unwrap();
    }
    Reader { connection: open_reader(path).unwrap() }
}

/// Computes the expected curve the slow way.
fn naive(rows: &[StepRow]) -> Vec<StepRow> {
    let mut curve: Vec<StepRow> = Vec::new();
    for row in rows {
        curve.truncate(curve.partition_point(|known| known.step < row.step));
        curve.push(row.clone());
    }
    curve
}

fn read(reader: &Reader) -> (Vec<Bucket>, Vec<StepRow>) {
    let (mut leaves, mut rows) = (Vec::new(), Vec::new());
    reader
        .curve(|_, piece| match piece {
            Piece::Leaf(leaf) => {
                assert!(rows.is_empty());
                leaves.push(leaf);
            }
            Piece::Row(row) => rows.push(row),
        })
        .unwrap();
    (leaves, rows)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn leaves_and_rows_together_are_the_curve(
        lengths in proptest::collection::vec((1u64..6000, 0u64..5000), 1..4), batch in 1usize..3000, drop in 0i64..6,
    ) {
        let (mut rows, mut last) = (Vec::new(), 0u64);
        for (attempt, (length, back)) in (1u64..).zip(lengths) {
            let start = last.saturating_sub(back) + 1;
            rows.extend((start..start + length).map(|step| row(attempt, step)));
            last = start + length - 1;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.db");
        let reader = written(&path, &rows, batch);
        // A keeper that died leaves blocks unwritten.
        let lose = rusqlite::Connection::open(&path).unwrap();
        lose.execute("DELETE FROM summaries WHERE block % 7 = ?1", [drop]).unwrap();
        let curve = naive(&rows);
        let mut names = reader.metric_names().unwrap();
        let (leaves, newest) = read(&reader);
        let from = curve.last().unwrap().step.saturating_add(1).saturating_sub(NEWEST);
        let (old, new): (Vec<_>, Vec<_>) = curve.iter().cloned().partition(|row| row.step < from);
        prop_assert_eq!(newest, new);
        let mut at = 0;
        for leaf in &leaves {
            let points: Vec<_> = old[at..at + leaf.steps as usize].iter().map(|row| Point::of(row, &mut names)).collect();
            let expected = Bucket::of(&points).unwrap();
            prop_assert_eq!(leaf, &expected);
            at += points.len();
        }
        prop_assert_eq!(at, old.len());
        prop_assert!(leaves.len() as u64 <= old.len() as u64 / 64 + 12);
        let some = from / 3..from / 2 + 7;
        let expected: Vec<_> = curve.iter().filter(|row| some.contains(&row.step)).cloned().collect();
        prop_assert_eq!(reader.curve_rows(&some).unwrap(), expected);
    }
}

#[test]
fn a_store_without_summaries_is_read_from_its_steps() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let rows: Vec<_> = (1..=6000).map(|step| row(1, step)).collect();
    let reader = written(&path, &rows, 500);
    let (with, _) = read(&reader);
    rusqlite::Connection::open(&path).unwrap().execute_batch("DROP TABLE summaries").unwrap();
    let (without, newest) = read(&Reader { connection: open_reader(&path).unwrap() });
    assert_eq!(with, without);
    assert_eq!(newest.len(), 4096);
    assert_eq!(without.iter().filter(|leaf| leaf.extent(Metric::Loss).is_none()).count(), 0);
}

#[test]
fn a_late_row_is_summed_up_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = Writer::open(&path).unwrap();
    let append = |writer: &mut Writer, steps: Vec<StepRow>| {
        writer.append(&Batch { steps, ..Batch::default() }).unwrap();
    };
    append(&mut writer, (1..=3000).filter(|step| *step != 500).map(|step| row(1, step)).collect());
    append(&mut writer, vec![row(1, 500)]);
    append(&mut writer, (3001..=8000).map(|step| row(1, step)).collect());
    let (leaves, _) = read(&Reader { connection: open_reader(&path).unwrap() });
    assert_eq!(leaves.iter().map(|leaf| u64::from(leaf.steps)).sum::<u64>(), 8000 - NEWEST);
}

#[test]
fn an_attempt_from_a_checkpoint_that_was_set_aside_continues_the_one_that_wrote_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = Writer::open(&path).unwrap();
    let attempt = |id: u64, from_step: Option<u64>| {
        let started_ms = id.cast_signed() * 1_000;
        (id, AttemptRow { id, started_ms, from_step, ..AttemptRow::default() })
    };
    let checkpoint = |step: u64, written_by: u64| {
        let time_ms = written_by.cast_signed() * 1_000 + 500;
        let path = String::new();
        (
            step,
            CheckpointRow {
                step,
                samples: step,
                path,
                bytes: 1,
                time_ms,
                pause_ms: 0.0,
                total_ms: 0.0,
                eval_loss: None,
                metrics: Metrics::new(),
                best: false,
                proven: false,
                kept: true,
            },
        )
    };
    let steps = [(1, 1..=800), (2, 101..=283), (3, 674..=900), (4, 901..=910), (5, 284..=300)];
    writer
        .append(&Batch {
            steps: steps.iter().flat_map(|(id, steps)| steps.clone().map(|step| row(*id, step))).collect(),
            attempts: [(1, None), (2, Some(100)), (3, Some(673)), (4, Some(900)), (5, Some(283))]
                .map(|(id, from)| attempt(id, from))
                .into(),
            checkpoints: [(100, 1), (673, 1), (283, 2), (900, 3)].map(|(step, by)| checkpoint(step, by)).into(),
            ..Batch::default()
        })
        .unwrap();
    let reader = Reader { connection: open_reader(&path).unwrap() };
    let shown = |newest: u64| -> Vec<(u64, Range<u64>)> {
        let found = reader.stretches_up_to(newest, &mut BTreeMap::new()).unwrap();
        found.into_iter().map(|stretch| (stretch.attempt, stretch.steps)).collect()
    };
    assert_eq!(shown(2), [(1, 1..101), (2, 101..284)]);
    assert_eq!(shown(3), [(1, 1..674), (3, 674..901)], "not the branch that was given up");
    assert_eq!(shown(4), [(1, 1..674), (3, 674..901), (4, 901..911)]);
    assert_eq!(shown(5), [(1, 1..101), (2, 101..284), (5, 284..301)], "back on that branch");
}
