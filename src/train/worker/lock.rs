//! One worker per run: an flock that ends with the process, whatever ends the process.

use super::failure;
use crate::protocol::worker::Failed;
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File},
    io::{self, Read, Seek, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// The lock's name in a run directory.
pub const LOCK_FILE: &str = "worker.lock";

/// How long the last worker may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes the lock and writes into it who holds it.
///
/// # Errors
/// When another worker still holds it after 10 s; says which.
pub fn take(run_dir: &Path) -> Result<File, Failed> {
    take_within(run_dir, PATIENCE)
}

fn take_within(run_dir: &Path, patience: Duration) -> Result<File, Failed> {
    let path = run_dir.join(LOCK_FILE);
    let refused = |error: &io::Error| failure::refused(&path.display().to_string(), error);
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|error| refused(&error))?;
    let asked = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if asked.elapsed() >= patience {
            let mut holder = String::new();
            file.read_to_string(&mut holder).ok();
            return Err(failure::locked(format!(
                "another worker of this run is still alive and holds {}: {}; end it, then start again",
                path.display(),
                holder.trim()
            )));
        }
        thread::sleep(Duration::from_millis(20));
    }
    write_holder(&mut file).map_err(|error| refused(&error))?;
    Ok(file)
}

/// The process, the boot it lives in and its start: what tells it from a later one of the same id.
fn write_holder(file: &mut File) -> io::Result<()> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Field 22, counted behind the command's closing bracket, which is field 2.
    let started = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)).unwrap_or("0");
    let started: u64 = started.parse().unwrap_or(0);
    let holder = serde_json::json!({ "pid": std::process::id(), "boot_id": boot_id.trim(), "start_ticks": started });
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{holder}")
}

#[cfg(test)]
mod tests {
    use super::take_within;
    use std::time::Duration;
    use tempfile::TempDir;

    #[test]
    fn a_second_worker_is_told_who_is_there() {
        let run = TempDir::new().unwrap();
        let first = take_within(run.path(), Duration::ZERO).unwrap();
        let refusal = take_within(run.path(), Duration::ZERO).unwrap_err();
        assert_eq!(refusal.class.exit_code(), 101);
        assert!(refusal.message.contains(&format!("\"pid\":{}", std::process::id())), "{}", refusal.message);
        drop(first);
        take_within(run.path(), Duration::ZERO).unwrap();
    }
}
