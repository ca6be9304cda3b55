//! The introduction of a command to the keeper.

use super::HarnessArgs;
use super::progress::CommandProgress;
use super::resume_point::Chosen;
use crate::protocol::worker::{Hello, PROTOCOL};
use crate::recipe::batch::Position;
use std::path::Path;

/// Introduces a command that was asked to resume from this checkpoint. Whether it does so is not known yet.
pub(super) fn hello(args: &HarnessArgs, progress: &CommandProgress, from: Option<&Chosen>) -> Hello {
    let samples = from.map_or(0, Chosen::samples);
    let total = progress.total.unwrap_or(0);
    let unit = if progress.samples(1) == 1 { "steps" } else { "samples" };
    Hello {
        protocol: PROTOCOL,
        build: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        device: device_name(&args.device),
        backend: "command".to_owned(),
        parameters: 0,
        resumed_from: from.map(Chosen::step),
        position: Position { samples, ..Position::default() },
        epoch_units: 0,
        total_units: progress.samples(total),
        total_steps: total,
        unit: unit.to_owned(),
    }
}

/// Returns the device that the command uses, as far as it shows from outside: on a machine with a GPU, that GPU is
/// assumed, so that the next start waits for its memory.
fn device_name(device: &str) -> String {
    let drivers = ["/dev/nvidiactl", "/dev/dxg"];
    match device {
        "auto" if drivers.iter().any(|driver| Path::new(driver).exists()) => "cuda:0".to_owned(),
        "auto" => "cpu".to_owned(),
        named => named.to_owned(),
    }
}
