//! Themes and symbols: all themes show the same, in symbols that every terminal can draw.

use super::{SIZES, draw, draw_text, open_boxes, press_keys, run_conditions, text};
use crate::cockpit::fixture;
use crate::cockpit::glyphs::replace_with_ascii;
use crate::cockpit::state::screen::{Mode, View};
use crate::protocol::control::RunState;
use crate::theme::Theme;
use insta::assert_snapshot;
use ratatui::buffer::Buffer;

/// Renders the roles of a theme as one letter each; a cell shows the first role with its colour.
fn roles(buffer: &Buffer, theme: &Theme) -> String {
    let named = [
        ('a', theme.accent),
        ('g', theme.good),
        ('w', theme.warn),
        ('d', theme.danger),
        ('s', theme.strong),
        ('f', theme.faint),
        ('m', theme.dim),
        ('r', theme.raw),
        ('2', theme.second),
        ('k', theme.mark),
        ('1', theme.line(1)),
        ('b', theme.base),
    ];
    let letter = |cell: &ratatui::buffer::Cell| {
        let known = named.iter().find(|(_, style)| style.fg == Some(cell.fg));
        if cell.symbol() == " " { ' ' } else { known.map_or('?', |(letter, _)| *letter) }
    };
    let rows = buffer.content.chunks(usize::from(buffer.area.width));
    rows.map(|row| row.iter().map(letter).collect::<String>().trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[test]
fn all_themes_say_the_same_and_colour_the_same_roles() {
    let themes = Theme::shipped().unwrap();
    let (dark, light) = (&themes[0], &themes[1]);
    for size in SIZES {
        let views = run_conditions(size).into_iter().chain(open_boxes(size));
        for (name, mut state) in views {
            for key in ('1'..='9').take(View::ALL.len()) {
                if state.screen.mode == Mode::Normal {
                    press_keys(&mut state, &key.to_string());
                }
                let (one, other) = (draw(&state, dark), draw(&state, light));
                assert_eq!(text(&one), text(&other), "{name} {size:?} {key}");
                assert_eq!(roles(&one, dark), roles(&other, light), "{name} {size:?} {key}");
                // The others differ from these two in colours alone, whatever the size.
                if size == SIZES[0] {
                    let same = themes[2..].iter().all(|theme| text(&draw(&state, theme)) == text(&one));
                    assert!(same, "{name} {size:?} {key}");
                }
            }
        }
    }
    assert_snapshot!("roles", roles(&draw(&fixture::on_gpu((80, 24)), dark), dark));
    assert_snapshot!("roles_in_trouble", roles(&draw(&run_conditions((80, 24)).swap_remove(3).1, dark), dark));
}

#[test]
fn every_symbol_is_from_the_safe_set() {
    let safe = |letter: char| {
        letter.is_ascii()
            || "°·×–…→←↑↓⚠".contains(letter)
            || ('\u{2500}'..='\u{259f}').contains(&letter)
            || ('\u{2800}'..='\u{28ff}').contains(&letter)
            || ('\u{25a0}'..='\u{25ff}').contains(&letter)
    };
    // Geometric shapes that some terminals draw as emoji.
    let pictures = ['\u{25aa}', '\u{25ab}', '\u{25b6}', '\u{25c0}', '\u{25fb}', '\u{25fc}', '\u{25fd}', '\u{25fe}'];
    let plain = Theme::plain();
    for (name, mut state) in open_boxes((120, 40)).into_iter().chain(run_conditions((200, 50))) {
        for key in ('1'..='9').take(View::ALL.len()) {
            if state.screen.mode == Mode::Normal {
                press_keys(&mut state, &key.to_string());
            }
            let mut buffer = draw(&state, &plain);
            let shown = text(&buffer);
            for letter in shown.chars() {
                assert!(safe(letter) && !pictures.contains(&letter), "{letter:?} in {name} is not from the safe set");
            }
            replace_with_ascii(&mut buffer);
            let in_ascii = text(&buffer);
            assert!(in_ascii.is_ascii(), "{in_ascii}");
            // A question mark replaces a symbol that has no ASCII equivalent.
            let asked = |text: &str| text.matches('?').count();
            assert_eq!(asked(&in_ascii), asked(&shown), "{name}\n{in_ascii}");
        }
    }
}

#[test]
fn wide_letters_in_a_name_keep_the_screen_in_its_columns() {
    for width in [60, 61, 80, 133] {
        let mut state = fixture::training((width, 24));
        let mut status = fixture::status(RunState::Training, 700);
        status.run = "東京の実験-その一".to_owned();
        fixture::apply_status(&mut state, status);
        let shown = draw_text(&state);
        assert!(shown.contains("東京"), "{shown}");
        let widths = shown.lines().map(unicode_width::UnicodeWidthStr::width);
        assert!(widths.max() <= Some(usize::from(width)), "{shown}");
    }
}
