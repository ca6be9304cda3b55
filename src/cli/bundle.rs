//! `bundle`: writes one archive for a bug report.

use super::client::current_status;
use super::{Failure, Outcome, Which, find_run, line};
use crate::diagnose::bundle::pack;
use crate::untrusted::text;
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments of `bundle`.
#[derive(Debug, Args)]
pub struct BundleArgs {
    #[command(flatten)]
    which: Which,
    /// The archive [default: RUN-bundle.tar.gz here]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub fn bundle(args: &BundleArgs, runs: &Path) -> Outcome {
    let run = find_run(runs, args.which.run.as_deref())?;
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{}-bundle.tar.gz", run.name())));
    let bundle = pack(&run, runs, current_status(&run).as_ref())?;
    fs::write(&out, &bundle.archive).map_err(|error| Failure::new(1, format!("{}: {error}", text::path(&out))))?;
    for (name, bytes) in &bundle.files {
        line!("{bytes:>9}  {name}");
    }
    for (name, why) in &bundle.left_out {
        line!(" left out  {name}: {why}");
    }
    line!("\n{}: {} bytes. Review it before you share it.", text::path(&out), bundle.archive.len());
    Ok(0)
}
