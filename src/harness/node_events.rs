//! The messages of the other nodes, and their consequences for the command.

use super::ending::Reason;
use super::node_failure::NodeFailure;
use super::node_link::FromNode;
use super::node_pid::Node;
use super::node_state::{Due, Phase, SILENT};
use super::run_loop::{Harness, Life, Report};
use crate::protocol::exit::Exit;
use crate::protocol::node::{NodeEvent, NodeOrder};
use crate::protocol::worker::{CommandNews, Event, Level};
use std::time::{Duration, Instant};

/// Time for the ranks of other nodes to report why the command of a node failed.
const REPORTS: Duration = Duration::from_millis(400);
/// Time for a lost node to show. Its ranks are missing to the others at once, but its job step ends later.
const LOSS: Duration = Duration::from_millis(2500);

impl Harness {
    /// Handles a message of another node.
    pub(super) fn handle_node(&mut self, node: Node, message: FromNode) {
        let were_over = self.nodes.are_over();
        self.take_from_node(node, message);
        self.end_if_all_have_reported();
        if !were_over {
            self.look_once_over();
        }
    }

    fn take_from_node(&mut self, node: Node, message: FromNode) {
        let Some(other) = self.nodes.other(node) else { return };
        if !matches!(message, FromNode::Deaf) {
            other.state.heard = Instant::now();
        }
        let name = other.name.clone();
        match message {
            FromNode::Event(NodeEvent::Started) => other.state.phase = Phase::Running,
            FromNode::Event(NodeEvent::Refused { reason }) => {
                other.state.phase = Phase::Over;
                self.fail_node(NodeFailure::refused(name, reason));
            }
            FromNode::Event(NodeEvent::Looked { active, ranks }) => {
                other.state.answer();
                if active {
                    self.activity.printed();
                    // The clock no longer looks at the activity here.
                    if matches!(self.life, Life::Ending { .. }) {
                        self.link.send_unkept(&Event::Command { news: CommandNews::Active });
                    }
                }
                self.companion.ranks.take_readings(node, ranks);
            }
            FromNode::Event(NodeEvent::Stacks { written }) => self.report_stacks(written),
            FromNode::Event(NodeEvent::Exited { code, signal }) => {
                let exit = Exit::of_command(code, signal);
                other.state.exit = Some(exit);
                self.take_node_exit(&name, exit);
            }
            FromNode::Event(NodeEvent::CutOff) => {
                let here = self.nodes.head();
                self.warn(format!("the command on node {name} did not end after that on {here}, and is ended now"));
            }
            FromNode::Event(NodeEvent::Ended { left }) => {
                other.state.phase = Phase::Over;
                for pid in left {
                    let text = format!("process {pid} of the command on node {name} cannot be killed");
                    self.link.send(&Event::Note { level: Level::Error, text });
                }
                if !matches!(self.life, Life::Ending { .. }) {
                    self.fail_node(NodeFailure::Ended { name });
                }
            }
            FromNode::Gone if other.state.phase == Phase::Over => {}
            FromNode::Gone => {
                other.state.phase = Phase::Over;
                let has_finished = other.state.exit.is_some_and(|exit| exit.code == Some(0));
                let failure = NodeFailure::Lost { name };
                if has_finished && matches!(self.life, Life::Ending { .. }) {
                    return self.warn(failure.to_string());
                }
                self.fail_node(failure);
            }
            FromNode::Deaf => {
                if !std::mem::replace(&mut other.is_deaf, true) {
                    self.warn(format!("node {name} does not read its orders; some were not sent"));
                }
            }
            // Relayed with the connection that it belongs to, or said before the command begins.
            FromNode::Event(NodeEvent::Companion { .. } | NodeEvent::Ready) => {}
        }
    }

    /// Ends the command because of a node. A node that is lost while the command ends may be why the others failed.
    fn fail_node(&mut self, failure: NodeFailure) {
        match &self.life {
            Life::Ending { reason, .. } if reason.is_failure_of_command() && !self.ranks.has_own_cause() => {
                self.nodes.lost.get_or_insert(failure);
            }
            Life::Ending { .. } => self.warn(failure.to_string()),
            Life::Running | Life::Saving { .. } => self.end(Reason::Broken(failure.to_failed())),
        }
    }

    /// Takes the exit of the command of a node. Its ranks may still tell why.
    fn take_node_exit(&mut self, name: &str, exit: Exit) {
        let is_asked = matches!(self.life, Life::Saving { .. }) || self.companion.is_stopping();
        // A command that failed here first is the cause, and this a consequence.
        if exit.code == Some(0) || is_asked || self.exit.is_some() || !matches!(self.life, Life::Running) {
            return;
        }
        let text = format!("the command ended on node {name}: {exit}; it is ended on all nodes");
        self.nodes.failed_first.get_or_insert(exit);
        self.link.send(&Event::Note { level: Level::Error, text });
        self.report_after(REPORTS, Report::NodeFailed);
    }

