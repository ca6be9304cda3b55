//! Tables with a header, such as Ultralytics prints around its bars: the words of the header name the cells of the rows below.
//!
//! ```text
//!       Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size
//!         2/6         0G      0.331     0.7979     0.1873          8         64: 100% ━━━━━━━━━━━━ 4/4 9.2it/s 0.4s
//!                  Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100% ━━━━━━━━━━━━ 1/1
//!                    all          8          8      0.912      0.875      0.861      0.702
//! ```

use super::names;

/// Columns of a header: fewer is a line of words, more is something else.
const COLUMNS: std::ops::RangeInclusive<usize> = 3..=32;
/// Names of the first column.
const FIRST: [&str; 10] =
    ["epoch", "e", "class", "classes", "step", "steps", "iter", "iteration", "iterations", "round"];
/// Columns that count the data, which are no metrics.
const COUNTS: [&str; 3] = ["images", "instances", "size"];
/// Parts of the names of scores.
const SCORES: [&str; 5] = ["acc", "iou", "map", "precision", "recall"];
/// Longest name of a column.
const LONGEST: usize = 24;

/// The columns of the newest header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    columns: Vec<String>,
    kind: Kind,
}

/// The subject of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The training: an epoch or a step, and losses.
    Training,
    /// An evaluation: a row for all classes, and one for each.
    Evaluation,
}

/// A segment of the output, seen as a part of a table.
pub enum Part {
    /// The header of a table.
    Header(Table),
    /// A row, with the names of its columns; what follows the cells, such as a bar, stays behind it.
    Row(String),
    /// A row that says nothing about the training as a whole.
    Detail,
}

impl Table {
    /// Reads a segment below the header of `open`.
    pub fn read(text: &str, open: Option<&Self>) -> Option<Part> {
        // `| epoch | loss |`
        let inside = text.trim().strip_prefix('|').and_then(|text| text.strip_suffix('|'));
        let ruled = inside.map(|inside| inside.replace('|', "  "));
        // `epoch,loss`
        let is_csv = text.contains(',') && !text.contains(' ');
        let ruled = ruled.or_else(|| is_csv.then(|| text.replace(',', "  ")));
        let (cells, behind) = split_bar(ruled.as_deref().unwrap_or(text));
        if let Some(header) = Self::header(cells) {
            return Some(Part::Header(header));
        }
        open?.row(cells, behind)
    }

    fn header(text: &str) -> Option<Self> {
        let first = text.split_ascii_whitespace().next()?;
        if !FIRST.iter().any(|known| first.eq_ignore_ascii_case(known)) {
            return None;
        }
        // Names of several words are wide apart: `Iter   Train Loss   Remaining Time`.
        let wide: Vec<&str> =
            text.split("  ").map(str::trim).filter(|name| !name.is_empty()).take(COLUMNS.end() + 1).collect();
        let is_wide = wide.len() >= *COLUMNS.start() && wide.iter().any(|name| name.contains(' '));
        let words = if is_wide { wide } else { text.split_ascii_whitespace().take(COLUMNS.end() + 1).collect() };
        let is_name = |word: &&str| {
            let begins = |letter: char| letter.is_ascii_alphabetic() || (*word == "#" && letter == '#');
            word.len() <= LONGEST
                && word.starts_with(begins)
                && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-()/%# ".contains(&byte))
        };
        if !COLUMNS.contains(&words.len()) || !words.iter().all(is_name) {
            return None;
        }
        let columns = column_names(&words);
        let is_score = |column: &String| SCORES.iter().any(|score| column.contains(score));
        let kind = match columns[0].as_str() {
            "class" | "classes" if columns.iter().any(is_score) => Kind::Evaluation,
            first
                if (first == "epoch" || (counts(first) && text.contains("  ")))
                    && columns.iter().any(|column| is_training_loss(column)) =>
            {
                Kind::Training
            }
            _ => return None,
        };
        Some(Self { columns, kind })
    }

