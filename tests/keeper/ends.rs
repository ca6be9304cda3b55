//! How runs end and continue: who requested it, what the command that asked learns, and what happens without a keeper.

use crate::helper::{
    Disk, Place, QUICK, SLOW, fill_disk, finish_run, journal, journal_says, kill, kill_keepers, lock_store,
    never_stopped, parent_of, send_signal, start_run, stop_run, wait_for, wait_parent_end, wait_state, wait_status,
};
use downshift::keeper::lifeline::Lifetime;
use downshift::keeper::offline::{OfflineEnd, conclude_run};
use downshift::keeper::{Class, ENDED_BY_SIGNAL, LastWord};
use downshift::protocol::control::{RunState, Status, Update};
use downshift::protocol::line;
use downshift::store::owners;
use downshift::store::reader::{Reader, live_status};
use downshift::store::writer::Writer;
use downshift::untrusted::peer;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn a_stop_while_the_store_is_locked_is_accepted_and_recorded() {
    let (place, mut child, run, before) = start_run(SLOW, 4000, 60);
    let store = lock_store(&run);
    kill(before.pid_keeper.unwrap());
    never_stopped(&run, "a start that failed", |state, why| state == RunState::Recovering && why.contains("locked"));
    // Under load, `stop` may give up between two starts of the keeper, and says to try again later.
    wait_for("the stop", || place.output(&["stop"]).status.success().then_some(()));
    let mut seen = Vec::new();
    let ended = wait_for("the end", || {
        let status = live_status(&run)?;
        seen.push(status.state);
        (status.state == RunState::Stopped).then_some(status)
    });
    assert!(seen.contains(&RunState::Stopping) && !seen.contains(&RunState::Training), "{seen:?}");
    assert!(ended.why.is_some_and(|why| why.contains("stopped by SIGINT from downshift (process ")));
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert!(place.printed().contains("warning: stopped by SIGINT from downshift"), "{}", place.printed());
    let interrupted = place.output(&["resume", "--interrupted"]);
    assert!(
        String::from_utf8_lossy(&interrupted.stdout).contains("was interrupted"),
        "a user request is kept: {interrupted:?}"
    );
    store.execute_batch("ROLLBACK").unwrap();
    assert_eq!(live_status(&run).unwrap().state, RunState::Stopped);
}

