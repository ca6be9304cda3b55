//! What the keeper decides, as a pure state machine: an event and the time in, effects out.
//!
//! ```text
//!            ┌──────────── fault, budget left ─────────────┐
//!            ▼                                             │
//!  ── start ──▶ Running ── shift, restart, pause, stop ──▶ Stopping ── gone ──▶ AwaitingVram ──▶ start
//!                  │                                            └──▶ Paused, Over
//!                  ├── fault ──▶ AwaitingVram, BackingOff ──▶ start
//!                  ├── hot ──▶ Stopping ──▶ Cooling ──▶ start
//!                  └── finished, needs a person ──▶ Over
//! ```
//! It never touches a clock, a file or a process: time is a number that the caller counts up, so
//! that tests drive it through years in a second. Every wait has an end, and no worker is started
//! while another may still live.

mod age;
pub mod budget;
pub mod cause;
pub mod climb;
mod drift;
mod ending;
pub mod event;
mod faults;
pub mod hang;
pub mod heat;
mod idle;
pub mod ledger;
pub mod life;
mod machine;
pub mod moves;
mod pace;
pub mod plan;
mod refused;
pub mod relapse;
mod requests;
pub mod response;
pub mod room;
mod skips;
pub mod spike;
mod watching;
pub mod xid;

#[cfg(test)]
mod calm;
#[cfg(test)]
mod stories;
#[cfg(test)]
mod storm;
#[cfg(test)]
mod tests;

pub use machine::Policy;
