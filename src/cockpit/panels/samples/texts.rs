//! Texts: the chosen sample beside the same one of the first and of the best evaluation.

use crate::cockpit::state::State;
use crate::cockpit::state::samples::{Beside, SetId, ShownSample};
use crate::cockpit::ui;
use crate::format::{count, figure};
use crate::protocol::samples::Sample;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    text::Line,
};
use std::collections::VecDeque;
use unicode_width::UnicodeWidthStr;

/// From this width, texts stand side by side.
const WIDE: u16 = 96;
/// Lines of a prompt that are shown above a continuation.
const PROMPT: usize = 4;

/// Draws the texts.
pub fn render(frame: &mut Frame<'_>, area: Rect, samples: &[&ShownSample], state: &State, theme: &Theme) {
    let Some(texts) = Texts::lay_out(area, samples, state) else { return };
    let prompt = texts.prompt.into_iter().map(|line| Line::styled(line, theme.dim));
    ui::render_lines(frame, area, prompt.collect());
    for block in texts.blocks {
        block.render(frame, state.screen.samples.text_from, theme);
    }
}

/// Returns how many lines the longest of the texts has beyond its room.
pub fn hidden_lines(area: Rect, samples: &[&ShownSample], state: &State) -> usize {
    let texts = Texts::lay_out(area, samples, state);
    texts.into_iter().flat_map(|texts| texts.blocks).map(|block| block.hidden_lines()).max().unwrap_or(0)
}

/// The texts on the screen, and their places.
struct Texts<'a> {
    /// The prompt that texts below each other share.
    prompt: Vec<String>,
    blocks: Vec<Block<'a>>,
}

/// A text and its place.
struct Block<'a> {
    title: String,
    sample: &'a Sample,
    area: Rect,
    /// Lines above the text.
    prompt: Vec<String>,
}

impl<'a> Texts<'a> {
    fn lay_out(area: Rect, samples: &[&'a ShownSample], state: &'a State) -> Option<Self> {
        let cursor = state.screen.samples;
        let chosen = cursor.chosen.min(samples.len().saturating_sub(1));
        let sample = &samples.get(chosen)?.sample;
        let mut shown = vec![(title(state, state.chosen_set(), None), sample)];
        for beside in [Beside::First, Beside::Best] {
            let Some(id) = state.set_beside(beside).filter(|_| !cursor.alone) else { continue };
            if let Some(other) = state.samples_of(id).and_then(|others| counterpart(&others, sample, chosen)) {
                shown.push((title(state, Some(id), Some(beside)), other));
            }
        }
        let stacked = area.width < WIDE && shown.len() > 1;
        let shared = stacked && shown.iter().all(|(_, other)| other.prompt == sample.prompt);
        let most = if shared { PROMPT.min(usize::from(area.height / 4).max(1)) } else { PROMPT };
        let prompt = if shared { wrap_prompt(sample, area.width, most) } else { Vec::new() };
        let used = u16::try_from(prompt.len()).unwrap_or(u16::MAX).min(area.height);
        let rest = Rect { y: area.y + used, height: area.height - used, ..area };
        let widths = vec![Constraint::Fill(1); shown.len()];
        let layout = if stacked { Layout::vertical(widths).spacing(1) } else { Layout::horizontal(widths).spacing(3) };
        let areas = layout.split(rest);
        let blocks = shown.into_iter().zip(areas.iter()).map(|((title, sample), area)| {
            let prompt = if shared { Vec::new() } else { wrap_prompt(sample, area.width, most) };
            Block { title, sample, area: *area, prompt }
        });
        Some(Self { prompt, blocks: blocks.collect() })
    }
}

impl Block<'_> {
    fn render(&self, frame: &mut Frame<'_>, from: usize, theme: &Theme) {
        let loss = self.sample.loss.map_or_else(String::new, |loss| format!("loss {}", figure(f64::from(loss))));
        let heading = Rect { height: self.area.height.min(1), ..self.area };
        let title = Line::styled(self.title.as_str(), theme.strong);
        ui::render_two_sides(frame, heading, title, Line::styled(loss, theme.dim));
        let prompt = self.prompt.iter().map(|line| Line::styled(line.as_str(), theme.dim));
        render_scrolled(frame, self.room(), prompt.chain(self.text().map(Line::from)), from, theme);
    }

    fn room(&self) -> Rect {
        let heading = self.area.height.min(1);
        Rect { y: self.area.y + heading, height: self.area.height - heading, ..self.area }
    }

    fn text(&self) -> impl Iterator<Item = String> {
        wrap_text(self.sample.text.as_deref().unwrap_or_default(), self.area.width)
    }

    fn hidden_lines(&self) -> usize {
        (self.prompt.len() + self.text().count()).saturating_sub(usize::from(self.room().height))
    }
}

