//! Carries out injected faults. Each is announced, and the announcement is written, before it strikes, so
//! that the keeper does not request it again.

use super::exit;
use super::worker::{Pulse, Sink};
use crate::protocol::inject::{Fault, Inject};
use crate::protocol::worker::Event;
use rustix::process::{Signal, getpid, kill_process};
use std::{
    panic::{catch_unwind, panic_any},
    sync::Arc,
    thread,
    time::Duration,
};

/// The faults injected into a step, other than those that end the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Suffering {
    /// Whether the loss becomes NaN.
    pub poisoned: bool,
    /// Whether the step takes ten times as long.
    pub slowed: bool,
}

/// The faults remaining in this life.
pub struct Strikes {
    faults: Vec<(Inject, bool)>,
    sink: Arc<dyn Sink>,
    pulse: Arc<Pulse>,
}

impl Strikes {
    /// Returns the faults to carry out; those already past never strike.
    pub fn new(faults: &[Inject], sink: Arc<dyn Sink>, pulse: Arc<Pulse>) -> Self {
        Self { faults: faults.iter().map(|fault| (*fault, false)).collect(), sink, pulse }
    }

    /// Applies the faults due at the step about to be taken.
    pub fn at(&mut self, step: u64) -> Suffering {
        let mut suffering = Suffering::default();
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
                Fault::Nan => suffering.poisoned = true,
                Fault::Slow => suffering.slowed = true,
                deadly => self.carry_out(deadly),
            }
        }
        suffering
    }

    #[expect(clippy::panic, reason = "panicking is the fault that was asked for")]
    fn carry_out(&self, fault: Fault) {
        self.sink.flush(Duration::from_secs(5));
        self.pulse.expect_injected();
        match fault {
            Fault::Oom => lose_device_memory(),
            Fault::Panic => panic_any("a panic asked for with --inject"),
            Fault::Exit0 => exit::now(0),
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
fn lose_device_memory() {
    let device_thread = || {
        catch_unwind(|| panic_any("can't allocate buffer of size: 68719476736")).ok();
        catch_unwind(|| panic_any("couldn't find resource for that handle: Memory page 0 doesn't exist")).ok();
    };
    if let Ok(thread) = thread::Builder::new().name("DSD-0-0".to_owned()).spawn(device_thread) {
        thread.join().ok();
    }
}
