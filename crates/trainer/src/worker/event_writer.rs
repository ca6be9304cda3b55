//! The events of the worker: its private stdout and the thread that writes events to it.
//!
//! Life-cycle events are never dropped; a sender waits for room if it must. Rows of the curve are dropped
//! once the reader falls too far behind; they reach the keeper with the next checkpoint.

use super::orders::OrderForwarder;
use crate::job::EventSink;
use downshift_core::format::counted;
use downshift_core::protocol::line;
use downshift_core::protocol::worker::{Event, Level};
use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Events queued for the reader before rows are dropped.
const MAX_QUEUED: usize = 1 << 16;
/// Additional room for events that are never dropped.
const RESERVE: usize = 1 << 10;

/// Keeps the real stdout for events and points fd 1 at stderr, so that a stray print cannot
/// corrupt the stdout.
pub fn claim_stdout() -> io::Result<Arc<OwnedFd>> {
    let stdout = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok(Arc::new(stdout))
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    dropped: u64,
    writing: bool,
    broken: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue in front of the writer thread.
pub struct EventWriter(Arc<Shared>);

impl EventWriter {
    /// Starts the thread. If the reader disappears, training is stopped.
    pub fn start(stdout: &OwnedFd, forwarder: OrderForwarder) -> io::Result<Self> {
        Self::write_to(File::from(stdout.try_clone()?), forwarder)
    }

    fn write_to(mut out: impl Write + Send + 'static, forwarder: OrderForwarder) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let queue = Arc::clone(&shared);
        thread::Builder::new().name("events".to_owned()).spawn(move || {
            if write_all(&queue, &mut out).is_err() {
                let mut broken = queue.lock();
                (broken.broken, broken.writing) = (true, false);
                broken.events.clear();
                drop(broken);
                queue.changed.notify_all();
                forwarder.on_listener_lost();
            }
        })?;
        Ok(Self(shared))
    }
}

fn write_all(shared: &Shared, out: &mut impl Write) -> io::Result<()> {
    loop {
        let batch = {
            let mut queue = shared.lock();
            queue.writing = false;
            shared.changed.notify_all();
            while queue.events.is_empty() {
                queue = shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            queue.writing = true;
            let mut batch = std::mem::take(&mut queue.events);
            let dropped = std::mem::take(&mut queue.dropped);
            if dropped > 0 {
                let late = counted(dropped, "step");
                let text = format!("the keeper reads too slowly: {late} will arrive with the next checkpoint");
                batch.push_back(Event::Note { level: Level::Warn, text });
            }
            batch
        };
        shared.changed.notify_all();
        let lines: String = batch.iter().filter_map(|event| line::encode(event).ok()).collect();
        out.write_all(lines.as_bytes())?;
        out.flush()?;
    }
}

impl EventSink for EventWriter {
    fn send(&self, event: Event) {
        let is_row = matches!(event, Event::Step(_) | Event::Skipped(_));
        let mut queue = self.0.lock();
        if is_row && queue.events.len() >= MAX_QUEUED {
            queue.dropped += 1;
            return;
        }
        while queue.events.len() >= MAX_QUEUED + RESERVE && !queue.broken {
            queue = self.0.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if !queue.broken {
            queue.events.push_back(event);
            self.0.changed.notify_all();
        }
    }

    fn flush(&self, limit: Duration) {
        let queue = self.0.lock();
        let is_unwritten = |queue: &mut Queue| !queue.broken && (queue.writing || !queue.events.is_empty());
        drop(self.0.changed.wait_timeout_while(queue, limit, is_unwritten));
    }
}

#[cfg(test)]
mod tests {
    use super::{EventWriter, MAX_QUEUED, RESERVE};
    use crate::job::EventSink;
    use crate::worker::orders::OrderForwarder;
    use downshift_core::protocol::line;
    use downshift_core::protocol::worker::{Event, Order, Phase, Skipped};
    use std::{
        io::{self, Write},
        sync::mpsc::{Receiver, Sender, channel},
        time::Duration,
    };

    /// A reader that reads a batch only on request.
    struct Slow {
        go: Receiver<()>,
        written: Sender<String>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.go.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.written.send(String::from_utf8_lossy(bytes).into_owned()).ok();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn skipped_row(step: u64) -> Event {
        let (what, place) = ("loss".to_owned(), String::new());
        Event::Skipped(Skipped {
            step,
            samples: step,
            epoch: 0,
            lr: 0.0,
            what,
            place,
            parameter: None,
            rescaled: false,
            applied: false,
        })
    }

    #[test]
    fn a_stalled_reader_loses_rows_but_no_life_cycle_events() {
        let ((go, wait), (written, lines)) = (channel(), channel());
        let (orders, _keep) = channel();
        let writer = EventWriter::write_to(Slow { go: wait, written }, OrderForwarder::without_exit(orders)).unwrap();
        let sent = MAX_QUEUED as u64 * 2;
        for step in 0..sent {
            writer.send(skipped_row(step));
        }
        for _ in 0..RESERVE / 2 {
            writer.send(Event::Phase { phase: Phase::Training });
        }
        for _ in 0..10 {
            go.send(()).unwrap();
        }
        writer.flush(Duration::from_secs(30));
        let events: Vec<Event> =
            lines.try_iter().flat_map(|text| text.lines().filter_map(line::decode).collect::<Vec<_>>()).collect();
        let phases = events.iter().filter(|event| matches!(event, Event::Phase { .. })).count();
        let rows = events.iter().filter(|event| matches!(event, Event::Skipped(_))).count();
        assert_eq!(phases, RESERVE / 2);
        assert!((MAX_QUEUED..MAX_QUEUED * 2).contains(&rows), "{rows}");
        let noted = events.iter().any(|event| matches!(event, Event::Note { text, .. } if text.contains("too slowly")));
        assert!(noted);
    }

    #[test]
    fn a_lost_reader_stops_training_and_blocks_nothing() {
        let ((go, wait), (written, _lines)) = (channel::<()>(), channel());
        let (give, orders) = channel();
        let writer = EventWriter::write_to(Slow { go: wait, written }, OrderForwarder::without_exit(give)).unwrap();
        drop(go);
        writer.send(skipped_row(1));
        assert_eq!(orders.recv_timeout(Duration::from_secs(30)), Ok(Order::Stop { checkpoint: true }));
        for step in 0..MAX_QUEUED as u64 * 2 {
            writer.send(skipped_row(step));
        }
        writer.flush(Duration::from_secs(30));
    }
}
