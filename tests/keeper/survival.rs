//! The real keeper with a scripted worker, while the disk, the store, the locks or the socket fail.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use crate::helper::{
    Disk, Place, QUICK, SLOW, fill_disk, finish_run, journal, journal_says, kill, lock_store, never_stopped, parent_of,
    send_signal, start_run, stop_run, wait_for, wait_parent_end, wait_state, wait_status,
};
use downshift::format::count;
use downshift::protocol::control::{Request, RunState};
use downshift::protocol::line;
use downshift::store::owners;
use downshift::store::reader::live_status;
use downshift::store::run_dir::RunDir;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_keeper_that_is_killed_is_recovering_and_never_stopped() {
    let (_place, _child, run, mut status) = start_run(SLOW, 4000, 5);
    let mut recovering = 0;
    for _ in 0..3 {
        let keeper = status.pid_keeper.unwrap();
        kill(keeper);
        never_stopped(&run, "another keeper", |state, _| {
            recovering += u32::from(state == RunState::Recovering);
            live_status(&run).is_some_and(|now| now.state == RunState::Training && now.pid_keeper != Some(keeper))
        });
        status = live_status(&run).unwrap();
    }
    assert!(recovering > 0, "no gap was ever seen");
    assert!(journal_says(&run, "the keeper was killed by SIGKILL and was restarted"));
}

#[test]
fn a_locked_store_delays_the_next_keeper_and_does_not_end_the_run() {
    let (place, mut child, run, before) = start_run(SLOW, 4000, 60);
    let store = lock_store(&run);
    kill(before.pid_keeper.unwrap());
    never_stopped(&run, "a start that failed", |state, why| state == RunState::Recovering && why.contains("locked"));
    let refused = place.output(&["shift", "down"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("recovering"), "{refused:?}");
    // Between two starts of the keeper the table may say for a moment that one is starting.
    wait_for("the table", || {
        String::from_utf8_lossy(&place.output(&["runs"]).stdout).contains("recovering").then_some(())
    });
    let second = place.output(&["run", "run.yaml", "--headless"]);
    assert!(String::from_utf8_lossy(&second.stderr).contains("is in use by"), "{second:?}");
    store.execute_batch("ROLLBACK").unwrap();
    never_stopped(&run, "training", |state, _| state == RunState::Training);
    wait_for("the report", || journal_says(&run, "the keeper could not run for").then_some(()));
    wait_status(&run, "more steps", |status| status.step > before.step + 5);
    assert!(place.output(&["stop"]).status.success());
    assert_eq!(child.wait().unwrap().code(), Some(3), "the client lived through it");
}

#[test]
fn a_full_disk_delays_the_next_keeper_and_does_not_end_the_run() {
    let place = Place::scripted();
    let Some(disk) = Disk::mount(place.dir.path().join("runs")) else { return };
    place.script(SLOW, "");
    let (_child, run) = place.start(&["--set", "training.steps=4000"]);
    let before = wait_status(&run, "steps", |status| status.step >= 60);
    let filler = disk.0.join("filler");
    fill_disk(&filler);
    kill(before.pid_keeper.unwrap());
    never_stopped(&run, "a start that failed", |state, why| state == RunState::Recovering && why.contains("full"));
    let said = place.status_json();
    assert_eq!(said["state"], "recovering");
    fs::remove_file(&filler).unwrap();
    never_stopped(&run, "training", |state, _| state == RunState::Training);
    wait_status(&run, "more steps", |status| status.step > before.step + 5);
    // Either the keeper could not open the run, or it could and there was no room for the next worker's row.
    let reported = ["the keeper could not run for", "run.db is writable again"];
    assert!(reported.iter().any(|text| journal_says(&run, text)), "{:#?}", journal(&run));
    assert!(place.output(&["stop"]).status.success());
    wait_state(&run, RunState::Stopped);
}

/// Reports whether a process has exited; one that is not reaped has no command line.
fn is_gone(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).map_or(true, |words| words.is_empty())
}

/// Takes the directory of a run away from its parent, without a keeper or worker in it that could put it back.
fn take_away(run: &RunDir, parent: u32, take: impl FnOnce(&Path)) {
    let status = wait_status(run, "steps", |status| {
        status.step >= 60 && status.state == RunState::Training && status.pid_worker.is_some()
    });
    send_signal(parent, Signal::STOP);
    for pid in [status.pid_keeper.unwrap(), status.pid_worker.unwrap()] {
        kill(pid);
        wait_for("the end of a process", || is_gone(pid).then_some(()));
    }
    take(run.path());
    send_signal(parent, Signal::CONT);
}

