//! The kernels of a start: the count shown while they are compiled, and the moment at which tuned ones may replace
//! those taken without tuning.

use super::job::EventSink;
use downshift_core::protocol::worker::{Event, KernelCount};
use downshift_core::store::kernels::{KernelSet, Tuning};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Time between two counts.
const PERIOD: Duration = Duration::from_millis(250);

/// Facts about the kernels of a worker, known before it uses the device.
#[derive(Debug, Clone)]
pub struct KernelStart {
    /// The kernels that the rung needs.
    pub set: KernelSet,
    /// How this start chooses among them.
    pub tuning: Tuning,
    /// Where `prepare` keeps tuned decisions.
    pub decisions: Option<PathBuf>,
    /// Returns the number of kernels used so far.
    pub count: fn() -> u64,
    /// Ends that count.
    pub stop_counting: fn(),
}

/// Watches the kernels of a worker.
pub struct KernelWatch {
    start: KernelStart,
    sink: Arc<dyn EventSink>,
    /// Closed after the first step.
    counting: Option<Sender<()>>,
    announced: bool,
}

impl KernelWatch {
    /// Begins to report the kernels used, until the first step has been taken.
    pub fn begin(start: KernelStart, sink: &Arc<dyn EventSink>) -> Self {
        let (counting, over) = mpsc::channel::<()>();
        let (count, expected) = (start.count, start.set.known_count(start.tuning));
        let events = Arc::clone(sink);
        // Without the thread, only the count is missing.
        let _ = thread::Builder::new().name("kernel count".to_owned()).spawn(move || {
            let mut last = 0;
            while let Err(RecvTimeoutError::Timeout) = over.recv_timeout(PERIOD) {
                let used = count();
                if std::mem::replace(&mut last, used) != used {
                    events.send(Event::Kernels(KernelCount { used, expected }));
                }
            }
        });
        Self { start, sink: Arc::clone(sink), counting: Some(counting), announced: false }
    }

    /// Ends the count, which becomes the estimate for the next start.
    pub fn end_first_step(&mut self) {
        if self.counting.take().is_some() {
            (self.start.stop_counting)();
            self.start.set.keep_count(self.start.tuning, (self.start.count)());
        }
    }

    /// Announces, once, that this worker's kernels have been tuned since it started.
    pub fn announce_tuned(&mut self) {
        let has_tuned = |decisions: &PathBuf| self.start.set.is_tuned_in(decisions);
        if self.start.tuning == Tuning::Skipped
            && !self.announced
            && self.start.decisions.as_ref().is_some_and(has_tuned)
        {
            self.announced = true;
            self.sink.send(Event::KernelsTuned);
        }
    }
}