    fn row(&self, cells: &str, behind: &str) -> Option<Part> {
        let cells: Vec<&str> = cells.split_ascii_whitespace().take(self.columns.len() + 1).collect();
        if cells.len() != self.columns.len() {
            return None;
        }
        let named = || self.columns.iter().map(String::as_str).zip(cells.iter().copied());
        let is_number = |cell: &str| cell.parse::<f64>().is_ok();
        let numbers: Vec<(&str, f64)> = named()
            .filter(|(name, _)| !COUNTS.contains(name))
            .filter_map(|(name, cell)| Some((name, cell.parse().ok()?)))
            .collect();
        match self.kind {
            // A bar without a part that is done: the values are those of a step which it does not count yet.
            Kind::Training if behind.starts_with(['─', '╸', '╺']) && !behind.contains('━') => {
                Some(Part::Detail)
            }
            Kind::Training => {
                let losses: Vec<f64> =
                    numbers.iter().filter(|(name, _)| is_training_loss(name)).map(|(_, value)| *value).collect();
                let wanted = self.columns.iter().filter(|name| is_training_loss(name)).count();
                if losses.len() != wanted {
                    return None;
                }
                let measured = numbers.iter().filter(|(name, _)| *name != self.columns[0]);
                let pairs: Vec<String> = measured.map(|(name, value)| format!("{name}={value}")).collect();
                // A table of partial losses has no total; their sum is what is trained on.
                let has_total =
                    numbers.iter().any(|(name, _)| names::role(name) == names::Role::Known("loss".to_owned()));
                let total = if has_total { String::new() } else { format!(" loss={}", losses.iter().sum::<f64>()) };
                let unit = if names::role(&self.columns[0]) == names::Role::Epoch { "Epoch" } else { "step" };
                Some(Part::Row(format!("{unit} {}{total} {} {behind}", cells[0], pairs.join(" "))))
            }
            Kind::Evaluation if !cells[1..].iter().all(|cell| is_number(cell)) => None,
            Kind::Evaluation if !cells[0].eq_ignore_ascii_case("all") => Some(Part::Detail),
            Kind::Evaluation => {
                let pairs: Vec<String> = numbers.iter().map(|(name, value)| format!("eval_{name}={value}")).collect();
                Some(Part::Row(format!("val: {}", pairs.join(" "))))
            }
        }
    }
}

/// The rows of the tables of a log, with the names of their columns.
#[derive(Debug, Default)]
pub struct TableRows(Option<Table>);

impl TableRows {
    /// Reports whether a line may be a header or a row with a number that is not one, whatever stands before it.
    #[must_use]
    pub fn may_read(&self, line: &[u8]) -> bool {
        let contains = |words: &[u8; 3]| {
            line.windows(3).any(|part| part[0].eq_ignore_ascii_case(&words[0]) && part.eq_ignore_ascii_case(words))
        };
        // Numbers end nearly every line of a training, and no header.
        let ends_in_words = !line.iter().rev().take(6).any(u8::is_ascii_digit);
        (ends_in_words && contains(b"oss")) || (self.0.is_some() && contains(b"nan"))
    }

    /// Reads a line. Returns the row if it holds a number that is not one.
    #[must_use]
    pub fn read(&mut self, line: &[u8]) -> Option<String> {
        let begin = line.iter().position(|byte| !byte.is_ascii_whitespace() && *byte != b'|')?;
        let may_be_header = FIRST
            .iter()
            .any(|name| line[begin..].get(..name.len()).is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes())));
        let has_nan = || line[begin..].windows(3).any(|word| word.eq_ignore_ascii_case(b"nan"));
        if !may_be_header && (self.0.is_none() || !line[begin].is_ascii_digit() || !has_nan()) {
            return None;
        }
        let text = std::str::from_utf8(line).ok()?.replace('\t', "  ");
        match Table::read(&text, self.0.as_ref())? {
            Part::Header(table) => self.0 = Some(table),
            Part::Row(row) => return Some(row),
            Part::Detail => {}
        }
        None
    }
}

/// Reports whether a column counts the rows.
fn counts(name: &str) -> bool {
    matches!(names::role(name), names::Role::Epoch | names::Role::Step)
}

fn is_training_loss(name: &str) -> bool {
    names::is_loss(name) && names::role(name) != names::Role::Known("eval_loss".to_owned())
}

/// Splits a row from the bar behind it: `… 64: 37% ━━━━`, without the share, or `… 64:  37%|███ | 3/8 […]`, as tqdm draws it.
fn split_bar(text: &str) -> (&str, &str) {
    let bar = |(cells, behind): (&'_ str, &'_ str)| {
        let behind = behind.trim_start();
        let (share, bar) = behind.split_once('%')?;
        let is_share = share.bytes().all(|byte| byte.is_ascii_digit());
        let bar = if bar.starts_with('|') { behind } else { bar.trim_start() };
        is_share.then_some((cells.len(), text.len() - bar.len()))
    };
    text.rsplit_once(": ").and_then(bar).map_or((text, ""), |(cells, bar)| (&text[..cells], &text[bar..]))
}

