//! The colours of a plot, from a theme.

use crate::theme::Theme;
use ratatui::style::{Color, Style};

/// The colours of a plot.
pub struct Palette {
    pub ground: String,
    pub text: String,
    pub dim: String,
    pub faint: String,
    pub raw: String,
    pub line: String,
    pub second: String,
    pub mark: String,
    pub warn: String,
    pub good: String,
}

impl Palette {
    /// Returns the colours of a theme, with dark-on-white defaults for any it lacks.
    pub fn of(theme: &Theme) -> Self {
        let hex = |colour: Option<Color>, else_: &str| match colour {
            Some(Color::Rgb(red, green, blue)) => format!("#{red:02x}{green:02x}{blue:02x}"),
            _ => else_.to_owned(),
        };
        let ink = |style: Style, else_: &str| hex(style.fg, else_);
        Self {
            ground: hex(theme.base.bg, "#ffffff"),
            text: ink(theme.base, "#202020"),
            dim: ink(theme.dim, "#606060"),
            faint: ink(theme.faint, "#d0d0d0"),
            raw: ink(theme.raw, "#a0a0a0"),
            line: ink(theme.smooth, "#202020"),
            second: ink(theme.second, "#505050"),
            mark: ink(theme.mark, "#808080"),
            warn: ink(theme.warn, "#404040"),
            good: ink(theme.good, "#404040"),
        }
    }
}
