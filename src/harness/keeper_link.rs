//! The connection to the keeper: stdin and stdout for the keeper that started the harness, a socket for any later one.
//! Without a keeper, events wait in the backlog.

use super::backlog::Backlog;
use crate::protocol::line;
use crate::protocol::worker::{Event, Order};
use crate::untrusted::accept::accept;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf, pipe};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Maximum lines queued for a keeper that does not read.
const QUEUE: usize = 256;
/// Longest line of a keeper.
const LONGEST: u64 = 1 << 16;
/// Time limit for writing the last events.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Time limit for the first order of a client.
const FIRST_ORDER: Duration = Duration::from_secs(10);

/// A message from a keeper.
#[derive(Debug, Clone, Copy)]
pub enum FromKeeper {
    /// An order.
    Order(Order),
    /// The keeper is gone.
    Gone,
}

/// The connection to the keeper.
pub struct KeeperLink {
    listener: Option<UnixListener>,
    incoming: mpsc::Receiver<(u64, FromKeeper)>,
    sender: mpsc::Sender<(u64, FromKeeper)>,
    connection: Option<Connection>,
    /// Keepers that take over. A client that only looks whether somebody listens is none.
    arrivals: mpsc::Receiver<Arrival>,
    arriving: mpsc::Sender<Arrival>,
    /// Connections so far; only the newest one counts.
    number: u64,
    backlog: Backlog,
    /// The keeper has reported what it has stored; until then nothing is sent to it.
    introduced: bool,
}

/// A later keeper, with its first order.
struct Arrival {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    order: Order,
}

struct Connection {
    lines: mpsc::Sender<String>,
    /// Ends with true once everything was written.
    writer: JoinHandle<bool>,
}

impl KeeperLink {
    /// Opens the connection over this process's stdin and stdout. Later keepers connect to `listener`.
    ///
    /// # Errors
    /// Returns an error when they are not pipes.
    pub fn open(listener: Option<UnixListener>) -> io::Result<Self> {
        let (sender, incoming) = mpsc::channel(64);
        let (arriving, arrivals) = mpsc::channel(1);
        let mut link = Self {
            listener,
            incoming,
            sender,
            connection: None,
            arrivals,
            arriving,
            number: 0,
            backlog: Backlog::default(),
            introduced: false,
        };
        let stdin = pipe::Receiver::from_owned_fd(rustix::io::dup(rustix::stdio::stdin())?)?;
        let stdout = pipe::Sender::from_owned_fd(rustix::io::dup(rustix::stdio::stdout())?)?;
        link.connect(stdin, stdout);
        link.introduced = true;
        Ok(link)
    }

    fn connect(
        &mut self,
        reader: impl AsyncRead + Send + Unpin + 'static,
        mut writer: impl AsyncWrite + Send + Unpin + 'static,
    ) {
        self.number += 1;
        self.introduced = false;
        let (lines, mut queue) = mpsc::channel::<String>(QUEUE);
        let writer = tokio::spawn(async move {
            while let Some(line) = queue.recv().await {
                if writer.write_all(line.as_bytes()).await.is_err() {
                    return false;
                }
            }
            true
        });
        tokio::spawn(read_orders(self.number, reader, self.sender.clone()));
        self.connection = Some(Connection { lines, writer });
    }

    /// Sends an event, now or to the next keeper.
    pub fn send(&mut self, event: &Event) {
        self.backlog.push(event);
        self.pump();
    }

    /// Sends an event that only this keeper needs: a later one is introduced again.
    pub fn send_unkept(&mut self, event: &Event) {
        if let (Some(connection), true, Ok(line)) = (&self.connection, self.introduced, line::encode(event)) {
            let _ = connection.lines.try_send(line);
        }
    }

    /// Sends queued events for as long as the keeper reads.
    pub fn pump(&mut self) {
        let Some(connection) = self.connection.as_ref().filter(|_| self.introduced) else { return };
        while let Some(line) = self.backlog.next() {
            if connection.lines.try_send(line.to_owned()).is_err() {
                return;
            }
            self.backlog.mark_sent();
        }
    }

    /// Queues again what a keeper lacks that has stored everything up to step `after`.
    pub fn replay_after(&mut self, after: u64) {
        self.introduced = true;
        self.backlog.replay_after(after);
    }

    /// Returns the number of steps that were dropped because there was no keeper for too long.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.backlog.dropped)
    }

    /// Waits for the next order, or for the keeper to go. Accepts later keepers meanwhile.
    pub async fn receive(&mut self) -> FromKeeper {
        loop {
            tokio::select! {
                Some((number, message)) = self.incoming.recv() => {
                    if number != self.number {
                        continue;
                    }
                    if matches!(message, FromKeeper::Gone) {
                        self.connection = None;
                    }
                    return message;
                }
                stream = accept_keeper(self.listener.as_ref()) => {
                    tokio::spawn(await_adoption(stream, self.arriving.clone()));
                }
                Some(Arrival { reader, writer, order }) = self.arrivals.recv() => {
                    self.connect(reader, writer);
                    return FromKeeper::Order(order);
                }
            }
        }
    }

    /// Writes the queued events and closes the connection. Returns false if no keeper received them.
    pub async fn finish(&mut self) -> bool {
        if !self.introduced {
            return false;
        }
        let Some(connection) = self.connection.take() else { return false };
        let backlog = &mut self.backlog;
        let all = timeout(LAST_WORDS, async {
            while let Some(line) = backlog.next() {
                if connection.lines.send(line.to_owned()).await.is_err() {
                    return false;
                }
                backlog.mark_sent();
            }
            true
        });
        let sent = all.await == Ok(true);
        drop(connection.lines);
        sent && timeout(LAST_WORDS, connection.writer).await.is_ok_and(|written| written.unwrap_or(false))
    }
}

/// Waits for a keeper on the socket.
async fn accept_keeper(listener: Option<&UnixListener>) -> UnixStream {
    match listener {
        Some(listener) => accept(listener).await,
        None => std::future::pending().await,
    }
}

/// Waits for the first order of a client. Only one that adopts the command replaces the keeper: others may connect just to
/// see whether the socket is in use.
async fn await_adoption(stream: UnixStream, arriving: mpsc::Sender<Arrival>) {
    let (reader, writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut text = Vec::new();
    let read = timeout(FIRST_ORDER, (&mut reader).take(LONGEST).read_until(b'\n', &mut text)).await;
    if matches!(read, Ok(Ok(count)) if count > 0)
        && let Some(order @ Order::Adopt { .. }) = line::decode::<Order>(&String::from_utf8_lossy(&text))
    {
        let _ = arriving.send(Arrival { reader, writer, order }).await;
    }
}

async fn read_orders(number: u64, reader: impl AsyncRead + Unpin, sender: mpsc::Sender<(u64, FromKeeper)>) {
    let mut reader = BufReader::new(reader);
    let mut text = Vec::new();
    loop {
        text.clear();
        match (&mut reader).take(LONGEST).read_until(b'\n', &mut text).await {
            Ok(count) if count > 0 => {
                if let Some(order) = line::decode::<Order>(&String::from_utf8_lossy(&text)) {
                    let _ = sender.send((number, FromKeeper::Order(order))).await;
                }
            }
            _ => break,
        }
    }
    let _ = sender.send((number, FromKeeper::Gone)).await;
}
