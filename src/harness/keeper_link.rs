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
    inbox: Inbox,
    connection: Option<Connection>,
    backlog: Backlog,
    /// The keeper has reported what it has stored; until then nothing is sent to it.
    introduced: bool,
}

/// Orders of the keeper, and later keepers.
struct Inbox {
    listener: Option<UnixListener>,
    incoming: mpsc::Receiver<(u64, FromKeeper)>,
    sender: mpsc::Sender<(u64, FromKeeper)>,
    /// Keepers that take over. Liveness probes do not count.
    arrivals: mpsc::Receiver<Arrival>,
    arriving: mpsc::Sender<Arrival>,
    /// Connections so far; only the newest one counts.
    number: u64,
}

enum Heard {
    Message(FromKeeper),
    Arrived(Arrival),
}

/// A later keeper, with its first order.
struct Arrival {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    order: Order,
}

struct Connection {
    /// None once the last line is queued.
    lines: Option<mpsc::Sender<String>>,
    /// Ends with true once everything was written.
    writer: JoinHandle<bool>,
}

/// How the delivery of the last events goes on.
enum Delivery {
    /// There is room for a line.
    Room,
    /// Everything was written.
    Written,
    /// The keeper closed its end.
    Lost,
}

impl Connection {
    /// Waits for the next progress of a keeper that may read slowly.
    async fn progress(connection: Option<&mut Self>) -> Delivery {
        let Some(connection) = connection else { return std::future::pending().await };
        match &connection.lines {
            Some(lines) if lines.reserve().await.is_ok() => Delivery::Room,
            None if (&mut connection.writer).await.unwrap_or(false) => Delivery::Written,
            Some(_) | None => Delivery::Lost,
        }
    }

    /// Queues a line, if there is room.
    fn queue(&self, line: String) -> bool {
        self.lines.as_ref().is_some_and(|lines| lines.try_send(line).is_ok())
    }
}

impl Inbox {
    async fn next(&mut self) -> Heard {
        loop {
            tokio::select! {
                Some((number, message)) = self.incoming.recv() => {
                    if number == self.number {
                        return Heard::Message(message);
                    }
                }
                stream = accept_keeper(self.listener.as_ref()) => {
                    tokio::spawn(await_adoption(stream, self.arriving.clone()));
                }
                Some(arrival) = self.arrivals.recv() => return Heard::Arrived(arrival),
            }
        }
    }
}

impl KeeperLink {
    /// Opens the connection over this process's stdin and stdout. Later keepers connect to `listener`.
    ///
    /// # Errors
    /// Returns an error when they are not pipes.
    pub fn open(listener: Option<UnixListener>) -> io::Result<Self> {
        let (sender, incoming) = mpsc::channel(64);
        let (arriving, arrivals) = mpsc::channel(1);
        let inbox = Inbox { listener, incoming, sender, arrivals, arriving, number: 0 };
        let mut link = Self { inbox, connection: None, backlog: Backlog::default(), introduced: false };
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
        self.inbox.number += 1;
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
        tokio::spawn(read_orders(self.inbox.number, reader, self.inbox.sender.clone()));
        self.connection = Some(Connection { lines: Some(lines), writer });
    }

    /// Sends an event, now or to the next keeper.
    pub fn send(&mut self, event: &Event) {
        self.backlog.push(event);
        self.pump();
    }

    /// Sends an event that only this keeper needs: a later one is introduced again.
    pub fn send_unkept(&mut self, event: &Event) {
        if let (Some(connection), true, Ok(line)) = (&self.connection, self.introduced, line::encode(event)) {
            let _ = connection.queue(line);
        }
    }

    /// Sends queued events for as long as the keeper reads.
    pub fn pump(&mut self) {
        let Some(connection) = self.connection.as_ref().filter(|_| self.introduced) else { return };
        while let Some(line) = self.backlog.next() {
            if !connection.queue(line.to_owned()) {
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

    /// Returns the newest step, if it is kept.
    pub fn newest_step(&self) -> Option<Event> {
        self.backlog.newest_step()
    }

    /// Reports whether a keeper holds the other end.
    pub fn has_keeper(&self) -> bool {
        self.connection.is_some()
    }

    /// Waits for the next order, or for the keeper to go. Accepts later keepers meanwhile.
    pub async fn receive(&mut self) -> FromKeeper {
        let heard = self.inbox.next().await;
        self.take_heard(heard)
    }

    fn take_heard(&mut self, heard: Heard) -> FromKeeper {
        match heard {
            Heard::Message(message) => {
                if matches!(message, FromKeeper::Gone) {
                    self.connection = None;
                }
                message
            }
            Heard::Arrived(Arrival { reader, writer, order }) => {
                self.connect(reader, writer);
                FromKeeper::Order(order)
            }
        }
    }

    /// Writes the queued events and closes the connection, for as long as a keeper holds its end, however slowly it reads.
    /// Returns none once a keeper has everything, or else the next message.
    pub async fn deliver(&mut self) -> Option<FromKeeper> {
        loop {
            self.pump();
            let is_queued = self.introduced && self.backlog.next().is_none();
            if let Some(connection) = self.connection.as_mut().filter(|_| is_queued) {
                connection.lines = None;
            }
            let connection = self.connection.as_mut().filter(|_| self.introduced);
            tokio::select! {
                heard = self.inbox.next() => return Some(self.take_heard(heard)),
                progress = Connection::progress(connection) => match progress {
                    Delivery::Room => {}
                    Delivery::Written => return None,
                    Delivery::Lost => {
                        self.connection = None;
                        return Some(FromKeeper::Gone);
                    }
                },
            }
        }
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
