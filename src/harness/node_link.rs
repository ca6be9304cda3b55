//! The connection to another node of the job: a step of Slurm that runs this program there, with the contract on its stdin and
//! stdout. Its stderr is worker.log.
//!
//! The step has a token of its own. So nothing that ends the command on this node ends the step: that learns from its stdin
//! that the harness is gone, and ends its part of the command first.

use super::companion_socket::{Incoming, News, ORDERS};
use super::node_pid::{Node, PeerId};
use crate::process_tree::{EndedBy, Family, TOKEN_VARIABLE, kill_all, wait_for_end};
use crate::protocol::line;
use crate::protocol::node::{ConnectionNews, NodeEvent, NodeOrder};
use crate::store::umask;
use crate::untrusted::thread::run_beside;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Orders that wait for a node that does not read.
const QUEUE: usize = 1024;
/// Longest line of a node: one of a companion, escaped.
const LONGEST: u64 = 1 << 23;
/// Time for a step to end after it was killed, or after it closed its output.
const KILL: Duration = Duration::from_secs(1);

/// A message from a node.
#[derive(Debug)]
pub enum FromNode {
    /// It reports something.
    Event(NodeEvent),
    /// It did not take an order.
    Deaf,
    /// Its step has ended.
    Gone,
}

/// The step on a node.
#[derive(Debug)]
pub struct NodeLink {
    node: Node,
    /// Srun.
    pid: u32,
    orders: mpsc::Sender<String>,
    events: mpsc::Sender<(Node, FromNode)>,
    /// The step's own processes on this node.
    step: Family,
}

impl NodeLink {
    /// Starts the step on a node. What companions there send goes into `companions`, everything else into `events`.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn start(
        (node, name): (Node, &str),
        token: &str,
        log: File,
        companions: News,
        events: mpsc::Sender<(Node, FromNode)>,
    ) -> io::Result<Self> {
        let token = token_of_step(token, node);
        let program = std::env::current_exe()?;
        let mut child = step_command(name)
            .arg(program)
            .arg("node-command")
            .env(TOKEN_VARIABLE, &token)
            .envs(umask::for_child())
            .stderr(log)
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take()).ok_or(io::ErrorKind::BrokenPipe)?;
        let stdin = pipe::Sender::from_owned_fd(OwnedFd::from(pipes.0))?;
        let stdout = pipe::Receiver::from_owned_fd(OwnedFd::from(pipes.1))?;
        let (orders, queue) = mpsc::channel(QUEUE);
        tokio::spawn(write_orders(stdin, queue));
        let relay =
            Relay { node, orders: orders.downgrade(), companions, open: BTreeSet::new(), leaving: BTreeSet::new() };
        tokio::spawn(read_events(stdout, relay, events.clone()));
        Ok(Self { node, pid: child.id(), orders, events, step: Family::Attempt { token, root: 0 } })
    }

    /// Sends an order.
    pub fn send(&self, order: &NodeOrder) {
        let Ok(line) = line::encode(order) else { return };
        // One whose step has ended is reported as gone.
        if let Err(TrySendError::Full(_)) = self.orders.try_send(line) {
            let _ = self.events.try_send((self.node, FromNode::Deaf));
        }
    }

    /// Returns the exit code of a step that has closed its output, unless somebody has asked for it before.
    pub fn exit_code(&self) -> Option<i32> {
        wait_for_end(self.pid, KILL)?.code
    }

    /// Kills the step, on another thread.
    pub fn kill(&self) {
        let step = self.step.clone();
        run_beside("end of a job step", move || drop(kill_all(&step, KILL)));
    }
}

/// Kills what is left of the steps of an earlier attempt on this node. The step of a node that is ready for this one has
/// ended there.
pub fn kill_steps(token: &str, nodes: impl Iterator<Item = Node>) {
    for node in nodes {
        let _ = kill_all(&Family::Attempt { token: token_of_step(token, node), root: 0 }, KILL);
    }
}

