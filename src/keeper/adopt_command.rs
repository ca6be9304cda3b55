//! A keeper that finds a command of an earlier one: it takes over the harness with everything that happened
//! meanwhile, or ends what a dead harness left behind.

use super::keeper_state::Keeper;
use super::worker_process::{Harness, Worker, end_left_behind};
use crate::config::command::cost::Reached;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::Level;
use crate::store::foreign::ForeignProcess;
use crate::store::lock::Record;
use crate::store::owners;
use std::io;

/// Reason why a running command cannot be taken over.
#[derive(Debug, thiserror::Error)]
enum TakeoverError {
    /// Its lock file names no attempt, token or socket.
    #[error("its harness does not listen for another keeper")]
    NotListening,
    /// Its attempt is not the one that run.db holds open.
    #[error("attempt {0} is not the open attempt of run.db")]
    UnknownAttempt(u64),
    /// worker.log cannot be opened.
    #[error("cannot open worker.log: {0}")]
    Log(#[source] io::Error),
    /// Its harness cannot be reached.
    #[error("cannot connect to its harness: {0}")]
    Harness(#[source] io::Error),
}

impl Keeper {
    /// Takes over the command of an earlier keeper. Returns false if none is running; then its processes have been
    /// ended.
    pub(super) async fn adopt_command(&mut self) -> bool {
        let Some(record) = owners::worker_record(&self.run_dir) else { return false };
        if !record.owner.is_alive() {
            // The harness died together with its keeper.
            if let Some(token) = record.token {
                end_left_behind(token).await;
            }
            return false;
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
        self.witness.continue_attempt(log_begins);
        self.watch_memory_of(pid);
        self.gpu.users.started(pid);
        let now = self.now();
        let status = &self.recorder.status;
        let reached = Reached { step: after, taken: status.taken_steps(), durable: status.durable_step };
        self.policy.adopt_worker(rung, reached, status.samples, now);
        self.recorder.record_worker(pid);
        let text = format!("took over the running command after step {after}; it went on without a keeper");
        self.recorder.note(Level::Info, JournalKind::Worker, text);
        Ok(())
    }
}
