//! Decides which parts of the store to read again for the current screen.

use super::message::Effect;
use crate::cockpit::state::State;
use crate::cockpit::state::facts::Loading;

/// Requests single steps where a chart is zoomed in, or the whole history if a restart rolled back past
/// everything in memory.
pub fn request_missing_rows(state: &mut State) -> Option<Effect> {
    let facts = &mut state.facts;
    if facts.loading != Loading::Done {
        return None;
    }
    if facts.series.is_torn() {
        facts.loading = Loading::Needed;
        return facts.ask_for_history().map(Effect::LoadHistory);
    }
    let (first, last) = facts.series.spots()?;
    let chart = state.screen.chart;
    let (start, end) = chart.window((chart.axis.place(first), chart.axis.place(last)));
    // A cell has two columns of dots.
    let range = facts.series.missing(chart.axis, &(start..end), usize::from(state.screen.size.0) * 2)?;
    if facts.rows_asked.as_ref() == Some(&range) {
        return None;
    }
    facts.rows_asked = Some(range.clone());
    Some(Effect::LoadRows(range))
}
