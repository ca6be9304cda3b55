//! The connections of the companions: one for each Python process of the command that has something to say, on any node.
//!
//! Rank 0 reports the training: it is the speaker. The other ranks report their failures and their parts of checkpoints, and
//! hear the orders too. The first process that names a rank holds it while it is connected, since what a rank starts inherits
//! its number. The report of a process without an introduction counts until rank 0 introduces itself: it may fail before that.

use super::companion_socket::{self, Incoming, News};
use super::node_pid::{NodePid, PeerId};
use crate::process_tree::EndedBy;
use crate::protocol::companion::{CompanionLine, CompanionOrder, FromCompanion, Introduction, Staged};
use crate::protocol::line;
use crate::protocol::worker::Event;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Most processes connected at once.
const MOST: usize = 512;
/// Messages that wait for the harness; then the companions wait.
const QUEUE: usize = 1024;

/// A message that counts.
#[derive(Debug)]
pub enum LinkEvent {
    /// A process introduced itself, or a value in its introduction changed.
    Introduced {
        /// The process.
        member: Member,
        /// The introduction.
        introduction: Box<Introduction>,
        /// The part of its process in the training.
        role: Role,
    },
    /// A message about the training, from the speaker, another rank, or a process that has not introduced itself (none).
    Message(Option<Member>, Box<FromCompanion>),
    /// A line that no companion of this version sends.
    Unreadable,
    /// A staged checkpoint of a process that does not report the training; nothing will publish it.
    RefusedSave(Staged),
    /// A process that introduced itself is gone.
    Gone {
        /// The process.
        member: Member,
        /// Its part in the training.
        role: Role,
    },
    /// A process that introduced itself has ended, after it was gone.
    Ended {
        /// The process.
        member: Member,
        /// How it ended.
        ended: EndedBy,
    },
    /// A process that introduced itself is gone, and its end will not be known.
    Remains {
        /// The process.
        member: Member,
    },
}

/// The part of a process in the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Rank 0: it reports the training.
    Speaker,
    /// Another rank.
    Rank,
    /// None: a helper that a rank has started, or a second training.
    Other,
}

/// A process that has introduced itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The process.
    pub process: NodePid,
    /// Its rank.
    pub rank: u32,
    /// The number of ranks.
    pub world: u32,
}

impl Member {
    /// Returns the process that introduces itself over a connection.
    pub fn of(peer: PeerId, introduction: &Introduction) -> Self {
        let Introduction { pid, rank, world, .. } = *introduction;
        Self { process: NodePid { node: peer.node, pid }, rank, world }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "rank {} of {}", self.rank, self.world)
    }
}

#[derive(Debug)]
struct Peer {
    orders: mpsc::Sender<String>,
    /// Its process, once it has introduced itself.
    member: Option<Member>,
}

/// All companions of a command.
#[derive(Debug)]
pub struct CompanionLink {
    socket: PathBuf,
    incoming: mpsc::Receiver<(PeerId, Incoming)>,
    /// Keeps the queue open.
    _news: News,
    peers: BTreeMap<PeerId, Peer>,
    /// The connection that holds each rank.
    holders: BTreeMap<u32, PeerId>,
    /// Processes whose connection is closed, and whose end is not known yet.
    leaving: BTreeMap<PeerId, Member>,
}

/// The queue of the news of connections on all nodes.
#[derive(Debug)]
pub struct NewsQueue {
    /// Takes the news of other nodes.
    pub news: News,
    incoming: mpsc::Receiver<(PeerId, Incoming)>,
}

impl NewsQueue {
    /// Creates the queue. Without a link that reads it, news are dropped.
    pub fn new() -> Self {
        let (news, incoming) = mpsc::channel(QUEUE);
        Self { news, incoming }
    }
}

