//! The keeper's loop: wait for one input, let the policy decide, perform the effects.

use super::author::Author;
use super::detach::Asked;
use super::failure::KeeperError;
use super::keeper_state::Keeper;
use super::lifeline::Lifetime;
use super::shared_folder::FolderThread;
use super::socket;
use super::{Input, planner, probe};
use crate::policy::event::Event;
use crate::policy::lifecycle::Outcome;
use crate::policy::reason::Reason;
use crate::protocol::claim::{ClaimRequest, Devices};
use crate::protocol::control::{JournalKind, Request, Update};
use crate::protocol::device::DeviceChoice;
use crate::protocol::inject::Inject;
use crate::protocol::worker::Level;
use crate::store::run_dir::RunDir;
use crate::store::{owners, socket_place};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Interval between writes of rows to the store.
pub(super) const FLUSH: Duration = Duration::from_millis(250);
/// Minimum interval between updates to listeners; a change of state is sent at once.
pub(super) const STATUS: Duration = Duration::from_millis(100);

/// Arguments of a keeper.
#[derive(Debug, Clone)]
pub struct KeeperArgs {
    /// The run.
    pub run_dir: PathBuf,
    /// How to launch it; if omitted, as an earlier keeper stored.
    pub launch: Option<Launch>,
    /// The user started it, with this process: a fresh budget, and a paused or ended run continues.
    pub asked: Option<Asked>,
    /// The process that the run lives for.
    pub lifetime: Lifetime,
}

/// The part of the command line that a run stores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The value of `--device`.
    pub device: String,
    /// The claim on devices; none in a run of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimRequest>,
    /// Faults to inject.
    pub inject: Vec<Inject>,
}

impl Launch {
    /// Returns the launch as later keepers need it. Only the first start of a run may be refused its devices.
    #[must_use]
    pub fn for_later_keepers(&self) -> Self {
        let claim = self.claim.clone().map(|claim| ClaimRequest { at_once: false, ..claim });
        Self { claim, ..self.clone() }
    }

    /// Returns NVML's index of the first GPU that the run may use.
    fn first_gpu(&self) -> u32 {
        let claimed = match self.claim.as_ref().map(|claim| &claim.devices) {
            Some(Devices::Cards(cards)) => cards.first().and_then(|card| card.index),
            _ => None,
        };
        let named = || DeviceChoice::from_display_name(&self.device)?.gpu_index();
        claimed.or_else(named).unwrap_or(0)
    }
}

/// Keeps a run until it is over. Returns the exit code of the run.
///
/// # Errors
/// Returns an error when it cannot even begin.
pub async fn keep_run(args: KeeperArgs) -> Result<u8, KeeperError> {
    let run_dir = RunDir::open(&args.run_dir)?;
    run_dir.refuse_links()?;
    let file = run_dir.file("keeper.lock").display().to_string();
    let unlocked = |source| KeeperError::Lock { file: file.clone(), source };
    let mut lock = owners::become_keeper(&run_dir).map_err(unlocked)?;
    lock.update(|record| record.opening = true).map_err(|error| unlocked(error.into()))?;
    let mut keeper = Keeper::open(run_dir, &args, lock)?;
    keeper.run_to_the_end(args.asked.as_ref(), args.lifetime).await
}

impl Keeper {
    async fn run_to_the_end(&mut self, asked: Option<&Asked>, lifetime: Lifetime) -> Result<u8, KeeperError> {
        let io = |what: &str| {
            let what = what.to_owned();
            move |source| KeeperError::Io { what, source }
        };
        let unlocked = |source| KeeperError::Lock { file: "keeper.lock".to_owned(), source };
        self.listen_for_signals().map_err(io("a thread for signals (`ulimit -u` limits them)"))?;
        let inputs = self.inputs.clone();
        let end = move || drop(inputs.blocking_send(Input::Terminated(Author::EndOfJob)));
        lifetime.watch(end).map_err(io("the lifeline"))?;
        let path = socket_place::prepare(&self.run_dir).map_err(io("the control socket"))?;
        let listener = socket::bind(&path).map_err(io(&path.display().to_string()))?;
        tokio::spawn(socket::serve(listener, path.clone(), self.inputs.clone()));
        let renewal = self.files.lock.lease_renewal();
        let folder = renewal.map(|renewal| FolderThread::start(&self.run_dir, renewal, self.inputs.clone()));
        let folder = folder.transpose().map_err(io("the thread of the shared folder"))?;
        let gpu = self.stored.launch.first_gpu();
        let (dir, inputs) = (self.run_dir.path().to_owned(), self.inputs.clone());
        let nvml = self.run.probe.nvml.clone();
        tokio::spawn(probe::keep_alive(dir, gpu, nvml, self.worker.watched.subscribe(), inputs));
        // The memory of a command cannot be counted.
        let plans = self.run.command.is_none();
        let planner = plans.then(|| planner::start(&self.run_dir, &self.stored.launch.device)).flatten();
        self.end_left_measurement().await;
        self.take_over_run(asked, &path).await?;
        // Before the first turn, which writes.
        self.check_files().map_err(unlocked)?;
        folder.iter().for_each(FolderThread::read_orders);
        self.clock.delay.restart();
        while self.outcome.is_none() {
            self.run_turn().await;
            self.check_files().map_err(unlocked)?;
        }
        drop(planner);
        self.end_measurement().await;
        self.send_last_update().await;
        folder.into_iter().for_each(FolderThread::finish);
        self.leave_registry();
        let _ = std::fs::remove_file(path);
        if owners::worker(&self.run_dir).is_none() {
            socket_place::remove_left(&self.run_dir);
        }
        let code = self.outcome.as_ref().map_or(1, Outcome::exit_code);
        match &self.outcome {
            Some(Outcome::NeedsPerson(why) | Outcome::Failed(_, why)) if self.recorder.unwritten().is_some() => {
                Err(KeeperError::Unwritten { why: why.to_string(), code })
            }
            _ => Ok(code),
        }
    }

