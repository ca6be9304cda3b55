//! `triage`: diagnoses a training log, including those of other programs.

mod memory;

use super::line;
use super::{Failure, Format, Outcome};
use crate::format::counted;
use crate::store::reader::Reader;
use crate::store::run_dir::{RunDir, RunDirError};
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
    /// The log, or a run, whose worker.log is read; `-` reads stdin. Defaults to the newest run
    #[arg(value_name = "LOG")]
    log: Option<PathBuf>,
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

/// What is diagnosed.
enum Source {
    Stdin,
    File(PathBuf),
    /// The log of the run's scripts.
    Run(RunDir),
}

pub fn triage(args: &TriageArgs, runs: &Path) -> Outcome {
    let source = Source::find(args.log.as_deref(), runs)?;
    let path = source.path();
    let name = text::path(&path);
    let mut log = source.open().map_err(|error| Failure::new(1, format!("{name}: {error}")))?;
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
            let keeper = if matches!(source, Source::Run(_)) { "the keeper" } else { "in a run, the keeper" };
            for line in source.verdict().into_iter().chain(format_causes(&found, keeper)) {
                line!("{line}");
            }
        }
    }
    Ok(0)
}

impl Source {
    fn find(named: Option<&Path>, runs: &Path) -> Result<Self, Failure> {
        let Some(named) = named else { return Ok(Self::Run(RunDir::find(runs, None)?)) };
        if named.as_os_str() == "-" {
            return Ok(Self::Stdin);
        }
        let run = named.to_str().filter(|_| !named.is_file()).map(|name| RunDir::find(runs, Some(name)));
        match run {
            Some(Ok(run)) => Ok(Self::Run(run)),
            Some(Err(RunDirError::Unknown { .. } | RunDirError::None(_))) if !named.exists() => {
                let (name, runs) = (text::path(named), text::path(runs));
                Err(Failure::new(
                    1,
                    format!("{name} is neither a file nor a run in {runs}; `downshift runs` lists the runs"),
                ))
            }
            Some(Err(error @ RunDirError::Several { .. })) => Err(error.into()),
            _ => Ok(Self::File(named.to_owned())),
        }
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::Stdin => PathBuf::from("-"),
            Self::File(path) => path.clone(),
            Self::Run(run) => run.file("worker.log"),
        }
    }

    fn open(&self) -> io::Result<Box<dyn BufRead>> {
        match self {
            Self::Stdin => Ok(Box::new(io::stdin().lock())),
            Self::File(_) | Self::Run(_) => Ok(Box::new(BufReader::with_capacity(1 << 18, open(&self.path())?))),
        }
    }

    /// Returns the keeper's verdict on the run's last attempt that failed. It knows more than the log: exit codes, the
    /// kernel's messages, what it did itself.
    fn verdict(&self) -> Vec<String> {
        let Self::Run(run) = self else { return Vec::new() };
        let causes = Reader::open(run).map(|store| store.causes()).unwrap_or_default();
        let Some((attempt, cause)) = causes.into_iter().next_back() else { return Vec::new() };
        let mut lines = vec![format!("attempt {attempt} of {} ended: {}", run.name(), cause.class)];
        lines.extend(cause.evidence.iter().map(|line| format!("  {}", text::escape_line(line))));
        lines.extend((!cause.advice.is_empty()).then(|| format!("  do: {}", cause.advice)));
        lines.extend([String::new(), "worker.log of all attempts:".to_owned()]);
        lines
    }
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

/// Formats the causes in order of first appearance, after the most likely one. `keeper` begins the sentences about its
/// responses.
fn format_causes(scan: &Scan, keeper: &str) -> Vec<String> {
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
        out.push(format!("  {keeper} {}", first.keeper));
        // The place belongs to the most likely cause, which comes first.
        out.extend(own_frame.iter().filter(|_| index == 0).map(|frame| format!("  {frame}")));
    }
    out
}
