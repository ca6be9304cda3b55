//! Injected faults. Each is announced, and the announcement is written, before it takes effect, so
//! that the keeper does not request it again.

use super::exit::exit_now;
use super::job::{EventSink, StepPulse};
use downshift_core::protocol::inject::{Fault, Inject};
use downshift_core::protocol::worker::Event;
use rustix::process::{Signal, getpid, kill_process};
use std::{
    panic::{catch_unwind, panic_any},
    sync::Arc,
    thread,
    time::Duration,
};

/// The faults injected into a step, other than those that end the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepFaults {
    /// Whether the loss becomes NaN.
    pub nan_loss: bool,
    /// Whether the step takes ten times as long.
    pub slow: bool,
}

/// The faults to inject in this attempt.
pub struct FaultInjector {
    faults: Vec<(Inject, bool)>,
    sink: Arc<dyn EventSink>,
    pulse: Arc<StepPulse>,
}

impl FaultInjector {
    /// Returns the faults to carry out; those already past are ignored.
    pub fn new(faults: &[Inject], sink: Arc<dyn EventSink>, pulse: Arc<StepPulse>) -> Self {
        Self { faults: faults.iter().map(|fault| (*fault, false)).collect(), sink, pulse }
    }

    /// Applies the faults due at the step about to be taken.
    pub fn inject_due(&mut self, step: u64) -> StepFaults {
        let mut faults = StepFaults::default();
        for index in 0..self.faults.len() {
            let (inject, announced) = self.faults[index];
            if !inject.strikes(step) {
                continue;
            }
            if !announced {
                self.faults[index].1 = true;
                self.sink.send(Event::Injected { fault: inject.to_string(), step });
            }
            match inject.fault {
                Fault::Nan => faults.nan_loss = true,
                Fault::Slow => faults.slow = true,
                fatal => self.carry_out(fatal),
            }
        }
        faults
    }

    #[expect(clippy::panic, reason = "panicking is the injected fault")]
    fn carry_out(&self, fault: Fault) {
        self.sink.flush(Duration::from_secs(5));
        self.pulse.expect_injected();
        match fault {
            Fault::Oom => fail_device_allocation(),
            Fault::Panic => panic_any("panic requested with --inject"),
            Fault::Exit0 => exit_now(0),
            Fault::Kill => drop(kill_process(getpid(), Signal::KILL)),
            Fault::Hang => loop {
                thread::park();
            },
            Fault::Nan | Fault::Slow => {}
        }
    }
}

/// Imitates a failed allocation on a CUDA device: the device's own thread panics twice, each time inside
/// `catch_unwind`, and the caller is not notified.
#[expect(clippy::panic, reason = "panicking is what the device does")]
fn fail_device_allocation() {
    let device_thread = || {
        catch_unwind(|| panic_any("can't allocate buffer of size: 68719476736")).ok();
        catch_unwind(|| panic_any("couldn't find resource for that handle: Memory page 0 doesn't exist")).ok();
    };
    if let Ok(thread) = thread::Builder::new().name("DSD-0-0".to_owned()).spawn(device_thread) {
        thread.join().ok();
    }
}
