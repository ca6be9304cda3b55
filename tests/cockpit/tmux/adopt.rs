//! A training that was started by hand in a pane, and is adopted by the name of its tmux session.

use super::processor_time;
use crate::helper::terminal::Terminal;
use crate::helper::{Place, example, journal, journal_says, kill, send_signal, wait_for, wait_state, wait_status};
use downshift::protocol::control::RunState;
use rustix::process::Signal;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The first session of a server.
const SESSION: &str = "0";

#[test]
fn a_training_in_a_pane_is_watched_its_hang_and_death_are_told_and_it_is_restarted_twice() {
    let place = Place::real();
    let terminal = Terminal::open(&place, (80, 24));
    let (script, out) = (example("awkward_script").display().to_string(), place.dir.path().join("out"));
    let marker = format!("pane-{}", place.dir.path().file_name().unwrap().to_string_lossy());
    terminal.enter(&format!("{script} train --marker {marker} --step-ms 20 --every 20 --out {}", out.display()));
    wait_for("a checkpoint from before", || out.join("checkpoint-20/trainer_state.json").exists().then_some(()));
    let by_hand = terminal.program().unwrap();

    let words = ["adopt", "--session", SESSION, "--interval", "2", "--max-restarts", "2", "--headless"];
    let again = ["--restart", "--", &script, "train", "--seed", "1", "--steps", "30", "--marker", &marker];
    let pattern = format!("checkpoints.match={}/checkpoint-*", out.display());
    let mut client = place.command(&[&words[..], &["--set", &pattern], &again].concat());
    client.env("TMUX", terminal.variable()).stdout(fs::File::create(place.dir.path().join("out.txt")).unwrap());
    let mut client = client.spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    let watched = wait_status(&run, "steps and a checkpoint of the pane", |status| {
        status.step >= 20 && status.loss.is_some() && status.durable_step.is_some()
    });
    assert_eq!((watched.attempts, terminal.program()), (1, Some(by_hand)), "{:#?}", journal(&run));

    let mut second = place.command(&["adopt", "--session", SESSION, "--headless"]);
    let refused = second.env("TMUX", terminal.variable()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("already writes its output to a program"), "{said}");
    assert_eq!(place.newest().unwrap().path(), run.path(), "no other run was made");

    send_signal(by_hand, Signal::STOP);
    wait_for("an alarm", || journal_says(&run, "printed nothing and used no CPU time for 10 s").then_some(()));
    send_signal(by_hand, Signal::CONT);
    let before = wait_status(&run, "a status", |_| true).step;
    let after = wait_status(&run, "more steps", |status| status.step > before + 20);
    assert_eq!((after.attempts, after.restarts), (1, 0), "nothing is ended: {:#?}", journal(&run));

    kill(by_hand);
    assert_eq!(client.wait().unwrap().code(), Some(4), "{}", place.printed());
    let over = wait_state(&run, RunState::NeedsPerson);
    assert!(journal_says(&run, "gone, with an unknown exit code"), "{:#?}", journal(&run));
    assert_eq!((over.attempts, over.restarts), (3, 2), "{:#?}", journal(&run));
    let why = over.why.unwrap();
    assert!(why.starts_with("2 restarts") && why.contains("exit code 1"), "{why}");
}

#[test]
fn ctrl_c_in_an_adopted_pane_stops_the_run() {
    let place = Place::real();
    let terminal = Terminal::open(&place, (80, 24));
    let script = "import sys, time\nstep = 0\nwhile True:\n    step += 1\n    print('step', step, 'loss 1.5', flush=True)\n    \
                  open(sys.argv[1], 'w').close()\n    time.sleep(0.05)\n";
    let (file, begun) = (place.dir.path().join("train.py"), place.dir.path().join("begun"));
    fs::write(&file, script).unwrap();
    terminal.enter(&format!("python3 {} {}", file.display(), begun.display()));
    wait_for("the training", || begun.exists().then_some(()));
    let mut client = place.command(&["adopt", "--session", SESSION, "--headless"]);
    let out = fs::File::create(place.dir.path().join("out.txt")).unwrap();
    let mut client = client.env("TMUX", terminal.variable()).stdout(out).spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    wait_status(&run, "steps of the pane", |status| status.step >= 20);
    send_signal(terminal.program().unwrap(), Signal::INT);
    assert_eq!(client.wait().unwrap().code(), Some(3), "{}", place.printed());
    wait_state(&run, RunState::Stopped);
}

