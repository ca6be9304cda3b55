//! The messages between processes: JSON, one object per line, one enum per direction.
//!
//! ```text
//! cockpit ── control::Request ──▶ keeper ── worker::Order ──▶ worker
//!         ◀── control::Update ──         ◀── worker::Event ──
//!                                        ◀── probe::Reading ── probe
//! harness ── companion::CompanionOrder ──▶ companion
//!         ◀── companion::CompanionLine ──
//! harness ── node::NodeOrder ──▶ node-command on another node
//!         ◀── node::NodeEvent ──
//! ```
//! Numbers on the wire are finite. A line that does not parse as a message is a log line, never an error.

pub mod blank;
pub mod capability;
pub mod cause;
pub mod claim;
pub mod class;
pub mod companion;
pub mod control;
pub mod device;
pub mod environment;
mod evaluation;
pub mod exit;
pub mod exit_code;
pub mod failed_saves;
pub mod gpu_error;
pub mod inject;
pub mod line;
pub mod node;
pub use crate::recipe::metrics;
pub mod pace;
pub mod passage;
pub mod plan;
pub mod probe;
pub mod progress;
mod proven;
pub mod quality;
pub mod ranks;
pub mod resume;
pub mod resumed;
pub mod rows;
pub mod run_state;
pub mod samples;
pub mod skips;
mod target;
pub mod time_spent;
pub mod unread;
pub mod worker;
