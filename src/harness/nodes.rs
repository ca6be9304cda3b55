//! The other nodes of the run: each runs its part of the command, and all of them live and end together.
//!
//! ```text
//! node 1: Started ─▶ Looked, Looked, … ─▶ Exited ─▶ Ended
//!             └─ its step ends, or its command fails: every node is ended, and the attempt has failed
//! ```

use super::companion_socket::News;
use super::ending::Reason;
use super::job_nodes::JobNodes;
use super::node_link::{FromNode, NodeLink};
use super::node_pid::Node;
use super::run_loop::{Harness, Life, Report};
use super::stacks::StackWriters;
use super::{HarnessError, stderr_file};
use crate::process_tree::Grace;
use crate::protocol::companion::Setup;
use crate::protocol::exit::Exit;
use crate::protocol::node::{EndWithin, NodeEvent, NodeOrder, NodeStart};
use crate::protocol::worker::{Event, Failed, FailureClass, Level};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Messages of nodes that wait for the harness.
const QUEUE: usize = 1024;
/// Longest time for a step to start a command.
const START: Duration = Duration::from_mins(3);
/// Time without an answer after which a node is named.
const SILENT: Duration = Duration::from_secs(30);
/// Longest time for a node to report its end: a process that cannot be killed takes 30 s there.
const END: Duration = Duration::from_secs(35);
/// Time for the commands of other nodes to end after that of the first one has.
const FOLLOW: Duration = Duration::from_secs(10);
/// Time for the ranks of other nodes to report why the command of a node failed.
const REPORTS: Duration = Duration::from_millis(400);

/// The other nodes.
#[derive(Debug)]
pub struct Nodes {
    names: JobNodes,
    others: Vec<OtherNode>,
    events: mpsc::Receiver<(Node, FromNode)>,
    /// The exit of the command on the node where it failed before any other.
    failed_first: Option<Exit>,
    /// When they were told to end.
    ending: Option<Instant>,
}

/// The phase of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its step starts.
    Starting,
    /// Its command runs.
    Running,
    /// None of its processes is left, or nothing more can be known of it.
    Over,
}

#[derive(Debug)]
struct OtherNode {
    node: Node,
    name: String,
    link: NodeLink,
    phase: Phase,
    /// How its command ended on its own.
    exit: Option<Exit>,
    heard: Instant,
    /// Its silence was reported.
    is_silent: bool,
}

impl Nodes {
    /// Starts a step on each of the other nodes. `start` returns the start of a node, by its number.
    ///
    /// # Errors
    /// Returns an error when a step cannot be started.
    pub(super) fn start(
        names: &JobNodes,
        token: &str,
        companions: Option<&News>,
        start: impl Fn(u32) -> NodeStart,
    ) -> Result<Self, HarnessError> {
        let (sender, events) = mpsc::channel(QUEUE);
        let mut nodes = Self { names: names.clone(), others: Vec::new(), events, failed_first: None, ending: None };
        for (number, name) in names.others() {
            let log = stderr_file().map_err(HarnessError::of("worker.log"))?;
            let link = NodeLink::start((Node(number), name), token, log, companions.cloned(), sender.clone());
            let link = link.map_err(|source| HarnessError::Node { name: name.to_owned(), source })?;
            link.send(&NodeOrder::Begin(Box::new(start(number))));
            nodes.others.push(OtherNode {
                node: Node(number),
                name: name.to_owned(),
                link,
                phase: Phase::Starting,
                exit: None,
                heard: Instant::now(),
                is_silent: false,
            });
        }
        Ok(nodes)
    }

    /// Returns the nodes of a run on this machine alone: there are no others.
    pub fn none() -> Self {
        let events = mpsc::channel(1).1;
        Self { names: JobNodes::alone(), others: Vec::new(), events, failed_first: None, ending: None }
    }

    /// Reports whether the run has this node alone.
    pub fn is_none(&self) -> bool {
        self.others.is_empty()
    }

