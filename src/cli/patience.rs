//! Explains long waits.

use super::say;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The time after which a wait is explained.
const MOMENT: Duration = Duration::from_secs(2);
/// Explains why reading the data takes long.
pub const READING_DATA: &str =
    "still reading the data; pictures are decoded once, and later starts take them from the cache";

/// Does some work, and explains it once it has taken a while.
pub fn explain_wait<T>(explanation: &str, work: impl FnOnce() -> T) -> T {
    let (done, waits) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if waits.recv_timeout(MOMENT) == Err(RecvTimeoutError::Timeout) {
                say(explanation);
            }
        });
        let result = work();
        drop(done);
        result
    })
}
