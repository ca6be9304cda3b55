//! A training that was started by hand in a pane, and is adopted by the name of its tmux session.

use crate::helper::{Place, example, journal, journal_says, kill, send_signal, wait_for, wait_state, wait_status};
use crate::terminal::Terminal;
use downshift::protocol::control::RunState;
use rustix::process::Signal;
use std::fs;

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
    let folder = ["--output-dir", out.to_str().unwrap()];
    let mut client = place.command(&[&words[..], &folder, &again].concat());
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
    let mut again = again.stdout(std::process::Stdio::null()).spawn().unwrap();
    let after = wait_status(&run, "more steps", |status| status.step > before + 20 && status.attempts == 2);
    assert!(after.state == RunState::Training && terminal.program() == Some(by_hand), "{:#?}", journal(&run));
    assert!(journal_says(&run, &format!("watches process {by_hand} again")), "{:#?}", journal(&run));
    assert!(!journal_says(&run, "starts again from step 0"), "{:#?}", journal(&run));
    assert!(place.output(&["stop"]).status.success());
    again.wait().unwrap();
    kill(by_hand);
}
