//! Checkpoints, off the training thread.
//!
//! ```text
//! step boundary: copy values to the host (training pauses) ──▶ saver thread: check, hash, write,
//!                one save in flight at a time                  sync, rename ──▶ `saved`
//! ```
//! On the CPU, tensors are already in host memory: the step boundary only takes references to them, and an
//! update during the write goes to fresh memory (Burn shares buffers and copies them on write). Values are
//! written to the file without another copy. Rows of the curve travel with the save; if it fails, they come
//! back and go with the next one.

use super::job::EventSink;
use super::params::HostTensors;
use super::params::safetensors_file::{HeaderError, safetensors_header};
use burn::tensor::{DType, TensorData};
use downshift_core::config::best::Best;
use downshift_core::protocol::worker::{Eval, Event, Failed, Saved};
use downshift_core::store::checkpoint::{
    self, CheckpointError, MODEL, OPTIMIZER, Pieces, STATE, STEPS,
    state::{Row, TrainState, best_value_on_disk},
};
use downshift_core::store::disk::{self, Shortage};
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

/// The most rows held back while no save succeeds; older ones are dropped.
const MOST_ROWS: usize = 1 << 20;

/// The values at one step boundary, on the host.
pub struct Snapshot {
    /// Weights by path.
    pub model: HostTensors,
    /// Moments by path and kind.
    pub optimizer: HostTensors,
}

/// The values at one step boundary, or a function that produces them: a device is read at the boundary, host
/// memory later.
pub type Values = Box<dyn FnOnce() -> Result<Snapshot, Failed> + Send>;

/// A pending save.
pub struct SaveJob {
    /// The values.
    pub values: Values,
    /// Everything else.
    pub state: TrainState,
    /// The start of the copy to the host.
    pub begun: Instant,
    /// Time that training was paused.
    pub pause: Duration,
}

