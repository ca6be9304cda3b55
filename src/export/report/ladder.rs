//! The ladder of a report: when the run was on which rung, what each rung did, and every attempt.

use super::facts::Facts;
use super::faults;
use super::html::Page;
use crate::format::{UNKNOWN, age, bytes, count, rate};
use crate::protocol::control::RungRecord;
use crate::store::batch::AttemptRow;

/// Newest attempts in the table, and in the timeline.
const ATTEMPTS: usize = 300;
const BARS: usize = 1000;
/// Colours of rungs, used in turn.
const COLOURS: usize = 6;

/// Writes the ladder, the faults and the attempts.
pub fn write(page: &mut Page<'_>, facts: &Facts) {
    page.markup("<section id=\"ladder\">\n<h2>Ladder</h2>\n");
    write_timeline(page, facts);
    write_rungs(page, facts);
    page.markup("</section>\n");
    faults::write(page, facts);
    write_attempts(page, facts);
}

/// Draws which rung ran when, over the time of day.
fn write_timeline(page: &mut Page<'_>, facts: &Facts) {
    let Some((first, last)) = facts.span_ms() else { return };
    let span = (last - first).max(1) as f64;
    let share = |time: i64| 100.0 * (time - first) as f64 / span;
    page.markup("<svg class=\"timeline\" role=\"img\" aria-label=\"rungs over time\">\n");
    page.markup("<rect class=\"track\" y=\"8\" width=\"100%\" height=\"26\" rx=\"4\"/>\n");
    for attempt in facts.attempts.iter().rev().take(BARS).rev() {
        let (start, end) = (share(attempt.started_ms), share(facts.end_ms(attempt)));
        page.markup("<rect y=\"8\" height=\"26\" x=\"").number(start).markup("%\" width=\"");
        page.number((end - start).max(0.15))
            .markup("%\" class=\"")
            .markup(rung_class(attempt.rung))
            .markup("\"><title>");
        page.text(&attempt.rung_name).markup(", ").value(&facts.lived(attempt)).markup("</title></rect>\n");
    }
    for attempt in facts.attempts.iter().filter(|attempt| facts.causes.contains_key(&attempt.id)).rev().take(BARS) {
        page.markup("<line class=\"fault\" y1=\"3\" y2=\"39\" x1=\"").number(share(facts.end_ms(attempt)));
        page.markup("%\" x2=\"").number(share(facts.end_ms(attempt))).markup("%\"><title>");
        page.text(&facts.causes[&attempt.id].summary()).markup("</title></line>\n");
    }
    page.markup("<text y=\"56\">").value(&facts.times.second(first)).markup("</text>\n");
    page.markup("<text y=\"56\" x=\"100%\" text-anchor=\"end\">").value(&facts.times.second(last));
    page.markup("</text>\n</svg>\n");
}

fn write_rungs(page: &mut Page<'_>, facts: &Facts) {
    let Some(status) = &facts.status else { return };
    page.markup("<div class=\"wide\"><table><thead><tr><th>Rung</th><th class=\"num\">Time on it</th>");
    page.markup("<th class=\"num\">Steps</th><th class=\"num\">Steps/s</th><th class=\"num\">Peak VRAM</th>");
    page.markup("<th class=\"num\">Peak RAM</th><th>Last fault</th></tr></thead>\n<tbody>\n");
    for (number, rung) in status.rungs.iter().enumerate() {
        write_rung(page, facts, number, rung);
    }
    page.markup("</tbody></table></div>\n");
}

fn write_rung(page: &mut Page<'_>, facts: &Facts, number: usize, rung: &RungRecord) {
    let on_it = facts.attempts.iter().filter(|attempt| attempt.rung == number);
    let time: i64 = on_it.map(|attempt| facts.end_ms(attempt) - attempt.started_ms).sum();
    let known = |bytes_: Option<u64>| bytes_.map_or_else(|| UNKNOWN.to_owned(), bytes);
    page.markup("<tr><td class=\"short\">");
    write_swatch(page, number);
    page.text(&rung.name);
    let current = facts.status.as_ref().is_some_and(|status| status.rung == number && status.state.is_moving());
    page.markup(if current { " <span class=\"now\">now</span></td>" } else { "</td>" });
    page.figure(&if time > 0 { age(time) } else { UNKNOWN.to_owned() });
    page.figure(&count(rung.steps)).figure(&rung.steps_per_s.map_or_else(|| UNKNOWN.to_owned(), rate));
    page.figure(&known(rung.vram_bytes)).figure(&known(rung.ram_bytes));
    match (&rung.unusable, &rung.fault) {
        (Some(why), _) => page.markup("<td class=\"danger\">cannot start here: ").text(why).markup("</td>"),
        (None, Some((fault, step))) => {
            page.markup("<td class=\"danger\">").text(fault).markup(" at step ").value(&count(*step)).markup("</td>")
        }
        (None, None) => page.markup("<td></td>"),
    };
    page.markup("</tr>\n");
}

fn write_attempts(page: &mut Page<'_>, facts: &Facts) {
    page.markup("<section id=\"attempts\">\n<h2>Attempts</h2>\n");
    let hidden = facts.attempts.len().saturating_sub(ATTEMPTS);
    if hidden > 0 {
        page.markup("<p class=\"note\">").value(&count(hidden as u64)).markup(" older ones are not shown.</p>\n");
    }
    page.markup("<div class=\"wide\"><table><thead><tr><th class=\"num\">#</th><th>Rung</th><th>Started</th>");
    page.markup("<th class=\"num\">From step</th><th class=\"num\">Lived</th><th>Why it started</th>");
    page.markup("<th>How it ended</th></tr></thead>\n<tbody>\n");
    facts.attempts[hidden..].iter().for_each(|attempt| write_attempt(page, facts, attempt));
    page.markup("</tbody></table></div>\n</section>\n");
}

fn write_attempt(page: &mut Page<'_>, facts: &Facts, attempt: &AttemptRow) {
    page.markup("<tr>").figure(&count(attempt.id)).markup("<td class=\"short\">");
    write_swatch(page, attempt.rung);
    page.text(&attempt.rung_name).markup("</td><td class=\"time\">").value(&facts.times.second(attempt.started_ms));
    page.markup("</td>").figure(&attempt.from_step.map_or_else(|| "the beginning".to_owned(), count));
    page.figure(&facts.lived(attempt)).cell(&attempt.reason);
    match &attempt.outcome {
        Some(outcome) => page.cell(outcome),
        None if facts.is_alive(attempt) => page.markup("<td><span class=\"now\">alive</span></td>"),
        // Its keeper died, too.
        None => page.cell("interrupted"),
    };
    page.markup("</tr>\n");
}

fn write_swatch(page: &mut Page<'_>, rung: usize) {
    page.markup("<span class=\"swatch ").markup(rung_class(rung)).markup("\"></span>");
}

fn rung_class(rung: usize) -> &'static str {
    const CLASSES: [&str; COLOURS] = ["rung-0", "rung-1", "rung-2", "rung-3", "rung-4", "rung-5"];
    CLASSES[rung % COLOURS]
}
