//! Small widgets shared by panels: headings, bars, boxes, two-sided lines.

mod text;

pub use text::{cut, cut_clause, cut_start, pad, pad_left, wrap};

use super::ratio::Ratio;
use super::verdict::Tone;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
    widgets::{Block, BorderType, Clear},
};
use unicode_width::UnicodeWidthStr;

/// Returns the style of a tone.
#[must_use]
pub fn tone_style(theme: &Theme, tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Good => theme.good,
        Tone::Busy => theme.accent,
        Tone::Warn => theme.warn,
        Tone::Danger => theme.danger,
    }
}

/// Draws a panel's first row, a rule with a title and something on the right; returns the area below.
///
/// ```text
/// loss ────────────────────────────── smoothed 0.90
/// ```
pub fn render_heading(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    right: Line<'_>,
    focused: bool,
    theme: &Theme,
) -> Rect {
    let row = Rect { height: area.height.min(1), ..area };
    let used = title.width() + 1;
    let room = usize::from(area.width).saturating_sub(used);
    let right_width = if right.width() + 4 <= room { right.width() } else { 0 };
    let gap = usize::from(right_width > 0);
    let rule = "─".repeat(room.saturating_sub(right_width + gap));
    let style = if focused { theme.accent } else { theme.strong };
    let mut line = Line::from(vec![Span::styled(title, style), Span::raw(" "), Span::styled(rule, theme.faint)]);
    if right_width > 0 {
        line.push_span(Span::raw(" "));
        line.spans.extend(right.spans);
    }
    render_line(frame, row, line);
    Rect { y: area.y + row.height, height: area.height - row.height, ..area }
}

/// Draws the right line at the end of the row, and the left one in the room before it.
pub fn render_two_sides(frame: &mut Frame<'_>, area: Rect, left: Line<'_>, right: Line<'_>) {
    let room = usize::from(area.width);
    let width = u16::try_from(right.width()).unwrap_or(u16::MAX).min(area.width);
    let mut left_area = Rect { height: area.height.min(1), ..area };
    if width > 0 && usize::from(width) < room {
        render_line(frame, Rect { x: area.right() - width, width, ..left_area }, right);
        left_area.width -= width + 1;
    }
    render_line(frame, left_area, left);
}

/// Renders a bar of thin lines at half-cell resolution: `━━━━━╾─────`. A limit is a stroke across it.
#[must_use]
pub fn bar(width: u16, parts: &[(Ratio, Style)], limit: Option<Ratio>, theme: &Theme) -> Line<'static> {
    let halves = f64::from(width) * 2.0;
    let mut ends = Vec::with_capacity(parts.len());
    let mut sum = 0.0;
    for (ratio, style) in parts {
        sum += ratio.get();
        // A small but nonzero amount must be visible.
        let least = if ratio.get() > 0.0 { 1.0 } else { 0.0 };
        ends.push(((sum.min(1.0) * halves).round().max(least), *style));
    }
    let style_at = |half: f64| ends.iter().find(|(end, _)| half < *end).map(|(_, style)| *style);
    let limit = limit.map(|limit| (limit.get() * f64::from(width.saturating_sub(1))).round() as u16);
    let cell = |x: u16| match (style_at(f64::from(x) * 2.0), style_at(f64::from(x) * 2.0 + 1.0)) {
        _ if limit == Some(x) => Span::styled("┼", theme.mark),
        (Some(style), Some(_)) => Span::styled("━", style),
        (Some(style), None) => Span::styled("╸", style),
        _ => Span::styled("─", theme.faint),
    };
    merge_spans((0..width).map(cell))
}

/// Renders the newest values as a line of dots, two per cell, scaled from 0 to the largest: `⠒⠒⠊⠉`.
pub fn spark(width: u16, values: &[f64], style: Style) -> Line<'static> {
    let newest = &values[values.len().saturating_sub(usize::from(width) * 2)..];
    let most = newest.iter().copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
    dots(newest, |value| Ratio::new(value / most), style)
}

/// Renders values as dots at one of four heights, two per cell.
fn dots(values: &[f64], height: impl Fn(&f64) -> Option<Ratio>, style: Style) -> Line<'static> {
    const DOTS: [[u32; 4]; 2] = [[0x40, 0x04, 0x02, 0x01], [0x80, 0x20, 0x10, 0x08]];
    let level = |value: &f64| height(value).map_or(0, |share| (share.get() * 3.0).round() as usize);
    let cell = |pair: &[f64]| {
        let bits: u32 = pair.iter().zip(DOTS).map(|(value, dots)| dots[level(value).min(3)]).sum();
        char::from_u32(0x2800 + bits).unwrap_or(' ')
    };
    Line::styled(values.chunks(2).map(cell).collect::<String>(), style)
}

