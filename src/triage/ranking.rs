//! Which findings of a log are causes, which follow from others, and which belong to earlier starts.
//!
//! An exception of the script is a cause that no catalogue can list. It counts if it ended the log, or if one rank raised
//! it and others then lost that rank:
//! ```text
//! [rank1]: ValueError: 'cat' is not in list              the cause
//! [rank0]: … Watchdog caught collective operation …      follows
//! torch.distributed.elastic… ChildFailedError            follows
//! ```

use super::catalogue::entry::EndedBy;
use super::scan::Finding;
use super::traceback::{Exception, Link};
use crate::faults;
use crate::protocol::class::FailureClass;
use std::collections::BTreeMap;

/// Lines that may follow the exception that ended a log, before the summary of a launcher.
pub const LAST: u64 = 5;
/// Exceptions that programs raise without a failure: something that waits ended it.
const CONTROL: [&str; 6] =
    ["Empty", "StopIteration", "StopAsyncIteration", "CancelledError", "BlockingIOError", "SystemExit"];

/// Facts of a log beside its findings.
pub struct Evidence<'a> {
    /// The exceptions that ended a traceback, in log order.
    pub exceptions: &'a [Exception],
    /// The rank that failed first, if the launcher names it.
    pub blamed: Option<u32>,
    /// Lines after the newest exception.
    pub after_exception: u64,
    /// Reports whether the training went on after a line.
    pub went_on_after: &'a dyn Fn(u64) -> bool,
    /// Reports whether it went on long after a line, or was started again.
    pub went_on_long_after: &'a dyn Fn(u64) -> bool,
    /// Reports whether the training reached its end after a line.
    pub finished_after: &'a dyn Fn(u64) -> bool,
    /// Reports whether it reached its end before a line.
    pub finished_before: &'a dyn Fn(u64) -> bool,
}

/// Returns the most likely cause: the first finding that explains itself. Bad numbers alone end no script, and a kill gives
/// no reason, so they rank behind; symptoms of other failures rank last. Findings of earlier starts are no cause.
#[must_use]
pub fn root_cause(findings: &[Finding]) -> Option<&Finding> {
    findings.iter().filter(|finding| !finding.earlier).min_by_key(|finding| match (finding.symptom, finding.class) {
        (true, _) => 3,
        (false, FailureClass::Killed) => 2,
        (false, class) => u8::from(is_bad_numbers(class)),
    })
}

/// Ranks the findings of a log, which come in its order, and adds the exception of the script that ended it.
#[must_use]
pub fn rank(mut findings: Vec<Finding>, evidence: &Evidence<'_>) -> Vec<Finding> {
    mark_survived(&mut findings, evidence);
    let has_ranks = findings.iter().any(|finding| !finding.earlier && finding.class == FailureClass::Collective);
    let chains = Chain::of(evidence.exceptions, has_ranks);
    let mut raised = Vec::new();
    for chain in &chains {
        let is_over = chain.last_line().is_none_or(|line| {
            (evidence.went_on_after)(line) || !chain.is_of_script() && (evidence.finished_after)(line)
        });
        if chains.iter().any(|later| later.supersedes(chain, &findings)) {
            chain.mark_earlier(&mut findings);
        } else if !is_over {
            raised.extend(chain.unexplained(&findings));
        }
        chain.mark_consequences(&mut findings);
    }
    let cause = if has_ranks {
        raised.iter().find(|raised| evidence.blamed.is_some() && raised.rank() == evidence.blamed).or(raised.first())
    } else {
        let of_script = |raised: &&&Exception| raised.own.is_some();
        let last = raised.iter().rfind(of_script).or(raised.last());
        // Ranks that raise the same one after the other: the first is the cause.
        let last = last.and_then(|last| {
            let alike = |raised: &&&Exception| raised.rank().is_some() && raised.name() == last.name();
            raised.iter().find(|raised| last.rank().is_some() && alike(raised)).or(Some(last))
        });
        last.filter(|_| evidence.after_exception <= LAST)
    };
    findings.extend(cause.map(|raised| describe(raised, has_ranks)));
    findings.sort_by_key(|finding| finding.line);
    mark_consequences(&mut findings);
    findings
}

/// Marks what the training survived. Bad numbers last until the newest of them.
fn mark_survived(findings: &mut [Finding], evidence: &Evidence<'_>) {
    let newest: BTreeMap<String, u64> = findings.iter().map(|finding| (finding.name.clone(), finding.line)).collect();
    for finding in findings {
        let line = if is_bad_numbers(finding.class) { newest.get(&finding.name).copied() } else { None };
        let line = line.unwrap_or(finding.line);
        finding.earlier = match finding.ended_by {
            // A launcher ends what is left of a job that is done.
            EndedBy::Outside => (evidence.went_on_long_after)(line) || (evidence.finished_before)(line),
            EndedBy::Failure | EndedBy::User => (evidence.went_on_after)(line),
        };
    }
}

/// Marks what the most likely cause brings about elsewhere: the GPU fails its programs, the kernel kills them, and labels out
/// of range trip a check of the device.
fn mark_consequences(findings: &mut [Finding]) {
    use FailureClass::{Data, DeviceFault, GpuLost, HostOutOfMemory, Killed, Xid};
    let Some((name, class)) = root_cause(findings).map(|root| (root.name.clone(), root.class)) else { return };
    for finding in findings.iter_mut().filter(|finding| finding.name != name) {
        finding.symptom |= matches!(
            (class, finding.class),
            (HostOutOfMemory, Killed) | (Xid, DeviceFault | GpuLost) | (GpuLost | Data, DeviceFault)
        );
    }
}

