//! Themes: one style a role, read from YAML, brought down to what the terminal can show.
//!
//! ```text
//! themes/dark.yaml ─ parse ─▶ Theme (24-bit) ─ shown_with(Colours) ─▶ 24-bit | 256 colours | none
//! ```

use ratatui::style::{Color, Modifier, Style};
use serde::{Deserialize, Deserializer, de};

/// A style for every role on the screen.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Theme {
    /// What it is called.
    pub name: String,
    /// Text, and the ground it stands on.
    #[serde(deserialize_with = "style")]
    pub base: Style,
    /// Names and the figures that matter most.
    #[serde(deserialize_with = "style")]
    pub strong: Style,
    /// Labels, units, what is past.
    #[serde(deserialize_with = "style")]
    pub dim: Style,
    /// Rules, axes and the empty part of a gauge.
    #[serde(deserialize_with = "style")]
    pub faint: Style,
    /// What is now: the current rung, the newest value, the focus.
    #[serde(deserialize_with = "style")]
    pub accent: Style,
    /// All is well.
    #[serde(deserialize_with = "style")]
    pub good: Style,
    /// Should be looked at.
    #[serde(deserialize_with = "style")]
    pub warn: Style,
    /// Something broke.
    #[serde(deserialize_with = "style")]
    pub danger: Style,
    /// The first and the last line.
    #[serde(deserialize_with = "style")]
    pub bar: Style,
    /// Keys in the last line.
    #[serde(deserialize_with = "style")]
    pub key: Style,
    /// A curve as measured.
    #[serde(deserialize_with = "style")]
    pub raw: Style,
    /// A curve, smoothed.
    #[serde(deserialize_with = "style")]
    pub smooth: Style,
    /// A second quantity beside the first.
    #[serde(deserialize_with = "style")]
    pub second: Style,
    /// Shifts and restarts on a curve.
    #[serde(deserialize_with = "style")]
    pub mark: Style,
    /// Boxes above the screen.
    #[serde(deserialize_with = "style")]
    pub overlay: Style,
    /// The line under the cursor.
    #[serde(deserialize_with = "style")]
    pub selected: Style,
}

/// How many colours the terminal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    /// 24 bits.
    True,
    /// The 256 of xterm.
    Indexed,
    /// None: `NO_COLOR` is set, or the terminal has none.
    None,
}

impl Colours {
    /// What the environment says, asked through `variable`. Only `COLORTERM` promises 24 bits:
    /// tmux and Windows Terminal would otherwise show something else.
    pub fn detect(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        if set("NO_COLOR").is_some() || set("TERM").is_some_and(|term| term == "dumb") {
            return Self::None;
        }
        match set("COLORTERM").as_deref() {
            Some("truecolor" | "24bit") => Self::True,
            _ => Self::Indexed,
        }
    }
}

impl Theme {
    /// The theme a YAML text describes.
    ///
    /// # Errors
    /// Says which role is missing, unknown or written wrongly.
    pub fn parse(text: &str) -> Result<Self, String> {
        from_yaml(text)
    }

    /// The themes that ship, the default first.
    ///
    /// # Errors
    /// None for a build that passed its tests: the files are part of it.
    pub fn shipped() -> Result<Vec<Self>, String> {
        [include_str!("../../themes/dark.yaml"), include_str!("../../themes/light.yaml")]
            .into_iter()
            .map(Self::parse)
            .collect()
    }

    /// The theme with every colour brought down to what the terminal shows. Without colours the
    /// roles that matter stay apart by weight.
    #[must_use]
    pub fn shown_with(mut self, colours: Colours) -> Self {
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
            style.fg = style.fg.and_then(|colour| brought_down(colour, colours));
            style.bg = style.bg.and_then(|colour| brought_down(colour, colours));
        }
        self
    }

    fn styles(&mut self) -> [&mut Style; 16] {
        [
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
        ]
    }
}

/// The one place of this module that knows the YAML crate.
fn from_yaml<T: de::DeserializeOwned>(text: &str) -> Result<T, String> {
    super::yaml::read(text)
}