fn token_of_step(token: &str, node: Node) -> String {
    format!("{token}-step-{}", node.0)
}

/// Returns the command that starts a program on a node, with all that the job has there. Variables of the job would ask for
/// what it has on all nodes.
fn step_command(name: &str) -> Command {
    let mut command = Command::new("srun");
    command
        .args(["--overlap", "--nodes=1", "--ntasks=1", "--mpi=none", "--cpu-bind=none", "--export=ALL"])
        .arg(format!("--nodelist={name}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0);
    for name in ["SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_NODE", "SLURM_HOSTFILE"]
    {
        command.env_remove(name);
    }
    command
}

async fn write_orders(mut stdin: pipe::Sender, mut queue: mpsc::Receiver<String>) {
    while let Some(order) = queue.recv().await {
        if stdin.write_all(order.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read_events(stdout: pipe::Receiver, mut relay: Relay, events: mpsc::Sender<(Node, FromNode)>) {
    let mut reader = BufReader::new(stdout);
    let mut text = Vec::new();
    while matches!((&mut reader).take(LONGEST).read_until(b'\n', &mut text).await, Ok(count) if count > 0) {
        let line = String::from_utf8_lossy(&text).into_owned();
        text.clear();
        match line::decode::<NodeEvent>(&line) {
            Some(NodeEvent::Companion { connection, news }) => relay.pass_on(connection, news).await,
            Some(event) => {
                let _ = events.send((relay.node, FromNode::Event(event))).await;
            }
            // A profile of the node's shell may print something.
            None => super::complain(line.trim_end()),
        }
    }
    relay.close().await;
    let _ = events.send((relay.node, FromNode::Gone)).await;
}

/// Passes on what the companions of a node send, as if they were connected here.
struct Relay {
    node: Node,
    /// Only the link itself keeps the step's stdin open.
    orders: mpsc::WeakSender<String>,
    companions: News,
    open: BTreeSet<u64>,
    /// Closed connections whose processes have not been reported to end.
    leaving: BTreeSet<u64>,
}

impl Relay {
    async fn pass_on(&mut self, connection: u64, news: ConnectionNews) {
        let incoming = match news {
            ConnectionNews::Connected => {
                self.open.insert(connection);
                Incoming::Connected(self.order_queue(connection))
            }
            ConnectionNews::Line(text) => Incoming::Line(text),
            ConnectionNews::HalfLine => Incoming::HalfLine,
            ConnectionNews::Gone => {
                self.open.remove(&connection);
                self.leaving.insert(connection);
                Incoming::Gone
            }
            ConnectionNews::Ended { code, signal } => {
                self.leaving.remove(&connection);
                Incoming::Ended(Some(EndedBy { code, signal }))
            }
            ConnectionNews::Remains => {
                self.leaving.remove(&connection);
                Incoming::Ended(None)
            }
        };
        self.send(connection, incoming).await;
    }

    async fn send(&self, connection: u64, incoming: Incoming) {
        let _ = self.companions.send((PeerId { node: self.node, connection }, incoming)).await;
    }

    /// Returns a queue whose lines reach a companion.
    fn order_queue(&self, connection: u64) -> mpsc::Sender<String> {
        let (sender, mut queue) = mpsc::channel::<String>(ORDERS);
        let orders = self.orders.clone();
        tokio::spawn(async move {
            while let (Some(line), Some(orders)) = (queue.recv().await, orders.upgrade()) {
                if let Ok(order) = line::encode(&NodeOrder::Companion { connection, line }) {
                    let _ = orders.send(order).await;
                }
            }
        });
        sender
    }

    /// Closes the connections of a node that is gone.
    async fn close(&mut self) {
        for connection in std::mem::take(&mut self.open) {
            self.send(connection, Incoming::Gone).await;
            self.leaving.insert(connection);
        }
        for connection in std::mem::take(&mut self.leaving) {
            self.send(connection, Incoming::Ended(None)).await;
        }
    }
}
