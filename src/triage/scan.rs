//! Scans a log line by line in bounded memory, and keeps the lines that match the catalogue.
//!
//! ```text
//! lines ─┬─▶ Catalogue ──────▶ findings ─┐
//!        ├─▶ TracebackReader ▶ exceptions ┼─▶ ranking: causes, what follows from them, earlier starts
//!        └─▶ ProgressReader ─▶ progress ──┘
//! ```

mod rows;
mod starts;

use super::catalogue::Catalogue;
use super::catalogue::entry::{CatalogueEntry, EndedBy};
use super::kernel;
use super::line::{excerpt, next_line, plain};
use super::progress::{LoggedProgress, ProgressReader};
use super::ranking::{self, Evidence, is_bad_numbers};
use super::traceback::{Exception, OwnFrame, Part, TracebackReader, frame_of};
use crate::faults::response::Response;
use crate::faults::xid;
use crate::log_metrics::TableRows;
use crate::log_metrics::prefix::{after_bar, rank_of, text_start, without_launchers, without_stamps};
use crate::protocol::cause::Damage;
use crate::protocol::class::FailureClass;
use memchr::memmem;
use rows::Row;
use serde::Serialize;
use starts::StartReader;
use std::collections::BTreeMap;
use std::io::{self, BufRead};

/// Maximum lines kept per entry: the first ones and the newest; the rest is counted.
const MAX_LINES: usize = 1000;
/// Begins the summary of torchrun.
const SUMMARY: &[u8] = b"torch.distributed.elastic";
/// In that summary, before the rank that failed first.
const BLAMES: &[u8] = b"Root Cause (first observed failure)";
/// Begin the lines that trackers print at the end of a program.
const EPILOGUES: [&[u8]; 4] = [b"wandb:", b"swanlab:", b"COMET ", b"ClearML "];
/// Lines at the end of a log that are kept for a failure that nothing explains.
const KEPT_LAST: usize = 2;
/// Bytes of them that are kept.
const LONGEST_LAST: usize = 4096;

/// A log line that matches the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The class of failure that it identifies.
    pub class: FailureClass,
    /// The line number, from 1.
    pub line: u64,
    /// The text of the line.
    pub text: String,
    /// The meaning.
    pub meaning: String,
    /// Advice for the user.
    pub advice: String,
    /// The catalogue entry's name.
    #[serde(skip)]
    pub name: String,
    /// The keeper's response.
    #[serde(skip)]
    pub response: Response,
    /// That response, in words.
    #[serde(skip)]
    pub keeper: String,
    /// Damage that no restart repairs.
    #[serde(skip)]
    pub damage: Option<Damage>,
    /// Whether the line is only a symptom of another failure.
    #[serde(skip)]
    pub symptom: bool,
    /// Whether the first occurrence may be transient.
    #[serde(skip)]
    pub transient: bool,
    /// The originator of the end.
    #[serde(skip)]
    pub ended_by: EndedBy,
    /// Whether the training went on after it, or was started again.
    #[serde(skip)]
    pub earlier: bool,
}

/// The result of a scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// The findings in log order.
    pub findings: Vec<Finding>,
    /// Total number of lines.
    pub lines: u64,
    /// Number of findings dropped beyond the limit, by entry.
    pub left_out: BTreeMap<String, u64>,
    /// The place in the user's own files where the most likely cause arose, or that the newest traceback names.
    pub own_frame: Option<OwnFrame>,
    /// The last lines that are not blank, with their numbers.
    pub last_lines: Vec<(u64, String)>,
    /// How far the training got.
    pub progress: Option<LoggedProgress>,
    /// How the loss diverged, if it did.
    pub divergence: Option<String>,
}

impl Scan {
    /// Returns the most likely cause.
    #[must_use]
    pub fn root_cause(&self) -> Option<&Finding> {
        ranking::root_cause(&self.findings)
    }

    /// Returns the finding that this place belongs to: the exception raised there, else the most likely cause.
    #[must_use]
    pub fn finding_at(&self, frame: &OwnFrame) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.line == frame.exception_line).or_else(|| self.root_cause())
    }
}

/// Scans a log.
///
/// # Errors
/// Returns an error when the log cannot be read.
pub fn scan(log: &mut impl BufRead, catalogue: &Catalogue) -> io::Result<Scan> {
    let mut reader = Reader {
        catalogue,
        scan: Scan::default(),
        kept: BTreeMap::new(),
        rows: BTreeMap::new(),
        tracebacks: TracebackReader::default(),
        progress: ProgressReader::default(),
        launcher: Launcher::default(),
        starts: StartReader::default(),
        tables: TableRows::default(),
        after_exception: 0,
        ends_ignored: false,
        last_lines: Default::default(),
    };
    let mut line = Vec::new();
    while next_line(log, &mut line)? {
        reader.push(&plain(&line));
    }
    Ok(reader.finish())
}