/// Renders values as a line of dots, two per cell, from their lowest to their highest.
#[must_use]
pub fn small_curve(width: u16, values: &[f64], style: Style) -> Line<'static> {
    let newest = &values[values.len().saturating_sub(usize::from(width) * 2)..];
    let (low, high) = newest
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(*value), high.max(*value)));
    // A flat line lies in the middle.
    let place = |value: &f64| if high > low { (value - low) / (high - low) } else { 0.5 };
    dots(newest, |value| Ratio::new(place(value)), style)
}

fn merge_spans(cells: impl Iterator<Item = Span<'static>>) -> Line<'static> {
    let mut spans: Vec<Span<'static>> = Vec::new();
    for cell in cells {
        match spans.last_mut() {
            Some(last) if last.style == cell.style => last.content.to_mut().push_str(&cell.content),
            _ => spans.push(cell),
        }
    }
    Line::from(spans)
}

/// Position of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// Centred: opened by the user.
    Middle,
    /// Bottom right, clear of the curve: opened automatically.
    Corner,
}

/// Returns the area of a box for the given content size, including its border.
#[must_use]
pub fn popup_area(within: Rect, size: (u16, u16), stand: Stand) -> Rect {
    let air = if stand == Stand::Middle { 4 } else { 2 };
    let size = (size.0.saturating_add(6).min(within.width), size.1.saturating_add(air).min(within.height));
    match stand {
        Stand::Middle => within.centered(Constraint::Length(size.0), Constraint::Length(size.1)),
        Stand::Corner => Rect {
            x: within.right().saturating_sub(size.0 + 1).max(within.x),
            y: within.bottom().saturating_sub(size.1),
            width: size.0,
            height: size.1,
        },
    }
}

/// Returns the area inside the border of such a box.
#[must_use]
pub fn popup_inner(within: Rect, area: Rect, stand: Stand) -> Rect {
    let air = u16::from(within.height > area.height && stand == Stand::Middle);
    let (left, top) = (3.min(area.width / 2), (1 + air).min(area.height / 2));
    Rect {
        x: area.x + left,
        y: area.y + top,
        width: area.width.saturating_sub(2 * left),
        height: area.height.saturating_sub(2 * top),
    }
}

/// A box over the panels, sized to its content if that fits.
pub struct Popup<'a> {
    /// Its title, in the border.
    pub title: &'a str,
    /// Columns and rows of its content.
    pub size: (u16, u16),
    /// The tone of its border.
    pub tone: Tone,
    /// Its position.
    pub stand: Stand,
}

impl Popup<'_> {
    /// Draws the box; returns the area inside.
    pub fn open(&self, frame: &mut Frame<'_>, within: Rect, theme: &Theme) -> Rect {
        let area = popup_area(within, self.size, self.stand);
        let border = if self.tone == Tone::Plain { theme.mark } else { tone_style(theme, self.tone) };
        let block = Block::bordered()
            .border_type(BorderType::Rounded)
            .border_style(border)
            .title(Span::styled(format!(" {} ", self.title), theme.strong))
            .style(theme.overlay);
        frame.render_widget(Clear, area);
        frame.render_widget(block, area);
        popup_inner(within, area, self.stand)
    }
}

/// Returns the height of a box with this number of lines, a blank row and the keys.
#[must_use]
pub fn scroll_box_height(lines: usize) -> u16 {
    u16::try_from(lines + 2).unwrap_or(u16::MAX)
}

/// Returns the number of lines that a scrolled box in the middle does not show.
#[must_use]
pub fn hidden_in_box(within: Rect, lines: usize) -> usize {
    let area = popup_area(within, (1, scroll_box_height(lines)), Stand::Middle);
    let room = usize::from(popup_inner(within, area, Stand::Middle).height).saturating_sub(2);
    lines.saturating_sub(room)
}

