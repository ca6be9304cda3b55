//! Faults of run.db during a run: damaged, lost, locked, of another version, on a full disk.
#![expect(clippy::unwrap_used, reason = "a test")]

use crate::helper::{Place, journal, journal_says, kill, wait_for, wait_state, wait_status};
use downshift::protocol::control::RunState;
use downshift::store::owners;
use downshift::store::reader::{Reader, live_status};
use downshift::store::run_dir::RunDir;
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const STEPS: u64 = 400;
const PAGE: usize = 4096;

/// Numbers drawn from a seed (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Starts a run that keeps every checkpoint, so that they hold its whole curve.
fn started(place: &Place, step_ms: u64, watch: &str) -> (std::process::Child, RunDir) {
    place.script(&format!("{{ step_ms: {step_ms}, save_ms: 1 }}"), &format!("watch: {watch}\n"));
    place.start(&["--set", "checkpoint.keep_last=100"])
}

/// Returns a run that was killed at random moments and stopped before its end, and its number of attempts.
fn stopped(place: &Place, deaths: u64, dice: &mut Dice) -> (RunDir, u64) {
    // Slow enough for a `stop` on a busy machine to come before the end.
    let (mut child, run) = started(place, 10, "{ hang_min: 10 s }");
    for death in 1..=deaths {
        let at = 60 * death + dice.below(30);
        let there = |status: &downshift::protocol::control::Status| status.attempts == death && status.step >= at;
        let status = wait_status(&run, "the next moment", |status| there(status) && status.pid_worker.is_some());
        kill(status.pid_worker.unwrap());
    }
    wait_status(&run, "the last attempt", |status| {
        status.attempts > deaths && status.durable_step >= Some(60 * deaths + 40)
    });
    assert!(place.output(&["stop"]).status.success());
    assert_eq!(child.wait().unwrap().code(), Some(3));
    (run, deaths + 1)
}

fn store(run: &RunDir) -> Connection {
    Connection::open(run.file("run.db")).unwrap()
}

/// Moves everything from the write-ahead log into the database file.
fn checkpoint_log(store: &Connection) {
    wait_for("the log in the file", || {
        let busy: i64 = store.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).unwrap();
        (busy == 0).then_some(())
    });
}

/// Returns the steps missing from the curve as charts show it.
fn holes(run: &RunDir) -> Vec<u64> {
    let rows = Reader::open(run).unwrap().curve_rows(&(1..STEPS + 1)).unwrap();
    for row in &rows {
        assert_eq!(row.samples, row.step * 8);
    }
    let there: BTreeSet<u64> = rows.iter().map(|row| row.step).collect();
    (1..=STEPS).filter(|step| !there.contains(step)).collect()
}

fn set_aside(run: &RunDir) -> bool {
    run.file("run.db.damaged").exists()
}

fn copied(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
}

/// Resumes a run to its end, beside others on the same device; returns the output.
fn gone_on(place: &Place, run: &RunDir) -> String {
    let out = place.output(&["resume", &run.name(), "--headless", "--another"]);
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(0), "{}: {said}", run.name());
    said
}

#[test]
fn every_page_of_run_db_damaged_in_turn_the_run_resumes_with_its_whole_curve() {
    let (place, mut dice) = (Place::scripted(), Dice(7));
    let (run, _) = stopped(&place, 4, &mut dice);
    checkpoint_log(&store(&run));
    let whole = fs::read(run.file("run.db")).unwrap();
    let pages = whole.len() / PAGE;
    assert!(pages > 15, "only {pages} pages");
    let runs = place.dir.path().join("runs");
    let damaged = |name: &str, bytes: &[u8]| {
        copied(run.path(), &runs.join(name));
        let copy = RunDir::open(&runs.join(name)).unwrap();
        fs::write(copy.file("run.db"), bytes).unwrap();
        copy
    };
    let mut copies: Vec<RunDir> = Vec::new();
    for page in 0..pages {
        let mut bytes = whole.clone();
        let junk: Vec<u8> = (0..PAGE).map(|_| if page % 2 == 0 { 0 } else { dice.below(256) as u8 }).collect();
        bytes[page * PAGE..(page + 1) * PAGE].copy_from_slice(&junk);
        copies.push(damaged(&format!("page-{}", page + 1), &bytes));
    }
    copies.push(damaged("cut-short", &whole[..whole.len() / 2]));
    copies.push(damaged("no-database", b"what a person wrote in its place"));
    let copies = std::sync::Mutex::new(copies);
    let seen = std::sync::Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some(copy) = copies.lock().unwrap().pop() else { return };
                    let said = gone_on(&place, &copy);
                    assert_eq!(holes(&copy), Vec::<u64>::new(), "{}: {said}", copy.name());
                    let found = set_aside(&copy);
                    assert_eq!(said.contains("run.db was damaged"), found, "{said}");
                    *seen.lock().unwrap() += usize::from(found);
                }
            });
        }
    });
    let seen = seen.into_inner().unwrap();
    // Damage in unused pages is harmless.
    assert!(seen > pages / 2, "only {seen} of {pages} pages mattered");
    // Control: an intact store is not set aside.
    gone_on(&place, &run);
    assert!(!set_aside(&run) && holes(&run).is_empty());
}

