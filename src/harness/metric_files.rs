//! The files that the command's loggers write.

use crate::log_metrics::{FileReader, Reading};
use crate::untrusted::glob::Glob;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most files read at once.
const MOST: usize = 32;

/// Reads the files that match the patterns of the run file.
#[derive(Default)]
pub struct MetricFiles {
    patterns: Vec<Glob>,
    directory: PathBuf,
    /// Open files; none for a file that cannot be read.
    open: BTreeMap<PathBuf, Option<FileReader>>,
}

impl MetricFiles {
    /// Opens the files that are there, and skips what they already hold: it belongs to earlier attempts.
    #[must_use]
    pub fn begin(patterns: &[String], directory: &Path) -> Self {
        // The run file was checked: a pattern that cannot be read matches nothing.
        let patterns = patterns.iter().filter_map(|pattern| Glob::parse(pattern).ok()).collect();
        let mut files = Self { patterns, directory: directory.to_owned(), open: BTreeMap::new() };
        let (mut old, mut notes) = (Vec::new(), Vec::new());
        files.poll(&mut old, &mut notes);
        for reader in files.open.values_mut().flatten() {
            // A reader holds the newest step back. An error repeats with the next poll.
            let _ = reader.skip_existing();
        }
        files
    }

    /// Appends what was added to the files. A file that cannot be read is skipped, with a note that says why.
    pub fn poll(&mut self, readings: &mut Vec<Reading>, notes: &mut Vec<String>) {
        for path in self.patterns.iter().flat_map(|pattern| pattern.find(&self.directory)) {
            // An empty file does not show its format yet.
            let written = path.metadata().is_ok_and(|found| found.is_file() && found.len() > 0);
            if self.open.len() < MOST && written && !self.open.contains_key(&path) {
                let reader = FileReader::open(&path).map_err(|error| notes.push(describe(&path, &error))).ok();
                self.open.insert(path, reader);
            }
        }
        for (path, reader) in &mut self.open {
            let Some(file) = reader else { continue };
            if let Err(error) = file.poll(readings) {
                notes.push(describe(path, &error));
                *reader = None;
            }
        }
    }
}

fn describe(path: &Path, error: &dyn std::error::Error) -> String {
    format!("metrics are not read from {}: {error}", crate::untrusted::text::path(path))
}
