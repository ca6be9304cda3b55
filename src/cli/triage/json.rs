//! A diagnosis in JSON: the keeper's verdict if there is one, then what is in the log, or how far it got.

use super::verdict::KeeperAccount;
use crate::protocol::class::FailureClass;
use crate::triage::progress::LoggedProgress;
use crate::triage::scan::{Finding, Scan};
use crate::triage::traceback::OwnFrame;
use serde::Serialize;

/// An entry of the list.
#[derive(Debug, Serialize)]
pub struct Entry<'a> {
    /// The log, where several are diagnosed.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(flatten)]
    what: What<'a>,
    /// Whether it is the most likely cause; true for one entry at most.
    likely: bool,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum What<'a> {
    Verdict(Told<'a>),
    Finding(Reported<'a>),
    Silence(Silence<'a>),
}

/// The end of a log that names no cause.
#[derive(Debug, Serialize)]
struct Silence<'a> {
    /// How far the training got.
    progress: Option<LoggedProgress>,
    /// How its loss diverged.
    #[serde(skip_serializing_if = "Option::is_none")]
    divergence: Option<&'a str>,
}

/// The keeper's verdict.
#[derive(Debug, Serialize)]
struct Told<'a> {
    class: FailureClass,
    /// The attempt that it is about.
    attempt: u64,
    /// How that attempt went: `ended`, `goes on in spite of a fault`.
    fate: &'a str,
    evidence: &'a [String],
    advice: &'a str,
    restart_helps: bool,
}

/// A finding, with additional fields.
#[derive(Debug, Serialize)]
struct Reported<'a> {
    #[serde(flatten)]
    finding: &'a Finding,
    /// The keeper's response.
    keeper: &'a str,
    /// Whether it is only a symptom of another failure.
    symptom: bool,
    /// Whether the training went on after it, or was started again.
    earlier: bool,
    /// The place in the user's own files where it arose; of one finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    own_frame: Option<&'a OwnFrame>,
}

/// Returns the entries of one log, which is called `file` beside others.
pub fn entries<'a>(verdict: &'a KeeperAccount, scan: &'a Scan, file: Option<&'a str>) -> Vec<Entry<'a>> {
    let told = verdict.told();
    let root = scan.root_cause().filter(|_| told.is_none());
    let is_root = |finding| root.is_some_and(|root| std::ptr::eq(root, finding));
    let own_frame = scan.own_frame.as_ref();
    let of_frame = own_frame.and_then(|frame| scan.finding_at(frame));
    let arose_there = |finding| of_frame.is_some_and(|found| std::ptr::eq(found, finding));
    let verdict = told.map(|told| {
        let cause = &told.cause;
        let what = What::Verdict(Told {
            class: cause.class,
            attempt: told.attempt,
            fate: told.fate,
            evidence: &cause.evidence,
            advice: &cause.advice,
            restart_helps: cause.restart_helps,
        });
        Entry { file, what, likely: true }
    });
    let findings = scan.findings.iter().map(|finding| {
        let what = What::Finding(Reported {
            finding,
            keeper: &finding.keeper,
            symptom: finding.symptom,
            earlier: finding.earlier,
            own_frame: own_frame.filter(|_| arose_there(finding)),
        });
        Entry { file, what, likely: is_root(finding) }
    });
    let is_silent = told.is_none() && root.is_none() && (scan.progress.is_some() || scan.divergence.is_some());
    let silence = is_silent.then(|| {
        let what = What::Silence(Silence { progress: scan.progress, divergence: scan.divergence.as_deref() });
        Entry { file, what, likely: false }
    });
    verdict.into_iter().chain(findings).chain(silence).collect()
}