/// The reason a save failed.
#[derive(Debug, thiserror::Error)]
enum SaveError {
    #[error(transparent)]
    DiskFull(#[from] Shortage),
    #[error(transparent)]
    NotWritten(#[from] CheckpointError),
    /// The device cannot be read.
    #[error("{}", .0.message)]
    Device(Failed),
    /// A value is NaN or infinite.
    #[error("{0} contains NaN or infinity; nothing was written")]
    NonFinite(String),
    /// The training state cannot be written as JSON.
    #[error(transparent)]
    State(#[from] serde_json::Error),
    /// The tensors cannot be written as safetensors.
    #[error(transparent)]
    Tensors(#[from] HeaderError),
}

impl SaveError {
    fn is_disk_failure(&self) -> bool {
        matches!(self, Self::DiskFull(_) | Self::NotWritten(CheckpointError::Io { .. }))
    }
}

/// The outcome of a save: durable, or failed with the rows still to be saved and the reason.
type Outcome = Result<Saved, (Vec<Row>, SaveError)>;

/// The training thread's handle to the saver thread.
pub struct Saver {
    jobs: SyncSender<(SaveJob, Vec<Row>)>,
    outcomes: Receiver<Outcome>,
    in_flight: bool,
    durable: Option<Saved>,
    /// How evaluations are ranked.
    ranking: Best,
    /// The best evaluation whose weights are on disk, by its ranking value.
    best: Option<f64>,
    /// The ranking value of the weights in flight.
    in_flight_value: Option<f64>,
    failure: String,
    /// Whether the disk caused the last failure.
    disk_refuses: bool,
    rows: Vec<Row>,
    sink: Arc<dyn EventSink>,
}

impl Saver {
    /// Starts the thread.
    ///
    /// # Errors
    /// Returns an error when the operating system refuses a thread.
    pub fn start(
        run_dir: PathBuf,
        durable: Option<Saved>,
        ranking: Best,
        sink: Arc<dyn EventSink>,
    ) -> io::Result<Self> {
        let best = durable.as_ref().and_then(|saved| best_value_on_disk(&run_dir, saved.step, &ranking));
        let (jobs, inbox) = sync_channel::<(SaveJob, Vec<Row>)>(1);
        let (outbox, outcomes) = sync_channel(1);
        let events = Arc::clone(&sink);
        thread::Builder::new().name("saver".to_owned()).spawn(move || {
            for (job, rows) in inbox {
                let step = job.state.step;
                let outcome = match write_checkpoint(&run_dir, job, &rows) {
                    Ok(saved) => {
                        events.send(Event::Saved(saved.clone()));
                        Ok(saved)
                    }
                    Err(error) => {
                        let of_disk = error.is_disk_failure();
                        events.send(Event::SaveFailed { step, message: error.to_string(), of_disk });
                        Err((rows, error))
                    }
                };
                if outbox.send(outcome).is_err() {
                    return;
                }
            }
        })?;
        let (in_flight, in_flight_value) = (false, None);
        let (failure, disk_refuses, rows) = (String::new(), false, Vec::new());
        Ok(Self {
            jobs,
            outcomes,
            in_flight,
            durable,
            ranking,
            best,
            in_flight_value,
            failure,
            disk_refuses,
            rows,
            sink,
        })
    }

    /// Adds a row of the curve to the next checkpoint.
    pub fn add_row(&mut self, row: Row) {
        if self.rows.len() >= MOST_ROWS {
            self.rows.drain(..MOST_ROWS / 8);
        }
        self.rows.push(row);
    }

    /// Reports whether a save is in flight.
    pub fn is_busy(&mut self) -> bool {
        if let Ok(outcome) = self.outcomes.try_recv() {
            self.record_outcome(outcome);
        }
        self.in_flight
    }

    /// Waits until no save is in flight.
    pub fn wait(&mut self) {
        while self.in_flight {
            match self.outcomes.recv() {
                Ok(outcome) => self.record_outcome(outcome),
                Err(_) => self.in_flight = false,
            }
        }
    }

    /// Returns the newest durable step.
    pub fn durable_step(&self) -> Option<u64> {
        self.durable.as_ref().map(|saved| saved.step)
    }

    /// Reports whether weights with this evaluation beat all that are on disk or in flight.
    pub fn is_new_best(&mut self, eval: &Eval) -> bool {
        let in_flight = if self.is_busy() { self.in_flight_value } else { None };
        let Some(value) = rank(&self.ranking, eval) else { return false };
        self.best.into_iter().chain(in_flight).all(|best| self.ranking.compare(value, best).is_lt())
    }

    /// Returns the reason of the latest failed save.
    pub fn failure(&self) -> &str {
        &self.failure
    }

    /// Reports whether the disk caused the failure: it is full or failing.
    pub fn disk_refuses(&self) -> bool {
        self.disk_refuses
    }

    /// Reports the newest durable step again, in reply to a request.
    pub fn announce_again(&self) {
        if let Some(saved) = &self.durable {
            self.sink.send(Event::Saved(saved.clone()));
        }
    }

    /// Submits a save. Call only while none is in flight.
    pub fn submit(&mut self, job: SaveJob) {
        let step = job.state.step;
        let value = job.state.own_eval().and_then(|eval| rank(&self.ranking, eval));
        match self.jobs.send((job, std::mem::take(&mut self.rows))) {
            Ok(()) => (self.in_flight, self.in_flight_value) = (true, value),
            Err(refused) => {
                self.rows = refused.0.1;
                "the saver thread has stopped".clone_into(&mut self.failure);
                self.disk_refuses = false;
                self.sink.send(Event::SaveFailed { step, message: self.failure.clone(), of_disk: false });
            }
        }
    }

    fn record_outcome(&mut self, outcome: Outcome) {
        self.in_flight = false;
        match outcome {
            Ok(saved) => {
                let value = self.ranking.value(saved.eval_loss, &saved.metrics);
                self.best = self.best.into_iter().chain(value).min_by(|a, b| self.ranking.compare(*a, *b));
                self.durable = Some(saved);
            }
            Err((mut rows, error)) => {
                rows.append(&mut self.rows);
                (self.rows, self.failure, self.disk_refuses) = (rows, error.to_string(), error.is_disk_failure());
            }
        }
    }
}

fn rank(ranking: &Best, eval: &Eval) -> Option<f64> {
    ranking.value(eval.loss, &eval.metrics)
}

fn write_checkpoint(run_dir: &Path, job: SaveJob, rows: &[Row]) -> Result<Saved, SaveError> {
    let SaveJob { values, state, begun, pause } = job;
    let Snapshot { model, optimizer } = values().map_err(SaveError::Device)?;
    if let Some((name, _)) = model.iter().chain(&optimizer).find(|(_, data)| !is_finite(data)) {
        return Err(SaveError::NonFinite(name.clone()));
    }
    let text = serde_json::to_vec_pretty(&state)?;
    let model = safetensors_header(&model)?;
    let optimizer = safetensors_header(&optimizer)?;
    let steps = Row::write_all(rows);
    let files = [
        (MODEL, file_pieces(&model.0, &model.1)),
        (OPTIMIZER, file_pieces(&optimizer.0, &optimizer.1)),
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
        metrics: state.own_eval().map(|eval| eval.metrics.clone()).unwrap_or_default(),
    })
}

fn file_pieces<'a>(header: &'a [u8], tensors: &[&'a TensorData]) -> Vec<&'a [u8]> {
    iter::once(header).chain(tensors.iter().map(|data| data.as_bytes())).collect()
}

/// Reports whether all values are finite; 8-bit codes always are. Works in blocks without branches because it
/// reads gigabytes.
fn is_finite(data: &TensorData) -> bool {
    let block = |numbers: &[f32]| numbers.iter().fold(true, |all, number| all & number.is_finite());
    data.dtype == DType::U8 || data.as_slice::<f32>().is_ok_and(|numbers| numbers.chunks(4096).all(block))
}