#[test]
fn a_run_whose_directory_comes_back_goes_on() {
    let (place, mut child, run, before) = start_run(SLOW, 4000, 60);
    let away = place.dir.path().join("away");
    take_away(&run, parent_of(before.pid_keeper.unwrap()).unwrap(), |path| fs::rename(path, &away).unwrap());
    let moved = wait_for("the moved run", || RunDir::open(&away).ok());
    let name = run.name();
    never_stopped(&moved, "a start that failed", |state, why| state == RunState::Recovering && why.contains(&name));
    fs::rename(&away, run.path()).unwrap();
    never_stopped(&run, "training", |state, _| state == RunState::Training);
    wait_for("the report", || journal_says(&run, "the keeper could not run for").then_some(()));
    wait_status(&run, "more steps", |status| status.step > before.step + 5);
    stop_run(&place, &mut child);
}

#[test]
fn a_run_whose_directory_is_deleted_needs_you_and_leaves_no_process() {
    let (place, mut child, run, _) = start_run(SLOW, 4000, 1);
    stop_run(&place, &mut child);
    wait_parent_end(&run);
    let words = ["keeper", "--run-dir", run.path().to_str().unwrap(), "--parent", "--by-person"];
    let mut parent = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    take_away(&run, parent.id(), |path| fs::remove_dir_all(path).unwrap());
    let ended = wait_for("the end of the parent", || parent.try_wait().unwrap());
    assert_eq!(ended.code(), Some(4));
    wait_for("the end of every process", || (place.processes().is_empty()).then_some(()));
    assert!(!run.path().exists(), "the directory was made again");
}

#[test]
fn without_its_lock_files_a_run_still_has_one_keeper_and_one_worker() {
    let (place, _child, run, before) = start_run(SLOW, 4000, 5);
    for name in ["keeper.lock", "parent.lock", "worker.lock"] {
        fs::remove_file(run.file(name)).unwrap();
    }
    let second = place.output(&["keeper", "--run-dir", run.path().to_str().unwrap(), "--by-person"]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("a run has one keeper"), "{said}");
    let mut client = place.command(&["resume", "--headless"]).stdout(Stdio::null()).spawn().unwrap();
    wait_for("the keeper's lock", || run.file("keeper.lock").exists().then_some(()));
    let after = wait_status(&run, "more steps", |status| status.step > before.step + 20);
    assert_eq!(
        (after.pid_keeper, after.pid_worker, after.attempts),
        (before.pid_keeper, before.pid_worker, before.attempts)
    );
    let told = || journal_says(&run, "keeper.lock was deleted or replaced; restored it").then_some(());
    wait_for("the report", told);
    client.kill().unwrap();
    client.wait().unwrap();
    // An orphaned worker is waited for even without its lock file.
    let keeper = after.pid_keeper.unwrap();
    kill(keeper);
    let next = wait_status(&run, "another keeper", |status| status.attempts == 2 && status.step > after.step + 5);
    assert_ne!(next.pid_worker, before.pid_worker);
    place.curve(after.step, 8);
}

#[test]
fn a_lock_that_is_a_link_is_refused_and_its_target_is_left_alone() {
    let (place, run) = finish_run();
    let mine = place.dir.path().join("bashrc");
    fs::write(&mine, "alias ls=ls\n").unwrap();
    for (name, words) in [("keeper.lock", ["checkpoints", "prune"]), ("keeper.log", ["resume", "--headless"])] {
        let _ = fs::remove_file(run.file(name));
        symlink(&mine, run.file(name)).unwrap();
        let refused = place.output(&words);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(name) && said.contains("a symbolic link"), "{said}");
        fs::remove_file(run.file(name)).unwrap();
    }
    assert_eq!(fs::read_to_string(&mine).unwrap(), "alias ls=ls\n");
}

#[test]
fn commands_of_another_environment_find_the_keeper_and_the_journal_names_them() {
    let (place, mut child, run, _) = start_run(SLOW, 400, 5);
    let stopped = place.command(&["stop"]).env("XDG_RUNTIME_DIR", "/nonexistent").output().unwrap();
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let row = journal(&run).into_iter().find(|row| row.text.starts_with("stop, requested by ")).unwrap();
    assert!(row.text.contains("downshift (process ") && row.text.contains("started by "), "{}", row.text);
}

