//! `node-command`: the part of a command on another node of the job, for a harness on the first one.
//!
//! ```text
//! harness ── srun: stdin, stdout ──▶ node-command ──▶ terminal ──▶ torchrun ─▶ ranks of this node
//!                                      │  ▲ socket of the companions: relayed line by line
//!                                      │  └ files and processes of the ranks: read when the harness looks
//!                                      └ guard: ends the processes if node-command is killed
//! ```
//! It decides nothing. It ends what an earlier attempt left there before the harness chooses a checkpoint, and starts the
//! command only once all nodes have done so. When its stdin ends, the harness is gone, and every process of the command is
//! ended at once.

use super::activity::Activity;
use super::companion_socket::Incoming;
use super::holder::Holder;
use super::launch;
use super::node_claim::{ClaimedNode, refuse, wait_for_start};
use super::node_companions::{Companions, next_news};
use super::node_guard::{Claim, Guard};
use super::node_pid::PeerId;
use super::node_wire::{Outbox, read_orders};
use super::output_log::OutputLog;
use super::rank_files::{RankFile, Record, STANDS, helpers_cpu_s, stands_for};
use super::save_signal::ask_to_save;
use super::signals::Signals;
use super::stacks::ask_for_stacks;
use super::stderr_file;
use super::terminal::{Chunk, next_chunk, read_output};
use crate::config::command::CommandLaunch;
use crate::process_tree::{Family, Grace, Process, end_all, scan};
use crate::protocol::node::{
    ConnectionNews, EndWithin, NodeEvent, NodeOrder, NodeStart, RankReading, Refused, StackWriter, WatchedRank,
};
use crate::untrusted::thread::run_beside;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Signal, WaitOptions, getpid, set_child_subreaper, wait};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{sleep_until, timeout};

/// How long to wait for the last lines of companions and output.
const DRAIN: Duration = Duration::from_millis(500);
/// Longest time for a process to end after SIGKILL.
const KILL: Duration = Duration::from_secs(30);
/// Times of a command that is killed.
const NONE: EndWithin = EndWithin { alone_ms: 0, command_ms: 0, others_ms: 0 };
/// Times of a command whose job step is told to end.
const SIGNALLED: EndWithin = EndWithin { alone_ms: 0, command_ms: 1500, others_ms: 500 };
/// Exit code for a harness that sends no start.
const NO_START: u8 = 2;
/// Exit code for a command that was not started.
const REFUSED: u8 = 1;

/// The phase of the command's life on this node.
enum Life {
    Running,
    /// It has until then to end on its own.
    Leaving(tokio::time::Instant, EndWithin),
    /// Its processes are being ended; a write to the handle ends the grace periods.
    Ending(Arc<OwnedFd>),
}

/// A report from a thread.
enum Report {
    Ended(Vec<Process>),
    Stacks(Vec<StackWriter>),
}

struct NodeHost {
    node: u32,
    /// The orders; none once the harness is gone.
    orders: Option<mpsc::Receiver<NodeOrder>>,
    outbox: Outbox,
    command: Process,
    family: Family,
    /// The command has exited.
    exited: bool,
    life: Life,
    companions: Option<Companions>,
    files: BTreeMap<u32, RankFile>,
    output: Option<mpsc::Receiver<Chunk>>,
    output_log: OutputLog,
    activity: Activity,
    reports: mpsc::UnboundedSender<Report>,
    reported: mpsc::UnboundedReceiver<Report>,
    _holder: Holder,
    _guard: Guard,
    _claim: Claim,
}

/// Runs the part of a command on this node. Returns the exit code.
#[must_use]
pub fn host_command() -> u8 {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return REFUSED };
    let code = runtime.block_on(async {
        let (outbox, writer) = Outbox::open();
        let code = host(outbox).await;
        let _ = timeout(DRAIN, tokio::task::spawn_blocking(move || writer.join())).await;
        code
    });
    runtime.shutdown_background();
    code
}

async fn host(outbox: Outbox) -> u8 {
    let mut orders = read_orders();
    let Some(NodeOrder::Claim(claim)) = orders.recv().await else { return NO_START };
    let Ok(mut signals) = Signals::listen() else { return REFUSED };
    let begun = match ClaimedNode::take(*claim) {
        Ok(node) => {
            outbox.event(&NodeEvent::Ready).await;
            let Some(start) = wait_for_start(&mut orders, &mut signals).await else { return NO_START };
            NodeHost::begin(node, start, orders, outbox.clone())
        }
        Err(reason) => Err(reason),
    };
    match begun {
        Ok(mut host) => {
            outbox.event(&NodeEvent::Started).await;
            host.run_to_the_end(&mut signals).await;
            0
        }
        Err(reason) => {
            outbox.event(&NodeEvent::Refused { reason }).await;
            REFUSED
        }
    }
}

