//! Several runs in one folder: after a reboot, on one device, when stopping one of them; and the checks before
//! a start. The real program with the scripted worker.
#![expect(clippy::unwrap_used, reason = "a test: what is missing fails it")]

mod environment;

use crate::helper::{Place, QUICK, journal, kill, kill_keepers, send_signal, wait_for, wait_state, wait_status};
use downshift::format::rate;
use downshift::protocol::control::RunState;
use downshift::protocol::worker::Level;
use downshift::store::owners;
use downshift::store::reader::live_status;
use downshift::store::run_dir::RunDir;
use downshift::store::writer::Writer;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::process::{Child, Command, Output, Stdio};

/// Long enough not to finish during any test.
const LONG: [&str; 2] = ["--set", "training.steps=1000000"];

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Starts a run of this name and waits until it trains, whatever other runs do.
fn begin(place: &Place, name: &str) -> (Child, RunDir) {
    let name_it = format!("name={name}");
    let words = [&["run", "run.yaml", "--headless", "--another", "--set", &name_it][..], &LONG].concat();
    let child = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let runs = place.dir.path().join("runs");
    let run = wait_for("a run directory", || RunDir::find(&runs, Some(name)).ok());
    wait_status(&run, "steps", |status| status.step > 5 && status.state == RunState::Training);
    (child, run)
}

fn slow_place() -> Place {
    let place = Place::scripted();
    place.script("{ step_ms: 10, device: cpu }", "");
    place
}

/// Kills every process of a run at once, like a power cut.
fn power_cut(child: Child, run: &RunDir) {
    let status = live_status(run).unwrap();
    kill_keepers(child, &status);
    status.pid_worker.into_iter().for_each(kill);
    wait_for("the end of the run", || {
        let status = live_status(run)?;
        let processes =
            [status.pid_keeper, status.pid_worker, owners::parent_record(run).map(|parent| parent.owner.pid)];
        (processes == [None; 3]).then_some(())
    });
}

fn stop(place: &Place, run: &RunDir) {
    let out = place.output(&["stop", &run.name()]);
    assert!(out.status.success(), "{}", text(&out));
    wait_for("the end of the keeper", || live_status(run).filter(|status| status.pid_keeper.is_none()));
}

