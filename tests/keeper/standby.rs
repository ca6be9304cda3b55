//! The standby of a command: the process of the next attempt, started ahead, waits at its gate, begins where the run stands,
//! and leaves nothing behind when it is not needed. The script is Rust and waits at the gate as the Python package does.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use crate::helper::zoo::{Harness, left_behind, write_run};
use crate::helper::{Place, example, kill, parent_of, send_signal, stop_run, wait_for, wait_status};
use downshift::protocol::control::{Request, RunState};
use downshift::protocol::line;
use downshift::protocol::worker::{DoneReason, Event, NOT_BEGUN, Order};
use downshift::store::reader::Reader;
use downshift::store::run_dir::RunDir;
use downshift::store::socket_place::socket_of;
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;

/// Names the script like an interpreter: only one is started ahead.
fn python(dir: &Path) -> PathBuf {
    let path = dir.join("python");
    symlink(example("awkward_script"), &path).unwrap();
    path
}

/// Waits for the process that has the gate of an attempt open, and returns it.
fn at_gate(run_dir: &Path, attempt: u64, marker: &str) -> u32 {
    let gate = run_dir.join("attempts").join(attempt.to_string()).join("gate");
    wait_for("a process at the gate", || gate.exists().then_some(()));
    let setup = run_dir.join("attempts").join(attempt.to_string()).join("companion.json");
    let variable = format!("DOWNSHIFT_COMPANION={}", setup.display());
    wait_for("the standby", || {
        left_behind(marker).into_iter().find(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            !arguments.starts_with(b"downshift-command")
                && environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
        })
    })
}

fn scene(steps: u64) -> (tempfile::TempDir, String) {
    scene_of("loop", steps, "")
}

/// Creates a run whose script trains with this framework.
fn scene_of(framework: &str, steps: u64, more: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let marker = format!("zoo-{}", dir.path().file_name().unwrap().to_string_lossy());
    let steps = steps.to_string();
    let words =
        ["train", "--marker", &marker, "--companion", framework, "--every", "20", "--step-ms", "5", "--steps", &steps];
    write_run(dir.path(), &python(dir.path()), &words, &format!("knobs: {{ seed: 7 }}\n{more}"));
    (dir, marker)
}

fn weights(dir: &Path) -> Option<String> {
    let log = fs::read_to_string(dir.join("worker.log")).unwrap();
    log.lines().find_map(|line| Some(line.strip_prefix("weights ")?.trim().to_owned()))
}

#[test]
fn a_standby_begins_where_the_run_stands_with_the_process_that_waited() {
    let (whole, _) = scene(200);
    Harness::start(whole.path(), 1).read_all();
    let (dir, marker) = scene(200);
    let mut first = Harness::start(dir.path(), 1);
    first.wait_for("a checkpoint", |event| matches!(event, Event::Saved(saved) if saved.step == 20));
    let mut second = Harness::start_with(dir.path(), 2, &["--standby"]);
    let waiting = at_gate(dir.path(), 2, &marker);
    first.order(&Order::Stop { checkpoint: true });
    let last = first.read_all().into_iter().filter_map(|event| match event {
        Event::Step(step) => Some(step.step),
        _ => None,
    });
    let last = last.max().unwrap();
    assert_eq!(first.wait().code(), Some(3));
    second.order(&Order::Begin);
    let Event::Hello(hello) = second.next() else { panic!("a hello comes first") };
    assert_eq!(hello.resumed_from, Some(last), "the checkpoint that the first attempt wrote at its end");
    assert_eq!(commands(&marker), [waiting], "no other process was started");
    let events = second.read_all();
    let next = events.iter().find_map(|event| match event {
        Event::Step(step) => Some(step.step),
        _ => None,
    });
    assert_eq!(next, Some(last + 1));
    assert!(events.iter().any(|event| matches!(event, Event::Done { reason: DoneReason::Finished, .. })));
    assert_eq!((second.wait().code(), weights(dir.path())), (Some(0), weights(whole.path())));
    assert!(!dir.path().join("attempts/2/gate").exists());
}

