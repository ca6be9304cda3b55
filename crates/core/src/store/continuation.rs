//! The commands that continue a run, from its run directory.

use super::command_line::{first_command_line, typed_command, with_option, without_option};
use super::companion::KnownCompanion;
use super::foreign::ForeignProcess;
use super::run_dir::RunDir;
use super::{adopted, checkpoint};
use crate::config::command::CommandSpec;
use crate::format::quoted;
use crate::outlook::capability::capability_of;
use crate::outlook::continuation::{Commands, Continuation, NewRun};
use crate::protocol::control::Status;
use crate::untrusted::text;

/// Returns how a run continues, as its run.yaml and its status say. A run without a status never began, or its store is lost.
#[must_use]
pub fn continuation(dir: &RunDir, status: Option<&Status>) -> Continuation {
    let commands = commands(dir, dir.run().ok().and_then(|run| run.command).as_ref());
    match status {
        Some(status) => commands.after_status(status, ForeignProcess::living(dir).is_some()),
        None => commands.after(false, None),
    }
}

/// Returns the commands that can continue a run. `spec`: its command, if it has one.
#[must_use]
pub fn commands(dir: &RunDir, spec: Option<&CommandSpec>) -> Commands {
    Commands {
        resume: dir.command("resume"),
        again: spec.map(|spec| run_again(dir, spec)),
        capability: capability_of(spec),
    }
}

/// Returns how a command starts again: by the command line that began its run, if that is known.
fn run_again(dir: &RunDir, spec: &CommandSpec) -> NewRun {
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
    NewRun { command, init }
}

/// Returns the command that starts a new run from a checkpoint of this one, of a step or the newest; none if no run can
/// begin from it, or it was not started by `run`. `spec`: the run's command, if it has one.
#[must_use]
pub fn command_from_checkpoint(dir: &RunDir, spec: Option<&CommandSpec>, step: Option<u64>) -> Option<String> {
    let resumes =
        spec.is_some_and(CommandSpec::resumes) || KnownCompanion::of_run(dir).is_some_and(|it| it.resumes_script());
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
