//! Recognises progress bars: tqdm's (also Lightning's and kohya's), Keras' and rich's.
//!
//! ```text
//! Epoch 1/3:  31%|███▏      | 5/16 [00:01<00:02,  4.9it/s, loss=2.3]
//!  5/12 ━━━━━━━━━━━━━━━━━━━━ 0s 4ms/step - accuracy: 0.5250 - loss: 0.6921
//! Epoch 0/2  ━━━━━━━╸━━━━━━━ 5/16 0:00:01 • 0:00:02 4.90it/s train_loss: 2.300
//! ```

use super::line::Line;
use super::names::parse_count;

/// The maker of a bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    Tqdm,
    Keras,
    Rich,
    /// Behind the row of a table.
    Table,
    /// The same, drawn by tqdm.
    TqdmOfTable,
}

impl Maker {
    /// Reports whether tqdm draws it.
    pub fn is_tqdm(self) -> bool {
        matches!(self, Self::Tqdm | Self::TqdmOfTable)
    }
}

/// A bar, as drawn once.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar<'a> {
    pub maker: Maker,
    /// The text before it.
    pub description: &'a str,
    pub count: u64,
    pub out_of: u64,
    /// The text after its rate; empty if it was cut off.
    pub postfix: &'a str,
    /// The bar was drawn to its end.
    pub is_complete: bool,
    /// Text that another writer put behind it.
    pub behind: &'a str,
}

const DRAWN: [char; 4] = ['━', '╸', '╺', '╌'];

impl<'a> Bar<'a> {
    /// Reads the bar in a segment.
    pub fn read(text: &'a str) -> Option<Self> {
        Self::tqdm(text).or_else(|| Self::drawn(text)).or_else(|| Self::bracketed(text))
    }

    fn tqdm(text: &'a str) -> Option<Self> {
        let (head, after) = text.split_once("%|")?;
        let before = head.trim_end_matches(|letter: char| letter.is_ascii_digit());
        if before.len() == head.len() {
            return None;
        }
        let (_, counts) = after.split_once('|')?;
        let (count, rest) = integer(counts.trim_start())?;
        let (out_of, rest) = integer(rest.strip_prefix('/')?)?;
        let inside = rest.strip_prefix(" [")?;
        let end = closing_bracket(inside);
        let postfix = end.and_then(|end| inside[..end].splitn(3, ", ").nth(2)).unwrap_or_default();
        let behind = end.map_or("", |end| inside[end + 1..].trim());
        let description = before.trim().trim_end_matches(':');
        Some(Self { maker: Maker::Tqdm, description, count, out_of, postfix, is_complete: end.is_some(), behind })
    }

    fn drawn(text: &'a str) -> Option<Self> {
        let begin = text.find(DRAWN)?;
        let end = text.rfind(DRAWN)?;
        let after = text[end..].trim_start_matches(DRAWN).trim_start();
        let before = text[..begin].trim();
        let bar = |maker, description, count, out_of, postfix| {
            Some(Self { maker, description, count, out_of, postfix, is_complete: false, behind: "" })
        };
        if let Some((count, out_of)) = fraction(before) {
            let postfix = after.split_once(" - ").map_or("", |(_, postfix)| postfix);
            return bar(Maker::Keras, "", count, out_of, postfix);
        }
        let (counts, postfix) = after.split_once(' ').unwrap_or((after, ""));
        let (count, out_of) = fraction(counts)?;
        bar(Maker::Rich, before, count, out_of, postfix)
    }

    /// The bar of Keras 2: ` 5/12 [=====>.....] - ETA: 0s - loss: 0.6921`.
    fn bracketed(text: &'a str) -> Option<Self> {
        let text = text.trim_start();
        text.bytes().next().filter(u8::is_ascii_digit)?;
        let (counts, rest) = text.split_once(' ')?;
        let (count, out_of) = fraction(counts)?;
        let (bar, after) = rest.strip_prefix('[')?.split_once(']')?;
        if bar.is_empty() || !bar.bytes().all(|byte| b"=>.".contains(&byte)) {
            return None;
        }
        let postfix = after.strip_prefix(" - ")?.split_once(" - ").map_or("", |(_, postfix)| postfix);
        Some(Self { maker: Maker::Keras, description: "", count, out_of, postfix, is_complete: false, behind: "" })
    }

