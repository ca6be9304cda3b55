//! Handles the worker's messages and its exit.

use super::keeper_state::{EndedCommand, Keeper};
use super::notice::{Need, Notice};
use super::sentences;
use super::witness::Ending;
use super::worker_process::WorkerEnd;
use crate::policy::event::Event;
use crate::policy::lifecycle::{Lifecycle, Then};
use crate::protocol::cause::Cause;
use crate::protocol::control::{JournalKind, StageName};
use crate::protocol::exit::Exit;
use crate::protocol::worker::{CommandNews, Event as WorkerEvent, Hello, Level, PROTOCOL};
use crate::store::foreign::ForeignProcess;
use std::time::Duration;

impl Keeper {
    pub(super) fn handle_worker_event(&mut self, mut event: WorkerEvent, now: Duration) {
        self.recorder.admit_metrics(&mut event);
        // A command that was taken over has saved since it resumed.
        if let (WorkerEvent::Hello(hello), true) = (&mut event, self.recorder.is_continued()) {
            hello.resumed_from = self.recorder.status.durable_step;
        } else if let WorkerEvent::Hello(hello) = &event {
            self.note_start_over(hello);
        }
        match &event {
            WorkerEvent::Hello(hello) if hello.protocol != PROTOCOL => {
                let why = format!("the worker uses protocol version {}, this keeper {PROTOCOL}", hello.protocol);
                self.recorder.note(Level::Error, JournalKind::Worker, why);
            }
            WorkerEvent::Injected { fault, .. } if !fault.ends_with('*') => {
                self.stored.fired.push(fault.clone());
                self.recorder.put_fact("fired", &self.stored.fired);
                self.recorder.persist();
            }
            WorkerEvent::Failed(failed) => self.worker.failure = Some(failed.clone()),
            WorkerEvent::Done { .. } => self.worker.done = true,
            WorkerEvent::Command { news: CommandNews::Ended { pid, code, signal, log_end } } => {
                let exit = Exit::of_command(*code, *signal);
                self.worker.command = Some(EndedCommand { pid: *pid, exit, log_end: *log_end });
            }
            WorkerEvent::Command { news: CommandNews::Companion(companion) } => self.record_companion(companion),
            WorkerEvent::Command { news: CommandNews::WentBack { step, samples } } => {
                self.forget_quality_above(*step, *samples);
            }
            WorkerEvent::Command { news: CommandNews::Ranks { rows } } => self.recorder.record_ranks(rows),
            WorkerEvent::Command { news: CommandNews::Updates(counts) } => self.recorder.record_updates(*counts),
            WorkerEvent::Command { news: CommandNews::Stacks { pid, rank, file } } => {
                self.record_stacks(*pid, *rank, file);
            }
            WorkerEvent::Step(_) if self.policy.misses_companion() => self.forget_companion(),
            WorkerEvent::SaveFailed { step, message, .. } => {
                let (what, text) = ("a checkpoint could not be written", sentences::save_failed(*step, message));
                let (key, what) = ("saves".to_owned(), what.to_owned());
                self.tell(&Notice { key, level: Level::Error, what, text, need: Need::Look });
            }
            WorkerEvent::Saved(_) => self.alarms.clear("saves"),
            // The previous worker was killed between a save and its report.
            WorkerEvent::Hello(hello) if self.recorder.is_unknown_checkpoint(hello.resumed_from) => {
                if let Err(error) = self.take_over_checkpoints() {
                    self.recorder.note(Level::Error, JournalKind::Checkpoint, format!("run.db: {error}"));
                }
            }
            _ => {}
        }
        // The journal says what became of newer checkpoints before it says where the worker resumed.
        if let WorkerEvent::Hello(hello) = &event {
            self.set_aside_unusable(hello);
        }
        self.recorder.record_event(&event, now);
        self.update_checkpoints(&event);
        self.follow_learning(matches!(event, WorkerEvent::Eval(_)), now);
        let saved = matches!(event, WorkerEvent::Saved(_));
        self.decide(Event::Worker(event), None);
        if saved {
            self.store_policy_state();
        }
    }

