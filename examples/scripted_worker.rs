//! A worker that trains nothing: it speaks the worker contract, writes real checkpoints, and
//! misbehaves on command. The keeper starts it instead of the trainer when `DOWNSHIFT_WORKER`
//! names it. The scenario is data: the section `model:` of the run file.
//!
//! ```yaml
//! task: scripted
//! model: { step_ms: 2, save_ms: 1, start_ms: 5, ignore_term: false, noise: false, trouble: [] }
//! ```
//! `vram: { from_step: 2, bytes: 1000, lingers: 3 }` holds memory on the fake GPU behind `DOWNSHIFT_NVML_PATH`.
//! `tunes: fast` leaves a tuning decision in the run directory, and another one on each evaluation.
//! `trouble:` knows more kinds of fault than `--inject`, see trouble.rs.

#[path = "scripted_worker/trouble.rs"]
mod trouble;

use downshift::config::units::Every;
use downshift::protocol::control::StepRow;
use downshift::protocol::inject::{Fault, Inject};
use downshift::protocol::line;
use downshift::protocol::worker::{
    DoneReason, Eval, Event, Failed, FailureClass, Hello, Level, Order, PROTOCOL, Phase, Saved, Skipped, Step,
};
use downshift::recipe::leave_out::LeaveOut;
use downshift::store::checkpoint::state::{Row, TrainState};
use downshift::store::checkpoint::{self, CheckpointError, Contents};
use downshift::store::kernels;
use downshift::store::owners;
use downshift::store::run_dir::RunDir;
use serde_json::{Value, json};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::exit;
use std::sync::mpsc::{self, Receiver, TryRecvError};
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
    let mut script = read_arguments()?;
    let _lock = owners::become_worker(script.run_dir.path())?;
    if script.scenario["ignore_term"] == json!(true) {
        ignore_term()?;
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

fn read_arguments() -> Failing<Script> {
    let words: Vec<String> = std::env::args().collect();
    let after = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1)).cloned();
    let run_dir = RunDir::open(&PathBuf::from(after("--run-dir").ok_or("no --run-dir")?))?;
    let run = run_dir.run()?;
    let rung: usize = after("--rung").ok_or("no --rung")?.parse()?;
    let preset = &run.rungs[rung].preset;
    let (sender, orders) = mpsc::channel();
    std::thread::spawn(move || {
        for text in std::io::stdin().lock().lines().map_while(Result::ok) {
            if let Some(order) = line::decode::<Order>(&text) {
                let _ = sender.send(order);
            }
        }
        // The keeper is gone: save and end.
        let _ = sender.send(Order::Stop { checkpoint: true });
    });
    Ok(Script {
        rung,
        attempt: after("--attempt").ok_or("no --attempt")?.parse()?,
        inject: Inject::parse_list(&after("--inject").unwrap_or_default())?,
        scenario: Value::Object(preset.model.clone()),
        batch: preset.training.micro_batch * preset.training.accumulation,
        steps: preset.training.steps.unwrap_or(100),
        save_every: preset.checkpoint.every,
        evaluate_every: preset.evaluation.every,
        state: TrainState { rung, ..TrainState::default() },
        rows: Vec::new(),
        saved: (0, String::new()),
        orders,
        leave_out: after("--leave-out").unwrap_or_default().parse()?,
        require_checkpoint: words.iter().any(|word| word == "--require-checkpoint"),
        run_dir,
    })
}

impl Script {
    fn pause(&self, knob: &str) {
        std::thread::sleep(Duration::from_secs_f64(self.scenario[knob].as_f64().unwrap_or(0.0) / 1000.0));
    }

