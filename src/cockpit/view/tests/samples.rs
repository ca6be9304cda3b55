//! The views of samples and layers beyond their first page: texts, files, one sample alone, a large matrix, errors.

use super::{draw, draw_text, press_keys};
use crate::cockpit::fixture::samples::{DIGITS, FILES, TEXTS, Written, answer, read_all};
use crate::cockpit::fixture::{self, NOW};
use crate::cockpit::panels::samples::wanted_pictures;
use crate::cockpit::pictures::{PictureError, PictureKind, PictureSupport};
use crate::cockpit::read_error::ReadError;
use crate::cockpit::state::State;
use crate::cockpit::state::samples::{SampleData, SetId};
use crate::cockpit::state::screen::Panel;
use crate::cockpit::update::{Effect, HistoryBox, Msg, update};
use crate::protocol::control::Update;
use crate::protocol::samples::Confusion;
use crate::theme::Theme;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use insta::assert_snapshot;
use ratatui::buffer::CellDiffOption;
use std::fmt::Write;
use std::sync::Arc;

fn opened(size: (u16, u16), key: &str, written: Written) -> State {
    let mut state = fixture::training(size);
    press_keys(&mut state, key);
    read_all(&mut state, written);
    state
}

/// Presses a key and reads what the screen then needs.
fn press(state: &mut State, code: KeyCode, written: Written) {
    let effects = update(state, Msg::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    answer(state, effects, written);
}

fn large_matrix(_: u64) -> SampleData {
    let classes: Vec<String> = (0..40).map(|class| format!("class number {class}")).collect();
    let counts = (0..40).map(|row| (0..40).map(|column| if row == column { 9_000 } else { 0 }).collect()).collect();
    SampleData { confusion: Some(Confusion { classes, counts }), ..(DIGITS.set)(45) }
}

#[test]
fn texts_files_and_single_samples() {
    for size in [(80, 24), (120, 40), (200, 50)] {
        let mut pictures = String::new();
        let mut show = |name: &str, state: &State| {
            let _ = writeln!(pictures, "══ {name} ══\n{}\n", draw_text(state));
        };
        show("texts", &opened(size, "7", TEXTS));
        let mut older = opened(size, "7", TEXTS);
        press(&mut older, KeyCode::Left, TEXTS);
        press(&mut older, KeyCode::Down, TEXTS);
        show("an older text, the other prompt", &older);
        show("files of a command", &opened(size, "7", FILES));
        let mut alone = opened(size, "7", DIGITS);
        press(&mut alone, KeyCode::Down, DIGITS);
        press(&mut alone, KeyCode::Enter, DIGITS);
        show("one sample alone", &alone);
        let many = Written { set: large_matrix, ..DIGITS };
        let mut matrix = opened(size, "7", many);
        press(&mut matrix, KeyCode::Tab, many);
        for code in [KeyCode::Down, KeyCode::Down, KeyCode::Right] {
            press(&mut matrix, code, many);
        }
        show("a large matrix", &matrix);
        let mut failed = opened(size, "7", DIGITS);
        let error = ReadError::Run("step-000000675.json: permission denied".to_owned());
        update(&mut failed, Msg::SampleSet { id: SetId::Step(675), set: Err(error) });
        show("unreadable", &failed);
        assert_snapshot!(format!("samples_{}x{}", size.0, size.1), pictures);
    }
}

#[test]
fn arrows_choose_samples_and_steps_and_new_ones_are_followed() {
    let mut state = opened((120, 40), "7", DIGITS);
    assert!(draw_text(&state).contains("step 675   4 of 4   newest"));
    press(&mut state, KeyCode::Down, DIGITS);
    assert!(draw_text(&state).contains("2 of 12   validation 30"));
    press(&mut state, KeyCode::Left, DIGITS);
    press(&mut state, KeyCode::Left, DIGITS);
    assert!(draw_text(&state).contains("step 315   2 of 4"));
    // A set that is chosen stays; at the newest, the next one is followed.
    let written = |state: &mut State, step| {
        let effects = update(state, Msg::Keeper(Update::Samples { step }));
        answer(state, effects, DIGITS);
    };
    written(&mut state, 720);
    assert!(draw_text(&state).contains("step 315   2 of 5"));
    press(&mut state, KeyCode::Char('0'), DIGITS);
    written(&mut state, 765);
    assert!(draw_text(&state).contains("step 765   6 of 6   newest"));
    // A set that was written again is read again.
    let effects = update(&mut state, Msg::Keeper(Update::Samples { step: 765 }));
    assert!(effects.contains(&Effect::LoadSamples(SetId::Step(765))), "{effects:?}");
}

#[test]
fn a_click_chooses_a_sample_and_another_shows_it_alone() {
    let mut state = opened((120, 40), "7", DIGITS);
    let at = MouseEvent {
        kind: MouseEventKind::Down(MouseButton::Left),
        column: 20,
        row: 10,
        modifiers: KeyModifiers::NONE,
    };
    update(&mut state, Msg::Mouse(at));
    assert_eq!((state.screen.samples.chosen, state.screen.samples.alone), (1, false));
    let effects = update(&mut state, Msg::Mouse(at));
    assert!(state.screen.samples.alone && effects.iter().any(|effect| matches!(effect, Effect::LoadPicture(_))));
}

#[test]
fn a_narrow_screen_shows_the_samples_or_the_matrix() {
    let mut state = opened((80, 24), "7", DIGITS);
    assert!(!draw_text(&state).contains("confusion ─"));
    press(&mut state, KeyCode::Tab, DIGITS);
    assert_eq!(state.screen.focus, Panel::Confusion);
    assert!(draw_text(&state).contains("confusion ─") && !draw_text(&state).contains("samples ─"));
    press(&mut state, KeyCode::Esc, DIGITS);
    assert!(draw_text(&state).contains("samples ─"));
}

#[test]
fn the_past_shows_what_there_was_by_then() {
    let mut state = opened((120, 40), "7", DIGITS);
    press_keys(&mut state, "g");
    let at_ms = state.replay.as_ref().unwrap().at_ms;
    let history = Ok(HistoryBox(Box::new(fixture::history(340, false))));
    let effects = update(&mut state, Msg::Moment { at_ms, history });
    answer(&mut state, effects, DIGITS);
    assert!(draw_text(&state).contains("step 315   2 of 2   newest"), "{}", draw_text(&state));
    assert!(draw_text(&state).contains("validation 17"));
}

#[test]
fn a_picture_that_cannot_be_shown_says_why() {
    let mut state = opened((120, 40), "7", DIGITS);
    for order in wanted_pictures(&state) {
        update(&mut state, Msg::Picture { order, picture: Err(PictureError::Undecodable("no".to_owned())) });
    }
    assert!(draw_text(&state).contains("PNG"));
}

#[test]
fn pixels_stay_below_no_box_and_are_sent_again_on_request() {
    let theme = &Theme::shipped().unwrap()[0];
    let mut state = opened((120, 40), "7", DIGITS);
    let support = PictureSupport { kind: PictureKind::Sixel, cell: (8, 16), through_tmux: false };
    let effects = update(&mut state, Msg::Pictures(support));
    answer(&mut state, effects, DIGITS);
    let sixels =
        |state: &State| draw(state, theme).content.iter().filter(|cell| cell.symbol().contains("\u{1b}P")).count();
    let options = |state: &State| {
        draw(state, theme).content.iter().filter(|cell| cell.diff_option != CellDiffOption::None).count()
    };
    assert_eq!(sixels(&state), 12);
    press_keys(&mut state, "?");
    assert_eq!((sixels(&state), options(&state)), (0, 0));
    press_keys(&mut state, "\u{1b}");
    assert_eq!(sixels(&state), 12);
    let effects = update(&mut state, Msg::Resumed);
    assert_eq!(sixels(&state), 0);
    answer(&mut state, effects, DIGITS);
    assert_eq!(sixels(&state), 12);
}

#[test]
fn each_file_is_read_once() {
    let mut state = fixture::training((120, 40));
    press_keys(&mut state, "7");
    let effects = update(&mut state, Msg::SampleSets(vec![SetId::Step(45), SetId::Step(675)]));
    let sets: Vec<_> = effects.iter().filter(|effect| matches!(effect, Effect::LoadSamples(_))).collect();
    assert_eq!(sets, [&Effect::LoadSamples(SetId::Step(675)), &Effect::LoadSamples(SetId::Step(45))]);
    let set = Ok(Arc::new((DIGITS.set)(675)));
    let mut effects = update(&mut state, Msg::SampleSet { id: SetId::Step(675), set });
    let mut orders = Vec::new();
    while let Some(Effect::LoadPicture(order)) = effects.pop() {
        let more = update(&mut state, Msg::Tick(NOW + 1));
        assert!(!more.iter().any(|effect| matches!(effect, Effect::LoadPicture(_) | Effect::LoadSamples(_))));
        orders.push(order.clone());
        let picture = Err(PictureError::Undecodable("no".to_owned()));
        effects.extend(update(&mut state, Msg::Picture { order, picture }));
        effects.retain(|effect| matches!(effect, Effect::LoadPicture(_)));
    }
    orders.sort();
    orders.dedup();
    assert_eq!((orders.len(), wanted_pictures(&state).len()), (12, 12));
}

fn long_texts(step: u64) -> SampleData {
    let mut set = (TEXTS.set)(step);
    for shown in &mut set.samples {
        let numbered: Vec<String> = (1..=600).map(|word| format!("word{word}")).collect();
        shown.sample.text = Some(numbered.join(" ") + &format!(" end{step}"));
    }
    set
}

#[test]
fn a_long_text_is_scrolled_to_its_end_and_no_further() {
    let long = Written { set: long_texts, ..TEXTS };
    for size in [(80, 24), (120, 40)] {
        for alone in [false, true] {
            let mut state = opened(size, "7", long);
            if alone {
                press(&mut state, KeyCode::Enter, long);
            }
            let shown = draw_text(&state);
            assert!(shown.contains("word1 ") && shown.contains('…') && !shown.contains("end675"), "{shown}");
            for _ in 0..200 {
                press(&mut state, KeyCode::PageDown, long);
            }
            let shown = draw_text(&state);
            assert!(shown.contains("word600") && shown.contains("end675"), "{shown}");
            assert_eq!(shown.contains("end45") && shown.contains("end600"), !alone, "{shown}");
            press(&mut state, KeyCode::PageUp, long);
            assert_ne!(draw_text(&state), shown, "{size:?}: PgDn went beyond the end");
        }
    }
}

#[test]
fn texts_below_each_other_show_their_prompt_once() {
    let prompts = |size| draw_text(&opened(size, "7", TEXTS)).matches("What news?").count();
    assert_eq!([prompts((80, 24)), prompts((120, 40))], [1, 3]);
    let shown = draw_text(&opened((80, 24), "7", TEXTS));
    assert!(shown.contains("set about the fire, while without"), "{shown}");
}

fn text_among_pictures(step: u64) -> SampleData {
    let mut set = (DIGITS.set)(step);
    set.samples[1].picture = None;
    set.samples[1].sample.text = (long_texts(step)).samples[0].sample.text.clone();
    SampleData { confusion: None, ..set }
}

#[test]
fn a_text_among_pictures_says_that_it_goes_on() {
    let mixed = Written { set: text_among_pictures, ..DIGITS };
    let mut state = opened((120, 40), "7", mixed);
    let shown = draw_text(&state);
    assert!(shown.contains("word1 ") && shown.contains(" …"), "{shown}");
    press(&mut state, KeyCode::Down, mixed);
    press(&mut state, KeyCode::Enter, mixed);
    for _ in 0..200 {
        press(&mut state, KeyCode::PageDown, mixed);
    }
    let shown = draw_text(&state);
    assert!(shown.contains("end675") && !shown.contains('…'), "{shown}");
}

#[test]
fn a_large_matrix_names_its_classes_and_scrolls_to_its_corner() {
    let many = Written { set: large_matrix, ..DIGITS };
    for size in [(80, 24), (120, 40)] {
        let mut state = opened(size, "7", many);
        press(&mut state, KeyCode::Tab, many);
        let shown = draw_text(&state);
        assert!(
            ["class number 0 ", "class number 7 ", "c…r 0 ", "c…r 1 "].iter().all(|name| shown.contains(name)),
            "{shown}"
        );
        for _ in 0..60 {
            press(&mut state, KeyCode::Down, many);
            press(&mut state, KeyCode::Right, many);
        }
        let corner = draw_text(&state);
        assert!(corner.contains(" to 40 of 40, columns ") && corner.matches(" to 40 of 40").count() == 2, "{corner}");
        press(&mut state, KeyCode::Up, many);
        assert!(draw_text(&state).contains(" to 39 of 40, columns "), "{size:?}: ↓ went beyond the end");
        press(&mut state, KeyCode::Left, many);
        assert_eq!(draw_text(&state).matches(" to 39 of 40").count(), 2);
    }
}

#[test]
fn the_past_does_not_tell_which_parameter_breaks_later() {
    let shows = |steps| {
        let mut state = opened((120, 40), "8", DIGITS);
        press_keys(&mut state, "g");
        let at_ms = state.replay.as_ref().unwrap().at_ms;
        let history = Ok(HistoryBox(Box::new(fixture::history(steps, false))));
        update(&mut state, Msg::Moment { at_ms, history });
        let shown = draw_text(&state);
        assert!(shown.contains("blocks.0.attention.value"), "{shown}");
        shown.contains("first not finite")
    };
    assert_eq!([shows(290), shows(340)], [false, true]);
}

#[test]
fn layers_that_could_not_be_read_are_read_again() {
    let mut state = opened((120, 40), "8", DIGITS);
    let fail =
        |state: &mut State| update(state, Msg::LayerHistory(Err(ReadError::Store("database is locked".to_owned()))));
    let reads = |effects: &[Effect]| effects.contains(&Effect::LoadLayers);
    update(&mut state, Msg::Resumed);
    assert!(!reads(&fail(&mut state)) && draw_text(&state).contains("database is locked"));
    assert!(reads(&update(&mut state, Msg::Tick(NOW + 6_000))));
    fail(&mut state);
    press_keys(&mut state, "1");
    let effects = update(&mut state, Msg::Key(KeyEvent::new(KeyCode::Char('8'), KeyModifiers::NONE)));
    assert!(reads(&effects), "{effects:?}");
}

#[test]
fn layers_show_each_measure_and_the_parameter_that_broke() {
    let mut state = opened((120, 40), "8", DIGITS);
    let shown = draw_text(&state);
    assert!(
        shown.contains("layers: update ratio")
            && shown.contains("first not finite: blocks.0.attention.value.weight at step 300")
    );
    for name in ["gradient norm", "weight norm", "dead units", "update ratio"] {
        press(&mut state, KeyCode::Enter, DIGITS);
        assert!(draw_text(&state).contains(&format!("layers: {name}")));
    }
    for code in [KeyCode::Down, KeyCode::Down, KeyCode::Down] {
        press(&mut state, code, DIGITS);
    }
    for _ in 0..8 {
        press(&mut state, KeyCode::Left, DIGITS);
    }
    let shown = draw_text(&state);
    assert!(shown.contains("blocks.0.attention.value   step 315") && shown.contains("gradient not finite"), "{shown}");
}
