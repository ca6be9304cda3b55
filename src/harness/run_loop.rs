//! The harness's loop: output, orders, exits and the clock, one at a time.

use super::HarnessArgs;
use super::activity::Activity;
use super::checkpoints::{Candidate, CheckpointWatch, Moment};
use super::companion::{Companion, Published};
use super::companion_link::Member;
use super::copies::Copies;
use super::ending::Reason;
use super::foreign::Foreign;
use super::holder::Holder;
use super::keeper_link::{FromKeeper, KeeperLink};
use super::metric_files::MetricFiles;
use super::nodes::Nodes;
use super::output_log::OutputLog;
use super::progress::CommandProgress;
use super::progress::trail::FILE_CLOCK;
use super::ranks::RankFailures;
use super::resume_check::ResumeCheck;
use super::signals::Signals;
use super::terminal::{Chunk, next_chunk};
use crate::config::command::SaveRequest;
use crate::log_metrics::OutputReader;
use crate::process_tree::{Family, Process, end_all};
use crate::protocol::exit::Exit;
use crate::protocol::node::StackWriter;
use crate::protocol::worker::{CommandNews, Event, Hello, Level, Order};
use crate::store::adopted::{AdoptError, Adopted};
use crate::store::lock::Lock;
use crate::store::run_dir_watch::{Presence, RunDirWatch};
use crate::store::worker_log::BoundedLog;
use crate::untrusted::thread::run_beside;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{WaitOptions, wait};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

/// Interval at which files, checkpoints and the clock are checked.
pub(super) const TICK: Duration = Duration::from_millis(500);
/// The phase of the command's life.
#[derive(Debug)]
pub enum Life {
    /// It runs.
    Running,
    /// It was asked to save before it is ended.
    Saving {
        /// When to give up.
        until: Instant,
        /// When a signal asked it, in Unix nanoseconds; older checkpoints do not count. None if its companion was asked,
        /// which ends the command itself.
        since_ns: Option<i64>,
    },
    /// Its processes are being ended.
    Ending {
        /// The reason.
        reason: Reason,
        /// Ends the grace periods at once.
        hurry: Arc<OwnedFd>,
        /// No process is left.
        done: bool,
        /// Length of worker.log when the command was told to end; none if it had ended by then.
        log_end: Option<u64>,
    },
}

impl Life {
    /// Returns the length of worker.log after which nothing says why the command ended.
    pub fn log_end(&self) -> Option<u64> {
        match self {
            Self::Ending { log_end, .. } => *log_end,
            _ => None,
        }
    }

    /// Reports whether the processes of the command end because the harness told them to: then their failures follow from
    /// that.
    pub fn is_ended_by_us(&self) -> bool {
        matches!(self, Self::Ending { reason, .. } if !reason.is_failure_of_command())
    }
}

/// A report from one of the harness's threads.
#[derive(Debug)]
pub enum Report {
    /// A checkpoint was adopted, or could not be.
    Adopted(Candidate, Result<Adopted, AdoptError>, Duration),
    /// A checkpoint of the companion was published, or could not be.
    Published(Box<Published>),
    /// All processes have ended except these.
    Ended(Vec<Process>),
    /// The outputs of earlier attempts were copied; with what is said of it.
    Kept(Option<String>),
    /// The adopted process is gone.
    Gone,
    /// The launcher had its time to end the other ranks.
    RanksLeft(Member),
    /// The processes wrote their stacks to these files.
    Stacks(Vec<StackWriter>),
    /// The command of another node failed, and all ranks had time to tell why.
    NodeFailed,
    /// A lost node had its time to show after the command failed.
    Settled,
}

