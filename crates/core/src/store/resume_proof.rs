//! Outcomes of `downshift trial` for commands: `proven/<hash>.json` in the user's state folder says whether a command
//! resumes as if it had never been killed.
//!
//! The hash covers the command as the run file writes it, how it resumes, and the scripts that it names. Another learning
//! rate keeps the proof, because knobs are not in the hash; an edited script loses it.

use super::run_dir::write_whole;
use super::user_folder::{self, user_folder};
use crate::config::command::CommandSpec;
use crate::format::count;
use crate::untrusted::file::{self, Limit};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Version of the file format.
const VERSION: u32 = 1;

/// The outcome of a trial of a command's resume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeProof {
    /// Version of this format.
    pub version: u32,
    /// The name of the run.
    pub name: String,
    /// Whether the resumed training equalled the unbroken one.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The step of the checkpoint that it resumed from.
    pub resumed_from: u64,
    /// The steps compared after the resume.
    pub steps: u64,
    /// When the trial ended, in Unix milliseconds.
    pub time_ms: i64,
}

/// How a resumed training compares with an unbroken one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Everything that was seen is identical.
    Exact,
    /// It reads the same data, but its numbers differ as those of two unbroken runs do, or by their random numbers.
    SameData,
    /// It differs.
    Differs {
        /// The first step that differs; none if it started over.
        step: Option<u64>,
    },
    /// The trial ended before it could tell.
    Unknown {
        /// The reason.
        why: String,
    },
}

impl ResumeProof {
    /// Reports whether the command may be trusted to continue its own training.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        matches!(self.outcome, Outcome::Exact | Outcome::SameData)
    }
}

impl fmt::Display for ResumeProof {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let date = jiff::Timestamp::from_millisecond(self.time_ms).unwrap_or_default();
        let date = date.to_zoned(jiff::tz::TimeZone::system()).strftime("%-d %b %Y, %H:%M");
        match &self.outcome {
            Outcome::Exact => write!(formatter, "the trial of {date} resumed exactly"),
            Outcome::SameData => write!(formatter, "the trial of {date} resumed with the same data"),
            Outcome::Differs { step: Some(step) } => {
                write!(
                    formatter,
                    "the trial of {date} failed: the resumed training differs from step {} on",
                    count(*step)
                )
            }
            Outcome::Differs { step: None } => {
                write!(formatter, "the trial of {date} failed: the resumed command starts over")
            }
            Outcome::Unknown { why } => write!(formatter, "the trial of {date} proved nothing: {why}"),
        }
    }
}

/// The folder of the outcomes.
#[derive(Debug, Clone)]
pub struct Proofs {
    folder: Option<PathBuf>,
}

impl Proofs {
    /// Returns the user's folder.
    #[must_use]
    pub fn of_user() -> Self {
        Self { folder: user_folder("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("proven")) }
    }

    /// Returns what the newest trial of exactly this command, with its scripts as they are now, proved; if none proved
    /// anything, how the newest one ended.
    #[must_use]
    pub fn find(&self, spec: &CommandSpec) -> Option<ResumeProof> {
        let text = file::read(&self.place(spec)?, Limit::Handwritten).ok()?;
        serde_json::from_slice(&text).ok().filter(|proof: &ResumeProof| proof.version == VERSION)
    }

    /// Stores the outcome of a trial, in place of an older one. One that proved nothing replaces no comparison.
    ///
    /// # Errors
    /// Returns the system's error, or one if the user has no state folder.
    pub fn store(
        &self,
        spec: &CommandSpec,
        name: &str,
        outcome: Outcome,
        (resumed_from, steps): (u64, u64),
    ) -> io::Result<()> {
        let is_unknown = |outcome: &Outcome| matches!(outcome, Outcome::Unknown { .. });
        if is_unknown(&outcome) && self.find(spec).is_some_and(|known| !is_unknown(&known.outcome)) {
            return Ok(());
        }
        let place = self.place(spec).ok_or_else(|| io::Error::other("neither XDG_STATE_HOME nor HOME is set"))?;
        if let Some(folder) = &self.folder {
            user_folder::create(folder)?;
        }
        let (name, time_ms) = (name.to_owned(), jiff::Timestamp::now().as_millisecond());
        let proof = ResumeProof { version: VERSION, name, outcome, resumed_from, steps, time_ms };
        write_whole(&place, &serde_json::to_vec_pretty(&proof)?)
    }

    fn place(&self, spec: &CommandSpec) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{}.json", command_hash(spec))))
    }
}

/// Returns the hash of a command, of how it resumes, and of the scripts that it names.
fn command_hash(spec: &CommandSpec) -> String {
    let checkpoints = spec.checkpoints.as_ref().map(|checkpoints| (&checkpoints.pattern, &checkpoints.complete));
    let text = json!([spec.command, spec.defaults, spec.directory, spec.files, spec.resume, checkpoints]);
    let mut hasher = blake3::Hasher::new();
    hasher.update(text.to_string().as_bytes());
    // The interpreter is above the limit, and its path is in the hash.
    for script in spec.command.iter().filter_map(|word| file::read(&spec.directory.join(word), Limit::Handwritten).ok())
    {
        hasher.update(blake3::hash(&script).as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Proofs};
    use crate::config::command::CommandSpec;
    use crate::config::run::{AsWritten, Run, Source};
    use std::fs;
    use std::path::Path;

    fn spec(base: &Path, command: &str) -> CommandSpec {
        let text = format!("name: x\ntask: command\ncommand: {command}\noptimizer: {{ lr: 0.1 }}\n");
        let source = Source { file: "x", text: &text, base, overrides: &[] };
        Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}")).command.unwrap()
    }

    #[test]
    fn a_proof_holds_for_one_command_and_one_script() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path();
        fs::write(dir.join("train.py"), "print(1)").unwrap();
        let proofs = Proofs { folder: Some(dir.join("state/proven")) };
        let command = spec(dir, "[python, train.py, '--lr={optimizer.lr}']");
        assert_eq!(proofs.find(&command), None);
        proofs.store(&command, "x", Outcome::Exact, (10, 9)).unwrap();
        let proof = proofs.find(&command).unwrap();
        assert!(proof.is_proven());
        assert_eq!((proof.outcome, proof.resumed_from, proof.steps), (Outcome::Exact, 10, 9));
        assert_eq!(proofs.find(&spec(dir, "[python, train.py, '--lr={optimizer.lr}', -v]")), None);
        proofs.store(&command, "x", Outcome::Differs { step: Some(11) }, (10, 9)).unwrap();
        let failed = proofs.find(&command).unwrap();
        let says = failed.to_string();
        assert!(
            !failed.is_proven() && says.ends_with("failed: the resumed training differs from step 11 on"),
            "{says}"
        );
        let unknown = || Outcome::Unknown { why: "it wrote no complete checkpoint".to_owned() };
        proofs.store(&command, "x", unknown(), (0, 0)).unwrap();
        assert_eq!(proofs.find(&command), Some(failed), "it replaces no comparison");
        fs::write(dir.join("train.py"), "print(2)").unwrap();
        assert_eq!(proofs.find(&command), None, "the script was edited");
        proofs.store(&command, "x", unknown(), (0, 0)).unwrap();
        let says = proofs.find(&command).unwrap().to_string();
        assert!(says.ends_with("proved nothing: it wrote no complete checkpoint"), "{says}");
        assert!(Proofs { folder: None }.store(&command, "x", Outcome::SameData, (10, 9)).is_err());
    }
}
