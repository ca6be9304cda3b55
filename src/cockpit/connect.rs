//! The keeper's client: subscribes, forwards its updates and reconnects when the keeper returns.

mod folder;

use super::update::Msg;
use crate::protocol::control::{Request, Update};
use crate::protocol::line;
use crate::store::run_dir::RunDir;
use crate::untrusted::peer;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::time::sleep;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Returns the keeper's current socket; a new keeper may listen elsewhere.
pub type SocketSource = Arc<dyn Fn() -> PathBuf + Send + Sync>;

/// Returns the run if its keeper is on another host, where no socket reaches it.
pub type FolderSource = Arc<dyn Fn() -> Option<RunDir> + Send + Sync>;

/// The ways to a keeper.
#[derive(Clone)]
pub struct KeeperSource {
    /// Its socket.
    pub socket: SocketSource,
    /// The run's folder.
    pub folder: FolderSource,
}

/// Runs until the cockpit closes: sends requests, receives updates, and reconnects as often as
/// needed. Requests made while disconnected are dropped; the screen already shows that the keeper is
/// unreachable.
pub async fn run_client(keeper: KeeperSource, mut requests: Receiver<Request>, inbox: Sender<Msg>) {
    let mut wait = FIRST_WAIT;
    loop {
        let ended = if let Some(run) = (keeper.folder)() {
            wait = FIRST_WAIT;
            folder::follow_run(run, &mut requests, &inbox).await
        } else {
            match subscribe(&(keeper.socket)()).await {
                Ok(stream) => {
                    wait = FIRST_WAIT;
                    exchange_messages(stream, &mut requests, &inbox).await
                }
                Err(error) => Ended::Lost(error.to_string()),
            }
        };
        let Ended::Lost(reason) = ended else { return };
        if inbox.send(Msg::KeeperLost(reason)).await.is_err() {
            return;
        }
        sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
        while requests.try_recv().is_ok() {}
    }
}

enum Ended {
    Lost(String),
    CockpitClosed,
}

async fn subscribe(socket: &Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket).await?;
    peer::check_listener(&stream, socket)?;
    send_request(&mut stream, &Request::Subscribe).await?;
    Ok(stream)
}

async fn send_request(stream: &mut (impl AsyncWriteExt + Unpin), request: &Request) -> io::Result<()> {
    let text = line::encode(request).map_err(io::Error::other)?;
    stream.write_all(text.as_bytes()).await
}

async fn exchange_messages(stream: UnixStream, requests: &mut Receiver<Request>, inbox: &Sender<Msg>) -> Ended {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read.take(peer::MAX_LINE)).lines();
    if inbox.send(Msg::KeeperBack).await.is_err() {
        return Ended::CockpitClosed;
    }
    loop {
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(text)) => {
                    lines.get_mut().get_mut().set_limit(peer::MAX_LINE);
                    let update = line::decode::<Update>(&text);
                    if let Some(update) = update && inbox.send(Msg::Keeper(update)).await.is_err() {
                        return Ended::CockpitClosed;
                    }
                }
                Ok(None) => return Ended::Lost("the keeper closed the connection".to_owned()),
                Err(error) => return Ended::Lost(error.to_string()),
            },
            request = requests.recv() => match request {
                Some(request) => if let Err(error) = send_request(&mut write, &request).await {
                    return Ended::Lost(error.to_string());
                },
                None => return Ended::CockpitClosed,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KeeperSource, run_client};
    use crate::cockpit::update::Msg;
    use crate::protocol::control::{Request, Update};
    use crate::protocol::line;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::UnixListener;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    async fn next_message(inbox: &mut mpsc::Receiver<Msg>) -> Msg {
        timeout(Duration::from_secs(10), inbox.recv()).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn it_subscribes_passes_on_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("keeper.sock");
        let (inbox, mut messages) = mpsc::channel(16);
        let (ask, requests) = mpsc::channel(16);
        let place = socket.clone();
        let keeper = KeeperSource { socket: Arc::new(move || place.clone()), folder: Arc::new(|| None) };
        let client = tokio::spawn(run_client(keeper, requests, inbox));
        assert!(matches!(next_message(&mut messages).await, Msg::KeeperLost(_)));
        for round in 0..2 {
            let _ = std::fs::remove_file(&socket);
            let keeper = UnixListener::bind(&socket).unwrap();
            let (stream, _) = timeout(Duration::from_secs(10), keeper.accept()).await.unwrap().unwrap();
            let (read, mut write) = stream.into_split();
            let mut lines = BufReader::new(read).lines();
            let first = lines.next_line().await.unwrap().unwrap();
            assert_eq!(line::decode(&first), Some(Request::Subscribe));
            loop {
                match next_message(&mut messages).await {
                    Msg::KeeperBack => break,
                    other => assert!(matches!(other, Msg::KeeperLost(_))),
                }
            }
            let reply = Update::Reply { accepted: true, message: format!("round {round}") };
            write.write_all(b"a line that is not a message\n").await.unwrap();
            write.write_all(line::encode(&reply).unwrap().as_bytes()).await.unwrap();
            assert_eq!(next_message(&mut messages).await, Msg::Keeper(reply));
            ask.send(Request::Pause).await.unwrap();
            let second = lines.next_line().await.unwrap().unwrap();
            assert_eq!(line::decode(&second), Some(Request::Pause));
            drop((lines, write, keeper));
            assert!(matches!(next_message(&mut messages).await, Msg::KeeperLost(_)));
        }
        drop((ask, messages));
        timeout(Duration::from_secs(10), client).await.unwrap().unwrap();
    }
}
