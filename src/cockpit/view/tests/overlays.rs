//! Opens every overlay in every condition a run may be in, at every size and in two themes.
//!
//! A snapshot holds the rectangle of cells that the key changed; if it equals that of an earlier
//! condition, it says so.

use super::{SIZES, draw, press_keys, run_conditions};
use crate::cockpit::fixture;
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::update::{HistoryBox, Msg, update};
use crate::theme::{Colours, Theme};
use insta::assert_snapshot;
use ratatui::buffer::Buffer;
use std::fmt::Write;

/// Overlays to open: name, keys pressed before, keys that open it.
const OPENED: [(&str, &str, &str); 7] = [
    ("preview", "", "d"),
    ("stop", "", "x"),
    ("help", "", "?"),
    ("palette", "", ":sh"),
    ("filter", "4", "/loss"),
    ("cursor", "2", "v"),
    ("replay", "", "g"),
];

/// Returns the state before and after the keys.
fn open_overlay(mut state: State, (name, before, keys): (&str, &str, &str)) -> (State, State) {
    // The box that reports a problem would hide the others; it has its own snapshots.
    state.screen.trouble_hidden = true;
    press_keys(&mut state, before);
    if name == "cursor" {
        state.screen.full = Some(Quantity::Loss);
    }
    let closed = state.clone();
    press_keys(&mut state, keys);
    if let Some(at_ms) = state.replay.as_ref().map(|replay| replay.at_ms) {
        let history = Ok(HistoryBox(Box::new(fixture::history(450, false))));
        update(&mut state, Msg::Moment { at_ms, history });
    }
    (closed, state)
}

/// Returns the rectangle of cells in which two pictures differ, as text; only the first lines of the
/// replay, which changes all of a large screen.
fn changed_cells(before: &Buffer, after: &Buffer, most_rows: usize) -> String {
    let (width, height) = (after.area.width, after.area.height);
    let differs = |x: u16, y: u16| before[(x, y)].symbol() != after[(x, y)].symbol();
    let columns = || (0..width).filter(|x| (0..height).any(|y| differs(*x, y)));
    let rows = || (0..height).filter(|y| (0..width).any(|x| differs(x, *y)));
    let (Some(left), Some(right), Some(top), Some(bottom)) =
        (columns().min(), columns().max(), rows().min(), rows().max())
    else {
        return "nothing\n".to_owned();
    };
    let mut text = format!("columns {left} to {right}, rows {top} to {bottom}\n");
    for y in (top..=bottom).take(most_rows) {
        let row: String = (left..=right).map(|x| after[(x, y)].symbol()).collect();
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text
}

#[test]
fn everything_that_a_key_opens_in_every_condition() {
    let themes = Theme::shipped().unwrap();
    let plain = Theme::shipped().unwrap().remove(0).reduced_to(Colours::None);
    for what in OPENED {
        for size in SIZES {
            let most_rows = if what.0 == "replay" && size.0 > 80 { 4 } else { usize::MAX };
            let mut pictures = String::new();
            let mut seen: Vec<(&str, String)> = Vec::new();
            for (condition, state) in run_conditions(size) {
                let (closed, state) = open_overlay(state, what);
                let picture = changed_cells(&draw(&closed, &plain), &draw(&state, &plain), most_rows);
                let same = seen.iter().find(|(_, known)| *known == picture).map(|(name, _)| *name);
                let shown = same.map_or_else(|| picture.clone(), |name| format!("as in {name}\n"));
                let _ = writeln!(pictures, "══ {condition} ══\n{shown}");
                seen.push((condition, picture));
                for theme in &themes[..2] {
                    let said = changed_cells(&draw(&closed, theme), &draw(&state, theme), most_rows);
                    assert_eq!(said, seen[seen.len() - 1].1, "{what:?} in {} while {condition}", theme.name);
                }
            }
            assert_snapshot!(format!("{}_{}x{}", what.0, size.0, size.1), pictures);
        }
    }
}
