//! The terminal UI: attaches to a run, displays it and forwards your requests. It owns no part of the
//! run, so you can close it, kill it and reopen it at any time.
//!
//! ```text
//! keys, mouse ─┐                          ┌─▶ draw        view(state): layout, panels, overlays
//! keeper ──────┼─▶ Msg ─▶ update(state) ──┼─▶ Request ──▶ keeper
//! store, log ──┤             pure         ├─▶ read the store, the log
//! time ────────┘                          └─▶ quit, bell
//! ```
//! `update` and the view hold no clock, connection or lock. `run` is the loop around them, `terminal`
//! the guard that restores the terminal, `connect` the keeper's client.

pub mod action;
pub mod connect;
#[cfg(test)]
pub(crate) mod fixture;
pub mod glyphs;
pub mod keymap;
pub mod layout;
pub mod log_tail;
pub mod overlays;
pub mod panels;
pub mod plot;
pub mod quantity;
pub mod quiet;
pub mod ratio;
pub mod run;
pub mod series;
pub mod state;
pub mod stored;
pub mod taste;
pub mod terminal;
pub mod ui;
pub mod update;
pub mod verdict;
pub mod view;
