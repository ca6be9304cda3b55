//! Scans a log line by line in bounded memory, and keeps the lines that match the catalogue.

use super::catalogue::{Catalogue, Entry};
use super::kernel;
use super::traceback::{OwnFrame, TracebackReader, frame_of};
use crate::protocol::class::FailureClass;
use crate::protocol::xid as xid154;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, BufRead};

/// Maximum bytes examined per line.
const MAX_LINE: usize = 64 << 10;
/// Maximum lines kept per entry; the rest is counted.
const MAX_LINES: usize = 1000;
/// Maximum characters of an excerpt.
const SHOWN: usize = 400;
/// Lines that may follow the exception that ended a log, before the summary of a launcher.
const LAST: u64 = 5;
/// Begins the summary of torchrun.
const SUMMARY: &[u8] = b"torch.distributed.elastic";
/// Lines at the end of a log that are kept for a failure that nothing explains.
const KEPT_LAST: usize = 2;

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
    pub keeper: String,
    /// Whether the line is only a symptom of another failure.
    #[serde(skip)]
    pub symptom: bool,
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
    /// The last frame in the user's own files of each Python traceback.
    pub frames: Vec<OwnFrame>,
    /// The last lines that are not blank, with their numbers.
    pub last_lines: Vec<(u64, String)>,
    /// Lines after the newest exception that are neither blank nor a launcher's summary.
    after_exception: u64,
}

impl Scan {
    /// Returns the most likely cause.
    #[must_use]
    pub fn root_cause(&self) -> Option<&Finding> {
        root_cause(&self.findings)
    }

    /// Returns the place in the user's own files where the most likely cause arose.
    #[must_use]
    pub fn own_frame(&self) -> Option<&OwnFrame> {
        let line = self.root_cause().map_or(u64::MAX, |root| root.line);
        frame_of(&self.frames, line)
    }

    /// Returns the finding that this place belongs to: the exception raised there, else the most likely cause.
    #[must_use]
    pub fn finding_at(&self, frame: &OwnFrame) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.line == frame.exception_line).or_else(|| self.root_cause())
    }

    fn keep_last(&mut self, line: &[u8]) {
        let plain = strip_colours(line);
        let drawn = plain.rsplit(|byte| *byte == b'\r').next().unwrap_or_default();
        let text = excerpt(drawn, 0);
        if text.trim().is_empty() {
            return;
        }
        if self.last_lines.len() == KEPT_LAST {
            self.last_lines.remove(0);
        }
        self.last_lines.push((self.lines, text));
    }

    /// Returns the exception that ended the log, unless the catalogue explains it or names another cause of an end. Bad
    /// numbers alone end no script.
    fn unexplained_exception(&self, catalogue: &Catalogue) -> Option<Finding> {
        let frame = self.frames.last().filter(|_| self.after_exception <= LAST)?;
        let ends_script = |cause: &Finding| !cause.symptom && !is_bad_numbers(cause.class);
        let is_explained = self.findings.iter().any(|cause| ends_script(cause) || cause.line == frame.exception_line);
        let class = FailureClass::Exception;
        (!is_explained && !frame.exception.is_empty()).then(|| Finding {
            class,
            line: frame.exception_line,
            text: frame.exception.clone(),
            meaning: "the log ends with an exception of the script".to_owned(),
            advice: catalogue.class_advice(class).unwrap_or_default().to_owned(),
            name: class.word().to_owned(),
            keeper: catalogue.keeper_response(class).to_owned(),
            // A script may check its numbers itself.
            symptom: tells_bad_numbers(&frame.exception) || tells_bad_numbers(&frame.code),
        })
    }
}

/// Returns the most likely cause: the first finding that explains itself. Bad numbers alone end no script, and a kill gives
/// no reason, so they rank behind; symptoms of other failures rank last.
#[must_use]
pub fn root_cause(findings: &[Finding]) -> Option<&Finding> {
    findings.iter().min_by_key(|finding| match (finding.symptom, finding.class) {
        (true, _) => 3,
        (false, FailureClass::Killed) => 2,
        (false, class) => u8::from(is_bad_numbers(class)),
    })
}

/// Reports whether an exception, or the line that raised it, is about numbers that are not finite.
fn tells_bad_numbers(text: &str) -> bool {
    let words = ["nan", "nans", "isnan", "finite", "isfinite", "nonfinite"];
    text.split(|letter: char| !letter.is_ascii_alphabetic())
        .any(|word| words.iter().any(|known| word.eq_ignore_ascii_case(known)))
}

fn is_bad_numbers(class: FailureClass) -> bool {
    matches!(class, FailureClass::NonFinite | FailureClass::LossSpike)
}

