//! Performs the policy's effects.

use super::author::Author;
use super::keeper_state::Keeper;
use super::lifeline::Lifetime;
use super::notice::{Need, Notice};
use super::quality::CLOSING;
use super::recorder::now_ms;
use super::run_loop::{FLUSH, STATUS};
use super::sentences;
use super::status_snapshot::started_by;
use super::stored_state::ALARMS;
use super::worker_process::Worker;
use crate::policy::event::{Effect, Event, Signal};
use crate::policy::lifecycle::{Lifecycle, Outcome, Pressure, Start, Then};
use crate::policy::reason::Reason;
use crate::protocol::capability;
use crate::protocol::control::{JournalKind, Request, RunState, StageName, Status, Update};
use crate::protocol::worker::{FailureClass, Level};
use crate::store::foreign::ForeignProcess;
use crate::store::identity::Identity;
use crate::store::run_dir::RunDirError;
use crate::store::worker_log::{self, BoundedLog};
use crate::untrusted::thread::run_beside;
use std::io::{self, Write};
use tokio::time::Instant;

/// Name of the fact that a signal ended the run; its value is the machine's boot. A shutdown sends such a signal.
pub const ENDED_BY_SIGNAL: &str = "ended_by_signal";

impl Keeper {
    /// Handles a signal to end: the run stops as on a request, but `resume --interrupted` can tell the two apart.
    /// A run that you have already stopped does not count as interrupted, nor does one that you have paused: except in a
    /// batch job, which would not be started again.
    pub(super) fn handle_end_signal(&mut self, author: &Author) {
        let (wish, in_job) = (author.is_wish(), self.requester.lifetime == Lifetime::Bound);
        let resting = match self.policy.life() {
            Lifecycle::Stopping { then: Then::End, .. } => true,
            Lifecycle::Paused | Lifecycle::Stopping { then: Then::Pause, .. } => !in_job,
            _ => false,
        };
        let is_ending = matches!(self.policy.life(), Lifecycle::Stopping { then: Then::End, .. });
        if in_job && is_ending && !wish && *author != Author::EndOfJob && self.requester.signalled_in.is_some() {
            // At the time limit Slurm signals every process once more, and grants them further time to save.
            return;
        }
        if wish {
            self.requester.signalled_in = None;
        } else if !resting {
            self.requester.signalled_in = Some(Identity::own().boot);
        }
        self.decide(Event::Request(Request::Stop), None);
    }

    pub(super) fn perform(&mut self, effects: Vec<Effect>, asker: Option<u64>) {
        if effects.is_empty() {
            return;
        }
        self.notices_of(&effects).iter().for_each(|notice| self.admit(notice));
        self.store_policy_state();
        self.alarms.post();
        for effect in effects {
            match effect {
                Effect::Start(start) => self.start_worker(&start),
                Effect::Order(order) => {
                    self.note_passage();
                    self.stand_by_for_next_start();
                    if let Some(worker) = &self.worker.process {
                        worker.order(order);
                    }
                }
                Effect::Signal(signal) => {
                    self.note_force(signal);
                    if let Some(worker) = &self.worker.process {
                        worker.signal(signal);
                    }
                }
                Effect::GoBack(step) => self.go_back(step),
                Effect::PutBack(steps) => self.put_back(&steps),
                Effect::RollBack(back) => self.roll_back(back),
                Effect::LeaveOut { from, units } => self.skip_data(from, units),
                Effect::Trouble(class, evidence) => self.recorder.record_trouble(class, evidence),
                Effect::Alarm { key, title, text } => {
                    let (key, what) = (key.to_owned(), title.to_owned());
                    self.tell(&Notice { key, level: Level::Warn, what, text: text.clone(), need: Need::Look });
                    self.recorder.note(Level::Warn, JournalKind::Health, text);
                }
                Effect::AlarmOver(key) => self.alarms.clear(key),
                Effect::UncountShift => self.recorder.uncount_shift(),
                Effect::Journal(level, kind, text) => self.recorder.note(level, kind, text),
                Effect::Asked(level, kind, text) => {
                    let text = format!("{text}, requested by {}", self.describe_author());
                    self.recorder.note(level, kind, text);
                }
                Effect::Reply(answer) => {
                    if let Some(id) = asker {
                        self.clients.answer(id, answer);
                    }
                }
                Effect::Cancel(cancelled) => {
                    let text = cancelled.to_string();
                    self.recorder.note(Level::Error, JournalKind::Request, text.clone());
                    self.clients.settle(false, &text);
                }
                Effect::Finish(outcome) => self.finish_run(outcome),
            }
        }
        let waits = matches!(self.policy.life(), Lifecycle::BackingOff { .. } | Lifecycle::AwaitingVram { .. });
        if !waits || self.outcome.is_some() {
            self.end_wait();
        }
        self.drop_standby_at_rest();
        self.recorder.mark_changed();
    }

