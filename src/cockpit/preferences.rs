//! View preferences, remembered between cockpit sessions. The caller stores the text; unreadable
//! entries are treated as absent.

use super::state::State;
use super::state::chart::ValueScale;
use super::state::screen::{Screen, View};
use super::update::focus_visible_panel;
use crate::series::Axis;
use crate::theme::Theme;
use serde::{Deserialize, Serialize};

/// Remembered preferences.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Preferences {
    /// View.
    pub view: Option<String>,
    /// Name of the run that showed it.
    pub run: Option<String>,
    /// Theme.
    pub theme: Option<String>,
    /// Weight of the past in smoothed curves.
    pub smoothing: Option<f64>,
    /// Whether the user chose logarithmic values.
    pub log: bool,
    /// Whether the user chose linear values; with neither, the charts decide.
    pub linear: bool,
    /// X axis of the charts: `steps`, `samples` or `time`.
    pub axis: Option<String>,
    /// How to show pictures: `kitty`, `iterm2`, `sixel`, `halfblocks` or `shades`; otherwise the terminal is asked.
    /// No key changes it.
    pub pictures: Option<String>,
    /// Names of the charts that come first.
    pub pins: Vec<String>,
}

const AXES: [(Axis, &str); 3] = [(Axis::Steps, "steps"), (Axis::Samples, "samples"), (Axis::Time, "time")];

/// The name of the chart of the validation loss in preferences of earlier versions.
const FORMER_NAME: &str = "evaluation loss";

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
        // The list of runs is only a stopover, and another run may have neither samples nor layers.
        let is_passing = matches!(screen.view, View::Runs | View::Samples | View::Layers);
        let view = if is_passing { View::Overview } else { screen.view };
        Self {
            view: Some(view.name().to_owned()),
            run: None,
            theme,
            smoothing: Some(screen.chart.weight()),
            log: screen.chart.scale == ValueScale::Log,
            linear: screen.chart.scale == ValueScale::Linear,
            axis,
            pictures: None,
            pins: screen.pins.clone(),
        }
    }

    /// Returns the preferences for the named run. The last view comes back only on the run that it was chosen for: any
    /// other run opens on the overview.
    #[must_use]
    pub fn for_run(self, name: &str) -> Self {
        Self { view: self.view.filter(|_| self.run.as_deref() == Some(name)), ..self }
    }

    /// Applies the preferences; the focus moves to a panel of the remembered view.
    pub fn apply(&self, state: &mut State, themes: &[Theme]) {
        self.apply_to_screen(&mut state.screen, themes);
        focus_visible_panel(state);
    }

    fn apply_to_screen(&self, screen: &mut Screen, themes: &[Theme]) {
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
        let pins = self.pins.iter().map(|pin| if pin == FORMER_NAME { "validation loss" } else { pin });
        screen.pins = pins.map(str::to_owned).collect();
        screen.chart.scale = match (self.log, self.linear) {
            (true, _) => ValueScale::Log,
            (false, true) => ValueScale::Linear,
            (false, false) => ValueScale::Automatic,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::Preferences;
    use crate::cockpit::fixture;
    use crate::cockpit::layout::lay_out_state;
    use crate::cockpit::state::chart::ValueScale;
    use crate::cockpit::state::screen::{Screen, View};
    use crate::series::Axis;
    use crate::theme::Theme;

    #[test]
    fn choices_come_back() {
        let themes = Theme::shipped().unwrap();
        for scale in [ValueScale::Automatic, ValueScale::Linear, ValueScale::Log] {
            let mut screen = Screen::new((80, 24));
            (screen.view, screen.theme, screen.chart.scale, screen.chart.axis) = (View::Charts, 3, scale, Axis::Time);
            screen.chart.set_weight(0.6);
            screen.pins = vec!["validation loss".to_owned(), "reward/mean".to_owned()];
            let text = Preferences::from_screen(&screen, &themes).to_text();
            let mut other = Screen::new((80, 24));
            Preferences::parse(&text).apply_to_screen(&mut other, &themes);
            assert_eq!(other, screen);
        }
    }

    #[test]
    fn another_run_opens_on_the_overview() {
        let (view, theme) = (Some("charts".to_owned()), Some("nord".to_owned()));
        let preferences = Preferences { view, theme, run: Some("digits".to_owned()), ..Preferences::default() };
        let preferences = Preferences::parse(&preferences.to_text());
        assert_eq!(preferences.clone().for_run("digits"), preferences);
        assert_eq!(preferences.clone().for_run("text"), Preferences { view: None, ..preferences });
        let older = Preferences::parse("{\"view\": \"charts\"}");
        assert_eq!(older.for_run("digits").view, None);
    }

    #[test]
    fn a_remembered_view_starts_with_the_focus_on_one_of_its_panels() {
        for view in View::ALL {
            let mut state = fixture::training((120, 40));
            let preferences = Preferences { view: Some(view.name().to_owned()), ..Preferences::default() };
            preferences.apply(&mut state, &Theme::shipped().unwrap());
            let panels = lay_out_state(&state).panels;
            assert!(panels.iter().any(|(panel, _)| *panel == state.screen.focus), "{view:?}: {:?}", state.screen.focus);
        }
    }

    #[test]
    fn a_chart_that_was_pinned_by_its_former_name_stays_pinned() {
        let mut screen = Screen::new((80, 24));
        let text = r#"{"pins": ["evaluation loss", "loss"]}"#;
        Preferences::parse(text).apply_to_screen(&mut screen, &Theme::shipped().unwrap());
        assert_eq!(screen.pins, ["validation loss", "loss"]);
    }

    #[test]
    fn unreadable_preferences_change_nothing() {
        let before = Screen::new((80, 24));
        for text in ["", "{", "{\"view\": \"cinema\", \"theme\": \"plaid\", \"axis\": 3}"] {
            let mut screen = before.clone();
            Preferences::parse(text).apply_to_screen(&mut screen, &Theme::shipped().unwrap());
            assert_eq!(screen, before, "{text}");
        }
    }
}
