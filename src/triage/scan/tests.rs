//! Logs and the findings in them.

use super::{MAX_LINES, scan};
use crate::protocol::class::FailureClass;
use crate::triage::catalogue::Catalogue;
use proptest::prelude::*;
use std::io::BufReader;
use std::sync::LazyLock;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::build(None).unwrap());

fn scan_bytes(text: &[u8]) -> super::Scan {
    // A small buffer, so that lines are assembled from parts.
    scan(&mut BufReader::with_capacity(7, text), &CATALOGUE).unwrap()
}

#[test]
fn lines_are_counted_and_colours_progress_bars_and_odd_bytes_do_no_harm() {
    let log = b"ok\n\x1b[31mRuntimeError: CUDA out of \x1b[0mmemory. Tried to allocate 2.00 GiB\x1b[0m\r\n\xff\xfe\n\
                10%|#\r20%|##\rRuntimeError: No space left on device\rx";
    let scan = scan_bytes(log);
    assert_eq!(scan.lines, 4);
    let seen: Vec<_> = scan.findings.iter().map(|found| (found.class, found.line, found.text.as_str())).collect();
    assert_eq!(
        seen,
        [
            (FailureClass::DeviceOutOfMemory, 2, "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"),
            (FailureClass::DiskFull, 4, "RuntimeError: No space left on device"),
        ]
    );
}

#[test]
fn an_exception_after_bad_numbers_is_told_beside_them() {
    let traceback = "Traceback (most recent call last):\n  File \"/home/me/train.py\", line 9, in <module>\n    \
                     save(path)\n";
    let classes = |log: String| -> Vec<FailureClass> {
        scan_bytes(log.as_bytes()).findings.iter().map(|found| found.class).collect()
    };
    let ended = |by: &str| classes(format!("step 7 loss: nan\n{traceback}{by}\n"));
    let cause = |by: &str| {
        let scan = scan_bytes(format!("step 7 loss: nan\n{traceback}{by}\n").as_bytes());
        scan.root_cause().map(|root| root.class)
    };
    assert_eq!(cause("KeyError: 'step'"), Some(FailureClass::Exception), "NaN ends no script");
    assert_eq!(cause("AssertionError: loss is not finite"), Some(FailureClass::NonFinite), "but its check does");
    assert_eq!(ended("KeyError: 'step'"), [FailureClass::NonFinite, FailureClass::Exception]);
    assert_eq!(ended("ValueError: Input contains NaN"), [FailureClass::NonFinite; 2]);
    let out_of_memory = format!("CUDA out of memory. Tried to allocate 2.00 GiB\n{traceback}KeyError: 'step'\n");
    assert_eq!(classes(out_of_memory), [FailureClass::DeviceOutOfMemory, FailureClass::Exception]);
}

#[test]
fn a_flood_is_counted_not_kept() {
    let log = "loss: nan\n".repeat(MAX_LINES + 500);
    let scan = scan_bytes(log.as_bytes());
    assert_eq!((scan.findings.len(), scan.left_out["loss-nan"]), (MAX_LINES, 500));
}

#[test]
fn a_line_without_end_is_bounded_and_shown_in_part() {
    let log = format!("{}RuntimeError: CUDA out of memory. Tried to allocate{}", "x ".repeat(3000), "y".repeat(90_000));
    let scan = scan_bytes(log.as_bytes());
    assert!(scan.findings[0].text.contains("CUDA out of memory"));
    assert!(scan.findings[0].text.chars().count() < 420);
}

#[test]
fn an_xid_has_its_own_meaning_and_symptoms_give_way() {
    let scan = scan_bytes(b"NVRM: Xid (PCI:0000:01:00): 45, pid=1, name=python\nNVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n");
    assert!(scan.findings[0].symptom);
    let root = scan.root_cause().unwrap();
    assert_eq!((root.class, root.line), (FailureClass::Xid, 2));
    assert!(root.meaning.contains("Xid 79") && root.meaning.contains("bus"));
}

proptest! {
    #[test]
    fn no_log_brings_the_scan_down(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let lines = scan(&mut bytes.as_slice(), &CATALOGUE).unwrap().lines;
        let ends = bytes.split(|byte| *byte == b'\n').count() as u64 - 1;
        prop_assert!(lines == ends || lines == ends + 1);
    }
}