    /// Describes the author of the action under way.
    pub(super) fn describe_author(&self) -> String {
        self.requester.author.as_ref().map_or_else(|| "the keeper".to_owned(), ToString::to_string)
    }

    /// Stores the policy's persistent state before performing anything that depends on it.
    pub(super) fn store_policy_state(&mut self) {
        self.recorder.put_fact("rung", &self.policy.rung());
        self.recorder.put_fact("ledger", self.policy.ledger());
        self.recorder.put_fact(ALARMS, self.alarms.raised());
        self.recorder.persist();
    }

    /// Begins a transition when a stop leads to another start.
    fn note_passage(&mut self) {
        let now = self.now();
        if let Lifecycle::Stopping { then: Then::Start(start), .. } = self.policy.life() {
            let to = self.run.rungs[start.rung].name.clone();
            // A worker that goes back saves nothing first.
            let saves = self.policy.capability().saves_on_request() && start.back.is_none();
            let first = if saves { StageName::Save } else { StageName::Stop };
            self.recorder.begin_passage(&to, first, now);
        }
    }

    /// Records force as a part of the transition. For a hung worker it starts at its last step.
    fn note_force(&mut self, signal: Signal) {
        let now = self.now();
        if let Lifecycle::Stopping { then: Then::Recover(_), pressure: Pressure::Terminated, .. } = self.policy.life() {
            let to = self.run.rungs[self.policy.rung()].name.clone();
            self.recorder.begin_passage_late(&to, StageName::Notice);
        }
        let part = match signal {
            Signal::Terminate => StageName::Terminate,
            Signal::Kill => StageName::Kill,
        };
        self.recorder.passage_part(part, now);
    }

    fn start_worker(&mut self, start: &Start) {
        let now = self.now();
        // The worker will read the run file in its current state.
        match self.run_dir.run() {
            Err(RunDirError::Config(why)) => {
                return self.finish_run(Outcome::Failed(FailureClass::Config, Reason::InvalidRunFile(why)));
            }
            Ok(run) if !self.is_approved(&run) => {
                return self.finish_run(Outcome::NeedsPerson(Reason::Unapproved));
            }
            _ => {}
        }
        if self.recorder.status.state == RunState::Paused {
            self.recorder.status.pauses += 1;
        }
        let name = self.run.rungs[start.rung].name.clone();
        self.recorder.rank_by(&self.run, start.rung);
        let attempt = match self.recorder.begin_attempt(start.rung, &name, &start.reason, now) {
            Ok(attempt) => attempt,
            Err(error) => return self.postpone_start(start, &error.to_string()),
        };
        self.policy.note_start(started_by(&self.run_dir, attempt));
        self.end_wait();
        self.mark_log(attempt, &name);
        let begins = self.witness.begin_attempt();
        if self.run.command.is_some() {
            self.recorder.keep_attempt(begins);
        }
        let started = match self.take_standby(attempt, start.rung) {
            Some(standby) => Ok(standby),
            None => self.start_process(attempt, start.rung),
        };
        self.follow_start(started);
    }

    /// Separates the output of an attempt from that of the one before it, for whoever reads worker.log.
    fn mark_log(&self, attempt: u64, rung: &str) {
        if attempt > 1
            && let Ok(mut log) = self.run_dir.append("worker.log")
        {
            // On a full disk, the mark is missing.
            let _ = writeln!(log, "downshift: attempt {attempt} starts on {rung}");
        }
    }

    /// Keeps the log of a worker within its bound. A harness does that itself.
    fn bound_log(&self) {
        let path = self.run_dir.file(worker_log::NAME);
        if self.run.command.is_none()
            && let Some(mut log) = BoundedLog::open_full(&path)
        {
            run_beside("log", move || log.keep_bound());
        }
    }

