//! The worker as a process: contract, exit codes, panics, lock, the death of its reader.
//!
//! The test binary starts itself again; `the_worker_itself` is the worker if the environment says so, and an
//! empty test otherwise.

use super::harness::{args, preset, registry, tensors, with};
use downshift::protocol::inject::Inject;
use downshift::protocol::line;
use downshift::protocol::worker::{DoneReason, Event, FailureClass, Order, PROTOCOL};
use downshift::store::checkpoint::{self, state::Row};
use downshift::train::worker::{self, FailureRecord};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process};
use serde_json::json;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const RUN_DIR: &str = "DOWNSHIFT_TEST_RUN_DIR";
const INJECT: &str = "DOWNSHIFT_TEST_INJECT";
const EPOCHS: &str = "DOWNSHIFT_TEST_EPOCHS";
const SAVE: &str = "DOWNSHIFT_TEST_SAVE";

#[test]
fn the_worker_itself() {
    let Ok(run_dir) = std::env::var(RUN_DIR) else { return };
    let epochs: u64 = std::env::var(EPOCHS).unwrap().parse().unwrap();
    let save = std::env::var(SAVE).unwrap();
    let knobs = [
        ("training.epochs", json!(epochs)),
        ("evaluation.every", json!("7 epochs")),
        ("checkpoint.every", json!(save)),
    ];
    let mut args = args(Path::new(&run_dir), with(preset(0.3), &knobs));
    args.inject = Inject::parse_list(&std::env::var(INJECT).unwrap()).unwrap();
    println!(); // Behind what the test harness has written on this line.
    worker::run_worker(&args, &registry());
}

struct Worker {
    child: Child,
    events: Receiver<Event>,
}

/// Starts a worker and reads its events; lines that are not events come from the test harness.
fn start(run: &Path, epochs: u64, inject: &str) -> Worker {
    start_saving(run, epochs, inject, "never")
}

fn start_saving(run: &Path, epochs: u64, inject: &str, save: &str) -> Worker {
    let (worker, out) = start_unread(run, epochs, inject, save);
    listening(worker, out)
}

/// Reads a worker's output.
fn listening(mut worker: Worker, out: BufReader<ChildStdout>) -> Worker {
    let (give, events) = channel();
    worker.events = events;
    thread::spawn(move || {
        for text in out.lines() {
            line::decode(&text.unwrap()).map(|event| give.send(event).ok());
        }
    });
    worker
}

fn start_unread(run: &Path, epochs: u64, inject: &str, save: &str) -> (Worker, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["train::process::the_worker_itself", "--exact", "--nocapture", "--test-threads=1"])
        .env(RUN_DIR, run)
        .env(INJECT, inject)
        .env(EPOCHS, epochs.to_string())
        .env(SAVE, save)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (Worker { child, events: channel().1 }, out)
}

/// Long enough to be stopped midway.
const LONG: u64 = 1_000_000;

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Worker {
    /// Returns the next event; None once the worker is gone.
    fn event(&mut self) -> Option<Event> {
        match self.events.recv_timeout(Duration::from_mins(1)) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("nothing for a minute"),
        }
    }

    fn wait_for(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        let asked = Instant::now();
        while let Some(event) = self.event() {
            if wanted(&event) {
                return event;
            }
            assert!(asked.elapsed() < Duration::from_mins(1), "it does not come");
        }
        panic!("the worker ended first");
    }

    fn order(&mut self, order: Order) {
        let text = line::encode(&order).unwrap();
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Returns all remaining events and the exit code; negative for a signal.
    fn end(mut self) -> (Vec<Event>, i32) {
        let events = std::iter::from_fn(|| self.event()).collect();
        let status = self.child.wait().unwrap();
        (events, status.code().unwrap_or_else(|| -status.signal().unwrap()))
    }
}

fn failed(events: &[Event]) -> (FailureClass, Option<u64>, bool) {
    let Some(Event::Failed(failed)) = events.last() else { panic!("no failure: {events:?}") };
    (failed.class, failed.step, failed.injected)
}

