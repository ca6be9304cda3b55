//! Themes: one style per role, read from YAML and reduced to the colours the terminal supports.
//!
//! ```text
//! themes/dark.yaml ─ parse ─▶ Theme (24-bit) ─ reduced_to(Colours) ─▶ 24-bit | 256 | 16 colours | none
//! ```

use crate::config::problem::Part;
use crate::config::yaml;
use crate::shipped::{self, Kind};
use ratatui::style::{Color, Modifier, Style};
use serde::{Deserialize, Deserializer, de};

/// A style for every role on screen.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Theme {
    /// The theme's name.
    pub name: String,
    /// Body text and background.
    #[serde(deserialize_with = "deserialize_style")]
    pub base: Style,
    /// Names and the most important figures.
    #[serde(deserialize_with = "deserialize_style")]
    pub strong: Style,
    /// Labels, units, past values.
    #[serde(deserialize_with = "deserialize_style")]
    pub dim: Style,
    /// Rules, axes and the empty part of a gauge.
    #[serde(deserialize_with = "deserialize_style")]
    pub faint: Style,
    /// Current items: the current rung, the newest value, the focus.
    #[serde(deserialize_with = "deserialize_style")]
    pub accent: Style,
    /// A healthy state.
    #[serde(deserialize_with = "deserialize_style")]
    pub good: Style,
    /// A warning.
    #[serde(deserialize_with = "deserialize_style")]
    pub warn: Style,
    /// An error.
    #[serde(deserialize_with = "deserialize_style")]
    pub danger: Style,
    /// The header and footer lines.
    #[serde(deserialize_with = "deserialize_style")]
    pub bar: Style,
    /// Key hints in the footer.
    #[serde(deserialize_with = "deserialize_style")]
    pub key: Style,
    /// A measured curve.
    #[serde(deserialize_with = "deserialize_style")]
    pub raw: Style,
    /// A smoothed curve.
    #[serde(deserialize_with = "deserialize_style")]
    pub smooth: Style,
    /// A second quantity beside the first.
    #[serde(deserialize_with = "deserialize_style")]
    pub second: Style,
    /// Markers for shifts and restarts on a curve.
    #[serde(deserialize_with = "deserialize_style")]
    pub mark: Style,
    /// Popups.
    #[serde(deserialize_with = "deserialize_style")]
    pub overlay: Style,
    /// The line under the cursor.
    #[serde(deserialize_with = "deserialize_style")]
    pub selected: Style,
    /// Colours that distinguish lines, rungs or runs in one chart; used in rotation.
    #[serde(deserialize_with = "deserialize_styles")]
    pub lines: Vec<Style>,
    /// Backgrounds of a heat map, from low to high, between the background and the accent.
    #[serde(skip)]
    heat: Vec<Style>,
    /// The colours that the theme was reduced to.
    #[serde(skip)]
    colours: Colours,
}

/// A theme file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ThemeError {
    /// A style is malformed.
    #[error("line {line}: {role}: {error}")]
    Style {
        /// Its line, counted from 1.
        line: usize,
        /// Its role.
        role: String,
        /// The mistake.
        error: StyleError,
    },
    /// A role has no style.
    #[error("the role {0} is missing: add a line `{0}: …`")]
    MissingRole(String),
    /// The file is not a theme in YAML.
    #[error(transparent)]
    Yaml(#[from] yaml::ReadError),
}

/// A word in a style that is not a colour or a modifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is not a colour; write #rrggbb, on #rrggbb, bold, dim, italic, underlined or reversed")]
pub struct StyleError {
    /// The word.
    pub word: String,
}

/// The terminal's colour support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Colours {
    /// 24 bits.
    #[default]
    True,
    /// The 256 colours of xterm.
    Indexed,
    /// The 16 ANSI colours, which every terminal defines for itself.
    Sixteen,
    /// No colour: `NO_COLOR` is set, or the terminal supports none.
    None,
}

impl Colours {
    /// Detects colour support from the environment, read through `variable`. Only `COLORTERM` guarantees
    /// 24 bits: otherwise tmux and Windows Terminal would show other colours.
    pub fn detect(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        if set("NO_COLOR").is_some() || set("TERM").is_some_and(|term| term == "dumb") {
            return Self::None;
        }
        match (set("COLORTERM").as_deref(), set("TERM").as_deref()) {
            (Some("truecolor" | "24bit"), _) => Self::True,
            (_, Some("linux" | "xterm" | "xterm-color" | "xterm-16color" | "screen" | "ansi" | "vt220" | "rxvt")) => {
                Self::Sixteen
            }
            _ => Self::Indexed,
        }
    }

