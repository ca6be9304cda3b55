//! The connections of the companions: one for each Python process of the command that has something to say.
//!
//! Rank 0 reports the training: it is the speaker. The other ranks report their failures and their parts of checkpoints, and
//! hear the orders too. The first process that names a rank holds it while it is connected, since what a rank starts inherits
//! its number. The report of a process without an introduction counts until rank 0 introduces itself: it may fail before that.

use super::rank_files::remove_left_files;
use crate::protocol::companion::{CompanionLine, CompanionOrder, FromCompanion, Introduction, Staged};
use crate::protocol::line;
use crate::protocol::worker::Event;
use crate::untrusted::accept::accept;
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

/// Longest line of a companion; a longer one ends its connection.
const LONGEST: u64 = 1 << 20;
/// Most processes connected at once.
const MOST: usize = 512;
/// Messages that wait for the harness; then the companions wait.
const QUEUE: usize = 1024;
/// Orders that wait for a companion that does not read.
const ORDERS: usize = 64;

/// A report about a connection.
#[derive(Debug)]
enum Incoming {
    /// A process connected; its orders go into this queue.
    Connected(mpsc::Sender<String>),
    Message(FromCompanion),
    /// A line that no companion of this version sends.
    Unreadable,
    Gone,
}

/// A message that counts.
#[derive(Debug)]
pub enum LinkEvent {
    /// A process introduced itself, or a value in its introduction changed.
    Introduced {
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
    /// The process, as it named itself.
    pub pid: u32,
    /// Its rank.
    pub rank: u32,
    /// The number of ranks.
    pub world: u32,
}

impl Member {
    /// Returns the process that introduces itself.
    pub fn of(introduction: &Introduction) -> Self {
        let Introduction { pid, rank, world, .. } = *introduction;
        Self { pid, rank, world }
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
    incoming: mpsc::Receiver<(u64, Incoming)>,
    peers: BTreeMap<u64, Peer>,
    /// The connection that holds each rank.
    holders: BTreeMap<u32, u64>,
}

impl CompanionLink {
    /// Listens at `socket`.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn listen(socket: PathBuf) -> io::Result<Self> {
        let _ = fs::remove_file(&socket);
        remove_left_files(&socket);
        let listener = UnixListener::bind(&socket)?;
        let (sender, incoming) = mpsc::channel(QUEUE);
        tokio::spawn(accept_all(listener, sender));
        Ok(Self { socket, incoming, peers: BTreeMap::new(), holders: BTreeMap::new() })
    }

    /// Waits for the next message that counts.
    pub async fn receive(&mut self) -> LinkEvent {
        loop {
            let Some((number, incoming)) = self.incoming.recv().await else { return std::future::pending().await };
            if let Some(message) = self.sort(number, incoming) {
                return message;
            }
        }
    }

    /// Reports whether any process is connected: its last lines may not have been read yet.
    pub fn is_connected(&self) -> bool {
        !self.peers.is_empty() || !self.incoming.is_empty()
    }

    /// Decides whether a message counts.
    fn sort(&mut self, number: u64, incoming: Incoming) -> Option<LinkEvent> {
        match incoming {
            Incoming::Connected(orders) => {
                // A queue that is dropped closes the connection.
                if self.peers.len() < MOST {
                    self.peers.insert(number, Peer { orders, member: None });
                }
                None
            }
            Incoming::Gone => {
                let member = self.peers.remove(&number).and_then(|peer| peer.member)?;
                let role = self.role(number);
                self.holders.retain(|_, holder| *holder != number);
                Some(LinkEvent::Gone { member, role })
            }
            Incoming::Unreadable => Some(LinkEvent::Unreadable),
            Incoming::Message(FromCompanion::Line(CompanionLine::Companion(introduction))) => {
                let peer = self.peers.get_mut(&number)?;
                peer.member = Some(Member::of(&introduction));
                self.holders.retain(|rank, holder| *rank == introduction.rank || *holder != number);
                self.holders.entry(introduction.rank).or_insert(number);
                Some(LinkEvent::Introduced { introduction, role: self.role(number) })
            }
            Incoming::Message(message) if self.may_report(number, &message) => {
                Some(LinkEvent::Message(self.member(number), Box::new(message)))
            }
            Incoming::Message(FromCompanion::Line(CompanionLine::Staged(staged))) => {
                self.refuse_save(number, staged.step);
                Some(LinkEvent::RefusedSave(staged))
            }
            Incoming::Message(FromCompanion::Line(CompanionLine::Wrote(written))) => {
                self.refuse_save(number, written.step);
                None
            }
            Incoming::Message(_) => None,
        }
    }

