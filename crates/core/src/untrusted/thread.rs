//! Threads. A system at its limit of processes (`ulimit -u`, a cgroup) refuses them, and `std::thread::spawn` would panic.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use tokio::sync::oneshot;

/// Starts a thread that may never end.
///
/// # Errors
/// Returns the system's error.
pub fn start<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(work)
}

/// Does work that ends on a thread of its own, or on this one if the system refuses another.
pub fn run_beside(name: &str, work: impl FnOnce() + Send + 'static) {
    let work = Arc::new(Mutex::new(Some(work)));
    let theirs = Arc::clone(&work);
    if start(name, move || run_once(&theirs)).is_err() {
        run_once(&work);
    }
}

/// Does work that blocks, and waits for its result without blocking the other tasks. Returns none if it panicked.
pub async fn run_blocking<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = oneshot::channel();
    run_beside(name, move || drop(tell.send(work())));
    told.await.ok()
}

fn run_once(work: &Mutex<Option<impl FnOnce()>>) {
    let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(work) = work {
        work();
    }
}