/// Returns the processes of the command, without those that are yet to become it.
fn commands(marker: &str) -> Vec<u32> {
    let is_command = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        !arguments.starts_with(b"downshift")
    };
    left_behind(marker).into_iter().filter(is_command).collect()
}

#[test]
fn a_standby_ends_with_its_keeper_or_without_it() {
    let (dir, marker) = scene(200);
    let mut harness = Harness::start_with(dir.path(), 1, &["--standby"]);
    at_gate(dir.path(), 1, &marker);
    harness.hang_up();
    assert_eq!(harness.wait().code(), Some(i32::from(NOT_BEGUN)));
    assert_eq!(left_behind(&marker), Vec::<u32>::new());
    assert_eq!(fs::read_to_string(dir.path().join("worker.log")).unwrap(), "", "the script has not begun");
}

/// On a busy machine, a standby that a preview no longer wants may come to its files after the next one.
#[test]
fn a_standby_that_comes_late_leaves_the_files_of_the_next_alone() {
    let (dir, marker) = scene(200);
    let mut first = Harness::start_with(dir.path(), 1, &["--standby"]);
    let waiting = at_gate(dir.path(), 1, &marker);
    let mut late = Harness::start_with(dir.path(), 1, &["--standby"]);
    late.hang_up();
    first.order(&Order::Begin);
    first.wait_for("a step", |event| matches!(event, Event::Step(_)));
    assert_eq!(late.wait().code(), Some(i32::from(NOT_BEGUN)));
    assert_eq!(commands(&marker), [waiting]);
    let events = first.read_all();
    assert!(events.iter().any(|event| matches!(event, Event::Done { reason: DoneReason::Finished, .. })));
    assert_eq!(first.wait().code(), Some(0));
}

#[test]
fn a_standby_that_does_not_fit_or_has_died_is_replaced() {
    for dies in [false, true] {
        // The argument names the checkpoint that an attempt resumes from, which a standby cannot know.
        let (dir, marker) =
            scene_of("transformers", 200, "checkpoints: { match: 'none/*' }\nresume: { arguments: ['--at={step}'] }\n");
        let mut first = Harness::start(dir.path(), 1);
        first.wait_for("a checkpoint", |event| matches!(event, Event::Saved(saved) if saved.step == 20));
        let mut second = Harness::start_with(dir.path(), 2, &["--standby"]);
        let waiting = at_gate(dir.path(), 2, &marker);
        if dies {
            kill(waiting);
        }
        first.order(&Order::Stop { checkpoint: true });
        first.read_all();
        first.wait();
        second.order(&Order::Begin);
        second.wait_for("a step", |event| matches!(event, Event::Step(_)));
        let trains = commands(&marker);
        assert!(trains.len() == 1 && trains != [waiting], "{trains:?} instead of {waiting}");
        let events = second.read_all();
        assert!(events.iter().any(|event| matches!(event, Event::Done { reason: DoneReason::Finished, .. })));
        assert_eq!(second.wait().code(), Some(0));
    }
}

/// Asks the keeper of a run for something that it does not answer.
fn tell(run: &RunDir, request: &Request) {
    let mut client = UnixStream::connect(socket_of(run)).unwrap();
    client.write_all(line::encode(request).unwrap().as_bytes()).unwrap();
}

/// Starts a run with two rungs, and waits until its companion is there.
fn start_run() -> (Place, Child, RunDir, String) {
    let place = Place::real();
    let marker = place.dir.path().display().to_string();
    let text = format!(
        "name: kept\ntask: command\ncommand: [{}, train, --companion, loop, --marker, '{marker}', --every, '20', \
         --step-ms, '10', --steps, '100000', '--batch={{training.micro_batch}}']\ntraining: {{ micro_batch: 8 }}\n\
         ladder:\n\
         \x20 - {{ name: half, relieves: [memory], set: {{ training.micro_batch: 4 }} }}\n\
         \x20 - {{ name: quarter, relieves: [memory], set: {{ training.micro_batch: 2 }} }}\n",
        python(place.dir.path()).display()
    );
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    let (child, run) = place.start(&["--trust", "--device", "cpu"]);
    let status = wait_status(&run, "its companion", |status| status.companion.is_some() && status.step > 25);
    assert!(status.companion.unwrap().imports_ahead);
    (place, child, run, marker)
}

