//! The journal and the checkpoints of a report.

use super::facts::{Facts, JOURNAL};
use super::html::Page;
use crate::format::{UNKNOWN, bytes, count, figure, took};
use crate::protocol::control::{CheckpointRow, JournalKind, JournalRow};
use crate::protocol::worker::Level;

/// Newest checkpoints on disk in a report.
const CHECKPOINTS: usize = 200;

/// Kinds of lines: the value in the page, the name, and whether they are shown at first.
const KINDS: [(JournalKind, &str, &str, bool); 11] = [
    (JournalKind::Run, "run", "run", true),
    (JournalKind::Worker, "worker", "worker", true),
    (JournalKind::Shift, "shift", "shifts", true),
    (JournalKind::Restart, "restart", "restarts", true),
    (JournalKind::Rate, "rate", "learning rates", true),
    (JournalKind::Skip, "skip", "skips", true),
    (JournalKind::Checkpoint, "checkpoint", "checkpoints", false),
    (JournalKind::Injected, "injected", "injected faults", true),
    (JournalKind::Health, "health", "health", true),
    (JournalKind::Request, "request", "requests", true),
    (JournalKind::Note, "note", "notes", true),
];

/// Writes the journal and the checkpoints.
pub fn write(page: &mut Page<'_>, facts: &Facts) {
    page.markup("<section id=\"journal\">\n<h2>Journal</h2>\n");
    if facts.journal.len() == JOURNAL {
        page.markup("<p class=\"note\">The newest ").value(&count(JOURNAL as u64)).markup(" lines.</p>\n");
    }
    page.markup("<div class=\"controls\"><span id=\"kinds\">");
    for (kind, value, name, shown) in KINDS {
        let lines = facts.journal.iter().filter(|row| row.kind == kind).count();
        if lines > 0 {
            page.markup("<label><input type=\"checkbox\" value=\"").markup(value).markup("\"");
            page.markup(if shown { " checked>" } else { ">" }).markup(name).markup(" ");
            page.value(&count(lines as u64)).markup("</label>");
        }
    }
    page.markup("</span><span class=\"grow\"></span><span id=\"shown\"></span>");
    page.markup("<input id=\"find\" type=\"search\" placeholder=\"find in the journal\" aria-label=\"find in the journal\"></div>\n");
    page.markup(
        "<div class=\"wide\"><table><thead><tr><th>Time</th><th class=\"num\">Step</th><th>Event</th></tr></thead>\n",
    );
    page.markup("<tbody id=\"events\">\n");
    facts.journal.iter().for_each(|row| write_line(page, facts, row));
    page.markup("</tbody></table></div>\n</section>\n");
    write_checkpoints(page, facts);
}

fn write_line(page: &mut Page<'_>, facts: &Facts, row: &JournalRow) {
    page.markup(match row.level {
        Level::Info => "<tr data-kind=\"",
        Level::Warn => "<tr class=\"warn\" data-kind=\"",
        Level::Error => "<tr class=\"error\" data-kind=\"",
    });
    page.markup(KINDS.iter().find(|kind| kind.0 == row.kind).map_or("note", |kind| kind.1));
    page.markup("\"><td class=\"time\">")
        .value(&facts.times.second(row.time_ms))
        .markup("</td><td class=\"num step\">");
    page.value(&row.step.map(count).unwrap_or_default()).markup("</td>").cell(&row.text).markup("</tr>\n");
}

fn write_checkpoints(page: &mut Page<'_>, facts: &Facts) {
    page.markup("<section id=\"checkpoints\">\n<h2>Checkpoints</h2>\n");
    let kept: Vec<&CheckpointRow> = facts.checkpoints.iter().filter(|row| row.kept).collect();
    if kept.is_empty() {
        page.markup("<p class=\"empty\">No checkpoint is on disk.</p>\n</section>\n");
        return;
    }
    page.markup("<div class=\"wide\"><table><thead><tr><th class=\"num\">Step</th><th>Saved</th>");
    page.markup(
        "<th class=\"num\">Size</th><th class=\"num\">Pause</th><th class=\"num\">Validation loss</th><th></th>",
    );
    page.markup("</tr></thead>\n<tbody>\n");
    kept.iter().rev().take(CHECKPOINTS).for_each(|row| write_checkpoint(page, facts, row));
    page.markup("</tbody></table></div>\n<p class=\"note\">");
    page.value(&count(kept.len() as u64)).markup(" on disk of ").value(&count(facts.checkpoints.len() as u64));
    page.markup(" saved.</p>\n</section>\n");
}

fn write_checkpoint(page: &mut Page<'_>, facts: &Facts, row: &CheckpointRow) {
    page.markup("<tr>").figure(&count(row.step));
    page.markup("<td class=\"time\">").value(&facts.times.second(row.time_ms)).markup("</td>");
    page.figure(&bytes(row.bytes)).figure(&took(row.pause_ms.max(0.0) as u64));
    page.figure(&row.eval_loss.map_or_else(|| UNKNOWN.to_owned(), figure));
    page.markup(match (row.best, row.proven) {
        (true, true) => "<td class=\"good\">best, proven</td>",
        (true, false) => "<td class=\"good\">best</td>",
        (false, true) => "<td>proven</td>",
        (false, false) => "<td></td>",
    });
    page.markup("</tr>\n");
}
