//! Reasons why something is not proposed, and what is kept without being proposed.

use crate::init::kept::Kept;
use crate::init::user_settings::Ambiguous;
use crate::untrusted::text;
use std::fmt;
use std::path::PathBuf;

/// A reason why something is not proposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A micro-batch without accumulation.
    NoAccumulation,
    /// The same, and a rung with half the batch is offered.
    HalfBatch,
    /// A micro-batch of one sample.
    SmallestBatch,
    /// A value that only running the script would tell.
    Unknown(String),
    /// Checkpoints of an unknown form.
    UnknownCheckpoints,
    /// The script saves nothing but weights, into these files.
    OnlyWeights(Vec<String>),
    /// The script's argument for a checkpoint loads weights alone.
    ResumesWeights,
    /// The script saves and resumes by `downshift.attach`.
    Attached,
    /// The companion saves and resumes the script, with no line changed.
    Kept(Kept),
    /// A known form, but the output directory is unknown.
    NoOutputDirectory,
    /// A known form, but a switch that makes the script save is off.
    NotSaved(String),
    /// A known form, but no argument takes a checkpoint.
    NoResume,
    /// Several arguments or keys that mean the same.
    Ambiguous(Ambiguous),
    /// Several settings files.
    SeveralSettings(Vec<String>),
    /// An argument of the command that a settings file overrides.
    Beaten(String),
    /// A knob in a settings file that another one names: the meaning and the file.
    Nested(String, PathBuf),
    /// A shell script that does not pass its arguments on.
    Closed,
}

impl fmt::Display for Note {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAccumulation => formatter.write_str(
                "no argument for accumulation, so no rung halves the micro-batch: the effective batch would change",
            ),
            Self::HalfBatch => formatter.write_str(
                "no argument for accumulation, so half the micro-batch is another effective batch: that rung is a comment in \
                 the file",
            ),
            Self::SmallestBatch => formatter.write_str("the micro-batch is already 1"),
            Self::Unknown(spelling) => {
                write!(formatter, "the default of {spelling} is computed; give it in the command to get its rung")
            }
            Self::UnknownCheckpoints => formatter.write_str(
                "no checkpoints of the script were found, so a run that fails cannot continue; the run file lists the ways out",
            ),
            Self::OnlyWeights(files) => write!(
                formatter,
                "the script saves its weights alone ({}), without optimizer and step, so a run that fails cannot continue; the \
                 run file lists the ways out",
                text::escape_line(&files.join(", "))
            ),
            Self::ResumesWeights => formatter.write_str(
                "the script saves weights alone: after a restart, its optimizer begins anew",
            ),
            Self::Attached => formatter.write_str(
                "the script saves and resumes by `downshift.attach`, and its `run.batches` takes the batch of the rung",
            ),
            Self::Kept(kept) => {
                write!(formatter, "downshift saves and resumes {kept} with no line of the script changed")
            }
            Self::NoOutputDirectory => {
                formatter.write_str("the output directory is unknown; fill in `checkpoints` and `resume`")
            }
            Self::NotSaved(spelling) => {
                write!(formatter, "the script saves nothing to resume from without {spelling}; add it to the command")
            }
            Self::NoResume => formatter.write_str(
                "no argument takes a checkpoint, so a run that fails cannot continue; the run file lists the ways out",
            ),
            Self::Ambiguous(Ambiguous { title, names }) => {
                write!(formatter, "{} all mean the {title}, so no rung changes any of them", names.join(", "))
            }
            Self::SeveralSettings(files) => {
                write!(formatter, "the command names several settings files ({}), so no rung changes any", files.join(", "))
            }
            Self::Beaten(spelling) => {
                write!(formatter, "{spelling} has no effect: a settings file of the command overrides it")
            }
            Self::Nested(title, file) => write!(
                formatter,
                "the {title} is set in {}, which another settings file names, so no rung changes it",
                text::path(file)
            ),
            Self::Closed => formatter.write_str(
                "the shell script does not pass its arguments on, so no argument becomes a knob; add \"$@\" to its \
                 Python line, or give that line to `downshift init --`",
            ),
        }
    }
}
