//! `report`: writes a run as one page for a browser, or several runs as one.

mod several;

use super::client::current_status;
use super::trial::parse_duration;
use super::{Failure, Outcome, Which, find_run, line};
use crate::export::report::{Taken, write_page};
use crate::format::bytes;
use crate::store::run_dir::write_whole;
use crate::untrusted::text;
use clap::Args;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    #[command(flatten)]
    which: Which,
    /// All runs of the last time instead, such as those of a night: `--since 12h`; also prints them
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "run")]
    since: Option<Duration>,
    /// The page [default: RUN-report.html here, or runs-report.html]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub fn report(args: &ReportArgs, runs: &Path) -> Outcome {
    let taken = Taken { now_ms: Timestamp::now().as_millisecond(), zone: TimeZone::system() };
    let (name, page) = if let Some(since) = args.since {
        ("runs".to_owned(), several::report(runs, since, &taken)?)
    } else {
        let run = find_run(runs, args.which.run.as_deref())?;
        (run.name(), write_page(&run, current_status(&run), &taken)?)
    };
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{name}-report.html")));
    write_whole(&out, page.as_bytes()).map_err(|error| Failure::new(1, format!("{}: {error}", text::path(&out))))?;
    line!("{}: {}. Review it before you share it.", text::path(&out), bytes(page.len() as u64));
    Ok(0)
}