/// Scans a log.
///
/// # Errors
/// Returns an error when the log cannot be read.
pub fn scan(log: &mut impl BufRead, catalogue: &Catalogue) -> io::Result<Scan> {
    let mut scan = Scan::default();
    let mut kept: BTreeMap<String, usize> = BTreeMap::new();
    let mut line = Vec::new();
    let (mut tracebacks, mut is_summary) = (TracebackReader::default(), false);
    while next_line(log, &mut line)? {
        scan.lines += 1;
        let ends_traceback = tracebacks.push(&line, scan.lines);
        is_summary = !ends_traceback && (is_summary || line.windows(SUMMARY.len()).any(|part| part == SUMMARY));
        let is_blank = line.iter().all(u8::is_ascii_whitespace);
        if ends_traceback {
            scan.after_exception = 0;
        } else {
            scan.after_exception += u64::from(!is_blank && !is_summary);
        }
        scan.keep_last(&line);
        let Some(finding) = scan_line(&line, scan.lines, catalogue) else { continue };
        let count = kept.entry(finding.name.clone()).or_default();
        *count += 1;
        if *count > MAX_LINES {
            *scan.left_out.entry(finding.name).or_default() += 1;
        } else {
            scan.findings.push(finding);
        }
    }
    scan.frames = tracebacks.finish();
    let exception = scan.unexplained_exception(catalogue);
    scan.findings.extend(exception);
    Ok(scan)
}

/// Returns the catalogue's finding for one line.
#[must_use]
pub fn scan_line(line: &[u8], number: u64, catalogue: &Catalogue) -> Option<Finding> {
    let plain = strip_colours(line);
    // A progress bar redraws itself within one line: each drawing is examined separately.
    plain.split(|byte| *byte == b'\r').find_map(|part| {
        let hit = catalogue.find(part)?;
        Some(build_finding(hit.entry, part, hit.at, number, catalogue))
    })
}

fn build_finding(entry: &Entry, line: &[u8], at: usize, number: u64, catalogue: &Catalogue) -> Finding {
    let text = excerpt(line, at);
    let keeper = entry.keeper.clone().unwrap_or_else(|| catalogue.keeper_response(entry.class).to_owned());
    let mut finding = Finding {
        class: entry.class,
        line: number,
        text,
        meaning: entry.meaning.clone(),
        advice: entry.advice.clone(),
        name: entry.name.clone(),
        keeper,
        symptom: entry.symptom,
    };
    if entry.class == FailureClass::Xid
        && let Some((_, number)) = kernel::parse_xid(&String::from_utf8_lossy(line))
    {
        explain_xid(&mut finding, number, &String::from_utf8_lossy(line), catalogue);
    }
    finding
}

/// Replaces the general text of Xid errors by that of this number.
fn explain_xid(finding: &mut Finding, number: u32, text: &str, catalogue: &Catalogue) {
    finding.name = format!("xid {number}");
    let Some(xid) = catalogue.find_xid(number) else {
        finding.meaning = format!("Xid {number}, which is not in the catalogue");
        "records it; if the worker ends, restarts it".clone_into(&mut finding.keeper);
        return;
    };
    finding.meaning = format!("Xid {number}: {}", xid.meaning);
    finding.advice.clone_from(&xid.advice);
    finding.symptom = xid.secondary;
    let asks_for_action = number == xid154::ACTION && !xid154::asks_for_nothing(number, text);
    let response = if asks_for_action || !xid.restart && !xid.secondary {
        "stops, keeps all data and alerts you: no rung helps"
    } else if xid.secondary {
        "records it and continues"
    } else {
        "restarts; if kernels are the cause, on a rung that relieves kernels"
    };
    response.clone_into(&mut finding.keeper);
    if asks_for_action {
        finding.symptom = false;
        if let Some(action) = xid154::action(text) {
            finding.advice = format!("do what the driver asks for: {action}");
        }
    }
}

/// Returns the part of a line around the match that fits on a screen.
fn excerpt(line: &[u8], at: usize) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end();
    if text.chars().count() <= SHOWN {
        return text.trim_start().to_owned();
    }
    let before = String::from_utf8_lossy(&line[..at]).chars().count();
    let from = before.saturating_sub(SHOWN / 4);
    let part: String = text.chars().skip(from).take(SHOWN).collect();
    let dots = |is: bool| if is { "…" } else { "" };
    format!("{}{}{}", dots(from > 0), part.trim(), dots(text.chars().count() > from + SHOWN))
}

/// Strips terminal colour sequences from a line.
pub(super) fn strip_colours(line: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(line.len());
    let mut bytes = line.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.peek()) {
            (0x1b, Some(b'[')) => {
                bytes.next();
                while bytes.next().is_some_and(|byte| !(0x40..=0x7e).contains(&byte)) {}
            }
            (0, _) => {}
            _ => plain.push(byte),
        }
    }
    while plain.last() == Some(&b'\r') {
        plain.pop();
    }
    plain
}

