//! The preview of a shift: the memory it expects.

use super::{draw_text, press_keys};
use crate::cockpit::fixture;

#[test]
fn a_rung_that_never_ran_is_previewed_by_the_plan_against_what_is_free() {
    let mut state = fixture::on_gpu((120, 40));
    press_keys(&mut state, "dd");
    let shown = draw_text(&state);
    assert!(shown.contains("19.5 GiB planned") && shown.contains("should fit"), "{shown}");
    let mut status = state.status().unwrap().clone();
    status.rungs[3].planned_bytes = Some(23 << 30);
    fixture::apply_status(&mut state, status);
    let shown = draw_text(&state);
    assert!(shown.contains("23.0 GiB planned") && shown.contains("not enough"), "{shown}");
}

#[test]
fn a_run_on_the_cpu_of_a_machine_with_a_gpu_is_previewed_in_host_memory() {
    let mut state = fixture::on_gpu((120, 40));
    let mut status = state.status().unwrap().clone();
    status.device = Some("cpu".to_owned());
    fixture::apply_status(&mut state, status);
    press_keys(&mut state, "dd");
    let shown = preview_part(&draw_text(&state));
    assert!(shown.contains("RAM") && !shown.contains("VRAM") && !shown.contains("free for it"), "{shown}");
}

/// Returns the lines of the box in a picture.
fn preview_part(picture: &str) -> String {
    let lines = picture.lines().skip_while(|line| !line.contains("speed"));
    lines.take_while(|line| !line.contains("back")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_preview_of_another_shape_names_the_rung_that_allows_a_warm_start() {
    let preview = |warm_start: [bool; 2]| {
        let mut state = fixture::on_gpu((120, 40));
        let here = state.status().unwrap().rung;
        state.ladder[here + 1].preset["model"]["channels"] = 7.into();
        (state.ladder[here].warm_start, state.ladder[here + 1].warm_start) = (warm_start[0], warm_start[1]);
        press_keys(&mut state, "d");
        draw_text(&state)
    };
    for (warm_start, wanted) in
        [([false, false], "neither rung sets"), ([false, true], "the new rung sets"), ([true, false], "this rung sets")]
    {
        let shown = preview(warm_start);
        assert!(shown.contains(wanted), "{shown}");
    }
}
