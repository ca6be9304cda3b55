//! A worker that trains nothing: it speaks the worker contract, writes real checkpoints, and
//! misbehaves on command. The keeper starts it instead of the trainer when `DOWNSHIFT_WORKER`
//! names it. The scenario is data: the section `model:` of the run file.
//!
//! ```yaml
//! task: scripted
//! model: { step_ms: 2, save_ms: 1, start_ms: 5, ignore_term: false, noise: false, trouble: [] }
//! ```
//! `vram: { from_step: 2, bytes: 1000, lingers: 3 }` holds memory on the fake GPU behind `DOWNSHIFT_NVML_PATH`.
//! `eval_losses: [0.5, 0.4]` reports an evaluation every ten steps until the list ends.
//! `tunes: fast` leaves a tuning decision in the run directory, and another one on each evaluation.
//! `trouble:` knows more kinds of fault than `--inject`, see trouble.rs.

#[path = "scripted_worker/arguments.rs"]
mod arguments;
#[path = "scripted_worker/files.rs"]
mod files;
#[path = "scripted_worker/trouble.rs"]
mod trouble;

use downshift::config::units::Every;
use downshift::protocol::control::StepRow;
use downshift::protocol::inject::{Fault, Inject};
use downshift::protocol::line;
use downshift::protocol::metrics::{ACCURACY, Metrics};
use downshift::protocol::worker::{
    DoneReason, Eval, Event, Failed, FailureClass, Hello, Level, Order, PROTOCOL, Phase, Skipped, Step,
};
use downshift::recipe::leave_out::LeaveOut;
use downshift::store::checkpoint::state::{Row, TrainState};
use downshift::store::run_dir::RunDir;
use downshift::store::{checkpoint, owners};
use serde_json::{Value, json};
use std::io::Write;
use std::process::exit;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};
use trouble::Moment;

type Failing<T> = Result<T, Box<dyn std::error::Error>>;

struct Script {
    run_dir: RunDir,
    rung: usize,
    attempt: u64,
    inject: Vec<Inject>,
    scenario: Value,
    batch: u64,
    steps: u64,
    save_every: Every,
    evaluate_every: Every,
    state: TrainState,
    rows: Vec<Row>,
    /// The step of the newest checkpoint and its rows.
    saved: (u64, String),
    orders: Receiver<Order>,
    leave_out: LeaveOut,
    require_checkpoint: bool,
}

fn main() -> Failing<()> {
    let mut script = arguments::read_arguments()?;
    let _lock = owners::become_worker(script.run_dir.path())?;
    if script.scenario["ignore_term"] == json!(true) {
        trouble::ignore_term()?;
    }
    if script.scenario["grandchild"] == json!(true) {
        let folder = script.run_dir.path();
        std::process::Command::new("sleep").arg("600").env("OF_RUN", folder).current_dir(folder).spawn()?;
    }
    script.begin()?;
    if script.train().is_err() {
        // No reader left: the keeper is gone. Save and end.
        let _ = script.save();
        exit(3);
    }
    Ok(())
}

impl Script {
    pub fn sleep_for(&self, knob: &str) {
        std::thread::sleep(Duration::from_secs_f64(self.scenario[knob].as_f64().unwrap_or(0.0) / 1000.0));
    }

    fn begin(&mut self) -> Failing<()> {
        self.sleep_for("start_ms");
        let (newest, _) = checkpoint::newest_valid(self.run_dir.path());
        let resumed =
            newest.and_then(|loaded| serde_json::from_slice::<TrainState>(loaded.files.get("state.json")?).ok());
        let resumed_from = resumed.as_ref().map(|state| state.step);
        if resumed.is_none() && self.require_checkpoint {
            self.fail(FailureClass::Checkpoint, "no checkpoint can be used")?;
        }
        self.state = resumed.unwrap_or_default();
        let total = self.steps * self.batch;
        send_event(&Event::Hello(Hello {
            protocol: PROTOCOL,
            build: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            device: self.scenario["device"].as_str().unwrap_or("scripted").to_owned(),
            backend: "no backend".to_owned(),
            parameters: 1,
            resumed_from,
            position: self.state.position,
            epoch_units: total,
            total_units: total,
            total_steps: self.steps,
            unit: "samples".to_owned(),
        }))?;
        self.inject_faults(Moment::Load)?;
        self.write_tuning("training")?;
        if self.scenario["compile_ms"].is_number() {
            send_event(&Event::Phase { phase: Phase::Compiling })?;
            self.sleep_for("compile_ms");
        }
        send_event(&Event::Phase { phase: Phase::Training })
    }