    /// Reads the metrics that the bar shows beside its count.
    pub fn line(&self) -> Line {
        let mut line = Line::read_beside_bar(&format!("{} | {}", self.description, self.postfix));
        if let Some(epoch) = &mut line.epoch {
            // Only Lightning shows the version of its logger, and it counts epochs from 0.
            epoch.zero_based = self.postfix.contains("v_num");
        }
        line
    }
}

fn integer(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits);
    Some((parse_count(number)?, rest))
}

fn fraction(text: &str) -> Option<(u64, u64)> {
    let (count, out_of) = text.split_once('/')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(count) || !digits(out_of) {
        return None;
    }
    Some((parse_count(count)?, parse_count(out_of)?))
}

/// Returns the place of the bracket that closes one opened before the text.
fn closing_bracket(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.bytes().position(|byte| {
        match byte {
            b'[' => depth += 1,
            b']' => depth -= 1,
            _ => {}
        }
        depth < 0
    })
}

#[cfg(test)]
mod tests {
    use super::{Bar, Maker};

    #[test]
    fn bars_of_each_maker() {
        for (text, maker, description, count, out_of, postfix) in [
            (
                "Epoch 1/3:  31%|###1   | 5/16 [00:01<00:02,  4.9it/s, loss=2.3]",
                Maker::Tqdm,
                "Epoch 1/3",
                5,
                16,
                "loss=2.3",
            ),
            ("  0%|          | 0/48 [00:00<?, ?it/s]", Maker::Tqdm, "", 0, 48, ""),
            (
                "steps:  12%|█▏  | 12/100 [00:10<01:13,  1.20it/s, avr_loss=0.123]   ",
                Maker::Tqdm,
                "steps",
                12,
                100,
                "avr_loss=0.123",
            ),
            (
                " 5/12 ━━━━━━━━━━━ 0s 4ms/step - accuracy: 0.52 - loss: 0.69",
                Maker::Keras,
                "",
                5,
                12,
                "accuracy: 0.52 - loss: 0.69",
            ),
            (
                " 5/12 [====>.....] - ETA: 0s - loss: 0.69 - accuracy: 0.52",
                Maker::Keras,
                "",
                5,
                12,
                "loss: 0.69 - accuracy: 0.52",
            ),
            (
                "Epoch 0/2  ━━━━╸━━━ 5/16 0:00:01 • 0:00:02 4.90it/s train_loss: 2.300",
                Maker::Rich,
                "Epoch 0/2",
                5,
                16,
                "0:00:01 • 0:00:02 4.90it/s train_loss: 2.300",
            ),
        ] {
            let bar = Bar::read(text).unwrap_or_else(|| panic!("{text}"));
            let found = (bar.maker, bar.description, bar.count, bar.out_of, bar.postfix);
            assert_eq!(found, (maker, description, count, out_of, postfix), "{text}");
        }
    }

    #[test]
    fn a_bar_that_was_cut_off_has_a_count_but_no_postfix() {
        let bar = Bar::read("  31%|###1   | 5/16 [00:01<00:02,  4.9it/s, loss=2.3").unwrap();
        assert_eq!((bar.count, bar.postfix, bar.is_complete), (5, "", false));
    }

    #[test]
    fn text_behind_a_bar_is_not_part_of_it() {
        let bar = Bar::read("  31%|###1   | 5/16 [00:01<00:02,  4.9it/s, a=[1]]{'loss': 2.3}").unwrap();
        assert_eq!((bar.postfix, bar.behind), ("a=[1]", "{'loss': 2.3}"));
    }

    #[test]
    fn counts_that_are_rounded_or_absent_are_no_bars() {
        for text in [
            "  31%|###1   | 1.2k/5.0k [00:01<00:02,  4.9it/s]",
            "12it [00:01,  9.5it/s]",
            "100%|done|",
            "━━━━━━━━",
            "a 5/12 ━━━━ 3",
            "3/4 [done] - loss: 2",
            " 99999999999999999999/1 ━━ 1",
        ] {
            assert_eq!(Bar::read(text), None, "{text}");
        }
    }
}