    /// Ends the command because a part of it failed. Where that may follow from a lost node, the node has a moment to show.
    pub(super) fn end_as_failed(&mut self, reason: Reason) {
        if !matches!(self.life, Life::Running) || self.knows_cause() {
            return self.end_settled(reason);
        }
        if self.nodes.failing.is_some() {
            return;
        }
        self.nodes.failing = Some(reason);
        self.report_after(LOSS, Report::Settled);
    }

    /// Sets a limit to a wait for reports of other nodes: this one follows at the latest.
    fn report_after(&self, limit: Duration, report: Report) {
        let reports = self.reports.clone();
        tokio::spawn(async move {
            tokio::time::sleep(limit).await;
            let _ = reports.send(report);
        });
    }

    /// Reports whether no lost node can be why a rank or the command failed: it has a cause of its own, or every node has
    /// said how its part ended.
    pub(super) fn knows_cause(&self) -> bool {
        self.ranks.has_own_cause() || self.nodes.unheard().all(|node| self.ranks.have_failed_on(node))
    }

    /// Ends the command if it waits for nodes that have all reported by now.
    pub(super) fn end_if_all_have_reported(&mut self) {
        if self.nodes.failing.is_some() && self.knows_cause() {
            self.end_failing();
        }
    }

    /// Ends the command for the reason that was found first.
    pub(super) fn end_failing(&mut self) {
        // A stop that came meanwhile waits for a save that nobody makes.
        if let Some(reason) = self.nodes.failing.take().filter(|_| !matches!(self.life, Life::Ending { .. })) {
            self.end_settled(reason);
        }
    }

    fn end_settled(&mut self, reason: Reason) {
        if let Some(text) = self.ranks.take_note() {
            self.link.send(&Event::Note { level: Level::Error, text });
        }
        self.end(reason);
    }

    /// Returns the reason of the end: a lost node comes before the failures that follow from it.
    pub(super) fn reason_of_end(&self) -> Option<Reason> {
        let Life::Ending { reason, .. } = &self.life else { return None };
        let lost = self.nodes.lost.as_ref().filter(|_| reason.is_failure_of_command());
        Some(match reason {
            // Its last words may be read after its exit was noticed.
            Reason::Exited if self.companion.is_stopping() => Reason::Asked,
            reason => lost.map_or_else(|| reason.clone(), |lost| Reason::Broken(lost.to_failed())),
        })
    }

    /// Reports whether nothing is left to wait for.
    pub(super) fn is_over(&self) -> bool {
        self.has_no_process() && !self.is_saving()
    }

    /// Reports whether no process of the command is left on any node.
    pub(super) fn has_no_process(&self) -> bool {
        matches!(self.life, Life::Ending { done: true, .. }) && self.nodes.are_over()
    }

    /// Looks at the other nodes: at their ranks, and whether they answer.
    pub(super) fn tick_nodes(&mut self) {
        let now = Instant::now();
        let (mut silent, mut slow) = (Vec::new(), None);
        for other in &mut self.nodes.others {
            match other.state.tick(now) {
                Some(Due::Look) => {
                    let ranks = self.companion.ranks.watched_on(other.node);
                    other.link.send(&NodeOrder::Look { ranks });
                }
                Some(Due::Silence) => {
                    silent.push(format!("node {} has not answered for {} s", other.name, SILENT.as_secs()));
                }
                Some(Due::TooSlow) => slow = Some(NodeFailure::TooSlow { name: other.name.clone() }),
                None => {}
            }
        }
        if matches!(self.life, Life::Ending { .. }) {
            return self.give_up_nodes(now);
        }
        self.end_if_all_have_reported();
        for text in silent {
            self.warn(text);
        }
        if let Some(failure) = slow {
            self.fail_node(failure);
        }
    }

    /// Gives up nodes that do not report their end.
    fn give_up_nodes(&mut self, now: Instant) {
        if self.nodes.until.is_none_or(|until| now < until) || self.nodes.are_over() {
            return;
        }
        let mut texts = Vec::new();
        for other in self.nodes.others.iter_mut().filter(|other| other.state.phase != Phase::Over) {
            other.link.kill();
            other.state.phase = Phase::Over;
            texts.push(format!("node {} does not report that the command has ended there", other.name));
        }
        for text in texts {
            self.link.send(&Event::Note { level: Level::Error, text });
        }
        self.look_once_over();
    }
}
