//! The GPU and the machine as lines of text.

mod ecc;
mod kernel;
mod processes;
mod rows;

pub use ecc::EccTrend;
pub use kernel::{Counts, KernelSeen};
pub use processes::{Process, largest_processes};
pub use rows::text_rows;

use crate::format::bytes;
use crate::protocol::probe::{Metric, Reading};

/// Formats one short styled line for tmux: the GPU, its memory and temperature, and the machine's memory.
pub fn tmux_line(reading: &Reading) -> String {
    let size = |value: &u64| bytes(*value);
    let mut parts = match &reading.gpu {
        Ok(gpu) => {
            let hot = gpu.temperature_c.get().zip(gpu.slowdown_c.get()).is_some_and(|(now, limit)| now > limit - 5.0);
            let colour = if hot { "red" } else { "green" };
            vec![
                format!(
                    "#[fg={colour}]●#[default] {}",
                    metric_text(&gpu.temperature_c, |value| format!("{value:.0} °C"))
                ),
                format!(
                    "VRAM {}/{}",
                    metric_text(&gpu.vram_used_bytes, size),
                    metric_text(&gpu.vram_total_bytes, size)
                ),
            ]
        }
        Err(_) => vec!["#[fg=yellow]●#[default] no GPU".to_owned()],
    };
    let host = &reading.host;
    parts.push(format!("RAM {}/{}", metric_text(&host.ram_used_bytes, size), metric_text(&host.ram_total_bytes, size)));
    parts.join(" ")
}

/// Formats a metric: its value, its last value with its age, or a dash that is explained later.
fn metric_text<T>(metric: &Metric<T>, show: impl Fn(&T) -> String) -> String {
    match metric {
        Metric::Is(value) => show(value),
        Metric::Stale { value, for_s, .. } => format!("{} ({for_s} s ago)", show(value)),
        Metric::Not(_) => "–".to_owned(),
    }
}
