//! A training script that behaves as badly as real ones: it leaves processes behind in every way that a program
//! can, ignores SIGTERM, floods its output, and prints steps meanwhile. A seed chooses how.
//!
//! ```text
//! awkward_script train --seed 7 --steps 100 --step-ms 5 --marker WORD
//! awkward_script train --companion loop --steps 100 --every 20
//! ```
//! With `--companion` it speaks like the Python companion does, see companion.rs.
//! Every process that it starts has the marker among its arguments, so that a test finds all of them whatever they
//! did to their environment, session and parents.

#[path = "awkward_script/companion.rs"]
mod companion;

use rustix::process::{Signal, getpid, kill_process, setsid};
use signal_hook::consts::{SIGTERM, SIGUSR1};
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio, exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

type Failing<T> = Result<T, Box<dyn std::error::Error>>;

/// Something that the script does before it trains.
type Habit = (&'static str, fn(&Script) -> Failing<()>);

const HABITS: [Habit; 8] = [
    ("fork", |script| script.spawn("linger", |_| {})),
    ("eight loaders", |script| (0..8).try_for_each(|_| script.spawn("linger", |_| {}))),
    ("daemon", |script| script.spawn("daemonise", detach)),
    ("double fork", |script| script.spawn("fork-and-exit", |_| {})),
    ("closed descriptors", Script::close_descriptors),
    ("bare environment", |script| script.spawn("daemonise", detach_bare)),
    ("stubborn child", |script| script.spawn("ignore-term", |_| {})),
    ("flood", |_| Ok(io::stderr().write_all(&vec![b'x'; 1 << 20])?)),
];

struct Script {
    seed: u64,
    steps: u64,
    step_ms: u64,
    marker: String,
    out: Option<PathBuf>,
    /// Steps between two saves.
    every: u64,
    from: u64,
}

fn main() -> Failing<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1));
    let number = |flag: &str, otherwise| value(flag).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let script = Script {
        seed: number("--seed", 0),
        steps: number("--steps", u64::MAX),
        step_ms: number("--step-ms", 5),
        marker: value("--marker").cloned().unwrap_or_default(),
        out: value("--out").map(PathBuf::from),
        every: number("--every", 20),
        from: value("--resume").and_then(|path| path.rsplit('-').next()?.parse().ok()).unwrap_or(0),
    };
    let framework = value("--companion");
    match words.first().map(String::as_str) {
        Some("train") if framework.is_some() => {
            let mischief = value("--mischief").cloned().unwrap_or_default();
            companion::train(&script, framework.map_or("", String::as_str), &mischief)
        }
        Some("train") => script.train(),
        Some("daemonise") => {
            setsid()?;
            linger()
        }
        Some("fork-and-exit") => script.spawn("linger", detach),
        Some("ignore-term") => {
            signal_hook::flag::register(SIGTERM, Arc::new(AtomicBool::new(false)))?;
            linger()
        }
        _ => linger(),
    }
}

fn linger() -> ! {
    loop {
        std::thread::park();
    }
}

fn detach(command: &mut Command) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
}

fn detach_bare(command: &mut Command) {
    detach(command);
    command.env_clear();
}

impl Script {
    fn spawn(&self, role: &str, change: impl Fn(&mut Command)) -> Failing<()> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([role, "--marker", &self.marker]);
        change(&mut command);
        command.spawn()?;
        Ok(())
    }

    fn close_descriptors(&self) -> Failing<()> {
        let me = std::env::current_exe()?;
        let line = "exec \"$0\" linger --marker \"$1\" 0<&- 1>&- 2>&-";
        Command::new("sh").args(["-c", line]).arg(me).arg(&self.marker).spawn()?;
        Ok(())
    }

    /// Behaves as the seed says, and trains. Without a seed it only trains.
    fn train(&self) -> Failing<()> {
        let asked = Arc::new(AtomicBool::new(false));
        if self.out.is_some() {
            signal_hook::flag::register(SIGUSR1, Arc::clone(&asked))?;
        }
        for (index, (name, habit)) in HABITS.iter().enumerate() {
            if self.seed >> index & 1 == 1 {
                println!("habit {name}");
                habit(self)?;
            }
        }
        if self.seed >> 8 & 1 == 1 {
            signal_hook::flag::register(SIGTERM, Arc::new(AtomicBool::new(false)))?;
        }
        for step in self.from + 1..=self.steps {
            std::thread::sleep(Duration::from_millis(self.step_ms));
            println!("step {step} loss {:.4}", 1.0 / step as f64);
            if self.out.is_some() && (step.is_multiple_of(self.every) || asked.swap(false, Ordering::Relaxed)) {
                self.save(step)?;
            }
        }
        match self.seed % 3 {
            1 => exit(1),
            2 => Ok(kill_process(getpid(), Signal::KILL)?),
            _ => Ok(()),
        }
    }

    /// Saves as the Hugging Face Trainer does: in place, the state last.
    fn save(&self, step: u64) -> Failing<()> {
        let Some(out) = &self.out else { return Ok(()) };
        let folder = out.join(format!("checkpoint-{step}"));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("model.safetensors"), vec![b'w'; 4096])?;
        fs::write(folder.join("trainer_state.json"), format!("{{\"global_step\": {step}}}"))?;
        Ok(())
    }
}