#[test]
fn a_keeper_that_dies_six_times_is_not_started_again_and_the_end_says_why() {
    let (_place, mut child, run, _) = start_run(SLOW, 40000, 5);
    let mut last = None;
    for _ in 0..6 {
        let status =
            wait_status(&run, "another keeper", |status| status.pid_keeper.is_some() && status.pid_keeper != last);
        last = status.pid_keeper;
        kill(last.unwrap());
    }
    let ended = wait_state(&run, RunState::NeedsPerson);
    let why = ended.why.unwrap_or_default();
    for words in
        ["died 6 times within 10 minutes", "5 restarts are the limit", "killed by SIGKILL at", "downshift resume"]
    {
        assert!(why.contains(words), "{words}: {why}");
    }
    let logged = fs::metadata(run.file("keeper.log")).is_ok_and(|log| log.len() > 0);
    assert_eq!(why.contains("keeper.log"), logged, "{why}");
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

#[test]
fn the_first_start_of_a_resumed_run_is_retried_for_a_while() {
    let (place, mut child, run, _) = start_run(SLOW, 200, 5);
    stop_run(&place, &mut child);
    wait_parent_end(&run);
    let store = lock_store(&run);
    let mut resumed = place.command(&["resume", "--headless"]).stdout(Stdio::null()).spawn().unwrap();
    wait_for("a failed start", || owners::last_failure(&run).filter(|why| why.contains("locked")));
    store.execute_batch("ROLLBACK").unwrap();
    assert_eq!(resumed.wait().unwrap().code(), Some(0), "the retry succeeds");
    // A failure that lasts is reported to the command that asked, and the run stays as it is.
    let store = lock_store(&run);
    let refused = place.output(&["resume", "--headless"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("did not start") && said.contains("locked"), "{said}");
    wait_parent_end(&run);
    store.execute_batch("ROLLBACK").unwrap();
    assert_eq!(live_status(&run).unwrap().state, RunState::Finished);
}

#[test]
fn an_end_that_is_written_for_the_keeper_says_whether_a_signal_did_it() {
    let (_place, run) = finish_run();
    let end = |state: RunState, verdict: OfflineEnd| {
        let mut store = Writer::open(&run.file("run.db")).unwrap();
        let status = store.fact::<Status>("status").unwrap().unwrap();
        store.put_fact("status", &Status { state, ..status }).unwrap();
        drop(store);
        conclude_run(&run, verdict, "SIGTERM").unwrap();
        let reader = Reader::open(&run).unwrap();
        (reader.status().unwrap().state, reader.fact::<Option<String>>(ENDED_BY_SIGNAL).flatten().is_some())
    };
    let signalled = OfflineEnd::Signalled(Lifetime::Detached);
    assert_eq!(end(RunState::Training, signalled), (RunState::Stopped, true));
    assert_eq!(end(RunState::Paused, signalled), (RunState::Stopped, false), "a pause is your own wish");
    let in_job = OfflineEnd::Signalled(Lifetime::Bound);
    assert_eq!(end(RunState::Paused, in_job), (RunState::Stopped, true), "a job is started again");
    assert_eq!(end(RunState::Training, OfflineEnd::Stopped), (RunState::Stopped, false));
    assert_eq!(end(RunState::Training, OfflineEnd::NeedsPerson), (RunState::NeedsPerson, false));
}

#[test]
fn an_end_can_be_written_on_a_full_disk() {
    let place = Place::scripted();
    let Some(disk) = Disk::mount(place.dir.path().join("runs")) else { return };
    place.script(SLOW, "");
    let (child, run) = place.start(&["--set", "training.steps=4000"]);
    let before = wait_status(&run, "steps", |status| status.step >= 60);
    kill_keepers(child, &before);
    wait_status(&run, "the end of the worker", |status| status.pid_keeper.is_none() && status.pid_worker.is_none());
    fill_disk(&disk.0.join("filler"));
    conclude_run(&run, OfflineEnd::NeedsPerson, "the disk is full").unwrap();
    let status = live_status(&run).unwrap();
    assert_eq!((status.state, status.why.as_deref()), (RunState::NeedsPerson, Some("the disk is full")));
}

#[test]
fn a_keeper_without_file_handles_reports_a_failure_that_may_pass() {
    let (_place, run) = finish_run();
    let script = "ulimit -n 4 && exec \"$0\" keeper --run-dir \"$1\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_downshift")]).arg(run.path());
    let said = shell.output().unwrap();
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let word: LastWord = serde_json::from_slice(&said.stdout).unwrap();
    assert!(word.class == Class::Transient && word.why.contains("the keeper's runtime"), "{word:?}");
}

#[test]
fn a_client_reads_no_endless_line() {
    let (place, mut child, run, _) = start_run(SLOW, 400, 5);
    let socket = owners::keeper_record(&run).unwrap().socket.unwrap();
    stop_run(&place, &mut child);
    wait_parent_end(&run);
    let listener = UnixListener::bind(socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let asking = std::thread::spawn(move || place.output(&["checkpoint"]));
    let (mut stream, _) = wait_for("the client", || listener.accept().ok());
    let mut sent = 0_u64;
    while stream.write_all(&vec![b'x'; 1 << 16]).is_ok() {
        sent += 1 << 16;
        assert!(sent < 2 * peer::MAX_LINE, "the client reads on and on");
    }
    assert!(sent >= peer::MAX_LINE / 2, "it reads long lines: {sent}");
    let said = asking.join().unwrap();
    assert_eq!(said.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&said.stderr).contains("ended before it answered"), "{said:?}");
}

