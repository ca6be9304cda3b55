//! Small widgets shared by panels: headings, bars, boxes, two-sided lines.

use super::ratio::Ratio;
use super::verdict::Tone;
use crate::config::theme::Theme;
use ratatui::{
    Frame,
    layout::{Constraint, Rect},
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
    frame.render_widget(line, row);
    Rect { y: area.y + row.height, height: area.height - row.height, ..area }
}

/// Draws the left line, and the right one at the end of the row if both fit.
pub fn render_two_sides(frame: &mut Frame<'_>, area: Rect, left: Line<'_>, right: Line<'_>) {
    let room = usize::from(area.width);
    let fits = left.width() + right.width() < room;
    let width = u16::try_from(right.width()).unwrap_or(u16::MAX).min(area.width);
    let mut left_area = Rect { height: area.height.min(1), ..area };
    if fits && width > 0 {
        frame.render_widget(right, Rect { x: area.right() - width, width, ..left_area });
        left_area.width -= width;
    }
    frame.render_widget(left, left_area);
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
    const DOTS: [[u32; 4]; 2] = [[0x40, 0x04, 0x02, 0x01], [0x80, 0x20, 0x10, 0x08]];
    let newest = &values[values.len().saturating_sub(usize::from(width) * 2)..];
    let most = newest.iter().copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
    let level = |value: &f64| Ratio::new(value / most).map_or(0, |share| (share.get() * 3.0).round() as usize);
    let cell = |pair: &[f64]| {
        let bits: u32 = pair.iter().zip(DOTS).map(|(value, dots)| dots[level(value).min(3)]).sum();
        char::from_u32(0x2800 + bits).unwrap_or(' ')
    };
    Line::styled(newest.chunks(2).map(cell).collect::<String>(), style)
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
        frame.render_widget(line, row);
    }
}

/// Draws a centred placeholder in an area that has nothing to show yet.
pub fn render_placeholder(frame: &mut Frame<'_>, area: Rect, text: &str, theme: &Theme) {
    let wrapped = wrap(text, usize::from(area.width.saturating_sub(4)).max(1));
    let top = (usize::from(area.height).saturating_sub(wrapped.len()) / 2).min(usize::from(area.height));
    for (row, text) in area.rows().skip(top).zip(wrapped) {
        frame.render_widget(Line::styled(text, theme.dim).centered(), row);
    }
}

/// Wraps a text to lines of at most `width` columns, between words if possible. Never breaks at a space
/// within a number or between a number and its unit.
#[must_use]
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut rows = Vec::new();
    let mut row = String::new();
    for word in unbreakable_words(text) {
        if !row.is_empty() && row.width() + 1 + word.width() > width {
            rows.push(std::mem::take(&mut row));
        }
        if !row.is_empty() {
            row.push(' ');
        }
        for letter in word.chars() {
            if !row.is_empty() && row.width() + letter.to_string().width() > width {
                rows.push(std::mem::take(&mut row));
            }
            row.push(letter);
        }
    }
    if !row.is_empty() {
        rows.push(row);
    }
    rows
}

const UNITS: [&str; 13] = ["s", "ms", "min", "h", "d", "%", "B", "KiB", "MiB", "GiB", "TiB", "°C", "W"];

fn unbreakable_words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let digits = word.len() >= 3 && word.bytes().take(3).all(|byte| byte.is_ascii_digit());
        let unit = UNITS.contains(&word.trim_end_matches([',', '.', ';', ':', ')']));
        match words.last_mut() {
            Some(last) if (digits || unit) && last.len() <= 11 && last.ends_with(|c: char| c.is_ascii_digit()) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// Truncates a text to `width` columns, with `…` for the missing part.
#[must_use]
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for letter in text.chars() {
        if kept.width() + letter.to_string().width() + 1 > width {
            break;
        }
        kept.push(letter);
    }
    if width > 0 {
        kept.push('…');
    }
    kept
}

/// Pads or truncates a text to exactly `width` columns, left-aligned.
#[must_use]
pub fn pad(text: &str, width: usize) -> String {
    let text = cut(text, width);
    let missing = width - text.width().min(width);
    text + &" ".repeat(missing)
}

/// Pads or truncates a text to exactly `width` columns, right-aligned.
#[must_use]
pub fn pad_left(text: &str, width: usize) -> String {
    let text = cut(text, width);
    " ".repeat(width - text.width().min(width)) + &text
}

#[cfg(test)]
mod tests {
    use super::{bar, cut, pad, pad_left, spark, wrap};
    use crate::cockpit::ratio::Ratio;
    use crate::config::theme::Theme;
    use proptest::prelude::*;
    use ratatui::style::Style;
    use unicode_width::UnicodeWidthStr;

    #[test]
    fn text_is_wrapped_between_words_and_never_within_a_number() {
        assert_eq!(wrap("resumed at step 1 204 after", 17), ["resumed at step", "1 204 after"]);
        assert_eq!(wrap("went on after 0.9 s, well", 18), ["went on after", "0.9 s, well"]);
        assert_eq!(wrap("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!((pad("ab", 4), pad_left("ab", 4)), ("ab  ".to_owned(), "  ab".to_owned()));
    }

    #[test]
    fn bars_are_half_a_cell_fine() {
        let theme = Theme::shipped().unwrap().remove(0);
        let text = |share: f64, limit: Option<f64>| {
            bar(10, &[(Ratio::new(share).unwrap(), Style::new())], limit.and_then(Ratio::new), &theme).to_string()
        };
        assert_eq!(text(0.0, None), "──────────");
        assert_eq!(text(0.001, None), "╸─────────");
        assert_eq!(text(0.55, None), "━━━━━╸────");
        assert_eq!(text(1.0, Some(0.5)), "━━━━━┼━━━━");
        assert_eq!(spark(2, &[9.0, 0.0, 4.0, 4.0, f64::NAN], Style::new()).to_string(), "⡈⢁");
    }

    proptest! {
        #[test]
        fn widths_are_kept(text in "\\PC{0,60}", width in 0usize..40) {
            prop_assert!(cut(&text, width).width() <= width);
            prop_assert_eq!(pad(&text, width).width(), width);
            prop_assert_eq!(pad_left(&text, width).width(), width);
            prop_assert!(wrap(&text, width.max(2)).iter().all(|row| row.width() <= width.max(2)));
        }
    }
}