#[test]
fn a_whole_run_speaks_the_contract() {
    let run = TempDir::new().unwrap();
    let (events, code) = start(run.path(), 4, "").end();
    assert_eq!(code, 0);
    let Some(Event::Hello(hello)) = events.first() else { panic!("{events:?}") };
    assert_eq!((hello.protocol, hello.device.as_str(), hello.backend.as_str()), (PROTOCOL, "cpu", "f32"));
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Step(_))).count(), 24);
    assert_eq!(events.last(), Some(&Event::Done { reason: DoneReason::Finished, step: 24 }));
    let saved = events.iter().any(|event| matches!(event, Event::Saved(saved) if saved.step == 24));
    assert!(saved && checkpoint::newest_valid(run.path()).0.unwrap().manifest.step == 24);
    assert!(!run.path().join(worker::FAILURE_FILE).exists());
}

#[test]
fn a_panic_of_a_device_thread_ends_the_worker_as_out_of_memory() {
    let run = TempDir::new().unwrap();
    let (events, code) = start(run.path(), LONG, "oom@5").end();
    assert_eq!(code, 10);
    assert_eq!(failed(&events), (FailureClass::DeviceOutOfMemory, Some(5), true));
    let steps = events.iter().filter(|event| matches!(event, Event::Step(_))).count();
    assert_eq!(steps, 4, "no step counts after the failed allocation");
    assert!(events.contains(&Event::Injected { fault: "oom@5".into(), step: 5 }));
    let record: FailureRecord =
        serde_json::from_slice(&fs::read(run.path().join(worker::FAILURE_FILE)).unwrap()).unwrap();
    assert_eq!((record.attempt, record.failed.class), (1, FailureClass::DeviceOutOfMemory));
    assert_eq!(record.failed.thread.as_deref(), Some("DSD-0-0"));
}

#[test]
fn every_other_end_has_its_exit_code() {
    for (inject, code) in [("panic@3", 101), ("exit0@3", 0), ("kill@3", -9), ("nan@3-50", 12)] {
        let run = TempDir::new().unwrap();
        let (events, ended) = start(run.path(), LONG, inject).end();
        assert_eq!(ended, code, "{inject}");
        assert!(events.contains(&Event::Injected { fault: inject.into(), step: 3 }), "{inject}: {events:?}");
        let finished = events.iter().any(|event| matches!(event, Event::Done { .. }));
        assert!(!finished, "{inject}");
    }
}

#[test]
fn orders_are_executed_and_a_second_worker_waits_for_the_first() {
    let run = TempDir::new().unwrap();
    let mut first = start(run.path(), LONG, "");
    first.wait_for(|event| matches!(event, Event::Step(_)));
    let lock: serde_json::Value =
        serde_json::from_slice(&fs::read(run.path().join(worker::LOCK_FILE)).unwrap()).unwrap();
    assert_eq!(lock["pid"], first.child.id());
    let mut second = start(run.path(), LONG, "");
    first.order(Order::Checkpoint);
    let Event::Saved(saved) = first.wait_for(|event| matches!(event, Event::Saved(_))) else { unreachable!() };
    first.wait_for(|event| matches!(event, Event::Step(step) if step.step > saved.step));
    first.order(Order::Stop { checkpoint: true });
    let (events, code) = first.end();
    let Some(Event::Done { reason: DoneReason::Stopped, step }) = events.last() else { panic!("{events:?}") };
    assert_eq!(code, 3);
    // The second one was waiting all along and starts where the first one ended.
    second.wait_for(|event| matches!(event, Event::Hello(hello) if hello.resumed_from == Some(*step)));
    second.order(Order::Stop { checkpoint: false });
    assert_eq!(second.end().1, 3);
}

#[test]
fn a_worker_without_a_listener_saves_and_exits() {
    let run = TempDir::new().unwrap();
    let mut lonely = start(run.path(), LONG, "");
    lonely.wait_for(|event| matches!(event, Event::Step(_)));
    drop(lonely.child.stdin.take());
    let (events, code) = lonely.end();
    assert_eq!(code, 3);
    let Some(Event::Done { reason: DoneReason::Stopped, step }) = events.last() else { panic!("{events:?}") };
    assert_eq!(checkpoint::newest_valid(run.path()).0.unwrap().manifest.step, *step);

    let (mut deaf, mut out) = start_unread(run.path(), LONG, "", "never");
    let mut text = String::new();
    while !matches!(line::decode(&text), Some(Event::Step(_))) {
        text.clear();
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "the worker ended first");
    }
    drop(out);
    assert_eq!(deaf.child.wait().unwrap().code(), Some(3));
    assert!(checkpoint::newest_valid(run.path()).0.unwrap().manifest.step > *step);
}

