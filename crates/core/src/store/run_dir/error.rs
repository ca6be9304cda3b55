//! Why a run was not found, opened or created.

use std::io;

/// Reason why a run was not found, opened or created.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// There are no runs.
    #[error("no runs in {0} yet; start one with `downshift run`, or choose another folder with --runs-dir")]
    None(String),
    /// There are no runs here, but one lives elsewhere.
    #[error(
        "no runs in {place}, but {run} lives in {elsewhere}: choose that folder with --runs-dir; `downshift runs --all` lists all that live"
    )]
    Elsewhere {
        /// The place that was searched.
        place: String,
        /// The name of a living run.
        run: String,
        /// Its folder.
        elsewhere: String,
    },
    /// There is no run of this name.
    #[error("no run named `{name}` in {place}; `downshift runs` lists all runs")]
    Unknown {
        /// The name that was requested.
        name: String,
        /// The place that was searched.
        place: String,
    },
    /// No run has this name, and one has a similar name.
    #[error("no run named `{name}` in {place}; did you mean `{meant}`? `downshift runs` lists all runs")]
    Misspelt {
        /// The name that was requested.
        name: String,
        /// The place that was searched.
        place: String,
        /// The name that was probably meant.
        meant: String,
    },
    /// There is no run of exactly this name.
    #[error("no run has exactly the name `{name}` in {place}; {}", closest(.candidates))]
    NotExact {
        /// The name that was requested.
        name: String,
        /// The place that was searched.
        place: String,
        /// The runs whose names start with it, newest first.
        candidates: Vec<String>,
    },
    /// The name matches several runs.
    #[error("`{name}` matches {count} runs, {examples}; write more of the name")]
    Several {
        /// The name that was requested.
        name: String,
        /// Number of matches.
        count: usize,
        /// Some of the matches.
        examples: String,
    },
    /// A file of the run is unusable.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The run's run.yaml is unusable.
    #[error("{0}")]
    Config(String),
    /// The path cannot be passed to other processes, or opened by the store.
    #[error("{path} cannot hold runs: its path {why}; choose another folder with --runs-dir")]
    Unusable {
        /// The directory.
        path: String,
        /// The reason.
        why: String,
    },
    /// A file of the run is a link, or not a regular file.
    #[error(
        "{0} is a symbolic link, or not a regular file; a run keeps its files in its own folder: move the file here, or remove it"
    )]
    Link(String),
}

impl RunDirError {
    /// Returns the end of a sentence that asks for the name that was probably meant.
    #[must_use]
    pub fn suggestion(&self) -> String {
        match self {
            Self::Misspelt { meant, .. } => format!("; did you mean the run `{meant}`?"),
            _ => String::new(),
        }
    }
}

/// Names the runs that an incomplete or misspelt name may stand for.
fn closest(candidates: &[String]) -> String {
    match candidates {
        [] => "`downshift runs` lists all runs".to_owned(),
        candidates => format!("write the whole name: {}", candidates.join(", ")),
    }
}
