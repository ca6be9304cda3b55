//! One worker per run: a lock that is released when the process ends, however it ends.

use crate::failure;
use downshift_core::protocol::worker::Failed;
use downshift_core::store::lock::{Lock, LockError};
use downshift_core::store::owners;
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
pub fn acquire_lock(run_dir: &Path) -> Result<Lock, Failed> {
    acquire_lock_within(run_dir, PATIENCE)
}

fn acquire_lock_within(run_dir: &Path, patience: Duration) -> Result<Lock, Failed> {
    let path = run_dir.join(LOCK_FILE);
    let asked = Instant::now();
    loop {
        match owners::become_worker(run_dir) {
            Ok(lock) => return Ok(lock),
            Err(LockError::Held(_)) if asked.elapsed() < patience => thread::sleep(Duration::from_millis(20)),
            Err(error @ LockError::Held(_)) => return Err(failure::run_locked(&path, &error)),
            Err(LockError::Io(error)) => return Err(failure::system_refused(path.display(), &error)),
            Err(error @ (LockError::NotAFile | LockError::Elsewhere(_))) => {
                return Err(failure::system_refused(path.display(), &std::io::Error::other(error.to_string())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::acquire_lock_within;
    use std::time::Duration;
    use tempfile::TempDir;

    #[test]
    fn a_second_worker_is_refused_with_the_name_of_the_first() {
        let run = TempDir::new().unwrap();
        let first = acquire_lock_within(run.path(), Duration::ZERO).unwrap();
        let refusal = acquire_lock_within(run.path(), Duration::ZERO).unwrap_err();
        assert_eq!(refusal.class.exit_code(), 101);
        assert!(refusal.message.contains(&format!("process {}", std::process::id())), "{}", refusal.message);
        drop(first);
        acquire_lock_within(run.path(), Duration::ZERO).unwrap();
    }
}