    /// Injects the scenario's faults for this moment; returns the loss if it is a spike.
    pub fn inject_faults(&mut self, moment: Moment) -> Failing<Option<f64>> {
        let mut jump = None;
        for trouble in trouble::active_faults(&self.scenario, moment, self.attempt, self.rung) {
            if let Some(word) = trouble["class"].as_str() {
                let class = serde_json::from_value(json!(word))?;
                self.fail(class, trouble["message"].as_str().unwrap_or("requested by the scenario"))?;
            }
            if let Some(code) = trouble["code"].as_i64() {
                exit(i32::try_from(code)?);
            }
            if let Some(signal) = trouble["signal"].as_i64() {
                let signal = rustix::process::Signal::from_named_raw(i32::try_from(signal)?).ok_or("no signal")?;
                // Rust's own handler swallows the first SIGSEGV.
                loop {
                    rustix::process::kill_process(rustix::process::getpid(), signal)?;
                }
            }
            match trouble["hang"].as_str() {
                Some("talking") => loop {
                    let text = "still here".to_owned();
                    send_event(&Event::Note { level: Level::Info, text })?;
                    std::thread::sleep(Duration::from_millis(50));
                },
                Some(_) => loop {
                    std::thread::park();
                },
                None => {}
            }
            jump = trouble["spike"].as_f64().or(jump);
        }
        Ok(jump)
    }

