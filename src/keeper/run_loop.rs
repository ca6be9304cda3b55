//! The keeper's loop: wait for one input, let the policy decide, perform the effects.

use super::alarms::Alarms;
use super::author::Author;
use super::card_users::CardUsers;
use super::delay::DelayWatch;
use super::failure::KeeperError;
use super::file_watch::FileWatch;
use super::recorder::{self, Recorder};
use super::run_dir_watch::{Presence, RunDirWatch};
use super::socket::{self, Clients};
use super::status_snapshot::{blank_status, policy_limits};
use super::stored_state::StoredState;
use super::witness::Witness;
use super::worker_process::Worker;
use super::{Input, planner, probe, takeover};
use crate::config::run::Run;
use crate::policy::Policy;
use crate::policy::event::{Effect, Event};
use crate::policy::lifecycle::Outcome;
use crate::protocol::control::{JournalKind, Request, RunState, Update};
use crate::protocol::inject::Inject;
use crate::protocol::worker::{Failed, Level};
use crate::store::checkpoint;
use crate::store::lock::Lock;
use crate::store::reserve;
use crate::store::run_dir::RunDir;
use crate::store::writer::Writer;
use crate::store::{owners, socket_place};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

const NOT_LOGGED: &str =
    "this file system cannot carry a write-ahead log; run.db uses a rollback journal, which is slower";
/// Interval between writes of rows to the store.
pub(super) const FLUSH: Duration = Duration::from_millis(250);
/// Minimum interval between updates to listeners; a change of state is sent at once.
pub(super) const STATUS: Duration = Duration::from_millis(100);
/// How long to wait for the probe's first reading, which gives the GPU's baseline.
const BASELINE: Duration = Duration::from_secs(2);

/// Arguments of a keeper.
#[derive(Debug, Clone)]
pub struct KeeperArgs {
    /// The run.
    pub run_dir: PathBuf,
    /// How to launch it; if omitted, as an earlier keeper stored.
    pub launch: Option<Launch>,
    /// The user started it, with this process: a fresh budget, and a paused or ended run continues.
    pub asked_by: Option<String>,
}

/// The part of the command line that a run stores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    pub device: String,
    /// Faults to inject.
    pub inject: Vec<Inject>,
}

/// Keeps a run until it is over. Returns the exit code of the run.
///
/// # Errors
/// Returns an error when it cannot even begin.
pub async fn keep_run(args: KeeperArgs) -> Result<u8, KeeperError> {
    // A write beyond the file size limit should fail with an error, not kill the process.
    let too_large = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    drop(signal(too_large).map_err(|source| KeeperError::Io { what: "signals".to_owned(), source })?);
    let run_dir = RunDir::open(&args.run_dir)?;
    run_dir.refuse_links()?;
    let file = run_dir.file("keeper.lock").display().to_string();
    let unlocked = |source| KeeperError::Lock { file: file.clone(), source };
    let mut lock = owners::become_keeper(&run_dir).map_err(unlocked)?;
    lock.update(|record| record.opening = true).map_err(|error| unlocked(error.into()))?;
    let mut keeper = Keeper::open(run_dir, &args, lock)?;
    keeper.run_to_the_end(args.asked_by.as_deref()).await
}

