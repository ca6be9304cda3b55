//! Files that grow, and are truncated, replaced and rewritten.

use super::FileReader;
use crate::log_metrics::{FileError, Reading};
use proptest::prelude::*;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

struct Followed {
    _folder: tempfile::TempDir,
    path: PathBuf,
    reader: FileReader,
}

impl Followed {
    fn new(name: &str, text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        let reader = FileReader::open(&path).unwrap();
        Self { _folder: folder, path, reader }
    }

    fn append(&self, text: &str) {
        File::options().append(true).open(&self.path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Polls until nothing new comes; returns steps and losses.
    fn read(&mut self) -> Vec<(Option<u64>, Option<f64>)> {
        let mut readings = Vec::new();
        for _ in 0..3 {
            self.reader.poll(&mut readings).unwrap();
        }
        readings.iter().map(|reading: &Reading| (reading.step, reading.value("loss"))).collect()
    }
}

#[test]
fn a_torn_line_waits_for_its_end() {
    let mut file = Followed::new("log.jsonl", "{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"lo");
    assert_eq!(file.read(), [(Some(1), Some(2.5))]);
    file.append("ss\": 1.5}\n");
    assert_eq!(file.read(), [(Some(2), Some(1.5))]);
    assert_eq!(file.read(), []);
}

#[test]
fn rows_of_one_step_are_one_reading() {
    let mut file = Followed::new("metrics.csv", "step,loss,lr\n1,2.5,\n");
    file.append("1,,0.1\n2,1.5,0.1\n");
    let mut readings = Vec::new();
    file.reader.poll(&mut readings).unwrap();
    let values = vec![("loss".to_owned(), 2.5), ("lr".to_owned(), 0.1)];
    assert_eq!(readings, [Reading { step: Some(1), values, ..Reading::default() }]);
}

#[test]
fn a_file_that_is_cut_or_replaced_is_read_from_its_start() {
    let mut file = Followed::new("log.jsonl", "{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"loss\": 2.0}\n");
    assert_eq!(file.read().len(), 2);
    fs::write(&file.path, "{\"step\": 1, \"loss\": 9.5}\n").unwrap();
    assert_eq!(file.read(), [(Some(1), Some(9.5))]);
    let other = file.path.with_extension("new");
    fs::write(&other, "{\"step\": 7, \"loss\": 1.0}\n").unwrap();
    fs::rename(&other, &file.path).unwrap();
    assert_eq!(file.read(), [(Some(7), Some(1.0))]);
    fs::remove_file(&file.path).unwrap();
    assert_eq!(file.read(), []);
}

#[test]
fn rows_that_a_writer_repeats_under_a_new_header_are_read_once() {
    let mut file = Followed::new("metrics.csv", "step,train_loss\n1,2.5\n2,2.0\n");
    assert_eq!(file.read(), [(Some(1), Some(2.5)), (Some(2), Some(2.0))]);
    fs::write(&file.path, "step,train_loss,val_loss\n1,2.5,\n2,2.0,\n2,,0.5\n3,1.5,\n").unwrap();
    let mut readings = Vec::new();
    file.reader.poll(&mut readings).unwrap();
    file.reader.poll(&mut readings).unwrap();
    let found: Vec<_> = readings.iter().map(|reading| (reading.step, reading.values.clone())).collect();
    assert_eq!(found, [(Some(2), vec![("eval_loss".to_owned(), 0.5)]), (Some(3), vec![("loss".to_owned(), 1.5)])]);
}

#[test]
fn what_was_there_before_can_be_skipped() {
    let mut file = Followed::new("metrics.csv", "step,loss\n1,2.5\n2,2.0\n");
    file.reader.skip_existing().unwrap();
    assert_eq!(file.read(), []);
    file.append("3,1.5\n");
    assert_eq!(file.read(), [(Some(3), Some(1.5))]);
}

#[test]
fn a_line_without_end_takes_no_memory() {
    let mut file = Followed::new("log.jsonl", "{\"step\": 1, \"loss\": 2.5}\n");
    for _ in 0..40 {
        file.append(&"x".repeat(1 << 18));
    }
    file.append("\n{\"step\": 2, \"loss\": 2.0}\n");
    assert_eq!(file.read(), [(Some(1), Some(2.5)), (Some(2), Some(2.0))]);
}

#[test]
fn other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    fs::write(&path, "loss 3").unwrap();
    assert!(matches!(FileReader::open(&path), Err(FileError::UnknownFormat { .. })));
    assert!(matches!(FileReader::open(Path::new("/dev/zero")), Err(FileError::Read { .. })));
    assert!(matches!(FileReader::open(&folder.path().join("none.csv")), Err(FileError::Read { .. })));
    let path = folder.path().join("broken.db");
    fs::write(&path, [b"SQLite format 3\0".as_slice(), &[7; 4000]].concat()).unwrap();
    let outcome = FileReader::open(&path).unwrap().poll(&mut Vec::new());
    assert!(matches!(outcome, Err(FileError::Database { .. })), "{outcome:?}");
}

#[test]
fn a_damaged_record_is_tried_again() {
    let mut file = Followed::new("events.out.tfevents.1", "");
    file.append("this is no length of a record");
    let mut readings = Vec::new();
    for _ in 0..2 {
        let outcome = file.reader.poll(&mut readings);
        assert!(matches!(outcome, Err(FileError::Damaged { at: 0, .. })), "{outcome:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_the_same_in_any_parts(
        name in prop::sample::select(vec!["a.csv", "a.jsonl", "a.wandb", "events.out.tfevents.1"]),
        bytes in prop::collection::vec(any::<u8>(), 1..600),
        part in 1..200_usize,
    ) {
        let mut file = Followed::new(name, "");
        let mut in_parts = Vec::new();
        for part in bytes.chunks(part) {
            File::options().append(true).open(&file.path).unwrap().write_all(part).unwrap();
            let _ = file.reader.poll(&mut in_parts);
        }
        let _ = file.reader.poll(&mut in_parts);
        fs::write(&file.path, &bytes).unwrap();
        let (mut whole, mut reader) = (Vec::new(), FileReader::open(&file.path).unwrap());
        for _ in 0..2 {
            let _ = reader.poll(&mut whole);
        }
        prop_assert_eq!(format!("{in_parts:?}"), format!("{whole:?}"));
    }
}
