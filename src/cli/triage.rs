//! `triage`: diagnoses a training log, including those of other programs.

mod memory;

use super::line;
use super::{Failure, Format, Outcome};
use crate::format::counted;
use crate::protocol::class::FailureClass;
use crate::protocol::control::RunState;
use crate::protocol::worker::Level;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::{RunDir, RunDirError};
use crate::triage::catalogue::Catalogue;
use crate::triage::scan::{Finding, Scan, scan};
use crate::triage::traceback::OwnFrame;
use crate::untrusted::file::open;
use crate::untrusted::text;
use clap::Args;
use rustix::fs::{FileType, fstat};
use serde::Serialize;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Newest journal entries that are looked at.
const JOURNAL: usize = 200;
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
    /// The place in the user's own files where it arose; of one finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    own_frame: Option<&'a OwnFrame>,
}

/// The log that is diagnosed.
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
            let verdict = source.verdict();
            // The verdict names its own cause.
            let others = |finding: &Finding| Some(finding.class) != verdict.class;
            let lines = match verdict.class {
                Some(_) if found.findings.iter().any(others) => format_causes(&found, others),
                Some(_) => vec!["worker.log names no other cause.".to_owned()],
                None if verdict.warned && found.findings.is_empty() && found.own_frame.is_none() => {
                    vec!["worker.log names no cause.".to_owned()]
                }
                None => format_causes(&found, |_| true),
            };
            let diverged = found.divergence.clone().filter(|_| found.findings.is_empty());
            for line in verdict.lines.into_iter().chain(lines).chain(diverged) {
                line!("{line}");
            }
        }
    }
    Ok(0)
}