#[test]
fn after_a_reboot_exactly_the_runs_that_were_alive_resume() {
    let place = slow_place();
    let (lost, cut) = begin(&place, "cut");
    let (_alive, alive) = begin(&place, "alive");
    let (resting, paused) = begin(&place, "paused");
    let (_stopped, stopped) = begin(&place, "stopped");
    let (_down, shut_down) = begin(&place, "shutdown");
    let (_signalled, signalled) = begin(&place, "signalled");
    let (_rested, rested) = begin(&place, "rested");
    stop(&place, &stopped);
    place.output(&["pause", "paused"]);
    wait_state(&paused, RunState::Paused);
    power_cut(resting, &paused);
    power_cut(lost, &cut);
    // A machine shutdown ends every keeper with a signal. A signal within this boot is a user's wish.
    for run in [&shut_down, &signalled] {
        let keeper = live_status(run).unwrap().pid_keeper.unwrap();
        kill_process(Pid::from_raw(keeper.cast_signed()).unwrap(), Signal::TERM).unwrap();
        wait_status(run, "the end", |status| status.state == RunState::Stopped && status.pid_keeper.is_none());
    }
    // The machine goes down while a run is paused: that run does not train afterwards.
    place.output(&["pause", "rested"]);
    let keeper = wait_state(&rested, RunState::Paused).pid_keeper.unwrap();
    kill_process(Pid::from_raw(keeper.cast_signed()).unwrap(), Signal::TERM).unwrap();
    wait_status(&rested, "the end", |status| status.state == RunState::Stopped && status.pid_keeper.is_none());
    let fact = Writer::open(&rested.file("run.db")).unwrap().fact::<Option<String>>("ended_by_signal").unwrap();
    assert_eq!(fact.flatten(), None);
    let mut store = Writer::open(&shut_down.file("run.db")).unwrap();
    assert_eq!(store.fact::<String>("ended_by_signal").unwrap().map(|boot| boot.is_empty()), Some(false));
    store.put_fact("ended_by_signal", &"an earlier boot").unwrap();
    drop(store);
    let keeper = live_status(&alive).unwrap().pid_keeper;

    let out = place.output(&["resume", "--interrupted"]);
    let said = text(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    let mut said_of: Vec<&str> = said.lines().collect();
    said_of.sort_unstable();
    let parts = [
        ("alive-", "is already running"),
        ("cut-", "continues from step "),
        ("paused-", "was paused and stays paused"),
        ("shutdown-", "continues from step "),
    ];
    assert_eq!(said_of.len(), parts.len(), "{said}");
    for (line, (run, words)) in said_of.iter().zip(parts) {
        assert!(line.starts_with(run) && line.contains(words), "{said}");
    }
    for run in [&cut, &shut_down] {
        let resumed = wait_status(run, "steps", |status| status.state == RunState::Training && status.attempts == 2);
        assert!(resumed.pid_keeper.is_some(), "{}", run.name());
    }
    assert_eq!(live_status(&alive).unwrap().pid_keeper, keeper, "a living run was touched");
    for run in [&stopped, &signalled, &rested] {
        let status = live_status(run).unwrap();
        assert_eq!((status.state, status.pid_keeper, status.attempts), (RunState::Stopped, None, 1), "{}", run.name());
    }
    // Again: nothing is interrupted any longer, so no second keeper starts.
    let keepers = || [&cut, &shut_down].map(|run| live_status(run).unwrap().pid_keeper);
    let before = keepers();
    let again = text(&place.output(&["resume", "--interrupted"]));
    assert_eq!(again.matches("is already running").count(), 3, "{again}");
    assert_eq!(before, keepers());
}

#[test]
fn an_interrupted_run_that_cannot_continue_is_named_and_sets_the_exit_code() {
    let place = slow_place();
    let (child, cut) = begin(&place, "cut");
    power_cut(child, &cut);
    fs::write(cut.file("run.yaml"), "name: [").unwrap();
    let out = place.output(&["resume", "--interrupted"]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    assert!(text(&out).contains("cut-") && text(&out).contains("cannot continue: "), "{}", text(&out));
}

#[test]
fn an_interrupted_run_whose_store_is_lost_is_named_and_left_alone() {
    type Harm = fn(&RunDir);
    let harms: [(Harm, &str); 4] = [
        (|run| fs::write(run.file("run.db"), [0x5a; 8192]).unwrap(), "cannot be read"),
        (|run| fs::write(run.file("run.db"), "").unwrap(), "is empty"),
        (|run| fs::remove_file(run.file("run.db")).unwrap(), "is missing"),
        (
            |run| {
                let store = rusqlite::Connection::open(run.file("run.db")).unwrap();
                store.pragma_update(None, "user_version", 999).unwrap();
            },
            "newer",
        ),
    ];
    let place = slow_place();
    let (child, run) = begin(&place, "cut");
    wait_status(&run, "a checkpoint", |status| status.durable_step.is_some());
    power_cut(child, &run);
    let store = fs::read(run.file("run.db")).unwrap();
    for (harm, words) in harms {
        for log in ["run.db-wal", "run.db-shm"] {
            fs::remove_file(run.file(log)).ok();
        }
        fs::write(run.file("run.db"), &store).unwrap();
        harm(&run);
        let out = place.output(&["resume", "--interrupted"]);
        let said = text(&out);
        assert_eq!(out.status.code(), Some(1), "{words}: {said}");
        assert!(
            said.starts_with("cut-") && said.contains("may have been interrupted") && said.contains(words),
            "{said}"
        );
        assert!(owners::keeper(&run).is_none() && owners::parent_record(&run).is_none(), "{words}: a keeper started");
    }
}

#[test]
fn waiting_for_resumed_runs_outlasts_their_keepers() {
    let place = slow_place();
    let (child, run) = begin(&place, "cut");
    power_cut(child, &run);
    let mut waiting = place.command(&["resume", "--interrupted", "--wait"]).stdout(Stdio::null()).spawn().unwrap();
    let keeper = wait_status(&run, "steps", |status| status.attempts == 2 && status.state == RunState::Training);
    kill(keeper.pid_keeper.unwrap());
    wait_status(&run, "another keeper", |status| {
        status.pid_keeper.is_some() && status.pid_keeper != keeper.pid_keeper && status.state == RunState::Training
    });
    assert!(waiting.try_wait().unwrap().is_none(), "it did not wait");
    stop(&place, &run);
    assert_eq!(waiting.wait().unwrap().code(), Some(0));
}

#[test]
fn a_second_run_on_the_same_device_is_refused_without_a_terminal() {
    let place = slow_place();
    let (_child, run) = begin(&place, "first");
    let refused = place.output(&["run", "run.yaml", "--headless"]);
    let said = text(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    for part in [&run.name()[..], "is in use by", "--another", "downshift attach"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(RunDir::all(&place.dir.path().join("runs")).len(), 1, "a directory was made");
    let listed = place.output(&["check", "run.yaml", "--preflight"]);
    assert_eq!(listed.status.code(), Some(2), "{}", text(&listed));
    assert!(text(&listed).contains("fail  others"), "{}", text(&listed));
    let trial = place.output(&["trial", "run.yaml", "--for", "1s"]);
    assert_eq!(trial.status.code(), Some(2), "{}", text(&trial));
    // Another GPU is another device, and a paused run holds none.
    let elsewhere = place.output(&["check", "run.yaml", "--preflight", "--device", "cuda:7"]);
    assert!(!text(&elsewhere).contains(&run.name()), "{}", text(&elsewhere));
    place.output(&["pause"]);
    wait_state(&run, RunState::Paused);
    let free = place.output(&["check", "run.yaml", "--preflight"]);
    assert_eq!(free.status.code(), Some(0), "{}", text(&free));
    for part in ["ok    config", "ok    device", "ok    data", "ok    disk", "ok    others"] {
        assert!(text(&free).contains(part), "{part}: {}", text(&free));
    }
}

#[test]
fn a_line_break_in_a_path_leaves_an_error_one_line() {
    let place = slow_place();
    let odd = place.dir.path().join("a\nb.yaml");
    for words in [&["run", "a\nb.yaml", "--headless"][..], &["triage", "a\nb.yaml"], &["status", "a\nb.yaml"]] {
        let said = String::from_utf8(place.output(words).stderr).unwrap();
        assert!(said.lines().count() == 1 && said.contains(r"a\nb.yaml"), "{words:?}: {said}");
    }
    fs::write(&odd, "name: [\n").unwrap();
    let said = String::from_utf8(place.output(&["check", "a\nb.yaml"]).stderr).unwrap();
    assert!(said.lines().nth(1).is_some_and(|line| line.starts_with(r"a\nb.yaml:")), "{said}");
}

#[test]
fn a_trial_outlives_its_keeper() {
    let place = slow_place();
    let out = fs::File::create(place.dir.path().join("out.txt")).unwrap();
    let mut trial =
        place.command(&["trial", "run.yaml", "--for", "10s", LONG[0], LONG[1]]).stdout(out).spawn().unwrap();
    let run = wait_for("a run directory", || place.newest());
    let before = wait_status(&run, "steps", |status| status.step >= 20);
    // A locked store delays the next keeper, so that the run stays `recovering` for many polls.
    let store = rusqlite::Connection::open(run.file("run.db")).unwrap();
    store.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    store.execute_batch("BEGIN EXCLUSIVE").unwrap();
    kill(before.pid_keeper.unwrap());
    wait_status(&run, "a start that failed", |status| {
        status.state == RunState::Recovering && status.why.as_ref().is_some_and(|why| why.contains("locked"))
    });
    store.execute_batch("ROLLBACK").unwrap();
    let code = trial.wait().unwrap().code();
    let printed = place.printed();
    assert!(code.is_some_and(|code| code < 2) && printed.contains("✓ started"), "{code:?}: {printed}");
    assert!(wait_state(&run, RunState::Stopped).step > before.step, "{printed}");
}

#[test]
fn a_bare_stop_means_the_only_living_run_and_asks_for_a_name_where_there_are_two() {
    let place = slow_place();
    let (_first, first) = begin(&place, "first");
    let (_second, second) = begin(&place, "second");
    let refused = place.output(&["stop"]);
    let said = text(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    for part in ["2 runs are alive", &first.name(), &second.name()] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(
        [&first, &second].iter().all(|run| live_status(run).unwrap().state == RunState::Training),
        "one was stopped"
    );
    stop(&place, &second);
    // The newest run has finished, so the living one is meant.
    let out = place.output(&["stop"]);
    assert!(out.status.success() && text(&out).starts_with(&first.name()), "{}", text(&out));
    wait_state(&first, RunState::Stopped);
}

#[test]
fn each_way_to_another_worker_is_counted_once_and_the_speed_is_one_figure() {
    let place = slow_place();
    let (_child, run) = begin(&place, "counted");
    let training = |attempts| {
        wait_status(&run, "the next worker", |status| {
            status.attempts == attempts && status.state == RunState::Training && status.step > 0
        })
    };
    for (words, attempts) in [(&["shift", "down"][..], 2), (&["restart"], 3)] {
        let out = place.output(words);
        assert!(out.status.success(), "{}", text(&out));
        training(attempts);
    }
    for attempts in [4, 5] {
        place.output(&["pause"]);
        wait_state(&run, RunState::Paused);
        let resumed = place.command(&["resume", "--headless"]).stdout(Stdio::null()).spawn().unwrap();
        training(attempts);
        drop(resumed);
    }
    let status = training(5);
    assert_eq!((status.shifts, status.pauses, status.restarts), (1, 2, 0));
    // A script that reads the ladder sees the speed of the line. A stopped worker holds it still.
    // It has a speed only after its second step.
    let figure = || {
        let status = place.status_json();
        let rung = status["rung"].as_u64().and_then(|rung| usize::try_from(rung).ok())?;
        status["rungs"][rung]["steps_per_s"].as_f64().filter(|speed| *speed > 1.0).map(rate)
    };
    wait_for("a speed", figure);
    send_signal(status.pid_worker.unwrap(), Signal::STOP);
    let (figure, shown) = wait_for("one moment", || {
        let before = figure()?;
        let shown = text(&place.output(&["status"]));
        (figure()? == before).then_some((before, shown))
    });
    send_signal(status.pid_worker.unwrap(), Signal::CONT);
    assert!(shown.contains(&format!("  {figure} steps/s")), "{figure}: {shown}");
}

#[test]
fn a_bundle_holds_the_command_lines_of_the_run_and_the_driver() {
    let place = Place::scripted();
    place.script("{ step_ms: 1 }", "");
    let out = place.output(&["run", "run.yaml", "--headless", "--set", "training.steps=40"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out));
    let run = place.newest().unwrap();
    let stored = fs::read_to_string(run.file("commands.log")).unwrap();
    assert!(stored.contains("run run.yaml --headless --set training.steps=40"), "{stored}");
    let out = place.output(&["bundle", "--out", "b.tar.gz"]);
    assert!(out.status.success(), "{}", text(&out));
    let unpacked = Command::new("tar").args(["xzOf", "b.tar.gz"]).current_dir(place.dir.path()).output().unwrap();
    let all = text(&unpacked);
    assert!(all.contains("run run.yaml --headless --set training.steps=40"), "the command line of the run");
    assert!(all.contains("\ndriver: ") && all.contains("\nkernel module: "), "the driver");
}

#[test]
fn the_autostart_setup_has_absolute_paths() {
    let place = Place::scripted();
    let print = |what: &str| {
        let out = place.command(&["doctor", "--autostart", what]).env("WSL_DISTRO_NAME", "Ubuntu").output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", text(&out));
        String::from_utf8(out.stdout).unwrap()
    };
    let runs = place.dir.path().join("runs");
    let unit = print("systemd");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    assert!(
        line.starts_with("\"/")
            && line.ends_with(&format!("--interrupted --everywhere --runs-dir \"{}\"", runs.display())),
        "{line}"
    );
    let task = print("windows");
    assert!(task.starts_with("<?xml") && task.trim_end().ends_with("</Task>"), "{task}");
    assert!(task.contains("<Command>wsl.exe</Command><Arguments>-d Ubuntu --exec "), "{task}");
    let both = print("both");
    assert!(both.contains(unit.trim()) && both.contains(task.trim()), "{both}");
    // Well-formed XML, checked by a parser if there is one.
    fs::write(place.dir.path().join("task.xml"), &task).unwrap();
    let parse = "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])";
    if let Ok(parsed) = Command::new("python3").args(["-c", parse, "task.xml"]).current_dir(place.dir.path()).output() {
        assert!(parsed.status.success(), "{}", text(&parsed));
    }
}

#[test]
fn an_override_that_leaves_a_rung_no_safer_is_named_and_the_list_of_runs_shows_it() {
    let place = Place::scripted();
    place.script(QUICK, "");
    let set = ["--set", "optimizer.lr=0.04"];
    let wanted =
        "rung safe helps against NaN losses, but its optimizer.lr of 0.05 is above the 0.04 that the run begins with";
    let checked = place.output(&[&["check", "run.yaml"][..], &set].concat());
    assert!(text(&checked).contains(&format!("warning: {wanted}")), "{}", text(&checked));
    assert!(!text(&place.output(&["check", "run.yaml"])).contains("warning: "));
    let done = place.output(&[&["run", "run.yaml", "--headless"][..], &set].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let rows = journal(&place.newest().unwrap());
    let told = rows.iter().filter(|row| row.level == Level::Warn && row.text.starts_with(wanted));
    assert_eq!(told.count(), 1, "{rows:#?}");
    assert!(place.succeed(&["runs"]).contains("  lr=0.04"), "{}", place.succeed(&["runs"]));
    let listed: Value = serde_json::from_str(&place.succeed(&["runs", "--format", "json"])).unwrap();
    assert_eq!(listed[0]["overrides"], serde_json::json!(["optimizer.lr=0.04"]), "{listed}");
}
