//! The end of an attempt: the rest of the output, the record of the end on disk, and its delivery to a keeper.
//!
//! ```text
//!  the command exits ─▶ command-end.json ─▶ its processes end, its output is read ─▶ command-end.json ─▶ a keeper
//! ```
//! A keeper may be slow, stopped or dead, and the harness may be killed at any point. So the end is on disk first, and
//! the delivery waits for as long as a keeper holds its end of the pipe.

use super::ending::{Reason, conclude};
use super::run_loop::{Harness, TICK};
use super::save_file;
use super::signals::Signals;
use super::terminal::next_chunk;
use crate::protocol::worker::{DoneReason, Event, FailureClass};
use crate::store::command_end::CommandEnd;
use std::fs;
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// How long to wait for the rest of the output, which a process that cannot be killed may hold open.
const DRAIN: Duration = Duration::from_millis(500);
/// The wait is divided, because a process that is stopped meanwhile loses one part only.
const PARTS: u32 = 5;
/// Time for the last events once a signal tells the harness to end.
const LAST_WORDS: Duration = Duration::from_secs(2);

impl Harness {
    /// Reports the end, to this keeper or to the next one. Returns the exit code.
    pub(super) async fn finish(&mut self) -> u8 {
        while let Some(Some(chunk)) = while_it_drains(next_chunk(&mut self.output)).await {
            self.take_output(&chunk);
        }
        self.read_foreign();
        self.drain_companion().await;
        let mut readings = Vec::new();
        self.finish_log();
        self.reader.finish_reading(&mut readings);
        self.files.poll(&mut readings, &mut Vec::new());
        self.take_readings(&readings, self.began.elapsed());
        self.send_last_step();
        self.note_unread_end();
        let Some(reason) = self.reason_of_end() else { return FailureClass::Unknown.exit_code() };
        let (events, code) = self.conclude(&reason);
        self.store_end(&reason, &events);
        if (code != 0 || self.args.spec.checkpoints.is_some()) && !matches!(reason, Reason::Asked | Reason::Signalled) {
            self.note_undeclared_checkpoints();
        }
        self.note_dropped();
        for event in &events {
            self.link.send(event);
        }
        save_file::take_away(self.touched.take());
        self.deliver_end().await;
        // The lock is held until this process exits, so the socket is not that of another attempt.
        if let Some(socket) = &self.lock.record().socket {
            let _ = fs::remove_file(socket);
        }
        code
    }

    /// Handles what the companion sent before its processes ended, and publishes what it saved.
    async fn drain_companion(&mut self) {
        while self.companion.is_connected() {
            let Some(message) = while_it_drains(self.companion.receive()).await else { break };
            self.handle_companion(message);
        }
        while self.is_saving() {
            let Some(report) = self.reported.recv().await else { return };
            self.take_report(report);
        }
    }

    /// Returns the last events of the attempt and the exit code.
    fn conclude(&self, reason: &Reason) -> (Vec<Event>, u8) {
        let cause = self.ranks.cause();
        // The keeper looks for the process in the logs of this node.
        let of_rank = cause.exit.map(|(process, exit)| (process.here().unwrap_or(self.command.pid), exit));
        let own = || (self.command.pid, self.nodes.end_of_command(self.exit.unwrap_or_default()));
        let (pid, exit) = of_rank.filter(|_| reason.is_failure_of_command()).unwrap_or_else(own);
        conclude(reason, pid, exit, &self.progress, cause.failed, self.life.log_end())
    }

    /// Records on disk how the command ended, as far as that is known before its other processes have ended.
    pub(super) fn record_exit(&self) {
        // Other nodes may train on.
        if self.nodes.is_none() {
            let (events, _) = self.conclude(&Reason::Exited);
            self.store_end(&Reason::Exited, &events);
        }
    }

    /// Stores the end for a keeper that does not hear of it. An end that was asked for says nothing about the command.
    fn store_end(&self, reason: &Reason, events: &[Event]) {
        if self.args.purpose.is_temporary() {
            return;
        }
        let has_finished = events.iter().any(|event| matches!(event, Event::Done { reason: DoneReason::Finished, .. }));
        if !has_finished && matches!(reason, Reason::Asked | Reason::Signalled) {
            return CommandEnd::withdraw(&self.args.run_dir);
        }
        let events = self.link.newest_step().into_iter().chain(events.iter().cloned()).collect();
        let end = CommandEnd { token: self.args.token.clone(), events };
        // On a full disk, the harness waits for a keeper all the same.
        let _ = end.record(&self.args.run_dir);
    }

    /// Waits until a keeper has the end of the command: this one, however slowly it reads, or the next one.
    async fn deliver_end(&mut self) {
        let mut hurries = false;
        while (self.link.has_keeper() || !self.args.purpose.is_temporary()) && !self.is_abandoned(Instant::now()) {
            let Signals { terminate, interrupt, .. } = &mut self.signals;
            tokio::select! {
                message = self.link.deliver() => match message {
                    Some(message) => self.handle_keeper(message),
                    None => return,
                },
                () = Signals::asked_to_end(terminate, interrupt), if !hurries => hurries = true,
                () = sleep(LAST_WORDS), if hurries => return,
                () = sleep(TICK), if !self.link.has_keeper() => {}
            }
        }
    }
}

/// Waits for the rest of something that may never end.
async fn while_it_drains<T>(rest: impl Future<Output = T>) -> Option<T> {
    let mut rest = pin!(rest);
    for _ in 0..PARTS {
        if let Ok(value) = timeout(DRAIN / PARTS, &mut rest).await {
            return Some(value);
        }
    }
    None
}
