//! Runs a real worker without a keeper for a few steps, to measure it, in a temporary run directory that
//! is deleted afterwards. Leaves existing runs untouched.

use super::card::Card;
use super::folder::{TemporaryFolder, end_of_log};
use super::{Measurement, Unmeasured};
use crate::cli::Failure;
use crate::config::run::Run;
use crate::config::units::Every;
use crate::keeper::worker_process::worker_program;
use crate::protocol::line;
use crate::protocol::plan::{Measured, Phases};
use crate::protocol::worker::{Event, Hello, Memory, Phase, Step};
use crate::store::run_dir::RunDir;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Silence after which a worker is ended.
const SILENCE: Duration = Duration::from_mins(15);

/// Workers without a keeper, run one after the other on the same device.
pub struct IsolatedWorker<'a> {
    device: &'a str,
    steps: u64,
    evaluation: Every,
    card: Option<Card>,
}

impl<'a> IsolatedWorker<'a> {
    /// Creates workers that take `steps` steps on a device; `gpu` is its NVML index if it is a GPU.
    pub fn new(device: &'a str, gpu: Option<u32>, steps: u64) -> Self {
        Self { device, steps: steps.max(1), evaluation: Every::Never, card: gpu.map(Card::watch) }
    }

    /// Adds an evaluation after the last step, to cover its kernels.
    pub fn with_evaluation(self) -> Self {
        Self { evaluation: Every::Steps(self.steps), ..self }
    }

    /// Runs the steps on a rung and returns the measurements.
    pub fn measure(&mut self, run: &Run, rung: usize) -> Result<Measurement, Unmeasured> {
        self.measure_with(run, rung, |_| {}, |_| {})
    }

    /// Does the same, with callbacks on the run directory before and after.
    pub fn measure_with(
        &mut self,
        run: &Run,
        rung: usize,
        before: impl FnOnce(&Path),
        after: impl FnOnce(&Path),
    ) -> Result<Measurement, Unmeasured> {
        let place = TemporaryFolder::new()?;
        let mut run = run.clone();
        // The cost of checkpoints is not measured here.
        for rung in &mut run.rungs {
            rung.preset.evaluation.every = self.evaluation;
            rung.preset.checkpoint.every = Every::Never;
        }
        let dir = RunDir::create(&place.path, &run)?;
        before(dir.path());
        if let Some(card) = &mut self.card {
            card.clear(&run.watch.ending, || false);
        }
        let begun = Instant::now();
        let mut worker = self.start(&dir, rung)?;
        let heard = listen(&mut worker, self.steps, begun, || self.card.as_mut().map(Card::update_peak));
        let _ = worker.kill();
        let _ = worker.wait();
        after(dir.path());
        let mut seen = heard.map_err(|(code, message)| {
            let rung = &run.rungs[rung].name;
            let log = end_of_log(&dir.file("worker.log"));
            Unmeasured::with_code(code, format!("rung {rung}: {message}{log}"))
        })?;
        if let Some(card) = &self.card {
            seen.figures.peak_bytes = card.peak().map(|peak| peak.bytes);
        }
        Ok(seen)
    }

    fn start(&self, dir: &RunDir, rung: usize) -> Result<Child, Failure> {
        let log = File::create(dir.file("worker.log"))?;
        let child = Command::new(worker_program())
            .args(["worker", "--measure", "--attempt", "1", "--rung", &rung.to_string()])
            .args(["--device", self.device, "--run-dir"])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        Ok(child)
    }
}

/// The collected reports of a worker.
#[derive(Default)]
struct WorkerReports {
    hello: Option<Hello>,
    steps: Vec<Step>,
    baseline: Option<Memory>,
    loaded: Option<Memory>,
    peak: u64,
    first_step: Option<Duration>,
}

/// Reads a worker's events to the end of its steps, then calls `before_end` while the worker still holds its memory.
fn listen<T>(
    worker: &mut Child,
    steps: u64,
    begun: Instant,
    before_end: impl FnOnce() -> T,
) -> Result<Measurement, (u8, String)> {
    let Some(stdout) = worker.stdout.take() else {
        return Err((1, "the worker has no stdout".to_owned()));
    };
    let events = read_events(stdout);
    let mut heard = WorkerReports::default();
    loop {
        match events.recv_timeout(SILENCE) {
            Ok(Event::Hello(hello)) => heard.hello = Some(hello),
            Ok(Event::Memory(memory)) => heard.memory(memory),
            Ok(Event::Failed(failed)) => return Err((failed.class.exit_code(), failed.message)),
            Ok(Event::Step(step)) => {
                heard.first_step.get_or_insert_with(|| begun.elapsed());
                heard.steps.push(step);
            }
            // The run is shorter than the measurement.
            Ok(Event::Done { .. }) if !heard.steps.is_empty() => break,
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => {
                return Err((1, format!("the worker has been silent for {} min", SILENCE.as_secs() / 60)));
            }
            Err(RecvTimeoutError::Disconnected) => {
                let taken = heard.steps.len();
                return Err((1, format!("the worker ended after {taken} of {steps} steps without an error")));
            }
        }
        // A step's memory is reported after the step.
        if heard.steps.len() as u64 > steps {
            break;
        }
    }
    // A step may end before anyone has sampled it, but its memory is still held.
    before_end();
    heard.steps.truncate(usize::try_from(steps).unwrap_or(usize::MAX));
    let losses = heard.steps.iter().filter_map(|step| Some((step.step, step.loss?))).collect();
    Ok(Measurement { figures: heard.measured(), losses })
}

