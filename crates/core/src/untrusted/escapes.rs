//! Removes what programs write for the terminal alone: colours, hyperlinks, titles and cursor moves.

use std::borrow::Cow;

const ESCAPE: u8 = 0x1b;
const BELL: u8 = 0x07;

/// Returns text without the escape sequences in it. The text of a hyperlink stays. A string for the terminal that is never ended
/// stays, too: what follows may be an error message.
#[must_use]
pub fn strip(text: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = text.iter().position(|byte| *byte == ESCAPE) else { return Cow::Borrowed(text) };
    let mut plain = text[..first].to_vec();
    let mut rest = &text[first..];
    while let Some((byte, behind)) = rest.split_first() {
        rest = if *byte == ESCAPE { skip_sequence(behind) } else { behind };
        if *byte != ESCAPE {
            plain.push(*byte);
        }
    }
    Cow::Owned(plain)
}

/// Returns what follows a sequence; `rest` begins behind its `ESC`.
fn skip_sequence(rest: &[u8]) -> &[u8] {
    match rest.first() {
        Some(b'[') => {
            let inside = rest[1..].iter().take_while(|byte| **byte >= 0x20 && !is_final(**byte)).count();
            let end = 1 + inside;
            &rest[end + usize::from(rest.get(end).is_some_and(|byte| is_final(*byte)))..]
        }
        Some(b']' | b'P' | b'X' | b'^' | b'_') => skip_string(&rest[1..]),
        // Such as the choice of a character set.
        Some(b' '..=b'/') => {
            let between = rest.iter().take_while(|byte| matches!(byte, b' '..=b'/')).count();
            &rest[(between + 1).min(rest.len())..]
        }
        Some(0x30..=0x7e) => &rest[1..],
        _ => rest,
    }
}

fn is_final(byte: u8) -> bool {
    (0x40..=0x7e).contains(&byte)
}

/// Returns what follows a string for the terminal, up to BEL or `ESC \`.
fn skip_string(rest: &[u8]) -> &[u8] {
    let line = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    for (at, byte) in rest[..line].iter().enumerate() {
        match *byte {
            BELL => return &rest[at + 1..],
            ESCAPE if rest.get(at + 1) == Some(&b'\\') => return &rest[at + 2..],
            // Another sequence begins.
            ESCAPE => return rest,
            _ => {}
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::strip;
    use std::borrow::Cow;

    #[test]
    fn sequences_are_removed_and_text_stays() {
        let link = "\u{1b}]8;id=1;file:///train.py\u{1b}\\train.py\u{1b}]8;;\u{1b}\\\u{1b}[2m:\u{1b}[0m12";
        for (text, wanted) in [
            (link, "train.py:12"),
            ("\u{1b}]8;;x\u{7}out of memory\u{1b}]8;;\u{7}", "out of memory"),
            ("\u{1b}[1;31mred\u{1b}[0m and \u{1b}]0;title\u{7}more", "red and more"),
            ("\u{1b}(Bplain \u{1b}7\u{1b}[?25lä\u{1b}é", "plain äé"),
            ("\u{1b}]never ended: out of memory", "never ended: out of memory"),
            ("\u{1b}]0;out of memory \u{1b}]8;;u\u{7}link", "0;out of memory link"),
            ("\u{1b}]52;c;x\nnext\u{7}", "52;c;x\nnext\u{7}"),
            ("\u{1b}[12\ncut", "\ncut"),
            ("end\u{1b}", "end"),
            ("end\u{1b}[", "end"),
        ] {
            assert_eq!(String::from_utf8_lossy(&strip(text.as_bytes())), wanted, "{text:?}");
        }
        assert!(matches!(strip(b"plain"), Cow::Borrowed(_)));
    }
}
