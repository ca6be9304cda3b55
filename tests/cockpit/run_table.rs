//! The list of runs as a user keeps it in order: tags, notes, archive, deletion, and branches. The real program
//! with the scripted worker.
#![expect(clippy::unwrap_used, reason = "a test: what is missing fails it")]

use crate::helper::{Place, journal_says, wait_for, wait_state, wait_status};
use downshift::protocol::control::RunState;
use downshift::store::reader::live_status;
use downshift::store::run_dir::RunDir;
use serde_json::Value;
use std::fs;
use std::process::Stdio;

/// Trains a run of this name to its end.
fn finished(place: &Place, name: &str) -> RunDir {
    let name_it = format!("name={name}");
    place.succeed(&["run", "run.yaml", "--headless", "--set", "training.steps=120", "--set", &name_it]);
    RunDir::find(&place.dir.path().join("runs"), Some(name)).unwrap()
}

fn listed(place: &Place, words: &[&str]) -> Vec<Value> {
    let words = [&["runs", "--format", "json"], words].concat();
    serde_json::from_str(&place.succeed(&words)).unwrap()
}

fn names(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["name"].as_str().unwrap().split('-').next().unwrap()).collect()
}

#[test]
fn runs_are_labelled_listed_archived_and_deleted() {
    let place = Place::scripted();
    place.script("{ step_ms: 1 }", "");
    let (first, second) = (finished(&place, "first"), finished(&place, "second"));
    assert!(place.succeed(&["tag", "first", "+base", "sweep/1"]).ends_with(": base sweep/1\n"));
    assert!(place.succeed(&["tag", "first", "-base", "+wide"]).ends_with(": sweep/1 wide\n"));
    assert_eq!(place.output(&["tag", "first", "+two words"]).status.code(), Some(2));
    place.succeed(&["note", "second", "longer warm-up"]);
    assert!(place.succeed(&["note", "second"]).ends_with(": longer warm-up\n"));

    let rows = listed(&place, &[]);
    assert_eq!(names(&rows), ["second", "first"], "the newest first");
    assert_eq!(names(&listed(&place, &["--sort", "name"])), ["first", "second"]);
    assert_eq!(names(&listed(&place, &["--tag", "wide", "--tag", "sweep/1"])), ["first"]);
    let row = &rows[0];
    assert_eq!((&row["state"], &row["steps"], &row["alive"]), (&"finished".into(), &120.into(), &false.into()));
    assert_eq!((&row["note"], &row["status"]["step"]), (&"longer warm-up".into(), &120.into()));
    assert!(row["started_ms"].as_i64() > Some(0) && row["duration_ms"].as_i64() >= Some(100), "{row}");
    let table = place.succeed(&["runs"]);
    let line = table.lines().find(|line| line.starts_with("first-")).unwrap();
    assert!(line.contains("  step 120 100 %  ") && line.ends_with("sweep/1 wide"), "{table}");

    place.succeed(&["archive", "second"]);
    assert_eq!(names(&listed(&place, &[])), ["first"]);
    assert_eq!(names(&listed(&place, &["--archived"])), ["second", "first"]);
    place.succeed(&["archive", "--undo", "second"]);
    assert_eq!(listed(&place, &[]).len(), 2);

    // Without a terminal nobody can be asked.
    let refused = place.output(&["delete", &second.name()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("nothing was deleted"), "{refused:?}");
    assert!(second.path().exists());
    let prefix = place.output(&["delete", "second", "--yes"]);
    assert_eq!(prefix.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&prefix.stderr).contains(&second.name()) && second.path().exists(), "{prefix:?}");
    assert!(place.succeed(&["delete", &second.name(), "--yes"]).starts_with("deleted second-"));
    assert!(!second.path().exists() && first.path().exists());
    // The folder of the test holds a run.yaml too, and is no run.
    assert_eq!(place.output(&["delete", "--yes", "."]).status.code(), Some(1));
    assert!(place.dir.path().join("run.yaml").exists());
}

#[test]
fn the_wall_time_of_a_run_adds_up_and_its_end_says_what_a_fault_cost() {
    let place = Place::scripted();
    place.script("{ step_ms: 6, save_ms: 1, start_ms: 200 }", "");
    let (mut child, _) = place.start(&["--inject", "kill@140"]);
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", place.printed());
    let status = place.status_json();
    let parts = status["time"]["parts_ms"].as_object().unwrap();
    let (ms, all) = (|part: &str| parts.get(part).and_then(Value::as_u64).unwrap_or(0), parts.values());
    let wall: u64 = all.map(|ms| ms.as_u64().unwrap()).sum();
    assert!(ms("steps") > 400 * 6 && ms("start") >= 400, "{parts:?}");
    // It goes on from step 100, so 39 steps are taken again.
    assert!((150..1_500).contains(&ms("repeated")), "{parts:?}");
    assert_eq!(status["time"]["faults"], 1);
    let share = status["useful"].as_f64().unwrap();
    assert!((share - ms("steps") as f64 / wall as f64).abs() < 1e-9 && share < 1.0);
    assert_eq!(listed(&place, &[])[0]["useful"], status["useful"]);
    let end = place.printed().lines().find(|line| line.contains("finished at step")).unwrap().to_owned();
    assert!(end.contains("; useful ") && end.ends_with(" lost to 1 fault"), "{end}");
    let text = place.succeed(&["status"]);
    assert!(text.contains("lost to 1 fault: steps ") && text.contains("steps repeated "), "{text}");
}

#[test]
fn a_living_run_is_not_deleted() {
    let place = Place::scripted();
    place.script("{ step_ms: 10 }", "");
    let (mut child, run) = place.start(&["--set", "training.steps=1000000"]);
    wait_status(&run, "steps", |status| status.step > 5);
    let refused = place.output(&["delete", "--yes", &run.name()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is alive"), "{refused:?}");
    assert!(listed(&place, &[])[0]["alive"].as_bool().unwrap());
    place.succeed(&["stop"]);
    child.wait().unwrap();
    wait_for("the end of the keeper", || live_status(&run).filter(|status| status.pid_keeper.is_none()));
    wait_for("the end of its parent", || {
        let out = place.output(&["delete", "--yes", &run.name()]);
        out.status.success().then_some(())
    });
    assert!(!run.path().exists());
}

#[test]
fn a_branch_continues_from_a_whole_checkpoint_and_leaves_the_first_run_alone() {
    let place = Place::scripted();
    place.script("{ step_ms: 1 }", "");
    let first = finished(&place, "first");
    let before = fs::read(first.file("run.db")).unwrap();
    let out = place.command(&["resume", "first", "--branch", "--from", "50", "--headless"]);
    let out = { out }.stdout(Stdio::null()).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let branch = place.newest().unwrap();
    assert_ne!(branch, first);
    let status = wait_state(&branch, RunState::Finished);
    assert_eq!((status.step, status.attempts), (120, 1));
    assert!(journal_says(&branch, &format!("branched from step 50 of {}", first.name())));
    // Its curve is its own.
    let rows = place.rows();
    let steps: Vec<u64> = rows.iter().map(|row| row["step"].as_u64().unwrap()).collect();
    assert!(steps == (51..=120).collect::<Vec<_>>(), "{steps:?}");
    assert_eq!(rows[0]["samples"], 51 * 8);
    assert_eq!(fs::read(first.file("run.db")).unwrap(), before);
    let both = place.output(&["resume", "first", "--branch", "--as-base"]);
    assert_eq!(both.status.code(), Some(2));
}
