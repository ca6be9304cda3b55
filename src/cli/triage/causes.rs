//! The causes in a log, as text.

use crate::format::counted;
use crate::triage::scan::{Finding, Scan};
use crate::triage::traceback::OwnFrame;

/// Maximum lines listed per cause.
const LISTED: usize = 3;
/// Advice where the log tells nothing.
const SILENT_END: &str = "If it ended too early: a process that is killed, hangs or calls exit writes nothing. Look at its exit code (137: \
                          SIGKILL) and at `dmesg`, where the kernel names what it killed for memory";

/// Describes the causes in a log, the most likely one first and earlier starts last.
pub fn of_log(scan: &Scan) -> Vec<String> {
    let groups = groups(scan, |_| true);
    let mut out = if scan.root_cause().is_none() { describe_end(scan) } else { Vec::new() };
    let is_ranked = groups.iter().filter(|group| !group.is_earlier()).count() > 1;
    describe(scan, &groups, is_ranked, &mut out);
    out
}

/// Describes the wanted causes in the log of a run whose keeper has named the cause.
pub fn beside_verdict(scan: &Scan, is_wanted: impl Fn(&Finding) -> bool) -> Vec<String> {
    let mut out = Vec::new();
    describe(scan, &groups(scan, is_wanted), false, &mut out);
    out
}

/// Describes a log that ends without a cause.
fn describe_end(scan: &Scan) -> Vec<String> {
    if scan.lines == 0 {
        return vec!["The log is empty.".to_owned(), SILENT_END.to_owned()];
    }
    let lines = counted(scan.lines, "line");
    let place = if scan.findings.is_empty() { "in" } else { "at the end of" };
    let mut out = vec![format!("No known failure {place} {lines}.")];
    out.extend(scan.progress.map(|progress| progress.to_string()));
    let told = scan.divergence.clone().or_else(|| {
        let frame = scan.own_frame.as_ref()?;
        Some(describe_frame(frame, &frame.describe_with_exception()))
    });
    let is_complete = scan.progress.is_some_and(|progress| progress.is_complete());
    out.extend(told.or_else(|| (!is_complete).then(|| SILENT_END.to_owned())));
    out
}

/// The findings of one entry of the catalogue, in log order.
struct Group<'a>(Vec<&'a Finding>);

impl Group<'_> {
    /// Reports whether the training went on after all of it.
    fn is_earlier(&self) -> bool {
        self.0.iter().all(|finding| finding.earlier)
    }
}

/// Groups the wanted findings: the most likely cause first, then in order of first appearance, earlier starts last.
fn groups(scan: &Scan, is_wanted: impl Fn(&Finding) -> bool) -> Vec<Group<'_>> {
    let root = scan.root_cause().filter(|root| is_wanted(root));
    let mut groups: Vec<Group<'_>> = Vec::new();
    for finding in root.into_iter().chain(scan.findings.iter().filter(|finding| is_wanted(finding))) {
        match groups.iter_mut().find(|group| group.0[0].name == finding.name) {
            Some(group) => group.0.push(finding),
            None => groups.push(Group(vec![finding])),
        }
    }
    // The root was put in twice to come first.
    for group in &mut groups {
        group.0.sort_by_key(|finding| finding.line);
        group.0.dedup_by(|one, other| std::ptr::eq(*one, *other));
    }
    groups.sort_by_key(Group::is_earlier);
    groups
}

fn describe(scan: &Scan, groups: &[Group<'_>], is_ranked: bool, out: &mut Vec<String>) {
    let own_frame = scan.own_frame.as_ref();
    let of_frame = own_frame.and_then(|frame| scan.finding_at(frame)).map(|finding| &finding.name);
    for (index, group) in groups.iter().enumerate() {
        let is_earlier = group.is_earlier();
        let shown: Vec<&Finding> = group.0.iter().copied().filter(|found| found.earlier == is_earlier).collect();
        let Some(first) = shown.first() else { continue };
        let rank = match index {
            _ if is_earlier => "  (earlier in this log: the training went on, or was started again)",
            0 if is_ranked => "  (most likely the cause)",
            _ if first.symptom && groups.len() > 1 => "  (follows from another failure)",
            _ => "",
        };
        if !out.is_empty() {
            out.push(String::new());
        }
        out.push(format!("{}: {}{rank}", first.class.word(), first.meaning));
        out.extend(shown.iter().take(LISTED).map(|finding| format!("  line {}: {}", finding.line, finding.text)));
        let left_out = scan.left_out.get(&first.name).copied().unwrap_or(0);
        let more = shown.len().saturating_sub(LISTED) as u64 + left_out;
        if more > 0 {
            out.push(format!("  and {} like these", counted(more, "more line")));
        }
        if let Some(earlier) = group.0.first().filter(|earlier| earlier.earlier && !is_earlier) {
            out.push(format!("  also earlier in this log, from line {} on", earlier.line));
        }
        out.push(format!("  do: {}", first.advice));
        out.push(format!("  in a run, the keeper {}", first.keeper));
        let own_frame = own_frame.filter(|_| of_frame == Some(&first.name));
        out.extend(own_frame.map(|frame| format!("  {}", describe_frame(frame, &frame.to_string()))));
    }
}

fn describe_frame(frame: &OwnFrame, what: &str) -> String {
    format!("your code: {what}  (line {})", frame.exception_line)
}