impl CompanionLink {
    /// Listens at `socket`. News of other nodes come over the same queue.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn listen(socket: PathBuf, queue: NewsQueue) -> io::Result<Self> {
        let NewsQueue { news, incoming } = queue;
        companion_socket::listen(&socket, news.clone())?;
        let (peers, holders, leaving) = Default::default();
        Ok(Self { socket, incoming, _news: news, peers, holders, leaving })
    }

    /// Waits for the next message that counts.
    pub async fn receive(&mut self) -> LinkEvent {
        loop {
            let Some((peer, incoming)) = self.incoming.recv().await else { return std::future::pending().await };
            if let Some(message) = self.sort(peer, incoming) {
                return message;
            }
        }
    }

    /// Reports whether any process is connected: its last lines may not have been read yet.
    pub fn is_connected(&self) -> bool {
        !self.peers.is_empty() || !self.incoming.is_empty()
    }

    /// Decides whether the news of a connection counts.
    fn sort(&mut self, peer: PeerId, incoming: Incoming) -> Option<LinkEvent> {
        match incoming {
            Incoming::Connected(orders) => {
                if self.peers.len() < MOST {
                    self.peers.insert(peer, Peer { orders, member: None });
                }
                None
            }
            Incoming::Gone => {
                let member = self.peers.remove(&peer).and_then(|peer| peer.member)?;
                let role = self.role(peer);
                self.holders.retain(|_, holder| *holder != peer);
                self.leaving.insert(peer, member);
                Some(LinkEvent::Gone { member, role })
            }
            Incoming::Ended(ended) => {
                let member = self.leaving.remove(&peer)?;
                Some(ended.map_or(LinkEvent::Remains { member }, |ended| LinkEvent::Ended { member, ended }))
            }
            Incoming::HalfLine => Some(LinkEvent::Unreadable),
            Incoming::Line(text) => match FromCompanion::parse(&text) {
                Some(message) => self.sort_message(peer, message),
                None => Some(LinkEvent::Unreadable),
            },
        }
    }

    /// Decides whether a message counts.
    fn sort_message(&mut self, id: PeerId, message: FromCompanion) -> Option<LinkEvent> {
        match message {
            FromCompanion::Line(CompanionLine::Companion(introduction)) => {
                let peer = self.peers.get_mut(&id)?;
                let member = Member::of(id, &introduction);
                peer.member = Some(member);
                self.holders.retain(|rank, holder| *rank == introduction.rank || *holder != id);
                self.holders.entry(introduction.rank).or_insert(id);
                Some(LinkEvent::Introduced { member, introduction, role: self.role(id) })
            }
            message if self.may_report(id, &message) => Some(LinkEvent::Message(self.member(id), Box::new(message))),
            FromCompanion::Line(CompanionLine::Staged(staged)) => {
                self.refuse_save(id, staged.step);
                Some(LinkEvent::RefusedSave(staged))
            }
            FromCompanion::Line(CompanionLine::Wrote(written)) => {
                self.refuse_save(id, written.step);
                None
            }
            _ => None,
        }
    }

    fn may_report(&self, id: PeerId, message: &FromCompanion) -> bool {
        match (self.role(id), message) {
            (Role::Speaker, _) => true,
            (
                role,
                FromCompanion::Line(CompanionLine::Staged(_) | CompanionLine::Collective(_))
                | FromCompanion::Event(Event::SaveFailed { .. }),
            ) => role == Role::Rank,
            (_, FromCompanion::Event(Event::Failed(_) | Event::Injected { .. } | Event::Note { .. })) => {
                self.member(id).is_some() || !self.has_speaker()
            }
            _ => false,
        }
    }

    fn role(&self, id: PeerId) -> Role {
        match self.holders.iter().find(|(_, holder)| **holder == id) {
            Some((0, _)) => Role::Speaker,
            Some(_) => Role::Rank,
            None => Role::Other,
        }
    }

    fn member(&self, id: PeerId) -> Option<Member> {
        self.peers.get(&id)?.member
    }

    /// Answers a process whose checkpoint does not count, because it waits for the answer.
    fn refuse_save(&self, id: PeerId, step: u64) {
        let message = "another process of the command reports the training".to_owned();
        let peer = self.peers.get(&id);
        let refusal = CompanionOrder::PublishFailed { step, message, of_disk: false };
        if let (Some(peer), Ok(line)) = (peer, line::encode(&refusal)) {
            let _ = peer.orders.try_send(line);
        }
    }

    /// Sends an order to all ranks.
    pub fn order(&self, order: &CompanionOrder) {
        let Ok(line) = line::encode(order) else { return };
        for peer in self.holders.values().filter_map(|id| self.peers.get(id)) {
            let _ = peer.orders.try_send(line.clone());
        }
    }

    /// Returns the socket, beside which ranks keep their files.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Reports whether a process reports the training.
    pub fn has_speaker(&self) -> bool {
        self.holders.contains_key(&0)
    }
}

impl Drop for CompanionLink {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

#[cfg(test)]
mod tests;
