//! The program `downshift`.

use downshift::probe::{self, ProbeArgs};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    match probe_args(std::env::args().skip(1)) {
        Some(args) => probe::run(&args),
        None => ExitCode::from(2),
    }
}

/// The arguments of `probe --run-dir DIR [--interval-ms N] [--gpu N] [--once]`.
fn probe_args(mut words: impl Iterator<Item = String>) -> Option<ProbeArgs> {
    if words.next()? != "probe" {
        return None;
    }
    let mut run_dir = None;
    let mut args = ProbeArgs::new(std::path::PathBuf::new());
    while let Some(word) = words.next() {
        match word.as_str() {
            "--run-dir" => run_dir = Some(words.next()?.into()),
            "--interval-ms" => args.interval = Duration::from_millis(words.next()?.parse().ok()?),
            "--gpu" => args.gpu = words.next()?.parse().ok()?,
            "--once" => args.once = true,
            _ => return None,
        }
    }
    Some(ProbeArgs { run_dir: run_dir?, ..args })
}