#[test]
fn a_store_lost_after_three_attempts_hides_nothing_that_comes_after() {
    let (place, mut dice) = (Place::scripted(), Dice(11));
    let (run, attempts) = stopped(&place, 3, &mut dice);
    assert_eq!(attempts, 4);
    let durable = wait_state(&run, RunState::Stopped).durable_step.unwrap();
    for end in ["", "-wal", "-shm"] {
        fs::remove_file(run.file(&format!("run.db{end}"))).ok();
    }
    let said = gone_on(&place, &run);
    assert!(said.contains("run.db was deleted or truncated"), "{said}");
    assert_eq!(holes(&run), Vec::<u64>::new());
    // Each step after the loss belongs to the attempt that ran it, on top of everything restored from checkpoints.
    let rows = Reader::open(&run).unwrap().curve_rows(&(durable + 1..STEPS + 1)).unwrap();
    assert_eq!(rows.len() as u64, STEPS - durable);
    assert!(rows.iter().all(|row| row.attempt == 5), "{:?}", rows.first());
    assert_eq!(wait_state(&run, RunState::Finished).attempts, 5);
}

#[test]
fn a_store_damaged_during_a_run_is_replaced_and_training_continues() {
    let place = Place::scripted();
    let (mut child, run) = started(&place, 5, "{ hang_min: 10 s }");
    wait_status(&run, "a checkpoint", |status| status.durable_step >= Some(100));
    let other = store(&run);
    other.busy_timeout(Duration::from_secs(5)).unwrap();
    let _: i64 = other.query_row("SELECT count(*) FROM facts", [], |row| row.get(0)).unwrap();
    checkpoint_log(&other);
    let file = File::options().write(true).open(run.file("run.db")).unwrap();
    let length = file.metadata().unwrap().len();
    file.write_all_at(&vec![0xaa; usize::try_from(length).unwrap() - 2 * PAGE], 2 * PAGE as u64).unwrap();
    // Another writer makes the keeper re-read the file instead of using its cache.
    let _ = other.execute("PRAGMA user_version = 2", []);
    let _ = other.execute("CREATE TABLE others (a)", []);
    drop(other);
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", place.printed());
    assert!(set_aside(&run), "{}", place.printed());
    assert!(journal_says(&run, "run.db was damaged"), "{:?}", journal(&run));
    let status = wait_state(&run, RunState::Finished);
    assert_eq!((status.attempts, status.restarts), (1, 0), "the worker noticed nothing");
    assert_eq!(holes(&run), Vec::<u64>::new());
}

#[test]
fn a_locked_store_is_not_the_workers_fault() {
    let place = Place::scripted();
    let (mut child, run) = started(&place, 20, "{ hang_min: 1 s, hang: { first_steps: 1 s } }");
    let before = wait_status(&run, "a checkpoint", |status| status.durable_step >= Some(50));
    let lock = store(&run);
    lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    std::thread::sleep(Duration::from_secs(4));
    lock.execute_batch("COMMIT").unwrap();
    let after = wait_status(&run, "steps after it", |status| status.step > before.step + 150);
    assert_eq!((after.pid_worker, after.attempts, after.restarts), (before.pid_worker, 1, 0), "{}", place.printed());
    assert!(journal_says(&run, "run.db cannot be written: database is locked"));
    assert!(!journal_says(&run, "hang"), "{:?}", journal(&run));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(holes(&run), Vec::<u64>::new());
}

