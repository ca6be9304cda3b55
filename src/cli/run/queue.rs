//! Several run files at once: all of them are checked, then queued in their order, or none is.

use super::load::{is_folder_of_run_files, run_files_in};
use super::ready::{Checked, Ready, check_start};
use super::{RunOptions, approved_run, has_terminal, start_keeper};
use crate::cli::devices::Sharing;
use crate::cli::environment::NextStart;
use crate::cli::queue::place_word;
use crate::cli::{Failure, Outcome, attach, headless, line};
use crate::config::command::invocation::is_script;
use crate::format::counted;
use crate::keeper::Launch;
use crate::protocol::claim::Stage;
use crate::shipped;
use crate::store::claims::{Registry, place_of};
use crate::store::owners;
use crate::store::run_dir::RunDir;
use crate::trainer::Trainer;
use crate::untrusted::poll::poll_within;
use crate::untrusted::text;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time for a keeper to take its place in the queue. One that cannot register says so in its journal, and trains.
const CLAIMING: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_millis(10);

/// Queues the runs of these files and folders, and follows them.
pub(super) fn begin_queue(configs: &[PathBuf], options: &RunOptions, runs: &Path, trainer: &dyn Trainer) -> Outcome {
    refuse_options(options)?;
    refuse_command(configs)?;
    let options = RunOptions { sharing: Sharing { wait_for_card: true, another: false }, ..options.clone() };
    let mut ready = Vec::new();
    for file in list_files(configs)? {
        line!("{}:", text::path(&file));
        ready.push(check(&file, &options, runs, trainer).map_err(|failure| nothing_queued(&file, failure))?);
    }
    let started = start_all(&create_all(ready, &options, runs)?)?;
    print_queue(&started);
    if options.headless || !has_terminal() {
        return headless::follow_all(&started);
    }
    attach::open(&started[0])
}

/// Refuses options that mean one run.
fn refuse_options(options: &RunOptions) -> Result<(), Failure> {
    let wrong = match options {
        RunOptions { job: Some(_), .. } => "--job keeps one run; write a job for each",
        RunOptions { name: Some(_), .. } => "--name names one run; write `name:` into each run file",
        RunOptions { sharing: Sharing { another: true, .. }, .. } => {
            "--another starts at once, but several run files wait for each other; start them one by one"
        }
        _ => return Ok(()),
    };
    Err(Failure::new(2, wrong))
}

/// Refuses a command of the user's own, whose words look like several run files.
fn refuse_command(configs: &[PathBuf]) -> Result<(), Failure> {
    let is_known = |path: &PathBuf| path.exists() || shipped::run_file(path).is_some() || path.extension().is_some();
    let [program, ..] = configs else { return Ok(()) };
    let Some(word) = configs.iter().find(|path| is_script(path)).or_else(|| (!is_known(program)).then_some(program))
    else {
        return Ok(());
    };
    let (shown, example) = (text::path(word), "downshift run -- python train.py");
    Err(Failure::new(
        2,
        format!("`{shown}` is not a run file; a command of your own goes after `--`, as in: {example}"),
    ))
}

fn list_files(configs: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for config in configs {
        if is_folder_of_run_files(config) {
            files.extend(run_files_in(config)?);
        } else {
            files.push(config.clone());
        }
    }
    Ok(files)
}

fn check(file: &Path, options: &RunOptions, runs: &Path, trainer: &dyn Trainer) -> Result<Ready, Failure> {
    let run = approved_run(Some(file), options, runs, trainer)?;
    match check_start(run, options, runs, trainer)? {
        Checked::Ready(ready) => Ok(*ready),
        Checked::Attach(other) => Err(Failure::new(2, format!("{} uses the device", other.name()))),
    }
}

/// Names the file that is wrong.
fn nothing_queued(file: &Path, Failure { message, code }: Failure) -> Failure {
    let shown = text::path(file);
    let message = if message.starts_with(&*shown) { message } else { format!("{shown}: {message}") };
    let end = if message.contains('\n') { "\n" } else { "; " };
    Failure::new(code, format!("{message}{end}nothing was queued"))
}

/// Creates all run directories, or none.
fn create_all(ready: Vec<Ready>, options: &RunOptions, runs: &Path) -> Result<Vec<(RunDir, Launch)>, Failure> {
    let mut created: Vec<(RunDir, Launch)> = Vec::new();
    for ready in ready {
        match ready.create(options, runs) {
            Ok(run) => created.push(run),
            Err(failure) => {
                // None of them has begun.
                for (dir, _) in created {
                    std::fs::remove_dir_all(dir.path()).ok();
                }
                return Err(Failure::new(failure.code, format!("{}; nothing was queued", failure.message)));
            }
        }
    }
    Ok(created)
}

/// Starts a keeper for each run. Its place is settled before, so it does not depend on which keeper is the first to ask.
fn start_all(created: &[(RunDir, Launch)]) -> Result<Vec<RunDir>, Failure> {
    let dirs: Vec<RunDir> = created.iter().map(|(dir, _)| dir.clone()).collect();
    if let Some(registry) = Registry::of_user()
        && let Err(error) = registry.enqueue(&dirs)
    {
        crate::cli::say(&format!(
            "the order of the queue cannot be stored, so the runs wait in the order of their start: {error}"
        ));
    }
    for (at, (dir, launch)) in created.iter().enumerate() {
        start_keeper(dir, Some(launch), NextStart::first(dir)).map_err(|failure| {
            let rest: Vec<String> = dirs[at..].iter().map(RunDir::name).collect();
            Failure::new(failure.code, format!("{}; not queued: {}", failure.message, rest.join(", ")))
        })?;
        wait_for_claim(dir);
    }
    Ok(dirs)
}

/// Waits until a run that was started has its devices or its place in their queue: the next one must find it there.
pub fn wait_for_claim(dir: &RunDir) {
    let Some(registry) = Registry::of_user() else { return };
    let has_claimed = || {
        let claimed = |stage| matches!(stage, Stage::Holds | Stage::Queued | Stage::Later);
        registry.living().iter().any(|claim| claim.run_dir == dir.path() && claimed(claim.stage))
            || !owners::is_kept(dir)
    };
    poll_within(CLAIMING, INTERVAL, || has_claimed().then_some(()));
}

/// Prints the runs with their places.
fn print_queue(dirs: &[RunDir]) {
    let claims = Registry::of_user().map(|registry| registry.living()).unwrap_or_default();
    line!("queued {}; `downshift queue` lists, moves, holds and removes them:", counted(dirs.len() as u64, "run"));
    for dir in dirs {
        let place = place_of(dir.path(), &claims);
        line!("  {}  {}", dir.name(), place.map_or_else(|| "starts".to_owned(), place_word));
    }
}