    /// Returns the nearest colour that the terminal supports; `None` without colours.
    #[must_use]
    pub fn reduce(self, colour: Color) -> Option<Color> {
        match (self, colour) {
            (Self::None, _) => None,
            (Self::Indexed, Color::Rgb(r, g, b)) => Some(Color::Indexed(nearest_indexed([r, g, b]))),
            (Self::Sixteen, Color::Rgb(r, g, b)) => Some(nearest_named([r, g, b])),
            (Self::True | Self::Indexed | Self::Sixteen, _) => Some(colour),
        }
    }
}

impl Theme {
    /// Parses a theme from YAML.
    ///
    /// # Errors
    /// Returns an error when a role is missing, unknown or malformed.
    pub fn parse(text: &str) -> Result<Self, ThemeError> {
        // Check role by role first: the parser of the whole document reports only its first line.
        if let Ok((tree, _)) = yaml::parse(text) {
            for (role, style) in tree.as_object().into_iter().flatten().filter(|(role, _)| *role != "name") {
                if let Some(Err(error)) = style.as_str().map(parse_style) {
                    let line = yaml::locate(text, role, Part::Value).0;
                    return Err(ThemeError::Style { line, role: role.clone(), error });
                }
            }
        }
        let theme = yaml::read(text).map(Self::with_heat);
        theme.map_err(|error| {
            // A missing field has no line to report, and the parser names it only in its message.
            let message = error.to_string();
            match message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next()) {
                Some(role) => ThemeError::MissingRole(role.to_owned()),
                None => ThemeError::Yaml(error),
            }
        })
    }

    /// Returns the shipped themes, the default first.
    ///
    /// # Errors
    /// Returns an error when a compiled-in file is invalid; never in a build that passed its tests.
    pub fn shipped() -> Result<Vec<Self>, ThemeError> {
        shipped::of_kind(Kind::Theme).map(|file| Self::parse(file.text)).collect()
    }

    /// Returns a theme without styles, for measuring layout.
    #[must_use]
    pub fn plain() -> Self {
        let none = Style::new();
        Self {
            name: String::new(),
            base: none,
            strong: none,
            dim: none,
            faint: none,
            accent: none,
            good: none,
            warn: none,
            danger: none,
            bar: none,
            key: none,
            raw: none,
            smooth: none,
            second: none,
            mark: none,
            overlay: none,
            selected: none,
            lines: vec![none],
            heat: Vec::new(),
            colours: Colours::default(),
        }
    }

    /// Adds the heat map: steps from the background to the accent, with text that stands out on each.
    fn with_heat(mut self) -> Self {
        let rgb = |colour| match colour {
            Some(Color::Rgb(r, g, b)) => Some([r, g, b]),
            _ => None,
        };
        // A theme without colours gets none here either.
        let (Some(low), Some(high)) = (rgb(self.base.bg), rgb(self.accent.fg)) else { return self };
        let text = rgb(self.base.fg).unwrap_or(high);
        let step = |step: usize| {
            let share = step as f64 / (HEAT_STEPS - 1) as f64;
            let mix = |low: u8, high: u8| (f64::from(low) + (f64::from(high) - f64::from(low)) * share).round() as u8;
            let [r, g, b] = [mix(low[0], high[0]), mix(low[1], high[1]), mix(low[2], high[2])];
            let contrast = |other: &[u8; 3]| luminance(*other).abs_diff(luminance([r, g, b]));
            let [tr, tg, tb] = [text, low, [0; 3], [255; 3]].into_iter().max_by_key(contrast).unwrap_or(text);
            Style::new().bg(Color::Rgb(r, g, b)).fg(Color::Rgb(tr, tg, tb))
        };
        self.heat = (0..HEAT_STEPS).map(step).collect();
        self
    }

    /// Returns the style of a cell of a heat map, for a share of the scale; without colours, one that has no background.
    #[must_use]
    pub fn heat(&self, share: f64) -> Style {
        let step = (share.clamp(0.0, 1.0) * (HEAT_STEPS - 1) as f64).round() as usize;
        self.heat.get(step).copied().unwrap_or_default()
    }

    /// Returns the colours that the theme was reduced to.
    #[must_use]
    pub fn colours(&self) -> Colours {
        self.colours
    }

    /// Returns the style of the n-th line in a chart.
    #[must_use]
    pub fn line(&self, number: usize) -> Style {
        self.lines.get(number % self.lines.len().max(1)).copied().unwrap_or(self.smooth)
    }

    /// Reduces every colour to what the terminal supports. Without colours, the important roles stay
    /// distinguishable by weight.
    #[must_use]
    pub fn reduced_to(mut self, colours: Colours) -> Self {
        let loud = [&mut self.accent, &mut self.good, &mut self.warn, &mut self.danger, &mut self.key];
        let quiet = [&mut self.dim, &mut self.faint, &mut self.raw, &mut self.mark];
        if colours == Colours::None {
            for style in loud {
                *style = style.add_modifier(Modifier::BOLD);
            }
            for style in quiet {
                *style = style.add_modifier(Modifier::DIM);
            }
            self.selected = self.selected.add_modifier(Modifier::REVERSED);
        }
        for style in self.styles() {
            style.fg = style.fg.and_then(|colour| colours.reduce(colour));
            style.bg = style.bg.and_then(|colour| colours.reduce(colour));
        }
        self.colours = colours;
        self
    }

    fn styles(&mut self) -> Vec<&mut Style> {
        let mut styles = vec![
            &mut self.base,
            &mut self.strong,
            &mut self.dim,
            &mut self.faint,
            &mut self.accent,
            &mut self.good,
            &mut self.warn,
            &mut self.danger,
            &mut self.bar,
            &mut self.key,
            &mut self.raw,
            &mut self.smooth,
            &mut self.second,
            &mut self.mark,
            &mut self.overlay,
            &mut self.selected,
        ];
        styles.extend(&mut self.lines);
        styles.extend(&mut self.heat);
        styles
    }
}

