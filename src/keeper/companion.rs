//! The companion of a command: what it reports goes into the run's status, and its stacks into the journal.

use super::keeper_state::Keeper;
use crate::config::command::{self, CommandSpec};
use crate::protocol::companion::CompanionNews;
use crate::protocol::control::{JournalKind, Status};
use crate::protocol::resume::Resume;
use crate::protocol::worker::Level;
use crate::store::resume_proof::{Proofs, ResumeProof};
use crate::triage::python_stack::find_main_thread;
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use std::path::{Component, Path};

impl Keeper {
    /// Records the introduction of a companion.
    pub(super) fn record_companion(&mut self, companion: &CompanionNews) {
        let Some(spec) = &self.run.command else { return };
        let status = &mut self.recorder.status;
        status.companion = Some(Box::new(companion.clone()));
        describe_resume(spec, status);
    }

    /// Writes into the journal where the main thread of a hung process stands.
    pub(super) fn record_stacks(&mut self, pid: u32, rank: u32, file: &Path) {
        // The name is the harness's, but the file that of a script.
        if !file.components().all(|part| matches!(part, Component::Normal(_))) {
            return;
        }
        let Ok(stacks) = file::read_text(&self.run_dir.path().join(file), Limit::Handwritten) else { return };
        let Some(main) = find_main_thread(&stacks) else { return };
        let rank = if rank == 0 { String::new() } else { format!(", rank {rank}") };
        let place = text::escape_line(&main.to_string()).into_owned();
        let text = format!(
            "process {pid}{rank} stands at {place}; the stacks of its {} threads are in {}",
            main.threads,
            file.display()
        );
        self.recorder.note(Level::Warn, JournalKind::Worker, text);
    }
}

/// Fills in the level of a command's run and how well it resumes, from its run file, its companion and its last trial.
pub fn describe_resume(spec: &CommandSpec, status: &mut Status) {
    let proven = Proofs::of_user().find(spec).is_some_and(|proof: ResumeProof| proof.is_proven());
    let companion = status.companion.as_deref().filter(|companion| companion.resumes());
    let level = spec.level_with(companion.is_some());
    status.level = Some(level.number());
    status.resume = Some(match companion {
        Some(companion) => Resume::of_companion(companion, proven),
        None => Resume::of_script(level > command::Level::Command, proven),
    });
}
