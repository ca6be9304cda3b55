//! The setup file while the command runs: a process that it starts later resumes from the newest durable checkpoint.

use crate::config::command::SETUP_FILE;
use crate::harness::run_loop::Harness;
use crate::harness::setup::SetupFile;
use crate::protocol::companion::ResumeFrom;
use std::io;

impl Harness {
    /// Lets later processes of the command resume from a checkpoint that is durable now.
    pub(in crate::harness) fn resume_later_from(&mut self, from: ResumeFrom) {
        // A training after the first one begins from its start.
        if !self.companion.first_has_ended {
            self.change_setup(|setup| setup.resume_from(Some(from)));
        }
    }

    /// Keeps another training of the same command from resuming from, or replacing, the checkpoints of the first one.
    pub(super) fn keep_only_the_first_training(&mut self) {
        self.companion.first_has_ended = true;
        self.change_setup(|setup| setup.resume_from(None));
    }

    /// Leaves out a fault that a process of the command has injected: it strikes once.
    pub(super) fn leave_out_fault(&mut self, fault: &str) {
        self.change_setup(|setup| setup.leave_out_fault(fault));
    }

    /// Writes the file again after a failure, such as a full disk.
    pub(super) fn retry_setup(&mut self) {
        if let Some(setup) = &mut self.companion.setup {
            // The failure was reported when it happened.
            let _ = setup.retry();
        }
    }

    fn change_setup(&mut self, change: impl FnOnce(&mut SetupFile) -> io::Result<()>) {
        let Some(setup) = &mut self.companion.setup else { return };
        let changed = change(setup);
        self.nodes.send_setup(setup.setup());
        if let Err(error) = changed {
            self.warn(format!(
                "{SETUP_FILE} cannot be written: {error}; another process of the command would start with the old one"
            ));
        }
    }
}