    /// Takes over a worker that was started for the current attempt.
    pub(super) fn follow_start(&mut self, started: io::Result<Worker>) {
        match started {
            Ok(worker) => {
                let pid = worker.identity.pid;
                self.recorder.record_worker(pid);
                self.watch_memory_of(pid);
                self.gpu.users.started(pid);
                self.recorder.put_fact("baseline", &self.policy.baseline());
                self.worker.process = Some(worker);
            }
            Err(error) => self.decide(Event::StartFailed(error.to_string()), None),
        }
    }

    pub(super) fn start_process(&mut self, attempt: u64, rung: usize) -> io::Result<Worker> {
        let program = self.worker_program(attempt, rung);
        Worker::start(attempt, &program, self.run_dir.append("worker.log")?, self.inputs.clone())
    }

    /// Postpones a start: no worker starts before its attempt is on disk. The postponement costs no
    /// restart budget, and the start follows as soon as the store accepts the row.
    fn postpone_start(&mut self, start: &Start, why: &str) {
        if self.worker.start_waits.is_none() {
            self.worker.start_waits = Some(Instant::now());
            let text = format!("the next worker waits for run.db: {why}");
            let (key, what) = ("store".to_owned(), "run.db cannot be written".to_owned());
            self.tell(&Notice { key, level: Level::Error, what, text: text.clone(), need: Need::You });
            self.record_waiting(Some(text.clone()));
            self.recorder.note(Level::Error, JournalKind::Health, text);
        }
        self.decide(Event::StartPutOff(start.clone(), FLUSH), None);
    }

    /// Ends the wait for the store: the worker starts, or the run no longer wants it.
    fn end_wait(&mut self) {
        if let Some(since) = self.worker.start_waits.take() {
            self.alarms.clear("store");
            self.record_waiting(None);
            let text = format!("run.db is writable again after {:.1} s", since.elapsed().as_secs_f64());
            self.recorder.note(Level::Info, JournalKind::Health, text);
        }
    }

    /// Notes in the lock file why the start waits; overwriting in place works on a full disk too.
    fn record_waiting(&mut self, why: Option<String>) {
        if let Err(error) = self.files.lock.update(|record| record.waiting = why) {
            self.recorder.note(Level::Warn, JournalKind::Health, format!("keeper.lock cannot be written: {error}"));
        }
    }

    pub(super) fn finish_run(&mut self, outcome: Outcome) {
        if self.stays_to_measure(&outcome) {
            return;
        }
        self.account_time();
        let (level, text) = match &outcome {
            Outcome::Finished => {
                let (status, since) = (&self.recorder.status, self.recorder.not_finite_since());
                let text = match &status.unread {
                    Some(unread) => format!("finished, but {unread}"),
                    None => sentences::finished(status.step, status.eval.as_ref(), self.recorder.took_no_step()),
                };
                let unsaved = status.failed_saves.as_ref().map_or_else(String::new, |saves| format!(", but {saves}"));
                let is_well = since.is_none() && unsaved.is_empty() && status.unread.is_none();
                let level = if is_well { Level::Info } else { Level::Warn };
                (level, text + &sentences::ends_in_streak(since) + &unsaved)
            }
            Outcome::Stopped if let Some(pid) = ForeignProcess::watched(&self.run_dir) => {
                let resume = self.run_dir.command("resume");
                (Level::Info, sentences::stopped_watching(self.recorder.status.step, pid, &resume))
            }
            Outcome::Stopped => sentences::stopped(self.recorder.status.step, &self.policy.continuation()),
            Outcome::Refused(why) => (Level::Error, format!("not started: {why}")),
            Outcome::Failed(_, why) => (Level::Error, format!("failed: {why}")),
            Outcome::NeedsPerson(why @ (Reason::Moved(_) | Reason::Occupied { .. })) => {
                (Level::Error, format!("needs attention: {why}"))
            }
            Outcome::NeedsPerson(why) => {
                (Level::Error, format!("needs attention: {why}; {}", self.policy.continuation()))
            }
        };
        let has_run = !matches!(outcome, Outcome::Refused(_));
        let text = if has_run { sentences::with_time(text, &self.recorder.status) } else { text };
        let notice = self.notice_of_end(&outcome, level, &text);
        self.tell(&notice);
        self.clients.settle(matches!(outcome, Outcome::Finished | Outcome::Stopped), &text);
        self.recorder.note(level, JournalKind::Run, text);
        self.recorder.put_fact(CLOSING, &false);
        let signalled_in = self.requester.signalled_in.take().filter(|_| outcome == Outcome::Stopped);
        self.recorder.put_fact(ENDED_BY_SIGNAL, &signalled_in);
        self.recorder.put_fact("exit_code", &outcome.exit_code());
        self.outcome = Some(outcome);
    }

