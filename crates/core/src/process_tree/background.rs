//! A process beside the training that its keeper started: it yields to everything else, and ends with its keeper.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{fs, io};

/// Interval between two looks.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// The lowest priority. The system derives that of reads and writes from it.
const NICE: i32 = 19;

/// Gives this process, and all that it starts, the lowest priority; when memory runs out, the system ends them first.
/// Best effort: without it the work is still worth doing.
pub fn yield_to_training() {
    let _ = rustix::process::nice(NICE);
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
}

/// Waits briefly for the end of stdin, which the keeper holds open until this process has to end.
#[must_use]
pub fn keeper_is_gone() -> bool {
    let stdin = io::stdin();
    let mut ends = [PollFd::new(&stdin, PollFlags::IN)];
    // The keeper writes nothing, so readable means end of file.
    poll(&mut ends, Some(&LOOK)).is_ok_and(|ready| ready > 0)
}
