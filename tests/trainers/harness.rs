//! Commands under the real harness and the real keeper: whatever dies, nothing is left behind, nothing blocks, and
//! a living command goes on.

#![expect(clippy::unwrap_used, clippy::panic, reason = "the helpers of a test fail by panicking, as the test does")]

mod ends;
mod log;

use crate::helper::zoo::{Harness, left_behind, write_run};
use crate::helper::{Place, example, journal, journal_says, kill, wait_for, wait_state, wait_status};
use downshift::protocol::control::RunState;
use downshift::protocol::worker::{CommandNews, DoneReason, Event, Order};
use downshift::store::adopted;
use downshift::store::run_dir::RunDir;
use std::path::Path;
use std::time::{Duration, Instant};

/// Nothing of a stopped run may be left after this time: five seconds, on a machine with a load of ten.
const GONE: Duration = Duration::from_secs(40);

/// Returns a run directory whose command is the awkward script with these arguments.
fn place(arguments: &[&str], more: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let marker = format!("zoo-{}", dir.path().file_name().unwrap().to_string_lossy());
    let script = example("awkward_script");
    write_run(dir.path(), &script, &[&["train", "--marker", &marker], arguments].concat(), more);
    (dir, marker)
}

/// Waits until no process with the marker is alive, and fails if that takes too long.
fn wait_until_gone(marker: &str, since: Instant, what: &str) {
    let gone = wait_for("an empty zoo", || {
        let left = left_behind(marker);
        if left.is_empty() {
            Some(since.elapsed())
        } else {
            assert!(since.elapsed() < GONE, "{what}: {left:?}");
            None
        }
    });
    assert!(gone < GONE, "{what}: {gone:?}");
}

#[test]
fn of_fifty_awkward_scripts_nothing_is_left() {
    let cases: Vec<u64> = (0..50).map(|case| case * 37 % 512).collect();
    std::thread::scope(|scope| {
        for lane in 0..4 {
            let cases = &cases;
            scope.spawn(move || cases.iter().skip(lane).step_by(4).for_each(|seed| leave_nothing(*seed)));
        }
    });
}

/// Runs one awkward script until it exits on its own, is ordered to stop, or loses its harness.
fn leave_nothing(seed: u64) {
    let seed_text = seed.to_string();
    let ends_itself = seed.is_multiple_of(2);
    let steps = if ends_itself { "10" } else { "1000000" };
    let (dir, marker) = place(&["--seed", &seed_text, "--steps", steps], "");
    let mut harness = Harness::start(dir.path(), 1);
    harness.wait_for("steps", |event| matches!(event, Event::Step(step) if step.step >= 5));
    let since = Instant::now();
    if !ends_itself {
        assert!(!left_behind(&marker).is_empty());
        harness.order(&Order::Stop { checkpoint: true });
    }
    let ended =
        harness.wait_for("its end", |event| matches!(event, Event::Command { news: CommandNews::Ended { .. } }));
    let Event::Command { news: CommandNews::Ended { code, signal, .. } } = ended else { panic!("{ended:?}") };
    let what = format!("seed {seed}");
    match (ends_itself, seed % 3) {
        (true, 0) => assert_eq!((code, signal), (Some(0), None), "{what}"),
        (true, 1) => assert_eq!((code, signal), (Some(1), None), "{what}"),
        (true, _) => assert_eq!((code, signal), (None, Some(9)), "{what}"),
        (false, _) => assert!(signal.is_some(), "{what}: {code:?} {signal:?}"),
    }
    let wanted = match (ends_itself, seed % 3) {
        (true, 0) => 0,
        (true, _) => 1,
        (false, _) => 3,
    };
    assert_eq!(harness.wait().code(), Some(wanted), "{what}");
    wait_until_gone(&marker, since, &what);
}