#[test]
fn a_training_that_is_only_watched_outlives_a_stop_and_is_watched_again() {
    let place = Place::real();
    let terminal = Terminal::open(&place, (80, 24));
    let script = example("awkward_script").display().to_string();
    let marker = format!("again-{}", place.dir.path().file_name().unwrap().to_string_lossy());
    terminal.enter(&format!("{script} train --marker {marker} --step-ms 20 --steps 100000"));
    let by_hand = wait_for("the training", || terminal.program());
    let missing = place.command(&["adopt", "--session", "nowhere"]).env("TMUX", terminal.variable()).output().unwrap();
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(said.contains("tmux has no such session; choose from: 0"), "{said}");

    let mut client = place.command(&["adopt", "--session", SESSION, "--headless"]);
    let out = fs::File::create(place.dir.path().join("out.txt")).unwrap();
    let mut client = client.env("TMUX", terminal.variable()).stdout(out).spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    wait_status(&run, "steps of the pane", |status| status.step >= 20);
    assert!(place.succeed(&["stop"]).contains(&format!("process {by_hand} trains on, and `downshift resume")));
    assert_eq!(client.wait().unwrap().code(), Some(3));
    assert_eq!(terminal.program(), Some(by_hand), "it lives");

    // The pane is free: the next watch reads it, and goes on with the curve.
    let before = wait_state(&run, RunState::Stopped).step;
    let mut again = place.command(&["resume", "--headless"]);
    let mut again = again.stdout(Stdio::null()).spawn().unwrap();
    let after = wait_status(&run, "more steps", |status| status.step > before + 20 && status.attempts == 2);
    assert!(after.state == RunState::Training && terminal.program() == Some(by_hand), "{:#?}", journal(&run));
    assert!(journal_says(&run, &format!("watches process {by_hand} again")), "{:#?}", journal(&run));
    assert!(!journal_says(&run, "starts again from step 0"), "{:#?}", journal(&run));
    assert!(place.output(&["stop"]).status.success());
    again.wait().unwrap();
    kill(by_hand);
}

/// Returns the process of the script that trains in this place, if it lives.
fn trains(place: &Place, script: &str) -> Option<u32> {
    place.processes().into_iter().find(|pid| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).starts_with(&format!("{script}\0train\0"))
    })
}

#[test]
fn an_adopted_training_shifts_and_restarts_from_its_newest_checkpoint_as_its_run_file_says() {
    let place = Place::real();
    let script = example("awkward_script").display().to_string();
    let out = place.dir.path().join("out").display().to_string();
    let run_file = format!(
        "name: mine\ntask: command\ncommand: [{script}, train, --out, '{out}', --every, '10', --step-ms, '{{knobs.pace}}']\n\
         knobs: {{ pace: 20 }}\nresume: {{ arguments: [--resume, '{{checkpoint}}'] }}\n\
         checkpoints: {{ match: '{out}/checkpoint-*', complete: trainer_state.json }}\n\
         ladder: [{{ name: slow, relieves: [memory], set: {{ knobs.pace: 30 }} }}]\n"
    );
    fs::write(place.dir.path().join("mine.yaml"), run_file).unwrap();
    fs::write(place.dir.path().join("other.yaml"), "task: command\ncommand: [python3, other.py]\n").unwrap();
    let mut by_hand = Command::new(&script);
    by_hand.args(["train", "--out", &out, "--every", "10", "--step-ms", "21"]).current_dir(place.dir.path());
    let log = fs::File::create(place.dir.path().join("train.log")).unwrap();
    let mut by_hand = by_hand.stdout(log).stderr(Stdio::null()).spawn().unwrap();
    let pid = by_hand.id().to_string();

    let words = ["adopt", "--pid", &pid, "--log", "train.log", "--may-end", "--device", "cuda:1", "--headless"];
    let refused = place.output(&words);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(13) && said.contains("mine needs your approval"), "{said}");
    let printed = fs::File::create(place.dir.path().join("out.txt")).unwrap();
    let mut client = place.command(&[&words[..], &["--trust"]].concat());
    let mut client = client.stdout(printed.try_clone().unwrap()).stderr(printed).spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    let watched = wait_status(&run, "a checkpoint", |status| status.durable_step.is_some() && status.step > 0);
    assert_eq!((watched.attempts, watched.level, watched.device.as_deref()), (1, Some(1), Some("cuda:1")));
    let told = "only process PID has `--step-ms 21`; a restart and a shift train as";
    assert!(place.printed().contains(&told.replace("PID", &pid)), "{}", place.printed());

    let durable = watched.durable_step.unwrap();
    place.succeed(&["shift", "slow"]);
    let shifted = wait_status(&run, "steps on the rung", |status| status.rung == 1 && status.rungs[1].steps > 5);
    assert!(shifted.attempts == 2 && shifted.step > durable, "{:#?}", journal(&run));
    by_hand.wait().unwrap();
    wait_status(&run, "another checkpoint", |status| status.durable_step > shifted.durable_step);
    kill(wait_for("the command", || trains(&place, &script)));
    let again = wait_status(&run, "steps after a restart", |status| status.attempts == 3 && status.step > shifted.step);
    assert_eq!((again.rung, again.restarts), (1, 1), "{:#?}", journal(&run));
    assert!(!journal_says(&run, "starts again from step 0"), "{:#?}", journal(&run));
    assert!(place.output(&["stop"]).status.success());
    assert_eq!(client.wait().unwrap().code(), Some(3));
}

