//! What a person chose to look at and how: remembered from one cockpit to the next. The caller
//! keeps the text; what cannot be read in it is as if it were not there.

use super::series::Axis;
use super::state::screen::{Screen, View};
use crate::config::theme::Theme;
use serde::{Deserialize, Serialize};

/// The choices that are remembered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Taste {
    /// The view.
    pub view: Option<String>,
    /// The theme.
    pub theme: Option<String>,
    /// Weight of the past in smoothed curves.
    pub smoothing: Option<f64>,
    /// Logarithmic values.
    pub log: bool,
    /// What charts are drawn over: `steps`, `samples` or `time`.
    pub axis: Option<String>,
}

const AXES: [(Axis, &str); 3] = [(Axis::Steps, "steps"), (Axis::Samples, "samples"), (Axis::Time, "time")];

impl Taste {
    /// The taste a text describes.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// The text to keep.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// What a person has chosen by now.
    #[must_use]
    pub fn of(screen: &Screen, themes: &[Theme]) -> Self {
        let theme = themes.get(screen.theme % themes.len().max(1)).map(|theme| theme.name.clone());
        let axis = AXES.iter().find(|(axis, _)| *axis == screen.chart.axis).map(|(_, name)| (*name).to_owned());
        // The list of runs is a place to pass through.
        let view = if screen.view == View::Runs { View::Overview } else { screen.view };
        Self {
            view: Some(view.name().to_owned()),
            theme,
            smoothing: Some(screen.chart.weight()),
            log: screen.chart.log,
            axis,
        }
    }

    /// Looks at the screen that way.
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
    use super::Taste;
    use crate::cockpit::series::Axis;
    use crate::cockpit::state::screen::{Screen, View};
    use crate::config::theme::Theme;

    #[test]
    fn choices_come_back() {
        let themes = Theme::shipped().unwrap();
        let mut screen = Screen::new((80, 24));
        (screen.view, screen.theme, screen.chart.log, screen.chart.axis) = (View::Curves, 3, true, Axis::Time);
        screen.chart.set_weight(0.6);
        let text = Taste::of(&screen, &themes).text();
        let mut other = Screen::new((80, 24));
        Taste::parse(&text).apply(&mut other, &themes);
        assert_eq!(other, screen);
    }

    #[test]
    fn what_cannot_be_read_changes_nothing() {
        let before = Screen::new((80, 24));
        for text in ["", "{", "{\"view\": \"cinema\", \"theme\": \"plaid\", \"axis\": 3}"] {
            let mut screen = before.clone();
            Taste::parse(text).apply(&mut screen, &Theme::shipped().unwrap());
            assert_eq!(screen, before, "{text}");
        }
    }
}
