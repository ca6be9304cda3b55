//! The state of a keeper, by concern.

use super::alarms::Alarms;
use super::author::Author;
use super::card_users::CardUsers;
use super::companion::describe_resume;
use super::delay::DelayWatch;
use super::failure::KeeperError;
use super::file_watch::FileWatch;
use super::footing::Footing;
use super::lifeline::Lifetime;
use super::quality::QualityWatch;
use super::recorder::{self, Recorder};
use super::run_loop::KeeperArgs;
use super::shared_folder::Obeyed;
use super::socket::Clients;
use super::standby::Standby;
use super::status_snapshot::{blank_status, policy_limits, started_by};
use super::stored_state::{LaunchState, StoredState};
use super::turn::Turn;
use super::witness::Witness;
use super::worker_process::Worker;
use super::{Input, takeover};
use crate::config::mildness::find_no_safer;
use crate::config::run::Run;
use crate::policy::Policy;
use crate::policy::lifecycle::Outcome;
use crate::protocol::control::{JournalKind, RunState};
use crate::protocol::exit::Exit;
use crate::protocol::worker::{Failed, Level};
use crate::store::companion::KnownCompanion;
use crate::store::file_system::{FileSystem, is_shared};
use crate::store::lock::Lock;
use crate::store::reserve;
use crate::store::run_dir::RunDir;
use crate::store::shared_folder::lease::Lease;
use crate::store::writer::Writer;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

const NOT_LOGGED: &str =
    "this file system does not support a write-ahead log; run.db uses a rollback journal, which is slower";

/// Describes how the store is written, unless it is as usual.
fn describe_journal(run: &RunDir, is_logged: bool) -> Option<(Level, String)> {
    if is_shared(run.path()) {
        let kind = FileSystem::of(run.path()).word();
        let text = format!(
            "the run directory is on {kind}: run.db uses a rollback journal, and orders from other hosts come through requests/"
        );
        return Some((Level::Info, text));
    }
    (!is_logged).then(|| (Level::Warn, NOT_LOGGED.to_owned()))
}

/// The keeper of one run.
pub(super) struct Keeper {
    pub(super) run_dir: RunDir,
    pub(super) run: Run,
    pub(super) stored: LaunchState,
    pub(super) policy: Policy,
    pub(super) recorder: Recorder,
    pub(super) clients: Clients,
    pub(super) files: Files,
    pub(super) requester: Requester,
    pub(super) worker: CurrentWorker,
    pub(super) witness: Witness,
    pub(super) alarms: Alarms,
    pub(super) gpu: GpuState,
    pub(super) turn: Turn,
    pub(super) clock: Clock,
    pub(super) inputs: mpsc::Sender<Input>,
    pub(super) heard: mpsc::Receiver<Input>,
    pub(super) quality: QualityWatch,
    pub(super) publishing: Publishing,
    pub(super) outcome: Option<Outcome>,
    /// Checkpoints being deleted.
    pub(super) deletions: Vec<JoinHandle<()>>,
    /// Orders from other hosts that were obeyed.
    pub(super) obeyed: Obeyed,
}

/// Files that must stay in place while the run continues.
pub(super) struct Files {
    pub(super) footing: Footing,
    pub(super) lock: Lock,
    pub(super) watch: FileWatch,
    /// The lease of another host that has taken the run over.
    pub(super) lost_to: Option<Box<Lease>>,
}

/// Who asked for the action under way.
pub(super) struct Requester {
    pub(super) author: Option<Author>,
    /// The process that the run lives for.
    pub(super) lifetime: Lifetime,
    /// The boot in which a signal asked the run to end, unless the user did later.
    pub(super) signalled_in: Option<String>,
}

/// The current worker, and what it reported.
pub(super) struct CurrentWorker {
    pub(super) process: Option<Worker>,
    /// The harness of the next attempt, started ahead.
    pub(super) standby: Option<Standby>,
    /// Tells the probe which process to measure.
    pub(super) watched: watch::Sender<Option<u32>>,
    pub(super) failure: Option<Failed>,
    /// The advice on why the last worker ended.
    pub(super) advice: String,
    /// It has reported that it is done.
    pub(super) done: bool,
    /// The end of the command that a harness ran.
    pub(super) command: Option<EndedCommand>,
    /// Since when the next start has been waiting because its attempt cannot be recorded.
    pub(super) start_waits: Option<Instant>,
}

impl CurrentWorker {
    fn none_yet(watched: watch::Sender<Option<u32>>) -> Self {
        Self {
            process: None,
            standby: None,
            watched,
            failure: None,
            advice: String::new(),
            done: false,
            command: None,
            start_waits: None,
        }
    }
}

