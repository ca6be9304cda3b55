//! The connections of the companions: one for each Python process of the command that has something to say.
//!
//! Rank 0 reports the training: it is the speaker. The other ranks report their failures and their parts of checkpoints, and
//! hear the orders too. A process that never introduced itself counts only while there is no speaker: it may fail before
//! it trains.

use crate::protocol::companion::{CompanionLine, CompanionOrder, FromCompanion, Introduction, Staged};
use crate::protocol::line;
use crate::protocol::worker::Event;
use crate::untrusted::accept::accept;
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
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
        /// It reports the training.
        speaks: bool,
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
        /// It reported the training.
        spoke: bool,
    },
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
    speaker: Option<u64>,
}

impl CompanionLink {
    /// Listens at `socket`.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn listen(socket: PathBuf) -> io::Result<Self> {
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)?;
        let (sender, incoming) = mpsc::channel(QUEUE);
        tokio::spawn(accept_all(listener, sender));
        Ok(Self { socket, incoming, peers: BTreeMap::new(), speaker: None })
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
                let spoke = self.speaker.take_if(|speaker| *speaker == number).is_some();
                Some(LinkEvent::Gone { member, spoke })
            }
            Incoming::Unreadable => Some(LinkEvent::Unreadable),
            Incoming::Message(FromCompanion::Line(CompanionLine::Companion(introduction))) => {
                let peer = self.peers.get_mut(&number)?;
                let Introduction { pid, rank, world, .. } = *introduction;
                peer.member = Some(Member { pid, rank, world });
                if introduction.rank == 0 {
                    self.speaker.get_or_insert(number);
                }
                Some(LinkEvent::Introduced { introduction, speaks: self.speaker == Some(number) })
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
        let member = self.member(number);
        let (is_known, is_other_rank) = (member.is_some(), member.is_some_and(|member| member.rank > 0));
        match (self.speaker, message) {
            (Some(speaker), _) if speaker == number => true,
            (_, FromCompanion::Line(CompanionLine::Staged(_)) | FromCompanion::Event(Event::SaveFailed { .. })) => {
                is_other_rank
            }
            (speaker, FromCompanion::Event(Event::Failed(_) | Event::Injected { .. } | Event::Note { .. })) => {
                is_known || speaker.is_none()
            }
            _ => false,
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

    /// Sends an order to the process that reports the training, and to the other ranks.
    pub fn order(&self, order: &CompanionOrder) {
        let Ok(line) = line::encode(order) else { return };
        let hears = |number: u64, peer: &Peer| {
            self.speaker == Some(number) || peer.member.is_some_and(|member| member.rank > 0)
        };
        for (_, peer) in self.peers.iter().filter(|(number, peer)| hears(**number, peer)) {
            let _ = peer.orders.try_send(line.clone());
        }
    }

    /// Reports whether a process reports the training.
    pub fn has_speaker(&self) -> bool {
        self.speaker.is_some()
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
mod tests {
    use super::{CompanionLink, LONGEST, LinkEvent, Member};
    use crate::protocol::companion::{CompanionLine, CompanionOrder, FromCompanion};
    use crate::protocol::worker::Event;
    use std::path::Path;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::UnixStream;

    fn introduction(pid: u32, rank: u32) -> String {
        format!(
            "{{\"event\":\"companion\",\"protocol\":1,\"pid\":{pid},\"rank\":{rank},\"framework\":\"loop\",\"grade\":\"exact\"}}\n"
        )
    }

    const STEP: &str = "{\"event\":\"step\",\"step\":1,\"samples\":1,\"epoch\":0,\"micro_batches\":1,\"data_wait_ms\":0,\"compute_ms\":1}\n";
    const FAILED: &str =
        "{\"event\":\"failed\",\"class\":\"device_out_of_memory\",\"message\":\"out of memory\",\"step\":1}\n";

    async fn connect(socket: &Path, text: &str) -> UnixStream {
        let mut stream = UnixStream::connect(socket).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    fn place() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("x-companion.sock");
        (dir, socket)
    }

    #[tokio::test]
    async fn rank_0_speaks_and_other_ranks_only_fail() {
        let (_dir, socket) = place();
        let mut link = CompanionLink::listen(socket.clone()).unwrap();
        let _second = connect(&socket, &(introduction(8, 1) + STEP)).await;
        assert!(matches!(link.receive().await, LinkEvent::Introduced { speaks: false, .. }));
        let first = connect(&socket, &(introduction(7, 0) + STEP)).await;
        assert!(
            matches!(link.receive().await, LinkEvent::Introduced { speaks: true, .. }),
            "a step of rank 1 is not reported"
        );
        let LinkEvent::Message(_, message) = link.receive().await else { panic!("the step of rank 0") };
        assert!(matches!(*message, FromCompanion::Event(Event::Step(_))));
        let _stranger = connect(&socket, &(FAILED.to_owned() + STEP)).await;
        let third = connect(&socket, &(introduction(9, 2) + FAILED)).await;
        assert!(matches!(link.receive().await, LinkEvent::Introduced { .. }), "a stranger's failure does not count");
        let LinkEvent::Message(_, message) = link.receive().await else { panic!("the failure of rank 2") };
        assert!(matches!(*message, FromCompanion::Event(Event::Failed(_))));
        link.order(&CompanionOrder::Checkpoint);
        link.order(&CompanionOrder::Published { step: 3 });
        let mut lines = BufReader::new(first).lines();
        assert_eq!(lines.next_line().await.unwrap().unwrap(), r#"{"order":"checkpoint"}"#);
        assert_eq!(lines.next_line().await.unwrap().unwrap(), r#"{"order":"published","step":3}"#);
        drop(third);
        assert!(matches!(
            link.receive().await,
            LinkEvent::Gone { member: Member { pid: 9, rank: 2, .. }, spoke: false }
        ));
        drop(lines);
        assert!(matches!(link.receive().await, LinkEvent::Gone { spoke: true, .. }));
        let _again = connect(&socket, &introduction(10, 0)).await;
        assert!(matches!(link.receive().await, LinkEvent::Introduced { speaks: true, .. }), "a second training speaks");
    }

    #[tokio::test]
    async fn lines_that_are_not_understood_are_named_and_half_a_line_is_never_taken() {
        let (_dir, socket) = place();
        let mut link = CompanionLink::listen(socket.clone()).unwrap();
        let ended = "{\"event\":\"ended\",\"step\":5}\n";
        let mut first = connect(&socket, &(introduction(7, 0) + "what?\n\u{0}\n" + ended)).await;
        assert!(matches!(link.receive().await, LinkEvent::Introduced { .. }));
        assert!(matches!(link.receive().await, LinkEvent::Unreadable));
        assert!(matches!(link.receive().await, LinkEvent::Unreadable));
        let LinkEvent::Message(_, message) = link.receive().await else { panic!("the line after") };
        assert_eq!(*message, FromCompanion::Line(CompanionLine::Ended { step: 5 }));
        first.write_all(ended.trim_end().as_bytes()).await.unwrap();
        drop(first);
        assert!(matches!(link.receive().await, LinkEvent::Unreadable), "it was killed before the end of the line");
        assert!(matches!(link.receive().await, LinkEvent::Gone { spoke: true, .. }));
        let mut flood = connect(&socket, &introduction(8, 0)).await;
        assert!(matches!(link.receive().await, LinkEvent::Introduced { .. }));
        let long = vec![b'x'; LONGEST as usize + 1];
        let write = flood.write_all(&long);
        let (_, message) = tokio::join!(write, link.receive());
        assert!(matches!(message, LinkEvent::Unreadable));
        assert!(matches!(link.receive().await, LinkEvent::Gone { spoke: true, .. }), "the connection ends");
    }

    #[tokio::test]
    async fn the_socket_is_removed_with_the_link() {
        let (_dir, socket) = place();
        std::fs::write(&socket, "a leftover").unwrap();
        let link = CompanionLink::listen(socket.clone()).unwrap();
        assert!(socket.exists() && !link.is_connected() && !link.has_speaker());
        drop(link);
        assert!(!socket.exists());
    }
}
