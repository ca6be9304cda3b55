//! `doctor`: checks everything a run depends on, one line each: ok, warn or fail, with the fix.

mod autostart;
mod check;
mod gpu;
mod machine;
mod terminal;
mod wsl;

use super::{Format, Outcome, line, watch};
use crate::trainer::Trainer;
pub use check::Check;
use check::Verdict;
use clap::Args;
pub use gpu::company;
use std::path::Path;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The GPU's NVML index
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Print the setup that continues interrupted runs after a reboot: a systemd user unit, an entry for
    /// the Windows Task Scheduler, or both
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, default_missing_value = "both")]
    autostart: Option<autostart::Autostart>,
}

/// Arguments of `self-test`.
#[derive(Debug, Args)]
pub struct SelfTestArgs {
    #[arg(long, default_value = "auto")]
    device: String,
}

pub fn doctor(args: &DoctorArgs, runs: &Path) -> Outcome {
    if let Some(what) = args.autostart {
        return autostart::print(what, runs);
    }
    let checks = examine(args.gpu, runs);
    match args.format {
        Format::Json => line!("{}", serde_json::to_string_pretty(&checks)?),
        Format::Text | Format::Tmux => {
            for check in &checks {
                line!("{check}");
            }
        }
    }
    Ok(u8::from(checks.iter().any(|check| check.verdict == Verdict::Fail)))
}

/// Returns all checks as text, for a bundle.
pub fn report(runs: &Path) -> String {
    examine(0, runs).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn examine(gpu: u32, runs: &Path) -> Vec<Check> {
    let place = machine::existing(runs);
    let reading = watch::read_once(&place, gpu);
    let mut checks = gpu::checks(reading.as_ref(), gpu);
    checks.extend(machine::checks(reading.as_ref().ok(), &place));
    checks.extend(wsl::checks(reading.as_ref().ok(), &place));
    checks.extend(terminal::checks());
    checks.extend(machine::settings());
    checks
}

/// The hidden command `self-test`: a small computation on the device. It may hang or crash without harm
/// to its parent.
pub fn self_test(args: &SelfTestArgs, trainer: &dyn Trainer) -> u8 {
    match trainer.self_test(&args.device) {
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
