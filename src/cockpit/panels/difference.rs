//! Configuration differences between the run under the cursor and this one.

use crate::cockpit::state::State;
use crate::cockpit::state::runs::OtherRun;
use crate::cockpit::state::screen::Panel;
use crate::cockpit::ui;
use crate::config::knobs::Watch;
use crate::config::theme::Theme;
use crate::format::in_words;
use crate::recipe::class::{Change, compare_presets};
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use serde_json::json;

/// Draws the panel.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let focused = state.screen.focus == Panel::Difference;
    let inner = ui::heading(frame, area, "config: this run → that one", Line::default(), focused, theme);
    let Some(run) = state.runs.chosen() else { return ui::quiet(frame, inner, "no run is chosen", theme) };
    if run.name == state.run_name() {
        return ui::quiet(frame, inner, "choose another run to see where its config differs", theme);
    }
    let other = match state.runs.read.get(&run.name) {
        Some(Ok(other)) => other,
        Some(Err(why)) => return ui::quiet(frame, inner, why, theme),
        None => return ui::quiet(frame, inner, "being read", theme),
    };
    let names = |ladder: &[crate::cockpit::state::RungView]| {
        ladder.iter().map(|rung| rung.name.clone()).collect::<Vec<_>>().join(", ")
    };
    let (Some(ours), Some(theirs)) = (state.ladder.first(), other.ladder.first()) else {
        return ui::quiet(frame, inner, "one of them has no config", theme);
    };
    let mut changes = compare_presets(&ours.preset, &theirs.preset);
    changes.extend(watched(state, other));
    let width = usize::from(inner.width);
    let mut lines: Vec<Line<'static>> = changes
        .iter()
        .map(|change| {
            let path = ui::pad(&change.path, (width / 2).min(32));
            let rest = width.saturating_sub((width / 2).min(32) + 1);
            let values = format!("{} → {}", in_words(&change.from), in_words(&change.to));
            Line::from(vec![Span::styled(path, theme.dim), Span::raw(" "), Span::raw(ui::cut(&values, rest))])
        })
        .collect();
    let rungs = names(&other.ladder);
    if rungs != names(&state.ladder) {
        lines.push(Line::from(vec![
            Span::styled(ui::pad("ladder", (width / 2).min(32)), theme.dim),
            Span::raw(" "),
            Span::raw(ui::cut(&rungs, width.saturating_sub((width / 2).min(32) + 1))),
        ]));
    }
    if lines.is_empty() {
        return ui::quiet(frame, inner, "the same knobs and the same ladder", theme);
    }
    ui::lines(frame, inner, lines);
}

/// Returns the differences in what the two keepers watch.
fn watched(state: &State, other: &OtherRun) -> Vec<Change> {
    let tree = |watch: &Watch| serde_json::to_value(watch).map(|watch| json!({ "watch": watch }));
    match other.watch.as_ref().map(|theirs| (tree(&state.watch), tree(theirs))) {
        Some((Ok(ours), Ok(theirs))) => compare_presets(&ours, &theirs),
        _ => Vec::new(),
    }
}
