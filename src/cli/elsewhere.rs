//! Takes over runs whose keeper was on another host.

use super::{Failure, say};
use crate::store::run_dir::RunDir;
use crate::store::shared_folder::lease::{Host, Lease};
use crate::store::shared_folder::takeover::{LeaseState, Takeover};
use crate::untrusted::poll::poll;
use clap::Args;
use std::time::Duration;

/// Whether a run is taken from another host.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct TakeOver {
    /// Take the run over from another host, where you know that no process of it is left
    #[arg(long, conflicts_with_all = ["interrupted", "branch", "as_base"])]
    pub take_over: bool,
}

/// Interval between two looks at the lease of a run that is being taken over.
const WATCH: Duration = Duration::from_secs(1);

/// Takes over a run whose keeper on another host is known to have ended. Without proof the run is left as it is, unless you
/// vouch for it.
///
/// # Errors
/// Returns an error when the lease cannot be read or ended, or you vouch for a keeper that is alive.
pub fn take_over_ended(run: &RunDir, by_hand: bool) -> Result<(), Failure> {
    let (mut takeover, mut told) = (Takeover::new(by_hand), false);
    poll(WATCH, || match takeover.look(run) {
        Ok(LeaseState::Refused(refusal)) if by_hand => Some(Err(Failure::new(1, refusal.to_string()))),
        Ok(LeaseState::Free | LeaseState::Refused(_)) => Some(Ok(())),
        Ok(LeaseState::Ready(_)) => None,
        Ok(LeaseState::Watching(why, left)) => {
            if !std::mem::replace(&mut told, true) {
                say(&describe_watch(&why, left));
            }
            None
        }
        Err(error) => Some(Err(Failure::new(1, format!("{}: {error}", run.name())))),
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