    fn may_report(&self, number: u64, message: &FromCompanion) -> bool {
        match (self.role(number), message) {
            (Role::Speaker, _) => true,
            (
                role,
                FromCompanion::Line(CompanionLine::Staged(_) | CompanionLine::Collective(_))
                | FromCompanion::Event(Event::SaveFailed { .. }),
            ) => role == Role::Rank,
            (_, FromCompanion::Event(Event::Failed(_) | Event::Injected { .. } | Event::Note { .. })) => {
                self.member(number).is_some() || !self.has_speaker()
            }
            _ => false,
        }
    }

    fn role(&self, number: u64) -> Role {
        match self.holders.iter().find(|(_, holder)| **holder == number) {
            Some((0, _)) => Role::Speaker,
            Some(_) => Role::Rank,
            None => Role::Other,
        }
    }

    fn member(&self, number: u64) -> Option<Member> {
        self.peers.get(&number)?.member
    }

    /// Answers a process whose checkpoint does not count, because it waits for the answer.
    fn refuse_save(&self, number: u64, step: u64) {
        let message = "another process of the command reports the training".to_owned();
        let peer = self.peers.get(&number);
        if let (Some(peer), Ok(line)) = (peer, line::encode(&CompanionOrder::PublishFailed { step, message })) {
            let _ = peer.orders.try_send(line);
        }
    }

    /// Sends an order to all ranks.
    pub fn order(&self, order: &CompanionOrder) {
        let Ok(line) = line::encode(order) else { return };
        for peer in self.holders.values().filter_map(|number| self.peers.get(number)) {
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

async fn accept_all(listener: UnixListener, sender: mpsc::Sender<(u64, Incoming)>) {
    for number in 0_u64.. {
        let Some(stream) = accept_own(&listener, &sender).await else { return };
        let (reader, writer) = stream.into_split();
        let (orders, queue) = mpsc::channel(ORDERS);
        if sender.send((number, Incoming::Connected(orders))).await.is_err() {
            return;
        }
        tokio::spawn(write_orders(writer, queue));
        tokio::spawn(read_lines(number, reader, sender.clone()));
    }
}

/// Waits for a process of this user. Returns none once the harness does not listen any more.
async fn accept_own(listener: &UnixListener, sender: &mpsc::Sender<(u64, Incoming)>) -> Option<UnixStream> {
    loop {
        let stream = tokio::select! {
            stream = accept(listener) => stream,
            () = sender.closed() => return None,
        };
        if stream.peer_cred().is_ok_and(|peer| peer.uid() == geteuid().as_raw()) {
            return Some(stream);
        }
    }
}

async fn write_orders(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<String>) {
    while let Some(order) = queue.recv().await {
        if writer.write_all(order.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read_lines(number: u64, reader: OwnedReadHalf, sender: mpsc::Sender<(u64, Incoming)>) {
    let mut reader = BufReader::new(reader);
    let mut text = Vec::new();
    while matches!((&mut reader).take(LONGEST).read_until(b'\n', &mut text).await, Ok(count) if count > 0) {
        let is_whole = text.ends_with(b"\n");
        let message = FromCompanion::parse(&String::from_utf8_lossy(&text)).filter(|_| is_whole);
        text.clear();
        let incoming = message.map_or(Incoming::Unreadable, Incoming::Message);
        if sender.send((number, incoming)).await.is_err() {
            return;
        }
        // Half a line: the process was killed while it wrote, or the line is too long.
        if !is_whole {
            break;
        }
    }
    let _ = sender.send((number, Incoming::Gone)).await;
}

#[cfg(test)]
mod tests;
