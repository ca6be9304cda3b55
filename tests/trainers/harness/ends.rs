//! The end of a command: nothing loses it, nothing that downshift ended itself is its cause, and nothing is left behind.

use super::keep;
use crate::helper::zoo::{Harness, left_behind, write_run};
use crate::helper::{
    Place, SLOW, example, journal, journal_says, kill, kill_keepers, send_signal, start_run, wait_for, wait_state,
    wait_status,
};
use downshift::protocol::control::RunState;
use downshift::protocol::worker::{CommandNews, DoneReason, Event};
use downshift::store::run_dir::RunDir;
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longer than any limit that a harness ever had for the delivery of the last events.
const LONG: Duration = Duration::from_secs(5);

/// Prints what PyTorch prints when a loader process is ended, once it is told to end. Started again, it finishes.
const LOADER: &str = r#"
    trap 'echo "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated."; exit 1' TERM
    if [ -e again ]; then
      for step in 1 2 3; do echo "step $step loss 1.0"; done
      exit 0
    fi
    touch again
    step=0
    while true; do
      step=$((step + 1))
      echo "step $step loss 1.0"
      sleep 0.05 &
      wait $!
    done
"#;

/// Waits until every limit has passed.
fn wait_long() {
    let since = Instant::now();
    wait_for("the end of every limit", || (since.elapsed() > LONG).then_some(()));
}

/// Waits until the run directory holds the end of a finished command, with its last step.
/// The harness records the end at the exit of the command, and again once it has read all that was printed.
fn wait_recorded(run: &Path, step: u64) {
    let step = format!("\"step\":{step},");
    let is_recorded = || {
        let text = fs::read_to_string(run.join("command-end.json")).unwrap_or_default();
        text.contains("finished") && text.contains(&step)
    };
    wait_for("the recorded end", || is_recorded().then_some(()));
}

/// Waits until no socket of a run is left.
fn wait_without_sockets(place: &Place) {
    let folder = place.dir.path().join("sockets/downshift");
    wait_for("no sockets", || fs::read_dir(&folder).map_or(Some(()), |mut left| left.next().is_none().then_some(())));
}

#[test]
fn a_keeper_that_reads_slowly_gets_the_whole_end() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["train", "--marker", "slow-reader", "--steps", "20000", "--step-ms", "0"];
    write_run(dir.path(), &example("awkward_script"), &words, "");
    let mut harness = Harness::start(dir.path(), 1);
    wait_recorded(dir.path(), 20_000);
    wait_long();
    let mut steps = 0;
    let done = harness.wait_for("the end", |event| {
        steps += u64::from(matches!(event, Event::Step(_)));
        matches!(event, Event::Done { .. })
    });
    assert!(matches!(done, Event::Done { reason: DoneReason::Finished, step: 20_000 }), "{done:?}");
    assert_eq!(steps, 20_000);
    assert_eq!(harness.wait().code(), Some(0));
}

#[test]
fn a_command_that_finished_while_its_keeper_stood_still_has_finished() {
    let place = Place::real();
    let (mut child, run, marker) = keep(&place, &["--steps", "4000", "--step-ms", "1"], "restart: from_start\n");
    let status = wait_status(&run, "steps", |status| status.step >= 5);
    let keeper = status.pid_keeper.unwrap();
    send_signal(keeper, Signal::STOP);
    wait_for("the end of the script", || left_behind(&marker).is_empty().then_some(()));
    wait_long();
    send_signal(keeper, Signal::CONT);
    assert_eq!(child.wait().unwrap().code(), Some(0), "{:#?}", journal(&run));
    let status = wait_state(&run, RunState::Finished);
    assert_eq!((status.attempts, status.step), (1, 4000), "{:#?}", journal(&run));
    wait_without_sockets(&place);
}