#[test]
fn a_worker_that_dies_while_the_store_is_locked_is_replaced_once_its_attempt_can_be_recorded() {
    let place = Place::scripted();
    let (mut child, run) = started(&place, 5, "{ hang_min: 10 s }");
    let before = wait_status(&run, "a checkpoint", |status| status.durable_step >= Some(50));
    let lock = store(&run);
    lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    kill(before.pid_worker.unwrap());
    wait_for("the word of its death", || place.printed().contains("killed by SIGKILL").then_some(()));
    wait_for("what it waits for", || place.printed().contains("the next worker waits for run.db").then_some(()));
    std::thread::sleep(Duration::from_secs(2));
    let attempts: i64 = lock.query_row("SELECT count(*) FROM attempts", [], |row| row.get(0)).unwrap();
    assert!(attempts == 1 && !place.printed().contains("attempt 2"), "no worker without a row: {}", place.printed());
    assert!(owners::keeper_record(&run).and_then(|record| record.waiting).is_some_and(|why| why.contains("locked")));
    assert_eq!(live_status(&run).unwrap().state, RunState::Recovering);
    lock.execute_batch("COMMIT").unwrap();
    wait_status(&run, "the next worker", |status| status.state == RunState::Training && status.attempts == 2);
    assert_eq!(owners::keeper_record(&run).and_then(|record| record.waiting), None, "the wait is over");
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", place.printed());
    let status = wait_state(&run, RunState::Finished);
    assert_eq!((status.attempts, status.restarts), (2, 1));
    assert_eq!(holes(&run), Vec::<u64>::new());
}

#[test]
fn a_worker_that_hangs_under_a_lock_has_its_whole_grace() {
    let place = Place::scripted();
    place.script("{ step_ms: 5, save_ms: 1, ignore_term: true }", "watch: { hang_min: 1 s, ending: { grace: 2 s } }\n");
    let (mut child, run) = place.start(&["--set", "checkpoint.keep_last=100", "--inject", "hang@120"]);
    wait_status(&run, "a checkpoint", |status| status.durable_step >= Some(100));
    let lock = store(&run);
    lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    wait_for("the kill", || place.printed().contains("ignored SIGTERM").then_some(()));
    lock.execute_batch("COMMIT").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", place.printed());
    let at = |words: &str| journal(&run).iter().find(|row| row.text.contains(words)).map(|row| row.time_ms).unwrap();
    let grace_ms = at("ignored SIGTERM") - at("hang: no progress");
    assert!(grace_ms >= 1900, "killed {grace_ms} ms after SIGTERM");
    assert_eq!(holes(&run), Vec::<u64>::new());
}

#[test]
fn a_store_of_a_newer_version_is_refused_in_one_sentence_by_every_command() {
    let (place, mut dice) = (Place::scripted(), Dice(3));
    let (run, _) = stopped(&place, 0, &mut dice);
    store(&run).execute_batch("PRAGMA user_version = 99").unwrap();
    let name = run.name();
    for words in [
        &["status", &name][..],
        &["status", &name, "--format", "json"],
        &["plot", &name, "--out", "a.svg"],
        &["report", &name, "--out", "a.html"],
        &["export", &name],
        &["export", &name, "--format", "tensorboard", "--out", "tb"],
        &["checkpoints", &name, "list"],
        &["checkpoints", &name, "prune"],
        &["attach", &name],
        &["resume", &name, "--headless"],
        &["resume", &name, "--as-base"],
        &["bundle", &name],
        &["plan", &name],
        &["stop", &name],
        &["pause", &name],
        &["checkpoint", &name],
        &["restart", &name],
        &["accept", &name],
        &["shift", &name, "down"],
    ] {
        let out = place.output(words);
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(!out.status.success() && out.stdout.is_empty(), "{words:?}");
        assert!(
            said.contains("written by a newer downshift (schema 99") && said.lines().count() == 1,
            "{words:?}: {said}"
        );
    }
    let listed = String::from_utf8(place.output(&["runs"]).stdout).unwrap();
    assert!(listed.contains("newer downshift") && listed.lines().count() == 1, "{listed}");
    let version: i64 = store(&run).query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert!(version == 99 && !set_aside(&run), "it was touched");
}

#[test]
fn a_store_from_elsewhere_that_computes_without_end_is_refused_soon() {
    let (place, run) = crate::helper::finish_run();
    store(&run).execute_batch("ALTER TABLE attempts ADD COLUMN more AS (printf('%.*c', 1000000000, 'x'))").unwrap();
    for words in [&["report", "--out", "r.html"][..], &["export"], &["bundle", "--out", "b.tar.gz"]] {
        let path = place.dir.path().join("said");
        let out = File::create(&path).unwrap();
        let mut child = place.command(words).stdout(out.try_clone().unwrap()).stderr(out).spawn().unwrap();
        wait_for("its end", || child.try_wait().unwrap());
        let said = fs::read_to_string(path).unwrap();
        assert!(said.contains("more` is computed"), "{words:?}: {said}");
    }
}

