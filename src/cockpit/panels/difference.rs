//! Configuration differences: between the run under the cursor and the open one, or between all marked runs
//! and the open one, a column each.

use crate::cockpit::read_error::ReadError;
use crate::cockpit::state::runs::OtherRun;
use crate::cockpit::state::screen::Panel;
use crate::cockpit::state::{RungView, State};
use crate::cockpit::ui;
use crate::config::knobs::Watch;
use crate::config::theme::Theme;
use crate::format::in_words;
use crate::recipe::class::compare_presets;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use unicode_width::UnicodeWidthStr;

/// A run whose config is compared with the open one's.
struct Compared<'a> {
    config: Result<&'a OtherRun, Missing<'a>>,
    /// Index of its line's colour.
    colour: usize,
}

/// Reason why a config cannot be compared.
enum Missing<'a> {
    Reading,
    Failed(&'a ReadError),
}

/// Draws the panel.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let focused = state.screen.focus == Panel::Difference;
    let (names, is_pair) = compared_names(state);
    let title = if is_pair { "config: open run → chosen run" } else { "config of the marked runs" };
    let inner = ui::render_heading(frame, area, title, Line::default(), focused, theme);
    match names[..] {
        [] => return ui::render_placeholder(frame, inner, "no run chosen", theme),
        [name] if name == state.run_name() => {
            return ui::render_placeholder(frame, inner, "choose another run to compare its config", theme);
        }
        _ => {}
    }
    let compared: Vec<Compared<'_>> = names.iter().map(|name| find_config(state, name)).collect();
    if let [Compared { config: Err(why), .. }] = &compared[..] {
        let text = match why {
            Missing::Reading => "reading …".to_owned(),
            Missing::Failed(error) => error.to_string(),
        };
        return ui::render_placeholder(frame, inner, &text, theme);
    }
    let rows = differing_rows(state, &compared);
    if rows.is_empty() {
        return ui::render_placeholder(frame, inner, "same knobs, same ladder", theme);
    }
    let mut lines: Vec<Line<'static>> = if is_pair {
        rows.iter().map(|(path, values)| pair_line(path, values, usize::from(inner.width), theme)).collect()
    } else {
        table_lines(&rows, &compared, usize::from(inner.width), theme)
    };
    let room = usize::from(inner.height);
    if lines.len() > room && room > 1 {
        let hidden = lines.len() - (room - 1);
        lines.truncate(room - 1);
        lines.push(ui::more_note(0, hidden, theme));
    }
    ui::render_lines(frame, inner, lines);
}

/// Returns the names of the runs to compare with the open one, and whether that is a single pair.
fn compared_names(state: &State) -> (Vec<&str>, bool) {
    let chosen = state.runs.chosen().map(|run| run.name.as_str());
    let marked = &state.runs.marked;
    // One marked run under the cursor is a pair; it reads best as one.
    let is_pair = marked.is_empty() || (marked.len() == 1 && chosen.is_some_and(|name| marked[0] == name));
    (if is_pair { chosen.into_iter().collect() } else { marked.iter().map(String::as_str).collect() }, is_pair)
}

/// Describes the differences on one line: `optimizer.lr 0.002 → 0.001; …`; none if there are none or not known yet.
#[must_use]
pub fn describe_difference(state: &State) -> Option<String> {
    let (names, _) = compared_names(state);
    let compared: Vec<Compared<'_>> =
        names.iter().filter(|name| **name != state.run_name()).map(|name| find_config(state, name)).collect();
    let line = |(path, values): Row| {
        let values: Vec<String> = values.into_iter().map(|value| value.unwrap_or_else(|| "…".to_owned())).collect();
        format!("{path} {}", values.join(" → "))
    };
    let lines: Vec<String> = differing_rows(state, &compared).into_iter().map(line).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

fn find_config<'a>(state: &'a State, name: &str) -> Compared<'a> {
    let config = match state.runs.read.get(name) {
        Some(Ok(other)) => Ok(&**other),
        Some(Err(error)) => Err(Missing::Failed(error)),
        None => Err(Missing::Reading),
    };
    let colour = state.runs.marked.iter().position(|marked| marked == name).map_or(0, |place| place + 1);
    Compared { config, colour }
}

