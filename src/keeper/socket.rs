//! The control socket. Clients connect, send requests and listen; none of them can block the keeper.

use super::Input;
use super::author::{Author, Process};
use crate::protocol::control::{Request, Update};
use crate::protocol::line;
use crate::untrusted::accept::accept;
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

/// Maximum number of lines queued for one client. A client that falls further behind is dropped; it
/// reconnects and reads the store.
const BACKLOG: usize = 1024;
/// Maximum number of clients.
const SEATS: usize = 64;
/// Maximum length of a request.
const LINE: u64 = 1 << 16;
/// Interval at which the socket is checked, and bound again if its file disappeared.
const LOOK: Duration = Duration::from_secs(2);

/// Creates the socket in an existing folder. The caller holds the run's lock, so an existing file of
/// this name belongs to a dead keeper.
///
/// # Errors
/// Returns the system's error.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    path.parent().into_iter().for_each(remove_dead_sockets);
    // Another keeper may take the new socket for a dead one, before anything listens on it.
    match bind_once(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => bind_once(path),
        bound => bound,
    }
}

fn bind_once(path: &Path) -> io::Result<UnixListener> {
    let _ = fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Removes sockets left behind by killed keepers. If it hits one that is just being created, its keeper recreates it.
fn remove_dead_sockets(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if path.extension().is_some_and(|end| end == "sock") && StdStream::connect(&path).is_err_and(refused) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Accepts clients until the keeper ends.
pub async fn serve(mut listener: UnixListener, path: PathBuf, inputs: mpsc::Sender<Input>) {
    let mut next = 0;
    let seats = Arc::new(Semaphore::new(SEATS));
    loop {
        match timeout(LOOK, accept(&listener)).await {
            Ok(stream) => {
                next += 1;
                match Arc::clone(&seats).try_acquire_owned() {
                    Ok(seat) => drop(tokio::spawn(serve_client(next, stream, inputs.clone(), seat))),
                    Err(_) => turn_away(&stream),
                }
            }
            Err(_) if path.exists() => {}
            Err(_) => {
                if let Ok(again) = bind(&path) {
                    listener = again;
                }
            }
        }
    }
}

/// Tells a client that there are too many, and disconnects it.
fn turn_away(stream: &UnixStream) {
    let message = format!("this keeper already has {SEATS} clients; close some of them");
    if let Ok(line) = line::encode(&Update::Reply { accepted: false, message }) {
        let _ = stream.try_write(line.as_bytes());
    }
}

/// Returns the client, if the system reports its process.
fn author_of(stream: &UnixStream) -> Author {
    let peer = stream.peer_cred().ok();
    let peer = peer.and_then(|peer| Some(Process::new(u32::try_from(peer.pid()?).ok()?, peer.uid())));
    Author::Client(peer)
}

/// Returns the next line; none at the end of the stream, or when a line is too long for a request.
async fn next_line(reader: &mut BufReader<OwnedReadHalf>, buffer: &mut Vec<u8>) -> Option<()> {
    buffer.clear();
    let read = reader.take(LINE).read_until(b'\n', buffer).await.ok()?;
    (read > 0 && (buffer.ends_with(b"\n") || (read as u64) < LINE)).then_some(())
}

/// Serves one client: lines in, lines out.
async fn serve_client(id: u64, stream: UnixStream, inputs: mpsc::Sender<Input>, _seat: OwnedSemaphorePermit) {
    let author = author_of(&stream);
    let (read, mut write) = stream.into_split();
    let (sender, mut queue) = mpsc::channel::<String>(BACKLOG);
    let _ = inputs.send(Input::Connected(id, sender, author)).await;
    let writing = tokio::spawn(async move {
        while let Some(line) = queue.recv().await {
            if write.write_all(line.as_bytes()).await.is_err() {
                break;
            }
        }
    });
    let (mut reader, mut buffer) = (BufReader::new(read), Vec::new());
    while next_line(&mut reader, &mut buffer).await.is_some() {
        let request = std::str::from_utf8(&buffer).ok().and_then(line::decode::<Request>);
        let input = request.map_or(Input::Garbled(id), |request| Input::Asked(id, request));
        let _ = inputs.send(input).await;
    }
    if buffer.len() as u64 >= LINE {
        let _ = inputs.send(Input::Garbled(id)).await;
    }
    let _ = inputs.send(Input::Left(id)).await;
    writing.abort();
}

/// The connected clients, and the subscribers among them.
#[derive(Debug, Default)]
pub struct Clients {
    known: HashMap<u64, Client>,
}

#[derive(Debug)]
struct Client {
    sender: mpsc::Sender<String>,
    subscribed: bool,
    /// A request of this client was accepted, and its outcome is not known yet.
    waits: bool,
    author: Author,
}

impl Clients {
    /// Adds a client.
    pub fn add(&mut self, id: u64, sender: mpsc::Sender<String>, author: Author) {
        self.known.insert(id, Client { sender, subscribed: false, waits: false, author });
    }

    /// Returns the author behind a client.
    pub fn author(&self, id: u64) -> Option<Author> {
        self.known.get(&id).map(|client| client.author.clone())
    }

    /// Removes a client.
    pub fn remove(&mut self, id: u64) {
        self.known.remove(&id);
    }

    /// Subscribes a client to all updates.
    pub fn subscribe(&mut self, id: u64) {
        if let Some(client) = self.known.get_mut(&id) {
            client.subscribed = true;
        }
    }

    /// Reports whether any client has subscribed.
    pub fn listening(&self) -> bool {
        self.known.values().any(|client| client.subscribed)
    }

    /// Waits until the writers have taken every queued message.
    pub async fn drained(&self) {
        for client in self.known.values() {
            // The queue is empty once all of it can be reserved.
            let _ = client.sender.reserve_many(BACKLOG).await;
        }
    }

    /// Sends an update to one client.
    pub fn send(&mut self, id: u64, update: &Update) {
        let Ok(line) = line::encode(update) else { return };
        if self.known.get(&id).is_some_and(|client| client.sender.try_send(line).is_err()) {
            self.remove(id);
        }
    }

    /// Answers a request of a client.
    pub fn answer(&mut self, id: u64, answer: Result<String, impl Display>) {
        if let Some(client) = self.known.get_mut(&id) {
            client.waits |= answer.is_ok();
        }
        let accepted = answer.is_ok();
        let message = answer.unwrap_or_else(|refusal| refusal.to_string());
        self.send(id, &Update::Reply { accepted, message });
    }

    /// Sends the outcome of accepted requests to the clients that wait for it. Subscribers read it in the journal.
    pub fn settle(&mut self, accepted: bool, message: &str) {
        let Ok(line) = line::encode(&Update::Reply { accepted, message: message.to_owned() }) else { return };
        self.known.retain(|_, client| {
            let waits = std::mem::take(&mut client.waits) && !client.subscribed;
            !waits || client.sender.try_send(line.clone()).is_ok()
        });
    }

    /// Sends an update to every subscriber.
    pub fn publish(&mut self, update: &Update) {
        let Ok(line) = line::encode(update) else { return };
        self.known.retain(|_, client| !client.subscribed || client.sender.try_send(line.clone()).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::{StdStream, remove_dead_sockets};
    use std::os::unix::net::UnixListener;
    use tempfile::TempDir;

    #[test]
    fn only_sockets_without_a_listener_are_removed() {
        let folder = TempDir::new().unwrap();
        let (dead, alive, other) =
            (folder.path().join("a.sock"), folder.path().join("b.sock"), folder.path().join("notes"));
        drop(UnixListener::bind(&dead).unwrap());
        let _listener = UnixListener::bind(&alive).unwrap();
        std::fs::write(&other, "mine").unwrap();
        remove_dead_sockets(folder.path());
        assert!(!dead.exists() && other.exists());
        StdStream::connect(&alive).unwrap();
    }
}