#[test]
fn resume_waits_for_a_keeper_whose_run_has_ended() {
    let (place, mut child, run, _) = start_run(SLOW, 200, 5);
    let socket = owners::keeper_record(&run).unwrap().socket.unwrap();
    stop_run(&place, &mut child);
    wait_parent_end(&run);
    // From here on, this test is the keeper that has recorded the end but still lives.
    let lock = owners::become_keeper(&run).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let mut resuming = place.command(&["resume", "--headless"]).stdout(Stdio::null()).spawn().unwrap();
    let mut asked = String::new();
    while asked.is_empty() {
        let (mut stream, _) = listener.accept().unwrap();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut asked).unwrap();
        let refusal = Update::Reply { accepted: false, message: "the run is over".to_owned() };
        let _ = stream.write_all(line::encode(&refusal).unwrap().as_bytes());
    }
    for _ in 0..30 {
        assert_eq!(resuming.try_wait().unwrap(), None, "it waits while the keeper lives");
        assert!(owners::parent_record(&run).is_none(), "nothing starts while the keeper lives");
        std::thread::park_timeout(Duration::from_millis(10));
    }
    drop(listener);
    fs::remove_file(&socket).unwrap();
    lock.release();
    assert_eq!(resuming.wait().unwrap().code(), Some(0));
    assert_eq!(live_status(&run).unwrap().state, RunState::Finished);
}

#[test]
fn a_signal_to_end_is_heard_also_while_no_keeper_lives() {
    let place = Place::scripted();
    place.script(SLOW, "");
    let own = format!("(process {}", std::process::id());
    for _ in 0..3 {
        let (mut child, run) = place.start(&["--set", "training.steps=4000"]);
        let before = wait_status(&run, "steps", |status| status.step >= 5 && status.pid_keeper.is_some());
        let (keeper, parent) = (before.pid_keeper.unwrap(), parent_of(before.pid_keeper.unwrap()).unwrap());
        kill(keeper);
        wait_status(&run, "the gap", |status| status.pid_keeper != Some(keeper));
        send_signal(parent, Signal::TERM);
        assert_eq!(child.wait().unwrap().code(), Some(3));
        wait_state(&run, RunState::Stopped);
        let told = journal(&run).into_iter().any(|row| row.text.contains("SIGTERM from") && row.text.contains(&own));
        assert!(told, "{:#?}", journal(&run));
        wait_status(&run, "the end of the worker", |status| status.pid_worker.is_none());
        fs::remove_dir_all(run.path()).unwrap();
    }
}

