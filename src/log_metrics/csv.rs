//! Comma-separated values with a header, as Lightning's and Keras' loggers write them.

use super::Reading;
use super::jsonl::special;
use super::record::Record;

/// Columns read of one row.
const MAX_COLUMNS: usize = 256;

/// The header of a file.
#[derive(Debug, Default)]
pub struct Csv {
    header: Option<Header>,
}

#[derive(Debug)]
struct Header {
    names: Vec<String>,
    separator: char,
}

impl Csv {
    /// Reads a line; the first is the header.
    pub fn read_line(&mut self, line: &str) -> Option<Reading> {
        let Some(header) = &self.header else {
            let separator = [',', ';', '\t'].into_iter().max_by_key(|mark| line.matches(*mark).count())?;
            self.header = Some(Header { names: cells(line, separator), separator });
            return None;
        };
        let mut record = Record::default();
        let row = cells(line, header.separator);
        // A row that is shorter was cut, or belongs to another header.
        if row.len() != header.names.len() {
            return None;
        }
        for (name, cell) in header.names.iter().zip(row) {
            let cell = cell.trim();
            if let Some(value) = special(cell).or_else(|| cell.parse().ok()).filter(|_| !name.is_empty()) {
                record.add(name, value);
            }
        }
        record.finish()
    }
}

/// Splits a row; quotes protect separators, and two of them are one.
fn cells(line: &str, separator: char) -> Vec<String> {
    let mut cells = vec![String::new()];
    let (mut quoted, mut letters) = (false, line.chars().peekable());
    while let Some(letter) = letters.next() {
        let Some(cell) = cells.last_mut() else { break };
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            _ if letter == separator && !quoted => {
                if cells.len() == MAX_COLUMNS {
                    break;
                }
                cells.push(String::new());
            }
            _ => cell.push(letter),
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::{Csv, cells};

    #[test]
    fn rows_are_readings() {
        let mut csv = Csv::default();
        assert_eq!(csv.read_line("epoch,lr-SGD,step,train_loss,val_loss"), None);
        let reading = csv.read_line("0,0.05,3,2.5,").unwrap();
        assert_eq!((reading.step, reading.epoch), (Some(3), Some(0.0)));
        assert_eq!(reading.values, [("lr".to_owned(), 0.05), ("loss".to_owned(), 2.5)]);
        assert!(csv.read_line("1,,4,nan,").unwrap().value("loss").unwrap().is_nan());
        for cut in ["1,0.05,5,2", "", "1,2,3,4,5,6", "x,y,z,a,b"] {
            assert_eq!(csv.read_line(cut), None, "{cut}");
        }
    }

    #[test]
    fn quotes_protect_separators() {
        assert_eq!(cells("a,\"b,\"\"c\",d", ','), ["a", "b,\"c", "d"]);
    }
}
