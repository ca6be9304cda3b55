//! `triage --memory`: the memory figures of a log as a table.

use super::line;
use super::{Failure, Format, Outcome};
use crate::format::counted;
use crate::triage::memory::{Figure, Reading, Trace, trace_memory};
use crate::untrusted::text;
use std::io::BufRead;
use std::path::Path;

pub fn memory(log: &mut impl BufRead, path: &Path, format: Format) -> Outcome {
    let found = trace_memory(log).map_err(|error| Failure::new(1, format!("{}: {error}", text::path(path))))?;
    match format {
        Format::Json => line!("{}", serde_json::to_string_pretty(&found.readings)?),
        Format::Text => {
            for line in format_table(&found) {
                line!("{line}");
            }
        }
    }
    Ok(0)
}

fn format_table(trace: &Trace) -> Vec<String> {
    if trace.readings.is_empty() {
        return vec![format!("No memory figures in {}.", counted(trace.lines, "line"))];
    }
    let mut rows = vec![["line", "time", "where", "figure", "GiB", "of"].map(str::to_owned)];
    rows.extend(trace.readings.iter().map(format_row));
    let widths: [usize; 6] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut out: Vec<String> = rows.iter().map(|row| aligned(row, widths)).collect();
    if trace.left_out > 0 {
        out.push(format!("skipped {} between these", counted(trace.left_out, "line")));
    }
    out.push(String::new());
    let (width, digits) = (widths[3], widths[4]);
    out.extend(trace.peaks.iter().map(|peak| {
        let [line, _, device, figure, amount, of] = format_row(peak);
        let name = if peak.figure == Figure::Free { "least" } else { "peak" };
        let of = if of.is_empty() { of } else { format!(" of {of}") };
        let device = if device.is_empty() { device } else { format!(", {device}") };
        format!("{name}  {figure:width$}  {amount:>digits$}{of} GiB{device}, line {line}")
    }));
    out
}

fn format_row(reading: &Reading) -> [String; 6] {
    let gib = |mib: f64| format!("{:.2}", mib / 1024.0);
    [
        reading.line.to_string(),
        reading.time.clone().unwrap_or_default(),
        reading.device.clone().unwrap_or_default(),
        reading.figure.word().to_owned(),
        gib(reading.mib),
        reading.of_mib.map(gib).unwrap_or_default(),
    ]
}

/// Aligns numbers to the right, words to the left.
fn aligned(row: &[String; 6], widths: [usize; 6]) -> String {
    let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
        1..=3 => format!("{cell:width$}"),
        _ => format!("{cell:>width$}"),
    });
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}
