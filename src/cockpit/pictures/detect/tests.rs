use super::{Answers, TmuxClient, decide, parse_answers};
use crate::cockpit::pictures::{PictureKind, PictureSupport};
use crossterm::event::{KeyCode, KeyModifiers};
use proptest::prelude::*;

fn answers_of(bytes: &[u8]) -> Answers {
    parse_answers(bytes).0
}

#[test]
fn terminals_get_the_protocol_that_they_draw() {
    use PictureKind::{HalfBlocks, ITerm2, Kitty, Sixel};
    let table: [(&str, PictureKind); 12] = [
        ("\x1bP>|kitty(0.35.2)\x1b\\\x1b[6;20;10t\x1b[?62;c", Kitty),
        ("\x1bP>|ghostty 1.1.0\x1b\\\x1b[6;20;10t\x1b[?62;22;52c", Kitty),
        ("\x1bP>|WezTerm 20240203-110809\x1b\\\x1b[6;20;10t\x1b[?65;4;6;18;22c", ITerm2),
        ("\x1bP>|iTerm2 3.5.1\x1b\\\x1b[6;20;10t\x1b[?62;4c", ITerm2),
        ("\x1bP>|foot(1.18)\x1b\\\x1b[6;20;10t\x1b[?62;4;22c", Sixel),
        // Windows Terminal 1.22, and one before it that draws no sixels.
        ("\x1b[6;20;10t\x1b[?61;4;6;7;14;21;22;23;24;28;32;42c", Sixel),
        ("\x1b[?61;6;7;14;21;22;23;24;28;32;42c", HalfBlocks),
        ("\x1bP>|VTE(7600)\x1b\\\x1b[6;20;10t\x1b[?65;1;9c", HalfBlocks),
        ("\x1bP>|XTerm(390)\x1b\\\x1b[?64;1;2;6c", HalfBlocks),
        // Sixels, but nobody knows how large a cell is.
        ("\x1b[?62;4c", HalfBlocks),
        ("\x1b[6;0;0t\x1b[?62;4c", HalfBlocks),
        ("", HalfBlocks),
    ];
    for (said, kind) in table {
        assert_eq!(decide(&answers_of(said.as_bytes()), None, None).kind, kind, "{said:?}");
    }
    let sixel = answers_of(b"\x1b[?62;4c");
    assert_eq!(decide(&sixel, None, Some((9, 18))), PictureSupport { kind: Sixel, cell: (9, 18), through_tmux: false });
}

#[test]
fn tmux_passes_pictures_on_only_where_it_may() {
    use PictureKind::{HalfBlocks, ITerm2, Kitty, Sixel};
    let table: [(&str, &str, PictureKind, bool); 8] = [
        ("\x1b[?1;2c", "on\tkitty(0.35.2) xterm-kitty\t256,RGB,title", Kitty, true),
        ("\x1b[?1;2c", "1\tghostty 1.1.0 xterm-ghostty\tRGB", Kitty, true),
        // Without 24-bit colours a placeholder would name another picture.
        ("\x1b[?1;2c", "on\tkitty(0.35.2) xterm-kitty\t256,title", HalfBlocks, false),
        ("\x1b[?1;2c", "off\tkitty(0.35.2) xterm-kitty\t256,RGB", HalfBlocks, false),
        // tmux 3.2 knows none of these names.
        ("\x1b[?1;2c", "\t screen-256color\t", HalfBlocks, false),
        ("\x1b[?1;2c", "on\tiTerm2 3.5.1 xterm-256color\t256,RGB", ITerm2, true),
        ("\x1b[?1;2;4c", "off\tfoot(1.18) foot\tRGB,sixel", Sixel, false),
        // tmux draws sixels, the terminal around it does not.
        ("\x1b[?1;2;4c", "off\tVTE(7600) xterm-256color\tRGB", HalfBlocks, false),
    ];
    for (said, line, kind, through) in table {
        let client = TmuxClient::parse(line);
        let support = decide(&answers_of(said.as_bytes()), Some(&client), Some((8, 16)));
        assert_eq!((support.kind, support.through_tmux), (kind, through), "{line:?}");
    }
}

#[test]
fn keys_typed_meanwhile_are_kept() {
    let (answers, keys) =
        parse_answers("2\x1bP>|kitty(0.35)\x1b\\ä\x1b[B\x1b[6;20;10t\r\x1b[?62;4c\u{3}\x1b".as_bytes());
    assert_eq!(
        answers,
        Answers { version: Some("kitty(0.35)".into()), sixel: true, cell: Some((10, 20)), complete: true }
    );
    let codes: Vec<_> = keys.iter().map(|key| (key.code, key.modifiers == KeyModifiers::CONTROL)).collect();
    let expected = [
        (KeyCode::Char('2'), false),
        (KeyCode::Char('ä'), false),
        (KeyCode::Down, false),
        (KeyCode::Enter, false),
        (KeyCode::Char('c'), true),
        (KeyCode::Esc, false),
    ];
    assert_eq!(codes, expected);
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(prop_oneof![Just(0x1b), Just(b'['), Just(b'P'), any::<u8>()], 0..60)) {
        let (_, keys) = parse_answers(&bytes);
        prop_assert!(keys.len() <= bytes.len());
    }
}
