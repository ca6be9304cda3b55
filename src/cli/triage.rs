//! `triage`: diagnoses a training log, including those of other programs.

mod memory;

use super::line;
use super::{Failure, Format, Outcome};
use crate::format::counted;
use crate::store::run_dir::RunDir;
use crate::triage::catalogue::Catalogue;
use crate::triage::scan::{Finding, Scan, scan};
use crate::triage::traceback::OwnFrame;
use crate::untrusted::file::open;
use crate::untrusted::text;
use clap::Args;
use serde::Serialize;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Maximum lines listed per cause.
const LISTED: usize = 3;

/// Arguments of `triage`.
#[derive(Debug, Args)]
pub struct TriageArgs {
    /// The log, or a run, whose worker.log is read; `-` reads stdin
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// Print a table of the log's memory figures over time instead
    #[arg(long)]
    memory: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// A finding in JSON, with additional fields.
#[derive(Debug, Serialize)]
struct Reported<'a> {
    #[serde(flatten)]
    finding: &'a Finding,
    /// The keeper's response.
    keeper: &'a str,
    /// Whether it is only a symptom of another failure.
    symptom: bool,
    /// Whether it is the most likely cause; true for one finding.
    likely: bool,
    /// The place in the user's own files where the most likely cause arose.
    #[serde(skip_serializing_if = "Option::is_none")]
    own_frame: Option<&'a OwnFrame>,
}

pub fn triage(args: &TriageArgs, runs: &Path) -> Outcome {
    let path = log_of(&args.log, runs);
    let name = text::path(&path);
    let mut log: Box<dyn BufRead> = if args.log.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        let file = open(&path).map_err(|error| Failure::new(1, format!("{name}: {error}")))?;
        Box::new(BufReader::with_capacity(1 << 18, file))
    };
    let start = log.fill_buf().map_err(|error| Failure::new(1, format!("{name}: {error}")))?;
    if let Some((packer, unpack)) = packed(start) {
        let message = format!("{name} is compressed with {packer}; run `{unpack} LOG | downshift triage -`");
        return Err(Failure::new(1, message));
    }
    if args.memory {
        return memory::memory(&mut log, &path, args.format);
    }
    let catalogue = Catalogue::load()?;
    let found = scan(&mut log, &catalogue).map_err(|error| Failure::new(1, format!("{name}: {error}")))?;
    match args.format {
        Format::Json => line!("{}", serde_json::to_string_pretty(&reported(&found))?),
        Format::Text => {
            for line in format_causes(&found) {
                line!("{line}");
            }
        }
    }
    Ok(0)
}

/// Returns the log: a file of this name, or the log of the run's scripts.
fn log_of(named: &Path, runs: &Path) -> PathBuf {
    let run = named.to_str().filter(|name| !named.is_file() && *name != "-").map(|name| RunDir::find(runs, Some(name)));
    run.and_then(Result::ok).map_or_else(|| named.to_owned(), |run| run.file("worker.log"))
}

fn reported(scan: &Scan) -> Vec<Reported<'_>> {
    let root = scan.root_cause();
    let mark = |finding| root.is_some_and(|root| std::ptr::eq(root, finding));
    let findings = scan.findings.iter();
    findings
        .map(|finding| Reported {
            finding,
            keeper: &finding.keeper,
            symptom: finding.symptom,
            likely: mark(finding),
            own_frame: scan.own_frame().filter(|_| mark(finding)),
        })
        .collect()
}

/// Detects a compressed file by its first bytes; returns the format and the command that unpacks it.
fn packed(start: &[u8]) -> Option<(&'static str, &'static str)> {
    let known: [(&[u8], &str, &str); 5] = [
        (b"\x1f\x8b", "gzip", "zcat"),
        (b"\x28\xb5\x2f\xfd", "zstd", "zstdcat"),
        (b"\xfd7zXZ\0", "xz", "xzcat"),
        (b"BZh", "bzip2", "bzcat"),
        (b"PK\x03\x04", "zip", "unzip -p"),
    ];
    known.iter().find(|(magic, ..)| start.starts_with(magic)).map(|(_, packer, unpack)| (*packer, *unpack))
}

/// Formats the causes in order of first appearance, after the most likely one.
fn format_causes(scan: &Scan) -> Vec<String> {
    let lines = scan.lines;
    let describe = |frame: &OwnFrame, what: String| format!("your code: {what}  (line {})", frame.exception_line);
    let Some(root) = scan.root_cause() else {
        let none = format!("No known failure in {}.", counted(lines, "line"));
        let own_frame = scan.own_frame().map(|frame| describe(frame, frame.describe_with_exception()));
        return [none].into_iter().chain(own_frame).collect();
    };
    let own_frame = scan.own_frame().map(|frame| describe(frame, frame.to_string()));
    let mut names: Vec<&str> = vec![&root.name];
    for finding in &scan.findings {
        if !names.contains(&finding.name.as_str()) {
            names.push(&finding.name);
        }
    }
    let mut out = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let of_it: Vec<&Finding> = scan.findings.iter().filter(|finding| finding.name == *name).collect();
        let Some(first) = of_it.first() else { continue };
        let rank = match index {
            0 if names.len() > 1 => "  (most likely the cause)",
            _ if index > 0 && first.symptom => "  (follows from another failure)",
            _ => "",
        };
        if index > 0 {
            out.push(String::new());
        }
        out.push(format!("{}: {}{rank}", first.class.word(), first.meaning));
        out.extend(of_it.iter().take(LISTED).map(|finding| format!("  line {}: {}", finding.line, finding.text)));
        let more = of_it.len().saturating_sub(LISTED) as u64 + scan.left_out.get(*name).copied().unwrap_or(0);
        if more > 0 {
            out.push(format!("  and {more} more lines like these"));
        }
        out.push(format!("  do: {}", first.advice));
        out.push(format!("  downshift {}", first.keeper));
        // The place belongs to the most likely cause, which comes first.
        out.extend(own_frame.iter().filter(|_| index == 0).map(|frame| format!("  {frame}")));
    }
    out
}
