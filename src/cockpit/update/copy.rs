//! Copies what is under the cursor: the value of a chart, a line, a path or a name.

use super::message::Effect;
use crate::cockpit::chart_data::evaluation_spot;
use crate::cockpit::clipboard;
use crate::cockpit::panels::{confusion, difference};
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::journal::{JournalEntry, chosen_entry};
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::screen::Panel;
use crate::format::clock;
use crate::protocol::control::EvalRow;
use crate::protocol::ranks::find_laggard;
use crate::untrusted::text::escape_line;
use std::path::Path;

/// Copies the item under the cursor of the focused panel.
pub fn copy_item(state: &mut State) -> Vec<Effect> {
    if let Some(text) = find_item(state.shown()) {
        return copy_text(&text);
    }
    state.show_notice(Refusal::NothingToCopy.to_string(), true);
    vec![Effect::Redraw]
}

/// Copies one line without control characters: what is pasted into a shell must not run.
pub fn copy_text(text: &str) -> Vec<Effect> {
    vec![Effect::Copy(escape_line(&cut(text.to_owned())).into_owned())]
}

/// Says what was copied.
pub fn confirm_copy(state: &mut State, text: &str) -> Vec<Effect> {
    state.show_notice(format!("copied: {text}"), false);
    vec![Effect::Redraw]
}

fn cut(mut text: String) -> String {
    let end = (0..=clipboard::MOST.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    text
}

/// Returns the text of the item under the cursor.
fn find_item(state: &State) -> Option<String> {
    match state.screen.focus {
        Panel::Chart(quantity) => read_chart(state, quantity),
        Panel::Journal => journal_line(state),
        Panel::Log => log_line(state),
        Panel::Checkpoints => checkpoint_path(state),
        Panel::Samples => sample_item(state),
        Panel::Confusion => mistakes(state),
        Panel::Layers => layer_value(state),
        Panel::Difference => difference::describe_difference(state),
        Panel::RunList | Panel::Compare => state.runs.chosen().map(|row| row.name.clone()),
        Panel::Ladder | Panel::Rung => {
            let rung = state.screen.chosen_rung.or(state.rung())?;
            state.ladder.get(rung).map(|rung| rung.name.clone())
        }
        Panel::Ranks => find_laggard(state.ranks()).map(|last| last.to_string()),
        Panel::Gauges => None,
    }
}

/// Returns the value at the chart's cursor, or the newest one: `loss 0.31234 at step 1204`.
fn read_chart(state: &State, quantity: Quantity) -> Option<String> {
    let (axis, facts) = (state.screen.chart.axis, &state.facts);
    let place = state.screen.chart.cursor.or(state.curve_ends().map(|(_, last)| last))?;
    let title = quantity.title(&facts.metrics);
    if let Some(name) = quantity.eval_metric(&facts.metrics) {
        let value = |row: &EvalRow| Some((evaluation_spot(row), row.eval.value(name)?));
        let off = |spot: f64| (spot - place).abs();
        let evals = facts.evals.values().filter_map(value);
        let (spot, value) = evals.min_by(|a, b| off(axis.place(a.0)).total_cmp(&off(axis.place(b.0))))?;
        return Some(format!("{title} {value} at step {}", spot.step));
    }
    let extent = quantity.value_at(state, axis, place)?;
    let written =
        |value: f32| if quantity.may_be_log() { value.to_string() } else { quantity.format_value(value.into()) };
    let value = match extent.count {
        0 | 1 => written(extent.mean),
        many => format!("{} to {} over {many} values", written(extent.min), written(extent.max)),
    };
    Some(format!("{title} {value} at step {}", facts.series.at(axis, place)?.spot().step))
}

fn journal_line(state: &State) -> Option<String> {
    let entry = chosen_entry(state)?;
    let time = clock(entry.anchor().time_ms, state.utc_offset_s);
    let text = match &entry {
        JournalEntry::Fault(fault) => fault.lines().map(|row| row.text.as_str()).collect::<Vec<_>>().join("; "),
        JournalEntry::Line(_) | JournalEntry::Checkpoints(_) => entry.anchor().text.clone(),
    };
    Some(format!("{time} {text}"))
}

fn log_line(state: &State) -> Option<String> {
    let filter = state.screen.filter.to_lowercase();
    let matches = |line: &&String| filter.is_empty() || line.to_lowercase().contains(&filter);
    state.facts.log.iter().rev().filter(matches).nth(state.screen.log_back).cloned()
}

fn checkpoint_path(state: &State) -> Option<String> {
    let row = state.chosen_checkpoint()?;
    Some(Path::new(&state.status()?.run_dir).join(&row.path).to_string_lossy().into_owned())
}

/// Returns the text of the chosen sample, the path of its picture, or the model's answer.
fn sample_item(state: &State) -> Option<String> {
    let samples = state.samples_of(state.chosen_set()?)?;
    let shown = samples.get(state.screen.samples.chosen.min(samples.len().checked_sub(1)?))?;
    let path = || shown.picture.as_ref().map(|path| path.to_string_lossy().into_owned());
    shown.sample.text.clone().or_else(path).or_else(|| shown.sample.answer.clone())
}

/// Returns the most frequent mistakes: `3 × 8 taken for 3; …`.
fn mistakes(state: &State) -> Option<String> {
    let matrix = state.confusion()?;
    let name = |class: usize| matrix.classes.get(class).map_or("?", String::as_str);
    let line = |(times, label, answer)| format!("{times} × {} taken for {}", name(label), name(answer));
    let lines: Vec<String> = confusion::most_frequent_mistakes(matrix).into_iter().map(line).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

/// Returns the value at the cursor of the layers, or the layer's name where it was not measured.
fn layer_value(state: &State) -> Option<String> {
    let (history, cursor) = (state.layer_history()?, state.screen.layers);
    let name = history.names().get(cursor.layer.min(history.names().len().checked_sub(1)?))?;
    let rows: Vec<_> = history.rows_until(state.moment).collect();
    let row = rows.get(rows.len().checked_sub(1)?.saturating_sub(cursor.back))?;
    let layer = row.stats.layers.iter().find(|layer| layer.name == *name);
    Some(match layer.and_then(|layer| cursor.measure.value(layer)) {
        Some(value) => format!("{name} {} {value} at step {}", cursor.measure.name(), row.stats.step),
        None => name.clone(),
    })
}