#[test]
fn a_hanging_worker_exits_5_s_after_the_keeper() {
    let run = TempDir::new().unwrap();
    let mut hanging = start(run.path(), LONG, "hang@3");
    hanging.wait_for(|event| matches!(event, Event::Injected { .. }));
    let asked = Instant::now();
    drop(hanging.child.stdin.take());
    let mut log = String::new();
    hanging.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert_eq!(hanging.end().1, 3, "{log}");
    assert!(asked.elapsed() < Duration::from_secs(8));
}

#[test]
fn sigterm_saves_and_stops_and_a_second_one_exits_at_once() {
    let run = TempDir::new().unwrap();
    let mut worker = start(run.path(), LONG, "");
    worker.wait_for(|event| matches!(event, Event::Step(_)));
    let pid = Pid::from_raw(worker.child.id().cast_signed()).unwrap();
    // As in a machine shutdown: the system's signal and the keeper's order arrive at the same moment.
    worker.order(Order::Stop { checkpoint: true });
    kill_process(pid, Signal::TERM).unwrap();
    let (mut last, mut done) = (0, 0);
    while let Some(event) = worker.event() {
        match event {
            Event::Step(step) => last = step.step,
            Event::Done { step, .. } => done = step,
            _ => {}
        }
    }
    assert_eq!(worker.end().1, 3);
    assert!(done >= last && done > 0);
    assert_eq!(checkpoint::newest_valid(run.path()).0.unwrap().manifest.step, done, "nothing was lost");
    let other = TempDir::new().unwrap();
    let mut hanging = start(other.path(), LONG, "hang@3");
    hanging.wait_for(|event| matches!(event, Event::Injected { .. }));
    let pid = Pid::from_raw(hanging.child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let told = Instant::now();
    while told.elapsed() < Duration::from_millis(1500) {
        assert!(hanging.child.try_wait().unwrap().is_none(), "it waits for the next step boundary");
        thread::park_timeout(Duration::from_millis(50));
    }
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(hanging.end().1, 3);
}

/// Limits the bytes a process may write to one file; writes beyond it fail as on a full disk.
fn limit_files(pid: u32, bytes: Option<u64>) {
    let limit = Rlimit { current: bytes, maximum: None };
    rustix::process::prlimit(Pid::from_raw(pid.cast_signed()), Resource::Fsize, limit).unwrap();
}

#[test]
fn training_continues_while_the_disk_refuses_checkpoints_and_saves_again_afterwards() {
    let run = TempDir::new().unwrap();
    let mut worker = start_saving(run.path(), LONG, "", "5 steps");
    let Event::Saved(kept) = worker.wait_for(|event| matches!(event, Event::Saved(_))) else { unreachable!() };
    limit_files(worker.child.id(), Some(512));
    let mut failed: Vec<u64> = Vec::new();
    // A save that had to wait for a slow one comes between two that are due.
    let trains_on = |failed: &[u64]| failed.len() >= 4 && failed[failed.len() - 1] - failed[0] >= 10;
    while failed.len() < 16 && !trains_on(&failed) {
        match worker.event().unwrap() {
            Event::SaveFailed { step, message, .. } => {
                assert!(message.contains("cannot write") && message.contains("step-"), "{message}");
                failed.push(step);
            }
            // Saves that were in progress when the limit was set.
            Event::Saved(saved) => assert!(failed.is_empty(), "{saved:?} after {failed:?}"),
            _ => {}
        }
    }
    assert!(failed.is_sorted_by(|a, b| a < b) && trains_on(&failed), "it did not train on: {failed:?}");
    let before = checkpoint::list(run.path());
    assert!(before.iter().any(|entry| entry.step >= kept.step), "the old ones are still there");
    assert!(before.iter().all(|entry| checkpoint::verify(&entry.path).is_ok()), "and whole");
    worker.order(Order::Stop { checkpoint: true });
    worker.wait_for(|event| matches!(event, Event::StopRefused { message, .. } if message.contains("cannot write")));
    worker.wait_for(|event| matches!(event, Event::Step(_)));
    limit_files(worker.child.id(), None);
    let Event::Saved(saved) = worker.wait_for(|event| matches!(event, Event::Saved(_))) else { unreachable!() };
    assert!(saved.step > failed[3]);
    worker.order(Order::Stop { checkpoint: true });
    assert_eq!(worker.end().1, 3);
    // The rows in between came with the first successful save: the curve has no gap.
    let mut rows: Vec<u64> = Vec::new();
    for entry in checkpoint::list(run.path()) {
        for row in Row::read_all(&checkpoint::load(&entry.path).unwrap().files[checkpoint::STEPS]) {
            rows.extend(if let Row::Step(row) = row { Some(row.step) } else { None });
        }
    }
    rows.sort_unstable();
    assert_eq!(rows, (1..=*rows.last().unwrap()).collect::<Vec<_>>());
}

#[test]
fn a_last_step_that_cannot_be_written_is_reported_as_a_full_disk() {
    let run = TempDir::new().unwrap();
    let mut worker = start_saving(run.path(), 100, "", "5 steps");
    worker.wait_for(|event| matches!(event, Event::Saved(_)));
    limit_files(worker.child.id(), Some(512));
    let Event::Failed(failed) = worker.wait_for(|event| matches!(event, Event::Failed(_))) else { unreachable!() };
    assert_eq!(failed.class, FailureClass::DiskFull, "{failed:?}");
    assert!(failed.message.contains("the last step, ") && failed.message.contains("cannot write"), "{failed:?}");
    assert_eq!(worker.end().1, i32::from(FailureClass::DiskFull.exit_code()));
}

#[test]
fn too_little_disk_space_is_reported_before_the_save() {
    // A dedicated file system that is nearly full; skipped if none can be mounted.
    let run = TempDir::new().unwrap();
    let mount = |words: &[&str]| {
        let done = Command::new(words[0]).args(&words[1..]).arg(run.path()).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success())
    };
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs"]) {
        eprintln!("not tried: mounting needs a privilege that this place lacks");
        return;
    }
    let unmounted = std::panic::catch_unwind(|| {
        let mut worker = start_saving(run.path(), LONG, "", "5 steps");
        let failure = worker.wait_for(|event| matches!(event, Event::SaveFailed { .. }));
        let Event::SaveFailed { message, .. } = failure else { unreachable!() };
        assert!(message.contains("free") && message.contains("are needed"), "{message}");
        let begun = fs::read_dir(run.path().join(checkpoint::FOLDER)).into_iter().flatten().count();
        assert_eq!(begun, 0, "a save was begun");
        worker.wait_for(|event| matches!(event, Event::Step(_)));
        assert!(mount(&["mount", "-o", "remount,size=8m"]));
        worker.wait_for(|event| matches!(event, Event::Saved(_)));
        worker.order(Order::Stop { checkpoint: false });
        assert_eq!(worker.end().1, 3);
    });
    assert!(mount(&["umount"]));
    unmounted.unwrap();
}

#[test]
fn a_run_killed_repeatedly_equals_the_unbroken_run() {
    let (whole_run, run) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (epochs, last) = (300, 1800);
    assert_eq!(start(whole_run.path(), epochs, "").end().1, 0);
    // Saves run as fast as the disk allows, so kills hit many of them midway.
    let (mut finished, mut kills) = (false, 0);
    while !finished {
        let mut worker = start_saving(run.path(), epochs, "", "1 step");
        let mut left = 3 + 29 * kills % 101 + 10 * kills;
        while let Some(event) = worker.event() {
            left -= u64::from(matches!(event, Event::Step(_)));
            if left == 0 {
                worker.child.kill().unwrap();
                kills += 1;
                break;
            }
        }
        finished = worker.end().1 == 0;
        assert!(kills < 200, "it does not get on");
    }
    assert!(kills > 5, "only {kills} kills");
    assert_eq!(tensors(run.path(), last), tensors(whole_run.path(), last));
}