/// A knob, and its value in the open run and in each compared one; none while a config is missing.
type Row = (String, Vec<Option<String>>);

/// Returns the knobs that are not the same in all runs.
fn differing_rows(state: &State, compared: &[Compared<'_>]) -> Vec<Row> {
    let mut differing: BTreeMap<String, (Value, BTreeMap<usize, Value>)> = BTreeMap::new();
    let mut order: Vec<String> = Vec::new();
    for (place, run) in compared.iter().enumerate() {
        let Ok(other) = run.config else { continue };
        for (path, from, to) in
            knobs_of_full(state, other).into_iter().chain(knobs_of_rungs(&state.ladder, &other.ladder))
        {
            if !differing.contains_key(&path) {
                order.push(path.clone());
            }
            differing.entry(path).or_insert_with(|| (from, BTreeMap::new())).1.insert(place, to);
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    for path in order {
        let Some((from, others)) = differing.remove(&path) else { continue };
        let value =
            |place: usize| compared[place].config.is_ok().then(|| in_words(others.get(&place).unwrap_or(&from)));
        let values = std::iter::once(Some(in_words(&from))).chain((0..compared.len()).map(value)).collect();
        rows.push((path, values));
    }
    rows.extend(ladder_row(state, compared));
    rows
}

/// A knob with its value in the open run and in another.
type Knob = (String, Value, Value);

fn compare_trees(ours: &Value, theirs: &Value) -> Vec<Knob> {
    let changes = compare_presets(ours, theirs);
    changes.into_iter().flat_map(|change| single_knobs(change.path, change.from, change.to)).collect()
}

/// Returns the differing knobs of rung 0 and of the `watch:` section.
fn knobs_of_full(state: &State, other: &OtherRun) -> Vec<Knob> {
    // A run whose thresholds are unknown is compared without them.
    let watch = other.watch.as_ref().map(|_| &state.watch);
    let ours = config_tree(state.ladder.first(), watch);
    compare_trees(&ours, &config_tree(other.ladder.first(), other.watch.as_ref()))
}

/// Returns the differing knobs of the rungs that both ladders have, such as `safe: optimizer.lr`; without those that
/// differ on rung 0, as they do on most.
fn knobs_of_rungs(ours: &[RungView], theirs: &[RungView]) -> Vec<Knob> {
    let (Some(our_full), Some(their_full)) = (ours.first(), theirs.first()) else { return Vec::new() };
    let on_full: Vec<String> =
        compare_trees(&our_full.preset, &their_full.preset).into_iter().map(|(path, ..)| path).collect();
    let pairs =
        ours[1..].iter().filter_map(|rung| Some((rung, theirs[1..].iter().find(|their| their.name == rung.name)?)));
    let knobs = pairs.flat_map(|(rung, their)| {
        let knobs = compare_trees(&rung.preset, &their.preset).into_iter().filter(|(path, ..)| !on_full.contains(path));
        knobs.map(|(path, from, to)| (format!("{}: {path}", rung.name), from, to)).collect::<Vec<_>>()
    });
    knobs.collect()
}

/// Splits a section that only one of two runs has into its knobs.
fn single_knobs(path: String, from: Value, to: Value) -> Vec<(String, Value, Value)> {
    let (section, is_ours) = match (from, to) {
        (Value::Object(section), Value::Null) => (section, true),
        (Value::Null, Value::Object(section)) => (section, false),
        (from, to) => return vec![(path, from, to)],
    };
    let knob = |(name, value): (String, Value)| {
        let path = format!("{path}.{name}");
        if is_ours { single_knobs(path, value, Value::Null) } else { single_knobs(path, Value::Null, value) }
    };
    section.into_iter().flat_map(knob).collect()
}

/// Returns the names of the rungs, if they are not the same in all runs.
fn ladder_row(state: &State, compared: &[Compared<'_>]) -> Option<Row> {
    let names = |ladder: &[RungView]| ladder.iter().map(|rung| rung.name.clone()).collect::<Vec<_>>().join(", ");
    let ours = names(&state.ladder);
    let theirs: Vec<Option<String>> =
        compared.iter().map(|run| run.config.as_ref().ok().map(|other| names(&other.ladder))).collect();
    let differs = theirs.iter().flatten().any(|theirs| *theirs != ours);
    differs.then(|| ("ladder".to_owned(), std::iter::once(Some(ours)).chain(theirs).collect()))
}

/// Joins the knobs of rung 0 and the `watch:` section.
fn config_tree(rung: Option<&RungView>, watch: Option<&Watch>) -> Value {
    let mut tree = rung.map_or_else(|| json!({}), |rung| rung.preset.clone());
    if let (Some(fields), Some(Ok(watch))) = (tree.as_object_mut(), watch.map(serde_json::to_value)) {
        fields.insert("watch".to_owned(), watch);
    }
    tree
}

/// `optimizer.lr   0.002 → 0.001`
fn pair_line(path: &str, values: &[Option<String>], width: usize, theme: &Theme) -> Line<'static> {
    let left = (width / 2).min(32);
    let known = |place: usize| values.get(place).cloned().flatten().unwrap_or_default();
    // Of two ladders, the other run's is the news.
    let text = if path == "ladder" { known(1) } else { format!("{} → {}", known(0), known(1)) };
    let text = ui::cut(&text, width.saturating_sub(left + 1));
    Line::from(vec![Span::styled(ui::pad(path, left), theme.dim), Span::raw(" "), Span::raw(text)])
}

/// A header of coloured strokes, then a row per knob; values that differ from the open run's stand out.
fn table_lines(rows: &[Row], compared: &[Compared<'_>], width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let columns = compared.len() + 1;
    let paths = rows.iter().map(|(path, _)| path.width()).max().unwrap_or(0);
    let path_width = paths.min(width.saturating_sub(columns * 6).min(32));
    let column = (width.saturating_sub(path_width) / columns).saturating_sub(1).clamp(1, 16);
    let mut header = Line::from(" ".repeat(path_width));
    for colour in std::iter::once(0).chain(compared.iter().map(|run| run.colour)) {
        header.push_span(Span::raw(" "));
        header.push_span(Span::styled(ui::pad_left("━━", column), theme.line(colour)));
    }
    let mut lines = vec![header];
    for (path, values) in rows {
        let mut line = Line::from(Span::styled(ui::pad(path, path_width), theme.dim));
        for value in values {
            let text = value.as_deref().unwrap_or("…");
            let style = if *value == values[0] { theme.dim } else { theme.strong };
            line.push_span(Span::raw(" "));
            line.push_span(Span::styled(ui::pad_left(text, column), style));
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{RungView, knobs_of_rungs};
    use serde_json::{Value, json};

    #[test]
    fn rungs_of_one_name_are_compared_but_for_what_differs_on_all() {
        let rung = |name: &str, lr: f64, micro: u64| RungView {
            warm_start: false,
            name: name.to_owned(),
            relieves: Vec::new(),
            preset: json!({ "optimizer": { "lr": lr }, "training": { "micro_batch": micro } }),
        };
        let ours = [rung("full", 0.1, 8), rung("small", 0.1, 4), rung("safe", 0.1, 2)];
        let theirs = [rung("full", 0.2, 8), rung("safe", 0.2, 1), rung("tiny", 0.2, 1)];
        let found: Vec<(String, Value, Value)> = knobs_of_rungs(&ours, &theirs);
        assert_eq!(found, [("safe: training.micro_batch".to_owned(), json!(2), json!(1))]);
        assert!(knobs_of_rungs(&ours, &ours).is_empty());
    }
}
