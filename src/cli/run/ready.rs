//! A start that passed every check, before anything of it is on the disk.

use super::{RunOptions, chosen_rung, has_terminal};
use crate::cli::devices::{Sharing, worker_device};
use crate::cli::first_checkpoint::{self, FirstCheckpoint};
use crate::cli::occupied::{self, Answer};
use crate::cli::preflight::{Cleared, Preflight, Start};
use crate::cli::{Failure, find_run, job, prepare};
use crate::config::run::Run;
use crate::keeper::Launch;
use crate::protocol::claim::ClaimRequest;
use crate::store::command_line::record_command_line;
use crate::store::run_dir::RunDir;
use crate::store::writer::Writer;
use crate::trainer::Trainer;
use std::path::Path;

/// The outcome of the checks.
pub(super) enum Checked {
    /// The run may start.
    Ready(Box<Ready>),
    /// The user chose to open the run that uses the device.
    Attach(RunDir),
}

/// A run that may start.
pub(super) struct Ready {
    run: Run,
    device: String,
    claim: ClaimRequest,
    /// The state of the device's kernels.
    fingerprint: String,
    /// The checkpoint that it begins from.
    from: Option<FirstCheckpoint>,
    /// The rung that the user chose.
    first: Option<usize>,
}

/// Checks the start of an approved run.
pub(super) fn check_start(
    run: Run,
    options: &RunOptions,
    runs: &Path,
    trainer: &dyn Trainer,
) -> Result<Checked, Failure> {
    let first = chosen_rung(&run, options)?;
    let begins_on = first.unwrap_or_else(|| run.first_rung());
    let from = options.from.as_deref().map(|from| FirstCheckpoint::named(from, &run, runs)).transpose()?;
    let after = options.after.as_deref().map(|name| find_run(runs, Some(name))).transpose()?;
    let device = worker_device(&run, &options.overrides.device)?;
    let nodes = if options.job.is_some() { job::count_nodes()? } else { 1 };
    let sharing =
        Sharing { wait_for_card: options.sharing.wait_for_card || after.is_some(), ..options.sharing.clone() };
    let headless = options.headless || options.job.is_some();
    let shares = sharing.another || sharing.wait_for_card || (!headless && has_terminal());
    let start = Start { device: &device, runs, trainer, approved: true, nodes, shares, can_wait: true };
    let Cleared { run, prospect, devices } = Preflight::of(Ok(run), start).clear()?;
    if let Some(from) = &from {
        from.check(&run, begins_on, trainer)?;
    }
    let claim = match occupied::settle_devices(&devices, &sharing, headless, (runs, None))? {
        Answer::Start(claim) => ClaimRequest { after: after.map(|run| run.path().to_owned()), ..claim },
        Answer::Attach(other) => return Ok(Checked::Attach(other)),
    };
    let from = match from {
        Some(from) => Some(from),
        None => first_checkpoint::settle(&run, begins_on, headless, runs)?,
    };
    Ok(Checked::Ready(Box::new(Ready { run, device, claim, fingerprint: prospect.fingerprint, from, first })))
}

impl Ready {
    /// Creates the run directory. Returns it, and how to launch the run.
    pub(super) fn create(self, options: &RunOptions, runs: &Path) -> Result<(RunDir, Launch), Failure> {
        let Self { run, device, claim, fingerprint, from, first } = self;
        let dir = match &options.job {
            Some(job) => RunDir::create_named(runs, job.as_str(), &run)?,
            None => RunDir::create(runs, &run)?,
        };
        record_command_line(&dir);
        prepare::hand_over(&fingerprint, dir.path());
        if let Some(from) = from {
            from.give_to(&dir, &run, first.unwrap_or_else(|| run.first_rung()))?;
        }
        if let Some(first) = first {
            // The keeper reads its rung from this fact, also after a restart.
            Writer::open(&dir.file("run.db"))?.put_fact("rung", &first)?;
        }
        Ok((dir, Launch { device, claim: Some(claim), inject: options.inject.0.clone() }))
    }
}
