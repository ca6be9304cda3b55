//! The tab strip: every view with its key, the current one marked. Where space is short, only the current
//! view keeps its name.

use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::View;
use crate::cockpit::ui;
use crate::theme::Theme;
use ratatui::{Frame, layout::Rect, text::Span};
use unicode_width::UnicodeWidthStr;

/// Columns of the two forms of the strip.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Widths {
    /// With every name.
    pub full: u16,
    /// With the name of the current view only.
    pub short: u16,
}

/// Returns the columns that the strip needs.
#[must_use]
pub fn widths(state: &State) -> Widths {
    let sum = |full: bool| {
        let columns: usize = visible(state).map(|view| tab_text(state, view, full).width()).sum();
        u16::try_from(columns).unwrap_or(u16::MAX)
    };
    Widths { full: sum(true), short: sum(false) }
}

/// Draws the strip.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    for (place, view, text) in place_tabs(state, area) {
        let style = if view == state.screen.view { theme.selected } else { theme.dim };
        ui::render_line(frame, place, Span::styled(text, style).into());
    }
}

/// Returns the view whose tab is at a column.
#[must_use]
pub fn view_at(state: &State, area: Rect, column: u16) -> Option<View> {
    let hit = |place: &Rect| (place.x..place.right()).contains(&column);
    place_tabs(state, area).into_iter().find(|(place, ..)| hit(place)).map(|(_, view, _)| view)
}

/// Returns the views that have a tab: that of the ranks only if there are several, or while it is open.
fn visible(state: &State) -> impl Iterator<Item = View> {
    let has_ranks = state.has_several_ranks() || state.screen.view == View::Ranks;
    View::ALL.into_iter().filter(move |view| *view != View::Ranks || has_ranks)
}

fn place_tabs(state: &State, area: Rect) -> Vec<(Rect, View, String)> {
    let full = area.width >= widths(state).full;
    let mut x = area.x;
    let place = |view: View| {
        let text = tab_text(state, view, full);
        let width = u16::try_from(text.width()).unwrap_or(u16::MAX).min(area.right().saturating_sub(x));
        let place = Rect { x, width, ..area };
        x += width;
        (place, view, text)
    };
    visible(state).map(place).collect()
}

fn tab_text(state: &State, view: View, full: bool) -> String {
    let key = state.keys.key_of(Action::View(view));
    if full || view == state.screen.view { format!(" {key} {} ", view.name()) } else { format!(" {key}") }
}

#[cfg(test)]
mod tests {
    use super::{view_at, widths};
    use crate::cockpit::fixture;
    use crate::cockpit::layout::lay_out_state;
    use crate::cockpit::state::screen::View;
    use crate::cockpit::update::{Msg, update};
    use crossterm::event::{KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
    use std::collections::BTreeSet;

    #[test]
    fn a_click_on_any_tab_opens_its_view() {
        for size in [(60, 16), (80, 24), (120, 40), (200, 50)] {
            for wanted in View::ALL {
                let mut state = fixture::ranks::with_ranks(size, fixture::ranks::rows(4));
                let tabs = lay_out_state(&state).tabs;
                let column = (tabs.x..tabs.right()).rfind(|column| view_at(&state, tabs, *column) == Some(wanted));
                let (column, row) = (column.unwrap(), tabs.y);
                let kind = MouseEventKind::Down(MouseButton::Left);
                update(&mut state, Msg::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }));
                assert_eq!(state.screen.view, wanted, "{size:?}");
            }
        }
    }

    #[test]
    fn the_strip_has_all_names_where_they_fit() {
        let of = |size| lay_out_state(&fixture::training(size)).tabs.width;
        let widths = widths(&fixture::training((80, 24)));
        assert_eq!(BTreeSet::from([of((60, 16)), of((80, 24))]), BTreeSet::from([widths.short]));
        assert_eq!(BTreeSet::from([of((120, 40)), of((200, 50)), of((200, 24))]), BTreeSet::from([widths.full]));
    }
}