    /// Waits for a message.
    pub async fn receive(&mut self) -> (Node, FromNode) {
        match self.events.recv().await {
            Some(message) if !self.others.is_empty() => message,
            _ => std::future::pending().await,
        }
    }

    /// Returns ` on NAME`, or nothing for a run on one node.
    pub fn describe(&self, node: Node) -> String {
        let other = self.others.iter().find(|other| other.node == node);
        match other {
            Some(other) => format!(" on {}", other.name),
            None if self.is_none() => String::new(),
            None => format!(" on {}", self.names.head()),
        }
    }

    /// Reports whether no process of the command is left on the other nodes.
    pub fn are_over(&self) -> bool {
        self.others.iter().all(|other| other.phase == Phase::Over)
    }

    /// Returns the end of the command: that of the node that failed first, that of this one, or of another that failed.
    pub fn end_of_command(&self, here: Exit) -> Exit {
        let has_failed = |exit: &Exit| exit.code != Some(0);
        let elsewhere = || self.others.iter().filter_map(|other| other.exit).find(has_failed);
        self.failed_first.or_else(|| Some(here).filter(has_failed)).or_else(elsewhere).unwrap_or(here)
    }

    /// Sends all nodes the setup of the companions.
    pub fn send_setup(&self, setup: &Setup) {
        self.send(&NodeOrder::Setup(Box::new(setup.clone())));
    }

    /// Sends all nodes the signal on which the script saves.
    pub fn ask_to_save(&self, signal: i32) {
        self.send(&NodeOrder::Save { signal });
    }

    /// Asks the processes on other nodes for their stacks.
    pub fn ask_for_stacks(&self, stacks: &StackWriters) {
        for other in &self.others {
            let writers = stacks.on(other.node);
            if !writers.is_empty() {
                other.link.send(&NodeOrder::Stacks { writers });
            }
        }
    }

    /// Ends the command on all nodes. `follows`: it may still end on its own, as it did on the first one.
    pub fn end(&mut self, grace: Grace, follows: bool) {
        self.ending.get_or_insert_with(Instant::now);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let alone_ms = if follows { ms(FOLLOW) } else { 0 };
        self.send(&NodeOrder::End(EndWithin { alone_ms, command_ms: ms(grace.command), others_ms: ms(grace.others) }));
    }

    /// Ends the grace periods.
    pub fn hurry(&mut self) {
        self.send(&NodeOrder::End(EndWithin { alone_ms: 0, command_ms: 0, others_ms: 0 }));
    }

    fn send(&self, order: &NodeOrder) {
        for other in self.others.iter().filter(|other| other.phase != Phase::Over) {
            other.link.send(order);
        }
    }

    fn other(&mut self, node: Node) -> Option<&mut OtherNode> {
        self.others.iter_mut().find(|other| other.node == node)
    }
}

impl Harness {
    /// Handles a message of another node.
    pub(super) fn handle_node(&mut self, node: Node, message: FromNode) {
        let Some(other) = self.nodes.other(node) else { return };
        other.heard = Instant::now();
        let name = other.name.clone();
        match message {
            FromNode::Event(NodeEvent::Started) => other.phase = Phase::Running,
            FromNode::Event(NodeEvent::Refused { message }) => {
                other.phase = Phase::Over;
                self.fail_node(format!("the command does not start on node {name}: {message}"), FailureClass::Config);
            }
            FromNode::Event(NodeEvent::Looked { active, ranks }) => {
                other.is_silent = false;
                if active {
                    self.activity.printed();
                }
                self.companion.ranks.take_readings(node, ranks);
            }
            FromNode::Event(NodeEvent::Stacks { written }) => self.report_stacks(written),
            FromNode::Event(NodeEvent::Exited { code, signal }) => self.record_node_exit(node, code, signal),
            FromNode::Event(NodeEvent::Ended { left }) => {
                other.phase = Phase::Over;
                for pid in left {
                    let text = format!("process {pid} of the command on node {name} cannot be killed");
                    self.link.send(&Event::Note { level: Level::Error, text });
                }
                if !matches!(self.life, Life::Ending { .. }) {
                    self.fail_node(format!("the command was ended on node {name}"), FailureClass::Collective);
                }
            }
            FromNode::Gone if other.phase == Phase::Over => {}
            FromNode::Gone => {
                other.phase = Phase::Over;
                let text = format!("node {name} is lost: its job step has ended");
                self.fail_node(text, FailureClass::Collective);
            }
            // Relayed with the connection that it belongs to.
            FromNode::Event(NodeEvent::Companion { .. }) => {}
        }
    }

