//! A keeper that finds a command of an earlier one: it takes over the harness with everything that happened
//! meanwhile, or ends what a dead harness left behind.

use super::Input;
use super::keeper_state::Keeper;
use super::worker_process::{Harness, Worker, WorkerEnd, end_command};
use crate::outlook::cost::Reached;
use crate::protocol::control::JournalKind;
use crate::protocol::exit::Exit;
use crate::protocol::worker::{Event, Level};
use crate::store::command_end::CommandEnd;
use crate::store::foreign::ForeignProcess;
use crate::store::lock::Record;
use crate::store::owners;
use std::io;
use std::time::Duration;

/// Note about an end that no keeper was told.
const UNHEARD: &str = "the command had ended before the process around it; its end is taken from command-end.json";

/// Reason why a running command cannot be taken over.
#[derive(Debug, thiserror::Error)]
enum TakeoverError {
    /// Its lock file names no attempt, token or socket.
    #[error("the process around it does not listen for another keeper")]
    NotListening,
    /// Its attempt is not the one that run.db holds open.
    #[error("attempt {0} is not the open attempt of run.db")]
    UnknownAttempt(u64),
    /// worker.log cannot be opened.
    #[error("cannot open worker.log: {0}")]
    Log(#[source] io::Error),
    /// Its harness cannot be reached.
    #[error("cannot connect to the process around it: {0}")]
    Harness(#[source] io::Error),
}

impl Keeper {
    /// Takes over the command of an earlier keeper. Returns false if none is running; then its processes have been
    /// ended.
    pub(super) async fn adopt_command(&mut self) -> bool {
        let Some(record) = owners::worker_record(&self.run_dir) else { return false };
        if !record.owner.is_alive() {
            // The harness died together with its keeper.
            let log = self.run_dir.append("worker.log").ok();
            let log_end = match record.token.clone() {
                Some(token) => end_command(token, log).await,
                None => None,
            };
            return self.take_recorded_end(&record, log_end);
        }
        match self.connect_harness(record).await {
            Ok(()) => true,
            Err(why) => {
                let text = format!("the running command cannot be taken over and is ended: {why}");
                self.recorder.note(Level::Error, JournalKind::Worker, text);
                false
            }
        }
    }

    /// Measures the memory of a worker: of the training itself where that is not a child of the harness.
    pub(super) fn watch_memory_of(&self, worker: u32) {
        let pid = ForeignProcess::living(&self.run_dir).map_or(worker, |process| process.identity.pid);
        self.worker.watched.send_replace(Some(pid));
    }

    /// Takes over a command that ended before its harness did, or whose end the last keeper did not store. Its end comes as
    /// if the harness reported it now. Returns false if there is none.
    fn take_recorded_end(&mut self, record: &Record, log_end: Option<u64>) -> bool {
        let (Some(attempt), Some(token)) = (record.attempt, &record.token) else { return false };
        let Some(end) = CommandEnd::of_attempt(&self.run_dir, token) else { return false };
        if !self.recorder.is_open(attempt) {
            return false;
        }
        let Some((rung, log_begins)) = self.recorder.continue_attempt(attempt) else { return false };
        self.continue_worker(rung, log_begins);
        self.recorder.note(Level::Info, JournalKind::Worker, UNHEARD.to_owned());
        let events = self.new_events(end).map(|event| Input::Worker(attempt, event));
        let end = WorkerEnd { exit: Exit::of_command(None, None), log_end };
        let inputs: Vec<Input> = events.chain([Input::Exited(attempt, end)]).collect();
        inputs.into_iter().all(|input| self.inputs.try_send(input).is_ok())
    }

    /// Takes the recorded end of a command whose harness died before it could report it.
    pub(super) fn take_unreported_end(&mut self, now: Duration) {
        let token = self.worker.process.as_ref().and_then(Worker::token);
        let Some(end) = token.and_then(|token| CommandEnd::of_attempt(&self.run_dir, token)) else { return };
        self.recorder.note(Level::Info, JournalKind::Worker, UNHEARD.to_owned());
        for event in self.new_events(end) {
            self.handle_worker_event(event, now);
        }
    }

    /// Returns the recorded events that this run does not know.
    fn new_events(&self, end: CommandEnd) -> impl Iterator<Item = Event> + use<> {
        let known = self.recorder.status.step;
        end.events.into_iter().filter(move |event| !matches!(event, Event::Step(step) if step.step <= known))
    }

    /// Continues with the worker of an attempt that an earlier keeper began.
    fn continue_worker(&mut self, rung: usize, log_begins: u64) {
        self.witness.continue_attempt(log_begins);
        let now = self.now();
        let status = &self.recorder.status;
        let reached = Reached::of_status(status);
        self.policy.adopt_worker(rung, reached, status.samples, now);
    }

    async fn connect_harness(&mut self, record: Record) -> Result<(), TakeoverError> {
        let (Some(attempt), Some(token), Some(socket)) = (record.attempt, record.token, record.socket) else {
            return Err(TakeoverError::NotListening);
        };
        let Some((rung, log_begins)) = self.recorder.continue_attempt(attempt) else {
            return Err(TakeoverError::UnknownAttempt(attempt));
        };
        let after = self.recorder.status.step;
        let pid = record.owner.pid;
        let harness = Harness { identity: record.owner, socket, token };
        let log = self.run_dir.append("worker.log").map_err(TakeoverError::Log)?;
        let worker = Worker::adopt(attempt, harness, after, log, self.inputs.clone()).await;
        self.worker.process = Some(worker.map_err(TakeoverError::Harness)?);
        self.watch_memory_of(pid);
        self.gpu.users.started(pid);
        self.continue_worker(rung, log_begins);
        self.recorder.record_worker(pid);
        let text = format!("took over the running command after step {after}; it went on without a keeper");
        self.recorder.note(Level::Info, JournalKind::Worker, text);
        Ok(())
    }
}
