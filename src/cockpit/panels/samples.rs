//! Samples of the model's work: a grid of pictures with label and answer, or texts beside those of the first and the
//! best evaluation. One sample alone fills the panel.

mod grid;
mod texts;

use super::component::{Click, Component};
use crate::cockpit::action::{Action, ChartAction};
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::pictures::{PictureOrder, draw};
use crate::cockpit::read_error::ReadError;
use crate::cockpit::state::State;
use crate::cockpit::state::samples::{SetId, ShownSample};
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::update::Effect;
use crate::cockpit::update::samples;
use crate::cockpit::{overlays, ui};
use crate::format::{age, count, figure, percent};
use crate::theme::Theme;
use grid::Grid;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

/// The content of the panel.
enum Content<'a> {
    Waiting(&'static str),
    Nothing,
    Failed(&'a ReadError),
    Pictures(Vec<&'a ShownSample>),
    Texts(Vec<&'a ShownSample>),
}

fn content(state: &State) -> Content<'_> {
    if state.samples.sets.is_none() {
        return Content::Waiting("looking for samples");
    }
    let Some(set) = state.chosen_set() else { return Content::Nothing };
    match (state.samples.read.get(&set), state.samples_of(set)) {
        (None, _) => Content::Waiting("reading the samples"),
        (Some(Err(error)), _) => Content::Failed(error),
        (Some(Ok(_)), Some(samples)) if !samples.is_empty() => {
            let texts = samples.iter().all(|shown| shown.picture.is_none() && shown.sample.text.is_some());
            if texts { Content::Texts(samples) } else { Content::Pictures(samples) }
        }
        _ => Content::Nothing,
    }
}

/// Samples of the model's work.
pub struct Samples;

/// Returns the text of the chosen sample, the path of its picture, or the model's answer.
fn copy_chosen(state: &State) -> Option<String> {
    let samples = state.samples_of(state.chosen_set()?)?;
    let shown = samples.get(state.screen.samples.chosen.min(samples.len().checked_sub(1)?))?;
    let path = || shown.picture.as_ref().map(|path| path.to_string_lossy().into_owned());
    shown.sample.text.clone().or_else(path).or_else(|| shown.sample.answer.clone())
}

/// Reports whether there are more samples, or lines of a text, than fit.
fn has_more(state: &State) -> bool {
    let Some(shown) = state.chosen_set().and_then(|set| state.samples_of(set)) else { return false };
    if shows_grid(state) {
        return shown.len() > samples_per_page(state);
    }
    let chosen = shown.get(state.screen.samples.chosen.min(shown.len().saturating_sub(1)));
    chosen.is_some_and(|chosen| chosen.sample.text.is_some())
}

impl Component for Samples {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
        let focused = state.screen.focus == Panel::Samples;
        let right = Line::styled(set_summary(state), theme.dim);
        let inner = ui::render_heading(frame, area, "samples", right, focused, theme);
        let alone = state.screen.samples.alone;
        match content(state) {
            Content::Waiting(text) => ui::render_placeholder(frame, inner, text, theme),
            Content::Nothing => ui::render_placeholder(frame, inner, &how_to_get_samples(state), theme),
            Content::Failed(error) => ui::render_placeholder(frame, inner, &error.to_string(), theme),
            Content::Pictures(samples) => {
                let (room, foot) = split_foot(inner);
                let chosen = samples[state.screen.samples.chosen.min(samples.len() - 1)];
                if alone {
                    draw_sample(frame, room, chosen, state, theme);
                } else {
                    let grid = Grid::lay_out(room, samples.len(), state.screen.samples.chosen);
                    grid::render(frame, &grid, &samples, state, theme);
                }
                render_foot(frame, foot, &samples, state, theme);
            }
            Content::Texts(samples) => {
                let (room, foot) = split_foot(inner);
                texts::render(frame, room, &samples, state, theme);
                render_foot(frame, foot, &samples, state, theme);
            }
        }
    }

    fn own_view(&self) -> View {
        View::Samples
    }

    fn actions(&self, state: &State) -> &'static [Action] {
        if state.confusion().is_some() && !state.screen.samples.alone {
            return &[
                Action::Chart(ChartAction::Left),
                Action::NextPanel,
                Action::Down,
                Action::Confirm,
                Action::PageDown,
            ];
        }
        &[Action::Chart(ChartAction::Left), Action::Down, Action::Confirm, Action::PageDown]
    }

    fn label(&self, state: &State, action: Action) -> Option<&'static str> {
        match action {
            Action::Down => Some("choose"),
            Action::NextPanel => Some("confusion"),
            Action::Confirm => Some(if state.screen.samples.alone { "all" } else { "alone" }),
            _ => None,
        }
    }

    fn can_act(&self, state: &State, action: Action) -> bool {
        action != Action::PageDown || has_more(state)
    }

    fn copy(&self, state: &State) -> Option<String> {
        copy_chosen(state)
    }

    fn scroll(&self, state: &mut State, lines: isize) -> Vec<Effect> {
        samples::scroll_samples(state, -lines)
    }

    fn click(&self, state: &mut State, click: Click) -> Vec<Effect> {
        if click.row().is_some() { samples::click(state, click.at) } else { vec![Effect::Redraw] }
    }
}

