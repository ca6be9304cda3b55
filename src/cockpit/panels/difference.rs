//! Configuration differences: between the run under the cursor and the open one, or between all marked runs
//! and the open one, a column each.

use super::component::Component;
use super::run_list::RunList;
use crate::cockpit::action::Action;
use crate::cockpit::read_error::ReadError;
use crate::cockpit::state::opened::Opened;
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::runs::OtherRun;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::state::{RungView, State};
use crate::cockpit::ui;
use crate::cockpit::update::Effect;
use crate::config::knobs::Watch;
use crate::format::in_words;
use crate::recipe::class::compare_presets;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use unicode_width::UnicodeWidthStr;

/// A run whose config is compared with the open one's.
struct Compared<'a> {
    name: &'a str,
    config: Result<&'a OtherRun, Missing<'a>>,
    /// Index of its line's colour.
    colour: usize,
}

/// Reason why a config cannot be compared.
enum Missing<'a> {
    Reading,
    Failed(&'a ReadError),
}

/// Configuration differences of a run.
pub struct Difference;

impl Component for Difference {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
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

    fn own_view(&self) -> View {
        View::Runs
    }

    fn actions(&self, state: &State) -> &'static [Action] {
        RunList.actions(state)
    }

    fn label(&self, state: &State, action: Action) -> Option<&'static str> {
        RunList.label(state, action)
    }

    fn can_act(&self, state: &State, action: Action) -> bool {
        RunList.can_act(state, action)
    }

    fn open(&self, state: &State) -> Result<Opened, Refusal> {
        RunList.open(state)
    }

    fn copy(&self, state: &State) -> Option<String> {
        describe_difference(state)
    }

    fn scroll(&self, state: &mut State, lines: isize) -> Vec<Effect> {
        RunList.scroll(state, lines)
    }
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

fn find_config<'a>(state: &'a State, name: &'a str) -> Compared<'a> {
    let config = match state.runs.read.get(name) {
        Some(Ok(other)) => Ok(&**other),
        Some(Err(error)) => Err(Missing::Failed(error)),
        None => Err(Missing::Reading),
    };
    let colour = state.runs.marked.iter().position(|marked| marked == name).map_or(0, |place| place + 1);
    Compared { name, config, colour }
}

/// A knob, and its value in the open run and in each compared one; none while a config is missing.
type Row = (String, Vec<Option<String>>);

/// Returns the knobs that are not the same in all runs.
fn differing_rows(state: &State, compared: &[Compared<'_>]) -> Vec<Row> {
    let ours = config_tree(&state.ladder, Some(&state.watch));
    let theirs: Vec<Option<Value>> = compared
        .iter()
        .map(|run| run.config.as_ref().ok().map(|other| config_tree(&other.ladder, other.watch.as_ref())))
        .collect();
    let mut differing: Vec<String> = Vec::new();
    for (tree, run) in theirs.iter().zip(compared) {
        let (Some(tree), Ok(other)) = (tree, &run.config) else { continue };
        let is_in_both = |path: &str| match path.split_once(": ") {
            Some((rung, _)) => {
                [&state.ladder, &other.ladder].iter().all(|ladder| ladder.iter().any(|has| has.name == rung))
            }
            // A run whose thresholds are unknown is compared without them.
            None => other.watch.is_some() || !path.starts_with("watch"),
        };
        let changes = compare_presets(&ours, tree).into_iter();
        let knobs = changes.flat_map(|change| single_knobs(change.path, change.from, change.to));
        differing.extend(knobs.map(|(path, ..)| path).filter(|path| is_in_both(path)));
    }
    let mut seen = BTreeSet::new();
    differing.retain(|path| seen.insert(path.clone()));
    let row = |path: String| {
        let own = knob_of(&ours, &path);
        let value = |tree: &Option<Value>| {
            let tree = tree.as_ref()?;
            let is_unknown = path.starts_with("watch.") && tree.get("watch").is_none();
            Some(in_words(if is_unknown { own } else { knob_of(tree, &path) }))
        };
        let values = std::iter::once(Some(in_words(own))).chain(theirs.iter().map(value)).collect();
        (path, values)
    };
    let mut rows: Vec<Row> = differing.into_iter().map(row).collect();
    rows.extend(ladder_row(state, compared));
    rows
}

/// Returns the value at a dotted path; a key may contain dots itself.
fn knob_of<'a>(tree: &'a Value, path: &str) -> &'a Value {
    let below = |(at, _): (usize, &str)| Some((tree.get(&path[..at])?, &path[at + 1..]));
    match (tree.get(path), path.rmatch_indices('.').find_map(below)) {
        (Some(value), _) => value,
        (None, Some((section, rest))) => knob_of(section, rest),
        (None, None) => &Value::Null,
    }
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

/// Joins the knobs of rung 0, the `watch:` section, and what each other rung changes, as `safe: optimizer.lr`.
fn config_tree(ladder: &[RungView], watch: Option<&Watch>) -> Value {
    let Some((full, others)) = ladder.split_first() else { return json!({}) };
    let mut tree = full.preset.clone();
    let Some(fields) = tree.as_object_mut() else { return tree };
    if let Some(Ok(watch)) = watch.map(serde_json::to_value) {
        fields.insert("watch".to_owned(), watch);
    }
    for rung in others {
        let changes = compare_presets(&full.preset, &rung.preset).into_iter();
        fields.extend(changes.map(|change| (format!("{}: {}", rung.name, change.path), change.to)));
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

/// A header of the ends of the runs' names, which differ, then a row per knob; values that differ from the open run's stand out.
fn table_lines(rows: &[Row], compared: &[Compared<'_>], width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let columns = compared.len() + 1;
    let paths = rows.iter().map(|(path, _)| path.width()).max().unwrap_or(0);
    let path_width = paths.min(width.saturating_sub(columns * 6).min(32));
    let column = (width.saturating_sub(path_width) / columns).saturating_sub(1).clamp(1, 16);
    let mut header = Line::from(" ".repeat(path_width));
    for (name, colour) in std::iter::once(("open run", 0)).chain(compared.iter().map(|run| (run.name, run.colour))) {
        header.push_span(Span::raw(" "));
        header.push_span(Span::styled(ui::pad_left(&ui::cut_start(name, column), column), theme.line(colour)));
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
    use super::{RungView, compare_presets, config_tree, knob_of};
    use serde_json::json;

    #[test]
    fn rungs_are_compared_by_what_each_changes() {
        let rung = |name: &str, lr: f64, micro: u64| RungView {
            warm_start: false,
            name: name.to_owned(),
            relieves: Vec::new(),
            preset: json!({ "optimizer": { "lr": lr }, "training": { "micro_batch": micro } }),
        };
        let ours = config_tree(&[rung("full", 0.1, 8), rung("small", 0.1, 4), rung("safe", 0.05, 2)], None);
        let theirs = config_tree(&[rung("full", 0.2, 8), rung("small", 0.2, 4), rung("safe", 0.2, 2)], None);
        let paths: Vec<String> = compare_presets(&ours, &theirs).into_iter().map(|change| change.path).collect();
        assert_eq!(paths, ["optimizer.lr", "safe: optimizer.lr"], "`small` takes the rate of `full` in both");
        assert_eq!((knob_of(&ours, "safe: optimizer.lr"), knob_of(&ours, "optimizer.lr")), (&json!(0.05), &json!(0.1)));
        assert!(knob_of(&theirs, "safe: optimizer.lr").is_null());
    }
}