/// The end of a command, as its harness reported it.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndedCommand {
    pub(super) pid: u32,
    pub(super) exit: Exit,
    /// Length of worker.log when the harness began to end it.
    pub(super) log_end: Option<u64>,
}

/// The keeper's knowledge of the GPU.
#[derive(Default)]
pub(super) struct GpuState {
    /// It was reported as lost.
    pub(super) is_lost: bool,
    pub(super) driver_is_silent: bool,
    pub(super) users: CardUsers,
}

/// The policy's clock, which continues where an earlier keeper died.
pub(super) struct Clock {
    pub(super) started: Instant,
    /// The machine's monotonic clock at `started`.
    pub(super) epoch: Duration,
    pub(super) delay: DelayWatch,
}

/// The last messages to listeners and to the store.
pub(super) struct Publishing {
    /// The state that listeners know, and since when.
    pub(super) shown: (RunState, Instant),
    /// When rows were last written to the store.
    pub(super) flushed: Instant,
}

impl Clock {
    fn start() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let epoch = Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0));
        Self { started: Instant::now(), epoch, delay: DelayWatch::new() }
    }

    /// Returns the policy's time.
    pub(super) fn now(&self) -> Duration {
        self.epoch + self.started.elapsed()
    }

    /// Returns the moment at which the policy's time is `due`.
    pub(super) fn instant(&self, due: Duration) -> Instant {
        self.started + due.saturating_sub(self.epoch)
    }
}

/// Names the rungs that are no safer than those above, once for a run.
fn name_no_safer(run: &Run, recorder: &mut Recorder) {
    if recorder.status.attempts == 0 {
        for rung in find_no_safer(&run.rungs) {
            recorder.note(Level::Warn, JournalKind::Run, rung.to_string());
        }
    }
}

impl Keeper {
    /// Opens the run and its store.
    pub(super) fn open(run_dir: RunDir, args: &KeeperArgs, lock: Lock) -> Result<Self, KeeperError> {
        let run = run_dir.run()?;
        // Reserves room for the last words; a disk that is already full has none to reserve.
        reserve::hold(&run_dir).ok();
        let (mut store, replaced) = Writer::open_or_replace(&run_dir.file("run.db"))?;
        let lost = match replaced {
            Some(replaced) => Some(recorder::describe_replacement(&replaced)),
            None => takeover::lost_store(&run_dir, &mut store)?,
        };
        let logged = store.is_logged();
        let known = StoredState::read(&mut store, args, &run, &run_dir)?;
        let mut recorder = Recorder::new(store, blank_status(&run_dir, &run, known.rung))?;
        recorder.rank_by(&run, known.rung);
        let mut policy = Policy::new(policy_limits(&run, &run_dir), known.rung, known.ledger, known.baseline);
        policy.note_start(started_by(&run_dir, recorder.status.attempts.max(1)));
        if let Some(spec) = &run.command {
            // A store that was lost knows of no companion.
            if recorder.status.attempts == 0 {
                let known = KnownCompanion::of_run(&run_dir);
                recorder.status.companion = known.map(|known| Box::new(known.news));
            }
            recorder.status.resume = Some(describe_resume(spec, recorder.status.companion.as_deref()));
        }
        if let Some(proven) = recorder.status.proven_rung().filter(|_| args.asked.is_some()) {
            policy.put_on_trial(proven);
        }
        if let Some(companion) = &recorder.status.companion {
            policy.restore_companion(companion);
        }
        let lost = lost.map(|text| (Level::Warn, text));
        for (level, text) in lost.into_iter().chain(describe_journal(&run_dir, logged)) {
            recorder.note(level, JournalKind::Health, text);
        }
        name_no_safer(&run, &mut recorder);
        let (inputs, heard) = mpsc::channel(4096);
        let footing = Footing::new(run_dir.path(), std::time::Instant::now());
        let (clock, watched) = (Clock::start(), watch::Sender::new(None));
        Ok(Self {
            policy,
            alarms: Alarms::new(&run_dir, &run, known.ecc_seen, (known.alarms, clock.now()), &mut recorder),
            witness: Witness::new(run_dir.file("worker.log")),
            quality: QualityWatch::new(&run, known.quality),
            files: Files { footing, lock, watch: FileWatch::new(&run_dir), lost_to: None },
            run_dir,
            run,
            stored: known.launch,
            recorder,
            clients: Clients::default(),
            requester: Requester { author: None, lifetime: args.lifetime, signalled_in: None },
            worker: CurrentWorker::none_yet(watched),
            gpu: GpuState::default(),
            turn: Turn::default(),
            inputs,
            heard,
            publishing: Publishing { shown: (RunState::Starting, clock.started), flushed: clock.started },
            clock,
            outcome: None,
            deletions: Vec::new(),
            obeyed: known.obeyed,
        })
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }
}
