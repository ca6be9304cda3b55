//! Boxes of keys and values, as Stable-Baselines3 prints them. They are read as one line, once they end.
//!
//! ```text
//! ---------------------------------
//! | rollout/           |          |
//! |    ep_rew_mean     | 24.8     |
//! | time/              |          |
//! |    total_timesteps | 2048     |
//! ---------------------------------
//! ```

/// Rows of a box; more are something else.
const MAX_ROWS: usize = 128;
/// Longest key.
const LONGEST: usize = 48;

/// The box that is open.
#[derive(Debug, Default)]
pub struct Boxes {
    pairs: String,
    rows: usize,
    group: String,
}

/// A segment of the output, seen as a part of a box.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// A row of a box.
    Row,
    /// The segment behind the last row: the pairs of the box.
    End(String),
    /// Anything else.
    Other,
}

impl Boxes {
    pub fn take(&mut self, text: &str) -> Part {
        if let Some((key, value)) = row(text).filter(|_| self.rows < MAX_ROWS) {
            self.rows += 1;
            match value {
                "" => key.clone_into(&mut self.group),
                _ => self.pairs.extend([&*self.group, key, "=", value, " "]),
            }
            return Part::Row;
        }
        if self.rows == 0 {
            return Part::Other;
        }
        let Self { pairs, .. } = std::mem::take(self);
        Part::End(pairs)
    }
}

/// Returns a key and its value: a number, or none below the name of a group.
fn row(text: &str) -> Option<(&str, &str)> {
    let inside = text.trim().strip_prefix('|')?.strip_suffix('|')?;
    let (key, value) = inside.split_once('|')?;
    let (key, value) = (key.trim(), value.trim());
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_/-.@".contains(&byte);
    let is_key = !key.is_empty() && key.len() <= LONGEST && key.bytes().all(is_word);
    let is_value = if key.ends_with('/') { value.is_empty() } else { value.parse::<f64>().is_ok() };
    (is_key && is_value).then_some((key, value))
}

#[cfg(test)]
mod tests {
    use super::{Boxes, Part};

    #[test]
    fn a_box_is_one_line_of_pairs() {
        let mut boxes = Boxes::default();
        let parts =
            ["----", "| rollout/ | |", "|    ep_rew_mean | -1.5 |", "| time/ | |", "|   fps | 20 |", "----", "x"]
                .map(|text| boxes.take(text));
        assert_eq!(parts[..5], [Part::Other, Part::Row, Part::Row, Part::Row, Part::Row]);
        assert_eq!(parts[5], Part::End("rollout/ep_rew_mean=-1.5 time/fps=20 ".to_owned()));
        assert_eq!(parts[6], Part::Other);
    }

    #[test]
    fn other_tables_are_no_boxes() {
        for text in [
            "| epoch   2 |    40/   49 batches | lr 20.00 | loss  6.53 |",
            "| Name | Value |",
            "| 0.5 | 0.6 | 0.7 |",
            "|---|---|",
            "| a sentence of words | 3 |",
            "||",
        ] {
            assert_eq!(Boxes::default().take(text), Part::Other, "{text}");
        }
    }
}
