//! The view of the ranks.

use super::{SIZES, draw_text, press_keys};
use crate::cockpit::fixture;
use crate::cockpit::fixture::ranks::{rows, with_ranks, with_stopped, with_straggler};
use crate::protocol::ranks::RankRow;
use insta::assert_snapshot;
use std::fmt::Write;

#[test]
fn the_ranks_at_every_size() {
    let runs: [(&str, Vec<RankRow>); 4] = [
        ("healthy", rows(2)),
        ("a straggler", with_straggler(8, 5)),
        ("one of 64 stopped", with_stopped(64, 40)),
        ("a straggler of 64", with_straggler(64, 61)),
    ];
    for size in SIZES {
        let mut pictures = String::new();
        for (name, rows) in &runs {
            let mut state = with_ranks(size, rows.clone());
            press_keys(&mut state, "9");
            let _ = writeln!(pictures, "══ {name} ══\n{}\n", draw_text(&state));
        }
        assert_snapshot!(format!("several_ranks_{}x{}", size.0, size.1), pictures);
    }
}

#[test]
fn the_rank_that_differs_is_visible_without_scrolling_and_the_rest_by_scrolling() {
    let mut state = with_ranks((80, 24), with_straggler(64, 61));
    press_keys(&mut state, "9");
    let top = draw_text(&state);
    assert!(top.contains("straggler") && top.contains("more below") && !top.contains("\n   63"), "{top}");
    for _ in 0..7 {
        press_keys(&mut state, "n");
    }
    let end = draw_text(&state);
    assert!(end.contains("   63") && end.contains("more above") && !end.contains("more below"), "{end}");
}

#[test]
fn a_run_of_one_process_has_no_tab_for_ranks() {
    let last_line = |state| draw_text(state).lines().last().unwrap_or_default().to_owned();
    let mut alone = fixture::training((200, 24));
    assert!(last_line(&alone).contains("8 layers") && !last_line(&alone).contains("9 ranks"));
    assert!(last_line(&with_ranks((200, 24), rows(2))).contains("9 ranks"));
    press_keys(&mut alone, "9");
    assert!(draw_text(&alone).contains("train in one process"));
}
