//! A training with a companion, in Rust: it reads `companion.json`, speaks over the socket, and saves either containers
//! (`loop`) or checkpoints of its own (any other framework). Its weights are a hash over every sample it has seen, so a
//! resume that loses or repeats one ends with other weights.

use super::{Failing, Script};
use downshift::protocol::companion::{CompanionOrder, ResumeFrom, SETUP_VARIABLE, Setup};
use downshift::protocol::inject::Fault;
use downshift::protocol::line;
use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Value, json};
use signal_hook::iterator::Signals;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Samples in a step.
const BATCH: u64 = 4;
/// The step at whose border a deaf companion hears its orders.
const DEAF: u64 = 50;
/// Steps in an epoch.
const EPOCH: u64 = 50;
/// The step after which a text is kept.
const SAMPLE_AT: u64 = 10;

/// The stacks of a process whose main thread waits for its loader.
const STACKS: &str = "Thread 0x00007f6e3da836c0 (most recent call first):\n  File \"/usr/lib/python3.12/threading.py\", \
     line 982 in run\n\nCurrent thread 0x00007f6e3edd1b80 (most recent call first):\n  File \"/home/me/data.py\", line 33 in \
     __getitem__\n  File \"/home/me/train.py\", line 12 in <module>\n";

struct Training<'a> {
    script: &'a Script,
    setup: Setup,
    is_loop: bool,
    mischief: &'a str,
    stream: Option<UnixStream>,
    orders: Receiver<CompanionOrder>,
    step: u64,
    weights: u64,
    saved: Instant,
    rank: u32,
    world: u32,
}

/// Trains with a companion.
pub fn train(script: &Script, framework: &str, mischief: &str) -> Failing<()> {
    let read_setup = || -> Failing<Setup> { Ok(serde_json::from_slice(&fs::read(std::env::var(SETUP_VARIABLE)?)?)?) };
    let mut setup = read_setup()?;
    if let Some(gate) = &setup.gate {
        // A standby: nothing can be read from the gate, but it is opened and closed when the attempt begins.
        fs::read(gate)?;
        setup = read_setup()?;
    }
    let stream = UnixStream::connect(&setup.socket)?;
    let (send, orders) = channel();
    let lines = BufReader::new(stream.try_clone()?).lines();
    std::thread::spawn(move || {
        lines.map_while(Result::ok).filter_map(|text| line::decode(&text)).try_for_each(|order| send.send(order))
    });
    let (is_loop, stream, saved) = (framework == "loop", Some(stream), Instant::now());
    let (rank, world) = (number_of("RANK").unwrap_or(0), number_of("WORLD_SIZE").unwrap_or(1));
    let (step, weights) = (0, 0);
    let mut training = Training { script, setup, is_loop, mischief, stream, orders, step, weights, saved, rank, world };
    training.restore()?;
    training.introduce(framework)?;
    training.wait_for_ranks()?;
    while training.step < script.steps {
        training.take_step()?;
    }
    training.save(0.1)?;
    training.say(&json!({"event": "ended", "step": training.step}))?;
    println!("weights {:016x}", training.weights);
    Ok(())
}

fn number_of(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.parse().ok()
}

