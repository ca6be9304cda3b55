//! While the keeper is restarted, the screen says so calmly and in one voice.

use super::{SIZES, draw_text, press_keys};
use crate::cockpit::fixture;

#[test]
fn a_recovering_run_is_shown_without_a_dialog() {
    for size in SIZES {
        let shown = draw_text(&fixture::recovering(size));
        assert!(shown.contains("recovering"), "{shown}");
        for alarm in ["no keeper", "downshift resume", "○ training"] {
            assert!(!shown.contains(alarm), "{alarm} in {shown}");
        }
    }
    let shown = draw_text(&fixture::recovering((120, 40)));
    assert!(shown.contains("◐ recovering"), "{shown}");
    assert!(shown.contains("recovering for 2 s: the keeper was killed by signal 9; restarting it"), "{shown}");
    let keys = shown.lines().last().unwrap();
    assert!(keys.contains("v values") && !keys.contains("d down"), "only the keys that work: {keys}");
}

#[test]
fn a_key_that_needs_the_keeper_explains_why_it_cannot_act() {
    let mut state = fixture::recovering((80, 24));
    press_keys(&mut state, "c");
    assert!(draw_text(&state).contains("the keeper is restarting; try again in a moment"), "{}", draw_text(&state));
}