/// Sends a standby another order than the one to begin, as if it had waited too long, behind the keeper's back.
fn send_home(harness: u32) {
    let mut orders = fs::File::options().write(true).open(format!("/proc/{harness}/fd/0")).unwrap();
    orders.write_all(line::encode(&Order::Checkpoint).unwrap().as_bytes()).unwrap();
}

#[test]
fn a_standby_that_gave_up_costs_no_restart_and_a_preview_gets_another() {
    let (place, mut child, run, marker) = start_run();
    let preview = || tell(&run, &Request::StandBy { rung: Some("half".to_owned()) });
    preview();
    let first = at_gate(run.path(), 2, &marker);
    send_home(parent_of(first).unwrap());
    wait_for("its end", || (!commands(&marker).contains(&first)).then_some(()));
    let second = wait_for("another standby", || {
        preview();
        commands(&marker).len().checked_sub(2).map(|_| at_gate(run.path(), 2, &marker))
    });
    // It gives up just before the order to begin reaches it.
    let harness = parent_of(second).unwrap();
    send_signal(harness, Signal::STOP);
    send_home(harness);
    place.succeed(&["shift", "down"]);
    wait_for("the next attempt", || {
        let attempts = Reader::open(&run).ok()?.attempts().ok()?;
        (attempts.len() == 2 && attempts[1].pid == Some(harness)).then_some(())
    });
    send_signal(harness, Signal::CONT);
    let status = wait_status(&run, "the rung below", |status| status.rung == 1 && status.state == RunState::Training);
    assert_eq!((status.shifts, status.restarts, status.attempts), (1, 0, 2));
    assert!(!commands(&marker).contains(&second));
    stop_run(&place, &mut child);
}

#[test]
fn the_process_that_a_preview_started_takes_the_shift() {
    let (place, mut child, run, marker) = start_run();
    let trains = commands(&marker);
    assert_eq!(trains.len(), 1);

    // A preview of one rung, then of another, then of none.
    tell(&run, &Request::StandBy { rung: Some("quarter".to_owned()) });
    let first = at_gate(run.path(), 2, &marker);
    tell(&run, &Request::StandBy { rung: Some("half".to_owned()) });
    wait_for("the other rung", || (!commands(&marker).contains(&first)).then_some(()));
    tell(&run, &Request::StandBy { rung: None });
    wait_for("no standby", || (commands(&marker) == trains).then_some(()));
    wait_for("no gate", || (!run.path().join("attempts/2/gate").exists()).then_some(()));

    tell(&run, &Request::StandBy { rung: Some("half".to_owned()) });
    let waiting = at_gate(run.path(), 2, &marker);
    place.succeed(&["shift", "down"]);
    let status = wait_status(&run, "the rung below", |status| status.rung == 1 && status.state == RunState::Training);
    assert_eq!(commands(&marker), [waiting]);
    let status = wait_status(&run, "more steps", |now| now.step > status.step + 50);
    assert_eq!((status.shifts, status.restarts, status.attempts), (1, 0, 2));
    let steps: Vec<u64> = place.rows().iter().filter_map(|row| row["step"].as_u64()).collect();
    assert_eq!(steps, (1..=steps.len() as u64).collect::<Vec<_>>(), "no step was lost, and none was repeated");

    // One that waits does not outlive the run.
    tell(&run, &Request::StandBy { rung: Some("quarter".to_owned()) });
    at_gate(run.path(), 3, &marker);
    stop_run(&place, &mut child);
    wait_for("an empty place", || commands(&marker).is_empty().then_some(()));
}
