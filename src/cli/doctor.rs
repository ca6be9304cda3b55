//! `doctor`: checks everything a run depends on, one line each: ok, warn or fail, with the fix.

use super::run::load_run_file;
use super::{Failure, Format, Outcome, find_run, line};
use crate::config::command::ranks::MAX_RANKS;
use crate::config::run::{AsWritten, Run};
use crate::diagnose::autostart::Autostart;
use crate::diagnose::doctor::{Severity, check_ranks, run_checks};
use crate::diagnose::python::PythonEnvironment;
use crate::diagnose::rank_check::Trial;
use crate::shipped;
use crate::trainer::Trainer;
use clap::{Args, ValueEnum, value_parser};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// A run, or a run file: also checks the Python environment of the command it starts
    #[arg(value_name = "RUN")]
    run: Option<PathBuf>,
    /// Try out N ranks on this machine instead: join, sum, wait, bandwidth, over NCCL or, without cards, gloo
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    ranks: Option<u32>,
    /// The Python of these ranks; defaults to that of RUN, or python3
    #[arg(long, value_name = "PATH", requires = "ranks")]
    python: Option<PathBuf>,
    /// Time for these ranks, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "ranks", value_parser = value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// The GPU's NVML index
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Print the setup that continues interrupted runs after a reboot: a systemd user unit, an entry for
    /// the Windows Task Scheduler, or both
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, default_missing_value = "both")]
    autostart: Option<Setup>,
}

/// The setups to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Setup {
    /// Both, with how to install them
    Both,
    /// The systemd unit alone
    Systemd,
    /// The Windows entry alone
    Windows,
}

/// Arguments of `self-test`.
#[derive(Debug, Args)]
pub struct SelfTestArgs {
    #[arg(long, default_value = "auto")]
    device: String,
    /// Time limit in seconds
    #[arg(long)]
    limit: u64,
}

pub fn doctor(args: &DoctorArgs, runs: &Path) -> Outcome {
    if let Some(what) = args.autostart {
        return print_autostart(what, runs);
    }
    let run = args.run.as_deref().map(|run| find_settings(run, runs)).transpose()?;
    let checks = match args.ranks {
        Some(ranks) => {
            let python = args.python.clone().map_or_else(|| python_of(run.as_ref()), Ok)?;
            check_ranks(&Trial { ranks, python, limit: Duration::from_secs(args.limit) })
        }
        None => run_checks(args.gpu, runs, run.as_ref()),
    };
    match args.format {
        Format::Json => line!("{}", serde_json::to_string_pretty(&checks)?),
        Format::Text => {
            for check in &checks {
                line!("{check}");
            }
        }
    }
    Ok(u8::from(checks.iter().any(|check| check.verdict == Severity::Fail)))
}

/// Reads a run file, or the run.yaml of a run.
fn find_settings(named: &Path, runs: &Path) -> Result<Run, Failure> {
    let is_yaml = named.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    if named.is_file() || is_yaml || shipped::run_file(named).is_some() {
        return load_run_file(Some(named), &[], "auto", &AsWritten);
    }
    Ok(find_run(runs, named.to_str())?.run()?)
}

/// Returns the Python of a run, or the one on the PATH.
fn python_of(run: Option<&Run>) -> Result<PathBuf, Failure> {
    match run.and_then(PythonEnvironment::of_run) {
        Some(Ok(found)) => Ok(found.interpreter),
        Some(Err(error)) => Err(Failure::new(2, format!("{error}; name its Python with --python"))),
        None => Ok(PathBuf::from("python3")),
    }
}

/// Prints what continues interrupted runs after a reboot, with the commands that install it.
fn print_autostart(what: Setup, runs: &Path) -> Outcome {
    let start = Autostart::here(runs)?;
    if what != Setup::Windows {
        if what == Setup::Both {
            line!("# Linux: save this as ~/.config/systemd/user/downshift.service, then");
            line!("#   systemctl --user enable downshift.service && loginctl enable-linger");
            line!("# (`downshift doctor --autostart systemd` prints only this.)");
            line!("");
        }
        line!("{}", start.systemd_unit());
    }
    if what != Setup::Systemd {
        if what == Setup::Both {
            line!("# Windows with WSL2: save the rest as downshift.xml, then in PowerShell");
            line!("#   Register-ScheduledTask -TaskName downshift -Xml (Get-Content -Raw downshift.xml)");
            line!("# (`downshift doctor --autostart windows` prints only this.)");
            line!("");
        }
        line!("{}", start.windows_task());
    }
    Ok(0)
}

/// The hidden command `self-test`: a small computation on the device. It may hang or crash without harm
/// to its parent.
pub fn self_test(args: &SelfTestArgs, trainer: &dyn Trainer) -> u8 {
    match trainer.self_test(&args.device, Duration::from_secs(args.limit)) {
        Ok(words) => {
            line!("{words}");
            0
        }
        Err(refusal) => {
            line!("{refusal}");
            refusal.code
        }
    }
}
