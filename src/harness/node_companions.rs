//! The companions of a command on another node: their socket, and the file that they read at their start.

use super::companion_socket::{self, Incoming};
use super::node_pid::PeerId;
use super::setup::{Variables, unpack_package};
use crate::protocol::companion::Setup;
use crate::store::run_dir::write_whole;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Messages of companions that wait.
const QUEUE: usize = 1024;

/// The companions of this node.
pub struct Companions {
    pub socket: PathBuf,
    setup_file: PathBuf,
    news: mpsc::Receiver<(PeerId, Incoming)>,
    /// Queues of lines for those that are connected.
    pub peers: BTreeMap<u64, mpsc::Sender<String>>,
}

impl Companions {
    /// Listens at `socket`, and writes the setup file beside it.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn open(socket: PathBuf, node: u32, setup: &Setup) -> io::Result<Self> {
        let (sender, news) = mpsc::channel(QUEUE);
        companion_socket::listen(&socket, sender)?;
        let setup_file = socket.with_extension("json");
        let companions = Self { socket, setup_file, news, peers: BTreeMap::new() };
        companions.write_setup(node, setup)?;
        Ok(companions)
    }

    /// Writes the file that each process reads at its start. It lies beside the socket: on a shared folder, a later process
    /// could read an earlier state.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn write_setup(&self, node: u32, setup: &Setup) -> io::Result<()> {
        let own = Setup { socket: self.socket.clone(), node, ..setup.clone() };
        write_whole(&self.setup_file, &serde_json::to_vec_pretty(&own)?)
    }

    /// Returns the variables that bring the companion into the processes of the command.
    ///
    /// # Errors
    /// Returns why it cannot be unpacked here.
    pub(super) fn variables(&self) -> io::Result<Variables> {
        Ok(Variables { package: unpack_package()?, setup_file: self.setup_file.clone() })
    }

    /// Reports whether a companion may still say something.
    pub fn has_news(&self) -> bool {
        !self.peers.is_empty() || !self.news.is_empty()
    }
}

impl Drop for Companions {
    fn drop(&mut self) {
        for file in [&self.socket, &self.setup_file] {
            let _ = std::fs::remove_file::<&Path>(file);
        }
    }
}

/// Waits for news of a connection; forever without companions.
pub async fn next_news(companions: &mut Option<Companions>) -> (PeerId, Incoming) {
    let news = match companions {
        Some(companions) => companions.news.recv().await,
        None => None,
    };
    match news {
        Some(news) => news,
        None => std::future::pending().await,
    }
}
