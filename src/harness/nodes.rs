//! The other nodes of the run: each runs its part of the command, and all of them live and end together.
//!
//! ```text
//! node 1: Claim ─▶ Ready ═╗                  ╔═▶ Begin ─▶ Started ─▶ Looked, Looked, … ─▶ Exited ─▶ Ended
//! node 2: Claim ─▶ Ready ═╩═ checkpoint, ════╩═▶ Begin ─▶ …  └─ its step ends, or its command fails: every node is ended,
//!                            command here                       and the attempt has failed
//! ```

use super::HarnessError;
use super::companion_socket::News;
use super::ending::Reason;
use super::job_nodes::JobNodes;
use super::node_failure::{NodeFailure, START};
use super::node_link::{FromNode, NodeLink, kill_steps};
use super::node_pid::Node;
use super::node_state::{FOLLOW, NodeState, Phase, end_limit, end_of_command};
use super::stacks::StackWriters;
use super::stderr_file;
use crate::process_tree::Grace;
use crate::protocol::companion::Setup;
use crate::protocol::exit::Exit;
use crate::protocol::node::{EndWithin, NodeClaim, NodeEvent, NodeOrder, NodeStart};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::timeout_at;

/// Messages of nodes that wait for the harness.
const QUEUE: usize = 1024;

/// The other nodes.
#[derive(Debug)]
pub struct Nodes {
    names: JobNodes,
    pub(super) others: Vec<OtherNode>,
    events: mpsc::Receiver<(Node, FromNode)>,
    /// The exit of the command on the node where it failed before any other.
    pub(super) failed_first: Option<Exit>,
    /// Why the command ends, unless a node turns out to be lost.
    pub(super) failing: Option<Reason>,
    /// A node that was lost while the command ended: the others may have failed because of it.
    pub(super) lost: Option<NodeFailure>,
    /// When nodes that have not reported their end are given up.
    pub(super) until: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct OtherNode {
    pub(super) node: Node,
    pub(super) name: String,
    pub(super) link: NodeLink,
    pub(super) state: NodeState,
    /// It was reported that it takes no orders.
    pub(super) is_deaf: bool,
}

impl Nodes {
    /// Starts a step on each of the other nodes, and waits until nothing of an earlier attempt is left on any of them. `claim`
    /// returns the claim on a node, by its number. News of companions go into `companions`.
    ///
    /// # Errors
    /// Returns an error when a step cannot be started, or a node does not become ready.
    pub(super) async fn claim(
        names: &JobNodes,
        token: &str,
        companions: &News,
        claim: impl Fn(u32) -> NodeClaim,
    ) -> Result<Self, HarnessError> {
        let (sender, events) = mpsc::channel(QUEUE);
        let mut nodes = Self { names: names.clone(), events, ..Self::none() };
        for (number, name) in names.others() {
            let log = stderr_file().map_err(HarnessError::of("worker.log"))?;
            let link = NodeLink::start((Node(number), name), token, log, companions.clone(), sender.clone());
            let link = link.map_err(|source| HarnessError::Node { name: name.to_owned(), source })?;
            link.send(&NodeOrder::Claim(Box::new(claim(number))));
            let (node, name, state) = (Node(number), name.to_owned(), NodeState::new(Instant::now()));
            nodes.others.push(OtherNode { node, name, link, state, is_deaf: false });
        }
        nodes.wait_until_ready().await?;
        Ok(nodes)
    }

    async fn wait_until_ready(&mut self) -> Result<(), NodeFailure> {
        let until = tokio::time::Instant::now() + START;
        while let Some(waiting) = self.others.iter().find(|other| other.state.phase == Phase::Claiming) {
            let name = waiting.name.clone();
            let Ok((node, message)) = timeout_at(until, self.receive()).await else {
                return Err(NodeFailure::TooSlow { name });
            };
            let Some(other) = self.other(node) else { continue };
            let name = other.name.clone();
            match message {
                FromNode::Event(NodeEvent::Ready) => other.state.phase = Phase::Ready,
                FromNode::Event(NodeEvent::Refused { reason }) => return Err(NodeFailure::refused(name, reason)),
                FromNode::Gone if other.state.phase == Phase::Claiming => {
                    return Err(NodeFailure::not_started(name, other.link.exit_code()));
                }
                FromNode::Gone => return Err(NodeFailure::Lost { name }),
                FromNode::Event(_) | FromNode::Deaf => {}
            }
        }
        Ok(())
    }

    /// Kills what is left on this node of the steps of an earlier attempt.
    pub fn kill_steps_of(&self, token: &str) {
        kill_steps(token, self.others.iter().map(|other| other.node));
    }

    /// Starts the command on the other nodes. `start` returns the start on a node, by its number.
    pub fn begin(&mut self, start: impl Fn(u32) -> NodeStart) {
        for other in &mut self.others {
            other.link.send(&NodeOrder::Begin(Box::new(start(other.node.0))));
            (other.state.phase, other.state.heard) = (Phase::Starting, Instant::now());
        }
    }

    /// Returns the nodes of a run on this machine alone: there are no others.
    pub fn none() -> Self {
        let (_, events) = mpsc::channel(1);
        let names = JobNodes::alone();
        Self { names, others: Vec::new(), events, failed_first: None, failing: None, lost: None, until: None }
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

    /// Returns the name of this node, the first one.
    pub fn head(&self) -> &str {
        self.names.head()
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
        self.others.iter().all(|other| other.state.phase == Phase::Over)
    }

    /// Returns the nodes that have not told how their command ended.
    pub fn unheard(&self) -> impl Iterator<Item = Node> {
        self.others.iter().filter(|other| !other.state.has_reported()).map(|other| other.node)
    }

    /// Returns the end of the command on all nodes. `here` is its end on this one.
    pub fn end_of_command(&self, here: Exit) -> Exit {
        end_of_command(self.failed_first, here, self.others.iter().filter_map(|other| other.state.exit))
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
        let alone = if follows { FOLLOW } else { Duration::ZERO };
        self.until = Some(Instant::now() + end_limit(alone, grace));
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let within = EndWithin { alone_ms: ms(alone), command_ms: ms(grace.command), others_ms: ms(grace.others) };
        self.send(&NodeOrder::End(within));
    }

    /// Ends the grace periods.
    pub fn hurry(&mut self, grace: Grace) {
        self.until = Some(Instant::now() + end_limit(Duration::ZERO, grace));
        self.send(&NodeOrder::EndNow);
    }

    fn send(&self, order: &NodeOrder) {
        for other in self.others.iter().filter(|other| other.state.phase != Phase::Over) {
            other.link.send(order);
        }
    }

    pub(super) fn other(&mut self, node: Node) -> Option<&mut OtherNode> {
        self.others.iter_mut().find(|other| other.node == node)
    }
}
