//! Checkpoints, off the training thread.
//!
//! ```text
//! step border: copy values to the host (training pauses) ──▶ saver thread: check, hash, write,
//!              one save in flight at a time                  sync, rename ──▶ `saved`
//! ```
//! Tensors of the CPU lie in host memory already: there the step border only takes hold of them, and
//! an update that comes while they are being written goes to fresh memory (Burn shares buffers and
//! copies them on write). What is written goes from there to the file without another copy.
//! Rows of the curve travel with the save; when it fails they come back and go with the next one.

use super::params::{HostTensors, safetensors_header};
use super::worker::Sink;
use crate::protocol::worker::{Event, Failed, Saved};
use crate::store::checkpoint::{
    self, CheckpointError, MODEL, OPTIMIZER, Pieces, STATE, STEPS,
    state::{Row, TrainState},
};
use crate::store::disk::{self, Shortage};
use crate::untrusted::file::{self, Limit};
use burn::tensor::{DType, TensorData};
use std::{
    io, iter,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Rows kept for a save that never comes; older ones are given up.
const MOST_ROWS: usize = 1 << 20;

/// Values of one step border on the host.
pub struct Snapshot {
    /// Weights by path.
    pub model: HostTensors,
    /// Moments by path and kind.
    pub optimizer: HostTensors,
}

/// Values of one step border, or what gives them: a device is read at the border, host memory later.
pub type Values = Box<dyn FnOnce() -> Result<Snapshot, Failed> + Send>;

/// A save to be made.
pub struct Job {
    /// The values.
    pub values: Values,
    /// Everything else.
    pub state: TrainState,
    /// When the copy to the host began.
    pub begun: Instant,
    /// How long training stood still.
    pub pause: Duration,
}

/// Why a save failed.
#[derive(Debug, thiserror::Error)]
enum SaveError {
    #[error(transparent)]
    NoRoom(#[from] Shortage),
    #[error(transparent)]
    NotWritten(#[from] CheckpointError),
    /// What was to be saved cannot be.
    #[error("{0}")]
    Content(String),
}

impl SaveError {
    fn is_of_the_disk(&self) -> bool {
        matches!(self, Self::NoRoom(_) | Self::NotWritten(CheckpointError::Io { .. }))
    }
}

/// How a save ended: durable, or with its rows still to be saved and the reason.
type Outcome = Result<Saved, (Vec<Row>, SaveError)>;

/// The saver thread, seen from the training thread.
pub struct Saver {
    jobs: SyncSender<(Job, Vec<Row>)>,
    outcomes: Receiver<Outcome>,
    in_flight: bool,
    durable: Option<Saved>,
    /// The lowest validation loss whose weights are on the disk.
    best: Option<f64>,
    /// The validation loss of the weights in flight.
    in_flight_loss: Option<f64>,
    failure: String,
    /// The disk was the reason.
    disk_refuses: bool,
    rows: Vec<Row>,
    sink: Arc<dyn Sink>,
}

impl Saver {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the operating system refuses one.
    pub fn start(run_dir: PathBuf, durable: Option<Saved>, sink: Arc<dyn Sink>) -> io::Result<Self> {
        let best = durable.as_ref().and_then(|saved| best_on_disk(&run_dir, saved.step));
        let (jobs, inbox) = sync_channel::<(Job, Vec<Row>)>(1);
        let (outbox, outcomes) = sync_channel(1);
        let events = Arc::clone(&sink);
        thread::Builder::new().name("saver".to_owned()).spawn(move || {
            for (job, rows) in inbox {
                let step = job.state.step;
                let outcome = match save(&run_dir, job, &rows) {
                    Ok(saved) => {
                        events.send(Event::Saved(saved.clone()));
                        Ok(saved)
                    }
                    Err(error) => {
                        events.send(Event::SaveFailed { step, message: error.to_string() });
                        Err((rows, error))
                    }
                };
                if outbox.send(outcome).is_err() {
                    return;
                }
            }
        })?;
        let (in_flight, in_flight_loss) = (false, None);
        let (failure, disk_refuses, rows) = (String::new(), false, Vec::new());
        Ok(Self { jobs, outcomes, in_flight, durable, best, in_flight_loss, failure, disk_refuses, rows, sink })
    }

    /// Adds a row of the curve to the next checkpoint.
    pub fn row(&mut self, row: Row) {
        if self.rows.len() >= MOST_ROWS {
            self.rows.drain(..MOST_ROWS / 8);
        }
        self.rows.push(row);
    }

    /// Whether a save is under way.
    pub fn is_busy(&mut self) -> bool {
        if let Ok(outcome) = self.outcomes.try_recv() {
            self.settle(outcome);
        }
        self.in_flight
    }

    /// Waits until no save is under way.
    pub fn wait(&mut self) {
        while self.in_flight {
            match self.outcomes.recv() {
                Ok(outcome) => self.settle(outcome),
                Err(_) => self.in_flight = false,
            }
        }
    }

    /// The newest step that is durable.
    pub fn durable_step(&self) -> Option<u64> {
        self.durable.as_ref().map(|saved| saved.step)
    }

    /// Whether weights with this validation loss are better than all that are on the disk or on
    /// their way there.
    pub fn is_new_best(&mut self, loss: f64) -> bool {
        let in_flight = if self.is_busy() { self.in_flight_loss } else { None };
        self.best.into_iter().chain(in_flight).all(|best| loss < best)
    }

    /// Why the newest save that failed did.
    pub fn failure(&self) -> &str {
        &self.failure
    }

    /// Whether the disk was the reason: it is full, or fails.
    pub fn disk_refuses(&self) -> bool {
        self.disk_refuses
    }

    /// Says again that the newest durable step is durable, to whoever asked for it just now.
    pub fn say_again(&self) {
        if let Some(saved) = &self.durable {
            self.sink.send(Event::Saved(saved.clone()));
        }
    }

    /// Hands a save over. Only while none is under way.
    pub fn submit(&mut self, job: Job) {
        let (step, loss) = (job.state.step, job.state.own_eval_loss());
        match self.jobs.send((job, std::mem::take(&mut self.rows))) {
            Ok(()) => (self.in_flight, self.in_flight_loss) = (true, loss),
            Err(refused) => {
                self.rows = refused.0.1;
                "the saver thread is gone".clone_into(&mut self.failure);
                self.sink.send(Event::SaveFailed { step, message: self.failure.clone() });
            }
        }
    }

    fn settle(&mut self, outcome: Outcome) {
        self.in_flight = false;
        match outcome {
            Ok(saved) => {
                self.best = self.best.into_iter().chain(saved.eval_loss).reduce(f64::min);
                self.durable = Some(saved);
            }
            Err((mut rows, error)) => {
                rows.append(&mut self.rows);
                (self.rows, self.failure, self.disk_refuses) = (rows, error.to_string(), error.is_of_the_disk());
            }
        }
    }
}

/// The lowest validation loss among the checkpoints on the disk up to `step`, each of its own weights.
fn best_on_disk(run_dir: &Path, step: u64) -> Option<f64> {
    let entries = checkpoint::list(run_dir).into_iter().filter(|entry| entry.step <= step);
    let loss = |entry: checkpoint::Entry| {
        let text = file::read(&entry.path.join(STATE), Limit::Record).ok()?;
        serde_json::from_slice::<TrainState>(&text).ok()?.own_eval_loss()
    };
    entries.filter_map(loss).filter(|loss| loss.is_finite()).reduce(f64::min)
}

fn save(run_dir: &Path, job: Job, rows: &[Row]) -> Result<Saved, SaveError> {
    let Job { values, state, begun, pause } = job;
    let Snapshot { model, optimizer } = values().map_err(|failed| SaveError::Content(failed.message))?;
    if let Some((name, _)) = model.iter().chain(&optimizer).find(|(_, data)| !finite(data)) {
        return Err(SaveError::Content(format!("{name} holds a value that is not finite; nothing was written")));
    }
    let text = serde_json::to_vec_pretty(&state).map_err(|error| SaveError::Content(error.to_string()))?;
    let model = safetensors_header(&model).map_err(SaveError::Content)?;
    let optimizer = safetensors_header(&optimizer).map_err(SaveError::Content)?;
    let steps = Row::write_all(rows);
    let files = [
        (MODEL, pieces(&model.0, &model.1)),
        (OPTIMIZER, pieces(&optimizer.0, &optimizer.1)),
        (STATE, vec![text.as_slice()]),
        (STEPS, vec![steps.as_bytes()]),
    ];
    let samples = state.position.samples;
    let bytes = files.iter().flat_map(|(_, pieces)| pieces).map(|piece| piece.len() as u64).sum();
    disk::has_room_to_save(run_dir, bytes)?;
    let contents = Pieces { step: state.step, samples, build: env!("CARGO_PKG_VERSION"), files: &files };
    let written = checkpoint::write_pieces(run_dir, &contents)?;
    Ok(Saved {
        path: written.path,
        step: state.step,
        samples,
        bytes: written.bytes,
        pause_ms: pause.as_secs_f64() * 1e3,
        total_ms: begun.elapsed().as_secs_f64() * 1e3,
        eval_loss: state.own_eval_loss(),
    })
}

fn pieces<'a>(header: &'a [u8], tensors: &[&'a TensorData]) -> Vec<&'a [u8]> {
    iter::once(header).chain(tensors.iter().map(|data| data.as_bytes())).collect()
}

/// Whether every number is one; codes of 8 bits always are. In blocks without a branch: this reads gigabytes.
fn finite(data: &TensorData) -> bool {
    let block = |numbers: &[f32]| numbers.iter().fold(true, |all, number| all & number.is_finite());
    data.dtype == DType::U8 || data.as_slice::<f32>().is_ok_and(|numbers| numbers.chunks(4096).all(block))
}
