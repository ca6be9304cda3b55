//! The companion of a run's command, as it last introduced itself: `companion.json` in the run directory. The next
//! attempt reads it before its own companion speaks.

use super::run_dir::{RunDir, write_whole};
use crate::protocol::companion::{CompanionNews, Framework};
use crate::untrusted::file::{self, Limit};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

const FILE: &str = "companion.json";
/// Version of this format.
const VERSION: u32 = 1;

/// A companion that has spoken in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownCompanion {
    version: u32,
    /// Its introduction.
    #[serde(rename = "companion")]
    pub news: CompanionNews,
}

impl KnownCompanion {
    /// Reads the companion of a run; none if none has spoken yet.
    #[must_use]
    pub fn of_run(run: &RunDir) -> Option<Self> {
        let text = file::read(&run.file(FILE), Limit::Record).ok()?;
        serde_json::from_slice(&text).ok().filter(|known: &Self| known.version == VERSION)
    }

    /// Writes a companion into the directory of its run.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn record(run: &RunDir, news: &CompanionNews) -> io::Result<()> {
        let known = Self { version: VERSION, news: news.clone() };
        run.write_atomically(FILE, &serde_json::to_vec_pretty(&known)?)
    }

    /// Copies what is known about the companion of a run into another run directory, if anything is.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn copy(run: &RunDir, to: &Path) -> io::Result<()> {
        let Some(known) = Self::of_run(run) else { return Ok(()) };
        write_whole(&to.join(FILE), &serde_json::to_vec_pretty(&known)?)
    }

    /// Reports whether it passes a checkpoint that the script's framework wrote to the next training.
    #[must_use]
    pub fn resumes_script(&self) -> bool {
        let writes = [Framework::Transformers, Framework::Lightning, Framework::AccelerateLoop];
        self.news.saves && writes.contains(&self.news.framework)
    }
}

#[cfg(test)]
mod tests {
    use super::KnownCompanion;
    use crate::protocol::companion::{CompanionNews, Framework, Grade, IgnoredKnob};
    use crate::store::run_dir::RunDir;
    use std::fs;

    #[test]
    fn a_companion_is_read_as_it_was_written_and_another_format_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("run.yaml"), "").unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        assert_eq!(KnownCompanion::of_run(&run), None);
        let news = CompanionNews {
            framework: Framework::Transformers,
            version: Some("5.23".to_owned()),
            python: None,
            torch: None,
            grade: Grade::SameData,
            reason: Some("dropout".to_owned()),
            saves: true,
            guards: true,
            counts_skips: true,
            parameters: Some(7),
            epoch_units: None,
            unit: None,
            sharded: false,
            world: 1,
            knobs: [("optimizer.lr".to_owned(), 0.1.into())].into(),
            seen: [].into(),
            ignored: vec![IgnoredKnob { name: "training.micro_batch".to_owned(), rung: 2.into(), in_force: 4.into() }],
            imports_ahead: true,
        };
        KnownCompanion::record(&run, &news).unwrap();
        let known = KnownCompanion::of_run(&run).unwrap();
        assert_eq!(known.news, news);
        assert!(known.resumes_script());
        let copy = tempfile::tempdir().unwrap();
        fs::write(copy.path().join("run.yaml"), "").unwrap();
        KnownCompanion::copy(&run, copy.path()).unwrap();
        assert_eq!(KnownCompanion::of_run(&RunDir::open(copy.path()).unwrap()), Some(known));
        let text = fs::read_to_string(run.file("companion.json")).unwrap();
        fs::write(run.file("companion.json"), text.replace("\"version\": 1", "\"version\": 2")).unwrap();
        assert_eq!(KnownCompanion::of_run(&run), None);
    }
}