/// Splits the line about the chosen sample off.
fn split_foot(inner: Rect) -> (Rect, Rect) {
    let foot = inner.height.min(1);
    let room = Rect { height: inner.height.saturating_sub(2), ..inner };
    (room, Rect { y: inner.bottom() - foot, height: foot, ..inner })
}

/// Names the set on the screen, and its place among the others.
fn set_summary(state: &State) -> String {
    let sets = state.sample_sets();
    let Some(set) = state.chosen_set() else { return String::new() };
    let place = sets.iter().position(|id| *id == set).map_or(0, |place| place + 1);
    let is_newest = place == sets.len();
    let name = match set {
        SetId::Step(step) => format!("step {}", count(step)),
        SetId::Files => "files, newest first".to_owned(),
    };
    if set == SetId::Files && sets.len() == 1 {
        return name;
    }
    let best = state.status().and_then(|status| status.best.as_ref()).map(|best| SetId::Step(best.step));
    let mark = match (Some(set) == best, is_newest) {
        (true, _) => "   best",
        (false, true) => "   newest",
        (false, false) => "",
    };
    format!("{name}   {place} of {}{mark}", sets.len())
}

fn how_to_get_samples(state: &State) -> String {
    if state.moment.is_some() {
        return "no samples by then".to_owned();
    }
    if state.command.is_some() {
        return "no samples yet. `samples:` in the run file names the pictures and texts that the command writes; \
                a script can also call `run.sample()`"
            .to_owned();
    }
    "no samples yet. Each evaluation adds some, if the task has any".to_owned()
}

/// Draws the last line: the chosen sample in words.
fn render_foot(frame: &mut Frame<'_>, area: Rect, samples: &[&ShownSample], state: &State, theme: &Theme) {
    let chosen = state.screen.samples.chosen.min(samples.len().saturating_sub(1));
    let Some(shown) = samples.get(chosen) else { return };
    let mut line = Line::from(Span::styled(format!("{} of {}   ", chosen + 1, samples.len()), theme.dim));
    line.spans.extend(describe(shown, state, theme));
    ui::render_line(frame, area, line);
}

/// Describes a sample: name, label, answer, confidence and loss, as far as it has them.
fn describe(shown: &ShownSample, state: &State, theme: &Theme) -> Vec<Span<'static>> {
    let sample = &shown.sample;
    let mut spans = Vec::new();
    let mut add = |label: &str, value: String, style| {
        spans.push(Span::styled(if label.is_empty() { String::new() } else { format!("{label} ") }, theme.dim));
        spans.push(Span::styled(format!("{value}   "), style));
    };
    if let Some(name) = &sample.name {
        add("", one_line(name), theme.strong);
    }
    if let Some(label) = &sample.label {
        add("label", one_line(label), theme.base);
    }
    if let Some(answer) = &sample.answer {
        let style = if is_wrong(shown) { theme.danger } else { theme.good };
        let sure = sample.confidence.filter(|sure| sure.is_finite());
        let sure = sure.map_or_else(String::new, |sure| format!(" {}", percent(f64::from(sure))));
        add("answer", format!("{}{sure}", one_line(answer)), style);
    }
    if let Some(loss) = sample.loss {
        add("loss", figure(f64::from(loss)), theme.base);
    }
    if sample.label.is_none() && sample.loss.is_none() && shown.time_ms > 0 {
        add("", format!("{} ago", age(state.now_ms.saturating_sub(shown.time_ms).max(0))), theme.dim);
    }
    if let Some(last) = spans.last_mut() {
        last.content = last.content.trim_end().to_owned().into();
    }
    spans
}

