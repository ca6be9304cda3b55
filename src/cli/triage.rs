//! `triage`: diagnoses training logs, including those of other programs.

mod causes;
mod json;
mod memory;
mod source;
mod verdict;

use super::line;
use super::{Failure, Format, Outcome, say};
use crate::triage::catalogue::Catalogue;
use crate::triage::scan::{Finding, Scan, scan};
use clap::Args;
use source::Source;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use verdict::KeeperAccount;

/// Arguments of `triage`.
#[derive(Debug, Args)]
pub struct TriageArgs {
    /// Logs, or runs, whose worker.log is read; `-` reads stdin. Defaults to the newest run
    #[arg(value_name = "LOG|RUN")]
    logs: Vec<PathBuf>,
    /// Print a table of the log's memory figures over time instead
    #[arg(long)]
    memory: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn triage(args: &TriageArgs, runs: &Path) -> Outcome {
    if args.memory {
        return memory(args, runs);
    }
    let catalogue = Catalogue::load()?;
    let names: Vec<Option<&Path>> = match args.logs.as_slice() {
        [] => vec![None],
        logs => logs.iter().map(|log| Some(log.as_path())).collect(),
    };
    let is_alone = names.len() == 1;
    let (mut entries, mut code) = (Vec::new(), 0);
    for (index, name) in names.into_iter().enumerate() {
        match diagnose(name, runs, &catalogue) {
            Ok(diagnosis) if args.format == Format::Json => entries.extend(diagnosis.entries(!is_alone)?),
            Ok(diagnosis) => diagnosis.print(index, !is_alone),
            Err(failure) if is_alone => return Err(failure),
            // The others may still tell something.
            Err(failure) => {
                say(&failure.message);
                code = failure.code;
            }
        }
    }
    if args.format == Format::Json {
        line!("{}", serde_json::to_string_pretty(&entries)?);
    }
    Ok(code)
}

fn memory(args: &TriageArgs, runs: &Path) -> Outcome {
    let ([] | [_]) = args.logs.as_slice() else {
        return Err(Failure::new(2, "--memory reads one log"));
    };
    let source = Source::find(args.logs.first().map(PathBuf::as_path), runs)?;
    memory::memory(&mut source.open()?, &source.path(), args.format)
}

/// The diagnosis of one log.
struct Diagnosis {
    /// The log, as it is called.
    name: String,
    verdict: KeeperAccount,
    scan: Scan,
}

fn diagnose(name: Option<&Path>, runs: &Path, catalogue: &Catalogue) -> Result<Diagnosis, Failure> {
    let source = Source::find(name, runs)?;
    let mut log: Box<dyn BufRead> = source.open()?;
    let scan = scan(&mut log, catalogue).map_err(|error| source.failure(&error))?;
    Ok(Diagnosis { name: source.name(), verdict: KeeperAccount::of(&source), scan })
}

impl Diagnosis {
    fn print(&self, index: usize, is_named: bool) {
        let blank = (index > 0).then(String::new);
        let heading = is_named.then(|| format!("{}:", self.name));
        for line in blank.into_iter().chain(heading).chain(self.lines()) {
            line!("{line}");
        }
    }

    fn lines(&self) -> Vec<String> {
        let Self { verdict, scan, .. } = self;
        let mut lines = verdict.lines();
        match verdict.cause() {
            // The verdict names its own cause.
            Some(cause) => {
                let others = |finding: &Finding| finding.class != cause.class;
                if scan.findings.iter().any(others) {
                    lines.extend(causes::beside_verdict(scan, others));
                } else {
                    lines.push("worker.log names no other cause.".to_owned());
                }
            }
            None if verdict.warns() && scan.findings.is_empty() && scan.own_frame.is_none() => {
                lines.push("worker.log names no cause.".to_owned());
            }
            None => return lines.into_iter().chain(causes::of_log(scan)).collect(),
        }
        lines.extend(scan.divergence.clone().filter(|_| scan.findings.is_empty()));
        lines
    }

    fn entries(&self, is_named: bool) -> Result<Vec<serde_json::Value>, Failure> {
        let file = is_named.then_some(self.name.as_str());
        let entries = json::entries(&self.verdict, &self.scan, file);
        Ok(entries.into_iter().map(serde_json::to_value).collect::<Result<_, _>>()?)
    }
}