#[test]
fn sockets_lie_in_no_folder_that_others_could_get_into() {
    let mut place = Place::scripted();
    let (temporary, trap) = (place.dir.path().join("tmp"), place.dir.path().join("trap"));
    fs::create_dir(&temporary).unwrap();
    fs::create_dir(&trap).unwrap();
    symlink(&trap, place.dir.path().join("sockets/downshift")).unwrap();
    let user = rustix::process::getuid().as_raw();
    let foreign = temporary.join(format!("downshift-{user}"));
    fs::create_dir(&foreign).unwrap();
    let wanted = if chown(&foreign, Some(65534), None).is_ok() {
        temporary.join(format!("downshift-{user}-1"))
    } else {
        println!("not tested: a folder of another user cannot be made here");
        foreign.clone()
    };
    place.variables.push(("TMPDIR", temporary));
    place.script(SLOW, "");
    let (mut child, run) = place.start(&[]);
    wait_status(&run, "steps", |status| status.step >= 5);
    let socket = owners::keeper_record(&run).unwrap().socket.unwrap();
    assert_eq!(socket.parent(), Some(wanted.as_path()));
    assert_eq!(fs::read_dir(&trap).unwrap().count(), 0);
    stop_run(&place, &mut child);
}

#[test]
fn endless_lines_and_too_many_clients_are_turned_away() {
    let (_place, _child, run, before) = start_run(SLOW, 4000, 5);
    let socket = owners::keeper_record(&run).unwrap().socket.unwrap();
    let mut endless = UnixStream::connect(&socket).unwrap();
    endless.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = endless.write_all(&vec![b'x'; 1 << 20]);
    let mut said = Vec::new();
    let _ = endless.read_to_end(&mut said);
    assert!(endless.write_all(&vec![b'x'; 1 << 20]).is_err(), "the connection is closed");
    let mut crowd: Vec<UnixStream> = (0..80).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let last = crowd.pop().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = String::new();
    BufReader::new(last).read_line(&mut answer).unwrap();
    assert!(answer.contains("64 clients"), "{answer}");
    drop(crowd);
    let after = wait_status(&run, "more steps", |status| status.step > before.step + 5);
    assert_eq!(after.pid_worker, before.pid_worker);
    wait_for("a seat", || {
        let mut client = UnixStream::connect(&socket).ok()?;
        client.write_all(line::encode(&Request::Checkpoint).ok()?.as_bytes()).ok()?;
        let mut answer = String::new();
        BufReader::new(client).read_line(&mut answer).ok()?;
        answer.contains("\"accepted\":true").then_some(())
    });
}

#[test]
fn a_run_file_garbled_during_the_run_is_reported() {
    let (_place, mut child, run, before) = start_run(SLOW, 4000, 5);
    let good = fs::read(run.file("run.yaml")).unwrap();
    fs::write(run.file("run.yaml"), "nothing: [").unwrap();
    wait_for("a warning", || journal_says(&run, "run.yaml changed and is now invalid").then_some(()));
    fs::write(run.file("run.yaml"), &good).unwrap();
    wait_for("all clear", || journal_says(&run, "run.yaml is valid again").then_some(()));
    fs::write(run.file("run.yaml"), "nothing: [").unwrap();
    kill(before.pid_worker.unwrap());
    assert_eq!(child.wait().unwrap().code(), Some(13));
    let status = wait_state(&run, RunState::Failed);
    assert!(status.why.as_ref().is_some_and(|why| why.contains("run.yaml")), "{status:?}");
}

#[test]
fn a_run_file_that_a_new_keeper_cannot_read_ends_the_run_with_its_name() {
    let (_place, mut child, run, before) = start_run(SLOW, 4000, 5);
    fs::write(run.file("run.yaml"), "nothing: [").unwrap();
    kill(before.pid_keeper.unwrap());
    let status = wait_state(&run, RunState::Failed);
    assert!(status.why.as_ref().is_some_and(|why| why.contains("run.yaml")), "{status:?}");
    assert_eq!(child.wait().unwrap().code(), Some(13));
}

