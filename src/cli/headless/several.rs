//! Follows the runs of a queue, one after the other.

use super::signals::Signals;
use super::{Follower, print_now};
use crate::cli::{Failure, Outcome, client, say};
use crate::protocol::control::{Request, RunState};
use crate::protocol::exit_code::FINISHED;
use crate::store::reader::live_status;
use crate::store::run_dir::RunDir;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::sleep;

/// Interval between two looks for a run that has begun.
const INTERVAL: Duration = Duration::from_millis(500);

/// Follows each run once it has begun: the order may change while they wait.
pub(super) async fn follow_all(dirs: &[RunDir]) -> Outcome {
    let mut signals = Signals::listen(false)?;
    let mut left: VecDeque<(usize, &RunDir)> = dirs.iter().enumerate().collect();
    let mut codes = vec![FINISHED; dirs.len()];
    while !left.is_empty() {
        let Some((number, dir)) = left.iter().position(|(_, dir)| !waits(dir)).and_then(|place| left.remove(place))
        else {
            tokio::select! {
                () = sleep(INTERVAL) => {}
                _ = signals.next() => remove(&left.iter().map(|(_, dir)| *dir).collect::<Vec<_>>()),
            }
            continue;
        };
        let mut follower = Follower::of(dir, 0, None);
        follower.behind = left.iter().map(|(_, dir)| *dir).collect();
        codes[number] = follower.follow(&mut signals).await.unwrap_or_else(|Failure { message, code }| {
            say(&message);
            code
        });
    }
    Ok(codes.into_iter().find(|code| *code != FINISHED).unwrap_or(FINISHED))
}

/// Reports whether a run waits for its turn, or is held. A run without a readable status is looked at.
fn waits(dir: &RunDir) -> bool {
    live_status(dir).is_some_and(|status| matches!(status.state, RunState::AwaitingCard | RunState::Paused))
}

/// Takes waiting runs out of the queue. The last one goes first, so that none gets its turn meanwhile.
pub(super) fn remove(waiting: &[&RunDir]) {
    for dir in waiting.iter().rev() {
        match client::send_request(dir, &Request::Stop) {
            Ok(_) => {
                print_now(&format!("{} is out of the queue; `{}` puts it back", dir.name(), dir.command("resume")));
            }
            Err(failure) => say(&failure.message),
        }
    }
}
