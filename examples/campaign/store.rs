//! Faults of run.db and its companion files, while the run continues or is resumed. The run must
//! recover automatically once the fault is over, and end with the weights of the uninterrupted run.

use crate::kills::{is_abandoned, resume_to_end, run_file, train_unbroken};
use crate::place::{Place, Role, find_process, kill, status, wait_for};
use crate::report::{Row, Table};
use crate::strace::copy_folder;
use crate::tmpfs::Tmpfs;
use crate::verdict::{self, Trace};
use crate::{Failing, Orders};
use downshift::recipe::seed::Stream;
use downshift::store::reader::Reader;
use downshift::store::run_dir::RunDir;
use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The step at which faults strike: some checkpoints exist, most of the run is still to come.
const FAULT_STEP: u64 = 600;
/// Big enough for a run of the tiny task, small enough to fill instantly.
const DISK_MIB: u64 = 24;

/// Keeps a fault active across a keeper's death until the guard is dropped.
type Hold = fn(&Place, &RunDir) -> Failing<Box<dyn Fault>>;

/// A fault that ends when dropped.
trait Fault {}

/// Runs this part of the campaign.
pub fn run(orders: &Orders, table: &mut Table) -> Failing<()> {
    let text = run_file(if orders.quick { 16 } else { 40 }, 250).replace("watch: {", "watch: { hang_min: 2 s,");
    let unbroken = train_unbroken(orders, &text)?;
    let suite = Suite { orders, text, unbroken };
    suite.kill_keepers(table)?;
    suite.try_repeatedly(table, "run.db locked, nothing killed", 1, |suite, place, _| suite.lock_store(place));
    suite.try_repeatedly(table, "run.db lost after three attempts", 1, |suite, place, _| suite.lose_store(place));
    suite.try_repeatedly(table, "lock files deleted, resume", 1, |suite, place, _| suite.delete_locks(place));
    suite.damage_pages(table)
}

struct Suite<'a> {
    orders: &'a Orders,
    text: String,
    unbroken: Trace,
}

