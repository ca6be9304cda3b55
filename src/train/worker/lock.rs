//! One worker per run: a lock that is released when the process ends, however it ends.

use super::failure;
use crate::protocol::worker::Failed;
use crate::store::lock::{Lock, LockError};
use crate::store::owners;
use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// The name of the lock in a run directory.
pub const LOCK_FILE: &str = "worker.lock";

/// Maximum time to wait for the last worker to exit.
const PATIENCE: Duration = Duration::from_secs(10);

/// Acquires the lock.
///
/// # Errors
/// Returns an error that names the other worker when it still holds the lock after 10 s.
pub fn take(run_dir: &Path) -> Result<Lock, Failed> {
    take_within(run_dir, PATIENCE)
}

fn take_within(run_dir: &Path, patience: Duration) -> Result<Lock, Failed> {
    let path = run_dir.join(LOCK_FILE);
    let asked = Instant::now();
    loop {
        match owners::become_worker(run_dir) {
            Ok(lock) => return Ok(lock),
            Err(LockError::Held(_)) if asked.elapsed() < patience => thread::sleep(Duration::from_millis(20)),
            Err(error @ LockError::Held(_)) => {
                let words =
                    format!("another worker of this run is still alive; {} is {error}; end it first", path.display());
                return Err(failure::locked(words));
            }
            Err(LockError::Io(error)) => return Err(failure::refused(&path.display().to_string(), &error)),
            Err(error @ LockError::NotAFile) => {
                return Err(failure::refused(&path.display().to_string(), &std::io::Error::other(error.to_string())));
            }
        }
    }
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
        assert!(refusal.message.contains(&format!("process {}", std::process::id())), "{}", refusal.message);
        drop(first);
        take_within(run.path(), Duration::ZERO).unwrap();
    }
}
