//! The real keeper with a scripted worker: the invariants that hold whichever process dies.

mod checkpoints;

use crate::helper::{Place, QUICK, SLOW, journal, journal_says, kill, kill_keepers, wait_for, wait_state, wait_status};
use downshift::protocol::control::RunState;
use downshift::protocol::samples::SampleSet;
use downshift::store::checkpoint::{self, state::Row};
use downshift::store::samples;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[test]
fn a_run_finishes_and_its_curve_has_no_hole() {
    let place = Place::scripted();
    place.script(QUICK, "");
    let (mut child, run) = place.start(&[]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let curve = place.curve(400, 8);
    assert!(curve.iter().all(|row| row["attempt"] == 1 && row["skipped"] == false));
    let status = place.status_json();
    assert_eq!((&status["state"], &status["durable_step"]), (&"finished".into(), &400.into()));
    assert!(status["pid_keeper"].is_null() && status["pid_worker"].is_null() && status["pid_probe"].is_null());
    assert_eq!(status["eval"]["accuracy"], 0.9);
    let csv = place.output(&["export", "--format", "csv"]);
    assert_eq!(String::from_utf8(csv.stdout).unwrap().lines().count(), 401);
    assert!(journal_says(&run, "finished at step 400"));
}

#[test]
fn a_shift_continues_at_the_next_step_of_the_other_rung() {
    let place = Place::scripted();
    place.script(SLOW, "");
    let (mut child, run) = place.start(&[]);
    wait_status(&run, "a few steps", |status| status.step >= 30);
    assert!(place.output(&["shift", "down"]).status.success());
    let shifted = wait_status(&run, "the next rung", |status| status.rung == 1 && status.state == RunState::Training);
    assert_eq!((shifted.rung_name.as_str(), shifted.shifts, shifted.restarts), ("accumulate", 1, 0));
    wait_for("the first step there", || journal_says(&run, "shifted full → accumulate").then_some(()));
    assert!(place.output(&["shift", "full"]).status.success());
    wait_status(&run, "back", |status| status.rung == 0 && status.attempts == 3);
    wait_status(&run, "a few more steps", |status| status.step > shifted.step + 5);
    place.output(&["stop"]);
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let last = wait_state(&run, RunState::Stopped).step;
    let curve = place.curve(last, 8);
    let attempts: Vec<u64> = curve.iter().map(|row| row["attempt"].as_u64().unwrap()).collect();
    assert!(attempts.is_sorted() && attempts.last() == Some(&3), "no step is taken twice: {attempts:?}");
    assert_eq!(place.rows().len() as u64, last, "no step is taken twice");
    let told = journal(&run).into_iter().find(|row| row.text.starts_with("shifted full → accumulate")).unwrap();
    for part in ["save", "stop", "start and load", "first step"] {
        assert!(told.text.contains(part), "{}", told.text);
    }
}

#[test]
fn a_killed_worker_is_replaced_and_nothing_durable_is_lost() {
    let place = Place::scripted();
    place.script(QUICK, "");
    let (mut child, run) = place.start(&["--inject", "kill@120,kill@230"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    place.curve(400, 8);
    let status = place.status_json();
    assert_eq!((&status["attempts"], &status["restarts"]), (&3.into(), &2.into()));
    assert!(journal_says(&run, "injected kill@120") && journal_says(&run, "killed by SIGKILL"));
}

#[test]
fn samples_of_steps_that_a_restart_abandons_are_deleted() {
    let place = Place::scripted();
    place.script(SLOW, "");
    let (mut child, run) = place.start(&["--set", "training.steps=4000"]);
    let before = wait_status(&run, "a checkpoint", |status| status.durable_step.is_some());
    let planted = |step| samples::write(run.path(), SampleSet { step, ..SampleSet::default() }, &[]).unwrap();
    [1, 999_999].into_iter().for_each(planted);
    std::fs::write(run.path().join("samples/step-000888888.txt"), "a script's").unwrap();
    kill(before.pid_worker.unwrap());
    wait_status(&run, "another worker", |status| status.attempts == 2 && status.state == RunState::Training);
    assert_eq!(samples::steps(run.path()), [888_888, 1]);
    wait_for("the journal", || journal_says(&run, "deleting 1 sample set of steps after").then_some(()));
    assert!(place.output(&["stop"]).status.success());
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn a_killed_keeper_comes_back_and_there_is_never_a_second_worker() {
    let place = Place::scripted();
    place.script(SLOW, "");
    let (mut child, run) = place.start(&["--set", "training.steps=200"]);
    let before = wait_status(&run, "steps", |status| status.step >= 60);
    kill(before.pid_keeper.unwrap());
    let after = wait_status(&run, "another keeper", |status| {
        status.pid_keeper.is_some() && status.pid_keeper != before.pid_keeper && status.attempts == 2
    });
    assert_ne!(after.pid_worker, before.pid_worker);
    assert_eq!(child.wait().unwrap().code(), Some(0), "the headless client lives through it");
    place.curve(200, 8);
    assert!(journal_says(&run, "imported 1 checkpoint"), "{:#?}", journal(&run));
}

#[test]
fn a_run_killed_with_its_parent_is_resumed_by_the_user() {
    let place = Place::scripted();
    place.script(SLOW, "");
    let (child, run) = place.start(&["--set", "training.steps=200"]);
    let before = wait_status(&run, "steps", |status| status.step >= 60);
    kill_keepers(child, &before);
    let dead = wait_status(&run, "no process", |status| status.pid_keeper.is_none() && status.pid_worker.is_none());
    assert_eq!(dead.state, RunState::Interrupted);
    let told = String::from_utf8(place.output(&["triage"]).stdout).unwrap();
    let end = "ended without a word while the machine ran on: something killed them all\n  last step ";
    let resume = format!("  do: `downshift resume {}` continues it", run.name());
    assert!(told.contains(end) && told.contains(&resume), "{told}");
    let json = place.output(&["triage", "--format", "json"]).stdout;
    let list: Vec<serde_json::Value> = serde_json::from_slice(&json).unwrap();
    assert_eq!((&list[0]["class"], &list[0]["likely"]), (&"killed".into(), &true.into()), "{list:?}");
    let resumed = place.output(&["resume", "--headless"]);
    assert_eq!(resumed.status.code(), Some(0), "{}", String::from_utf8_lossy(&resumed.stderr));
    place.curve(200, 8);
    let told = journal(&run).into_iter().find(|row| row.text.starts_with("cut off after step ")).unwrap();
    assert!(told.text.ends_with(" ago: its keeper and the keeper's parent were killed"), "{}", told.text);
}

#[test]
fn a_killed_probe_comes_back_and_the_run_does_not_notice() {
    let place = Place::scripted();
    place.script(SLOW, "");
    let (_child, run) = place.start(&[]);
    let before = wait_status(&run, "a probe", |status| status.pid_probe.is_some() && status.step > 5);
    kill(before.pid_probe.unwrap());
    let after =
        wait_status(&run, "another probe", |status| status.pid_probe.is_some_and(|pid| Some(pid) != before.pid_probe));
    assert_eq!((after.attempts, after.pid_worker), (1, before.pid_worker));
}

#[test]
fn a_killed_client_leaves_the_run_alone_and_an_interrupted_one_stops_it() {
    let place = Place::scripted();
    place.script(SLOW, "");
    let (mut child, run) = place.start(&[]);
    let before = wait_status(&run, "steps", |status| status.step >= 5);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_status(&run, "more steps", |status| status.step > before.step + 5);
    let printed = place.dir.path().join("again.txt");
    let out = std::fs::File::create(&printed).unwrap();
    let mut again = place.command(&["resume", "--headless"]).stdout(out).spawn().unwrap();
    wait_for("the client to print", || {
        std::fs::read_to_string(&printed).ok().filter(|text| text.contains("older journal lines"))
    });
    kill_process(Pid::from_child(&again), Signal::INT).unwrap();
    assert_eq!(again.wait().unwrap().code(), Some(3));
    wait_state(&run, RunState::Stopped);
    assert!(place.status_json()["durable_step"].as_u64() > Some(before.step));
}

#[test]
fn a_hang_is_detected_ended_by_force_and_restarted() {
    let place = Place::scripted();
    place.script("{ step_ms: 2, ignore_term: true }", "watch: { hang_min: 1 s }\n");
    let (mut child, run) = place.start(&["--inject", "hang@120"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(journal_says(&run, "hang: no progress"));
    assert_eq!(place.status_json()["restarts"], 1);
    place.curve(400, 8);
}

#[test]
fn recurring_faults_use_up_the_budget_and_need_attention() {
    let place = Place::scripted();
    place.script(QUICK, "watch: { restarts_without_progress: 2 }\n");
    let (mut child, run) = place.start(&["--inject", "oom@120*"]);
    assert_eq!(child.wait().unwrap().code(), Some(4));
    let status = place.status_json();
    assert_eq!((&status["state"], &status["attempts"]), (&"needs_person".into(), &3.into()));
    assert_eq!(status["durable_step"], 100);
    assert!(journal_says(&run, "out of device memory"));
    let refused = place.output(&["shift", "down"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("downshift resume"));
}

#[test]
fn whatever_happens_the_worker_runs_on_the_rung_of_its_attempt() {
    let place = Place::scripted();
    place.script(SLOW, "");
    let knobs =
        ["--set", "training.steps=4000", "--set", "checkpoint.keep_last=1000", "--set", "checkpoint.every=3 steps"];
    let (mut child, run) = place.start(&knobs);
    let trains = |attempt: u64, beyond: u64| {
        wait_status(&run, "steps", |status| {
            status.attempts >= attempt && status.state == RunState::Training && status.step > beyond
        })
    };
    let mut status = trains(1, 5);
    for turn in 0..9_u64 {
        let before = status.attempts;
        match turn {
            0 | 4 => drop(place.output(&["shift", "down"])),
            1 | 5 | 7 => kill(status.pid_worker.unwrap()),
            2 => kill(status.pid_keeper.unwrap()),
            3 => drop(place.output(&["shift", "up"])),
            6 => drop(place.output(&["shift", "full"])),
            _ => drop(place.output(&["restart"])),
        }
        status = trains(before + 1, status.durable_step.unwrap_or_default() + 4);
    }
    place.output(&["stop"]);
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let store = rusqlite::Connection::open(run.file("run.db")).unwrap();
    let mut query = store.prepare("SELECT id, rung FROM attempts").unwrap();
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let attempts: BTreeMap<i64, i64> = rows.map(Result::unwrap).collect();
    // Rows written by the workers themselves, each with the rung its worker was started on.
    let mut said: BTreeMap<u64, usize> = BTreeMap::new();
    for entry in checkpoint::list(run.path()) {
        for row in Row::read_all(&checkpoint::load(&entry.path).unwrap().files[checkpoint::STEPS]) {
            let Row::Step(row) = row else { continue };
            assert_eq!(*said.entry(row.attempt).or_insert(row.rung), row.rung);
        }
    }
    // A worker that is killed before its first save says nothing.
    assert!(
        said.len() >= 7 && said.values().any(|rung| *rung == 1) && said.values().any(|rung| *rung == 0),
        "{said:?}"
    );
    for (attempt, rung) in said {
        assert_eq!(attempts.get(&attempt.cast_signed()), Some(&i64::try_from(rung).unwrap()), "attempt {attempt}");
    }
}

#[test]
fn an_early_exit_is_a_failure_and_stray_prints_are_ignored() {
    let place = Place::scripted();
    place.script("{ step_ms: 1, noise: true }", "");
    let (mut child, run) = place.start(&["--inject", "exit0@60,nan@200"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let curve = place.curve(400, 8);
    assert_eq!(curve.iter().filter(|row| row["skipped"] == true).count(), 1);
    assert!(curve[199]["loss"].is_null());
    assert_eq!(place.status_json()["attempts"], 2);
    let log = std::fs::read_to_string(run.file("worker.log")).unwrap();
    assert!(log.contains("a stray print of step 7"));
}

#[test]
fn a_paused_run_frees_the_worker_and_resumes_where_it_was() {
    let place = Place::scripted();
    place.script(SLOW, "");
    let (_child, run) = place.start(&[]);
    wait_status(&run, "steps", |status| status.step >= 20);
    assert!(place.output(&["pause"]).status.success());
    let paused = wait_status(&run, "rest", |status| status.state == RunState::Paused && status.pid_worker.is_none());
    assert_eq!(paused.durable_step, Some(paused.step));
    assert!(place.output(&["shift", "safe"]).status.success());
    // Without a terminal it is a request, and returns: the start of the run follows it.
    assert!(place.output(&["resume"]).status.success());
    let resumed =
        wait_status(&run, "training", |status| status.state == RunState::Training && status.step > paused.step);
    assert_eq!((resumed.rung, resumed.attempts), (2, 2));
    place.curve(resumed.step, 8);
}

#[test]
fn a_second_keeper_is_refused() {
    let place = Place::scripted();
    place.script(SLOW, "");
    let (_child, run) = place.start(&[]);
    let second = place.output(&["keeper", "--run-dir", run.path().to_str().unwrap()]);
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("a run has one keeper"));
    wait_status(&run, "steps", |status| status.step >= 5);
    assert!(place.output(&["checkpoint"]).status.success(), "the first one still answers");
    assert!(place.output(&["restart"]).status.success());
    wait_status(&run, "a restart", |status| status.attempts == 2 && status.state == RunState::Training);
    assert!(journal_says(&run, "restart on full, requested by downshift (process "));
    assert!(journal_says(&run, "start requested by downshift (process "), "{:#?}", journal(&run));
    // A command that waits for the end is told of it.
    let stopped = place.output(&["stop"]);
    let told = String::from_utf8_lossy(&stopped.stdout).into_owned();
    assert!(stopped.status.success() && told.contains("stopped; `downshift resume"), "{stopped:?}");
}

#[test]
fn a_request_whose_save_fails_is_refused_and_no_step_is_lost() {
    let place = Place::scripted();
    place.script("{ step_ms: 20, save_ms: 1, disk_full_from: 60, disk_full_to: 100000 }", "");
    let (mut child, run) = place.start(&["--set", "training.steps=4000"]);
    wait_status(&run, "unsaved steps", |status| status.step >= 70);
    let mut asked = Instant::now();
    for (number, wish) in [&["shift", "down"][..], &["pause"], &["stop"]].into_iter().enumerate() {
        let before = wait_status(&run, "training", |status| status.state == RunState::Training);
        let answer = place.output(wish);
        let told = String::from_utf8_lossy(&answer.stderr).into_owned();
        match wish {
            ["stop"] => {
                assert!(told.contains("cancelled: the stop") && told.contains("No space left on device"), "{told}");
            }
            ["pause"] => assert!(told.contains("was not paused"), "{told}"),
            _ => assert!(answer.status.success(), "{answer:?}"),
        }
        assert_eq!(answer.status.success(), number == 0, "the command that asked is told: {answer:?}");
        asked = Instant::now();
        let refused = || journal(&run).iter().filter(|row| row.text.starts_with("cancelled: ")).count();
        wait_for("the refusal", || (refused() > number).then_some(()));
        let after = wait_status(&run, "more steps", |status| status.step > before.step + 5);
        assert_eq!((after.attempts, after.rung, after.pid_worker), (1, 0, before.pid_worker));
        assert_eq!(after.state, RunState::Training);
    }
    wait_for("a second request", || (asked.elapsed() > Duration::from_secs(2)).then_some(()));
    let again = place.output(&["stop"]);
    let told = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(
        told.contains("not saved: ") && told.contains("since checkpoint 50") && told.contains("stopped at step"),
        "{again:?}"
    );
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert!(journal_says(&run, "No space left on device") && journal_says(&run, "not saved; `downshift resume"));
}
