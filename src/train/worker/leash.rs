//! The worker lives no longer than somebody listens. When stdin closes, or stdout breaks, it is
//! told to save and stop at the next step border, and ends after 5 s whatever training does. One that
//! was only measured saves nothing.
//!
//! SIGTERM is the same order: a machine that shuts down sends it to keeper and worker together. Who
//! was told to stop a while ago and is told again ends at once.

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

/// How long a worker may live on alone.
const ALONE: Duration = Duration::from_secs(5);

/// Words to stop that come within so long of each other are one: the keeper's and the system's.
const AT_ONCE: Duration = Duration::from_secs(1);
/// A word to stop that is older was refused or forgotten.
const FORGOTTEN: Duration = Duration::from_mins(2);

/// What ends the worker when nobody listens any more.
#[derive(Clone)]
pub struct Leash {
    orders: Sender<Order>,
    loose: Arc<AtomicBool>,
    /// When training was last told to stop.
    told: Arc<Mutex<Option<Instant>>>,
    /// Whether what was trained is saved at the end.
    saves: bool,
    ends: bool,
}

impl Leash {
    /// A leash that passes orders on to training; what was trained is saved or not when it is let go.
    pub fn new(orders: Sender<Order>, saves: bool) -> Self {
        Self { orders, loose: Arc::default(), told: Arc::default(), saves, ends: true }
    }

    /// One that stops training and leaves the process alone.
    #[cfg(test)]
    pub fn without_end(orders: Sender<Order>) -> Self {
        Self { ends: false, ..Self::new(orders, true) }
    }

    /// Passes on what comes in on stdin, until it closes.
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

    /// Turns SIGTERM into an order to save and stop. A write beyond the limit of a file's size becomes
    /// an error like that of a full disk, instead of the end of the process.
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

    /// Training is told to stop; how long ago it was told before.
    fn note_stop(&self) -> Option<Duration> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.replace(Instant::now()).map(|at| at.elapsed())
    }

    /// Nobody listens any more. Returns only to a thread that is not the first to notice.
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