/// Reads the next line without its end; returns false at the end of the log. Bytes beyond the limit are
/// read and discarded.
pub(super) fn next_line(log: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let available = match log.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if available.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        line.extend_from_slice(&part[..part.len().min(MAX_LINE.saturating_sub(line.len()))]);
        let used = part.len() + usize::from(end.is_some());
        log.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_LINES, scan};
    use crate::protocol::class::FailureClass;
    use crate::triage::catalogue::Catalogue;
    use proptest::prelude::*;
    use std::io::BufReader;
    use std::sync::LazyLock;

    static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::build(None).unwrap());

    fn scan_bytes(text: &[u8]) -> super::Scan {
        // A small buffer, so that lines are assembled from parts.
        scan(&mut BufReader::with_capacity(7, text), &CATALOGUE).unwrap()
    }

    #[test]
    fn lines_are_counted_and_colours_progress_bars_and_odd_bytes_do_no_harm() {
        let log =
            b"ok\n\x1b[31mRuntimeError: CUDA out of \x1b[0mmemory. Tried to allocate 2.00 GiB\x1b[0m\r\n\xff\xfe\n\
                    10%|#\r20%|##\rRuntimeError: No space left on device\rx";
        let scan = scan_bytes(log);
        assert_eq!(scan.lines, 4);
        let seen: Vec<_> = scan.findings.iter().map(|found| (found.class, found.line, found.text.as_str())).collect();
        assert_eq!(
            seen,
            [
                (FailureClass::DeviceOutOfMemory, 2, "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"),
                (FailureClass::DiskFull, 4, "RuntimeError: No space left on device"),
            ]
        );
    }

    #[test]
    fn an_exception_after_bad_numbers_is_told_beside_them() {
        let traceback = "Traceback (most recent call last):\n  File \"/home/me/train.py\", line 9, in <module>\n    \
                         save(path)\n";
        let classes = |log: String| -> Vec<FailureClass> {
            scan_bytes(log.as_bytes()).findings.iter().map(|found| found.class).collect()
        };
        let ended = |by: &str| classes(format!("step 7 loss: nan\n{traceback}{by}\n"));
        let cause = |by: &str| {
            let scan = scan_bytes(format!("step 7 loss: nan\n{traceback}{by}\n").as_bytes());
            scan.root_cause().map(|root| root.class)
        };
        assert_eq!(cause("KeyError: 'step'"), Some(FailureClass::Exception), "NaN ends no script");
        assert_eq!(cause("AssertionError: loss is not finite"), Some(FailureClass::NonFinite), "but its check does");
        assert_eq!(ended("KeyError: 'step'"), [FailureClass::NonFinite, FailureClass::Exception]);
        assert_eq!(ended("ValueError: Input contains NaN"), [FailureClass::NonFinite; 2]);
        let out_of_memory = format!("CUDA out of memory. Tried to allocate 2.00 GiB\n{traceback}KeyError: 'step'\n");
        assert_eq!(classes(out_of_memory), [FailureClass::DeviceOutOfMemory]);
    }

    #[test]
    fn a_flood_is_counted_not_kept() {
        let log = "loss: nan\n".repeat(MAX_LINES + 500);
        let scan = scan_bytes(log.as_bytes());
        assert_eq!((scan.findings.len(), scan.left_out["loss-nan"]), (MAX_LINES, 500));
    }

    #[test]
    fn a_line_without_end_is_bounded_and_shown_in_part() {
        let log =
            format!("{}RuntimeError: CUDA out of memory. Tried to allocate{}", "x ".repeat(3000), "y".repeat(90_000));
        let scan = scan_bytes(log.as_bytes());
        assert!(scan.findings[0].text.contains("CUDA out of memory"));
        assert!(scan.findings[0].text.chars().count() < 420);
    }

    #[test]
    fn an_xid_has_its_own_meaning_and_symptoms_give_way() {
        let scan = scan_bytes(b"NVRM: Xid (PCI:0000:01:00): 45, pid=1, name=python\nNVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n");
        assert!(scan.findings[0].symptom);
        let root = scan.root_cause().unwrap();
        assert_eq!((root.class, root.line), (FailureClass::Xid, 2));
        assert!(root.meaning.contains("Xid 79") && root.meaning.contains("bus"));
    }

    proptest! {
        #[test]
        fn no_log_brings_the_scan_down(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let lines = scan(&mut bytes.as_slice(), &CATALOGUE).unwrap().lines;
            let ends = bytes.split(|byte| *byte == b'\n').count() as u64 - 1;
            prop_assert!(lines == ends || lines == ends + 1);
        }
    }
}