#[test]
fn a_dead_harness_neither_blocks_nor_breaks_its_command() {
    for terminal in ["true", "false"] {
        let (dir, marker) = place(&["--step-ms", "1"], &format!("terminal: {terminal}\n"));
        let mut harness = Harness::start(dir.path(), 1);
        harness.wait_for("steps", |event| matches!(event, Event::Step(step) if step.step >= 5));
        harness.kill();
        let log = dir.path().join("worker.log");
        let steps = || std::fs::read_to_string(&log).unwrap().lines().filter(|line| line.starts_with("step")).count();
        let before = steps();
        // More than a terminal or a pipe buffers.
        wait_for("thousands of steps", || (steps() > before + 4000).then_some(()));
        assert_eq!(left_behind(&marker).len(), 1, "terminal: {terminal}");
        left_behind(&marker).into_iter().for_each(kill);
    }
}

#[test]
fn a_client_that_adopts_nothing_does_not_replace_the_keeper() {
    let (dir, _) = place(&["--steps", "100000", "--step-ms", "2"], "");
    let mut harness = Harness::start(dir.path(), 1);
    harness.wait_for("steps", |event| matches!(event, Event::Step(step) if step.step >= 5));
    // The keeper of another run looks for sockets that nobody listens to.
    drop(harness.connect_again());
    let silent = harness.connect_again();
    let Event::Step(seen) = harness.wait_for("a step", |event| matches!(event, Event::Step(_))) else { panic!() };
    harness.wait_for("more steps", |event| matches!(event, Event::Step(step) if step.step > seen.step + 200));
    harness.order(&Order::Stop { checkpoint: false });
    assert_eq!(harness.wait().code(), Some(3), "its orders are heard too");
    drop(silent);
}

#[test]
fn without_a_keeper_events_wait_for_the_next_one() {
    let (dir, marker) = place(&["--steps", "400", "--step-ms", "2"], "");
    let mut harness = Harness::start(dir.path(), 1);
    harness.wait_for("steps", |event| matches!(event, Event::Step(step) if step.step >= 20));
    harness.hang_up();
    let mut second = harness.connect_again();
    second.order(&Order::Adopt { after: 10 });
    let hello = second.next();
    assert!(matches!(hello, Event::Hello(_)), "{hello:?}");
    let mut next = 11;
    let done = second.wait_for("the end", |event| {
        if let Event::Step(step) = event {
            assert_eq!(step.step, next, "no step is missing, none comes twice");
            next += 1;
        }
        matches!(event, Event::Done { .. })
    });
    assert!(matches!(done, Event::Done { reason: DoneReason::Finished, step: 400 }), "{done:?}");
    assert_eq!(next, 401);
    assert_eq!(harness.wait().code(), Some(0));
    assert!(left_behind(&marker).is_empty());
}

#[test]
fn a_save_signal_comes_before_the_end_and_a_checkpoint_is_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let marker = format!("zoo-{}", dir.path().file_name().unwrap().to_string_lossy());
    let out = dir.path().join("out");
    let words = ["train", "--marker", &marker, "--every", "1000000", "--out", out.to_str().unwrap()];
    let more = "checkpoints: { match: out/checkpoint-*, complete: trainer_state.json }\n\
                resume: { arguments: [--resume, '{checkpoint}'] }\nsave: { signal: USR1, within: 20 s }\n";
    write_run(dir.path(), &example("awkward_script"), &words, more);
    let mut harness = Harness::start(dir.path(), 1);
    harness.wait_for("steps", |event| matches!(event, Event::Step(_)));
    harness.order(&Order::Checkpoint);
    let Event::Saved(first) = harness.wait_for("a checkpoint", |event| matches!(event, Event::Saved(_))) else {
        panic!()
    };
    harness.order(&Order::Stop { checkpoint: true });
    harness.wait_for("another one", |event| matches!(event, Event::Saved(saved) if saved.step > first.step));
    assert_eq!(harness.wait().code(), Some(3));
    let newest = adopted::newest_usable(dir.path()).0.unwrap();
    assert!(newest.path.starts_with(&out) && newest.bytes() > 4096);
    let mut second = Harness::start(dir.path(), 2);
    let Event::Hello(hello) = second.next() else { panic!("no hello") };
    assert_eq!(hello.resumed_from, Some(newest.step));
    let step = second.wait_for("a step", |event| matches!(event, Event::Step(_)));
    assert!(matches!(step, Event::Step(step) if step.step == newest.step + 1));
    second.order(&Order::Stop { checkpoint: false });
    second.wait();
    std::fs::write(newest.path.join("model.safetensors"), "changed").unwrap();
    let mut third = Harness::start(dir.path(), 3);
    let Event::Hello(hello) = third.next() else { panic!("no hello") };
    assert_eq!(hello.resumed_from, Some(first.step));
    third
        .wait_for("a note", |event| matches!(event, Event::Note { text, .. } if text.contains("changed after it was")));
    third.order(&Order::Stop { checkpoint: false });
    third.wait();
}