impl NodeHost {
    fn begin(
        claimed: ClaimedNode,
        start: NodeStart,
        orders: mpsc::Receiver<NodeOrder>,
        outbox: Outbox,
    ) -> Result<Self, Refused> {
        set_child_subreaper(Some(getpid())).map_err(|error| refuse("orphaned processes")(error.into()))?;
        let ClaimedNode { node, token, socket, claim } = claimed;
        let guard = Guard::start(&token).map_err(refuse("the guard"))?;
        let NodeStart { argv, directory, environment, terminal, silence_ms, setup } = start;
        let mut launch = CommandLaunch { argv, directory, environment, files: Vec::new() };
        let companions = setup.map(|setup| Companions::open(socket, node, &setup)).transpose();
        let companions = companions.map_err(refuse("the companion"))?;
        if let Some(companions) = &companions {
            companions.variables().map_err(refuse("the companion"))?.add_to(&mut launch);
        }
        let log = stderr_file().map_err(refuse("worker.log"))?;
        let started = launch::start(&launch, &token, terminal, log);
        let started = started.map_err(|error| Refused::Launch(error.to_string()))?;
        let (reports, reported) = mpsc::unbounded_channel();
        let family = Family::Attempt { token, root: std::process::id() };
        Ok(Self {
            node,
            orders: Some(orders),
            outbox,
            activity: Activity::new(&family, Duration::from_millis(silence_ms), Instant::now()),
            command: started.process,
            family,
            exited: false,
            life: Life::Running,
            companions,
            files: BTreeMap::new(),
            output: Some(read_output(started.output).map_err(refuse("the reader of the output"))?),
            output_log: OutputLog::default(),
            reports,
            reported,
            _holder: started.holder,
            _guard: guard,
            _claim: claim,
        })
    }

    /// Runs until no process of the command is left.
    async fn run_to_the_end(&mut self, signals: &mut Signals) {
        loop {
            let Signals { child, terminate, interrupt, hangup } = &mut *signals;
            tokio::select! {
                order = next_order(&mut self.orders) => self.handle(order).await,
                (peer, incoming) = next_news(&mut self.companions) => self.relay(peer, incoming).await,
                chunk = next_chunk(&mut self.output) => match chunk {
                    Some(chunk) => self.take_output(&chunk.bytes).await,
                    None => self.output = None,
                },
                _ = child.recv() => self.reap().await,
                () = Signals::asked_to_end(terminate, interrupt) => self.end(SIGNALLED),
                _ = hangup.recv() => {}
                () = time_to_leave(&self.life) => {
                    self.outbox.event(&NodeEvent::CutOff).await;
                    self.end_processes();
                }
                Some(report) = self.reported.recv() => match report {
                    Report::Stacks(written) => self.outbox.event(&NodeEvent::Stacks { written }).await,
                    Report::Ended(left) => return self.finish(left).await,
                },
            }
        }
    }

