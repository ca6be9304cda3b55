//! View preferences, remembered between cockpit sessions. The caller stores the text; unreadable
//! entries are treated as absent.

use super::state::screen::{Screen, View};
use crate::config::theme::Theme;
use crate::series::Axis;
use serde::{Deserialize, Serialize};

/// Remembered preferences.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Preferences {
    /// View.
    pub view: Option<String>,
    /// Theme.
    pub theme: Option<String>,
    /// Weight of the past in smoothed curves.
    pub smoothing: Option<f64>,
    /// Whether values are logarithmic.
    pub log: bool,
    /// X axis of the charts: `steps`, `samples` or `time`.
    pub axis: Option<String>,
}

const AXES: [(Axis, &str); 3] = [(Axis::Steps, "steps"), (Axis::Samples, "samples"), (Axis::Time, "time")];

impl Preferences {
    /// Parses preferences from a text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Returns the text to store.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns the current preferences.
    #[must_use]
    pub fn from_screen(screen: &Screen, themes: &[Theme]) -> Self {
        let theme = themes.get(screen.theme % themes.len().max(1)).map(|theme| theme.name.clone());
        let axis = AXES.iter().find(|(axis, _)| *axis == screen.chart.axis).map(|(_, name)| (*name).to_owned());
        // The list of runs is only a stopover, so it is not remembered.
        let view = if screen.view == View::Runs { View::Overview } else { screen.view };
        Self {
            view: Some(view.name().to_owned()),
            theme,
            smoothing: Some(screen.chart.weight()),
            log: screen.chart.log,
            axis,
        }
    }

    /// Applies the preferences to the screen.
    pub fn apply(&self, screen: &mut Screen, themes: &[Theme]) {
        if let Some(view) = View::ALL.into_iter().find(|view| self.view.as_deref() == Some(view.name())) {
            screen.view = view;
        }
        if let Some(theme) = themes.iter().position(|theme| self.theme.as_deref() == Some(&theme.name)) {
            screen.theme = theme;
        }
        if let Some((axis, _)) = AXES.iter().find(|(_, name)| self.axis.as_deref() == Some(name)) {
            screen.chart.axis = *axis;
        }
        if let Some(weight) = self.smoothing.filter(|weight| weight.is_finite()) {
            screen.chart.set_weight(weight);
        }
        screen.chart.log = self.log;
    }
}

#[cfg(test)]
mod tests {
    use super::Preferences;
    use crate::cockpit::state::screen::{Screen, View};
    use crate::config::theme::Theme;
    use crate::series::Axis;

    #[test]
    fn choices_come_back() {
        let themes = Theme::shipped().unwrap();
        let mut screen = Screen::new((80, 24));
        (screen.view, screen.theme, screen.chart.log, screen.chart.axis) = (View::Charts, 3, true, Axis::Time);
        screen.chart.set_weight(0.6);
        let text = Preferences::from_screen(&screen, &themes).to_text();
        let mut other = Screen::new((80, 24));
        Preferences::parse(&text).apply(&mut other, &themes);
        assert_eq!(other, screen);
    }

    #[test]
    fn unreadable_preferences_change_nothing() {
        let before = Screen::new((80, 24));
        for text in ["", "{", "{\"view\": \"cinema\", \"theme\": \"plaid\", \"axis\": 3}"] {
            let mut screen = before.clone();
            Preferences::parse(text).apply(&mut screen, &Theme::shipped().unwrap());
            assert_eq!(screen, before, "{text}");
        }
    }
}