/// Exceptions of which each follows from the one before.
struct Chain<'a> {
    exceptions: Vec<&'a Exception>,
    /// Whether other processes may have printed the same way: it does not follow that a later one ended this process.
    is_shared: bool,
}

impl<'a> Chain<'a> {
    fn of(exceptions: &'a [Exception], has_ranks: bool) -> Vec<Self> {
        let mut chains: Vec<Self> = Vec::new();
        for exception in exceptions {
            let same = |chain: &&mut Self| chain.exceptions.iter().any(|known| known.source == exception.source);
            if let Some(chain) = chains.iter_mut().rev().find(same).filter(|_| exception.is_chained()) {
                chain.exceptions.push(exception);
            } else {
                let is_shared = has_ranks && exception.rank().is_none();
                chains.push(Self { exceptions: vec![exception], is_shared });
            }
        }
        chains
    }

    fn last_line(&self) -> Option<u64> {
        self.exceptions.last().map(|exception| exception.line)
    }

    /// Reports whether the same process, or a later start of it, ended with this chain after the other one.
    fn supersedes(&self, other: &Self, findings: &[Finding]) -> bool {
        let [Some(own), Some(others)] = [self, other].map(|chain| chain.exceptions.last()) else { return false };
        let is_symptom = findings.iter().any(|finding| finding.line == own.line && finding.symptom);
        !self.is_shared && self.is_of_script() && !is_symptom && own.line > others.line && own.source == others.source
    }

    /// Reports whether any of its frames lies in the user's own files.
    fn is_of_script(&self) -> bool {
        self.exceptions.iter().any(|exception| exception.own.is_some())
    }

    /// Returns the exception that the catalogue does not explain, if it explains none of the chain: the last one of the
    /// script, or of the packages that it uses, or the one that brought that about.
    fn unexplained(&self, findings: &[Finding]) -> Option<&'a Exception> {
        let at = |exception: &Exception| findings.iter().find(|finding| finding.line == exception.line);
        if self.exceptions.iter().filter_map(|known| at(known)).any(|finding| !finding.symptom) {
            return None;
        }
        let counts = |known: &Exception| {
            at(known).is_none() && !known.text.is_empty() && (known.own.is_some() || !known.is_of_thread)
        };
        let last = self.exceptions.len().checked_sub(1)?;
        let waits = |at: usize| at < last && CONTROL.contains(&self.exceptions[at].name());
        let candidates = || (0..=last).rev().filter(|at| counts(self.exceptions[*at]) && !waits(*at));
        let of_script = candidates().find(|at| self.exceptions[*at].own.is_some());
        let mut found = of_script.or_else(|| candidates().next())?;
        while found > 0 && self.exceptions[found].link == Link::Caused && counts(self.exceptions[found - 1]) {
            found -= 1;
        }
        Some(self.exceptions[found])
    }

    /// Marks the findings in this chain, and those like them before it, as those of an earlier start.
    fn mark_earlier(&self, findings: &mut [Finding]) {
        for exception in &self.exceptions {
            let Some(class) = findings.iter().find(|known| known.line == exception.line).map(|known| known.class)
            else {
                continue;
            };
            let before = findings.iter_mut().filter(|known| known.class == class && known.line <= exception.line);
            before.for_each(|known| known.earlier = true);
        }
    }

    /// Marks the findings that follow from the first one in this chain.
    fn mark_consequences(&self, findings: &mut [Finding]) {
        let is_cause = |line: u64| findings.iter().any(|known| known.line == line && !known.symptom);
        let Some(cause) = self.exceptions.iter().map(|known| known.line).find(|line| is_cause(*line)) else { return };
        let later = |line: u64| self.exceptions.iter().any(|known| known.line == line && line > cause);
        findings.iter_mut().filter(|known| later(known.line)).for_each(|known| known.symptom = true);
    }
}

fn describe(raised: &Exception, has_ranks: bool) -> Finding {
    let class = FailureClass::Exception;
    let fault = faults::of_class(class);
    let who = match (raised.rank(), has_ranks) {
        (Some(rank), _) => format!("rank {rank} ended"),
        (None, true) => "a rank ended".to_owned(),
        (None, false) => "the log ends".to_owned(),
    };
    let code = raised.own.as_ref().map_or("", |own| own.code.as_str());
    Finding {
        class,
        line: raised.line,
        text: raised.text.clone(),
        meaning: format!("{who} with an exception{}", if raised.own.is_some() { " of the script" } else { "" }),
        advice: fault.advice.clone(),
        name: class.word().to_owned(),
        response: fault.response,
        keeper: fault.describe(),
        damage: None,
        transient: false,
        ended_by: EndedBy::Failure,
        // A script may check its numbers itself.
        symptom: tells_bad_numbers(&raised.text) || tells_bad_numbers(code),
        earlier: false,
    }
}

/// Reports whether an exception, or the line that raised it, is about numbers that are not finite.
fn tells_bad_numbers(text: &str) -> bool {
    let words = ["nan", "nans", "isnan", "finite", "isfinite", "nonfinite"];
    text.split(|letter: char| !letter.is_ascii_alphabetic())
        .any(|word| words.iter().any(|known| word.eq_ignore_ascii_case(known)))
}

/// Reports whether a class is about numbers that are not finite, or that jump.
pub fn is_bad_numbers(class: FailureClass) -> bool {
    matches!(class, FailureClass::NonFinite | FailureClass::LossSpike)
}

#[cfg(test)]
mod tests;
