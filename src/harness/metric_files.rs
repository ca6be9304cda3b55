//! The files that the command's loggers write.

use crate::log_metrics::{FileError, FileReader, Reading};
use crate::untrusted::glob::Glob;
use crate::untrusted::text;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most files read at once.
const MOST: usize = 32;

/// Reads the files that match the patterns of the run file.
#[derive(Default)]
pub struct MetricFiles {
    patterns: Vec<Glob>,
    directory: PathBuf,
    open: BTreeMap<PathBuf, Followed>,
}

/// A file that is followed.
#[derive(Default)]
struct Followed {
    /// Absent until the file can be opened.
    reader: Option<FileReader>,
    /// Its content is from earlier attempts and has not been skipped yet.
    is_old: bool,
    /// An error was reported. The next ones are not: a file that is being written may fail now and then.
    is_reported: bool,
}

impl Followed {
    /// Opens the file or reads on.
    fn poll(&mut self, path: &Path, readings: &mut Vec<Reading>) -> Result<(), FileError> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            closed => closed.insert(FileReader::open(path)?),
        };
        if self.is_old {
            reader.skip_existing()?;
            self.is_old = false;
        }
        reader.poll(readings)
    }
}

impl MetricFiles {
    /// Opens the files that are there, and skips what they already hold: it belongs to earlier attempts. A pattern
    /// that cannot be read is left out, with a note.
    #[must_use]
    pub fn begin(patterns: &[String], directory: &Path, notes: &mut Vec<String>) -> Self {
        let mut files = Self { directory: directory.to_owned(), ..Self::default() };
        for pattern in patterns {
            match Glob::parse(pattern) {
                Ok(pattern) => files.patterns.push(pattern),
                Err(error) => notes.push(describe_pattern("metrics.files", pattern, &error)),
            }
        }
        files.find(true);
        files.read_all(&mut Vec::new(), notes);
        files
    }

    /// Appends what the files hold now. A file that cannot be read is tried again at every poll, and reported once.
    pub fn poll(&mut self, readings: &mut Vec<Reading>, notes: &mut Vec<String>) {
        self.find(false);
        self.read_all(readings, notes);
    }

    fn find(&mut self, is_old: bool) {
        for path in self.patterns.iter().flat_map(|pattern| pattern.find(&self.directory)) {
            // An empty file does not show its format yet.
            let written = path.metadata().is_ok_and(|found| found.is_file() && found.len() > 0);
            if self.open.len() < MOST && written {
                self.open.entry(path).or_insert_with(|| Followed { is_old, ..Followed::default() });
            }
        }
    }

    fn read_all(&mut self, readings: &mut Vec<Reading>, notes: &mut Vec<String>) {
        for (path, file) in &mut self.open {
            if let Err(error) = file.poll(path, readings)
                && !std::mem::replace(&mut file.is_reported, true)
            {
                notes.push(format!("no metrics from {error}; retrying"));
            }
        }
    }
}

/// Describes a pattern of the run file that is left out because it is not valid.
pub fn describe_pattern(key: &str, pattern: &str, error: &dyn std::error::Error) -> String {
    format!("the pattern {} of {key} is not used: {error}; correct the run file", text::escape_line(pattern))
}

#[cfg(test)]
mod tests {
    use super::MetricFiles;
    use crate::log_metrics::Reading;
    use std::fs;
    use std::path::Path;

    fn poll(files: &mut MetricFiles) -> (Vec<Option<u64>>, Vec<String>) {
        let (mut readings, mut notes): (Vec<Reading>, Vec<String>) = Default::default();
        // The newest step is held back for one poll.
        files.poll(&mut readings, &mut notes);
        files.poll(&mut readings, &mut notes);
        (readings.iter().map(|reading| reading.step).collect(), notes)
    }

    fn begin(patterns: &[&str], directory: &Path) -> (MetricFiles, Vec<String>) {
        let mut notes = Vec::new();
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let files = MetricFiles::begin(&patterns, directory, &mut notes);
        (files, notes)
    }

    #[test]
    fn a_file_that_cannot_be_read_is_reported_once_and_read_as_soon_as_it_can_be() {
        let place = tempfile::tempdir().unwrap();
        let (mut files, notes) = begin(&["*.log", "["], place.path());
        assert!(
            matches!(&notes[..], [note] if note.contains("the pattern [ of metrics.files is not used")),
            "{notes:?}"
        );
        let path = place.path().join("a.log");
        fs::write(&path, "warming up").unwrap();
        let (steps, notes) = poll(&mut files);
        assert!(steps.is_empty() && notes.len() == 1 && notes[0].contains("a.log"), "{notes:?}");
        assert_eq!(poll(&mut files), (vec![], vec![]), "once is enough");
        fs::write(&path, "{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"loss\": 2.0}\n").unwrap();
        assert_eq!(poll(&mut files), (vec![Some(1), Some(2)], vec![]));
    }

    #[test]
    fn old_rows_are_skipped_also_if_the_file_could_not_be_read_at_the_start() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.log");
        fs::write(&path, "warming up").unwrap();
        let (mut files, notes) = begin(&["*.log"], place.path());
        assert_eq!(notes.len(), 1);
        fs::write(&path, "{\"step\": 1, \"loss\": 2.5}\n").unwrap();
        assert_eq!(poll(&mut files), (vec![], vec![]));
        fs::write(&path, "{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"loss\": 2.0}\n").unwrap();
        assert_eq!(poll(&mut files).0, [Some(2)]);
    }
}