fn style<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Style, D::Error> {
    parse_style(&String::deserialize(deserializer)?).map_err(de::Error::custom)
}

/// `#rrggbb`, `on #rrggbb` and modifiers, in any order.
fn parse_style(text: &str) -> Result<Style, String> {
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

fn parse_colour(word: &str) -> Result<Color, String> {
    let wrong =
        || format!("`{word}` is no colour; write #rrggbb, on #rrggbb, bold, dim, italic, underlined or reversed");
    let digits = word.strip_prefix('#').filter(|digits| digits.len() == 6).ok_or_else(wrong)?;
    let value = u32::from_str_radix(digits, 16).map_err(|_| wrong())?;
    Ok(Color::from_u32(value))
}

fn brought_down(colour: Color, colours: Colours) -> Option<Color> {
    match (colours, colour) {
        (Colours::None, _) => None,
        (Colours::Indexed, Color::Rgb(r, g, b)) => Some(Color::Indexed(nearest_indexed([r, g, b]))),
        (Colours::True | Colours::Indexed, _) => Some(colour),
    }
}

/// The nearest of xterm's colours 16 to 255: a cube of 6 × 6 × 6 and 24 greys. The first 16 are
/// left out, since every terminal paints them as it likes.
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
mod tests {
    use super::{Colours, Theme, nearest_indexed};
    use ratatui::style::{Color, Modifier};

    #[test]
    fn the_shipped_themes_are_read() {
        let names: Vec<_> = Theme::shipped().unwrap().into_iter().map(|theme| theme.name).collect();
        assert_eq!(names, ["dark", "light"]);
    }

    #[test]
    fn a_missing_or_unknown_role_and_a_wrong_colour_are_named() {
        let dark = include_str!("../../themes/dark.yaml");
        let missing = dark.replace("accent:", "# accent:");
        assert!(Theme::parse(&missing).unwrap_err().contains("accent"));
        let unknown = format!("{dark}\nsparkle: bold\n");
        assert!(Theme::parse(&unknown).unwrap_err().contains("sparkle"));
        let wrong = dark.replace("#8fcf8a", "greenish");
        assert!(Theme::parse(&wrong).unwrap_err().contains("`greenish` is no colour; write #rrggbb"));
    }

    #[test]
    fn colours_come_from_the_environment() {
        let detect = |pairs: &'static [(&str, &str)]| {
            Colours::detect(move |name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(detect(&[("COLORTERM", "truecolor")]), Colours::True);
        assert_eq!(detect(&[("TERM", "tmux-256color")]), Colours::Indexed);
        assert_eq!(detect(&[("NO_COLOR", "1"), ("COLORTERM", "truecolor")]), Colours::None);
        assert_eq!(detect(&[("NO_COLOR", ""), ("COLORTERM", "24bit")]), Colours::True);
        assert_eq!(detect(&[("TERM", "dumb")]), Colours::None);
    }

    #[test]
    fn a_colour_maps_to_the_nearest_of_256() {
        for (rgb, index) in [([0, 0, 0], 16), ([255, 255, 255], 231), ([255, 0, 0], 196), ([18, 18, 18], 233)] {
            assert_eq!(nearest_indexed(rgb), index, "{rgb:?}");
        }
    }

    #[test]
    fn no_colour_leaves_only_weight() {
        let mut theme = Theme::shipped().unwrap().remove(0).shown_with(Colours::None);
        assert!(theme.danger.add_modifier.contains(Modifier::BOLD));
        assert!(theme.dim.add_modifier.contains(Modifier::DIM));
        assert!(theme.styles().iter().all(|style| style.fg.is_none() && style.bg.is_none()));
        let mut indexed = Theme::shipped().unwrap().remove(0).shown_with(Colours::Indexed);
        assert!(indexed.styles().iter().filter_map(|style| style.fg).all(|fg| matches!(fg, Color::Indexed(_))));
    }
}
