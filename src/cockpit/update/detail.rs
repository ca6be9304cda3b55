//! Which parts of the store are to be read again because of what is on the screen.

use super::Effect;
use crate::cockpit::state::State;
use crate::cockpit::state::facts::Loading;

/// Reads single steps where a chart shows them closely; all of the history where a restart went
/// back before everything that is held.
pub fn wanted(state: &mut State) -> Option<Effect> {
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
    let (start, end) = chart.window((first.on(chart.axis), last.on(chart.axis)));
    // Two columns of dots in a cell.
    let range = facts.series.missing(chart.axis, &(start..end), usize::from(state.screen.size.0) * 2)?;
    if facts.rows_asked.as_ref() == Some(&range) {
        return None;
    }
    facts.rows_asked = Some(range.clone());
    Some(Effect::LoadRows(range))
}