/// Starts a run of the awkward script under a keeper.
pub fn keep(place: &Place, arguments: &[&str], more: &str) -> (std::process::Child, RunDir, String) {
    let marker = format!("zoo-{}", place.dir.path().file_name().unwrap().to_string_lossy());
    let words = [&["train", "--marker", &marker], arguments].concat();
    write_run(place.dir.path(), &example("awkward_script"), &words, more);
    let (child, run) = place.start(&["--trust"]);
    (child, run, marker)
}

#[test]
fn a_killed_keeper_is_replaced_and_the_command_goes_on() {
    let place = Place::real();
    let (mut child, run, marker) = keep(&place, &["--steps", "600", "--step-ms", "10"], "");
    let before = wait_status(&run, "steps", |status| status.step >= 50);
    let script = left_behind(&marker);
    kill(before.pid_keeper.unwrap());
    let after = wait_status(&run, "another keeper", |status| {
        status.pid_keeper.is_some_and(|pid| Some(pid) != before.pid_keeper) && status.step > before.step + 100
    });
    assert_eq!((after.attempts, after.pid_worker), (1, before.pid_worker), "{:#?}", journal(&run));
    assert_eq!(left_behind(&marker), script, "the same process");
    assert_eq!(child.wait().unwrap().code(), Some(0), "{:#?}", journal(&run));
    let rows = place.rows();
    let steps: Vec<u64> = rows.iter().map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=600).collect::<Vec<_>>(), "no step is missing, none comes twice");
    assert!(journal_says(&run, "took over the running command"));
}

#[test]
fn what_a_killed_harness_leaves_is_ended_and_a_plain_command_is_not_started_again() {
    let place = Place::real();
    let (mut child, run, marker) = keep(&place, &["--seed", "127"], "");
    let status = wait_status(&run, "steps", |status| status.step >= 20);
    let since = Instant::now();
    kill(status.pid_worker.unwrap());
    assert_eq!(child.wait().unwrap().code(), Some(4), "{:#?}", journal(&run));
    wait_until_gone(&marker, since, "after the harness");
    let status = wait_state(&run, RunState::NeedsPerson);
    assert_eq!(status.attempts, 1);
    assert!(status.why.unwrap().contains("killed by SIGKILL"));
}