    pub(super) async fn first_reading(&mut self) -> Option<Input> {
        while self.outcome.is_none() && self.files.lost_to.is_none() {
            match self.heard.recv().await? {
                Input::Reading(reading) if !reading.is_opening() => return Some(Input::Reading(reading)),
                other => self.handle_input(other),
            }
        }
        None
    }

    /// Runs one iteration of the loop.
    async fn run_turn(&mut self) {
        let wake = self.policy.next_wake().map(|due| self.clock.instant(due));
        let news = self.recorder.has_news().then_some(self.publishing.shown.1 + STATUS);
        let flush = news.unwrap_or_else(|| Instant::now() + FLUSH);
        let next = wake.map_or(flush, |wake| wake.min(flush));
        let asleep = Instant::now();
        let input = tokio::select! {
            input = self.heard.recv() => input,
            () = sleep_until(next) => None,
        };
        self.clock.delay.slept(asleep, next, Instant::now());
        self.extend_deadlines();
        let mut next = input.or_else(|| self.heard.try_recv().ok());
        while let Some(input) = next {
            self.handle_input(input);
            if self.files.lost_to.is_some() {
                // The store is another keeper's now.
                return;
            }
            next = self.heard.try_recv().ok();
        }
        self.extend_deadlines();
        self.decide(Event::Tick, None);
        self.check_run_dir();
        self.check_turn();
        self.follow_quality();
        self.publish_if_due();
    }

    pub(super) fn handle_input(&mut self, input: Input) {
        let now = self.now();
        match input {
            Input::Worker(attempt, event) if attempt == self.recorder.attempt.id => {
                self.handle_worker_event(event, now);
            }
            Input::Exited(attempt, end) if attempt == self.recorder.attempt.id => self.handle_worker_exit(end, now),
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
                let status = Box::new(self.status());
                self.recorder.flush();
                self.publish_now(self.policy.life().state());
                self.clients.subscribe(id);
                self.clients.send(id, &Update::Status(status));
            }
            Input::Asked(id, Request::Prune) => {
                self.requester.author = self.clients.author(id);
                let message = self.prune_checkpoints();
                self.clients.send(id, &Update::Reply { accepted: true, message });
            }
            Input::Asked(_, Request::StandBy { rung }) => self.follow_preview(rung.as_deref()),
            Input::Asked(id, request) => {
                self.requester.author = self.clients.author(id);
                match request {
                    Request::Pause | Request::Stop => self.requester.signalled_in = None,
                    Request::Resume => self.claim_for_resume(),
                    _ => {}
                }
                self.decide(Event::Request(request), Some(id));
            }
            Input::Measured(id, ended) => self.handle_measured(id, ended),
            Input::Folder(news) => self.handle_folder_news(news),
            Input::Garbled(id) => {
                let message = "unrecognized request: is this client another version of downshift?".to_owned();
                self.clients.send(id, &Update::Reply { accepted: false, message });
            }
            Input::Terminated(author) => {
                self.requester.author = Some(self.resolve_author(author.clone()));
                self.handle_end_signal(&author);
            }
        }
    }

    pub(super) fn decide(&mut self, event: Event, asker: Option<u64>) {
        if let (true, Event::Request(Request::Stop)) = (self.quality.is_closing(), &event) {
            if let Some(id) = asker {
                let message = "will end without the last measurement of quality".to_owned();
                self.clients.answer(id, Ok::<_, Infallible>(message));
            }
            return self.skip_last_measurement();
        }
        let now = self.now();
        let effects = self.policy.decide(event, now);
        self.perform(effects, asker);
        self.account_time();
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
        let mut status = self.status();
        self.recorder.mark_changed();
        self.recorder.flush();
        if let (Some(error), Some(Outcome::Finished)) = (self.recorder.unwritten(), &self.outcome) {
            // A locked store may be released, and the reserve makes room on a full disk.
            self.recorder.flush_last_words(&self.run_dir);
            if self.recorder.unwritten().is_some() {
                let why = Reason::Unwritten { step: self.recorder.status.step, error };
                self.recorder.note(Level::Error, JournalKind::Run, format!("needs attention: {why}"));
                self.outcome = Some(Outcome::NeedsPerson(why));
                status = self.status();
            }
        }
        for update in self.recorder.take_updates() {
            self.clients.publish(&update);
        }
        self.clients.publish(&Update::Status(Box::new(status)));
        let _ = timeout(Duration::from_secs(1), self.clients.drained()).await;
        // A writer has taken the last message from its queue, but may not have written it yet.
        sleep(Duration::from_millis(20)).await;
        self.alarms.finish(&mut self.recorder);
        self.recorder.flush_last_words(&self.run_dir);
        // A deletion cut short by the end of the process would leave its files until the run is resumed.
        self.deletions.drain(..).for_each(|deletion| drop(deletion.join()));
    }
}