impl Suite<'_> {
    /// Returns the duration of a fault.
    fn hold_time(&self) -> Duration {
        Duration::from_secs(if self.orders.quick { 4 } else { 20 })
    }

    fn try_repeatedly(
        &self,
        table: &mut Table,
        fault: &str,
        times: u64,
        attempt: impl Fn(&Self, &Place, u64) -> Failing<()>,
    ) {
        let mut row = Row::new(fault);
        for round in 0..times {
            try_in_place(&mut row, &self.orders.dir, |place| attempt(self, place, round));
        }
        row.identical = Some(row.survived == row.tried);
        table.add(row);
    }

    /// Kills a keeper while its store is not writable; it must be back once the store is.
    fn kill_keepers(&self, table: &mut Table) -> Failing<()> {
        let faults: [(&str, Hold); 3] = [
            ("keeper killed while the disk is full", |place, _| fill_disk(place)),
            ("keeper killed while the disk fails (EIO)", |_, run| fail_writes(run)),
            ("keeper killed while run.db is locked", |_, run| lock_database(run)),
        ];
        for (at, (fault, hold)) in faults.into_iter().enumerate() {
            let mut row = Row::new(fault);
            let disk = if at == 0 { Tmpfs::mount(&self.orders.dir, DISK_MIB)? } else { None };
            if at == 0 && disk.is_none() {
                println!("{fault}: skipped, cannot mount a file system here");
                continue;
            }
            let dir = disk.as_ref().map_or(self.orders.dir.as_path(), Tmpfs::path);
            try_in_place(&mut row, dir, |place| self.kill_keeper(place, hold));
            row.identical = Some(row.survived == row.tried);
            table.add(row);
        }
        Ok(())
    }

    fn kill_keeper(&self, place: &Place, hold: Hold) -> Failing<()> {
        let (_client, run) = place.start(&self.text)?;
        wait_for("some steps", || status(&run).filter(|status| status.step >= FAULT_STEP))?;
        let fault = hold(place, &run)?;
        wait_for("a keeper to kill", || find_process(&run, Role::Keeper).map(kill))?;
        std::thread::sleep(self.hold_time());
        if is_abandoned(&run) {
            return Err("no process is left to restart the keeper".into());
        }
        drop(fault);
        resume_to_end(place, &run)?;
        self.check_run(place, &run)
    }

    /// Locks the store: the run must lose neither its worker nor its rows.
    fn lock_store(&self, place: &Place) -> Failing<()> {
        let (_client, run) = place.start(&self.text)?;
        wait_for("some steps", || status(&run).filter(|status| status.step >= FAULT_STEP))?;
        let lock = lock_database(&run)?;
        std::thread::sleep(self.hold_time());
        drop(lock);
        wait_for("the end of the run", || is_abandoned(&run).then_some(()))?;
        let attempts = Reader::open(&run)?.attempts()?.len();
        if attempts != 1 {
            return Err(format!("{attempts} workers instead of 1: the worker was restarted without need").into());
        }
        self.check_run(place, &run)
    }

    fn lose_store(&self, place: &Place) -> Failing<()> {
        let (client, run) = place.start(&self.text)?;
        for attempt in 1..=3 {
            wait_for("a new worker's steps", || {
                status(&run).filter(|status| status.attempts == attempt && status.step >= 300 * attempt)
            })?;
            wait_for("a worker to kill", || find_process(&run, Role::Worker).map(kill))?;
        }
        place.output(&["stop"])?;
        wait_for("the stop", || is_abandoned(&run).then_some(()))?;
        drop(client);
        for name in ["run.db", "run.db-wal", "run.db-shm"] {
            let _ = fs::remove_file(run.file(name));
        }
        let from = verdict::rows_held_from(&run)?;
        drop(place.resume(&run)?);
        resume_to_end(place, &run)?;
        verdict::read_trace(place, &run)?.check_from(from, &self.unbroken)
    }

    fn delete_locks(&self, place: &Place) -> Failing<()> {
        let (client, run) = place.start(&self.text)?;
        wait_for("some steps", || status(&run).filter(|status| status.step >= FAULT_STEP))?;
        for name in ["keeper.lock", "worker.lock"] {
            fs::remove_file(run.file(name))?;
        }
        // Both outcomes are right: refused because a keeper answers, or taken over from one that ends.
        let _ = place.command(&["resume", "--headless"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?.wait()?;
        drop(client);
        resume_to_end(place, &run)?;
        self.check_run(place, &run)
    }

    /// Returns a run that was stopped before its end, and its place. On a busy machine it may end first.
    fn stopped_run(&self) -> Failing<(Place, RunDir)> {
        let mut tries = 0;
        loop {
            let place = Place::new(&self.orders.dir)?;
            let (_client, run) = place.start(&self.text)?;
            wait_for("some steps", || status(&run).filter(|status| status.step >= FAULT_STEP))?;
            let stopped = place.output(&["stop"]);
            wait_for("the stop", || is_abandoned(&run).then_some(()))?;
            match stopped {
                Ok(_) => return Ok((place, run)),
                Err(error) if tries == 2 => return Err(error),
                Err(_) => tries += 1,
            }
        }
    }

    /// Copies a stopped run once per page of its store, damages that page, and resumes from the copy.
    fn damage_pages(&self, table: &mut Table) -> Failing<()> {
        let (_template, run) = self.stopped_run()?;
        let (pages, size) = count_pages(&run.file("run.db"))?;
        let mut chosen: Vec<u64> = (0..pages).collect();
        let mut stream = Stream::new(self.orders.seed);
        while self.orders.quick && chosen.len() > 4 {
            chosen.swap_remove(usize::try_from(stream.below(chosen.len() as u64))?);
        }
        let mut row = Row::new(format!("run.db: a damaged page, each of {pages} pages"));
        for page in chosen {
            try_in_place(&mut row, &self.orders.dir, |place| {
                let copy = place.copy_run(&run)?;
                let file = File::options().write(true).open(copy.file("run.db"))?;
                file.write_all_at(&vec![0xA5; usize::try_from(size)?], page * size)?;
                let from = verdict::rows_held_from(&copy)?;
                drop(place.resume(&copy).map_err(|error| format!("page {}: {error}", page + 1))?);
                resume_to_end(place, &copy)?;
                let trace = verdict::read_trace(place, &copy)?;
                trace.check_from(from, &self.unbroken).map_err(|error| format!("page {}: {error}", page + 1).into())
            });
        }
        row.identical = Some(row.survived == row.tried);
        table.add(row);
        Ok(())
    }

    fn check_run(&self, place: &Place, run: &RunDir) -> Failing<()> {
        verdict::check(run)?;
        verdict::read_trace(place, run)?.check(&self.unbroken)
    }
}

/// Makes one attempt in its own place, which is kept if anything was lost.
fn try_in_place(row: &mut Row, dir: &Path, attempt: impl FnOnce(&Place) -> Failing<()>) {
    let outcome = Place::new(dir)
        .and_then(|place| attempt(&place).map_err(|loss| format!("{loss}; see {}", place.keep().display()).into()));
    row.add_outcome(outcome.map_err(|loss| loss.to_string()));
}

/// Returns the number of pages of a database and their size in bytes.
fn count_pages(database: &Path) -> Failing<(u64, u64)> {
    let connection = Connection::open(database)?;
    let size: i64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    let count: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    Ok((count.unsigned_abs(), size.unsigned_abs()))
}

struct Filler(std::path::PathBuf);

impl Fault for Filler {}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Fills the disk of this place to the last byte.
fn fill_disk(place: &Place) -> Failing<Box<dyn Fault>> {
    let path = place.file("filler");
    let mut file = File::create(&path)?;
    for size in [1 << 20, 1 << 12, 1] {
        while file.write(&vec![0; size]).is_ok_and(|written| written > 0) {}
    }
    Ok(Box::new(Filler(path)))
}

struct Exclusive(#[expect(dead_code, reason = "held for its lock")] Connection);

impl Fault for Exclusive {}

fn lock_database(run: &RunDir) -> Failing<Box<dyn Fault>> {
    let connection = Connection::open(run.file("run.db"))?;
    connection.busy_timeout(Duration::from_secs(5))?;
    // In WAL mode readers continue; writers wait.
    connection.execute_batch("BEGIN EXCLUSIVE")?;
    Ok(Box::new(Exclusive(connection)))
}

struct Tracer(Child);

impl Fault for Tracer {}

impl Drop for Tracer {
    fn drop(&mut self) {
        // SIGTERM makes strace detach and leave the processes alone.
        if let Some(pid) = Pid::from_raw(self.0.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// Fails every write of keepers started from now on with EIO.
fn fail_writes(run: &RunDir) -> Failing<Box<dyn Fault>> {
    let parent = wait_for("the keeper's parent", || find_process(run, Role::Parent))?;
    let calls = "pwrite64,fsync,fdatasync,ftruncate";
    let tracer = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={calls}"), "-e"])
        .arg(format!("inject={calls}:error=EIO"))
        .args(["-p", &parent.to_string()])
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("strace: {error}; install strace to try this"))?;
    let tracer = Tracer(tracer);
    let is_attached = || {
        let status = fs::read_to_string(format!("/proc/{parent}/status")).ok()?;
        status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0")).then_some(())
    };
    wait_for("strace to attach", is_attached)?;
    Ok(Box::new(tracer))
}

impl Place {
    /// Copies a run from another place.
    fn copy_run(&self, run: &RunDir) -> Failing<RunDir> {
        let runs = self.file("runs");
        fs::create_dir_all(&runs)?;
        copy_folder(run.path(), &runs.join(run.name()))?;
        Ok(RunDir::find(&runs, None)?)
    }
}
