//! What the command line needs of a trainer. A build without one (`--no-default-features`) still
//! has the cockpit, the keeper and every command that looks at runs.

use crate::config::run::{Run, TaskSections};
use crate::protocol::inject::Inject;
use std::path::PathBuf;

/// A trainer, or its absence.
pub trait Trainer: TaskSections {
    /// Becomes the worker; comes back only with an exit code.
    fn work(&self, order: WorkOrder) -> u8;

    /// Looks at the device and at the data, without starting anything: what would make the worker
    /// end at once. The error has a sentence and the exit code that the worker would end with.
    ///
    /// # Errors
    /// What cannot work.
    fn look_ahead(&self, run: &Run, device: &str) -> Result<Prospect, (u8, String)>;
}

/// What a worker is told on its command line.
#[derive(Debug, Clone)]
pub struct WorkOrder {
    /// The run directory.
    pub run_dir: PathBuf,
    /// The run as it was resolved.
    pub run: Run,
    /// The rung.
    pub rung: usize,
    /// Which life of a worker this is.
    pub attempt: u64,
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    pub device: String,
    /// Fail where there is no checkpoint to go on from.
    pub require_checkpoint: bool,
    /// Go on from this checkpoint rather than the newest.
    pub from: Option<u64>,
    /// Faults on purpose.
    pub inject: Vec<Inject>,
}

/// What was seen by looking ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prospect {
    /// The device that would be used.
    pub device: String,
    /// What a person should know about it.
    pub notes: Vec<String>,
    /// Training and validation samples, where the data could be counted.
    pub samples: Option<(usize, usize)>,
}

/// A build without a trainer: it accepts every task's name and trains none.
#[cfg(not(feature = "train"))]
#[derive(Debug, Default)]
pub struct NoTrainer;

#[cfg(not(feature = "train"))]
mod none {
    use super::{NoTrainer, Prospect, Run, TaskSections, Trainer, WorkOrder};
    use crate::config::knobs::Section;
    use crate::config::problem::Problem;
    use crate::keeper::child::WORKER_VARIABLE;
    use std::path::Path;

    const NO_TRAINER: &str =
        "this downshift was built without a trainer; build it with the feature `train` (on by default)";

    impl TaskSections for NoTrainer {
        fn names(&self) -> Vec<String> {
            Vec::new()
        }

        fn knows(&self, _: &str) -> bool {
            true
        }

        fn resolve(
            &self,
            _: &str,
            data: &Section,
            model: &Section,
            _: &Path,
        ) -> (Option<(Section, Section)>, Vec<Problem>) {
            (Some((data.clone(), model.clone())), Vec::new())
        }
    }

    impl Trainer for NoTrainer {
        fn work(&self, _: WorkOrder) -> u8 {
            super::super::say(NO_TRAINER);
            13
        }

        fn look_ahead(&self, _: &Run, device: &str) -> Result<Prospect, (u8, String)> {
            // Another program may train in its place.
            if std::env::var_os(WORKER_VARIABLE).is_none() {
                return Err((13, NO_TRAINER.to_owned()));
            }
            Ok(Prospect { device: device.to_owned(), notes: Vec::new(), samples: None })
        }
    }
}
