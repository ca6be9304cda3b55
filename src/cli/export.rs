//! `export`: the curve as rows. Rows of the highest attempt are the curve; the others were redone later.

use super::{Failure, Outcome, find_run, open_store};
use crate::protocol::control::StepRow;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The run's name, a prefix of it, or its folder; defaults to the newest run
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Rows,
    /// The folder for TensorBoard event files; rows go to stdout
    #[arg(long, value_name = "DIR", required_if_eq("format", "tensorboard"))]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Rows {
    /// One JSON object per line
    Jsonl,
    /// Comma-separated, with a header
    Csv,
    /// TensorBoard event files, in a folder named after the run below --out
    Tensorboard,
}

/// One exported row.
#[derive(Debug, Serialize)]
struct Row {
    attempt: u64,
    rung: usize,
    step: u64,
    samples: u64,
    epoch: u64,
    loss: Option<f64>,
    lr: f64,
    grad_norm: Option<f64>,
    skipped: bool,
}

pub fn export(args: &ExportArgs, runs: &Path) -> Outcome {
    let run = find_run(runs, args.run.as_deref())?;
    match (args.format, &args.out) {
        (Rows::Tensorboard, Some(out)) => return super::tensorboard::export(&run, out),
        (_, Some(_)) => return Err(Failure::new(2, "--out goes with --format tensorboard; rows go to stdout")),
        _ => {}
    }
    let reader = open_store(&run)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut written = match args.format {
        Rows::Csv => writeln!(out, "attempt,rung,step,samples,epoch,loss,lr,grad_norm,skipped"),
        Rows::Jsonl | Rows::Tensorboard => Ok(()),
    };
    reader.each_step(|row| {
        if written.is_ok() {
            written = write_row(&mut out, args.format, &row);
        }
    })?;
    match written.and_then(|()| out.flush()) {
        // `| head` closes the pipe, which is not a failure.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(0),
    }
}

fn write_row(out: &mut impl Write, format: Rows, step: &StepRow) -> io::Result<()> {
    let StepRow { attempt, rung, step, samples, epoch, loss, lr, grad_norm, skipped, .. } = *step;
    match format {
        Rows::Jsonl | Rows::Tensorboard => {
            let row = Row { attempt, rung, step, samples, epoch, loss, lr, grad_norm, skipped };
            writeln!(out, "{}", serde_json::to_string(&row)?)
        }
        Rows::Csv => {
            let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
            let (loss, norm) = (number(loss), number(grad_norm));
            writeln!(out, "{attempt},{rung},{step},{samples},{epoch},{loss},{lr},{norm},{skipped}")
        }
    }
}
