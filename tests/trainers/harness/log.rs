//! worker.log of commands that print more than it holds.

use crate::helper::zoo::write_run;
use crate::helper::{Place, journal, kill, send_signal, wait_for, wait_state, wait_status};
use downshift::cockpit::log_tail::LogTail;
use downshift::protocol::control::RunState;
use downshift::store::run_dir::RunDir;
use downshift::store::worker_log::LogFiles;
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Child;

const LIMIT: u64 = 100_000;
/// More than the harness writes at once.
const CHUNK: u64 = 1 << 17;

/// Starts a script that prints about 2 kB with each step.
fn start(place: &mut Place, steps: &str, end: &str) -> (Child, RunDir) {
    place.variables.push(("DOWNSHIFT_LOG_LIMIT", LIMIT.to_string().into()));
    let script = format!(
        "for step in $(seq 1 {steps}); do echo \"step $step loss 0.5\"; seq 100000 100300; sleep 0.01; done\n{end}\n"
    );
    fs::write(place.dir.path().join("train.sh"), script).unwrap();
    write_run(place.dir.path(), Path::new("sh"), &["train.sh"], "");
    place.start(&["--trust"])
}

fn assert_bounded(run: &RunDir) {
    for name in ["worker.log", "worker.log.1", "worker.log.1.next", "worker.log.1.part"] {
        let length = fs::metadata(run.file(name)).map_or(0, |file| file.len());
        assert!(length <= LIMIT + CHUNK, "{name} has {length} bytes");
    }
}

fn end_of_output(run: &RunDir) -> u64 {
    LogFiles::open(&run.file("worker.log")).unwrap().end()
}

#[test]
fn a_log_within_its_bound_is_followed_and_names_the_cause() {
    let mut place = Place::real();
    // The cause is in the file before worker.log.
    let end = "echo 'RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB'; seq 100000 116000; exit 1";
    let (mut child, run) = start(&mut place, "300", end);
    let (mut tail, mut lines) = (LogTail::new(run.file("worker.log")), Vec::new());
    wait_for("the end of the script", || {
        assert_bounded(&run);
        lines.extend(tail.read_new_lines());
        child.try_wait().unwrap()
    });
    lines.extend(tail.read_new_lines());
    let steps: Vec<_> = lines.iter().filter(|line| line.starts_with("step ")).cloned().collect();
    assert_eq!(steps, (1..=300).map(|step| format!("step {step} loss 0.5")).collect::<Vec<_>>());
    assert!(!fs::read_to_string(run.file("worker.log")).unwrap().contains("CUDA out of memory"));
    let journal = journal(&run);
    assert!(journal.iter().any(|row| row.text.contains("out of memory")), "{journal:#?}");
    let named = place.succeed(&["triage"]);
    assert!(named.contains("CUDA out of memory"), "{named}");
    let bundle = place.succeed(&["bundle"]);
    assert!(bundle.contains("worker.log.1\n"), "{bundle}");
}

#[test]
fn a_log_stays_within_its_bound_whoever_is_killed() {
    let mut place = Place::real();
    let (mut child, run) = start(&mut place, "1000000", "");
    let mut status = wait_status(&run, "a full log", |status| status.step >= 100);
    for _ in 0..3 {
        let before = status;
        kill(before.pid_keeper.unwrap());
        status = wait_status(&run, "another keeper", |status| {
            assert_bounded(&run);
            status.pid_keeper.is_some_and(|pid| Some(pid) != before.pid_keeper) && status.step > before.step + 60
        });
        assert_eq!((status.attempts, status.pid_worker), (1, before.pid_worker), "{:#?}", journal(&run));
    }
    // The second holder of the output writes the log alone.
    send_signal(status.pid_keeper.unwrap(), Signal::STOP);
    kill(status.pid_worker.unwrap());
    let before = end_of_output(&run);
    assert!(before > 3 * LIMIT, "{before}");
    wait_for("more output", || {
        assert_bounded(&run);
        (end_of_output(&run) > before + 3 * LIMIT).then_some(())
    });
    send_signal(status.pid_keeper.unwrap(), Signal::CONT);
    assert_eq!(child.wait().unwrap().code(), Some(4), "{:#?}", journal(&run));
    wait_state(&run, RunState::NeedsPerson);
    assert_bounded(&run);
}

#[test]
fn the_log_of_a_worker_stays_within_its_bound() {
    let mut place = Place::scripted();
    place.variables.push(("DOWNSHIFT_LOG_LIMIT", LIMIT.to_string().into()));
    place.script("{ step_ms: 20, save_ms: 1 }", "");
    let (_child, run) = place.start(&["--set", "training.steps=100000"]);
    wait_status(&run, "steps", |status| status.step > 5);
    let before = end_of_output(&run);
    // The worker's stderr is this file.
    let mut log = run.append("worker.log").unwrap();
    for round in 1..=3 {
        log.write_all(&vec![b'\n'; LIMIT as usize]).unwrap();
        wait_for("an empty log", || (log.metadata().unwrap().len() < LIMIT).then_some(()));
        wait_for("the output before it", || (end_of_output(&run) == before + round * LIMIT).then_some(()));
    }
    assert_bounded(&run);
}
