//! The run's claim on its devices: made before the first worker, given up during a pause and at the end.

use super::keeper_state::Keeper;
use crate::policy::event::Event;
use crate::policy::lifecycle::Lifecycle;
use crate::policy::reason::Reason;
use crate::protocol::claim::{Card, ClaimRequest, Devices};
use crate::protocol::control::JournalKind;
use crate::protocol::device::DeviceChoice;
use crate::protocol::worker::Level;
use crate::store::claims::{Membership, Registry};
use crate::store::lock::LockError;
use crate::store::owners;
use crate::store::reader::live_status;
use crate::store::run_dir::RunDir;
use std::time::Duration;
use tokio::time::Instant;

/// Interval between two attempts of a waiting run.
const RHYTHM: Duration = Duration::from_millis(500);

/// The keeper's part in the registry of claims.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// None if the registry is unusable; then nothing protects the run's devices.
    member: Option<Membership>,
    asked: Option<Instant>,
}

impl Keeper {
    /// Makes the run visible to all other runs of the user.
    pub(super) fn join_registry(&mut self) {
        let Some(registry) = Registry::of_user() else { return };
        match registry.join(&self.run_dir) {
            Ok(member) => self.turn.member = Some(member),
            Err(error) => self.give_up_registry(&error),
        }
    }

    /// Claims the devices of the run, and reports to the policy what is in the way.
    pub(super) fn claim_devices(&mut self) {
        let request = self.claim_request();
        let first = self.predecessor(&request);
        let Some(member) = &mut self.turn.member else { return };
        self.turn.asked = Some(Instant::now());
        let waiting = match member.claim(&request, first) {
            Ok(waiting) => waiting,
            // A waiting run has a place in the queue already; it asks again.
            Err(_) if matches!(self.policy.life(), Lifecycle::AwaitingTurn { .. }) => return,
            Err(error) => {
                self.give_up_registry(&error);
                None
            }
        };
        self.decide(Event::Turn(waiting), None);
    }

    /// Returns why a run that the user just started does not start: its devices are in use, and it was not started to
    /// wait for them.
    pub(super) fn refusal_to_wait(&self) -> Option<Reason> {
        let occupied = self.policy.waiting()?.occupation().filter(|_| self.claim_request().at_once)?;
        Some(Reason::Occupied { occupied, resume: self.run_dir.command("resume") })
    }

    /// Claims the devices of a paused run again.
    pub(super) fn claim_for_resume(&mut self) {
        if matches!(self.policy.life(), Lifecycle::Paused) {
            self.claim_devices();
        }
    }

    /// Gives the devices up while the run is paused, and asks for them again while it waits.
    pub(super) fn check_turn(&mut self) {
        match self.policy.life() {
            Lifecycle::Paused => {
                let resting = self.turn.member.as_mut().filter(|member| !member.rests()).map(Membership::rest);
                if let Some(Err(error)) = resting {
                    self.give_up_registry(&error);
                }
            }
            Lifecycle::AwaitingTurn { .. } if self.turn.asked.is_none_or(|asked| asked.elapsed() >= RHYTHM) => {
                self.claim_devices();
            }
            _ => {}
        }
    }

    /// Leaves the registry at the end of the run. A worker that cannot be killed still uses its devices. A run that ends with
    /// the machine comes back to its place in the queue.
    pub(super) fn leave_registry(&mut self) {
        if owners::worker(&self.run_dir).is_none() {
            let returns = self.requester.signalled_in.is_some();
            self.turn.member.take().into_iter().for_each(|member| member.leave(returns));
        }
    }

    fn give_up_registry(&mut self, error: &LockError) {
        self.turn.member = None;
        let text = format!(
            "the claim on {} cannot be stored, so another run may start there: {error}",
            self.claim_request().devices
        );
        self.recorder.note(Level::Warn, JournalKind::Health, text);
    }

    /// Returns the claim that the run was started with. A run of an earlier version has none; its last worker named
    /// the device.
    fn claim_request(&self) -> ClaimRequest {
        let launch = &self.stored.launch;
        launch.claim.clone().unwrap_or_else(|| {
            let device = self.recorder.status.device.as_deref().unwrap_or(&launch.device);
            let card = DeviceChoice::from_display_name(device).and_then(|choice| choice.gpu_index());
            let devices =
                card.map_or(Devices::Cpu, |index| Devices::Cards(vec![Card { index: Some(index), uuid: None }]));
            ClaimRequest { devices, ..ClaimRequest::default() }
        })
    }

    /// Returns the name of the run that must end before this one starts for the first time.
    fn predecessor(&self, request: &ClaimRequest) -> Option<String> {
        let path = request.after.as_ref().filter(|_| self.recorder.status.attempts == 0)?;
        let run = RunDir::open(path).ok()?;
        let has_keeper = owners::is_kept(&run);
        // A store that cannot be read for a moment does not end a living run.
        let is_over = live_status(&run).map_or(!has_keeper, |status| status.state.is_over());
        (!is_over).then(|| run.name())
    }
}