#[test]
fn the_journal_names_the_sender_of_a_signal() {
    let (_place, mut child, run, status) = start_run(SLOW, 4000, 5);
    send_signal(status.pid_keeper.unwrap(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let row = journal(&run).into_iter().find(|row| row.text.contains("SIGTERM from")).unwrap();
    assert!(row.text.starts_with("stop, requested by SIGTERM from"), "{}", row.text);
    assert!(row.text.contains(&format!("(process {}", std::process::id())), "{}", row.text);
}

#[test]
fn the_journal_names_the_process_that_resumes_a_run() {
    let (place, mut child, run, _) = start_run(SLOW, 200, 5);
    stop_run(&place, &mut child);
    let mut resumed = place.command(&["resume", "--headless"]).stdout(Stdio::null()).spawn().unwrap();
    let by = format!("resume requested by downshift (process {}, started by ", resumed.id());
    assert_eq!(resumed.wait().unwrap().code(), Some(0));
    assert!(journal_says(&run, &by), "{by}: {:#?}", journal(&run));
}

#[test]
fn a_paused_run_whose_machine_crashed_is_paused_for_every_command() {
    let (place, child, run, _) = start_run(SLOW, 200, 5);
    assert!(place.output(&["pause"]).status.success());
    let paused = wait_status(&run, "rest", |status| status.state == RunState::Paused && status.pid_worker.is_none());
    kill_keepers(child, &paused);
    wait_for("the end of both", || {
        (owners::keeper(&run).is_none() && owners::parent_record(&run).is_none()).then_some(())
    });
    let dead = live_status(&run).unwrap();
    assert_eq!(dead.state, RunState::Paused);
    assert!(dead.why.is_some_and(|why| why.contains("no keeper runs") && why.contains("downshift resume")));
    for words in [&["runs"][..], &["status"], &["resume", "--interrupted"]] {
        let said = String::from_utf8(place.output(words).stdout).unwrap();
        assert!(said.contains("paused") && !said.contains("stopped"), "{words:?}: {said}");
    }
    assert_eq!(place.output(&["resume", "--headless"]).status.code(), Some(0));
    place.curve(200, 8);
}

#[test]
fn ending_the_parent_ends_the_run() {
    let (_place, mut child, run, before) = start_run(SLOW, 400, 20);
    let parent = parent_of(before.pid_keeper.unwrap()).unwrap();
    kill_process(Pid::from_raw(parent.cast_signed()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let ended = wait_state(&run, RunState::Stopped);
    assert_eq!(ended.durable_step, Some(ended.step));
}

#[test]
fn resume_replaces_a_keeper_that_dies_instead_of_answering() {
    let (place, _child, run, status) = start_run(QUICK, 1000, 5);
    let keeper = status.pid_keeper.unwrap();
    let parent = parent_of(keeper).unwrap();
    kill(parent);
    // The end of a parent wakes a process that is stopped already.
    wait_for("the parent to end", || (parent_of(keeper)? != parent).then_some(()));
    // A stopped process still accepts connections, as one does that was killed this moment.
    send_signal(keeper, Signal::STOP);
    let mut client = place.command(&["resume", "--headless"]);
    let client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let is_socket = |path: PathBuf| fs::read_link(path).is_ok_and(|link| link.to_string_lossy().starts_with("socket:"));
    wait_for("a connection", || {
        let open = fs::read_dir(format!("/proc/{}/fd", client.id())).ok()?;
        open.flatten().any(|entry| is_socket(entry.path())).then_some(())
    });
    kill(keeper);
    let ended = client.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    wait_state(&run, RunState::Finished);
}

#[test]
fn a_script_waits_for_the_end_of_a_run_and_learns_how_it_ended() {
    let (place, mut child, run, before) = start_run(SLOW, 4000, 5);
    let early = place.output(&["wait", "--timeout", "1s"]);
    assert_eq!(early.status.code(), Some(124), "{early:?}");
    assert!(live_status(&run).is_some_and(|status| status.state == RunState::Training), "it goes on");
    let waiting = place.command(&["wait"]).stdout(Stdio::piped()).spawn().unwrap();
    stop_run(&place, &mut child);
    let ended = waiting.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(3));
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(said.contains("  stopped  ") && said.contains("downshift resume"), "{said}");

    wait_parent_end(&run);
    let resumed = place.command(&["resume", "--headless"]).stdout(Stdio::null()).spawn().unwrap();
    let again = wait_status(&run, "steps", |status| status.step > before.step && status.pid_worker.is_some());
    kill_keepers(resumed, &again);
    kill(again.pid_worker.unwrap());
    let lost = place.output(&["wait"]);
    assert_eq!(lost.status.code(), Some(1), "the code of the earlier end is not that of this one");
    assert!(String::from_utf8_lossy(&lost.stdout).contains("interrupted"), "{lost:?}");
}

#[test]
fn a_run_that_has_ended_continues_on_another_rung() {
    let (place, mut child, run, _) = start_run(SLOW, 300, 60);
    stop_run(&place, &mut child);
    wait_parent_end(&run);
    let name = run.name();
    let said = place.output(&["shift", "safe"]);
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains(&format!("`downshift resume {name} --rung safe` continues it")), "{said}");

    let stopped = live_status(&run).unwrap();
    let wrong = place.output(&["resume", "--rung", "sage", "--headless"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("full, accumulate, safe"), "{wrong:?}");
    assert_eq!(live_status(&run).unwrap(), stopped, "nothing has changed");

    assert_eq!(place.output(&["resume", "--rung", "safe", "--headless"]).status.code(), Some(0));
    let done = live_status(&run).unwrap();
    assert_eq!((done.state, &*done.rung_name, done.shifts), (RunState::Finished, "safe", 1));
    assert!(journal_says(&run, "shift: full → safe, requested by downshift (process "), "{:#?}", journal(&run));
    let rungs: Vec<u64> = place.curve(300, 8).iter().filter_map(|row| row["rung"].as_u64()).collect();
    let begins = rungs.iter().position(|rung| *rung == 2).unwrap();
    assert!(begins as u64 == stopped.step && rungs[begins..].iter().all(|rung| *rung == 2), "{rungs:?}");
}

#[test]
fn a_paused_run_continues_on_another_rung() {
    let (place, mut child, run, _) = start_run(SLOW, 200, 5);
    assert!(place.output(&["pause"]).status.success());
    let said = place.output(&["resume", "--rung", "down"]);
    assert!(said.status.success(), "{said:?}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(live_status(&run).unwrap().rung_name, "accumulate");
}
