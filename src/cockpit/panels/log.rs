//! The worker's output, newest at the bottom; only lines that match the filter.

use super::component::{Click, Component, scrolled};
use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, Panel, View};
use crate::cockpit::ui;
use crate::cockpit::update::Effect;
use crate::format::count;
use crate::theme::Theme;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use std::ops::Range;
use unicode_width::UnicodeWidthStr;

/// The characters that bars are drawn with.
const DRAWN: &str = "█▉▊▋▌▍▎▏━╸╺─#=";
/// Shortest bar that gives way.
const SHORTEST_BAR: usize = 5;

/// The worker's output.
pub struct Log;

impl Component for Log {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
        let focused = state.screen.focus == Panel::Log;
        let filter = state.screen.filter.to_lowercase();
        let matches = |line: &&String| filter.is_empty() || line.to_lowercase().contains(&filter);
        let found = state.facts.log.iter().filter(matches).count();
        let note = match (filter.is_empty(), state.screen.mode) {
            (true, Mode::Filter) => "type to filter".to_owned(),
            (false, _) => {
                format!("{} of {} match \"{filter}\"", count(found as u64), count(state.facts.log.len() as u64))
            }
            (true, _) => format!("{} filter", state.keys.key_of(Action::Filter)),
        };
        let inner = ui::render_heading(frame, area, "worker log", Line::styled(note, theme.dim), focused, theme);
        if found == 0 {
            let text = match (filter.is_empty(), state.moment.is_some()) {
                (_, true) => "the replay leaves out the worker log",
                (true, false) => "no output yet: the worker has printed nothing",
                (false, false) => "no matching lines: Esc clears the filter",
            };
            return ui::render_placeholder(frame, inner, text, theme);
        }
        let room = usize::from(inner.height);
        let back = state.screen.log_back.min(found.saturating_sub(1));
        let newest = state.facts.log.iter().rev().filter(matches).skip(back).take(room);
        let mut lines: Vec<_> =
            newest.map(|text| Line::styled(fit(text, usize::from(inner.width)), line_style(text, theme))).collect();
        lines.reverse();
        ui::render_lines(frame, inner, lines);
    }

    fn own_view(&self) -> View {
        View::Log
    }

    fn actions(&self, _state: &State) -> &'static [Action] {
        &[Action::Filter, Action::Down]
    }

    fn copy(&self, state: &State) -> Option<String> {
        let filter = state.screen.filter.to_lowercase();
        let matches = |line: &&String| filter.is_empty() || line.to_lowercase().contains(&filter);
        state.facts.log.iter().rev().filter(matches).nth(state.screen.log_back).cloned()
    }

    fn scroll(&self, state: &mut State, lines: isize) -> Vec<Effect> {
        state.screen.log_back = scrolled(state.screen.log_back, lines, state.shown().facts.log.len());
        vec![Effect::Redraw]
    }

    fn click(&self, state: &mut State, click: Click) -> Vec<Effect> {
        self.open_again(state, click)
    }
}

/// Highlights errors and warnings, recognised by the words loggers use.
fn line_style(text: &str, theme: &Theme) -> Style {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if has(&["ERROR", "panicked", "error:"]) {
        theme.danger
    } else if has(&["WARN", "warning:"]) {
        theme.warn
    } else {
        theme.dim
    }
}

/// Cuts a line of the log. The drawing of a progress bar gives way first, since its values stand behind it.
pub fn fit(text: &str, width: usize) -> String {
    match find_bar(text).filter(|_| text.width() > width) {
        Some(bar) => ui::cut(&format!("{}…{}", &text[..bar.start], &text[bar.end..]), width),
        None => ui::cut(text, width),
    }
}

/// Finds the longest drawing of a bar: `█████▌    `, or the blanks between two `|` of one that is empty.
fn find_bar(text: &str) -> Option<Range<usize>> {
    let is_part = |letter: char| letter == ' ' || DRAWN.contains(letter);
    let is_bar = |bar: &Range<usize>| {
        let framed = text[..bar.start].ends_with('|') && text[bar.end..].starts_with('|');
        let drawn = text[bar.clone()].chars().filter(|letter| *letter != ' ').count();
        text[bar.clone()].chars().count() >= SHORTEST_BAR && (framed || drawn >= SHORTEST_BAR)
    };
    let mut bars: Vec<Range<usize>> = Vec::new();
    for (at, letter) in text.char_indices().filter(|(_, letter)| is_part(*letter)) {
        let end = at + letter.len_utf8();
        match bars.last_mut().filter(|bar| bar.end == at) {
            Some(bar) => bar.end = end,
            None => bars.push(at..end),
        }
    }
    bars.into_iter().filter(is_bar).max_by_key(ExactSizeIterator::len)
}

#[cfg(test)]
mod tests {
    use super::fit;

    #[test]
    fn the_drawing_of_a_bar_gives_way_before_its_values() {
        let bar = "epoch 1/6:  50%|█████     | 100/200 [00:12<00:12,  8.10it/s, loss=0.5124]";
        assert_eq!(fit(bar, 80), bar, "it fits");
        assert_eq!(fit(bar, 66), "epoch 1/6:  50%|…| 100/200 [00:12<00:12,  8.10it/s, loss=0.5124]");
        assert!(fit(bar, 40).ends_with('…'));
        let empty = "epoch 1/6:   0%|          | 0/200 [00:00<?, ?it/s, loss=0.9]";
        assert_eq!(fit(empty, 54), "epoch 1/6:   0%|…| 0/200 [00:00<?, ?it/s, loss=0.9]");
        let keras = "100/200 ━━━━━━━━━━━━━━━━━━━━ 1s 8ms/step - loss: 0.4";
        assert_eq!(fit(keras, 36), "100/200…1s 8ms/step - loss: 0.4");
        assert_eq!(fit("=== a table === of words and more words", 12), "=== a table…");
    }
}
