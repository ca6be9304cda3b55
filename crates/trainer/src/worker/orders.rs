//! Orders to training, from stdin and from signals. The worker lives only as long as a keeper listens: when stdin
//! closes or stdout breaks, it is ordered to save and stop at the next step boundary, and exits after 5 s whatever
//! training does. A worker that only measured saves nothing.
//!
//! SIGTERM is the same order: a machine that shuts down sends it to keeper and worker together. A second stop
//! request some time after the first ends the worker at once.

use crate::exit::exit_now;
use crate::job::EventSink;
use downshift_core::protocol::exit_code::STOPPED;
use downshift_core::protocol::line;
use downshift_core::protocol::worker::{Event, Level, Order};
use std::{
    io::{self, BufRead},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    thread,
    time::{Duration, Instant},
};
use tokio::signal::unix::{SignalKind, signal};

/// Maximum lifetime of a worker without a listener.
const EXIT_AFTER: Duration = Duration::from_secs(5);

/// Stop requests within this window count once: the keeper and the system may both send one.
const SAME_REQUEST: Duration = Duration::from_secs(1);
/// Age after which an earlier stop request no longer counts: it was refused or forgotten.
const STALE_REQUEST: Duration = Duration::from_mins(2);

/// Forwards orders to training, and stops it once the keeper is gone.
#[derive(Clone)]
pub struct OrderForwarder {
    orders: Sender<Order>,
    listener_lost: Arc<AtomicBool>,
    /// Time of the last stop request to training.
    last_stop: Arc<Mutex<Option<Instant>>>,
    /// Whether training progress is saved at the end.
    saves: bool,
    exits: bool,
}

impl OrderForwarder {
    /// Returns a forwarder to training; `saves` decides whether training progress is saved when the listener is lost.
    pub fn new(orders: Sender<Order>, saves: bool) -> Self {
        Self { orders, listener_lost: Arc::default(), last_stop: Arc::default(), saves, exits: true }
    }

    /// Returns a forwarder that stops training but leaves the process running.
    #[cfg(test)]
    pub fn without_exit(orders: Sender<Order>) -> Self {
        Self { exits: false, ..Self::new(orders, true) }
    }

    /// Forwards orders from stdin until it closes.
    pub fn watch_stdin(&self, sink: Arc<dyn EventSink>) -> io::Result<()> {
        let forwarder = self.clone();
        thread::Builder::new().name("orders".to_owned()).spawn(move || {
            for text in io::stdin().lock().split(b'\n') {
                let Ok(text) = text else { break };
                let text = String::from_utf8_lossy(&text);
                match line::decode(&text) {
                    Some(order) => {
                        if matches!(order, Order::Stop { .. }) {
                            forwarder.note_stop();
                        }
                        forwarder.orders.send(order).ok();
                    }
                    None if text.trim().is_empty() => {}
                    None => {
                        let text = format!("ignored an unrecognized order on stdin: {}", text.trim());
                        sink.send(Event::Note { level: Level::Warn, text });
                    }
                }
            }
            forwarder.on_listener_lost();
        })?;
        Ok(())
    }

    /// Turns SIGTERM into an order to save and stop. A write beyond the file size limit becomes an error like
    /// that of a full disk, instead of killing the process.
    pub fn watch_signals(&self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let mut terminate = signal(SignalKind::terminate())?;
        drop(signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?);
        drop(entered);
        let forwarder = self.clone();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            while runtime.block_on(terminate.recv()).is_some() {
                forwarder.on_sigterm();
            }
        })?;
        Ok(())
    }

    fn on_sigterm(&self) {
        let last_stop = self.note_stop();
        if last_stop.is_some_and(|age| age > SAME_REQUEST && age < STALE_REQUEST) && self.exits {
            exit_now(STOPPED);
        }
        if last_stop.is_none_or(|age| age > SAME_REQUEST) {
            self.orders.send(Order::Stop { checkpoint: self.saves }).ok();
        }
    }

    /// Records a stop request and returns the time since the previous one.
    fn note_stop(&self) -> Option<Duration> {
        let mut last_stop = self.last_stop.lock().unwrap_or_else(PoisonError::into_inner);
        last_stop.replace(Instant::now()).map(|at| at.elapsed())
    }

    /// Handles the loss of the listener. Returns only on threads that were not the first to notice.
    pub fn on_listener_lost(&self) {
        if self.listener_lost.swap(true, Ordering::SeqCst) {
            return;
        }
        self.orders.send(Order::Stop { checkpoint: self.saves }).ok();
        if self.exits {
            thread::sleep(EXIT_AFTER);
            exit_now(STOPPED);
        }
    }
}