    /// Charges the time since the last decision, and names what is spent from now on.
    pub(super) fn account_time(&mut self) {
        let life = self.policy.life();
        let state = life.state();
        let hangs =
            matches!(life, Lifecycle::Stopping { then: Then::Recover(fault), .. } if fault.class == FailureClass::Hang);
        if hangs {
            self.recorder.account_for_hang();
        }
        self.recorder.account(state);
    }

    pub(super) fn status(&mut self) -> Status {
        // The keeper itself decides some ends.
        let over = self.outcome.clone().map(Lifecycle::Over);
        let life = over.as_ref().unwrap_or(self.policy.life());
        let (mut state, mut why) = (life.state(), life.why());
        if let Some(step) = self.quality.closing_step().filter(|_| over.is_none()) {
            state = RunState::Stopping;
            why = Some(sentences::last_measurement(step, &self.run_dir.command("stop")));
        }
        if (state, &why) != (self.recorder.status.state, &self.recorder.status.why) {
            self.recorder.mark_changed();
        }
        let now = self.now();
        if state == RunState::Training && self.recorder.status.state != state {
            self.recorder.attempt.trains_again(now_ms());
        }
        let progress = self.recorder.attempt.progress(self.run.watch.hang_min.duration());
        let streak = self.recorder.open_streak_of_losses();
        let status = &mut self.recorder.status;
        // A keeper that took the worker over keeps what its predecessor knew.
        status.progress = progress.or(status.progress);
        status.not_finite = streak;
        status.awaits_companion = status.companion.is_none() && over.is_none() && self.policy.awaits_companion(now);
        let capability = self.policy.capability();
        (status.capability, status.level) = (Some(capability), capability.level().map(capability::Level::number));
        status.state = state;
        status.why = why;
        status.exit_code = self.outcome.as_ref().map(Outcome::exit_code);
        status.autopilot = self.policy.autopilot();
        status.proposal = self.policy.proposal().filter(|_| over.is_none());
        status.climb = self.policy.describe_climb();
        status.plan = self.policy.plan_status();
        for (rung, record) in status.rungs.iter_mut().enumerate() {
            record.unusable = self.policy.unusable(rung).map(str::to_owned);
        }
        if matches!(self.policy.life(), Lifecycle::Paused) {
            // A shift while paused: the next worker begins on this rung.
            status.shifts += u64::from(status.rung != self.policy.rung());
            status.rung = self.policy.rung();
            status.rung_name.clone_from(&self.run.rungs[self.policy.rung()].name);
        }
        Status { passage: self.recorder.passage(), ..self.recorder.status.clone() }
    }

    /// Sends news to listeners, and writes to the store at intervals.
    pub(super) fn publish_if_due(&mut self) {
        let state = self.policy.life().state();
        let changed = state != self.publishing.shown.0;
        if changed || self.publishing.shown.1.elapsed() >= STATUS {
            self.publish_now(state);
            for (level, text) in self.alarms.news() {
                self.recorder.note(level, JournalKind::Health, text);
            }
            if changed || self.publishing.flushed.elapsed() >= FLUSH {
                self.recorder.flush();
                self.bound_log();
                self.publishing.flushed = Instant::now();
            }
        }
    }

    /// Sends all news to listeners. One message per step would wake them, and the keeper's socket, far
    /// more often than a screen can show.
    pub(super) fn publish_now(&mut self, state: RunState) {
        for update in self.recorder.take_updates() {
            self.clients.publish(&update);
        }
        let status = self.status();
        if self.clients.listening() {
            self.clients.publish(&Update::Status(Box::new(status)));
        }
        self.publishing.shown = (state, Instant::now());
    }
}
