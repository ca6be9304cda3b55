//! The real keeper determines why its worker ended, from external evidence only.

use crate::helper::{Place, SLOW, journal, journal_says, kill, wait_for, wait_status};
use downshift::protocol::cause::Cause;
use downshift::store::reader::Reader;
use downshift::store::run_dir::RunDir;
use std::fs::OpenOptions;
use std::io::Write;

/// Returns the first cause the keeper recorded.
fn cause(run: &RunDir) -> Cause {
    wait_for("a cause", || Reader::open(run).ok()?.causes().into_iter().next()).1
}

#[test]
fn reports_and_exits_of_a_worker_have_their_classes() {
    let cases = [
        ("oom@12", "device_out_of_memory", "the worker reported: "),
        ("panic@12", "panic", "the worker reported: "),
        ("exit0@12", "early_exit", "exit code 0 before the last step"),
        ("kill@12", "killed", "killed by SIGKILL"),
    ];
    for (fault, class, evidence) in cases {
        let place = Place::scripted();
        place.script("{ step_ms: 2, save_ms: 1 }", "");
        let (mut child, run) = place.start(&["--inject", fault]);
        let cause = cause(&run);
        assert_eq!(cause.class.word(), class, "{fault}: {cause:?}");
        assert!(cause.evidence.iter().any(|line| line.contains(evidence)), "{fault}: {cause:?}");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{fault}: the run goes on to its end");
        assert!(journal_says(&run, "cause: "), "{fault}");
        assert_eq!(Reader::open(&run).unwrap().causes().len(), 1, "{fault}: the good end has no cause");
    }
}

#[test]
fn the_journals_advice_on_device_memory_keeps_its_order() {
    let place = Place::scripted();
    place.script("{ step_ms: 2, save_ms: 1 }", "");
    let (mut child, run) = place.start(&["--inject", "oom@12"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let rows = journal(&run);
    let cause = &rows.iter().find(|row| row.text.starts_with("cause: ")).unwrap().text;
    let ways = ["micro-batch", "smaller model", "mixed precision", "accumulation"].map(|way| cause.find(way));
    assert!(ways.iter().all(Option::is_some) && ways.is_sorted(), "{cause}");
}

#[test]
fn a_trouble_that_ends_no_worker_is_a_cause_too() {
    let place = Place::scripted();
    place.script("{ step_ms: 2, save_ms: 1 }", "");
    let (mut child, run) = place.start(&["--inject", "nan@12-16"]);
    let cause = cause(&run);
    assert_eq!(cause.class.word(), "non_finite", "{cause:?}");
    assert_eq!(cause.evidence, ["5 steps in a row were not finite"]);
    assert_eq!(child.wait().unwrap().code(), Some(0), "the run goes on to its end");
    assert!(journal_says(&run, "shift down: full → safe, by the keeper: 5 steps in a row were not finite"));
}

#[test]
fn the_kernels_log_turns_a_bare_kill_into_a_cause() {
    let cases = [
        ("Out of memory: Killed process PID (exe) total-vm:1kB, anon-rss:1kB", "host_out_of_memory", None),
        ("NVRM: Xid (PCI:0000:01:00): 79, pid=PID, GPU has fallen off the bus.", "xid", Some(79)),
        ("NVRM: Xid (PCI:0000:01:00): 45, pid=PID, Ch 00000008", "killed", None),
    ];
    for (line, class, xid) in cases {
        let place = Place::scripted();
        place.script(SLOW, "");
        // From before the run, so it must not count as evidence.
        std::fs::write(place.dir.path().join("kern.log"), "NVRM: Xid (PCI:0000:01:00): 48, old\n").unwrap();
        let (_child, run) = place.start(&[]);
        let status = wait_status(&run, "steps", |status| status.step >= 5 && status.pid_worker.is_some());
        let pid = status.pid_worker.unwrap();
        let mut log = OpenOptions::new().append(true).open(place.dir.path().join("kern.log")).unwrap();
        writeln!(log, "{}", line.replace("PID", &pid.to_string())).unwrap();
        kill(pid);
        let cause = cause(&run);
        assert_eq!((cause.class.word(), cause.xid), (class, xid), "{cause:?}");
        place.output(&["stop"]);
    }
}
