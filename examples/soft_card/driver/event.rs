//! Events: points in a stream that others wait for.

use super::device::Device;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub struct Event {
    pub device: &'static Device,
    state: Mutex<State>,
    reached: Condvar,
}

#[derive(Default)]
struct State {
    recorded: u64,
    reached: u64,
    at: Option<Instant>,
}

impl Event {
    pub fn new(device: &'static Device) -> Self {
        Self { device, state: Mutex::default(), reached: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a recording and returns its number, for the stream to reach.
    pub fn record(&self) -> u64 {
        let mut state = self.state();
        state.recorded += 1;
        state.recorded
    }

    pub fn last_recording(&self) -> u64 {
        self.state().recorded
    }

    pub fn reach(&self, recording: u64) {
        let mut state = self.state();
        state.reached = state.reached.max(recording);
        state.at = Some(Instant::now());
        self.reached.notify_all();
    }

    pub fn wait_for(&self, recording: u64) {
        let state = self.state();
        let waited = self.reached.wait_while(state, |state| state.reached < recording);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    pub fn is_reached(&self) -> bool {
        let state = self.state();
        state.reached >= state.recorded
    }

    pub fn reached_at(&self) -> Option<Instant> {
        self.state().at
    }
}