    async fn handle(&mut self, order: Option<NodeOrder>) {
        let Some(order) = order else {
            self.orders = None;
            return self.end_now();
        };
        match order {
            NodeOrder::Claim(_) | NodeOrder::Begin(_) => {}
            NodeOrder::Setup(setup) => {
                if let Some(companions) = &self.companions
                    && let Err(error) = companions.write_setup(self.node, &setup)
                {
                    super::complain(&format!("the companions' setup cannot be written: {error}"));
                }
            }
            NodeOrder::Companion { connection, line } => {
                let peer = self.companions.as_ref().and_then(|companions| companions.peers.get(&connection));
                if let Some(peer) = peer {
                    let _ = peer.try_send(line);
                }
            }
            NodeOrder::Look { ranks } => self.look(&ranks).await,
            NodeOrder::Stacks { writers } => {
                let (family, reports) = (self.family.clone(), self.reports.clone());
                run_beside("stacks", move || drop(reports.send(Report::Stacks(ask_for_stacks(&writers, &family)))));
            }
            NodeOrder::Save { signal } => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    let all = scan();
                    let _ = ask_to_save(&self.family.among(&all), signal);
                }
            }
            NodeOrder::End(within) => self.end(within),
            NodeOrder::EndNow => {
                if matches!(self.life, Life::Leaving(..)) {
                    self.outbox.event(&NodeEvent::CutOff).await;
                }
                self.end_now();
            }
        }
    }

    /// Reports what the command does, and where its ranks stand.
    async fn look(&mut self, watched: &[WatchedRank]) {
        let now = Instant::now();
        let mut log = Vec::new();
        self.output_log.tick(now, &mut log);
        self.outbox.log(log).await;
        let active = self.activity.look(&self.family, now);
        let ranks = self.read_ranks(watched);
        self.outbox.event(&NodeEvent::Looked { active, ranks }).await;
    }

    fn read_ranks(&mut self, watched: &[WatchedRank]) -> Vec<RankReading> {
        let Some(companions) = &self.companions else { return Vec::new() };
        self.files.retain(|pid, _| watched.iter().any(|rank| rank.pid == *pid));
        for WatchedRank { pid, file } in watched {
            if !self.files.contains_key(pid) {
                self.files.extend(RankFile::named(file, &companions.socket).map(|file| (*pid, file)));
            }
        }
        let mut readings: Vec<RankReading> = self.files.iter().filter_map(|(pid, file)| file.read(*pid)).collect();
        let stands = |reading: &RankReading| {
            Record::parse(&reading.record).is_some_and(|record| stands_for(reading, &record) >= STANDS)
        };
        if readings.iter().any(stands) {
            let all = scan();
            for reading in readings.iter_mut().filter(|reading| stands(reading)) {
                reading.helpers_cpu_s = Some(helpers_cpu_s(reading.pid, &all));
            }
        }
        readings
    }

    async fn relay(&mut self, peer: PeerId, incoming: Incoming) {
        let Some(companions) = &mut self.companions else { return };
        let connection = peer.connection;
        let news = match incoming {
            Incoming::Connected(lines) => {
                companions.peers.insert(connection, lines);
                ConnectionNews::Connected
            }
            Incoming::Line(text) => ConnectionNews::Line(text),
            Incoming::HalfLine => ConnectionNews::HalfLine,
            Incoming::Gone => {
                companions.peers.remove(&connection);
                ConnectionNews::Gone
            }
            Incoming::Ended(None) => ConnectionNews::Remains,
            Incoming::Ended(Some(ended)) => ConnectionNews::Ended { code: ended.code, signal: ended.signal },
        };
        self.outbox.event(&NodeEvent::Companion { connection, news }).await;
    }

    async fn take_output(&mut self, bytes: &[u8]) {
        self.activity.printed();
        let mut log = Vec::new();
        self.output_log.push(bytes, Instant::now(), &mut log);
        self.outbox.log(log).await;
    }

    async fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid.as_raw_nonzero().get().unsigned_abs() != self.command.pid {
                continue;
            }
            self.exited = true;
            if matches!(self.life, Life::Ending(_)) {
                continue;
            }
            let (code, signal) = (status.exit_status(), status.terminating_signal());
            self.outbox.event(&NodeEvent::Exited { code, signal }).await;
            if matches!(self.life, Life::Leaving(..)) {
                self.end_processes();
            }
        }
    }

    /// Ends the command without a grace period.
    fn end_now(&mut self) {
        if let Life::Ending(hurry) = &self.life {
            let _ = rustix::io::write(hurry, &1_u64.to_ne_bytes());
        } else {
            self.end(NONE);
        }
    }

    /// Begins to end the command, or changes the time that it has to end on its own.
    fn end(&mut self, within: EndWithin) {
        match &self.life {
            Life::Ending(_) => {}
            Life::Running | Life::Leaving(..) => {
                let until = tokio::time::Instant::now() + Duration::from_millis(within.alone_ms);
                self.life = Life::Leaving(until, within);
                if self.exited || within.alone_ms == 0 {
                    self.end_processes();
                }
            }
        }
    }

    fn end_processes(&mut self) {
        let Life::Leaving(_, within) = self.life else { return };
        let Ok(hurry) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new) else { return };
        self.life = Life::Ending(Arc::clone(&hurry));
        let ms = Duration::from_millis;
        let grace = Grace { command: ms(within.command_ms), others: ms(within.others_ms), kill: KILL };
        let command = (!self.exited).then(|| self.command.clone());
        let (family, reports) = (self.family.clone(), self.reports.clone());
        run_beside("end", move || {
            let left = end_all(&family, command.as_ref(), grace, Some(hurry.as_fd()));
            let _ = reports.send(Report::Ended(left));
        });
    }

    /// Passes on what is left to say, and reports the end.
    async fn finish(&mut self, left: Vec<Process>) {
        while let Ok(Some(chunk)) = timeout(DRAIN, next_chunk(&mut self.output)).await {
            self.take_output(&chunk.bytes).await;
        }
        let mut log = Vec::new();
        std::mem::take(&mut self.output_log).finish(&mut log);
        self.outbox.log(log).await;
        while self.companions.as_ref().is_some_and(Companions::has_news) {
            let Ok((peer, incoming)) = timeout(DRAIN, next_news(&mut self.companions)).await else { break };
            self.relay(peer, incoming).await;
        }
        let left = left.into_iter().map(|process| process.pid).collect();
        self.outbox.event(&NodeEvent::Ended { left }).await;
    }
}

/// Waits for an order. Returns none when the harness is gone.
async fn next_order(orders: &mut Option<mpsc::Receiver<NodeOrder>>) -> Option<NodeOrder> {
    match orders {
        Some(orders) => orders.recv().await,
        None => std::future::pending().await,
    }
}

/// Waits until the command had its time to end on its own.
async fn time_to_leave(life: &Life) {
    match life {
        Life::Leaving(until, _) => sleep_until(*until).await,
        Life::Running | Life::Ending(_) => std::future::pending().await,
    }
}
