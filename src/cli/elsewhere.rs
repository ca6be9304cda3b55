//! Takes over runs whose keeper was on another host.

use super::poll::poll;
use super::{Failure, say};
use crate::store::run_dir::RunDir;
use crate::store::shared_folder::lease::{Host, Lease};
use crate::store::shared_folder::takeover::{Progress, Takeover};
use std::time::Duration;

/// Interval between two looks at the lease of a run that is being taken over.
const WATCH: Duration = Duration::from_secs(1);

/// Takes over a run whose keeper on another host is known to have ended. Without proof the run is left as it is, unless you
/// vouch for it.
///
/// # Errors
/// Returns an error when the lease cannot be read or ended, or you vouch for a keeper that is alive.
pub fn take_over_ended(run: &RunDir, by_hand: bool) -> Result<(), Failure> {
    let (mut takeover, mut told) = (Takeover::new(by_hand), false);
    poll(WATCH, || {
        let step = match takeover.look(run) {
            Ok(Progress::Free) => Ok(true),
            Ok(Progress::Refused(refusal)) if by_hand => Err(Failure::new(1, refusal.to_string())),
            Ok(Progress::Refused(_)) => Ok(true),
            Ok(Progress::Ready(_)) => Ok(false),
            Ok(Progress::Watching(why, left)) => {
                if !std::mem::replace(&mut told, true) {
                    say(&describe_watch(&why, left));
                }
                Ok(false)
            }
            Err(error) => Err(Failure::new(1, format!("{}: {error}", run.name()))),
        };
        match step {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(failure) => Some(Err(failure)),
        }
    })
}

/// Says that a lease is watched.
pub fn describe_watch(why: &str, left: Duration) -> String {
    format!("taking over from {why}; its lease must not move for {} s", left.as_secs())
}

/// Reports whether a lease is one of this machine, from before its last boot.
pub fn is_of_this_machine(lease: &Lease) -> bool {
    lease.host.is_machine_of(&Host::own())
}