impl Training<'_> {
    /// Waits until every rank has introduced itself, as the first reduction does.
    fn wait_for_ranks(&self) -> Failing<()> {
        let ready = |rank| self.setup.attempt_dir.join(format!("rank-{rank}.ready"));
        fs::write(ready(self.rank), "")?;
        while !(0..self.world).all(|rank| ready(rank).exists()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn say(&mut self, event: &Value) -> Failing<()> {
        if let Some(stream) = &mut self.stream {
            writeln!(stream, "{event}")?;
        }
        Ok(())
    }

    fn restore(&mut self) -> Failing<()> {
        let (point, name) = match &self.setup.resume {
            Some(ResumeFrom::Container(point)) => (point, "model.safetensors"),
            Some(ResumeFrom::Script(point)) => (point, "weights"),
            None => return Ok(()),
        };
        let bytes = fs::read(point.path.join(name))?;
        self.weights = u64::from_le_bytes(bytes.as_slice().try_into()?);
        self.step = point.step;
        Ok(())
    }

    /// Writes stacks as `faulthandler` does, when a signal asks for them. Returns the signal and the file.
    fn write_stacks_on_signal(&self) -> Failing<(i32, PathBuf)> {
        let (signal, file) = (16, self.setup.attempt_dir.join(format!("stacks-{}.txt", std::process::id())));
        let (mut signals, place) = (Signals::new([signal])?, file.clone());
        std::thread::spawn(move || {
            for _ in signals.forever() {
                let _ = fs::write(&place, STACKS);
            }
        });
        Ok((signal, file))
    }

    fn introduce(&mut self, framework: &str) -> Failing<()> {
        let (stacks_signal, stacks_file) = self.write_stacks_on_signal()?;
        let resumed_from = self.setup.resume.as_ref().map(|_| self.step);
        let micro_batch = self.setup.knobs.pointer("/training/micro_batch").cloned().unwrap_or(json!(BATCH));
        let in_force = if self.mischief == "ignore-knobs" { json!(99) } else { micro_batch };
        self.say(&json!({
            "event": "companion", "protocol": 1, "pid": std::process::id(), "rank": self.rank, "world": self.world,
            "python": "3.12.1", "torch": "2.15.0", "framework": framework, "version": null, "grade": "exact", "reason": null, "saves": true,
            "guards": true, "parameters": 1234, "resumed_from": resumed_from, "samples": self.step * BATCH,
            "total_steps": self.script.steps, "epoch_units": EPOCH * BATCH, "total_units": self.script.steps * BATCH,
            "unit": "samples", "knobs": {"training.micro_batch": in_force},
            "stacks_signal": stacks_signal, "stacks_file": stacks_file,
        }))
    }

    fn take_step(&mut self) -> Failing<()> {
        std::thread::sleep(Duration::from_millis(self.script.step_ms));
        let step = self.step + 1;
        let is_dropped = self.strike(step)?;
        for sample in self.step * BATCH..step * BATCH {
            let text = [self.weights, self.setup.seed, sample].map(u64::to_le_bytes).concat();
            let hash =
                if is_dropped { self.weights.to_le_bytes() } else { blake3::hash(&text).as_bytes()[..8].try_into()? };
            self.weights = u64::from_le_bytes(hash);
        }
        self.step = step;
        let (samples, epoch) = (step * BATCH, (step - 1) / EPOCH);
        // The output beside the companion has other numbers for the same steps.
        if self.mischief == "quiet" {
            println!("loss 9.9");
        } else {
            println!("step {} loss 9.9", step * 2);
        }
        let event = if is_dropped {
            json!({"event": "skipped", "step": step, "samples": samples, "epoch": epoch, "lr": 0.1, "what": "gradient",
                   "where": "layer.0", "parameter": "layer.0"})
        } else {
            json!({"event": "step", "step": step, "samples": samples, "epoch": epoch, "loss": 1.0 / step as f64,
                   "lr": 0.1, "grad_norm": 0.5, "micro_batches": 2, "data_wait_ms": 0.25, "compute_ms": 1.5})
        };
        self.say(&event)?;
        if step == SAMPLE_AT {
            self.write_sample()?;
        }
        self.misbehave()?;
        self.reach_border()
    }

    /// Keeps a text, as `run.sample` does.
    fn write_sample(&mut self) -> Failing<()> {
        let folder = self.setup.run_dir.join("samples");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("step-{:09}.txt", self.step)), "Once upon a time")?;
        self.say(&json!({"event": "samples", "step": self.step}))
    }

    /// Makes the faults ordered for a step. Returns true if its gradient is NaN.
    fn strike(&mut self, step: u64) -> Failing<bool> {
        let due: Vec<_> = self.setup.inject.iter().filter(|fault| fault.strikes(step)).copied().collect();
        for fault in &due {
            self.say(&json!({"event": "injected", "fault": fault.to_string(), "step": step}))?;
            match fault.fault {
                Fault::Kill => kill_process(getpid(), Signal::KILL)?,
                Fault::Exit0 => exit(0),
                Fault::Oom => {
                    self.say(&json!({"event": "failed", "class": "device_out_of_memory", "step": step,
                                     "message": "CUDA out of memory", "injected": true}))?;
                    exit(1)
                }
                _ => {}
            }
        }
        Ok(due.iter().any(|fault| fault.fault == Fault::Nan))
    }

    /// Obeys orders and saves, as a companion does at a step border.
    fn reach_border(&mut self) -> Failing<()> {
        let rhythm = self.setup.checkpoint;
        let by_time = rhythm.every_seconds.is_some_and(|seconds| self.saved.elapsed().as_secs_f64() >= seconds);
        let every = rhythm.every_steps.unwrap_or(self.script.every);
        let (mut saves, mut stops) = (by_time || self.step.is_multiple_of(every), false);
        let is_deaf = matches!(self.mischief, "deaf" | "late") && self.step < DEAF;
        while let Some(order) = (!is_deaf).then(|| self.orders.try_recv().ok()).flatten() {
            match order {
                CompanionOrder::Checkpoint => saves = true,
                CompanionOrder::Stop { checkpoint } => (saves, stops) = (saves | checkpoint, true),
                CompanionOrder::WithdrawStop if self.mischief != "late" => (saves, stops) = (false, false),
                _ => {}
            }
        }
        let failed = if saves { self.save(0.1)? } else { None };
        match (stops, failed) {
            (true, None) => {
                self.say(&json!({"event": "stopping", "step": self.step, "saved": true}))?;
                exit(75)
            }
            (true, Some(message)) => self.say(&json!({"event": "stop_refused", "step": self.step, "message": message})),
            _ => Ok(()),
        }
    }

    /// Saves, and waits until the harness has published it. Returns why it was not.
    fn save(&mut self, pause_ms: f64) -> Failing<Option<String>> {
        let gone = || Ok(Some("the harness is gone".to_owned()));
        if self.stream.is_none() {
            return gone();
        }
        self.saved = Instant::now();
        let (step, samples) = (self.step, self.step * BATCH);
        let bytes = self.weights.to_le_bytes();
        if self.is_loop {
            let name = format!(".new-step-{step:09}.{}", std::process::id());
            let folder = self.setup.staging.join(&name);
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir(&folder)?;
            let own = if self.rank == 0 { String::new() } else { format!("rank-{}.", self.rank) };
            fs::write(folder.join(format!("{own}model.safetensors")), bytes)?;
            fs::write(folder.join(format!("{own}python.json")), b"{}")?;
            let name = self.spoil(&folder, name)?;
            self.say(
                &json!({"event": "staged", "step": step, "samples": samples, "folder": name, "pause_ms": pause_ms}),
            )?;
        } else {
            let out = self.script.out.clone().unwrap_or_else(|| self.setup.run_dir.join("out"));
            let folder = out.join(format!("checkpoint-{step}"));
            fs::create_dir_all(&folder)?;
            fs::write(folder.join("weights"), bytes)?;
            self.say(&json!({"event": "wrote", "step": step, "samples": samples, "path": folder}))?;
        }
        loop {
            match self.orders.recv_timeout(Duration::from_secs(30)) {
                Ok(CompanionOrder::Published { step: published }) if published == step => return Ok(None),
                Ok(CompanionOrder::PublishFailed { step: refused, message, .. }) if refused == step => {
                    println!("refused {message}");
                    return Ok(Some(message));
                }
                Ok(CompanionOrder::Stop { .. }) => {
                    self.say(&json!({"event": "stopping", "step": step, "saved": true}))?;
                    exit(75)
                }
                Ok(_) => {}
                Err(_) => return gone(),
            }
        }
    }

    fn spoil(&self, folder: &Path, name: String) -> Failing<String> {
        match self.mischief {
            "link" => symlink("/etc/passwd", folder.join("more"))?,
            "name" => return Ok("../checkpoints".to_owned()),
            "empty" => {
                fs::remove_dir_all(folder)?;
                fs::create_dir(folder)?;
            }
            "manifest" => fs::write(folder.join("manifest.json"), "{}")?,
            _ => {}
        }
        Ok(name)
    }

    fn misbehave(&mut self) -> Failing<()> {
        match (self.mischief, self.step) {
            ("malformed", _) => {
                let stream = self.stream.as_mut().ok_or("no socket")?;
                stream.write_all(b"{\"event\":\"saved\",\"step\":999}\n\xff\xfe\n{\"event\":\"step\"}\n")?;
            }
            // The next attempt resumes, and trains on.
            ("hang", 30) if self.setup.resume.is_none() => loop {
                std::thread::park();
            },
            // The companion goes quiet; the script trains on.
            ("dead", 10) => {
                if let Some(stream) = self.stream.take() {
                    stream.shutdown(Shutdown::Both)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
