//! A process that only saves and deletes checkpoints, as its command line says; the subject of the strace
//! tests. It reports what it begins and what it has done:
//!
//! ```text
//! campaign saver DIR save:10:0 remove:10      saving 10 0 / saved 10 0 / removing 10 / removed 10
//! ```

use downshift::recipe::seed::Stream;
use downshift::store::checkpoint::{self, Contents, MODEL, OPTIMIZER, STATE, STEPS};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// The command that makes this program a saver.
pub const COMMAND: &str = "saver";

/// Returns the files of one version of one step: pseudo-random, of different lengths.
pub fn checkpoint_files(step: u64, version: u64) -> Vec<(&'static str, Vec<u8>)> {
    let mut stream = Stream::new(step * 1000 + version);
    let mut bytes = |length: usize| (0..length).map(|_| stream.next_u64().to_le_bytes()[0]).collect();
    vec![(MODEL, bytes(300)), (OPTIMIZER, bytes(600)), (STATE, bytes(40)), (STEPS, bytes(90))]
}

/// Saves this version of this step.
///
/// # Errors
/// Returns the message of the store.
pub fn save(dir: &Path, step: u64, version: u64) -> Result<(), String> {
    let files = checkpoint_files(step, version);
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    let contents = Contents { step, samples: step * 8 + version, build: "campaign", files: &files };
    checkpoint::write(dir, &contents).map(drop).map_err(|error| error.to_string())
}

/// Returns the version of a checkpoint, if it was ever passed to [`save`].
pub fn saved_version(loaded: &checkpoint::Loaded) -> Option<u64> {
    let step = loaded.manifest.step;
    let same = |version: &u64| {
        let wanted = checkpoint_files(step, *version);
        wanted.len() == loaded.files.len()
            && wanted.iter().all(|(name, bytes)| loaded.files.get(*name).is_some_and(|found| found == bytes))
    };
    (0..4).find(|version| loaded.manifest.samples == step * 8 + version && same(version))
}

/// A saver's messages: the checkpoints that must be on disk, and those that may be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Claims {
    /// By step: the saved version.
    saved: BTreeMap<u64, u64>,
    /// Steps and versions whose save was begun but not acknowledged.
    begun: BTreeSet<(u64, u64)>,
}

impl Claims {
    /// Parses a message of the saver.
    pub fn record_message(&mut self, line: &str) {
        let words: Vec<&str> = line.split([' ', ':']).collect();
        let number = |at: usize| words.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        match words[0] {
            "saving" => drop(self.begun.insert((number(1), number(2)))),
            "saved" => {
                self.saved.insert(number(1), number(2));
                self.begun.retain(|(step, _)| *step != number(1));
            }
            // From here on it may or may not exist.
            "removing" => self.begun.extend(self.saved.remove(&number(1)).map(|version| (number(1), version))),
            _ => {}
        }
    }

    /// Checks that a directory holds every claimed checkpoint and nothing that was never saved.
    ///
    /// # Errors
    /// Returns what is lost or wrongly accepted.
    pub fn check(&self, dir: &Path) -> Result<(), String> {
        let mut accepted = BTreeMap::new();
        for entry in checkpoint::list(dir) {
            match checkpoint::load(&entry.path) {
                Ok(loaded) => drop(accepted.insert(entry.step, saved_version(&loaded))),
                Err(error) if self.saved.contains_key(&entry.step) => return Err(error.to_string()),
                Err(_) => {}
            }
        }
        for (step, found) in &accepted {
            let known =
                found.is_some_and(|found| self.saved.get(step) == Some(&found) || self.begun.contains(&(*step, found)));
            if !known {
                return Err(format!("step {step} is accepted with content {found:?}, which was never saved"));
            }
        }
        if let Some(step) = self.saved.keys().find(|step| !accepted.contains_key(step)) {
            return Err(format!("acknowledged step {step} is gone; on disk: {:?}", accepted.keys()));
        }
        let newest = checkpoint::newest_valid(dir).0.map(|loaded| loaded.manifest.step);
        if newest < self.saved.keys().next_back().copied() {
            return Err(format!("the newest valid step is {newest:?}, but {:?} were acknowledged", self.saved.keys()));
        }
        Ok(())
    }
}

/// Runs the saver process.
pub fn main(words: &[String]) -> ExitCode {
    let Some((dir, actions)) = words.split_first() else { return ExitCode::from(2) };
    for action in actions {
        let parts: Vec<&str> = action.split(':').collect();
        let number = |at: usize| parts.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let (step, version) = (number(1), number(2));
        if parts[0] == "remove" {
            print_line(&format!("removing {step}"));
            match checkpoint::remove(Path::new(dir), step) {
                Ok(()) => print_line(&format!("removed {step}")),
                Err(error) => print_line(&format!("refused {step}: {error}")),
            }
            continue;
        }
        print_line(&format!("saving {step} {version}"));
        match save(Path::new(dir), step, version) {
            Ok(()) => print_line(&format!("saved {step} {version}")),
            Err(sentence) => print_line(&format!("refused {step}: {sentence}")),
        }
    }
    ExitCode::SUCCESS
}

/// Prints with a single call, so that the trace has a single event.
fn print_line(text: &str) {
    let _ = std::io::stdout().write_all(format!("{text}\n").as_bytes());
}