/// The harness of one attempt.
pub struct Harness {
    pub(super) args: HarnessArgs,
    pub(super) command: Process,
    /// The command's processes.
    pub(super) family: Family,
    /// Set if the command was running before the run, with whether it may be ended.
    pub(super) foreign: Option<Foreign>,
    /// The second holder of the output, and the copies outside the run directory.
    pub(super) _until_the_end: (Option<Holder>, Copies),
    /// The command's output; none once no process has it open.
    pub(super) output: Option<mpsc::Receiver<Chunk>>,
    pub(super) reader: OutputReader,
    /// Nothing was printed since the last tick.
    pub(super) paused: bool,
    /// When the newest output arrived.
    pub(super) printed: Duration,
    pub(super) output_log: OutputLog,
    pub(super) log: BoundedLog,
    pub(super) files: MetricFiles,
    pub(super) checkpoints: Option<CheckpointWatch>,
    pub(super) progress: CommandProgress,
    /// Whether the command trains on from its checkpoint.
    pub(super) resume_check: ResumeCheck,
    pub(super) companion: Companion,
    pub(super) nodes: Nodes,
    pub(super) ranks: RankFailures,
    pub(super) hello: Hello,
    pub(super) activity: Activity,
    pub(super) life: Life,
    /// How the command ended.
    pub(super) exit: Option<Exit>,
    pub(super) signals: Signals,
    pub(super) link: KeeperLink,
    pub(super) reports: mpsc::UnboundedSender<Report>,
    pub(super) reported: mpsc::UnboundedReceiver<Report>,
    pub(super) began: Instant,
    /// A checkpoint is being read.
    pub(super) adopting: bool,
    pub(super) run_dir: RunDirWatch,
    pub(super) lock: Lock,
    /// Checkpoints that were found and are not adopted yet, in the order in which they were written.
    pub(super) waiting: Vec<Candidate>,
    /// The file by which the command was asked to save.
    pub(super) touched: Option<PathBuf>,
}

impl Harness {
    /// Runs until the command is gone and a keeper has been told. Returns the exit code.
    pub async fn run_to_the_end(&mut self) -> u8 {
        let mut clock = interval(TICK);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.is_over() {
            let Signals { child, terminate, interrupt, hangup } = &mut self.signals;
            // A companion introduces itself before its script prints: its connection is served before the output.
            tokio::task::yield_now().await;
            tokio::select! {
                biased;
                message = self.link.receive() => self.handle_keeper(message),
                _ = child.recv() => self.reap(),
                () = Signals::asked_to_end(terminate, interrupt) => self.end(Reason::Signalled),
                _ = hangup.recv() => {}
                Some(report) = self.reported.recv() => self.take_report(report),
                _ = clock.tick() => self.tick(),
                (node, message) = self.nodes.receive() => self.handle_node(node, message),
                message = self.companion.receive() => self.handle_companion(message),
                chunk = next_chunk(&mut self.output) => match chunk {
                    Some(chunk) => self.take_output(&chunk),
                    None => self.output = None,
                },
            }
            self.link.pump();
        }
        self.finish().await
    }

    /// Reports whether a checkpoint is being adopted or published.
    pub(super) fn is_saving(&self) -> bool {
        self.adopting || self.companion.is_busy()
    }

    pub(super) fn handle_keeper(&mut self, message: FromKeeper) {
        match message {
            // The process that measured or tried the command is gone.
            FromKeeper::Gone if self.args.purpose.is_temporary() => self.end(Reason::Signalled),
            // Only a standby waits for the order to begin.
            FromKeeper::Gone | FromKeeper::Order(Order::Begin) => {}
            FromKeeper::Order(Order::Adopt { after }) => self.introduce_again(after),
            FromKeeper::Order(Order::Checkpoint) => {
                if let Err(error) = self.ask_to_save() {
                    let (step, message) = (self.progress.step, error.to_string());
                    self.link.send(&Event::SaveFailed { step, message, of_disk: false });
                }
            }
            FromKeeper::Order(Order::Stop { checkpoint }) => self.stop(checkpoint),
            FromKeeper::Order(Order::Stacks) => {
                self.ask_for_collectives();
                self.write_stacks();
            }
        }
    }

    /// Ends the command, after a save if it can be asked for one.
    fn stop(&mut self, checkpoint: bool) {
        if checkpoint && matches!(self.life, Life::Running) && self.companion_saves() {
            return self.order_stop();
        }
        let saves = self.args.spec.save.as_ref().map(SaveRequest::limit).filter(|_| checkpoint);
        let Some(limit) = saves.filter(|_| matches!(self.life, Life::Running)) else { return self.end(Reason::Asked) };
        let since_ns = Some(jiff::Timestamp::now().as_nanosecond() as i64 - FILE_CLOCK.as_nanos() as i64);
        match self.ask_to_save() {
            Ok(()) => self.life = Life::Saving { until: Instant::now() + limit, since_ns },
            Err(error) => {
                let text = format!("the command is ended without a save: {error}");
                self.link.send(&Event::Note { level: Level::Warn, text });
                self.end(Reason::Asked);
            }
        }
    }