impl Popup<'_> {
    /// Draws a box with lines from `from` on, and the keys below; says how much there is above and below.
    pub fn open_scrolled(
        &self,
        frame: &mut Frame<'_>,
        within: Rect,
        lines: Vec<Line<'_>>,
        from: usize,
        keys: &KeyLine,
        theme: &Theme,
    ) {
        let hidden = hidden_in_box(within, lines.len());
        let inner = self.open(frame, within, theme);
        let [list, _, bottom] =
            Layout::vertical([Constraint::Min(0), Constraint::Length(1), Constraint::Length(1)]).areas(inner);
        let from = from.min(hidden);
        render_lines(frame, list, lines.into_iter().skip(from).collect());
        render_two_sides(frame, bottom, keys.render(usize::from(bottom.width), theme), more_note(from, hidden, theme));
    }
}

/// Says how many lines of a list are above and below its visible part: `↑ 2 above  ↓ 3 below`.
#[must_use]
pub fn more_note(above: usize, hidden: usize, theme: &Theme) -> Line<'static> {
    let below = hidden.saturating_sub(above);
    let mut parts = Vec::new();
    if above > 0 {
        parts.push(format!("↑ {above} more above"));
    }
    if below > 0 {
        parts.push(format!("↓ {below} more below"));
    }
    Line::styled(parts.join("  "), theme.accent)
}

/// Keys and their actions on one line: `Enter shift     Esc back`. Mouse clicks are matched against it.
#[derive(Debug, Clone, Default)]
pub struct KeyLine(pub Vec<(String, &'static str, super::action::Action)>);

impl KeyLine {
    /// Returns the columns between two entries; fewer if the line is narrow.
    fn gap(&self, width: usize) -> usize {
        let words: usize = self.0.iter().map(|(key, word, _)| key.width() + 1 + word.width()).sum();
        let gaps = self.0.len().saturating_sub(1).max(1);
        (width.saturating_sub(words) / gaps).clamp(2, 5)
    }

    /// Renders the line in the given columns.
    #[must_use]
    pub fn render(&self, width: usize, theme: &Theme) -> Line<'static> {
        let gap = self.gap(width);
        let mut line = Line::default();
        for (place, (key, word, _)) in self.0.iter().enumerate() {
            line.push_span(Span::raw(" ".repeat(if place > 0 { gap } else { 0 })));
            line.push_span(Span::styled(key.clone(), theme.accent));
            line.push_span(Span::raw(format!(" {word}")));
        }
        line
    }

    /// Returns the action at a column of the line.
    #[must_use]
    pub fn action_at(&self, column: usize, width: usize) -> Option<super::action::Action> {
        let gap = self.gap(width);
        let mut start = 0;
        for (key, word, action) in &self.0 {
            let end = start + key.width() + 1 + word.width();
            if (start..end).contains(&column) {
                return Some(*action);
            }
            start = end + gap;
        }
        None
    }
}

/// Draws lines below each other, as many as fit.
pub fn render_lines(frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'_>>) {
    for (row, line) in area.rows().zip(lines) {
        render_line(frame, row, line);
    }
}

/// Draws a line, truncated with `…` if it does not fit.
pub fn render_line(frame: &mut Frame<'_>, area: Rect, line: Line<'_>) {
    frame.render_widget(cut_line(line, usize::from(area.width)), area);
}

/// Truncates a line to `width` columns, with `…` for the missing part. Spaces at its end are not missed.
#[must_use]
pub fn cut_line(line: Line<'_>, width: usize) -> Line<'_> {
    let blank = line.spans.iter().rev().flat_map(|span| span.content.chars().rev()).take_while(|c| *c == ' ').count();
    if line.width().saturating_sub(blank) <= width {
        return line;
    }
    let mut left = width;
    let mut kept = Line { spans: Vec::new(), ..line };
    for span in line.spans {
        let whole = span.width() < left;
        let span = if whole { span } else { Span::styled(cut(&format!("{}…", span.content), left), span.style) };
        left -= span.width().min(left);
        kept.spans.push(span);
        if !whole {
            break;
        }
    }
    kept
}

/// Draws a centred placeholder in an area that has nothing to show yet.
pub fn render_placeholder(frame: &mut Frame<'_>, area: Rect, text: &str, theme: &Theme) {
    let wrapped = wrap(text, usize::from(area.width.saturating_sub(4)).max(1));
    let top = (usize::from(area.height).saturating_sub(wrapped.len()) / 2).min(usize::from(area.height));
    for (row, text) in area.rows().skip(top).zip(wrapped) {
        render_line(frame, row, Line::styled(text, theme.dim).centered());
    }
}

#[cfg(test)]
mod tests;