/// The keeper of one run.
pub(super) struct Keeper {
    pub(super) run_dir: RunDir,
    pub(super) run: Run,
    pub(super) launch: Launch,
    pub(super) fired: Vec<String>,
    pub(super) policy: Policy,
    pub(super) recorder: Recorder,
    pub(super) clients: Clients,
    home: RunDirWatch,
    pub(super) lock: Lock,
    pub(super) guard: FileWatch,
    /// The author of the action under way.
    pub(super) author: Option<Author>,
    /// The boot in which a signal asked the run to end, if nobody else did later.
    pub(super) signalled_in: Option<String>,
    pub(super) worker: Option<Worker>,
    pub(super) watched: watch::Sender<Option<u32>>,
    pub(super) inputs: mpsc::Sender<Input>,
    pub(super) heard: mpsc::Receiver<Input>,
    pub(super) failure: Option<Failed>,
    pub(super) witness: Witness,
    pub(super) alarms: Alarms,
    /// The worker has reported that it is done.
    pub(super) done: bool,
    pub(super) started: Instant,
    /// The machine's monotonic clock at `started`: the policy's time continues where an earlier keeper died.
    epoch: Duration,
    /// The GPU was reported as lost.
    pub(super) card_is_lost: bool,
    pub(super) driver_is_silent: bool,
    pub(super) card_users: CardUsers,
    /// Skipped parts of the data, on the clock of the run.
    pub(super) left_out: Vec<(u64, u64)>,
    pub(super) shown: (RunState, Instant),
    /// When rows were last written to the store.
    pub(super) flushed: Instant,
    pub(super) delay: DelayWatch,
    /// Since when a worker start has been waiting because its attempt cannot be recorded.
    pub(super) start_waits: Option<Instant>,
    pub(super) outcome: Option<Outcome>,
    /// Checkpoints being deleted.
    pub(super) deletions: Vec<JoinHandle<()>>,
}

impl Keeper {
    fn open(run_dir: RunDir, args: &KeeperArgs, lock: Lock) -> Result<Self, KeeperError> {
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
        let policy = Policy::new(policy_limits(&run, &run_dir), known.rung, known.ledger, known.baseline);
        for text in lost.into_iter().chain((!logged).then(|| NOT_LOGGED.to_owned())) {
            recorder.note(Level::Warn, JournalKind::Health, text);
        }
        let (inputs, heard) = mpsc::channel(4096);
        let (clients, started) = (Clients::default(), Instant::now());
        let shown = (RunState::Starting, started);
        let watched = watch::Sender::new(None);
        let (worker, failure, outcome) = (None, None, None);
        let witness = Witness::new(run_dir.file("worker.log"));
        let alarms = Alarms::new(run_dir.name(), &run, &mut recorder);
        let home = RunDirWatch::new(run_dir.path(), std::time::Instant::now());
        let guard = FileWatch::new(&run_dir);
        Ok(Self {
            run_dir,
            run,
            launch: known.launch,
            fired: known.fired,
            policy,
            recorder,
            clients,
            home,
            lock,
            guard,
            author: None,
            signalled_in: None,
            worker,
            watched,
            inputs,
            heard,
            failure,
            witness,
            alarms,
            done: false,
            started,
            epoch: monotonic(),
            card_is_lost: false,
            driver_is_silent: false,
            left_out: known.left_out,
            card_users: CardUsers::default(),
            shown,
            flushed: Instant::now(),
            delay: DelayWatch::new(),
            start_waits: None,
            outcome,
            deletions: Vec::new(),
        })
    }

    async fn run_to_the_end(&mut self, asked_by: Option<&str>) -> Result<u8, KeeperError> {
        let io = |what: &str| {
            let what = what.to_owned();
            move |source| KeeperError::Io { what, source }
        };
        self.listen_for_signals().map_err(io("signals"))?;
        let path = socket_place::prepare(&self.run_dir).map_err(io("the control socket"))?;
        let listener = socket::bind(&path).map_err(io(&path.display().to_string()))?;
        tokio::spawn(socket::serve(listener, path.clone(), self.inputs.clone()));
        let gpu = self.launch.device.strip_prefix("cuda:").and_then(|index| index.parse().ok()).unwrap_or(0);
        let (dir, inputs) = (self.run_dir.path().to_owned(), self.inputs.clone());
        let nvml = self.run.probe.nvml.clone();
        tokio::spawn(probe::keep_alive(dir, gpu, nvml, self.watched.subscribe(), inputs));
        let planner = planner::start(&self.run_dir, &self.launch.device);
        self.take_over_run(asked_by, &path).await?;
        self.delay = DelayWatch::new();
        while self.outcome.is_none() {
            self.run_turn().await;
            self.check_files().map_err(|source| KeeperError::Lock { file: "keeper.lock".to_owned(), source })?;
        }
        drop(planner);
        self.send_last_update().await;
        let _ = std::fs::remove_file(path);
        Ok(self.outcome.as_ref().map_or(1, Outcome::exit_code))
    }