#[test]
fn the_end_of_a_command_outlives_its_harness_and_its_keeper() {
    for both in [false, true] {
        let place = Place::real();
        let (mut child, run, _) = keep(&place, &["--steps", "400", "--step-ms", "5"], "restart: from_start\n");
        let status = wait_status(&run, "steps", |status| status.step >= 5);
        let (keeper, harness) = (status.pid_keeper.unwrap(), status.pid_worker.unwrap());
        send_signal(keeper, Signal::STOP);
        wait_recorded(run.path(), 400);
        kill(harness);
        if both {
            kill(keeper);
        } else {
            send_signal(keeper, Signal::CONT);
        }
        assert_eq!(child.wait().unwrap().code(), Some(0), "{both}: {:#?}", journal(&run));
        let status = wait_state(&run, RunState::Finished);
        assert_eq!((status.attempts, status.step), (1, 400), "{both}: {:#?}", journal(&run));
        wait_without_sockets(&place);
    }
}

#[test]
fn a_harness_killed_after_a_takeover_is_no_fault_of_the_data() {
    let place = Place::real();
    fs::write(place.dir.path().join("train.sh"), LOADER).unwrap();
    write_run(place.dir.path(), Path::new("sh"), &["train.sh"], "restart: from_start\n");
    let (mut child, run) = place.start(&["--trust"]);
    let before = wait_status(&run, "steps", |status| status.step >= 5);
    kill(before.pid_keeper.unwrap());
    wait_for("another keeper", || journal_says(&run, "took over the running command").then_some(()));
    kill(before.pid_worker.unwrap());
    assert_eq!(child.wait().unwrap().code(), Some(0), "{:#?}", journal(&run));
    assert_eq!(wait_state(&run, RunState::Finished).attempts, 2, "{:#?}", journal(&run));
    assert!(fs::read_to_string(run.file("worker.log")).unwrap().contains("is killed by signal: Terminated"));
}

#[test]
fn what_a_command_prints_once_it_was_told_to_end_is_no_evidence() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("train.sh"), LOADER).unwrap();
    write_run(dir.path(), Path::new("sh"), &["train.sh"], "");
    let mut harness = Harness::start(dir.path(), 1);
    harness.wait_for("steps", |event| matches!(event, Event::Step(step) if step.step >= 3));
    harness.terminate();
    let is_end = |event: &Event| matches!(event, Event::Command { news: CommandNews::Ended { .. } });
    let Event::Command { news: CommandNews::Ended { log_end: Some(end), .. } } = harness.wait_for("the end", is_end)
    else {
        panic!("it was told to end")
    };
    harness.wait();
    let log = fs::read_to_string(dir.path().join("worker.log")).unwrap();
    let (before, after) = log.split_at(usize::try_from(end).unwrap());
    assert!(before.contains("step 3 ") && after.contains("is killed by signal: Terminated"), "{end}: {log}");
}

/// Deletes a directory that others still write to.
fn delete(run: &RunDir, aside: &Path) {
    fs::rename(run.path(), aside).unwrap();
    wait_for("an empty directory", || fs::remove_dir_all(aside).is_ok().then_some(()));
}

#[test]
fn without_its_run_directory_a_worker_is_ended_with_and_without_a_keeper() {
    let (kept, unattended) = (Place::real(), Place::real());
    let (mut child, run, marker) = keep(&kept, &["--seed", "127"], "");
    let (client, left, unattended_marker) = keep(&unattended, &[], "");
    let (scripted, mut scripted_child, scripted_run, _) = start_run(SLOW, 100_000, 5);
    wait_status(&run, "steps", |status| status.step >= 20);
    let status = wait_status(&left, "steps", |status| status.step >= 20);
    kill_keepers(client, &status);
    delete(&left, &unattended.dir.path().join("deleted"));
    delete(&run, &kept.dir.path().join("deleted"));
    delete(&scripted_run, &scripted.dir.path().join("deleted"));
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert_eq!(scripted_child.wait().unwrap().code(), Some(4));
    for marker in [marker, unattended_marker] {
        wait_for("the end of the command", || left_behind(&marker).is_empty().then_some(()));
    }
    for place in [&kept, &unattended, &scripted] {
        wait_for("the end of every process", || place.processes().is_empty().then_some(()));
    }
    assert!(!run.path().exists() && !left.path().exists(), "the directory was made again");
}
