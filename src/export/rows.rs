//! The steps as rows, named metrics last. The curve is a part of them; the others were redone later, or belong to a branch that
//! was given up.

use super::ExportError;
use crate::protocol::control::StepRow;
use crate::protocol::metrics::Metrics;
use crate::store::reader::Reader;
use crate::store::run_dir::RunDir;
use crate::store::summary::MetricNames;
use crate::untrusted::text;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, Write};
use std::path::PathBuf;

/// The format of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFormat {
    /// One JSON object per line.
    Jsonl,
    /// Comma-separated, with a header.
    Csv,
}

/// One exported row.
#[derive(Debug, Serialize)]
struct Row {
    attempt: u64,
    rung: usize,
    step: u64,
    samples: Option<u64>,
    epoch: u64,
    loss: Option<f64>,
    lr: Option<f64>,
    grad_norm: Option<f64>,
    skipped: bool,
    #[serde(skip_serializing_if = "Metrics::is_empty")]
    metrics: Metrics,
}

/// Writes a row for each step of each attempt.
///
/// # Errors
/// Returns an error when the store cannot be read, or `out` cannot be written.
pub fn write(run: &RunDir, format: RowFormat, out: &mut impl Write) -> Result<(), ExportError> {
    let reader = Reader::open_begun(run)?;
    let names = reader.metric_names().map_err(|source| ExportError::query(run, source))?;
    // The clock of a script that names no samples counts its steps.
    let counts_steps = reader.status().is_some_and(|status| status.unit == "steps");
    let mut written = match format {
        RowFormat::Csv => {
            let fixed = ["attempt", "rung", "step", "samples", "epoch", "loss", "lr", "grad_norm", "skipped"];
            let names = names.iter().map(|(_, name)| csv_cell(name));
            let columns: Vec<Cow<'_, str>> = fixed.into_iter().map(Cow::Borrowed).chain(names).collect();
            writeln!(out, "{}", columns.join(","))
        }
        RowFormat::Jsonl => Ok(()),
    };
    let each = |row| {
        if written.is_ok() {
            written = write_row(out, format, row, &names, counts_steps);
        }
    };
    reader.each_step(each).map_err(|source| ExportError::query(run, source))?;
    written.and_then(|()| out.flush()).map_err(|source| ExportError::Io { path: PathBuf::from("stdout"), source })
}

/// Returns a text as a cell: on one line, without anything that a terminal interprets, quoted where the format asks for it
/// (RFC 4180). A spreadsheet takes what begins like a formula as text.
fn csv_cell(text: &str) -> Cow<'_, str> {
    let safe = text::escape_line(text);
    let is_formula = safe.starts_with(['=', '+', '-', '@', '\t']);
    if !is_formula && !safe.contains([',', '"']) {
        return safe;
    }
    let mark = if is_formula { "'" } else { "" };
    Cow::Owned(format!("\"{mark}{}\"", safe.replace('"', "\"\"")))
}

fn write_row(
    out: &mut impl Write,
    format: RowFormat,
    step: StepRow,
    names: &MetricNames,
    counts_steps: bool,
) -> io::Result<()> {
    let StepRow { attempt, rung, step, samples, epoch, loss, lr, grad_norm, skipped, metrics, .. } = step;
    let samples = Some(samples).filter(|_| !counts_steps);
    match format {
        RowFormat::Jsonl => {
            let row = Row { attempt, rung, step, samples, epoch, loss, lr, grad_norm, skipped, metrics };
            writeln!(out, "{}", text::escape_line(&serde_json::to_string(&row)?))
        }
        RowFormat::Csv => {
            let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
            let (loss, lr, norm) = (number(loss), number(lr), number(grad_norm));
            let samples = samples.map_or_else(String::new, |samples| samples.to_string());
            write!(out, "{attempt},{rung},{step},{samples},{epoch},{loss},{lr},{norm},{skipped}")?;
            for (_, name) in names.iter() {
                write!(out, ",{}", number(metrics.get(name).copied()))?;
            }
            writeln!(out)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::csv_cell;

    #[test]
    fn names_of_columns_are_quoted_and_harmless() {
        for (name, cell) in [
            ("loss", "loss"),
            ("a,b", "\"a,b\""),
            ("say \"x\"", "\"say \"\"x\"\"\""),
            ("two\nlines\u{1b}[2J", "two\\nlines\\u001b[2J"),
            ("=HYPERLINK(A1)", "\"'=HYPERLINK(A1)\""),
            ("-log_p", "\"'-log_p\""),
            ("@x", "\"'@x\""),
        ] {
            assert_eq!(csv_cell(name), cell, "{name}");
        }
    }
}