    /// Ends workers of an earlier keeper, waits for the GPU's baseline, and begins.
    async fn take_over_run(&mut self, asked_by: Option<&str>, socket: &Path) -> Result<(), KeeperError> {
        let (before, by_person) = (self.note_start(asked_by), asked_by.is_some());
        // From here on the store says where the run stands. Clients in another environment find the socket
        // through this.
        let listens = self.lock.update(|record| (record.opening, record.socket) = (false, Some(socket.to_owned())));
        if let Err(error) = listens {
            self.recorder.note(Level::Warn, JournalKind::Health, format!("keeper.lock cannot be written: {error}"));
        }
        self.note_recovery(by_person);
        match takeover::end_orphan(&self.run_dir).await {
            Ok(false) => {}
            Ok(true) => {
                let text = "a worker of the keeper before was still alive; it has saved and ended".to_owned();
                self.recorder.note(Level::Warn, JournalKind::Run, text);
            }
            Err(orphan) => {
                let why =
                    format!("process {} of an earlier keeper cannot be killed; no other worker is started", orphan.pid);
                self.perform(vec![Effect::Finish(Outcome::NeedsPerson(why))], None);
                return Ok(());
            }
        }
        checkpoint::clean(self.run_dir.path());
        self.take_over_checkpoints()?;
        self.recorder.stop_waiting()?;
        self.policy.set_durable_step(self.recorder.status.durable_step);
        if before == RunState::Paused && !by_person {
            self.policy.stay_paused();
            return Ok(());
        }
        let first = timeout(BASELINE, self.first_reading()).await;
        if let Ok(Some(input)) = first {
            self.handle_input(input);
        }
        // A stop may have ended the run meanwhile.
        if self.outcome.is_none() {
            self.decide(Event::Begin, None);
        }
        Ok(())
    }

    async fn first_reading(&mut self) -> Option<Input> {
        while self.outcome.is_none() {
            match self.heard.recv().await? {
                Input::Reading(reading) if !reading.is_opening() => return Some(Input::Reading(reading)),
                other => self.handle_input(other),
            }
        }
        None
    }

    /// Runs one iteration of the loop.
    async fn run_turn(&mut self) {
        let wake = self.policy.next_wake().map(|due| self.started + due.saturating_sub(self.epoch));
        let news = self.recorder.has_news().then_some(self.shown.1 + STATUS);
        let flush = news.unwrap_or_else(|| Instant::now() + FLUSH);
        let next = wake.map_or(flush, |wake| wake.min(flush));
        let asleep = Instant::now();
        let input = tokio::select! {
            input = self.heard.recv() => input,
            () = sleep_until(next) => None,
        };
        self.delay.slept(asleep, next, Instant::now());
        self.extend_deadlines();
        if let Some(input) = input {
            self.handle_input(input);
        }
        while let Ok(input) = self.heard.try_recv() {
            self.handle_input(input);
        }
        self.extend_deadlines();
        self.decide(Event::Tick, None);
        self.check_run_dir();
        self.publish_if_due();
    }

    /// Checks the run directory: without it, the run can neither be found nor continue.
    fn check_run_dir(&mut self) {
        let path = self.run_dir.path().display();
        let (level, text) = match self.home.check(std::time::Instant::now()) {
            Presence::Same => return,
            Presence::Back => (Level::Info, format!("{path} is there again")),
            Presence::Orphan => {
                let text = "the process that brings the keeper back is gone: once this keeper dies too, nobody starts \
                            it again but you";
                (Level::Warn, text.to_owned())
            }
            Presence::Missing => {
                (Level::Error, format!("{path} was moved or deleted; move it back, or the run ends in a minute"))
            }
            Presence::Lost => {
                // The worker notices that its keeper is gone, and ends.
                let why = format!("{path} was moved or deleted while the run went on");
                return self.perform(vec![Effect::Finish(Outcome::NeedsPerson(why))], None);
            }
        };
        self.recorder.note(level, JournalKind::Health, text);
    }

