//! Measures a command: starts it by its harness, samples the memory of its processes, and ends everything.

use super::attempt::{Attempt, Heard, Start};
use super::card::Card;
use super::folder::{TemporaryFolder, end_of_log};
use super::host_memory::was_killed_for_memory;
use super::interruption::Interruption;
use super::observed::Observed;
use super::{Measurement, Protocol, Unmeasured};
use crate::cli::Failure;
use crate::config::run::Run;
use crate::keeper::witness::{Ending, Witness};
use crate::probe::host::resident_bytes;
use crate::protocol::claim::Devices;
use crate::protocol::exit::Exit;
use crate::protocol::worker::FailureClass;
use crate::store::run_dir::RunDir;
use rustix::process::Signal;
use std::io;
use std::time::{Duration, Instant};

/// Interval between two looks at the memory of the processes.
const LOOK: Duration = Duration::from_millis(200);
/// A look takes at most this share of the time: the kernel walks all pages of a process to count them.
const LOOKING: u32 = 20;

/// Why an attempt is over.
enum Over {
    /// It was measured for long enough.
    Measured,
    /// It takes more than its budget.
    TooLarge {
        /// The bytes seen.
        needed: u64,
        /// The budget.
        budget: u64,
    },
    /// A signal told this program to end.
    Interrupted,
    /// It has ended on its own.
    Ended,
}

/// Measures commands, one after the other on the same devices.
pub struct CommandMeter<'a> {
    device: &'a str,
    protocol: Protocol,
    is_on_card: bool,
    cards: Vec<Card>,
    interruption: Interruption,
}

impl<'a> CommandMeter<'a> {
    /// Creates the meter of a command that may use these devices. A card without an NVML index cannot be watched.
    pub fn new(device: &'a str, devices: &Devices, protocol: Protocol) -> io::Result<Self> {
        let interruption = Interruption::listen()?;
        let cards = match devices {
            Devices::Cpu => None,
            Devices::Cards(cards) => Some(cards.iter().filter_map(|card| card.index).map(Card::watch).collect()),
        };
        Ok(Self { device, protocol, is_on_card: cards.is_some(), cards: cards.unwrap_or_default(), interruption })
    }

    /// Runs the command of a rung and returns the measurements.
    pub fn measure(&mut self, run: &Run, rung: usize) -> Result<Measurement, Unmeasured> {
        for card in &mut self.cards {
            card.clear(&run.watch.ending, || self.interruption.is_asked());
        }
        self.interruption.check()?;
        let place = TemporaryFolder::new()?;
        let dir = RunDir::create(&place.path, run)?;
        let mut witness = Witness::new(dir.file("worker.log"));
        witness.begin_attempt();
        let mut seen = Observed::default();
        let mut attempt = Attempt::start(&dir, &Start { rung, number: 1, device: self.device, is_trial: false })?;
        let over = self.observe(&attempt, &mut seen);
        attempt.end();
        let name = &run.rungs[rung].name;
        match over {
            Over::Measured => Ok(seen.measurement(self.is_on_card)),
            Over::Interrupted => {
                self.interruption.check()?;
                Err(Failure::new(1, "interrupted").into())
            }
            Over::TooLarge { needed, budget } => Err(Unmeasured::over_budget(name, needed, budget)),
            Over::Ended => self.judge(name, &seen, &mut witness, &end_of_log(&dir.file("worker.log"))),
        }
    }

    /// Watches the command until it is over.
    fn observe(&mut self, attempt: &Attempt, seen: &mut Observed) -> Over {
        let began = Instant::now();
        let mut next_look = began;
        loop {
            match attempt.hear(next_look.saturating_duration_since(Instant::now())) {
                Heard::Event(event) => seen.take(event, began.elapsed()),
                Heard::Silence => {}
                Heard::End => return Over::Ended,
            }
            if self.interruption.is_asked() {
                return Over::Interrupted;
            }
            let now = Instant::now();
            if now >= next_look {
                self.look(attempt, seen);
                next_look = now + LOOK.max(now.elapsed() * LOOKING);
            }
            if seen.exit.is_none() && (seen.has_taken(self.protocol.steps) || began.elapsed() >= self.protocol.limit) {
                // A step may end before anyone has sampled it, but its memory is still held.
                self.look(attempt, seen);
                for card in &mut self.cards {
                    card.update_peak();
                }
                seen.vram = self.peak();
                return self.excess(seen).unwrap_or(Over::Measured);
            }
            if let Some(excess) = self.excess(seen) {
                return excess;
            }
        }
    }

    /// Samples the memory of the command's processes.
    fn look(&mut self, attempt: &Attempt, seen: &mut Observed) {
        let processes = attempt.processes();
        seen.take_ram(resident_bytes(&processes));
        for card in &mut self.cards {
            card.follow(processes.iter().copied());
        }
        seen.vram = self.peak();
    }

    /// Returns the peak on the card that the command uses most.
    fn peak(&self) -> Option<super::card::Peak> {
        self.cards.iter().filter_map(Card::peak).max_by_key(|peak| (!peak.of_card, peak.bytes))
    }

    fn excess(&self, seen: &Observed) -> Option<Over> {
        let (needed, budget) = seen.needed(self.is_on_card).zip(self.protocol.budget)?;
        (needed > budget).then_some(Over::TooLarge { needed, budget })
    }

    /// Reports whether the command probably ended because host memory, which is its budget without a card, ran out.
    fn is_killed_for_memory(&self, exit: Exit, seen: &Observed) -> bool {
        !self.is_on_card && was_killed_for_memory(exit, seen.ram.unwrap_or(0), self.protocol.budget)
    }

    /// Judges a command that has ended on its own: after its last step that is a measurement too.
    fn judge(&self, rung: &str, seen: &Observed, witness: &mut Witness, log: &str) -> Result<Measurement, Unmeasured> {
        let Some((pid, exit)) = seen.exit else {
            // The kernel may end the harness together with its command.
            if self.is_killed_for_memory(Exit::by_signal(Signal::KILL.as_raw()), seen) {
                return Err(Unmeasured::killed_for_memory(rung, seen.ram.unwrap_or(0), log));
            }
            return Err(Failure::new(
                1,
                format!("rung {rung}: the command was not started, or the process around it was killed{log}"),
            )
            .into());
        };
        if exit.code == Some(0) && seen.failed.is_none() {
            if seen.has_begun() {
                return Ok(seen.measurement(self.is_on_card));
            }
            let message = format!("rung {rung}: the command ended with exit code 0 before it reported a step{log}");
            return Err(Failure::new(1, message).into());
        }
        if seen.failed.is_none() && self.is_killed_for_memory(exit, seen) {
            return Err(Unmeasured::killed_for_memory(rung, seen.ram.unwrap_or(0), log));
        }
        let cause = witness.judge(&Ending {
            exit,
            pid: Some(pid),
            failed: seen.failed.as_ref(),
            ended_for: None,
            log_end: None,
        });
        let failure = Failure::new(cause.class.exit_code(), failure_message(rung, cause.class, exit, log));
        Err(match cause.class {
            FailureClass::DeviceOutOfMemory | FailureClass::HostOutOfMemory => Unmeasured::OutOfMemory(failure),
            _ => Unmeasured::Failed(failure),
        })
    }
}

fn failure_message(rung: &str, class: FailureClass, exit: Exit, log: &str) -> String {
    let class = if class == FailureClass::Unknown { String::new() } else { format!(" ({class})") };
    format!("rung {rung}: the command failed: {exit}{class}{log}")
}