    fn begin(&mut self) -> Failing<()> {
        self.pause("start_ms");
        let (newest, _) = checkpoint::newest_valid(self.run_dir.path());
        let resumed =
            newest.and_then(|loaded| serde_json::from_slice::<TrainState>(loaded.files.get("state.json")?).ok());
        let resumed_from = resumed.as_ref().map(|state| state.step);
        if resumed.is_none() && self.require_checkpoint {
            self.fail(FailureClass::Checkpoint, "no checkpoint can be used")?;
        }
        self.state = resumed.unwrap_or_default();
        let total = self.steps * self.batch;
        say(&Event::Hello(Hello {
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
        self.suffer(Moment::Load)?;
        self.tune("training")?;
        if self.scenario["compile_ms"].is_number() {
            say(&Event::Phase { phase: Phase::Compiling })?;
            self.pause("compile_ms");
        }
        say(&Event::Phase { phase: Phase::Training })
    }

    /// Injects the scenario's faults for this moment; returns the loss if it is a spike.
    fn suffer(&mut self, moment: Moment) -> Failing<Option<f64>> {
        let mut jump = None;
        for trouble in trouble::striking(&self.scenario, moment, self.attempt, self.rung) {
            if let Some(word) = trouble["class"].as_str() {
                let class = serde_json::from_value(json!(word))?;
                self.fail(class, trouble["message"].as_str().unwrap_or("as the scenario wants"))?;
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
                    say(&Event::Note { level: Level::Info, text })?;
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
                        say(&Event::StopRefused { step: self.state.step, message })?;
                    } else {
                        self.end(DoneReason::Stopped, 3)?;
                    }
                }
                Ok(Order::Stop { checkpoint: false }) => self.end(DoneReason::Stopped, 3)?,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
            while self.leave_out.covers(self.state.position.samples) {
                self.state.position.samples += self.batch;
            }
            self.step()?;
            if self.evaluate_every == Every::Steps(self.state.step) {
                self.tune("evaluation")?;
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
        let eval = Eval {
            step: self.state.step,
            samples: self.state.position.samples,
            loss: 0.1,
            accuracy: Some(0.9),
            perplexity: None,
        };
        say(&Event::Eval(eval))?;
        if let Some(message) = self.save()? {
            self.fail(FailureClass::DiskFull, &format!("the last step could not be saved: {message}"))?;
        }
        self.end(DoneReason::Finished, 0)
    }

    fn step(&mut self) -> Failing<()> {
        let step = self.state.step + 1;
        let began = Instant::now();
        let fault = self.inject.iter().find(|inject| inject.strikes(step)).copied();
        if let Some(inject) = fault {
            say(&Event::Injected { fault: inject.to_string(), step })?;
        }
        let jump = self.suffer(Moment::Step(step, self.state.position.samples))?;
        self.take_vram(step)?;
        if self.scenario["flood"] == json!(true) {
            writeln!(std::io::stderr(), "{}", "x".repeat(100_000))?;
            std::io::stdout().write_all(b"\xff\xfe{\"event\": \"st\n")?;
        }
        if self.scenario["noise"] == json!(true) {
            println!("a stray print of step {step}\n{{\"half\": ");
        }
        self.pause("step_ms");
        self.state.step = step;
        self.state.position.samples += self.batch;
        self.state.position.offset += self.batch;
        let (samples, lr) = (self.state.position.samples, 0.1);
        match fault.map(|inject| inject.fault) {
            Some(Fault::Nan) => {
                self.state.skipped += 1;
                let (what, place) = ("loss".to_owned(), "micro-batch 1".to_owned());
                return self.tell(&Event::Skipped(Skipped {
                    step,
                    samples,
                    epoch: 0,
                    lr,
                    what,
                    place,
                    rescaled: false,
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
            Some(Fault::Slow) => (0..9).for_each(|_| self.pause("step_ms")),
            None => {}
        }
        let compute_ms = began.elapsed().as_secs_f64() * 1000.0;
        let loss = jump.unwrap_or(1.0 / (step as f64).sqrt());
        let (epoch, grad_norm, micro_batches, data_wait_ms) = (0, 1.0, 1, 0.0);
        self.tell(&Event::Step(Step {
            step,
            samples,
            epoch,
            loss,
            lr,
            grad_norm,
            micro_batches,
            data_wait_ms,
            compute_ms,
        }))
    }

    /// Writes a tuning decision if the scenario asks for one.
    fn tune(&self, of: &str) -> Failing<()> {
        let Some(decision) = self.scenario["tunes"].as_str() else { return Ok(()) };
        let decisions = kernels::decisions_of(self.run_dir.path());
        std::fs::create_dir_all(&decisions)?;
        Ok(std::fs::write(decisions.join(of), decision)?)
    }

    /// Records the GPU memory this process holds, see fake_nvml.rs.
    fn take_vram(&self, step: u64) -> Failing<()> {
        let vram = &self.scenario["vram"];
        let Some(bytes) = vram["bytes"].as_u64().filter(|_| vram["from_step"].as_u64() == Some(step)) else {
            return Ok(());
        };
        let library = std::env::var_os("DOWNSHIFT_NVML_PATH").ok_or("no card is played")?;
        let folder = PathBuf::from(library).with_extension("held");
        std::fs::create_dir_all(&folder)?;
        let (lingers, new) = (vram["lingers"].as_u64().unwrap_or(0), folder.with_extension("new"));
        std::fs::write(&new, format!("{bytes} {lingers}"))?;
        Ok(std::fs::rename(new, folder.join(std::process::id().to_string()))?)
    }

    /// Sends a step, and keeps its row for the next checkpoint.
    fn tell(&mut self, event: &Event) -> Failing<()> {
        self.rows.extend(StepRow::from_event(event, self.attempt, self.rung, 0).map(Row::Step));
        say(event)
    }

    /// Returns why the scenario lets a save at this step fail, and whether the disk is to blame.
    fn refused_save(&self) -> Option<(&'static str, bool)> {
        let fails = |from: &str, to: &str| {
            let span = self.scenario[from].as_u64().zip(self.scenario[to].as_u64());
            span.is_some_and(|(from, to)| (from..to).contains(&self.state.step))
        };
        if fails("disk_full_from", "disk_full_to") {
            return Some(("No space left on device (os error 28)", true));
        }
        fails("save_fails_from", "save_fails_to").then_some(("the weights cannot be copied to the host", false))
    }

    /// Saves a checkpoint; returns the reason if that fails.
    fn save(&mut self) -> Failing<Option<String>> {
        let began = Instant::now();
        self.suffer(Moment::Save)?;
        if self.scenario["save_phase_ms"].is_number() {
            say(&Event::Phase { phase: Phase::Checkpointing })?;
            self.pause("save_phase_ms");
            say(&Event::Phase { phase: Phase::Training })?;
        }
        if let Some((message, of_disk)) = self.refused_save() {
            say(&Event::SaveFailed { step: self.state.step, message: message.to_owned(), of_disk })?;
            return Ok(Some(message.to_owned()));
        }
        self.pause("save_ms");
        self.state.rung = self.rung;
        self.state.attempt = self.attempt;
        let (step, samples) = (self.state.step, self.state.position.samples);
        let (state, mut rows) = (serde_json::to_vec(&self.state)?, Row::write_all(&self.rows));
        if self.saved.0 == step {
            // This checkpoint replaces one of the same step, and its rows with it.
            rows.insert_str(0, &self.saved.1);
        }
        let files: [(&str, &[u8]); 3] =
            [("model.safetensors", b"no weights"), ("state.json", &state), ("steps.jsonl", rows.as_bytes())];
        let contents = Contents { step, samples, build: "scripted", files: &files };
        let written = match checkpoint::write(self.run_dir.path(), &contents) {
            Ok(written) => written,
            Err(error) => {
                let (message, of_disk) = (error.to_string(), matches!(error, CheckpointError::Io { .. }));
                say(&Event::SaveFailed { step, message: message.clone(), of_disk })?;
                return Ok(Some(message));
            }
        };
        self.rows.clear();
        self.saved = (step, rows);
        let total_ms = began.elapsed().as_secs_f64() * 1000.0;
        say(&Event::Saved(Saved {
            path: written.path,
            step,
            samples,
            bytes: written.bytes,
            pause_ms: total_ms,
            total_ms,
            eval_loss: None,
        }))?;
        Ok(None)
    }

    fn fail(&self, class: FailureClass, message: &str) -> Failing<()> {
        let (message, step) = (message.to_owned(), Some(self.state.step));
        say(&Event::Failed(Failed { class, message, step, thread: None, injected: true }))?;
        exit(i32::from(class.exit_code()))
    }

    fn end(&self, reason: DoneReason, code: i32) -> Failing<()> {
        say(&Event::Done { reason, step: self.state.step })?;
        exit(code)
    }
}

fn say(event: &Event) -> Failing<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(line::encode(event)?.as_bytes())?;
    Ok(out.flush()?)
}

/// Ignores SIGTERM, like a worker stuck in a driver.
fn ignore_term() -> Failing<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (ready, listening) = mpsc::channel();
    std::thread::spawn(move || {
        runtime.block_on(async {
            let stream = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
            let _ = ready.send(());
            if let Ok(mut stream) = stream {
                while stream.recv().await.is_some() {}
            }
        });
    });
    Ok(listening.recv()?)
}
