//! `export`: the steps as rows. The curve is a part of them; the others were redone later, or belong to a branch that was given up.

use super::{Failure, Outcome, find_run, line};
use crate::export::rows::{self, RowFormat};
use crate::export::{ExportError, tensorboard};
use crate::untrusted::text;
use clap::{Args, ValueEnum};
use std::io::{self, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The run's name, a prefix of it, or its folder; defaults to the newest run
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Format,
    /// The folder for TensorBoard event files; rows go to stdout
    #[arg(long, value_name = "DIR", required_if_eq("format", "tensorboard"))]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One JSON object per line
    Jsonl,
    /// Comma-separated, with a header
    Csv,
    /// TensorBoard event files, in a folder named after the run below --out
    Tensorboard,
}

pub fn export(args: &ExportArgs, runs: &Path) -> Outcome {
    let run = find_run(runs, args.run.as_deref())?;
    match (args.format, &args.out) {
        (Format::Tensorboard, Some(out)) => {
            line!("{}", text::path(&tensorboard::export(&run, out)?));
            return Ok(0);
        }
        (_, Some(_)) => return Err(Failure::new(2, "--out needs --format tensorboard; rows go to stdout")),
        _ => {}
    }
    let format = if args.format == Format::Csv { RowFormat::Csv } else { RowFormat::Jsonl };
    match rows::write(&run, format, &mut BufWriter::new(io::stdout().lock())) {
        // `| head` closes the pipe, which is not a failure.
        Err(ExportError::Io { source, .. }) if source.kind() == ErrorKind::BrokenPipe => Ok(0),
        written => Ok(written.map(|()| 0)?),
    }
}