/// A log that is being scanned.
struct Reader<'a> {
    catalogue: &'a Catalogue,
    scan: Scan,
    /// Number of findings by entry, and the place of the newest.
    kept: BTreeMap<String, (usize, usize)>,
    /// The newest rows of findings, by entry.
    rows: BTreeMap<String, Row>,
    tracebacks: TracebackReader,
    progress: ProgressReader,
    launcher: Launcher,
    starts: StartReader,
    tables: TableRows,
    /// Lines after the newest exception that are neither blank nor a part of another traceback or a launcher's summary.
    after_exception: u64,
    /// Whether the newest traceback changes nothing, and nothing follows it.
    ends_ignored: bool,
    /// The last lines that are not blank, with their numbers; 0 where there is none.
    last_lines: [(u64, Vec<u8>); KEPT_LAST],
}

impl Reader<'_> {
    fn push(&mut self, line: &[u8]) {
        self.scan.lines += 1;
        let number = self.scan.lines;
        let unstamped = without_stamps(line);
        let words = without_launchers(line);
        let part = self.tracebacks.push(unstamped, number);
        let is_summary = self.launcher.push(line, part);
        match part {
            Part::Exception if !is_summary => self.after_exception = 0,
            Part::Outside if !is_summary && self.after_exception <= ranking::LAST => {
                self.after_exception += u64::from(!is_epilogue(&line[text_start(line)..]));
            }
            _ => {}
        }
        self.ends_ignored = part == Part::Ignored || self.ends_ignored && line.iter().all(u8::is_ascii_whitespace);
        self.progress.push(words, number);
        self.starts.push(words, number, self.progress.has_begun());
        self.keep_last(line);
        let row = if self.tables.may_read(line) { self.tables.read(&line[text_start(line)..]) } else { None };
        let in_row = || {
            find_in(row?.as_bytes(), number, self.catalogue).map(|found| Finding { text: excerpt(line, 0), ..found })
        };
        let finding = find_in(line, number, self.catalogue).or_else(in_row).filter(|_| part != Part::Ignored);
        let is_end = finding.as_ref().map_or(part == Part::Exception, |finding| !is_bad_numbers(finding.class));
        if finding.is_some() || is_end {
            self.progress.note_failure(number, is_end);
            if is_end {
                self.starts.note_end();
            }
        }
        if let Some(finding) = finding {
            self.keep(finding);
        }
    }

    fn keep_last(&mut self, line: &[u8]) {
        let drawn = line.rsplit(|byte| *byte == b'\r').next().unwrap_or_default();
        if drawn.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        self.last_lines.rotate_left(1);
        let [.., (number, newest)] = &mut self.last_lines;
        *number = self.scan.lines;
        newest.clear();
        newest.extend(&drawn[..drawn.len().min(LONGEST_LAST)]);
    }

    fn keep(&mut self, finding: Finding) {
        let row = self.rows.entry(finding.name.clone()).or_default();
        if self.progress.went_on_after(row.line()) {
            *row = Row::default();
        }
        row.push(&finding);
        let findings = &mut self.scan.findings;
        let (count, newest) = self.kept.entry(finding.name.clone()).or_default();
        *count += 1;
        if *count > MAX_LINES {
            *self.scan.left_out.entry(finding.name.clone()).or_default() += 1;
            findings[*newest] = finding;
        } else {
            *newest = findings.len();
            findings.push(finding);
        }
    }

    fn finish(mut self) -> Scan {
        let last = self.last_lines.iter().filter(|(number, _)| *number > 0);
        self.scan.last_lines = last.map(|(number, line)| (*number, excerpt(line, 0))).collect();
        let mut exceptions = self.tracebacks.finish();
        if exceptions.is_empty() && !self.ends_ignored && !self.progress.finished_after(0) {
            let last = self.scan.last_lines.last();
            exceptions.extend(
                last.and_then(|(line, text)| Exception::of_last_line(&text[text_start(text.as_bytes())..], *line)),
            );
        }
        let evidence = Evidence {
            exceptions: &exceptions,
            blamed: self.launcher.blamed,
            after_exception: self.after_exception,
            went_on_after: &|line| self.starts.began_after(line) || self.progress.went_on_after(line),
            went_on_long_after: &|line| self.starts.began_after(line) || self.progress.went_on_long_after(line),
            finished_after: &|line| self.progress.finished_after(line),
            finished_before: &|line| self.progress.finished_before(line),
        };
        let mut findings = self.scan.findings;
        let rows = |finding: &Finding| self.rows.get(&finding.name).map_or(0, Row::events);
        findings.retain(|finding| rows(finding) >= self.catalogue.needs_in_a_row(&finding.name));
        findings.sort_by_key(|finding| finding.line);
        self.scan.findings = ranking::rank(findings, &evidence);
        (self.scan.progress, self.scan.divergence) = self.progress.finish();
        let own_frame = match self.scan.root_cause() {
            Some(root) => frame_of(&exceptions, root.line, rank_of(&root.text)),
            None => exceptions
                .last()
                .filter(|last| !self.progress.went_on_after(last.line))
                .and_then(|last| last.own.as_ref()),
        };
        self.scan.own_frame = own_frame.cloned();
        self.scan
    }
}

