//! A panel is one type, in the file that draws it: what it draws, its keys, and what they and the mouse do in it.

use super::{
    chart, checkpoints, compare, confusion, difference, gauges, journal, ladder, layers, log, ranks, run_list, rung,
    samples,
};
use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::state::opened::Opened;
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::update::Effect;
use crate::cockpit::update::actions::perform_action;
use crate::theme::Theme;
use ratatui::Frame;
use ratatui::layout::Rect;

/// A click into a panel.
#[derive(Debug, Clone, Copy)]
pub struct Click {
    /// The area of the panel.
    pub area: Rect,
    /// Column and row on the screen.
    pub at: (u16, u16),
    /// Whether the panel had the focus already.
    pub again: bool,
}

impl Click {
    /// Returns the row below the heading; none on the heading.
    pub fn row(&self) -> Option<usize> {
        self.at.1.checked_sub(self.area.y + 1).map(usize::from)
    }
}

/// A panel. What it does not say is usual: it scrolls by lines, opens the view that gives it the most space, and nothing in it can
/// be copied.
pub trait Component {
    /// Draws it.
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme);

    /// Returns the view that gives it the most space.
    fn own_view(&self) -> View;

    /// Returns its actions for the last line, most useful first.
    fn actions(&self, state: &State) -> &'static [Action];

    /// Returns the label of an action, where the usual one does not tell what it does here.
    fn label(&self, _state: &State, _action: Action) -> Option<&'static str> {
        None
    }

    /// Reports whether an action of its own does anything now.
    fn can_act(&self, state: &State, action: Action) -> bool {
        action != Action::Confirm || self.open(state).is_ok()
    }

    /// Returns what Enter opens.
    ///
    /// # Errors
    /// Returns the reason to show when there is nothing to open.
    fn open(&self, state: &State) -> Result<Opened, Refusal> {
        self.open_own_view(state, Refusal::NothingToOpen)
    }

    /// Returns its view, for a panel with nothing else to open.
    ///
    /// # Errors
    /// Returns the refusal in that view.
    fn open_own_view(&self, state: &State, refusal: Refusal) -> Result<Opened, Refusal> {
        if state.screen.view == self.own_view() { Err(refusal) } else { Ok(Opened::View(self.own_view())) }
    }

    /// Returns the text of the item under its cursor.
    fn copy(&self, _state: &State) -> Option<String> {
        None
    }

    /// Scrolls: positive is up, towards older entries.
    fn scroll(&self, _state: &mut State, _lines: isize) -> Vec<Effect> {
        Vec::new()
    }

    /// Turns a page: positive is up.
    fn page(&self, state: &mut State, pages: isize) -> Vec<Effect> {
        self.scroll(state, pages.saturating_mul(10))
    }

    /// Turns the wheel at a column of the screen: positive is up.
    fn wheel(&self, state: &mut State, _column: u16, lines: isize) -> Vec<Effect> {
        self.scroll(state, lines)
    }

    /// Takes a click.
    fn click(&self, _state: &mut State, _click: Click) -> Vec<Effect> {
        vec![Effect::Redraw]
    }

    /// Opens its view with a second click, where it chooses nothing.
    fn open_again(&self, state: &mut State, click: Click) -> Vec<Effect> {
        let opens = click.again && state.screen.view != self.own_view();
        if opens { perform_action(state, Action::Confirm) } else { vec![Effect::Redraw] }
    }

    /// Takes the mouse at a column, with its button held.
    fn drag(&self, _state: &mut State, _column: u16) -> Vec<Effect> {
        Vec::new()
    }
}

impl Panel {
    /// Returns the type of the panel.
    #[must_use]
    pub fn component(self) -> Box<dyn Component> {
        match self {
            Self::Chart(quantity) => Box::new(chart::Chart(quantity)),
            Self::Gauges => Box::new(gauges::Gauges),
            Self::Ladder => Box::new(ladder::Ladder),
            Self::Rung => Box::new(rung::Rung),
            Self::Checkpoints => Box::new(checkpoints::Checkpoints),
            Self::Journal => Box::new(journal::Journal),
            Self::Log => Box::new(log::Log),
            Self::RunList => Box::new(run_list::RunList),
            Self::Compare => Box::new(compare::Compare),
            Self::Difference => Box::new(difference::Difference),
            Self::Samples => Box::new(samples::Samples),
            Self::Confusion => Box::new(confusion::Confusion),
            Self::Layers => Box::new(layers::Layers),
            Self::Ranks => Box::new(ranks::Ranks),
        }
    }
}

/// Limits a place in a list that is counted from the newest entry, after scrolling.
pub fn scrolled(back: usize, lines: isize, entries: usize) -> usize {
    back.saturating_add_signed(lines).min(entries.saturating_sub(1))
}
