//! How a run goes on after its end, from its run file and its level.

use super::command_line::{first_command_line, typed_command, with_option, without_option};
use super::companion::KnownCompanion;
use super::foreign::ForeignProcess;
use super::run_dir::RunDir;
use super::{adopted, checkpoint};
use crate::config::command::{CommandSpec, Level, RestartPolicy};
use crate::format::quoted;
use crate::protocol::control::{RunState, Status};
use crate::protocol::resume::{Anew, GoOn};
use crate::untrusted::text;

/// Returns how a run goes on, as its run.yaml and its status say.
#[must_use]
pub fn find_way(dir: &RunDir, status: Option<&Status>) -> GoOn {
    let has_harness = status.is_some_and(|status| status.state == RunState::Unattended && status.pid_worker.is_some());
    if has_harness || ForeignProcess::living(dir).is_some() {
        return GoOn::TakesOver(dir.command("resume"));
    }
    let run = dir.run().ok();
    let durable = status.and_then(|status| status.durable_step);
    if let Some(spec) = run.as_ref().and_then(|run| run.command.as_ref()).filter(|spec| is_lost(spec, status)) {
        return GoOn::Anew(start_anew(dir, spec).command);
    }
    let resume = dir.command("resume");
    let other = status.and_then(|status| status.rungs.get(status.proven_rung()?));
    GoOn::by_resume(
        match other {
            Some(rung) => format!("{resume} --rung {}", quoted(&rung.name)),
            None => resume,
        },
        durable,
    )
}

/// Reports whether a command that has ended can neither resume nor start over. A paused one has lost nothing: a pause that
/// would lose steps is refused.
#[must_use]
pub fn is_lost(spec: &CommandSpec, status: Option<&Status>) -> bool {
    let level = status.and_then(|status| status.level).unwrap_or(spec.level().number());
    let is_paused = status.is_some_and(|status| status.state == RunState::Paused);
    !is_paused && spec.restart == RestartPolicy::Never && level == Level::Command.number()
}

/// Returns how a run starts anew: by the command line that began it, if that is known.
#[must_use]
pub fn start_anew(dir: &RunDir, spec: &CommandSpec) -> Anew {
    let typed = || {
        // A word with a knob in it is one of a run file.
        if spec.command.iter().any(|word| word.contains('{')) {
            return format!("downshift run {}", quoted(&text::path(&dir.file("run.yaml"))));
        }
        let words: Vec<String> = spec.command.iter().map(|word| quoted(word)).collect();
        format!("downshift run -- {}", words.join(" "))
    };
    let command = first_line(dir).unwrap_or_else(typed);
    let init = typed_command(&command).map(|words| format!("downshift init -- {words}"));
    Anew { command, init }
}

/// Returns the command that starts a new run from a checkpoint of this one, of a step or the newest; none if no run can
/// begin from it, or it was not started by `run`. `spec`: the run's command, if it has one.
#[must_use]
pub fn train_on(dir: &RunDir, spec: Option<&CommandSpec>, step: Option<u64>) -> Option<String> {
    let resumes = spec.is_some_and(|spec| spec.level() >= Level::Checkpoints)
        || KnownCompanion::of_run(dir).is_some_and(|it| it.resumes_script());
    let resumes_script = resumes && !adopted::list(dir.path()).is_empty();
    let has_checkpoint = resumes_script || !checkpoint::list(dir.path()).is_empty();
    let line = without_option(&first_line(dir).filter(|_| has_checkpoint)?, "--from");
    let step = step.map_or_else(String::new, |step| format!("@{step}"));
    Some(with_option(&line, &format!("--from {}{step}", quoted(&dir.name()))))
}

/// Returns the command line that began the run, without the name of its job, since a job of the same name would continue
/// it, and without the run that it waited for.
fn first_line(dir: &RunDir) -> Option<String> {
    let line = first_command_line(dir)?;
    Some(without_option(&without_option(&line, "--job"), "--after"))
}

#[cfg(test)]
mod tests {
    use super::find_way;
    use crate::protocol::blank;
    use crate::protocol::control::RunState;
    use crate::store::run_dir::RunDir;
    use serde_json::{from_value, json};

    #[test]
    fn a_run_that_ended_on_a_rung_without_a_step_goes_on_with_the_rung_that_carried_it() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("run.yaml"), "").unwrap();
        let dir = RunDir::open(place.path()).unwrap();
        let mut status = blank::status();
        (status.state, status.rung, status.durable_step) = (RunState::NeedsPerson, 1, Some(500));
        let mut way = |steps: u64| {
            let record = |name: &str, steps: u64| {
                from_value(json!({ "name": name, "steps": steps, "fault": ["exit code 2", 500] })).unwrap()
            };
            status.rungs = vec![record("full", 500), record("small batch", steps)];
            find_way(&dir, Some(&status)).to_string()
        };
        assert!(way(0).contains(" --rung full` continues it"), "{}", way(0));
        assert!(!way(3).contains("--rung"), "{}", way(3));
    }
}