/// Reports whether the model's answer is not the label.
fn is_wrong(shown: &ShownSample) -> bool {
    matches!((&shown.sample.label, &shown.sample.answer), (Some(label), Some(answer)) if label != answer)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Draws a sample's picture, or its text, or why the picture is missing.
fn draw_sample(frame: &mut Frame<'_>, room: Rect, shown: &ShownSample, state: &State, theme: &Theme) {
    let Some(order) = state.picture_order(shown, (room.width, room.height)) else {
        let lines = texts::wrap_text(shown.sample.text.as_deref().unwrap_or("no picture"), room.width);
        let from = if state.screen.samples.alone { state.screen.samples.text_from } else { 0 };
        return texts::render_scrolled(frame, room, lines.map(Line::from), from, theme);
    };
    match state.samples.pictures.get(&order) {
        None => ui::render_placeholder(frame, room, "…", theme),
        Some(Err(error)) => ui::render_placeholder(frame, room, &error.to_string(), theme),
        Some(Ok(picture)) => {
            let allowed = !overlays::is_open(state);
            draw::draw_picture(frame.buffer_mut(), room, &picture.0, order.support.kind, allowed, theme);
        }
    }
}

/// Returns the panel's room without heading and foot.
fn room(state: &State) -> Option<Rect> {
    let area = lay_out_state(state).area_of(Panel::Samples)?;
    Some(room_of(area))
}

fn room_of(area: Rect) -> Rect {
    let heading = area.height.min(1);
    split_foot(Rect { y: area.y + heading, height: area.height - heading, ..area }).0
}

/// Returns the orders for all pictures on the screen.
#[must_use]
pub fn wanted_pictures(state: &State) -> Vec<PictureOrder> {
    let (Content::Pictures(samples), Some(room)) = (content(state), room(state)) else { return Vec::new() };
    let chosen = state.screen.samples.chosen.min(samples.len() - 1);
    if state.screen.samples.alone {
        return state.picture_order(samples[chosen], (room.width, room.height)).into_iter().collect();
    }
    let grid = Grid::lay_out(room, samples.len(), chosen);
    let shown = grid.tiles().filter_map(|(place, tile)| {
        let picture = Grid::picture_room(tile);
        state.picture_order(samples.get(place)?, (picture.width, picture.height))
    });
    shown.collect()
}

/// Reports whether the panel shows several samples at once.
#[must_use]
pub fn shows_grid(state: &State) -> bool {
    matches!(content(state), Content::Pictures(_)) && !state.screen.samples.alone
}

/// Returns the number of samples on one page of the grid.
#[must_use]
pub fn samples_per_page(state: &State) -> usize {
    let (Content::Pictures(samples), Some(room)) = (content(state), room(state)) else { return 1 };
    Grid::lay_out(room, samples.len(), state.screen.samples.chosen).tiles().count()
}

/// Returns how many lines the texts on the screen have beyond their room.
#[must_use]
pub fn hidden_text_lines(state: &State) -> usize {
    let Some(room) = room(state) else { return 0 };
    match content(state) {
        Content::Texts(samples) => texts::hidden_lines(room, &samples, state),
        Content::Pictures(samples) => {
            let shown = samples[state.screen.samples.chosen.min(samples.len() - 1)];
            let text = shown.sample.text.as_deref().filter(|_| shown.picture.is_none()).unwrap_or_default();
            texts::wrap_text(text, room.width).count().saturating_sub(usize::from(room.height))
        }
        _ => 0,
    }
}

/// Returns the sample at a position of the screen.
#[must_use]
pub fn sample_at(state: &State, area: Rect, at: (u16, u16)) -> Option<usize> {
    let Content::Pictures(samples) = content(state) else { return None };
    if state.screen.samples.alone {
        return Some(state.screen.samples.chosen);
    }
    let grid = Grid::lay_out(room_of(area), samples.len(), state.screen.samples.chosen);
    grid.tiles().find(|(_, tile)| tile.contains(at.into())).map(|(place, _)| place)
}
