//! Tells a user who waits what takes so long.

use super::say;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The time after which a user wonders.
const MOMENT: Duration = Duration::from_secs(2);
/// What looking at the data may do.
pub const READING_DATA: &str =
    "still reading the data; pictures are decoded once, and later starts take them from the cache";

/// Does some work, and says what it is once that has taken a while.
pub fn explain_wait<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (done, waits) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if waits.recv_timeout(MOMENT) == Err(RecvTimeoutError::Timeout) {
                say(what);
            }
        });
        let result = work();
        drop(done);
        result
    })
}