#[test]
fn a_killed_command_is_named_never_resumed_and_a_stop_takes_less_than_five_seconds() {
    let place = Place::real();
    let (mut child, run, marker) = keep(&place, &["--seed", "256"], "");
    wait_status(&run, "steps", |status| status.step >= 20);
    left_behind(&marker).into_iter().for_each(kill);
    assert_eq!(child.wait().unwrap().code(), Some(4), "{:#?}", journal(&run));
    assert!(journal_says(&run, "killed by SIGKILL"));
    assert!(!journal_says(&run, "resumed at"), "{:#?}", journal(&run));
    let other = Place::real();
    let (mut child, run, marker) = keep(&other, &["--seed", "511"], "");
    wait_status(&run, "steps", |status| status.step >= 20);
    let since = Instant::now();
    assert!(other.output(&["stop"]).status.success());
    wait_until_gone(&marker, since, "after a stop");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn a_command_with_checkpoints_is_resumed_from_the_newest_complete_one() {
    let place = Place::real();
    let out = place.dir.path().join("out").display().to_string();
    let more = "checkpoints: { match: out/checkpoint-*, complete: trainer_state.json }\n\
                resume: { arguments: [--resume, '{checkpoint}'] }\n";
    let (mut child, run, marker) = keep(&place, &["--steps", "400", "--step-ms", "10", "--out", &out], more);
    let durable = wait_status(&run, "a checkpoint", |status| status.durable_step.is_some()).durable_step.unwrap();
    left_behind(&marker).into_iter().for_each(kill);
    wait_for("a resume", || journal_says(&run, "resumed at step").then_some(()));
    let status = wait_status(&run, "another attempt", |status| status.attempts == 2 && status.step > durable);
    assert_eq!(status.restarts, 1, "{:#?}", journal(&run));
    assert_eq!(child.wait().unwrap().code(), Some(0), "{:#?}", journal(&run));
    assert!(Path::new(&out).join("checkpoint-20").exists(), "files of the command are never deleted");
}

#[test]
fn a_command_goes_back_to_an_older_checkpoint_and_newer_ones_stay_given_up() {
    let place = Place::real();
    let out = place.dir.path().join("out");
    let more = "checkpoints: { match: out/checkpoint-*, complete: trainer_state.json }\n\
                resume: { arguments: [--resume, '{checkpoint}'] }\n";
    let (mut child, run, _) = keep(&place, &["--step-ms", "10", "--out", out.to_str().unwrap()], more);
    wait_status(&run, "three checkpoints", |status| status.durable_step >= Some(60));
    assert!(place.output(&["stop"]).status.success());
    assert_eq!(child.wait().unwrap().code(), Some(3));
    // Nobody has listed this one, so only its time shows that the run gives it up.
    let unlisted = out.join("checkpoint-5000");
    std::fs::create_dir(&unlisted).unwrap();
    std::fs::write(unlisted.join("trainer_state.json"), "{}").unwrap();
    let back = place.output(&["resume", &run.name(), "--from", "35"]);
    assert_eq!(back.status.code(), Some(14), "no checkpoint of this step: {back:?}");
    let mut again = place.command(&["resume", &run.name(), "--from", "20", "--headless"]).spawn().unwrap();
    wait_for("the return", || journal_says(&run, "resumed at step 20").then_some(()));
    let listed: Vec<u64> = adopted::list(run.path()).iter().map(|adopted| adopted.step).collect();
    assert!(listed.contains(&20) && !listed.contains(&5000), "{listed:?}");
    assert!(unlisted.exists(), "files of the command are never deleted");
    // A third attempt finds what the second one wrote.
    wait_status(&run, "a new checkpoint", |status| status.durable_step >= Some(40));
    assert!(place.output(&["stop"]).status.success());
    assert_eq!(again.wait().unwrap().code(), Some(3));
    assert!(adopted::list(run.path()).iter().all(|adopted| adopted.step < 5000));
}

#[test]
fn a_training_that_runs_already_is_watched_and_started_again_when_it_dies() {
    let place = Place::real();
    let marker = format!("zoo-{}", place.dir.path().file_name().unwrap().to_string_lossy());
    let log = place.dir.path().join("by-hand.log");
    let script = example("awkward_script");
    let mut by_hand = std::process::Command::new(&script)
        .args(["train", "--marker", &marker])
        .current_dir(place.dir.path())
        .stdout(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let (pid, script) = (by_hand.id().to_string(), script.display().to_string());
    let wrong = place.output(&["adopt", "--pid", &pid, "--log", "no-such-file"]);
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(2) && said.contains("--log no-such-file: No such file"), "{said}");
    let words = ["adopt", "--pid", &pid, "--log", log.to_str().unwrap(), "--max-restarts", "1", "--headless"];
    let again = ["--restart", "--", &script, "train", "--seed", "1", "--steps", "50", "--marker", &marker];
    let out = std::fs::File::create(place.dir.path().join("out.txt")).unwrap();
    let mut client = place.command(&[&words[..], &again[..]].concat()).stdout(out).spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    wait_status(&run, "steps of the running training", |status| status.step >= 20 && status.attempts == 1);
    let refused = place.output(&["pause"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("without --may-end"), "{refused:?}");
    assert!(left_behind(&marker).contains(&by_hand.id()), "nothing is ended without --may-end");
    by_hand.kill().unwrap();
    by_hand.wait().unwrap();
    assert_eq!(client.wait().unwrap().code(), Some(4), "one restart, then it exits with 1: {:#?}", journal(&run));
    assert_eq!(wait_state(&run, RunState::NeedsPerson).attempts, 2);
    assert!(journal_says(&run, "gone, with an unknown exit code"), "{:#?}", journal(&run));
    assert!(left_behind(&marker).is_empty());
}

#[test]
fn a_command_that_died_with_its_keeper_and_its_harness_is_not_started_over() {
    let place = Place::real();
    let (mut child, run, marker) = keep(&place, &["--seed", "127"], "");
    let status = wait_status(&run, "steps", |status| status.step >= 20);
    kill(status.pid_keeper.unwrap());
    kill(status.pid_worker.unwrap());
    assert_eq!(child.wait().unwrap().code(), Some(4), "{:#?}", journal(&run));
    assert_eq!(wait_state(&run, RunState::NeedsPerson).attempts, 1);
    assert!(left_behind(&marker).is_empty());
}

/// Saves to one file, as nanoGPT does, and resumes from whatever that file holds.
const ONE_FILE: &str = r#"
    step=0
    if [ "$1" = resume ]; then step=$(cat ckpt.pt); echo "loaded $step" >> loaded; fi
    while true; do
      step=$((step + 1))
      echo "step $step loss 1.0"
      if [ $step -le 3 ]; then
        echo $step > ckpt.pt
        until [ -e "adopted/step-00000000$step.json" ]; do sleep 0.05; done
      fi
      sleep 0.05
    done
"#;

#[test]
fn a_command_that_finds_its_own_checkpoint_finds_the_copy_after_a_save_that_was_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let more = "checkpoints: { match: ckpt.pt, copy: true }\nresume: { arguments: [resume] }\n";
    std::fs::write(dir.path().join("train.sh"), ONE_FILE).unwrap();
    write_run(dir.path(), Path::new("sh"), &["train.sh"], more);
    let mut first = Harness::start(dir.path(), 1);
    first.wait_for("three saves", |event| matches!(event, Event::Saved(saved) if saved.step == 3));
    first.order(&Order::Stop { checkpoint: false });
    first.wait();
    let file = dir.path().join("ckpt.pt");
    std::fs::write(&file, "").unwrap();
    let mut second = Harness::start(dir.path(), 2);
    let Event::Hello(hello) = second.next() else { panic!("no hello") };
    assert_eq!(hello.resumed_from, Some(3));
    let differed = |event: &Event| matches!(event, Event::Note { text, .. } if text.contains("replaced by its copy"));
    second.wait_for("a note", differed);
    let next = second.wait_for("a step", |event| matches!(event, Event::Step(_) | Event::Saved(_)));
    assert!(matches!(&next, Event::Step(step) if step.step == 4), "{next:?}");
    let later = second.wait_for("later steps", |event| match event {
        Event::Saved(_) => true,
        Event::Step(step) => step.step >= 30,
        _ => false,
    });
    assert!(matches!(later, Event::Step(_)), "the restored file does not count as a new save: {later:?}");
    second.order(&Order::Stop { checkpoint: false });
    second.wait();
    assert_eq!(std::fs::read_to_string(dir.path().join("loaded")).unwrap(), "loaded 3\n");

    // The run goes back: the original is newer than the copy.
    for step in [2, 3] {
        adopted::set_aside(dir.path(), step).unwrap();
    }
    let mut third = Harness::start(dir.path(), 3);
    third.wait_for("the step after the first", |event| matches!(event, Event::Step(step) if step.step == 2));
    third.order(&Order::Stop { checkpoint: false });
    third.wait();
    assert_eq!(std::fs::read_to_string(dir.path().join("loaded")).unwrap(), "loaded 3\nloaded 1\n");
}