    fn train(&mut self) -> Failing<()> {
        let mut saved_at = Instant::now();
        while self.state.step < self.steps {
            match self.orders.try_recv() {
                Ok(Order::Checkpoint) => drop(self.save()?),
                Ok(Order::Stop { checkpoint: true }) => {
                    if let Some(message) = self.save()? {
                        send_event(&Event::StopRefused { step: self.state.step, message })?;
                    } else {
                        self.end(DoneReason::Stopped, 3)?;
                    }
                }
                Ok(Order::Stop { checkpoint: false }) => self.end(DoneReason::Stopped, 3)?,
                Ok(Order::Adopt { .. } | Order::Stacks | Order::Begin)
                | Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
            while self.leave_out.covers(self.state.position.samples) {
                self.state.position.samples += self.batch;
            }
            self.step()?;
            if self.evaluate_every == Every::Steps(self.state.step) {
                self.write_tuning("evaluation")?;
            }
            let place = (self.state.step / 10).saturating_sub(1) as usize;
            if let Some(loss) =
                self.scenario["eval_losses"][place].as_f64().filter(|_| self.state.step.is_multiple_of(10))
            {
                self.evaluate(loss)?;
            }
            let due = match self.save_every {
                Every::Seconds(seconds) => saved_at.elapsed().as_secs_f64() >= seconds,
                Every::Steps(steps) => self.state.step.is_multiple_of(steps),
                _ => false,
            };
            if due {
                self.save()?;
                saved_at = Instant::now();
            }
        }
        self.evaluate(0.1)?;
        if let Some(message) = self.save()? {
            self.fail(FailureClass::DiskFull, &format!("the last step could not be saved: {message}"))?;
        }
        self.end(DoneReason::Finished, 0)
    }

    /// Reports an evaluation with this loss.
    fn evaluate(&self, loss: f64) -> Failing<()> {
        let eval = Eval {
            step: self.state.step,
            samples: self.state.position.samples,
            loss: Some(loss),
            metrics: self.scripted_metrics("eval_metrics", [(ACCURACY.to_owned(), 0.9)].into()),
            ..Eval::default()
        };
        send_event(&Event::Eval(eval))
    }

    /// Prints lines that are not events, if the scenario asks for it.
    fn print_noise(&self, step: u64) -> Failing<()> {
        if self.scenario["flood"] == json!(true) {
            writeln!(std::io::stderr(), "{}", "x".repeat(100_000))?;
            std::io::stdout().write_all(b"\xff\xfe{\"event\": \"st\n")?;
        }
        if self.scenario["noise"] == json!(true) {
            println!("a stray print of step {step}\n{{\"half\": ");
        }
        Ok(())
    }

    fn step(&mut self) -> Failing<()> {
        let step = self.state.step + 1;
        let began = Instant::now();
        let fault = self.inject.iter().find(|inject| inject.strikes(step)).copied();
        if let Some(inject) = fault {
            send_event(&Event::Injected { fault: inject.to_string(), step })?;
        }
        let jump = self.inject_faults(Moment::Step(step, self.state.position.samples))?;
        self.hold_vram(step)?;
        self.print_noise(step)?;
        self.sleep_for("step_ms");
        self.state.step = step;
        self.state.position.samples += self.batch;
        self.state.position.offset += self.batch;
        let (samples, lr) = (self.state.position.samples, 0.1);
        match fault.map(|inject| inject.fault) {
            Some(Fault::Nan) => {
                self.state.skipped += 1;
                let (what, place) = ("loss".to_owned(), "micro-batch 1".to_owned());
                return self.send_step(&Event::Skipped(Skipped {
                    step,
                    samples,
                    epoch: 0,
                    lr,
                    what,
                    place,
                    parameter: None,
                    rescaled: false,
                    applied: false,
                }));
            }
            Some(Fault::Oom) => self.fail(FailureClass::DeviceOutOfMemory, "can't allocate buffer of size: 1")?,
            Some(Fault::Panic) => self.fail(FailureClass::Panic, "asked to panic")?,
            Some(Fault::Exit0) => exit(0),
            Some(Fault::Kill) => {
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
            }
            Some(Fault::Hang) => loop {
                std::thread::park();
            },
            Some(Fault::Slow) => (0..9).for_each(|_| self.sleep_for("step_ms")),
            None => {}
        }
        let compute_ms = began.elapsed().as_secs_f64() * 1000.0;
        let loss = Some(jump.unwrap_or(1.0 / (step as f64).sqrt()));
        let (lr, grad_norm, micro_batches) = (Some(lr), Some(1.0), 1);
        self.send_step(&Event::Step(Step {
            step,
            samples,
            loss,
            lr,
            grad_norm,
            micro_batches,
            compute_ms,
            metrics: self.scripted_metrics("metrics", Metrics::new()),
            ..Step::default()
        }))
    }

    /// Adds the named metrics of the scenario; "step" stands for the number of the step.
    fn scripted_metrics(&self, key: &str, mut metrics: Metrics) -> Metrics {
        for (name, value) in self.scenario[key].as_object().into_iter().flatten() {
            let value = if value == "step" { Some(self.state.step as f64) } else { value.as_f64() };
            metrics.extend(value.map(|value| (name.clone(), value)));
        }
        metrics
    }

    /// Sends a step, and keeps its row for the next checkpoint.
    fn send_step(&mut self, event: &Event) -> Failing<()> {
        self.rows.extend(StepRow::from_event(event, self.attempt, self.rung, unix_ms()).map(Row::Step));
        send_event(event)
    }

    fn fail(&self, class: FailureClass, message: &str) -> Failing<()> {
        let (message, step) = (message.to_owned(), Some(self.state.step));
        send_event(&Event::Failed(Failed { class, message, step, thread: None, injected: true }))?;
        exit(i32::from(class.exit_code()))
    }

    fn end(&self, reason: DoneReason, code: i32) -> Failing<()> {
        send_event(&Event::Done { reason, step: self.state.step })?;
        exit(code)
    }
}

/// Sends an event to the keeper.
fn send_event(event: &Event) -> Failing<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(line::encode(event)?.as_bytes())?;
    Ok(out.flush()?)
}

/// Returns the Unix time in milliseconds, which rows carry when no keeper is there to note it.
fn unix_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
