//! The worker lives only as long as somebody listens. When stdin closes or stdout breaks, it is ordered to
//! save and stop at the next step boundary, and exits after 5 s whatever training does. A worker that only
//! measured saves nothing.
//!
//! SIGTERM is the same order: a machine that shuts down sends it to keeper and worker together. A second stop
//! request some time after the first ends the worker at once.

use super::{STOPPED, Sink};
use crate::protocol::line;
use crate::protocol::worker::{Event, Level, Order};
use crate::train::exit;
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
const ALONE: Duration = Duration::from_secs(5);

/// Stop requests within this window count once: the keeper and the system may both send one.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Age after which an earlier stop request no longer counts: it was refused or forgotten.
const FORGOTTEN: Duration = Duration::from_mins(2);

/// Ends the worker when nobody listens anymore.
#[derive(Clone)]
pub struct Leash {
    orders: Sender<Order>,
    loose: Arc<AtomicBool>,
    /// Time of the last stop request to training.
    told: Arc<Mutex<Option<Instant>>>,
    /// Whether training progress is saved at the end.
    saves: bool,
    ends: bool,
}

impl Leash {
    /// Returns a leash that forwards orders to training; `saves` decides whether letting go saves training progress.
    pub fn new(orders: Sender<Order>, saves: bool) -> Self {
        Self { orders, loose: Arc::default(), told: Arc::default(), saves, ends: true }
    }

    /// Returns a leash that stops training but leaves the process running.
    #[cfg(test)]
    pub fn without_end(orders: Sender<Order>) -> Self {
        Self { ends: false, ..Self::new(orders, true) }
    }

    /// Forwards orders from stdin until it closes.
    pub fn watch_stdin(&self, sink: Arc<dyn Sink>) -> io::Result<()> {
        let leash = self.clone();
        thread::Builder::new().name("orders".to_owned()).spawn(move || {
            for text in io::stdin().lock().split(b'\n') {
                let Ok(text) = text else { break };
                let text = String::from_utf8_lossy(&text);
                match line::decode(&text) {
                    Some(order) => {
                        if matches!(order, Order::Stop { .. }) {
                            leash.note_stop();
                        }
                        leash.orders.send(order).ok();
                    }
                    None if text.trim().is_empty() => {}
                    None => {
                        let text = format!("passed over a line on stdin that is no order: {}", text.trim());
                        sink.send(Event::Note { level: Level::Warn, text });
                    }
                }
            }
            leash.let_go();
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
        let leash = self.clone();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            while runtime.block_on(terminate.recv()).is_some() {
                leash.terminated();
            }
        })?;
        Ok(())
    }

    fn terminated(&self) {
        let told = self.note_stop();
        if told.is_some_and(|age| age > AT_ONCE && age < FORGOTTEN) && self.ends {
            exit::now(STOPPED);
        }
        if told.is_none_or(|age| age > AT_ONCE) {
            self.orders.send(Order::Stop { checkpoint: self.saves }).ok();
        }
    }

    /// Records a stop request and returns the time since the previous one.
    fn note_stop(&self) -> Option<Duration> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.replace(Instant::now()).map(|at| at.elapsed())
    }

    /// Handles the loss of the listener. Returns only on threads that were not the first to notice.
    pub fn let_go(&self) {
        if self.loose.swap(true, Ordering::SeqCst) {
            return;
        }
        self.orders.send(Order::Stop { checkpoint: self.saves }).ok();
        if self.ends {
            thread::sleep(ALONE);
            exit::now(STOPPED);
        }
    }
}
