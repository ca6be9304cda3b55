//! The harness's loop: output, orders, exits and the clock, one at a time.

use super::HarnessArgs;
use super::activity::Activity;
use super::checkpoints::{Candidate, CheckpointWatch, Moment};
use super::companion::{Companion, Published};
use super::companion_link::Member;
use super::ending::{Reason, conclude};
use super::foreign::Foreign;
use super::holder::Holder;
use super::keeper_link::{FromKeeper, KeeperLink};
use super::metric_files::MetricFiles;
use super::nodes::Nodes;
use super::output_log::OutputLog;
use super::progress::Progress;
use super::ranks::RankFailures;
use super::saving::FILE_CLOCK;
use super::signals::Signals;
use super::terminal::next_chunk;
use crate::config::command::SaveSignal;
use crate::log_metrics::{OutputReader, Reading};
use crate::process_tree::{Family, Process, end_all};
use crate::protocol::exit::Exit;
use crate::protocol::node::StackWriter;
use crate::protocol::worker::{CommandNews, Event, FailureClass, Hello, Level, Order};
use crate::store::adopted::{AdoptError, Adopted};
use crate::store::lock::Lock;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{WaitOptions, wait};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Interval at which files, checkpoints and the clock are checked.
const TICK: Duration = Duration::from_millis(500);
/// How long to wait for the rest of the output, which a process that cannot be killed may hold open.
const DRAIN: Duration = Duration::from_millis(500);

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
    },
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
    pub(super) _holder: Option<Holder>,
    /// The command's output; none once no process has it open.
    pub(super) output: Option<mpsc::Receiver<Vec<u8>>>,
    pub(super) reader: OutputReader,
    /// Nothing was printed since the last tick.
    pub(super) paused: bool,
    /// When the newest output arrived.
    pub(super) printed: Duration,
    pub(super) output_log: OutputLog,
    pub(super) log: File,
    pub(super) files: MetricFiles,
    pub(super) checkpoints: Option<CheckpointWatch>,
    pub(super) progress: Progress,
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
    pub(super) _lock: Lock,
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
                    Some(bytes) => self.take_output(&bytes),
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

    pub(super) fn take_output(&mut self, bytes: &[u8]) {
        self.activity.printed();
        self.paused = false;
        let mut log = Vec::new();
        self.output_log.push(bytes, Instant::now(), &mut log);
        self.write_log(&log);
        let readings = self.reader.read(bytes, self.progress.is_told());
        let before = std::mem::replace(&mut self.printed, self.began.elapsed());
        // A bar is complete once the next one is drawn over it.
        let ends_earlier = matches!(bytes.first(), Some(b'\r' | b'\n'));
        if let Some(step) = self.reader.step() {
            self.progress.trail.record(step, if ends_earlier { before } else { self.printed });
        }
        self.take_readings(&readings);
    }

    /// Writes to worker.log. On a full disk the command goes on without it.
    fn write_log(&mut self, text: &[u8]) {
        let _ = self.log.write_all(text);
    }

    fn take_readings(&mut self, readings: &[Reading]) {
        let now = self.began.elapsed();
        self.progress.time_steps(readings, now);
        for reading in readings {
            let reading = &*self.notice_steps_in_output(reading);
            let total = self.progress.total;
            let events = self.progress.take(reading, now);
            self.progress.trail.record(self.progress.step, now);
            if self.progress.total != total {
                self.send_length();
            }
            for event in events {
                self.send(&event);
            }
        }
    }

    /// Sends an event about the training, and ends a command whose loss stays NaN.
    pub(super) fn send(&mut self, event: &Event) {
        self.record_for_container(event);
        self.link.send(event);
        if self.progress.nan_in_a_row >= self.args.skips_in_a_row && !matches!(self.life, Life::Ending { .. }) {
            self.end(Reason::Broken(self.broken_by_nan()));
        }
    }

    fn handle_keeper(&mut self, message: FromKeeper) {
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
        let saves = self.args.spec.save.as_ref().map(SaveSignal::limit).filter(|_| checkpoint);
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
        self.life = Life::Ending { reason, hurry: Arc::clone(&hurry), done };
        if done {
            return;
        }
        std::thread::spawn(move || {
            let left = end_all(&family, command.as_ref(), grace, Some(hurry.as_fd()));
            let _ = reports.send(Report::Ended(left));
        });
    }

    fn take_report(&mut self, report: Report) {
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

    fn tick(&mut self) {
        let now = Instant::now();
        let (mut log, mut readings, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        self.output_log.tick(now, &mut log);
        self.write_log(&log);
        if std::mem::replace(&mut self.paused, true) {
            self.reader.flush(&mut readings);
        }
        self.files.poll(&mut readings, &mut notes);
        self.take_readings(&readings);
        self.read_foreign();
        for text in notes {
            self.link.send(&Event::Note { level: Level::Warn, text });
        }
        if let Some(event) = self.progress.tick(self.began.elapsed()) {
            self.send(&event);
        }
        if matches!(self.life, Life::Running) && self.activity.look(&self.family, now) {
            self.link.send_unkept(&Event::Command { news: CommandNews::Active });
        }
        self.look_for_checkpoint(Moment::Alive);
        self.tick_companion();
        self.tick_ranks();
        self.tick_nodes();
        if matches!(self.life, Life::Saving { until, .. } if now >= until) {
            self.give_up_stop();
        }
    }

    /// Handles what the companion sent before its processes ended, and publishes what it saved.
    async fn drain_companion(&mut self) {
        while self.companion.is_connected() {
            let Ok(message) = timeout(DRAIN, self.companion.receive()).await else { break };
            self.handle_companion(message);
        }
        while self.is_saving() {
            let Some(report) = self.reported.recv().await else { return };
            self.take_report(report);
        }
    }

    /// Reports the end, to this keeper or to the next one. Returns the exit code.
    async fn finish(&mut self) -> u8 {
        while let Ok(Some(bytes)) = timeout(DRAIN, next_chunk(&mut self.output)).await {
            self.take_output(&bytes);
        }
        self.read_foreign();
        self.drain_companion().await;
        let (mut log, mut readings) = (Vec::new(), Vec::new());
        self.output_log.finish(&mut log);
        self.write_log(&log);
        std::mem::replace(&mut self.reader, OutputReader::new(&[])).finish(&mut readings);
        self.files.poll(&mut readings, &mut Vec::new());
        self.take_readings(&readings);
        if let Some(event) = self.progress.flush() {
            self.link.send(&event);
        }
        let Some(reason) = self.reason_of_end() else { return FailureClass::Unknown.exit_code() };
        let cause = self.ranks.cause();
        // The keeper looks for the process in the logs of this node.
        let of_rank = cause.exit.map(|(process, exit)| (process.here().unwrap_or(self.command.pid), exit));
        let own = || (self.command.pid, self.nodes.end_of_command(self.exit.unwrap_or_default()));
        let (pid, exit) = of_rank.filter(|_| reason.is_failure_of_command()).unwrap_or_else(own);
        let (events, code) = conclude(&reason, pid, exit, &self.progress, cause.failed);
        if (code != 0 || self.args.spec.checkpoints.is_some()) && !matches!(reason, Reason::Asked | Reason::Signalled) {
            self.note_undeclared_checkpoints();
        }
        for event in &events {
            self.link.send(event);
        }
        while !self.link.finish().await && !self.args.purpose.is_temporary() {
            // The end of the run is kept for the next keeper.
            tokio::select! {
                message = self.link.receive() => self.handle_keeper(message),
                () = Signals::asked_to_end(&mut self.signals.terminate, &mut self.signals.interrupt) => break,
            }
        }
        code
    }
}

fn wake(hurry: &OwnedFd) {
    let _ = rustix::io::write(hurry, &1_u64.to_ne_bytes());
}