    /// Notes that a worker begins again at step 0, although steps were taken.
    fn note_start_over(&mut self, hello: &Hello) {
        let status = &self.recorder.status;
        let begins_again = hello.resumed_from.is_none() && status.attempts > 1 && status.step > 0;
        if let Some(adopted) = ForeignProcess::living(&self.run_dir).filter(|_| begins_again) {
            let text = format!("watches process {} again", adopted.identity.pid);
            self.recorder.note(Level::Info, JournalKind::Worker, text);
            self.recorder.keep_place();
        } else if begins_again {
            let can_resume = self.policy.capability().can_resume();
            let text = sentences::starts_again(status.step, can_resume);
            self.recorder.note(Level::Warn, JournalKind::Worker, text);
        }
    }

    /// Updates the verdict on the evaluations; only a new one raises the alarm.
    pub(super) fn follow_learning(&mut self, is_evaluated: bool, now: Duration) {
        let learning = *self.recorder.learning();
        self.recorder.status.setback = learning.setback(self.run.watch.patience);
        if is_evaluated {
            let place = self.describe_place();
            let told = self.alarms.check_learning(&learning, (&place, now));
            if let Some(text) = told {
                self.recorder.note(Level::Warn, JournalKind::Health, text);
            }
        }
    }

    pub(super) fn handle_worker_exit(&mut self, WorkerEnd { exit, log_end }: WorkerEnd, now: Duration) {
        if self.replace_ended_standby(exit) {
            return;
        }
        if self.worker.command.is_none() {
            self.take_unreported_end(now);
        }
        let is_stopping =
            matches!(self.policy.life(), Lifecycle::Stopping { then, .. } if !matches!(then, Then::Recover(_)));
        let asked = is_stopping || self.policy.ends_by_withdrawn_stop();
        let done = std::mem::take(&mut self.worker.done);
        // The command's own end says more than that of its harness.
        let command = self.worker.command.take();
        let exit = command.map_or(exit, |command| command.exit);
        let log_end = command.and_then(|command| command.log_end).or(log_end);
        let cause = self.judge_end(exit, command.map(|command| command.pid), log_end);
        let failed = self.worker.failure.take();
        let as_intended = matches!(exit.code, Some(0 | 3)) && (asked || done) || asked && failed.is_none();
        let outcome = match &failed {
            Some(failed) => format!("{}: {}", failed.class, failed.message),
            None if as_intended => "ended as asked".to_owned(),
            None => exit.to_string(),
        };
        self.worker.process = None;
        self.worker.watched.send_replace(None);
        self.recorder.record_exit(&outcome, !asked && exit.code != Some(0));
        if !as_intended {
            self.recorder.record_cause(&cause);
        }
        self.worker.advice.clone_from(&cause.advice);
        let (class, xid, why) = (cause.class, cause.xid, cause.summary());
        let effects = self.policy.decide(Event::Exited(exit, cause), now);
        let notice = (!as_intended).then(|| self.notice_of(class, xid, &why, &effects)).flatten();
        if let Some(notice) = notice {
            self.admit(&notice);
        }
        self.begin_next_passage(now);
        if !asked && !matches!(self.policy.life(), Lifecycle::Over(_)) {
            self.recorder.status.restarts += 1;
        }
        self.perform(effects, None);
        self.account_time();
        self.alarms.post();
    }

    /// Names the next part of the transition to another worker, or ends the transition.
    fn begin_next_passage(&mut self, now: Duration) {
        let rung = self.run.rungs[self.policy.rung()].name.clone();
        match self.policy.life() {
            Lifecycle::AwaitingVram { .. } => self.recorder.begin_passage(&rung, StageName::AwaitVram, now),
            Lifecycle::BackingOff { .. } => self.recorder.begin_passage(&rung, StageName::BackOff, now),
            Lifecycle::Cooling { .. } => self.recorder.begin_passage(&rung, StageName::Cool, now),
            Lifecycle::Running(_) => self.recorder.begin_passage(&rung, StageName::Load, now),
            _ => self.recorder.end_passage(),
        }
    }

    /// Lets triage judge why the worker ended.
    fn judge_end(&mut self, exit: Exit, command: Option<u32>, log_end: Option<u64>) -> Cause {
        let ended_for = match self.policy.life() {
            Lifecycle::Stopping { then: Then::Recover(fault), .. } => Some((fault.class, fault.text.clone())),
            _ => None,
        };
        let pid = command.or(self.worker.process.as_ref().map(|worker| worker.identity.pid));
        self.witness.judge(&Ending { exit, pid, failed: self.worker.failure.as_ref(), ended_for, log_end })
    }
}
