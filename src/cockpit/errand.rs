//! Work that a cockpit hands to a command: it closes, and the program carries the errand out in the same
//! terminal, as if the user had typed the command.

/// An errand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Errand {
    /// Open the cockpit on another run.
    Open(String),
    /// Continue an ended run.
    Resume {
        /// Name of the run.
        run: String,
        /// Step of the checkpoint to go back to; none = the newest.
        from: Option<u64>,
    },
    /// Start a new run from a checkpoint of this one.
    Branch {
        /// Name of the run.
        run: String,
        /// Step of the checkpoint; none = the newest.
        from: Option<u64>,
    },
    /// Write the weights of a checkpoint.
    Export {
        /// Name of the run.
        run: String,
        /// Step of the checkpoint.
        step: u64,
        /// Path of the file to write.
        out: String,
    },
    /// Measure the checkpoints of a run and rank them.
    Compare {
        /// Name of the run.
        run: String,
    },
}

impl Errand {
    /// Returns the words of the command after `downshift`.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let from = |step: &Option<u64>| step.map(|step| ["--from".to_owned(), step.to_string()]).into_iter().flatten();
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match self {
            Self::Open(run) => words(&["attach", run]),
            Self::Resume { run, from: step } => words(&["resume", run]).into_iter().chain(from(step)).collect(),
            Self::Branch { run, from: step } => {
                words(&["resume", run, "--branch"]).into_iter().chain(from(step)).collect()
            }
            Self::Export { run, step, out } => {
                words(&["checkpoints", run, "export", "--step", &step.to_string(), "--out", out])
            }
            Self::Compare { run } => words(&["checkpoints", run, "compare"]),
        }
    }

    /// Reports whether the command ends and the cockpit opens again. The others open a cockpit of their own.
    #[must_use]
    pub fn returns(&self) -> bool {
        matches!(self, Self::Export { .. } | Self::Compare { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::Errand;

    #[test]
    fn an_errand_is_a_command_that_one_could_type() {
        let run = || "digits-1".to_owned();
        for (errand, typed, returns) in [
            (Errand::Resume { run: run(), from: None }, "resume digits-1", false),
            (Errand::Resume { run: run(), from: Some(60) }, "resume digits-1 --from 60", false),
            (Errand::Branch { run: run(), from: Some(60) }, "resume digits-1 --branch --from 60", false),
            (Errand::Compare { run: run() }, "checkpoints digits-1 compare", true),
            (
                Errand::Export { run: run(), step: 60, out: "w.safetensors".to_owned() },
                "checkpoints digits-1 export --step 60 --out w.safetensors",
                true,
            ),
        ] {
            assert_eq!((errand.words().join(" "), errand.returns()), (typed.to_owned(), returns));
        }
    }
}
