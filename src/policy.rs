//! The keeper's decisions as a pure state machine: it takes an event and the time, and returns effects.
//!
//! ```text
//!            ┌──────────── fault, budget left ─────────────┐
//!            ▼                                             │
//!  ── start ──▶ Running ── shift, restart, pause, stop ──▶ Stopping ── gone ──▶ AwaitingVram ──▶ start
//!                  │                                            └──▶ Paused, Over
//!                  ├── fault ──▶ AwaitingVram, BackingOff ──▶ start
//!                  ├── hot ──▶ Stopping ──▶ Cooling ──▶ start
//!                  └── finished, needs attention ──▶ Over
//! ```
//! A start waits in `AwaitingTurn` first while another run holds the device.
//! The machine never touches a clock, a file or a process. Time is a number that the caller passes in,
//! so tests run through years in a second. Every wait has a deadline, and no worker starts while
//! another may still be alive.

mod age;
pub mod budget;
pub mod climb;
pub mod command;
mod drift;
mod ending;
pub mod event;
mod facts;
pub mod failures;
pub mod fault;
mod faults;
pub mod hang;
pub mod heat;
mod homeless;
mod idle;
mod ignored;
pub mod ledger;
pub mod lifecycle;
mod machine;
pub mod moves;
mod pace;
pub mod plan;
pub mod reason;
mod refused;
mod requests;
pub mod room;
pub mod shift;
mod skips;
pub mod spike;
pub mod spill;
mod turn;
mod updates;
mod watching;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod soak;
#[cfg(test)]
mod tests;

pub use machine::Policy;