/// Reports whether a line is blank, or one that trackers and bars print while a program ends.
fn is_epilogue(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
        || EPILOGUES.iter().any(|words| line.starts_with(words))
        || memmem::find(line, b"%|").is_some()
        || memmem::find(line, b"resource_tracker").is_some()
}

/// The account of torchrun about its ranks.
#[derive(Debug, Default)]
struct Launcher {
    /// Whether its summary has begun.
    is_summary: bool,
    /// Whether it is about to name the rank that failed first.
    blames: bool,
    blamed: Option<u32>,
}

impl Launcher {
    /// Reads a line; reports whether it belongs to the summary.
    fn push(&mut self, line: &[u8], part: Part) -> bool {
        let contains = |words: &[u8]| memmem::find(line, words).is_some();
        // An exception of the script ends the summary of an earlier start.
        self.is_summary = contains(SUMMARY) || self.is_summary && part != Part::Exception;
        if self.is_summary && self.blamed.is_none() {
            self.blames |= contains(BLAMES);
            self.blamed = std::str::from_utf8(line).ok().filter(|_| self.blames).and_then(parse_rank);
        }
        self.is_summary
    }
}

/// Parses `  rank      : 1 (local_rank: 1)`.
fn parse_rank(line: &str) -> Option<u32> {
    let rest = line.trim_start().strip_prefix("rank")?.trim_start().strip_prefix(':')?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the catalogue's finding for one line.
#[must_use]
pub fn scan_line(line: &[u8], number: u64, catalogue: &Catalogue) -> Option<Finding> {
    find_in(&plain(line), number, catalogue).filter(|finding| catalogue.needs_in_a_row(&finding.name) == 1)
}

fn find_in(plain: &[u8], number: u64, catalogue: &Catalogue) -> Option<Finding> {
    // A progress bar redraws itself within one line: each drawing is examined separately.
    plain.split(|byte| *byte == b'\r').find_map(|part| {
        let candidates = catalogue.candidates(part);
        if candidates.is_empty() {
            return None;
        }
        let from = |start: usize| {
            let hit = catalogue.find_among(&candidates, &part[start..])?;
            Some(build_finding(hit.entry, part, start + hit.at, number))
        };
        let behind = |start: usize| Some(start).filter(|start| *start > 0).and_then(from);
        from(0).or_else(|| behind(text_start(part))).or_else(|| after_bar(part).and_then(behind))
    })
}

fn build_finding(entry: &CatalogueEntry, line: &[u8], at: usize, number: u64) -> Finding {
    let mut finding = Finding {
        class: entry.class,
        line: number,
        text: excerpt(line, at),
        meaning: entry.meaning.clone(),
        advice: entry.advice.clone(),
        name: entry.name.clone(),
        response: entry.response(),
        keeper: entry.describe_response(),
        damage: entry.damage,
        symptom: entry.symptom,
        transient: entry.transient,
        ended_by: entry.ended_by,
        earlier: false,
    };
    if entry.class == FailureClass::Xid {
        explain_xid(&mut finding, &String::from_utf8_lossy(line));
    }
    finding
}

/// Replaces the general text of Xid errors by that of the number in the line.
fn explain_xid(finding: &mut Finding, line: &str) {
    let Some((_, number)) = kernel::parse_xid(line) else { return };
    finding.name = format!("xid {number}");
    finding.meaning = format!("Xid {number}: {}", xid::meaning(number));
    finding.response = xid::respond_to_line(number, line);
    finding.keeper = finding.response.to_string();
    let Some(known) = xid::find(number) else { return };
    finding.symptom = finding.response == Response::Note;
    finding.advice = match xid::action(line).filter(|_| number == xid::ACTION && !finding.symptom) {
        Some(action) => format!("do what the driver asks for: {action}"),
        None => known.advice.clone(),
    };
}

#[cfg(test)]
mod tests;