#[test]
fn an_adopted_training_that_dies_before_it_is_seen_goes_on_from_its_newest_checkpoint_under_one_keeper() {
    let place = Place::real();
    let script = example("awkward_script").display().to_string();
    let out = place.dir.path().join("out");
    let run_file = format!(
        "name: mine\ntask: command\ncommand: [{script}, train, --out, '{0}', --every, '10', --step-ms, '20']\n\
         resume: {{ arguments: [--resume, '{{checkpoint}}'] }}\n\
         checkpoints: {{ match: '{0}/checkpoint-*', complete: trainer_state.json }}\n",
        out.display()
    );
    fs::write(place.dir.path().join("mine.yaml"), run_file).unwrap();
    let mut by_hand = Command::new(&script);
    by_hand.args(["train", "--out", &out.display().to_string(), "--every", "10", "--step-ms", "20"]);
    let mut by_hand =
        by_hand.current_dir(place.dir.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The one before the newest is complete wherever the signal strikes.
    wait_for("a checkpoint", || out.join("checkpoint-40").exists().then_some(()));
    send_signal(by_hand.id(), Signal::STOP);
    let pid = by_hand.id().to_string();
    let words = ["adopt", "--pid", &pid, "--trust", "--headless"];
    let printed = fs::File::create(place.dir.path().join("out.txt")).unwrap();
    let mut client = place.command(&words).stdout(printed.try_clone().unwrap()).stderr(printed).spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    let found = wait_status(&run, "its checkpoint", |status| status.durable_step >= Some(30)).durable_step;

    let second = place.output(&words);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(2) && said.contains(&format!("keeps process {pid} already")), "{said}");
    kill(by_hand.id());
    by_hand.wait().unwrap();
    let again =
        wait_status(&run, "steps of the next start", |status| status.attempts == 2 && Some(status.step) > found);
    assert!(!journal_says(&run, "starts at step 0"), "{:#?}", journal(&run));
    let own = wait_for("the command", || trains(&place, &script)).to_string();
    let third = place.output(&["adopt", "--pid", &own, "--trust", "--headless"]);
    let said = String::from_utf8_lossy(&third.stderr).into_owned();
    assert!(third.status.code() == Some(2) && said.contains("was started by a run of downshift"), "{said}");
    let stop = place.succeed(&["stop"]);
    assert!(!stop.contains("the training goes on"), "{stop} at {}", again.step);
    assert_eq!(client.wait().unwrap().code(), Some(3));
}

#[test]
fn a_busy_training_that_prints_nothing_is_not_silent_and_an_idle_one_is_ended() {
    let place = Place::real();
    let mut busy = Command::new("sh");
    let mut busy = busy.args(["-c", "while :; do :; done"]).current_dir(place.dir.path()).spawn().unwrap();
    let pid = busy.id().to_string();
    let words =
        ["adopt", "--pid", &pid, "--interval", "5", "--may-end", "--headless", "--restart", "--", "sleep", "600"];
    let mut client = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    wait_status(&run, "the watch", |status| status.pid_worker.is_some());
    // It works for several times as long as it may be silent.
    let began = processor_time(busy.id());
    let worked = || processor_time(busy.id()).saturating_sub(began) > Duration::from_secs(12);
    wait_status(&run, "much work", |status| {
        assert_eq!(status.attempts.max(1), 1, "{:#?}", journal(&run));
        worked()
    });
    assert!(!journal_says(&run, "no sign of life") && !journal_says(&run, "hang"), "{:#?}", journal(&run));
    send_signal(busy.id(), Signal::STOP);
    wait_status(&run, "a restart of an idle one", |status| status.attempts >= 2);
    busy.wait().unwrap();
    assert!(place.output(&["stop"]).status.success());
    client.wait().unwrap();
}