impl WorkerReports {
    fn memory(&mut self, memory: Memory) {
        match memory.phase {
            Phase::Starting if self.baseline.is_none() => self.baseline = Some(memory),
            Phase::Starting => self.loaded = Some(memory),
            Phase::Training => self.peak = self.peak.max(memory.peak_bytes),
            _ => {}
        }
    }

    fn measured(&self) -> Measured {
        let baseline = self.baseline.map(|memory| memory.resident_bytes);
        let loading = [self.baseline, self.loaded].iter().flatten().map(|memory| memory.peak_bytes).max();
        // The first step allocates moments, compiles and tunes.
        let warm = if self.steps.len() > 1 { &self.steps[1..] } else { &self.steps[..] };
        let step_ms = median(warm.iter().map(|step| step.compute_ms + step.data_wait_ms).collect());
        let units = self.hello.as_ref().and_then(|hello| {
            let before = self.steps.len().checked_sub(warm.len() + 1).and_then(|index| self.steps.get(index));
            let before = before.map_or(hello.position.samples, |step| step.samples);
            Some(warm.last()?.samples.saturating_sub(before) as f64 / warm.len() as f64)
        });
        Measured {
            peak_bytes: baseline.filter(|_| self.peak > 0).map(|baseline| self.peak.saturating_sub(baseline)),
            all_phases: false,
            of_card: false,
            baseline_bytes: baseline,
            ram: Phases { loading: loading.unwrap_or(0), training: self.peak, ..Phases::default() },
            steps_per_s: step_ms.map(|ms| 1e3 / ms),
            step_ms,
            units_per_s: step_ms.zip(units).map(|(ms, units)| units * 1e3 / ms),
            steps: self.steps.len() as u64,
            loss: self.steps.last().and_then(|step| step.loss),
            first_step_s: self.first_step.map(|took| took.as_secs_f64()),
        }
    }
}

/// Reads the events of a worker or a harness. The channel closes when there will be no more.
pub fn read_events(stdout: ChildStdout) -> Receiver<Event> {
    let (tell, events) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if line::decode::<Event>(&line).is_some_and(|event| tell.send(event).is_err()) {
                break;
            }
        }
    });
    events
}

/// Returns the middle value, if it is above 0.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().filter(|value| *value > 0.0)
}

#[cfg(test)]
mod tests {
    use super::{WorkerReports, median};
    use crate::protocol::worker::{Memory, Phase, Step};

    fn step(step: u64, compute_ms: f64) -> Step {
        let (loss, samples) = (Some(1.0 / step as f64), step * 8);
        Step { step, samples, loss, data_wait_ms: 1.0, compute_ms, ..Step::default() }
    }

    #[test]
    fn the_first_step_does_not_count_and_the_peak_is_over_the_baseline() {
        let mut heard =
            WorkerReports { steps: vec![step(1, 900.0), step(2, 9.0), step(3, 19.0)], ..WorkerReports::default() };
        for (phase, resident_bytes, peak_bytes) in [
            (Phase::Starting, 50, 60),
            (Phase::Starting, 150, 170),
            (Phase::Training, 300, 400),
            (Phase::Training, 300, 350),
        ] {
            heard.memory(Memory { phase, resident_bytes, peak_bytes });
        }
        let measured = heard.measured();
        assert_eq!((measured.peak_bytes, measured.baseline_bytes), (Some(350), Some(50)));
        assert_eq!((measured.ram.loading, measured.ram.training), (170, 400));
        assert_eq!(measured.step_ms, Some(20.0));
        assert_eq!(measured.loss, Some(1.0 / 3.0));
        heard.steps.pop();
        assert_eq!(heard.measured().step_ms, Some(10.0), "two steps are enough");
        assert_eq!(median(Vec::new()), None);
    }
}