#[test]
fn a_place_that_cannot_hold_runs_is_refused_at_once() {
    let place = Place::scripted();
    place.script(QUICK, "");
    let long = place.dir.path().join("r".repeat(200)).join("s".repeat(200));
    let odd = place.dir.path().join(OsStr::from_bytes(b"caf\xe9"));
    for (runs, words) in [(long, "the limit is 400"), (odd, "is not UTF-8 text")] {
        let asked = Instant::now();
        let refused = place.command(&["run", "run.yaml", "--headless", "--runs-dir"]).arg(&runs).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && said.contains(words), "{said}");
        assert!(asked.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn a_run_whose_end_cannot_be_stored_needs_attention_for_every_command() {
    let place = Place::scripted();
    place.script(QUICK, "");
    // In KiB: room for the attempt, and not for the whole run.
    let mut limited =
        within("ulimit -f 600", &place, &["run", "run.yaml", "--headless", "--set", "training.steps=8000"]);
    let ended = limited.output().unwrap();
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert!(printed.contains("run.db cannot be written"), "the limit is too high: {printed}");
    assert_eq!(ended.status.code(), Some(4), "{printed}");
    let needs = format!("needs attention: the run ended at step {}, but run.db cannot be written", count(8000));
    assert!(printed.contains(&needs), "{printed}");
    assert!(printed.contains("lost: make room, or raise the limit (`ulimit -f`"), "{printed}");
    let run = place.newest().unwrap();
    wait_parent_end(&run);
    let status = live_status(&run).unwrap();
    assert_eq!((status.state, status.exit_code), (RunState::NeedsPerson, Some(4)), "{status:#?}");
    assert_eq!(place.status_json()["exit_code"], 4);
    let resumed = place.output(&["resume", &run.name(), "--headless"]);
    assert_eq!(resumed.status.code(), Some(0), "{resumed:?}");
    assert_eq!(live_status(&run).unwrap().state, RunState::Finished);
}

#[test]
fn a_keeper_that_gets_no_thread_reports_a_failure_that_may_pass() {
    let (place, run) = finish_run();
    let owned = Command::new("chown").args(["-R", "65534:65534"]).arg(place.dir.path()).output();
    if !owned.is_ok_and(|said| said.status.success()) {
        let _ = writeln!(std::io::stderr(), "not tested here: only root may start a process as another user");
        return;
    }
    let words = ["keeper", "--by-person", "--run-dir", run.path().to_str().unwrap()];
    let limited = within("ulimit -u 1", &place, &words);
    let mut keeper = Command::new("setpriv");
    keeper
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(limited.get_program())
        .args(limited.get_args());
    keeper.envs(limited.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(place.dir.path());
    let ended = keeper.output().unwrap();
    let (told, wrong) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert_eq!(ended.status.code(), Some(1), "{told} {wrong}");
    assert!(told.contains("\"class\":\"transient\"") && told.contains("ulimit -u"), "{told} {wrong}");
    assert!(!wrong.contains("panicked"), "{wrong}");
}

#[test]
fn a_read_only_folder_is_refused_in_one_sentence_with_a_way_out() {
    let place = Place::scripted();
    place.script(QUICK, "");
    let Some(disk) = Disk::mount(place.dir.path().join("disk")) else { return };
    let made = Command::new("mount").args(["-o", "remount,ro"]).arg(&disk.0).output();
    assert!(made.is_ok_and(|said| said.status.success()), "it was mounted, so it can be mounted again");
    let runs = disk.0.join("runs");
    let refused = place.output(&["run", "run.yaml", "--headless", "--runs-dir", runs.to_str().unwrap()]);
    let (told, wrong) = (String::from_utf8_lossy(&refused.stdout), String::from_utf8_lossy(&refused.stderr));
    assert_eq!(refused.status.code(), Some(1), "{told} {wrong}");
    assert!(told.contains("fail  disk") && told.contains("→ choose another folder with --runs-dir"), "{told}");
    assert_eq!(wrong.lines().count(), 1, "{wrong}");
    assert!(wrong.contains("cannot be written: Read-only file system") && wrong.contains("--runs-dir"), "{wrong}");
}

/// Returns the command under a limit of the shell.
fn within(limit: &str, place: &Place, words: &[&str]) -> Command {
    let given = place.command(words);
    let mut limited = Command::new("bash");
    limited.args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")]).arg(given.get_program()).args(given.get_args());
    limited.current_dir(place.dir.path()).stdin(Stdio::null());
    for (name, value) in given.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}
