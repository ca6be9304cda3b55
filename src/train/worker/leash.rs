//! The worker lives no longer than somebody listens. When stdin closes, or stdout breaks, it is
//! told to save and stop at the next step border, and ends after 5 s whatever training does.

use super::{STOPPED, Sink};
use crate::protocol::line;
use crate::protocol::worker::{Event, Level, Order};
use crate::train::exit;
use std::{
    io::{self, BufRead},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    thread,
    time::Duration,
};

/// How long a worker may live on alone.
const ALONE: Duration = Duration::from_secs(5);

/// What ends the worker when nobody listens any more.
#[derive(Clone)]
pub struct Leash {
    orders: Sender<Order>,
    loose: Arc<AtomicBool>,
    ends: bool,
}

impl Leash {
    /// A leash that passes orders on to training.
    pub fn new(orders: Sender<Order>) -> Self {
        Self { orders, loose: Arc::default(), ends: true }
    }

    /// One that stops training and leaves the process alone.
    #[cfg(test)]
    pub fn without_end(orders: Sender<Order>) -> Self {
        Self { ends: false, ..Self::new(orders) }
    }

    /// Passes on what comes in on stdin, until it closes.
    pub fn watch_stdin(&self, sink: Arc<dyn Sink>) -> io::Result<()> {
        let leash = self.clone();
        thread::Builder::new().name("orders".to_owned()).spawn(move || {
            for text in io::stdin().lock().split(b'\n') {
                let Ok(text) = text else { break };
                let text = String::from_utf8_lossy(&text);
                match line::decode(&text) {
                    Some(order) => drop(leash.orders.send(order)),
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

    /// Nobody listens any more. Returns only to a thread that is not the first to notice.
    pub fn let_go(&self) {
        if self.loose.swap(true, Ordering::SeqCst) {
            return;
        }
        self.orders.send(Order::Stop { checkpoint: true }).ok();
        if self.ends {
            thread::sleep(ALONE);
            exit::now(STOPPED);
        }
    }
}
