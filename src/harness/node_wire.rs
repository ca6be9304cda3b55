//! The stdin and stdout of a helper on a node. Both are read and written on threads: a job step may give it pipes or sockets.

use crate::protocol::line;
use crate::protocol::node::{NodeEvent, NodeOrder};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::thread::{self, JoinHandle};
use tokio::sync::mpsc;

/// Messages that wait for a harness that does not read.
const QUEUE: usize = 1024;
/// Longest order.
const LONGEST: u64 = 64 << 20;

/// Reads orders until stdin ends; then the channel closes.
pub fn read_orders() -> mpsc::Receiver<NodeOrder> {
    let (sender, orders) = mpsc::channel(QUEUE);
    thread::spawn(move || {
        let mut reader = BufReader::new(io::stdin());
        let mut text = Vec::new();
        while matches!((&mut reader).take(LONGEST).read_until(b'\n', &mut text), Ok(count) if count > 0) {
            if let Some(order) = line::decode(&String::from_utf8_lossy(&text))
                && sender.blocking_send(order).is_err()
            {
                return;
            }
            text.clear();
        }
    });
    orders
}

/// A piece of the streams to the harness.
enum Sent {
    /// A line on stdout.
    Line(String),
    /// Output of the command, for the log.
    Log(Vec<u8>),
}

/// The way to the harness.
#[derive(Clone)]
pub struct Outbox(mpsc::Sender<Sent>);

impl Outbox {
    /// Opens stdout and stderr. The thread ends once every copy of the outbox is dropped and all is written.
    pub fn open() -> (Self, JoinHandle<()>) {
        let (sender, mut queue) = mpsc::channel(QUEUE);
        let writer = thread::spawn(move || {
            while let Some(sent) = queue.blocking_recv() {
                // If nobody reads, stdin ends, too.
                let _ = match sent {
                    Sent::Line(line) => io::stdout().write_all(line.as_bytes()).and_then(|()| io::stdout().flush()),
                    Sent::Log(bytes) => io::stderr().write_all(&bytes),
                };
            }
        });
        (Self(sender), writer)
    }

    /// Sends an event.
    pub async fn event(&self, event: &NodeEvent) {
        if let Ok(line) = line::encode(event) {
            let _ = self.0.send(Sent::Line(line)).await;
        }
    }

    /// Writes output of the command to the log.
    pub async fn log(&self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            let _ = self.0.send(Sent::Log(bytes)).await;
        }
    }
}
