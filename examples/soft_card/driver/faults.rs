//! Faults on order. `SOFT_CARD_FAULTS` names a JSON file, which is read again whenever it changes:
//! ```json
//! [
//!   {"launch": 30, "code": 719},
//!   {"launch": 12, "code": 701, "sticky": false},
//!   {"launch": 5, "hang": true, "once": true},
//!   {"hang_copy": true},
//!   {"slow_ms": 20, "slow_copy_ms": 5},
//!   {"launch": 40, "lost": true, "device": 1},
//!   {"capacity_mib": 512},
//!   {"pinned_mib": 0}
//! ]
//! ```
//! A fault applies from the launch with this number on, counted from 1 in each process; without one, from now on.
//!
//! - `code`: the launch fails. A sticky error arrives at the next call that waits for it, and from then on at all
//!   calls; one that is not sticky is returned by the launch itself, which then does nothing. Played once a process.
//! - `hang`: the launch never ends.
//! - `hang_copy`: the next copy to the host never ends.
//! - `slow_ms`: this launch and all later ones take that much longer.
//! - `slow_copy_ms`: copies to the host take that much longer.
//! - `lost`: every call fails with 999, or with the `code` if there is one.
//! - `capacity_mib`: the device has this memory. With `swallowed`, allocations beyond it succeed all the same.
//! - `pinned_mib`: the host has this memory for the calls that pin it.
//! - `device`: applies to this device alone.
//! - `once`: only the first process that plays it does; it leaves a file `FILE.played-INDEX`.

use super::abi::{Code, UNKNOWN};
use super::device::Device;
use super::memory::cut_pinned;
use crate::settings;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

static SCRIPT: LazyLock<Option<String>> = LazyLock::new(|| settings::setting("FAULTS"));
static STATE: Mutex<State> = Mutex::new(State { read: None, faults: Vec::new(), launches: 0, played: BTreeSet::new() });

struct State {
    /// Time and size of the file that the faults are from.
    read: Option<(SystemTime, u64)>,
    faults: Vec<Fault>,
    launches: u64,
    /// Indices of the faults that are over for this process.
    played: BTreeSet<usize>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each one is a key of the file")]
struct Fault {
    launch: Option<u64>,
    device: Option<usize>,
    code: Option<Code>,
    #[serde(default = "yes")]
    sticky: bool,
    #[serde(default)]
    hang: bool,
    #[serde(default)]
    hang_copy: bool,
    #[serde(default)]
    slow_ms: u64,
    #[serde(default)]
    slow_copy_ms: u64,
    #[serde(default)]
    lost: bool,
    capacity_mib: Option<u64>,
    #[serde(default)]
    swallowed: bool,
    pinned_mib: Option<u64>,
    #[serde(default)]
    once: bool,
}

fn yes() -> bool {
    true
}

/// The effect of the faults on a launch.
#[derive(Debug, Default)]
pub struct LaunchFaults {
    /// Returned by the launch itself.
    pub refused: Option<Code>,
    /// Breaks the device once the launch runs.
    pub breaks: Option<Code>,
    pub hangs: bool,
    pub delay: Duration,
}

/// The effect of the faults on a copy to the host.
#[derive(Debug, Default)]
pub struct CopyFaults {
    pub delay: Duration,
    pub hangs: bool,
}

/// Applies faults that do not need a launch.
pub fn play_standing(device: &Device) {
    if let Some(script) = SCRIPT.as_deref() {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        state.refresh(script);
        state.play_standing(script, device);
    }
}

/// Returns what happens to a copy to the host.
pub fn play_copy(device: &Device) -> CopyFaults {
    let mut faults = CopyFaults::default();
    let Some(script) = SCRIPT.as_deref() else { return faults };
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    for index in 0..state.faults.len() {
        if !state.is_due(index, device) {
            continue;
        }
        faults.delay += Duration::from_millis(state.faults[index].slow_copy_ms);
        faults.hangs |= state.faults[index].hang_copy && state.start_playing(script, index);
    }
    faults
}

/// Counts a launch and returns what happens to it.
pub fn play_launch(device: &Device) -> LaunchFaults {
    let mut faults = LaunchFaults::default();
    let Some(script) = SCRIPT.as_deref() else { return faults };
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.launches += 1;
    state.play_standing(script, device);
    for index in 0..state.faults.len() {
        let fault = state.faults[index].clone();
        if !state.is_due(index, device) {
            continue;
        }
        faults.delay += Duration::from_millis(fault.slow_ms);
        if (fault.code.is_some() || fault.hang) && state.start_playing(script, index) {
            faults.hangs |= fault.hang;
            let outcome = if fault.sticky { &mut faults.breaks } else { &mut faults.refused };
            *outcome = fault.code.or(*outcome);
        }
    }
    faults
}

impl State {
    fn refresh(&mut self, script: &str) {
        let stamp = fs::metadata(script).ok().and_then(|file| Some((file.modified().ok()?, file.len())));
        if stamp == self.read {
            return;
        }
        self.read = stamp;
        self.played.clear();
        let text = fs::read_to_string(script).unwrap_or_default();
        self.faults =
            if text.is_empty() { Ok(Vec::new()) } else { serde_json::from_str(&text) }.unwrap_or_else(|error| {
                settings::log(&format!("cannot read the faults in {script}: {error}"));
                Vec::new()
            });
    }

    fn is_due(&self, index: usize, device: &Device) -> bool {
        let fault = &self.faults[index];
        let has_begun = fault.launch.is_none_or(|launch| self.launches >= launch);
        has_begun && fault.device.is_none_or(|at| at == device.index) && !self.played.contains(&index)
    }

    /// Returns false if another process has played it.
    fn start_playing(&mut self, script: &str, index: usize) -> bool {
        self.played.insert(index);
        let is_first = !self.faults[index].once || File::create_new(format!("{script}.played-{index}")).is_ok();
        if is_first {
            settings::log(&format!("plays fault {index} at launch {}", self.launches));
        }
        is_first
    }

    fn play_standing(&mut self, script: &str, device: &Device) {
        for index in 0..self.faults.len() {
            let fault = self.faults[index].clone();
            let stands = fault.lost || fault.capacity_mib.is_some() || fault.pinned_mib.is_some();
            if !stands || !self.is_due(index, device) || !self.start_playing(script, index) {
                continue;
            }
            if fault.lost {
                device.break_now(fault.code.unwrap_or(UNKNOWN));
            }
            if let Some(mib) = fault.capacity_mib {
                device.memory.cut_capacity(mib << 20, fault.swallowed);
            }
            if let Some(mib) = fault.pinned_mib {
                cut_pinned(mib << 20);
            }
        }
    }
}
