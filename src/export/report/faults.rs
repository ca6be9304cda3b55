//! The faults of a report: what ended each attempt, with the evidence and what followed.

use super::facts::Facts;
use super::html::Page;
use crate::format::count;
use crate::protocol::cause::Cause;

/// Newest faults in a report.
const FAULTS: usize = 200;
/// Lines of evidence for each.
const EVIDENCE: usize = 12;

/// Writes the faults, if there are any.
pub fn write(page: &mut Page<'_>, facts: &Facts) {
    if facts.causes.is_empty() {
        return;
    }
    page.markup("<section id=\"faults\">\n<h2>Faults</h2>\n");
    let hidden = facts.causes.len().saturating_sub(FAULTS);
    if hidden > 0 {
        page.markup("<p class=\"note\">").value(&count(hidden as u64)).markup(" older ones are not shown.</p>\n");
    }
    facts.causes.iter().skip(hidden).for_each(|(attempt, cause)| write_fault(page, facts, *attempt, cause));
    page.markup("</section>\n");
}

fn write_fault(page: &mut Page<'_>, facts: &Facts, id: u64, cause: &Cause) {
    page.markup("<article class=\"fault-card\"><h3>").text(&sentence_case(&cause.class.to_string()));
    page.markup("</h3>\n<p class=\"when\">attempt ").value(&count(id));
    if let Some(attempt) = facts.attempts.iter().find(|attempt| attempt.id == id) {
        page.markup(" on ").text(&attempt.rung_name).markup(", ended ");
        page.value(&facts.times.second(facts.end_ms(attempt))).markup(" after ").value(&facts.lived(attempt));
    }
    page.markup("</p>\n<ul>");
    for line in cause.evidence.iter().take(EVIDENCE) {
        page.markup("<li>").text(line).markup("</li>");
    }
    page.markup("</ul>\n");
    if !cause.advice.is_empty() {
        page.markup("<p>").text(&sentence_case(&cause.advice)).markup("</p>\n");
    }
    match facts.attempts.iter().find(|attempt| attempt.id > id) {
        Some(next) => page.markup("<p class=\"good\">Then: ").text(&next.reason),
        None if facts.is_over() => page.markup("<p>No attempt followed."),
        None => page.markup("<p>No attempt has followed yet."),
    };
    page.markup("</p></article>\n");
}

fn sentence_case(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
