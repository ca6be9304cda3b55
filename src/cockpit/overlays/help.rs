//! Every key, from the table of actions: two columns if they fit, otherwise a scrolling list.

use crate::cockpit::action::{ActionEntry, Group, TABLE};
use crate::cockpit::state::State;
use crate::cockpit::ui::{self, Popup, Stand};
use crate::cockpit::verdict::Tone;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    text::{Line, Span},
};

const GROUPS: [Group; 4] = [Group::Run, Group::Views, Group::Chart, Group::Cockpit];

/// Draws the box; `from` is the first visible line if not all fit.
pub fn render(frame: &mut Frame<'_>, within: Rect, from: usize, state: &State, theme: &Theme) {
    let mut blocks = GROUPS.into_iter().map(|group| group_lines(group, state, theme));
    if within.width >= 118 {
        let lanes: [Vec<_>; 2] = [blocks.by_ref().take(2).flatten().collect(), blocks.flatten().collect()];
        let high = u16::try_from(lanes[0].len().max(lanes[1].len())).unwrap_or(u16::MAX);
        let inner = Popup { title: "keys", size: (110, high), tone: Tone::Plain, stand: Stand::Middle }
            .open(frame, within, theme);
        let areas: [Rect; 2] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(3).areas(inner);
        for (area, lines) in areas.into_iter().zip(lanes) {
            ui::render_lines(frame, area, lines);
        }
        return;
    }
    let lines: Vec<_> = blocks.flatten().collect();
    let high = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let inner =
        Popup { title: "keys", size: (62, high), tone: Tone::Plain, stand: Stand::Middle }.open(frame, within, theme);
    let hidden = lines.len().saturating_sub(usize::from(inner.height));
    if hidden == 0 {
        return ui::render_lines(frame, inner, lines);
    }
    let [list, hint] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(inner);
    let from = from.min(hidden + 1);
    ui::render_lines(frame, list, lines.into_iter().skip(from).collect());
    let words = if from > hidden { "↑ more above" } else { "↓ more below" };
    ui::render_line(frame, hint, Line::styled(words, theme.accent).right_aligned());
}

fn group_lines(group: Group, state: &State, theme: &Theme) -> Vec<Line<'static>> {
    let mut lines = vec![Line::styled(group.title(), theme.strong)];
    lines.extend(TABLE.iter().filter(|entry| entry.group == group).map(|entry| entry_line(entry, state, theme)));
    if group != Group::Cockpit {
        lines.push(Line::default());
    }
    lines
}

fn entry_line(entry: &ActionEntry, state: &State, theme: &Theme) -> Line<'static> {
    let keys: Vec<_> = state.keys.keys_of(entry.action).iter().map(|key| key.name()).collect();
    Line::from(vec![
        Span::styled(ui::pad_left(&keys.join(" "), 10), theme.accent),
        Span::raw("  "),
        // Actions a read-only cockpit cannot request are dimmed.
        if state.read_only && entry.group == Group::Run {
            Span::styled(entry.help, theme.faint)
        } else {
            Span::raw(entry.help)
        },
    ])
}
