//! State stored by an earlier keeper of the run.

use super::alarms::EccSeen;
use super::quality::{self, LastMeasurement};
use super::run_loop::{KeeperArgs, Launch};
use super::shared_folder::{OBEYED, Obeyed};
use crate::config::run::Run;
use crate::config::trust::Grants;
use crate::policy::ledger::Ledger;
use crate::store::checkpoint::{self, STATE, state::TrainState};
use crate::store::run_dir::RunDir;
use crate::store::writer::Writer;
use crate::untrusted::file::{self, Limit};
use std::collections::BTreeMap;
use std::time::Duration;

/// Key of the memory errors seen last.
pub const ECC_SEEN: &str = "ecc_seen";

/// Key of the alarms raised, and when.
pub const ALARMS: &str = "alarms";

/// The part of the stored state that workers are started with.
pub struct LaunchState {
    /// How the run is launched.
    pub launch: Launch,
    /// Injected faults that have already fired.
    pub fired: Vec<String>,
    /// The fingerprint of what the user approved: the run file of a later start may not ask for anything else.
    pub approved: String,
    /// Skipped parts of the data, on the clock of the run.
    pub left_out: Vec<(u64, u64)>,
}

/// The stored state of the run.
pub struct StoredState {
    /// The part that workers are started with.
    pub launch: LaunchState,
    /// The policy's ledger: the budget and more.
    pub ledger: Ledger,
    /// Orders from other hosts that were obeyed.
    pub obeyed: Obeyed,
    /// The last measurement of quality.
    pub quality: LastMeasurement,
    /// The current rung.
    pub rung: usize,
    /// GPU memory in use before the first start.
    pub baseline: Option<u64>,
    /// The GPU's memory errors, as last seen.
    pub ecc_seen: Option<EccSeen>,
    /// The alarms raised, and when; none of a run that you start again.
    pub alarms: BTreeMap<String, Duration>,
}

impl StoredState {
    /// Reads the stored state, and stores how the run is launched from now on.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn read(store: &mut Writer, args: &KeeperArgs, run: &Run, run_dir: &RunDir) -> rusqlite::Result<Self> {
        let launch = args.launch.clone().map_or_else(|| store.fact("launch"), |launch| Ok(Some(launch)))?;
        let launch = launch.unwrap_or(Launch { device: "auto".to_owned(), claim: None, inject: Vec::new() });
        store.put_fact("launch", &launch.for_later_keepers())?;
        // Whoever starts a keeper was asked before; one that follows a dead keeper was started by nobody.
        let now = Grants::from_run(run).fingerprint();
        let approved = if args.asked.is_some() { None } else { store.fact(APPROVED)? };
        let approved = approved.unwrap_or(now);
        store.put_fact(APPROVED, &approved)?;
        let (rung, ledger) = (store.fact("rung")?, store.fact::<Ledger>("ledger")?);
        let newest = if rung.is_none() || ledger.is_none() { newest_state(run_dir) } else { None };
        let rung = rung.or(newest.as_ref().map(|state| state.rung));
        let rung = rung.filter(|rung| *rung < run.rungs.len()).unwrap_or_else(|| run.first_rung());
        let (clock, step) = newest.map_or((0, 0), |state| (state.position.samples, state.step));
        let mut ledger = match ledger {
            Some(ledger) => ledger,
            None => Ledger {
                first_losses: store.fact(FIRST_LOSSES)?.unwrap_or_default(),
                ..Ledger::begin_at(rung, &run.plan, clock, step)
            },
        };
        if args.asked.is_some() {
            ledger.refresh();
        }
        Ok(Self {
            launch: LaunchState {
                launch,
                approved,
                fired: store.fact("fired")?.unwrap_or_default(),
                left_out: store.fact("left_out")?.unwrap_or_default(),
            },
            ledger,
            rung,
            baseline: store.fact("baseline")?,
            ecc_seen: store.fact(ECC_SEEN)?,
            alarms: if args.asked.is_some() { BTreeMap::new() } else { store.fact(ALARMS)?.unwrap_or_default() },
            obeyed: store.fact(OBEYED)?.unwrap_or_default(),
            quality: LastMeasurement {
                mark: store.fact(quality::MARK)?,
                token: store.fact::<Option<String>>(quality::TOKEN)?.flatten(),
                is_closing: store.fact(quality::CLOSING)?.unwrap_or_default(),
            },
        })
    }
}

/// Key of the fingerprint of what the user approved.
const APPROVED: &str = "approved";

/// Key of the first losses of the run that this one began from, if it did.
pub const FIRST_LOSSES: &str = "first_losses";

/// Returns the state in the newest checkpoint, for a run whose store was lost.
fn newest_state(run_dir: &RunDir) -> Option<TrainState> {
    let newest =
        checkpoint::list(run_dir.path()).into_iter().find(|entry| checkpoint::manifest(&entry.path).is_ok())?;
    serde_json::from_slice(&file::read(&newest.path.join(STATE), Limit::Record).ok()?).ok()
}
