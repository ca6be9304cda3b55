//! The terminal UI: attaches to a run, shows it, passes on what a person asks for. It owns nothing
//! of the run and can be closed, killed and opened again at any moment.
//!
//! ```text
//! keys, mouse ─┐                          ┌─▶ draw        view(state): layout, panels, overlays
//! keeper ──────┼─▶ Msg ─▶ update(state) ──┼─▶ Request ──▶ keeper
//! store, log ──┤             pure         ├─▶ read the store, the log
//! time ────────┘                          └─▶ quit, bell
//! ```
//! `update` and the view hold no clock, no connection and no lock; `run` is the loop around them,
//! `terminal` the guard that gives the terminal back, `connect` the client of the keeper.

pub mod action;
pub mod connect;
#[cfg(test)]
mod fixture;
pub mod format;
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
