//! The socket to which the companions of one node connect. It knows connections and lines, not what they say.

use super::node_pid::{Node, PeerId};
use super::rank_files::remove_left_files;
use crate::process_tree::{EndedBy, wait_for_end};
use crate::untrusted::accept::accept;
use crate::untrusted::thread::run_beside;
use rustix::process::geteuid;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

/// Longest line of a companion; a longer one ends its connection.
pub const LONGEST: u64 = 1 << 20;
/// Orders that wait for a companion that does not read.
pub const ORDERS: usize = 64;
/// Longest time from the end of a connection to that of its process. A companion may also fail in a process that lives on.
const LEAVING: Duration = Duration::from_secs(10);

/// News of a connection.
#[derive(Debug)]
pub enum Incoming {
    /// A process connected; lines for it go into this queue. A queue that is dropped closes the connection.
    Connected(mpsc::Sender<String>),
    /// A line.
    Line(String),
    /// A part of a line, and no more: the process was killed while it wrote, or the line is too long.
    HalfLine,
    /// The connection is closed.
    Gone,
    /// Its process has ended, after the connection; none if it lives on, or nothing can be known of it.
    Ended(Option<EndedBy>),
}

/// The queue of the news of all connections.
pub type News = mpsc::Sender<(PeerId, Incoming)>;

/// Listens at `socket`, and sends the news of its connections.
///
/// # Errors
/// Returns the system's error.
pub fn listen(socket: &Path, news: News) -> io::Result<()> {
    let _ = fs::remove_file(socket);
    remove_left_files(socket);
    let listener = UnixListener::bind(socket)?;
    tokio::spawn(accept_all(listener, news));
    Ok(())
}

async fn accept_all(listener: UnixListener, news: News) {
    for connection in 0_u64.. {
        let Some((stream, pid)) = accept_own(&listener, &news).await else { return };
        let peer = PeerId { node: Node::HERE, connection };
        let (reader, writer) = stream.into_split();
        let (orders, queue) = mpsc::channel(ORDERS);
        if news.send((peer, Incoming::Connected(orders))).await.is_err() {
            return;
        }
        tokio::spawn(write_lines(writer, queue));
        tokio::spawn(read_lines(peer, pid, reader, news.clone()));
    }
}

/// Waits for a process of this user. Returns none once nobody wants the news any more.
async fn accept_own(listener: &UnixListener, news: &News) -> Option<(UnixStream, Option<u32>)> {
    loop {
        let stream = tokio::select! {
            stream = accept(listener) => stream,
            () = news.closed() => return None,
        };
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == geteuid().as_raw() => {
                return Some((stream, peer.pid().and_then(|pid| u32::try_from(pid).ok())));
            }
            _ => {}
        }
    }
}

async fn write_lines(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<String>) {
    while let Some(line) = queue.recv().await {
        if writer.write_all(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read_lines(peer: PeerId, pid: Option<u32>, reader: OwnedReadHalf, news: News) {
    let mut reader = BufReader::new(reader);
    let mut text = Vec::new();
    while matches!((&mut reader).take(LONGEST).read_until(b'\n', &mut text).await, Ok(count) if count > 0) {
        let is_whole = text.ends_with(b"\n");
        let line = String::from_utf8_lossy(&text).into_owned();
        text.clear();
        if news.send((peer, if is_whole { Incoming::Line(line) } else { Incoming::HalfLine })).await.is_err() {
            return;
        }
        if !is_whole {
            break;
        }
    }
    let (tell, told) = oneshot::channel();
    // At once: its exit status is readable only until its parent asks for it.
    run_beside("end of a rank", move || {
        let _ = tell.send(pid.and_then(|pid| wait_for_end(pid, LEAVING)));
    });
    let _ = news.send((peer, Incoming::Gone)).await;
    if let Ok(ended) = told.await {
        let _ = news.send((peer, Incoming::Ended(ended))).await;
    }
}
