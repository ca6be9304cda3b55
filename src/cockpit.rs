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
pub mod chart_data;
pub mod chart_picture;
pub mod clipboard;
pub mod connect;
pub mod errand;
#[cfg(test)]
pub(crate) mod fixture;
pub mod glyphs;
pub mod keymap;
pub mod layout;
pub mod log_tail;
pub mod overlays;
pub mod panels;
pub mod pictures;
pub mod plot;
pub mod preferences;
pub mod quantity;
pub mod quiet_backend;
pub mod ratio;
pub mod read_error;
pub mod readers;
pub mod run;
pub mod run_cells;
pub mod search;
pub mod start;
pub mod state;
pub mod surface;
pub mod terminal;
pub mod ui;
pub mod update;
pub mod verdict;
pub mod view;
