//! The preview of a shift: the memory it expects.

use super::{draw_text, press_keys};
use crate::cockpit::fixture;
use crate::cockpit::readers::rung_views;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::Mode;
use crate::config::run::{AsWritten, Run, Source};
use crate::outlook::capability::capability_of;
use crate::protocol::blank;
use crate::protocol::capability::Level;
use crate::protocol::companion::{CompanionNews, Framework, Grade, IgnoredKnob};
use crate::protocol::resume::Resume;
use insta::assert_snapshot;
use std::path::Path;

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

/// Returns a run of a command, previewing the shift to its next rung.
fn command_preview(size: (u16, u16), more: &str) -> State {
    let text = format!(
        "name: sft\ntask: command\ncommand: [python, train.py, '--batch={{training.micro_batch}}', \
         '--accum={{training.accumulation}}']\ntraining: {{ micro_batch: 4, accumulation: 2 }}\n{more}ladder:\n\
         \x20 - {{ name: segments, relieves: [memory], set: {{ environment.PYTORCH_ALLOC_CONF: 'expandable_segments:True' }} }}\n\
         \x20 - {{ name: accumulate, relieves: [memory], set: {{ training.micro_batch: 2, training.accumulation: 4 }} }}\n"
    );
    let source = Source { file: "x", text: &text, base: Path::new("/"), overrides: &[] };
    let run = Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}"));
    let mut state = fixture::training(size);
    (state.ladder, state.command) = (rung_views(&run), run.command);
    let mut status = state.status().unwrap().clone();
    let capability = capability_of(state.command.as_ref());
    (status.rung_name, status.level) = ("segments".to_owned(), capability.level().map(Level::number));
    status.capability = Some(capability);
    status.rungs.truncate(3);
    fixture::apply_status(&mut state, status);
    press_keys(&mut state, "d");
    state
}

const RESUMES: &str = "checkpoints: { match: 'out/*' }\nresume: {}\n";

#[test]
fn the_preview_of_a_command_says_what_its_level_loses() {
    let saves = format!("{RESUMES}save: {{ signal: USR1 }}\n");
    for (more, wanted) in [
        ("", "no resume: refused: this would lose 700 steps: nothing resumes the"),
        ("restart: from_start\n", "no resume: the command starts over and loses 700 steps."),
        (RESUMES, "resume untested: goes back to checkpoint 600 and repeats 100 steps."),
        (&saves, "resume untested: the script saves first, then continues from there."),
    ] {
        let shown = draw_text(&command_preview((120, 40), more));
        assert!(shown.contains(wanted), "{wanted}: {shown}");
        let shown = draw_text(&command_preview((80, 24), more));
        assert!(shown.contains(&wanted[..40]), "{wanted}: {shown}");
    }
}

/// Returns a companion that saves, whose script ignores these knobs.
fn companion(grade: Grade, reason: Option<&str>, ignored: &[&str]) -> CompanionNews {
    let knob = |name: &&str| IgnoredKnob { name: (*name).to_owned(), rung: 2.into(), in_force: 4.into() };
    CompanionNews {
        reason: reason.map(str::to_owned),
        ignored: ignored.iter().map(knob).collect(),
        ..blank::companion(grade, true)
    }
}

/// Gives the run of a preview a companion.
fn with_companion(mut state: State, companion: CompanionNews) -> State {
    let mut status = state.status().unwrap().clone();
    status.resume = Some(Resume::of_companion(&companion, false));
    (status.level, status.companion) = (Some(2), Some(Box::new(companion)));
    status.capability = status.capability.map(|can| can.with_companion(can, true));
    fixture::apply_status(&mut state, status);
    state
}