/// Returns the names of columns: `Box(P R mAP50)` and `Mask(P R mAP50)` are a group each, of which the first needs no name.
fn column_names(words: &[&str]) -> Vec<String> {
    let (mut group, mut groups) = (String::new(), 0);
    let name = |word: &&str| {
        let inner = match word.split_once('(') {
            Some((begun, first)) => {
                groups += 1;
                group = if groups > 1 { format!("{begun}_") } else { String::new() };
                first
            }
            None => word,
        };
        let name = match inner.trim_end_matches(')') {
            "P" => "precision",
            "R" => "recall",
            // spaCy's columns.
            "E" => "epoch",
            "#" => "step",
            name => name,
        };
        names::sanitise(&format!("{group}{name}"))
    };
    words.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::{Part, Table};

    const HEADER: &str = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size";

    fn header(text: &str) -> Table {
        match Table::read(text, None) {
            Some(Part::Header(table)) => table,
            _ => panic!("{text}"),
        }
    }

    fn row(table: &Table, text: &str) -> Option<String> {
        match Table::read(text, Some(table))? {
            Part::Row(row) => Some(row),
            _ => None,
        }
    }

    #[test]
    fn a_row_takes_the_names_of_its_header_and_the_sum_of_its_losses() {
        let table = header(HEADER);
        let text = "        2/6      1.2G        0.5       0.25          1          8         64: 37% ━━━━╸─────── 3/8 8.1it/s 0.4s<0.6s";
        let wanted = "Epoch 2/6 loss=1.75 box_loss=0.5 cls_loss=0.25 dfl_loss=1 ━━━━╸─────── 3/8 8.1it/s 0.4s<0.6s";
        assert_eq!(row(&table, text).as_deref(), Some(wanted));
        let nan = row(&table, "2/6 1.2G nan 0.25 1 8 64: 100% ━━━━ 8/8").unwrap();
        assert!(nan.contains("loss=NaN box_loss=NaN"), "{nan}");
        let tqdm = row(&table, "1/100 2.1G 0.5 0.25 1 8 640:  45%|████▌     | 7/16 [00:01<00:02, 5.2it/s]").unwrap();
        assert!(tqdm.ends_with("dfl_loss=1 45%|████▌     | 7/16 [00:01<00:02, 5.2it/s]"), "{tqdm}");
        let tabs = header("Step  Training Loss  Validation Loss  Wer");
        let wanted = "step 100 training_loss=0.5 validation_loss=0.6 wer=41.2 ";
        assert_eq!(row(&tabs, "100  0.5  0.6  41.2").as_deref(), Some(wanted));
        let commas = header("epoch,train_loss,val_loss");
        assert_eq!(row(&commas, "1,0.5,0.6").as_deref(), Some("Epoch 1 train_loss=0.5 val_loss=0.6 "));
        let ruled = header("| epoch | loss | val_loss |");
        assert_eq!(row(&ruled, "| 1     | 0.5  | 0.6      |").as_deref(), Some("Epoch 1 loss=0.5 val_loss=0.6 "));
        let wide = header("      Iter       Train Loss   Remaining Time ");
        assert_eq!(row(&wide, "         1           4.5            0.01s").as_deref(), Some("step 1 train_loss=4.5 "));
        let total = header("Epoch loss aux_loss lr");
        assert_eq!(row(&total, "3 0.5 0.1 1e-3").as_deref(), Some("Epoch 3 loss=0.5 aux_loss=0.1 lr=0.001 "));
    }

    #[test]
    fn an_evaluation_is_the_row_of_all_classes() {
        let table = header(
            "  Class  Images  Instances  Box(P  R  mAP50  mAP50-95)  Mask(P  R  mAP50  mAP50-95): 100% ━━━━ 1/1 15.7it/s",
        );
        let all = row(&table, "  all  8  9  0.9  0.8  0.7  0.6  0.5  0.4  0.3  0.2").unwrap();
        let wanted = "val: eval_precision=0.9 eval_recall=0.8 eval_map50=0.7 eval_map50-95=0.6 \
                      eval_mask_precision=0.5 eval_mask_recall=0.4 eval_mask_map50=0.3 eval_mask_map50-95=0.2";
        assert_eq!(all, wanted);
        assert!(matches!(
            Table::read("  box  8  9  0.9  0.8  0.7  0.6  0.5  0.4  0.3  0.2", Some(&table)),
            Some(Part::Detail)
        ));
    }

    #[test]
    fn prose_and_other_rows_are_no_table() {
        for text in [
            "Epoch 1/6",
            "Class imbalance was found: 100% of 3",
            "Epoch the model was saved",
            "Class Images",
            "Epoch val_loss val_acc",
            "step 3 loss 0.5",
            "Steps without loss",
            "Iteration of the loss",
            "",
        ] {
            assert!(!matches!(Table::read(text, None), Some(Part::Header(_))), "{text}");
        }
        let table = header(HEADER);
        for text in ["saved the weights to runs/detect/train today", "1/6 0G a b c 8 64", "1/6 0G 1 2"] {
            assert_eq!(row(&table, text), None, "{text}");
        }
    }
}
