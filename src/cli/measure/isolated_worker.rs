//! Runs a real worker without a keeper for a few steps, to measure it, in a temporary run directory that
//! is deleted afterwards. Leaves existing runs untouched.

use super::card::Card;
use super::folder::{TemporaryFolder, end_of_log};
use super::host_memory::{HostMemory, offer_to_oom_killer, was_killed_for_memory};
use super::{Measurement, Unmeasured};
use crate::cli::Failure;
use crate::config::run::Run;
use crate::config::units::Every;
use crate::keeper::worker_process::worker_program;
use crate::protocol::exit::Exit;
use crate::protocol::line;
use crate::protocol::plan::{Measured, Phases};
use crate::protocol::worker::{Event, Failed, Hello, Memory, Phase, Step};
use crate::store::run_dir::RunDir;
use crate::untrusted::child::wait_within;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Silence after which a worker is ended.
const SILENCE: Duration = Duration::from_mins(15);
/// Time between a worker's last output and its end.
const CLOSING: Duration = Duration::from_secs(2);

/// Workers without a keeper, run one after the other on the same device.
pub struct IsolatedWorker<'a> {
    device: &'a str,
    steps: u64,
    evaluation: Every,
    card: Option<Card>,
    budget: Option<u64>,
}

impl<'a> IsolatedWorker<'a> {
    /// Creates workers that take `steps` steps on a device; `gpu` is its NVML index if it is a GPU.
    pub fn new(device: &'a str, gpu: Option<u32>, steps: u64) -> Self {
        Self { device, steps: steps.max(1), evaluation: Every::Never, card: gpu.map(Card::watch), budget: None }
    }

    /// Adds an evaluation after the last step, to cover its kernels.
    pub fn with_evaluation(self) -> Self {
        Self { evaluation: Every::Steps(self.steps), ..self }
    }

    /// Ends a worker that takes more host memory than this.
    pub fn within(self, budget: Option<u64>) -> Self {
        Self { budget, ..self }
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
        let mut host = HostMemory::watch(worker.id());
        let heard = self.listen(&mut worker, &mut host, begun);
        let _ = worker.kill();
        let _ = worker.wait();
        after(dir.path());
        let mut seen = heard.map_err(|end| {
            let rung = &run.rungs[rung].name;
            let log = end_of_log(&dir.file("worker.log"));
            match end {
                End::Failed { code, message } => Unmeasured::with_code(code, format!("rung {rung}: {message}{log}")),
                End::OverBudget { needed, budget } => Unmeasured::over_budget(rung, needed, budget),
                End::KilledForMemory => Unmeasured::killed_for_memory(rung, host.peak, &log),
            }
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
        offer_to_oom_killer(child.id());
        Ok(child)
    }

    /// Reads a worker's events to the end of its steps.
    fn listen(&mut self, worker: &mut Child, host: &mut HostMemory, begun: Instant) -> Result<Measurement, End> {
        let stdout = worker.stdout.take().ok_or_else(|| End::failed("the worker has no stdout"))?;
        let events = read_events(stdout);
        let (mut heard, mut last_event) = (WorkerReports::default(), Instant::now());
        // A step's memory is reported after the step.
        while heard.steps.len() as u64 <= self.steps {
            match events.recv_timeout(host.due_in()) {
                Ok(Event::Failed(Failed { class, message, .. })) => {
                    return Err(End::Failed { code: class.exit_code(), message });
                }
                // The run is shorter than the measurement.
                Ok(Event::Done { .. }) if !heard.steps.is_empty() => break,
                Ok(event) => {
                    heard.take(event, begun);
                    last_event = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) if last_event.elapsed() >= SILENCE => {
                    let minutes = SILENCE.as_secs() / 60;
                    return Err(End::failed(format!("the worker has been silent for {minutes} min")));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.judge(worker, host, heard.steps.len())),
            }
            host.sample_if_due();
            self.check_budget(&heard, host)?;
        }
        // A step may end before anyone has sampled it, but its memory is still held.
        if let Some(card) = &mut self.card {
            card.update_peak();
        }
        host.sample();
        self.check_budget(&heard, host)?;
        heard.steps.truncate(usize::try_from(self.steps).unwrap_or(usize::MAX));
        let losses = heard.steps.iter().filter_map(|step| Some((step.step, step.loss?))).collect();
        Ok(Measurement { figures: heard.measured(), losses })
    }

    /// Checks the worker's host memory above its baseline.
    fn check_budget(&self, heard: &WorkerReports, host: &HostMemory) -> Result<(), End> {
        let Some(budget) = self.budget else { return Ok(()) };
        let baseline = heard.baseline.map_or(0, |memory| memory.resident_bytes);
        let needed = host.peak.saturating_sub(baseline);
        if needed > budget { Err(End::OverBudget { needed, budget }) } else { Ok(()) }
    }

    /// Judges a worker that ended, or closed its stdout, after this many steps.
    fn judge(&self, worker: &mut Child, host: &HostMemory, taken: usize) -> End {
        if was_killed_for_memory(exit_of(worker), host.peak, self.budget) {
            return End::KilledForMemory;
        }
        End::failed(format!("the worker ended after {taken} of {} steps without an error", self.steps))
    }
}

/// Why a worker ended before its last step.
enum End {
    /// It failed, with this code of the worker contract.
    Failed {
        /// The code.
        code: u8,
        /// Why.
        message: String,
    },
    /// It took more than its budget.
    OverBudget {
        /// The bytes seen.
        needed: u64,
        /// The budget.
        budget: u64,
    },
    /// It was killed, probably for lack of host memory.
    KilledForMemory,
}

impl End {
    /// Creates the end of a worker that reported no class of failure.
    fn failed(message: impl Into<String>) -> Self {
        Self::Failed { code: 1, message: message.into() }
    }
}

/// Waits for the end of a worker that has closed its stdout; the exit is unknown if it has to be killed.
fn exit_of(worker: &mut Child) -> Exit {
    let status = wait_within(worker, CLOSING).ok().flatten();
    status.map(Exit::from).unwrap_or_default()
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

impl WorkerReports {
    /// Takes an event of a worker that began at this moment.
    fn take(&mut self, event: Event, begun: Instant) {
        match event {
            Event::Hello(hello) => self.hello = Some(hello),
            Event::Memory(memory) => self.memory(memory),
            Event::Step(step) => {
                self.first_step.get_or_insert_with(|| begun.elapsed());
                self.steps.push(step);
            }
            _ => {}
        }
    }

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