    pub(super) fn now(&self) -> Duration {
        self.epoch + self.started.elapsed()
    }

    fn handle_input(&mut self, input: Input) {
        let now = self.now();
        match input {
            Input::Worker(attempt, event) if attempt == self.recorder.attempt.id => {
                self.handle_worker_event(event, now)
            }
            Input::Exited(attempt, exit) if attempt == self.recorder.attempt.id => self.handle_worker_exit(exit, now),
            Input::Worker(..) | Input::Exited(..) => {}
            Input::ProbeStarted(pid) => self.recorder.status.pid_probe = Some(pid),
            Input::ProbeLost(why) => {
                self.recorder.status.pid_probe = None;
                if let Some(why) = why {
                    self.recorder.note(Level::Warn, JournalKind::Health, why);
                }
                self.decide(Event::Card(None), None);
                self.decide(Event::Vram(None), None);
            }
            Input::Reading(reading) => self.handle_reading(reading),
            Input::Connected(id, sender, author) => self.clients.add(id, sender, author),
            Input::Left(id) => self.clients.remove(id),
            Input::Asked(id, Request::Subscribe) => {
                self.recorder.flush();
                self.publish_now(self.policy.life().state());
                self.clients.subscribe(id);
                let status = Box::new(self.status());
                self.clients.send(id, &Update::Status(status));
            }
            Input::Asked(id, Request::Prune) => {
                self.author = self.clients.author(id);
                let message = self.prune_checkpoints();
                self.clients.send(id, &Update::Reply { accepted: true, message });
            }
            Input::Asked(id, request) => {
                self.author = self.clients.author(id);
                if matches!(request, Request::Pause | Request::Stop) {
                    self.signalled_in = None;
                }
                self.decide(Event::Request(request), Some(id));
            }
            Input::Garbled(id) => {
                let message = "this line is no request of this version of downshift".to_owned();
                self.clients.send(id, &Update::Reply { accepted: false, message });
            }
            Input::Terminated(author) => {
                let wish = author.is_wish();
                self.author = Some(self.resolve_author(author));
                self.handle_end_signal(wish);
            }
        }
    }

    pub(super) fn decide(&mut self, event: Event, asker: Option<u64>) {
        let now = self.now();
        let effects = self.policy.decide(event, now);
        self.perform(effects, asker);
    }

    fn listen_for_signals(&self) -> std::io::Result<()> {
        let mut signals = SignalsInfo::<WithOrigin>::new([SIGTERM, SIGINT])?;
        let inputs = self.inputs.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for origin in &mut signals {
                let _ = inputs.blocking_send(Input::Terminated(Author::of_signal(&origin)));
            }
        })?;
        Ok(())
    }

    /// Sends the last update to the store and to all listeners.
    async fn send_last_update(&mut self) {
        self.recorder.status.pid_worker = None;
        let status = self.status();
        self.recorder.mark_changed();
        self.recorder.flush();
        for update in self.recorder.take_updates() {
            self.clients.publish(&update);
        }
        self.clients.publish(&Update::Status(Box::new(status)));
        let _ = timeout(Duration::from_secs(1), self.clients.drained()).await;
        sleep(Duration::from_millis(20)).await;
        self.alarms.finish(&mut self.recorder);
        self.recorder.flush_last_words(&self.run_dir);
        // A deletion cut short by the end of the process would leave its files until somebody resumes the run.
        self.deletions.drain(..).for_each(|deletion| drop(deletion.join()));
    }
}

/// Returns the machine's monotonic clock.
fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
