//! `watch`: monitors the GPU and the machine without a run.

use super::{Failure, LineFormat, Outcome, line};
use crate::diagnose::readings::{FIRST, end_probe, start_probe};
use crate::diagnose::watch::{Counts, EccTrend, KernelSeen, Process, largest_processes, text_rows, tmux_line};
use crate::protocol::probe::Reading;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// Time beyond its interval after which a silent probe counts as stuck.
const SILENCE: Duration = Duration::from_secs(3);
/// Silent probes in a row after which the command fails.
const MOST_SILENT: u32 = 5;

/// Arguments of `watch`.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Take one reading and exit
    #[arg(long)]
    once: bool,
    /// Seconds between two readings
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS")]
    interval: f64,
    /// The GPU's NVML index
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// Output format; json prints one object per line
    #[arg(long, value_enum, default_value = "text")]
    format: LineFormat,
}

/// The JSON output.
#[derive(Debug, Serialize)]
struct Seen<'a> {
    time: String,
    #[serde(flatten)]
    reading: &'a Reading,
    processes: Vec<Process>,
    kernel_log: &'a Counts,
}

pub fn watch(args: &WatchArgs, runs: &Path) -> Outcome {
    if !(0.1..=86_400.0).contains(&args.interval) {
        return Err(Failure::new(2, "--interval must be 0.1 to 86400 seconds"));
    }
    let interval = Duration::from_secs_f64(args.interval);
    let place = if runs.is_dir() { runs.to_owned() } else { PathBuf::from(".") };
    let (mut silent, mut kernel, mut ecc) = (0, KernelSeen::open(), EccTrend::default());
    loop {
        let (mut probe, readings) = start_probe(args.gpu, args.once, &place, interval)?;
        let mut patience = FIRST;
        loop {
            match readings.recv_timeout(patience) {
                Ok(reading) if args.once && reading.is_opening() => {}
                Ok(reading) => {
                    (patience, silent) = (interval + SILENCE, 0);
                    kernel.read_new_lines(
                        reading.gpu.as_ref().ok().and_then(|gpu| gpu.more.pci.value()).map(String::as_str),
                    );
                    reading.gpu.iter().for_each(|gpu| ecc.record(gpu));
                    print_reading(&reading, &kernel, &ecc, args)?;
                    if args.once {
                        end_probe(&mut probe);
                        // A GPU that was selected by number and does not exist is an error.
                        return Ok(u8::from(args.gpu > 0 && reading.gpu.is_err()));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    line!("no answer for {} s: the NVIDIA driver may hang", patience.as_secs());
                    silent += 1;
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    line!("the GPU monitor ended: the NVIDIA library may have crashed");
                    silent += 1;
                    break;
                }
            }
        }
        end_probe(&mut probe);
        if args.once || silent >= MOST_SILENT {
            return Err(Failure::new(1, "the GPU monitor returns no readings; run `downshift doctor`"));
        }
    }
}

fn print_reading(reading: &Reading, kernel: &KernelSeen, ecc: &EccTrend, args: &WatchArgs) -> Result<(), Failure> {
    let processes = largest_processes(Path::new("/proc"));
    if args.format == LineFormat::Json {
        let time = jiff::Timestamp::now().to_string();
        line!("{}", serde_json::to_string(&Seen { time, reading, processes, kernel_log: &kernel.counts })?);
        return Ok(());
    }
    if args.format == LineFormat::Tmux {
        line!("{}", tmux_line(reading));
        return Ok(());
    }
    let now = jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S").to_string();
    line!("{now}");
    for row in text_rows(reading, kernel, ecc, &processes) {
        line!("  {row}");
    }
    Ok(())
}
