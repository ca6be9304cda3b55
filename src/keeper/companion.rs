//! The companion of a command: what it reports goes into the run's status, and its stacks into the journal.

use super::keeper_state::Keeper;
use crate::config::command::CommandSpec;
use crate::protocol::capability::Level;
use crate::protocol::companion::CompanionNews;
use crate::protocol::control::JournalKind;
use crate::protocol::resume::Resume;
use crate::protocol::worker::Level as Severity;
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
        status.resume = Some(describe_resume(spec, Some(companion)));
    }

    /// Forgets the companion of earlier attempts: the script trains without it now.
    pub(super) fn forget_companion(&mut self) {
        let Some(spec) = &self.run.command else { return };
        self.policy.forget_companion();
        self.recorder.status.companion = None;
        self.recorder.status.resume = Some(describe_resume(spec, None));
        let level = self.policy.capability().level().unwrap_or(Level::Command);
        let text =
            format!("downshift's helper in the script, which earlier attempts had, is missing: {}", level.meaning());
        self.recorder.note(Severity::Warn, JournalKind::Worker, text);
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
        self.witness.record_stand(text.clone());
        self.recorder.note(Severity::Warn, JournalKind::Worker, text);
    }
}

/// Returns how well a command's run resumes, from its run file, its companion and its last trial.
pub fn describe_resume(spec: &CommandSpec, companion: Option<&CompanionNews>) -> Resume {
    let proven = Proofs::of_user().find(spec).is_some_and(|proof: ResumeProof| proof.is_proven());
    match companion.filter(|companion| companion.resumes()) {
        Some(companion) => Resume::of_companion(companion, proven),
        None => Resume::of_script(spec.resumes(), proven),
    }
}

#[cfg(test)]
mod tests {
    use super::{Level, describe_resume};
    use crate::config::command::CommandSpec;
    use crate::config::run::{AsWritten, Run, Source};
    use crate::outlook::capability::capability_of;
    use crate::protocol::blank;
    use crate::protocol::companion::{CompanionNews, Grade};
    use crate::protocol::resume::Resume;
    use std::path::Path;

    fn spec(more: &str) -> CommandSpec {
        let text = format!("name: x\ntask: command\ncommand: [train]\n{more}");
        let source = Source { file: "x", text: &text, base: Path::new("/nowhere"), overrides: &[] };
        Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}")).command.unwrap()
    }

    fn companion(grade: Grade, saves: bool) -> CompanionNews {
        CompanionNews { reason: Some("x".to_owned()), ..blank::companion(grade, saves) }
    }

    #[test]
    fn the_level_and_the_grade_follow_the_companion_where_it_saves() {
        let of = |more: &str, companion: Option<CompanionNews>| {
            let spec = spec(more);
            let saves = companion.as_ref().is_some_and(CompanionNews::resumes);
            let run_file = capability_of(Some(&spec));
            let level = run_file.with_companion(run_file, saves).level().map(Level::number);
            (level, describe_resume(&spec, companion.as_ref()))
        };
        let resumes = "checkpoints: { match: 'out/*' }\nresume: {}\n";
        let script = |resumes| Resume::of_script(resumes, false);
        assert_eq!(of("", None), (Some(0), script(false)));
        assert_eq!(of(resumes, None), (Some(1), script(true)));
        let reason = Some("x".to_owned());
        let exact = Resume { grade: Grade::SameData, proven: false, reason };
        assert_eq!(of("", Some(companion(Grade::SameData, true))), (Some(2), exact));
        for weak in [companion(Grade::Exact, false), companion(Grade::None, true)] {
            assert_eq!(of("", Some(weak.clone())), (Some(0), script(false)));
            assert_eq!(of(resumes, Some(weak)), (Some(1), script(true)));
        }
    }
}