/// Returns the sample of another set with the same prompt, or at the same place.
fn counterpart<'a>(others: &[&'a ShownSample], sample: &Sample, place: usize) -> Option<&'a Sample> {
    let same = |other: &&&ShownSample| sample.prompt.is_some() && other.sample.prompt == sample.prompt;
    others.iter().find(same).or(others.get(place)).map(|shown| &shown.sample)
}

fn title(state: &State, set: Option<SetId>, beside: Option<Beside>) -> String {
    let best = state.status().and_then(|status| status.best.as_ref()).map(|best| best.step);
    let is_newest = set == state.sample_sets().last().copied();
    let word = match (set, beside) {
        (Some(SetId::Step(_)), Some(Beside::First)) => "first: ",
        (Some(SetId::Step(_)), Some(Beside::Best)) => "best: ",
        (Some(SetId::Step(step)), None) if best == Some(step) => "best: ",
        (Some(SetId::Step(_)), None) if is_newest => "newest: ",
        _ => "",
    };
    match set {
        Some(SetId::Step(step)) => format!("{word}step {}", count(step)),
        Some(SetId::Files) | None => "file".to_owned(),
    }
}

/// Returns the last lines of a prompt: they are what the text continues.
fn wrap_prompt(sample: &Sample, width: u16, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = wrap_text(sample.prompt.as_deref().unwrap_or_default(), width).collect();
    if lines.len() > most {
        lines.drain(..lines.len() - most);
        lines.insert(0, "…".to_owned());
    }
    lines
}

/// Draws lines from `from` on, but no fewer than fit; `…` stands for more below. Takes only the lines it needs.
pub fn render_scrolled<'a>(
    frame: &mut Frame<'_>,
    room: Rect,
    lines: impl Iterator<Item = Line<'a>>,
    from: usize,
    theme: &Theme,
) {
    let height = usize::from(room.height);
    let mut taken = 0;
    let mut shown = VecDeque::new();
    for line in lines.take(from.saturating_add(height + 1)) {
        taken += 1;
        shown.push_back(line);
        if shown.len() > height + 1 {
            shown.pop_front();
        }
    }
    if taken > from.saturating_add(height) {
        shown.pop_back();
        if let Some(last) = shown.back_mut() {
            *last = Line::styled("…", theme.dim);
        }
    } else if shown.len() > height {
        shown.pop_front();
    }
    ui::render_lines(frame, room, shown.into());
}

/// Wraps a text; keeps its line ends and indentation.
pub fn wrap_text(text: &str, width: u16) -> impl Iterator<Item = String> {
    let width = usize::from(width);
    let wrap_line = move |line: &str| {
        let line = line.replace('\t', "    ");
        let body = line.trim_start();
        let indent = " ".repeat((line.width() - body.width()).min(width / 2));
        let rows = ui::wrap(body, width.saturating_sub(indent.width()).max(2));
        if rows.is_empty() { vec![String::new()] } else { rows.iter().map(|row| format!("{indent}{row}")).collect() }
    };
    text.lines().flat_map(wrap_line)
}

#[cfg(test)]
mod tests {
    use super::{render_scrolled, wrap_text};
    use crate::theme::Theme;
    use ratatui::text::Line;
    use ratatui::{Terminal, backend::TestBackend, layout::Rect};

    #[test]
    fn line_ends_and_indentation_stay() {
        let wrapped = |text| wrap_text(text, 16).collect::<Vec<_>>();
        let text = "def f(x):\n    return x and the rest\n\nend";
        assert_eq!(wrapped(text), ["def f(x):", "    return x and", "    the rest", "", "end"]);
        assert_eq!(wrapped(""), Vec::<String>::new());
    }

    #[test]
    fn scrolled_lines_end_with_the_last_and_are_taken_only_as_far_as_shown() {
        let shown = |from: usize| {
            let mut terminal = Terminal::new(TestBackend::new(2, 3)).unwrap();
            let mut taken = 0;
            let lines = (0..6).inspect(|_| taken += 1).map(|line| Line::from(line.to_string()));
            let draw = |frame: &mut ratatui::Frame<'_>| {
                render_scrolled(frame, Rect::new(0, 0, 2, 3), lines, from, &Theme::plain());
            };
            terminal.draw(draw).unwrap();
            let cells = terminal.backend().buffer().content.iter().map(ratatui::buffer::Cell::symbol);
            let text: String = cells.filter(|symbol| *symbol != " ").collect();
            (text, taken)
        };
        let text = |text: &str, taken| (text.to_owned(), taken);
        assert_eq!([shown(0), shown(2)], [text("01…", 4), text("23…", 6)]);
        assert_eq!([shown(3), shown(4), shown(50)], [text("345", 6), text("345", 6), text("345", 6)]);
    }
}
