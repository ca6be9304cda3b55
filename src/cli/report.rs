//! `report`: writes a run as one page for a browser.

use super::client::current_status;
use super::{Failure, Outcome, Which, find_run, line};
use crate::export::report::{Taken, write_page};
use crate::format::bytes;
use crate::store::run_dir::write_whole;
use crate::untrusted::text;
use clap::Args;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::path::{Path, PathBuf};

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    #[command(flatten)]
    which: Which,
    /// The page [default: RUN-report.html here]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub fn report(args: &ReportArgs, runs: &Path) -> Outcome {
    let run = find_run(runs, args.which.run.as_deref())?;
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{}-report.html", run.name())));
    let taken = Taken { now_ms: Timestamp::now().as_millisecond(), zone: TimeZone::system() };
    let page = write_page(&run, current_status(&run), &taken)?;
    write_whole(&out, page.as_bytes()).map_err(|error| Failure::new(1, format!("{}: {error}", text::path(&out))))?;
    line!("{}: {}. Review it before you share it.", text::path(&out), bytes(page.len() as u64));
    Ok(0)
}