/// Returns the text of the box in a picture, unwrapped.
fn words_in_box(picture: &str) -> String {
    let edges = |line: &str| {
        let at = |corner| line.chars().position(|symbol| symbol == corner);
        at('╭').zip(at('╮'))
    };
    let (left, right) = picture.lines().find_map(edges).unwrap();
    let inside = |line: &str| line.chars().skip(left + 1).take(right - left - 1).collect::<String>();
    let text: Vec<String> = picture.lines().map(inside).collect();
    text.join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn with_a_companion_the_preview_says_how_exactly_the_run_continues() {
    let ignored = ["training.micro_batch", "training.accumulation"];
    let of_trainer =
        |ignored| CompanionNews { framework: Framework::Transformers, ..companion(Grade::Exact, None, ignored) };
    for (companion, wanted) in [
        (companion(Grade::Exact, None, &[]), "the loss continues as before"),
        (
            companion(Grade::SameData, Some("dropout differs"), &[]),
            "the same samples follow, with other random numbers",
        ),
        (
            companion(Grade::SameData, Some("dropout differs"), &[]),
            "Its steps will not repeat bit by bit: dropout differs.",
        ),
        (companion(Grade::WeightsOnly, None, &[]), "the data starts over"),
        (companion(Grade::Script, None, &[]), "keep its numbers"),
        (companion(Grade::Exact, None, &ignored), "training.accumulation: the shift changes nothing"),
        (
            companion(Grade::Exact, None, &ignored[..1]),
            "The script ignores training.micro_batch: the rest takes effect.",
        ),
        (of_trainer(&[]), "Its steps will not repeat bit by bit: training.micro_batch changes."),
        (of_trainer(&[]), "resume same data: saves at"),
        (of_trainer(&ignored[..1]), "the loss continues as before"),
    ] {
        let shown = draw_text(&with_companion(command_preview((120, 40), ""), companion.clone()));
        let words = words_in_box(&shown);
        assert!(words.contains(wanted), "{wanted}: {shown}");
        let cost = "saves at the next step and continues from it.";
        assert!(words.contains(cost), "{cost}: {shown}");
        let level = match companion.grade {
            Grade::Exact => "resume exact",
            Grade::SameData => "resume same data",
            Grade::WeightsOnly => "resume weights only",
            _ => "resume untested",
        };
        assert!(shown.lines().next().is_some_and(|header| header.contains(level)), "{shown}");
    }
}

#[test]
fn the_screen_names_the_knobs_that_a_script_ignores() {
    let mut state = command_preview((120, 40), "");
    press_keys(&mut state, "\u{1b}");
    let state = with_companion(state, companion(Grade::Exact, None, &["training.micro_batch"]));
    let shown = draw_text(&state);
    let wanted = "the script ignores training.micro_batch: the rung says 2, in force is 4";
    assert!(shown.contains(wanted), "{shown}");
}

#[test]
fn the_question_before_a_stop_says_what_a_command_loses() {
    let saves = format!("{RESUMES}save: {{ signal: USR1 }}\n");
    for (more, wanted) in
        [("", "no checkpoint to resume"), (RESUMES, "resumes from checkpoint 600"), (&saves, "The script saves first")]
    {
        let mut state = command_preview((120, 40), more);
        press_keys(&mut state, "\u{1b}");
        press_keys(&mut state, "x");
        let shown = draw_text(&state);
        assert!(shown.contains(wanted) && !shown.contains("nothing is lost"), "{wanted}: {shown}");
    }
    let mut state = with_companion(command_preview((120, 40), ""), companion(Grade::Exact, None, &[]));
    press_keys(&mut state, "\u{1b}");
    press_keys(&mut state, "x");
    assert!(draw_text(&state).contains("nothing is lost"));
}

#[test]
fn a_pause_or_restart_that_repeats_steps_asks_first() {
    let at_normal = |more: &str| {
        let mut state = command_preview((120, 40), more);
        press_keys(&mut state, "\u{1b}");
        state
    };
    for (key, word) in [("p", "Pause the run at"), ("r", "Restart the command at")] {
        let mut state = at_normal(RESUMES);
        press_keys(&mut state, key);
        let shown = draw_text(&state);
        assert!(shown.contains(word) && shown.contains("goes on from checkpoint 600 and"), "{shown}");
        for more in [format!("{RESUMES}save: {{ signal: USR1 }}\n"), String::new()] {
            let mut state = at_normal(&more);
            press_keys(&mut state, key);
            assert_eq!(state.screen.mode, Mode::Normal, "{key}: nothing to ask: {more}");
        }
    }
}

#[test]
fn a_command_shows_its_own_knobs_and_its_level() {
    let mut state = command_preview((120, 40), RESUMES);
    assert_snapshot!("command_preview", draw_text(&state));
    press_keys(&mut state, "\u{1b}");
    let shown = draw_text(&state);
    assert!(shown.lines().next().is_some_and(|header| header.contains("resume untested")), "{shown}");
    let mut state = command_preview((160, 40), RESUMES);
    press_keys(&mut state, "\u{1b}");
    let mut status = state.status().unwrap().clone();
    status.awaits_companion = true;
    fixture::apply_status(&mut state, status);
    let shown = draw_text(&state);
    let header = shown.lines().next().unwrap();
    assert!(header.contains("resume not known yet") && !header.contains("no resume"), "{header}");
}
