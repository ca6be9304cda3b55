//! A small bound, and the states that a killed process leaves.

use super::{BoundedLog, LogFiles, NAME, OLDER, open_log};
use crate::untrusted::poll::poll_within;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

const LIMIT: u64 = 100;
const NEXT: &str = "worker.log.1.next";
const PART: &str = "worker.log.1.part";
const HEAD: &str = "downshift: worker.log continues this output, which begins at byte ";

fn open(folder: &Path) -> BoundedLog {
    let file = fs::OpenOptions::new().append(true).create(true).open(folder.join(NAME)).unwrap();
    BoundedLog::with_limit(file, LIMIT)
}

fn read(folder: &Path, from: u64, to: u64) -> String {
    let mut text = String::new();
    LogFiles::open(&folder.join(NAME)).unwrap().read(from, to).unwrap().read_to_string(&mut text).unwrap();
    text
}

/// The whole output: line `n` begins at byte `10 * n`.
fn line(number: usize) -> String {
    format!("line {number:04}\n")
}

#[test]
fn a_full_log_moves_and_positions_stay_valid() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, other) = (open(folder.path()), open(folder.path()));
    for number in 0..1000 {
        // A child that another test has just forked may hold the lock for a moment.
        let is_free = || open_log(&folder.path().join(NAME)).unwrap().try_lock().ok();
        poll_within(Duration::from_secs(10), Duration::from_millis(1), is_free).unwrap();
        if number % 7 == 0 {
            open(folder.path()).write(line(number).as_bytes());
        } else {
            log.write(line(number).as_bytes());
        }
        let end = 10 * (number as u64 + 1);
        assert_eq!((log.end(), other.end()), (Some(end), Some(end)));
        let files = LogFiles::open(&folder.path().join(NAME)).unwrap();
        assert!(files.start() == 0 || end - files.start() >= LIMIT, "{files:?}");
        let last = (number + 1).saturating_sub(5)..=number;
        assert_eq!(read(folder.path(), end.saturating_sub(50), end), last.map(line).collect::<String>());
        for name in [NAME, OLDER] {
            let length = fs::metadata(folder.path().join(name)).map_or(0, |file| file.len());
            assert!(length <= 2 * LIMIT + HEAD.len() as u64 + 10, "{name} has {length} bytes");
        }
    }
    assert_eq!(read(folder.path(), 0, 9920), line(990) + &line(991), "the rest is gone");
    let mut whole = String::new();
    LogFiles::open(&folder.path().join(NAME)).unwrap().read_whole().unwrap().read_to_string(&mut whole).unwrap();
    assert!(whole.starts_with(&format!("{HEAD}9900\n{}", line(990))) && whole.ends_with(&line(999)), "{whole}");
    assert_eq!(LogFiles::open(&folder.path().join(NAME)).unwrap().tail(10).unwrap(), line(999));
}

#[test]
fn a_process_that_is_killed_on_the_way_loses_nothing() {
    let content: String = (20..30).map(line).collect();
    let older = format!("{HEAD}100\n{}", (10..20).map(line).collect::<String>());
    let copy = format!("{HEAD}200\n{content}");
    let late = line(30);
    let states: [(&str, &str, Option<&str>, Option<&str>); 5] = [
        ("full", &content, None, None),
        ("partly copied", &content, Some(&copy[..80]), None),
        ("copied", &content, None, Some(&copy)),
        ("copied, and more was written", &(content.clone() + &late), None, Some(&copy)),
        ("truncated", "", None, Some(&copy)),
    ];
    for (state, newer, part, next) in states {
        let folder = tempfile::tempdir().unwrap();
        let write = |name, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(OLDER, &older);
        write(NAME, newer);
        for (name, text) in [(PART, part), (NEXT, next)] {
            if let Some(text) = text {
                write(name, text);
            }
        }
        let expected = if newer.ends_with(&late) { content.clone() + &late } else { content.clone() };
        assert_eq!(read(folder.path(), 200, 1000), expected, "{state}: before");
        let mut log = open(folder.path());
        assert_eq!(read(folder.path(), 200, 1000), expected, "{state}: after");
        assert_eq!(fs::metadata(folder.path().join(NAME)).unwrap().len(), 0, "{state}");
        assert!(!folder.path().join(NEXT).exists() && !folder.path().join(PART).exists(), "{state}");
        log.write(b"more\n");
        assert_eq!(read(folder.path(), 200, 1000), expected + "more\n", "{state}: written");
    }
}

#[test]
fn other_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.log");
    let file = fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let mut log = BoundedLog::with_limit(file, 1);
    log.write(b"abc");
    assert_eq!((fs::read(&path).unwrap().as_slice(), log.end()), (&b"abc"[..], Some(3)));
    // A log that the user moved while it is written.
    let mut log = open(folder.path());
    log.write(&[b'x'; 60]);
    fs::rename(folder.path().join(NAME), folder.path().join("archive.log")).unwrap();
    log.write(&[b'x'; 60]);
    log.write(&[b'x'; 60]);
    assert_eq!(fs::metadata(folder.path().join("archive.log")).unwrap().len(), 180);
    assert!(!folder.path().join(OLDER).exists() && !folder.path().join(NAME).exists());
    // A file of this name that logrotate wrote.
    fs::write(folder.path().join(OLDER), "step 1\n").unwrap();
    fs::write(folder.path().join(NAME), "step 2\n").unwrap();
    let files = LogFiles::open(&folder.path().join(NAME)).unwrap();
    assert_eq!((files.start(), files.end()), (0, 7));
}

#[test]
fn of_a_log_from_before_the_bound_the_end_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(NAME), (0..100).map(line).collect::<String>()).unwrap();
    open(folder.path());
    let files = LogFiles::open(&folder.path().join(NAME)).unwrap();
    assert_eq!((files.start(), files.begin_of_newer(), files.end()), (900, 1000, 1000), "{files:?}");
    assert_eq!(read(folder.path(), 0, 1000), (90..100).map(line).collect::<String>());
    assert_eq!(fs::metadata(folder.path().join(NAME)).unwrap().len(), 0);
}