    /// Ends the command because a node is missing. When it ends anyway, that is only noted.
    fn fail_node(&mut self, message: String, class: FailureClass) {
        match &self.life {
            Life::Ending { .. } => self.warn(message),
            Life::Running | Life::Saving { .. } => {
                self.end(Reason::Broken(Failed { class, message, step: None, thread: None, injected: false }));
            }
        }
    }

    /// Records that the command of a node has exited on its own. Its ranks may still tell why.
    fn record_node_exit(&mut self, node: Node, code: Option<i32>, signal: Option<i32>) {
        let is_asked = matches!(self.life, Life::Saving { .. }) || self.companion.is_stopping();
        let Some(other) = self.nodes.other(node) else { return };
        let exit = Exit::of_command(code, signal);
        other.exit = Some(exit);
        if code == Some(0) || is_asked || !matches!(self.life, Life::Running) {
            return;
        }
        let text = format!("the command ended on node {}: {exit}; it is ended on all nodes", other.name);
        self.nodes.failed_first.get_or_insert(exit);
        self.link.send(&Event::Note { level: Level::Error, text });
        let reports = self.reports.clone();
        std::thread::spawn(move || {
            std::thread::sleep(REPORTS);
            let _ = reports.send(Report::NodeFailed);
        });
    }

    /// Looks at the other nodes: at their ranks, and whether they answer.
    pub(super) fn tick_nodes(&mut self) {
        if matches!(self.life, Life::Ending { .. }) {
            return self.give_up_nodes();
        }
        let (mut silent, mut failed) = (Vec::new(), None);
        for other in &mut self.nodes.others {
            let since = other.heard.elapsed();
            match other.phase {
                Phase::Starting if since >= START => {
                    let limit = START.as_secs();
                    failed = Some(format!("node {} has not started the command within {limit} s", other.name));
                }
                Phase::Running => {
                    if since >= SILENT && !std::mem::replace(&mut other.is_silent, true) {
                        silent.push(format!("node {} has not answered for {} s", other.name, SILENT.as_secs()));
                    }
                    let ranks = self.companion.ranks.watched_on(other.node);
                    if !other.link.send(&NodeOrder::Look { ranks }) && since >= SILENT {
                        failed = Some(format!("node {} is lost: it takes no more orders", other.name));
                    }
                }
                Phase::Starting | Phase::Over => {}
            }
        }
        for text in silent {
            self.warn(text);
        }
        if let Some(message) = failed {
            self.fail_node(message, FailureClass::Collective);
        }
    }

    /// Gives up nodes that do not report their end.
    fn give_up_nodes(&mut self) {
        if self.nodes.ending.is_none_or(|since| since.elapsed() < END) {
            return;
        }
        let lost: Vec<&mut OtherNode> =
            self.nodes.others.iter_mut().filter(|other| other.phase != Phase::Over).collect();
        let mut texts = Vec::new();
        for other in lost {
            other.link.kill();
            other.phase = Phase::Over;
            texts.push(format!("node {} does not report that the command has ended there", other.name));
        }
        for text in texts {
            self.link.send(&Event::Note { level: Level::Error, text });
        }
    }
}