impl Source {
    fn find(named: Option<&Path>, runs: &Path) -> Result<Self, Failure> {
        let Some(named) = named else {
            if has_input() {
                let fix = "`downshift triage -` reads it, `downshift triage RUN` the log of a run";
                return Err(Failure::new(2, format!("stdin is a file or a pipe; {fix}")));
            }
            return Ok(Self::Run(RunDir::find(runs, None)?));
        };
        if named.as_os_str() == "-" {
            return Ok(Self::Stdin);
        }
        let run = named.to_str().filter(|_| !named.is_file()).map(|name| RunDir::find(runs, Some(name)));
        match run {
            Some(Ok(run)) => Ok(Self::Run(run)),
            Some(Err(error @ (RunDirError::Unknown { .. } | RunDirError::Misspelt { .. } | RunDirError::None(_))))
                if !named.exists() =>
            {
                let (name, runs, meant) = (text::path(named), text::path(runs), error.suggestion());
                Err(Failure::new(
                    1,
                    format!("{name} is neither a file nor a run in {runs}{meant}; `downshift runs` lists the runs"),
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

    /// Returns how the run is, and the keeper's verdict on its last attempt that failed. The keeper knows more than the
    /// log: exit codes, the kernel's messages, what it did itself.
    fn verdict(&self) -> Verdict {
        let Self::Run(run) = self else { return Verdict::default() };
        let status = live_status(run);
        let state = status.as_ref().map(|status| format!("{}: {}", run.name(), status.state.word()));
        let mut lines: Vec<String> = state.into_iter().collect();
        let causes = Reader::open(run).map(|store| store.causes()).unwrap_or_default();
        let last = causes.into_iter().next_back();
        if let Some((attempt, cause)) = &last {
            let is_newest = status.as_ref().filter(|status| status.attempts == *attempt);
            let fate = match is_newest.map(|status| status.state) {
                Some(RunState::Finished) => "finished in spite of a fault",
                Some(state) if state.is_moving() => "goes on in spite of a fault",
                _ => "ended",
            };
            lines.push(format!("attempt {attempt} {fate}: {}", cause.class));
            lines.extend(cause.evidence.iter().map(|line| format!("  {}", text::escape_line(line))));
            lines.extend((!cause.advice.is_empty()).then(|| format!("  do: {}", cause.advice)));
        }
        let warning = if last.is_none() { last_warning(run) } else { None };
        let warned = warning.is_some();
        lines.extend(warning.map(|warning| format!("last warning: {warning}")));
        if !lines.is_empty() {
            lines.push(String::new());
        }
        Verdict { lines, class: last.map(|(_, cause)| cause.class), warned }
    }
}

/// The keeper's account of a run.
#[derive(Debug, Default)]
struct Verdict {
    /// The text.
    lines: Vec<String>,
    /// Class of the last attempt that failed.
    class: Option<FailureClass>,
    /// No attempt failed, but the text names a warning.
    warned: bool,
}

/// Returns the newest warning of a run: of a command that hangs and is left alone, say.
fn last_warning(run: &RunDir) -> Option<String> {
    let journal = Reader::open(run).ok()?.journal(JOURNAL).ok()?;
    let newest = journal.into_iter().filter(|row| row.level >= Level::Warn).max_by_key(|row| row.id)?;
    Some(text::escape_line(&newest.text).into_owned())
}

/// Reports whether stdin is a file or a pipe.
fn has_input() -> bool {
    let kind = fstat(io::stdin()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::RegularFile))
}

fn reported(scan: &Scan) -> Vec<Reported<'_>> {
    let root = scan.root_cause();
    let mark = |finding| root.is_some_and(|root| std::ptr::eq(root, finding));
    let own_frame = scan.own_frame.as_ref();
    let of_frame = own_frame.and_then(|frame| scan.finding_at(frame));
    let arose_there = |finding| of_frame.is_some_and(|found| std::ptr::eq(found, finding));
    let findings = scan.findings.iter();
    findings
        .map(|finding| Reported {
            finding,
            keeper: &finding.keeper,
            symptom: finding.symptom,
            likely: mark(finding),
            own_frame: own_frame.filter(|_| arose_there(finding)),
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

/// Advice where the log tells nothing.
const SILENT_END: &str = "A process that is killed, hangs or calls exit writes nothing: look at its exit code (137: SIGKILL) \
                          and at `dmesg`, where the kernel names what it killed for memory";

/// Formats the causes that are wanted, in order of first appearance after the most likely one.
fn format_causes(scan: &Scan, is_wanted: impl Fn(&Finding) -> bool) -> Vec<String> {
    let lines = scan.lines;
    let describe = |frame: &OwnFrame, what: String| format!("your code: {what}  (line {})", frame.exception_line);
    let root = scan.root_cause().filter(|root| is_wanted(root));
    let first = root.or_else(|| scan.findings.iter().find(|finding| is_wanted(finding)));
    let Some(first) = first else {
        if lines == 0 {
            return vec!["The log is empty.".to_owned(), SILENT_END.to_owned()];
        }
        let none = format!("No known failure in {}.", counted(lines, "line"));
        let own_frame = scan.own_frame.as_ref().map(|frame| describe(frame, frame.describe_with_exception()));
        return vec![none, own_frame.unwrap_or_else(|| SILENT_END.to_owned())];
    };
    let own_frame = scan.own_frame.as_ref().filter(|_| root.is_some());
    let of_frame = own_frame.and_then(|frame| scan.finding_at(frame)).map(|finding| &finding.name);
    let own_frame = own_frame.map(|frame| describe(frame, frame.to_string()));
    let mut names: Vec<&str> = vec![&first.name];
    for finding in scan.findings.iter().filter(|finding| is_wanted(finding)) {
        if !names.contains(&finding.name.as_str()) {
            names.push(&finding.name);
        }
    }
    let mut out = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let of_it: Vec<&Finding> = scan.findings.iter().filter(|finding| finding.name == *name).collect();
        let Some(first) = of_it.first() else { continue };
        let rank = match index {
            0 if names.len() > 1 && root.is_some() => "  (most likely the cause)",
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
        out.push(format!("  in a run, the keeper {}", first.keeper));
        out.extend(own_frame.iter().filter(|_| of_frame == Some(&first.name)).map(|frame| format!("  {frame}")));
    }
    out
}