#[test]
fn status_is_current_while_run_db_cannot_be_written() {
    let place = Place::scripted();
    let (mut child, run) = started(&place, 20, "{ hang_min: 10 s }");
    wait_status(&run, "a checkpoint", |status| status.durable_step >= Some(50));
    let lock = store(&run);
    lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let step_of = |status: &serde_json::Value| status["step"].as_u64().unwrap_or(0);
    let stored = Reader::open(&run).unwrap().status().unwrap().step;
    let shown = wait_for("a newer step than the stored one", || {
        Some(place.status_json()).filter(|status| step_of(status) > stored + 20)
    });
    assert_eq!(shown["state"], "training");
    let listed = String::from_utf8(place.output(&["runs"]).stdout).unwrap();
    let step = listed.split("  step ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(step.parse::<u64>().unwrap() >= step_of(&shown), "{listed}");
    lock.execute_batch("COMMIT").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_deleted_store_is_reported_as_missing_with_what_is_left() {
    let (place, mut dice) = (Place::scripted(), Dice(5));
    let (run, _) = stopped(&place, 0, &mut dice);
    let durable = wait_state(&run, RunState::Stopped).durable_step.unwrap();
    for end in ["", "-wal", "-shm"] {
        fs::remove_file(run.file(&format!("run.db{end}"))).ok();
    }
    for words in [&["status"][..], &["plot", "--out", "a.svg"], &["report", "--out", "a.html"], &["export"]] {
        let out = place.output(words);
        let said = String::from_utf8(out.stderr).unwrap();
        let left = format!("up to step {durable}, and `downshift resume {}` rebuilds it", run.name());
        assert!(
            !out.status.success() && said.contains("run.db is missing") && said.contains(&left),
            "{words:?}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let listed = String::from_utf8(place.output(&["runs"]).stdout).unwrap();
    assert!(listed.contains("run.db is missing") && !listed.contains("never began"), "{listed}");
    gone_on(&place, &run);
    assert!(place.output(&["status"]).status.success());
}

/// Mounts or unmounts; returns false if not permitted.
fn mount(words: &[&str], at: &Path) -> bool {
    Command::new(words[0]).args(&words[1..]).arg(at).stderr(Stdio::null()).status().is_ok_and(|done| done.success())
}

/// Fills the file system to its last byte.
fn fill(folder: &Path) {
    let mut file = File::create(folder.join("fill")).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}

/// Runs until the disk fills; `reserved` tells whether the space reserved for its last messages remains.
fn fills_up(place: &Place, runs: &Path, reserved: bool) {
    let (mut child, run) = started(place, 10, "{ hang_min: 10 s }");
    wait_status(&run, "a checkpoint", |status| status.durable_step >= Some(100));
    if !reserved {
        fs::remove_file(run.file("run.db.reserve")).unwrap();
    }
    fill(runs);
    assert_eq!(child.wait().unwrap().code(), Some(4), "{}", place.printed());
    let printed = place.printed();
    let end = printed.lines().find(|line| line.contains("needs attention")).unwrap().to_owned();
    let told = ["disk full", "No space left", "steps since checkpoint", "not saved", "df -h", "downshift resume"];
    assert!(told.iter().all(|words| end.contains(words)), "{end}");
    assert!(printed.contains("cause: disk full") && !printed.contains("does not answer"), "{printed}");
    if reserved {
        let status = wait_state(&run, RunState::NeedsPerson);
        assert!(status.why.is_some_and(|why| why.contains("disk full")) && status.exit_code == Some(4));
        assert!(journal_says(&run, "needs attention: disk full"));
        let causes = Reader::open(&run).unwrap().causes();
        assert_eq!(causes.last().unwrap().1.class.word(), "disk_full");
    }
    fs::remove_file(runs.join("fill")).unwrap();
    let said = gone_on(place, &run);
    assert!(said.contains("finished"), "{said}");
    assert_eq!(holes(&run), Vec::<u64>::new());
    assert!(!run.file("run.db.reserve").exists(), "the room is given back");
}

#[test]
fn a_full_disk_ends_the_run_and_it_resumes_once_there_is_room() {
    for reserved in [true, false] {
        let place = Place::scripted();
        let runs = place.dir.path().join("runs");
        fs::create_dir(&runs).unwrap();
        if !mount(&["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs"], &runs) {
            eprintln!("not tried: mounting needs a privilege that this place lacks");
            return;
        }
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fills_up(&place, &runs, reserved)));
        assert!(mount(&["umount", "-l"], &runs));
        tried.unwrap();
    }
}
