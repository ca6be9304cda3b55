//! The environment of a run across its starts: kept at the first, restored at a later one.
//!
//! ```text
//!  run, adopt ─────────────▶ kept in environment.json, without secrets
//!  resume ─────────────────▶ what the shell sets, and that of the start for the rest; kept
//!  resume --interrupted ───▶ that of the start
//!  a later start of a job ─▶ that of the job; kept
//! ```
//! Variables of a session, such as DISPLAY or TMUX, always stay as they are. Differences go to the journal.

mod merge;
mod variables;

use super::say;
use crate::config::run::Run;
use crate::keeper::detach::Surroundings;
use crate::protocol::environment::{EnvironmentNews, Unusable};
use crate::redact::Redactor;
use crate::store::environment::KeptEnvironment;
use crate::store::run_dir::RunDir;
use merge::{Merged, merge};
use std::collections::BTreeSet;

pub use merge::Precedence;

/// The environment of the next start of a run.
pub struct NextStart {
    /// How the keeper's environment differs from that of this process.
    surroundings: Surroundings,
    /// The environment to keep; none if the kept one stays.
    kept: Option<KeptEnvironment>,
}

impl NextStart {
    /// The first start, in the environment of this process.
    pub fn first(dir: &RunDir) -> Self {
        Self { surroundings: Surroundings::default(), kept: Some(own_variables(dir)) }
    }

    /// A later start.
    pub fn later(dir: &RunDir, precedence: Precedence) -> Self {
        let (now, is_chosen) = (own_variables(dir), precedence != Precedence::Start);
        let start = match KeptEnvironment::of_run(dir) {
            Ok(start) => start,
            Err(why) => {
                // An earlier version kept none; from now on one is kept.
                let unknown = Some(why).filter(|why| !(is_chosen && *why == Unusable::Missing));
                let news = EnvironmentNews { unknown, ..EnvironmentNews::default() };
                let surroundings = Surroundings { news, ..Surroundings::default() };
                return Self { surroundings, kept: is_chosen.then_some(now) };
            }
        };
        let given = dir.run().map(|run| given_variables(&run)).unwrap_or_default();
        let Merged { set, unset, result, news } = merge(&start, &now, precedence, &given);
        Self { surroundings: Surroundings { set, unset, news }, kept: is_chosen.then_some(result) }
    }

    /// Returns the value that a variable will have.
    pub fn variable(&self, name: &str) -> Option<String> {
        let set = self.surroundings.set.iter().find(|(set, _)| set == name).map(|(_, value)| value.clone());
        set.or_else(|| std::env::var(name).ok())
    }

    /// Keeps the environment for later starts. A failure to write it does not prevent this one.
    pub fn keep(self, dir: &RunDir) -> Surroundings {
        if let Some(kept) = self.kept
            && let Err(error) = kept.record(dir)
        {
            say(&format!("the environment of {} cannot be kept for a start after a reboot: {error}", dir.name()));
        }
        self.surroundings
    }
}

fn own_variables(dir: &RunDir) -> KeptEnvironment {
    let redactor = Redactor::of_run(dir);
    variables::of_run(std::env::vars_os(), |name, value| redactor.is_secret(name, value))
}

/// Returns the variables that every rung of the run sets.
fn given_variables(run: &Run) -> BTreeSet<String> {
    let mut rungs = run.rungs.iter().map(|rung| rung.preset.environment.keys().cloned().collect::<BTreeSet<_>>());
    let first = rungs.next().unwrap_or_default();
    rungs.fold(first, |all, rung| all.intersection(&rung).cloned().collect())
}
