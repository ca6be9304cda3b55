//! The command line of an attempt's worker or harness.

use super::keeper_state::Keeper;
use super::lifeline::Lifetime;
use super::worker_process::Program;
use crate::process_tree::new_token;
use crate::recipe::leave_out::LeaveOut;

impl Keeper {
    /// Returns the program of an attempt: a worker, or a harness for a command.
    pub(super) fn worker_program(&mut self, attempt: u64, rung: usize) -> Program {
        if self.run.command.is_some() {
            let mut arguments = self.common_arguments("harness", attempt, rung);
            if self.requester.lifetime == Lifetime::Bound {
                arguments.extend(["--nodes", "job"].map(str::to_owned));
            }
            return Program::harness(arguments, new_token());
        }
        let mut arguments = self.common_arguments("worker", attempt, rung);
        if self.recorder.had_checkpoints() {
            arguments.push("--require-checkpoint".to_owned());
        }
        if self.policy.ledger().is_lean() {
            arguments.push("--lean".to_owned());
        }
        if !self.stored.left_out.is_empty() {
            let parts = LeaveOut::new(self.stored.left_out.clone());
            arguments.extend(["--leave-out".to_owned(), parts.to_string()]);
        }
        Program::worker(arguments)
    }

    /// Returns the arguments that a worker and a harness share: the attempt, the failures before it, and the faults to
    /// inject that have not fired yet.
    fn common_arguments(&mut self, role: &str, attempt: u64, rung: usize) -> Vec<String> {
        let mut arguments = vec![role.to_owned(), "--run-dir".to_owned(), self.run_dir.path().display().to_string()];
        for (flag, value) in [
            ("--rung", rung.to_string()),
            ("--attempt", attempt.to_string()),
            ("--device", self.stored.launch.device.clone()),
            ("--faults", self.recorder.status.restarts.to_string()),
            ("--lived-s", self.recorder.lived_s().to_string()),
        ] {
            arguments.extend([flag.to_owned(), value]);
        }
        let faults = self.stored.launch.inject.iter().map(ToString::to_string);
        let faults: Vec<String> = faults.filter(|fault| !self.stored.fired.contains(fault)).collect();
        if !faults.is_empty() {
            arguments.extend(["--inject".to_owned(), faults.join(",")]);
        }
        arguments
    }
}