fn deserialize_style<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Style, D::Error> {
    parse_style(&String::deserialize(deserializer)?).map_err(de::Error::custom)
}

fn deserialize_styles<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Style>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    if texts.is_empty() {
        return Err(de::Error::custom("`lines` needs at least one style"));
    }
    texts.iter().map(|text| parse_style(text).map_err(de::Error::custom)).collect()
}

/// Parses `#rrggbb`, `on #rrggbb` and modifiers, in any order.
fn parse_style(text: &str) -> Result<Style, StyleError> {
    let mut style = Style::new();
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        style = match word {
            "on" => style.bg(parse_colour(words.next().unwrap_or_default())?),
            "bold" => style.add_modifier(Modifier::BOLD),
            "dim" => style.add_modifier(Modifier::DIM),
            "italic" => style.add_modifier(Modifier::ITALIC),
            "underlined" => style.add_modifier(Modifier::UNDERLINED),
            "reversed" => style.add_modifier(Modifier::REVERSED),
            colour => style.fg(parse_colour(colour)?),
        };
    }
    Ok(style)
}

fn parse_colour(word: &str) -> Result<Color, StyleError> {
    let wrong = || StyleError { word: word.to_owned() };
    let digits = word.strip_prefix('#').filter(|digits| digits.len() == 6).ok_or_else(wrong)?;
    let value = u32::from_str_radix(digits, 16).map_err(|_| wrong())?;
    Ok(Color::from_u32(value))
}

/// Number of colours in a heat map.
const HEAT_STEPS: usize = 9;

/// Returns the brightness as the eye sees it, 0 to 255, by ITU-R BT.709.
fn luminance([r, g, b]: [u8; 3]) -> u32 {
    (2126 * u32::from(r) + 7152 * u32::from(g) + 722 * u32::from(b)) / 10_000
}

/// Returns the nearest of the 16 colours by hue; a background close to black or white uses the terminal's
/// own black or white.
fn nearest_named(colour: [u8; 3]) -> Color {
    let [r, g, b] = colour.map(i32::from);
    let (high, low) = (r.max(g).max(b), r.min(g).min(b));
    if high - low < 48 {
        return match high {
            0..=60 => Color::Black,
            61..=150 => Color::DarkGray,
            151..=215 => Color::Gray,
            _ => Color::White,
        };
    }
    // A channel is on if it is closer to the highest channel than to the lowest.
    let lit = |channel: i32| channel - low > (high - low) / 2;
    let bright = high > 190;
    match (lit(r), lit(g), lit(b), bright) {
        (true, false, false, false) => Color::Red,
        (true, false, false, true) => Color::LightRed,
        (false, true, false, false) => Color::Green,
        (false, true, false, true) => Color::LightGreen,
        (true, true, false, false) => Color::Yellow,
        (true, true, false, true) => Color::LightYellow,
        (true, false, true, false) => Color::Magenta,
        (true, false, true, true) => Color::LightMagenta,
        (false, true, true, false) => Color::Cyan,
        (false, true, true, true) => Color::LightCyan,
        (_, _, _, false) => Color::Blue,
        (_, _, _, true) => Color::LightBlue,
    }
}

/// Returns the nearest of xterm's colours 16 to 255: a cube of 6 × 6 × 6 and 24 greys. Skips the first
/// 16, which every terminal defines for itself.
fn nearest_indexed(colour: [u8; 3]) -> u8 {
    const STEPS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let shown = |index: u8| -> [u8; 3] {
        if index >= 232 {
            return [8 + 10 * (index - 232); 3];
        }
        let cube = usize::from(index - 16);
        [STEPS[cube / 36], STEPS[cube / 6 % 6], STEPS[cube % 6]]
    };
    let distance =
        |index: u8| -> u32 { shown(index).iter().zip(colour).map(|(a, b)| u32::from(a.abs_diff(b)).pow(2)).sum() };
    (16..=255).min_by_key(|index| distance(*index)).unwrap_or(16)
}

#[cfg(test)]
mod tests;