    /// Reaps every child that has exited; orphans among them are this process's children too.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid.as_raw_nonzero().get().unsigned_abs() == self.command.pid {
                self.exit = Some(Exit::of_command(status.exit_status(), status.terminating_signal()));
                // A command may save and exit when it is asked to save.
                let asked = matches!(self.life, Life::Saving { .. }) || self.companion.is_stopping();
                if !asked && matches!(self.life, Life::Running) {
                    self.take_waiting_output();
                    self.record_exit();
                }
                match self.exit {
                    _ if asked => self.end(Reason::Asked),
                    Some(exit) if exit.code != Some(0) => self.end_as_failed(Reason::Exited),
                    _ => self.end(Reason::Exited),
                }
            }
        }
    }

    /// Begins to end all processes. A signal that comes later ends the grace periods, but the first reason stays.
    pub(super) fn end(&mut self, reason: Reason) {
        if let Life::Ending { hurry, .. } = &self.life {
            if reason == Reason::Signalled {
                wake(hurry);
                self.nodes.hurry(reason.grace());
            }
            return;
        }
        let (family, grace) = (self.family.clone(), reason.grace());
        // A command that saved and exited, too, may do so later on another node.
        let may_follow = matches!(reason, Reason::Exited | Reason::Asked);
        self.nodes.end(grace, may_follow && self.exit.is_some_and(|exit| exit.code == Some(0)));
        let command = self.exit.is_none().then(|| self.command.clone());
        let reports = self.reports.clone();
        let Ok(hurry) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new) else { return };
        // A command that may not be ended is left alone: the harness only stops watching it.
        let done = self.foreign.as_ref().is_some_and(|foreign| !foreign.may_end);
        let log_end = self.exit.is_none().then(|| self.end_of_evidence()).flatten();
        self.life = Life::Ending { reason, hurry: Arc::clone(&hurry), done, log_end };
        if done {
            return;
        }
        run_beside("end", move || {
            let left = end_all(&family, command.as_ref(), grace, Some(hurry.as_fd()));
            let _ = reports.send(Report::Ended(left));
        });
    }

    pub(super) fn take_report(&mut self, report: Report) {
        match report {
            Report::Ended(left) => {
                if let Life::Ending { done, .. } = &mut self.life {
                    *done = true;
                }
                for process in left {
                    let text = format!("process {} of the command cannot be killed", process.pid);
                    self.link.send(&Event::Note { level: Level::Error, text });
                }
                self.reap();
                self.look_once_over();
            }
            Report::Kept(text) => {
                if let Some(text) = text {
                    self.link.send(&Event::Note { level: Level::Info, text });
                }
            }
            Report::Gone => {
                self.exit = Some(Exit::of_command(None, None));
                self.end(Reason::Exited);
            }
            Report::NodeFailed => self.end_as_failed(Reason::RankFailed),
            Report::Settled => self.end_failing(),
            Report::RanksLeft(member) => self.end_other_ranks(member),
            Report::Stacks(written) => self.report_stacks(written),
            Report::Published(published) => self.record_publication(*published),
            Report::Adopted(candidate, result, took) => self.record_adoption(&candidate, result, took),
        }
    }

    /// Reports whether no keeper will ever find this harness: it has none, and the run directory is lost.
    pub(super) fn is_abandoned(&mut self, now: Instant) -> bool {
        if self.link.has_keeper() || self.args.purpose.is_temporary() {
            // The keeper watches the directory.
            self.run_dir.forget();
            return false;
        }
        matches!(self.run_dir.check(now), Presence::Lost(_))
    }

    fn tick(&mut self) {
        let now = Instant::now();
        let (mut log, mut readings, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        self.output_log.tick(now, &mut log);
        self.write_log(&log);
        // The job steps of other nodes write to it, too.
        self.log.keep_bound();
        if std::mem::replace(&mut self.paused, true) {
            self.reader.flush(&mut readings);
        }
        self.files.poll(&mut readings, &mut notes);
        self.take_readings(&readings, self.began.elapsed());
        self.settle_resume(false);
        self.read_foreign();
        self.send_epoch();
        for text in notes {
            self.link.send(&Event::Note { level: Level::Warn, text });
        }
        if let Some(event) = self.progress.tick(self.began.elapsed()) {
            self.send(&event);
        }
        if matches!(self.life, Life::Running) && self.activity.look(&self.family, now) {
            self.link.send_unkept(&Event::Command { news: CommandNews::Active });
        }
        if self.is_abandoned(now) {
            self.end(Reason::Signalled);
        }
        self.look_for_checkpoint(Moment::Alive);
        self.tick_companion();
        self.tick_ranks();
        self.tick_nodes();
        if matches!(self.life, Life::Saving { until, .. } if now >= until) {
            self.give_up_stop();
        }
    }
}

fn wake(hurry: &OwnedFd) {
    let _ = rustix::io::write(hurry, &1_u64.to_ne_bytes());
}
