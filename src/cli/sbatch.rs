//! `sbatch`: writes a Slurm job that keeps a run across requeues, or submits it.

mod limit;
mod script;

use super::run::{Overrides, load_run_file};
use super::trust::{self, Trust};
use super::{Failure, Outcome, line, print_raw, say};
use crate::config::command::nodes::check_spread;
use crate::store::run_dir::write_whole;
use crate::store::umask;
use crate::trainer::Trainer;
use crate::trainer::program::settle_program;
use crate::untrusted::text;
use clap::Args;
use script::Script;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Least time between the start of a job and its notice, in seconds; Slurm may send it a minute early.
const LEAST_TRAINING_S: u64 = 120;

/// Arguments of `sbatch`.
#[derive(Debug, Args)]
#[command(
    after_help = "The job trains in the folder NAME-JOBID of the runs directory. Ahead of its time limit it saves and \
    requeues itself; each start continues from the newest checkpoint. A run that has finished, failed or was stopped by you \
    is not requeued. After scancel nothing of the run is left.\n\n\
    Example: downshift sbatch my.yaml --time 8:00:00 --gpus 1 --submit -- --mem=32G --account=vision"
)]
pub struct SbatchArgs {
    /// A run file, or one that ships inside
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// Submit the job instead of printing its script
    #[arg(long)]
    submit: bool,
    /// Write the script to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Time limit of each start, as Slurm reads it: minutes, H:M:S or D-H:M:S
    #[arg(long, value_name = "TIME")]
    time: Option<String>,
    /// Partition to run in
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,
    /// Number of GPUs of the whole job, with a type if you like: 2, a100:2
    #[arg(long, value_name = "N")]
    gpus: Option<String>,
    /// Number of nodes, each of which starts its share of the ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// Seconds before the time limit at which the run saves and ends; longer than its slowest step, evaluation and save
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = clap::value_parser!(u32).range(10..=65535))]
    lead: u32,
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    trust: Trust,
    /// More options of sbatch, each of them a line of the script
    #[arg(last = true, value_name = "SBATCH-OPTION")]
    more: Vec<String>,
}

pub fn sbatch(args: &SbatchArgs, runs: &Path, trainer: &dyn Trainer) -> Outcome {
    let run = load_run_file(Some(&args.config), &args.overrides.set, &args.overrides.device, trainer)?;
    let run = settle_program(run).map_err(Failure::config)?;
    if let Err(error) = check_spread(&run, args.nodes) {
        return Err(Failure::new(2, format!("--nodes {}: {error}; {}", args.nodes, error.fix())));
    }
    // The job has no terminal to ask on.
    trust::require_approval(&run, args.trust)?;
    std::fs::create_dir_all(runs)?;
    let script = Script {
        program: std::env::current_exe()?,
        directory: std::env::current_dir()?,
        // A run file that ships inside has a name instead of a path.
        config: args.config.canonicalize().unwrap_or_else(|_| args.config.clone()),
        runs: runs.canonicalize()?,
        name: run.name.clone(),
        time: args.time.clone(),
        partition: args.partition.clone(),
        gpus: args.gpus.clone(),
        nodes: args.nodes,
        lead_s: args.lead,
        overrides: args.overrides.clone(),
        more: args.more.clone(),
    };
    let text = script.render()?;
    // Zero is no limit.
    let least = u64::from(args.lead) + LEAST_TRAINING_S;
    if args.time.as_deref().and_then(limit::seconds).is_some_and(|time| (1..least).contains(&time)) {
        say(&format!(
            "--time leaves little or no time to train: the notice comes {} s before its end or earlier",
            args.lead
        ));
    }
    if let Some(path) = &args.out {
        write_whole(path, text.as_bytes())?;
    }
    if args.submit {
        return submit(&text);
    }
    match &args.out {
        Some(path) => line!("submit it with: sbatch {}", crate::format::quoted(&text::path(path))),
        None => print_raw(&text),
    }
    Ok(0)
}

/// Passes the script to `sbatch`, which copies it.
fn submit(script: &str) -> Outcome {
    let mut command = Command::new("sbatch");
    // Slurm gives the job the umask and the variables of this process.
    command.envs(umask::for_child());
    let mut child = command.stdin(Stdio::piped()).spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::new(
            1,
            "no program called `sbatch` is on the PATH; run this where Slurm jobs are submitted, or leave out --submit",
        ),
        _ => Failure::new(1, format!("sbatch: {error}")),
    })?;
    if let Some(mut stdin) = child.stdin.take() {
        // If sbatch ends early, its exit code says why.
        let _ = stdin.write_all(script.as_bytes());
    }
    let code = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.unwrap_or(1))
}
