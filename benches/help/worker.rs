//! The real worker on one rung for a few steps, in a process of its own, and what it took: speed,
//! the most host memory and the most device memory that it held.

use downshift::config::knobs::Preset;
use downshift::config::run::{Run, Source};
use downshift::config::units::Every;
use downshift::probe::reader::{Reader, Source as Probed};
use downshift::protocol::line;
use downshift::protocol::probe::Metric;
use downshift::protocol::worker::Event;
use downshift::store::run_dir::RunDir;
use downshift::train::registry::Registry;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// What went wrong; benchmarks end with it.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Steps at the beginning whose time nobody looks at: kernels are compiled, memory is touched first.
const WARM_UP: usize = 1;

/// What a rung took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Took {
    /// Units of the run's clock a second, the first step left out.
    pub units_per_s: f64,
    /// The most memory that the process held, bytes.
    pub host: u64,
    /// The most device memory that it held, bytes; none on the CPU or where the driver does not say.
    pub device: Option<u64>,
    /// Parameters of the model.
    pub parameters: u64,
}

impl Took {
    /// The memory that a rung is to relieve: the device's where there is one.
    pub fn memory(&self) -> u64 {
        self.device.unwrap_or(self.host)
    }
}

/// A run that neither evaluates nor saves, from the text of a run file.
pub fn read(file: &str, text: &str, overrides: &[(String, String)]) -> Outcome<Run> {
    let base = std::env::current_dir()?;
    let source = Source { file, text, base: &base, overrides };
    let mut run = Run::read(&source, &Registry::with_builtin()).map_err(|refusal| refusal.to_string())?;
    for rung in &mut run.rungs {
        quiet(&mut rung.preset);
    }
    Ok(run)
}

fn quiet(preset: &mut Preset) {
    preset.evaluation.every = Every::Never;
    preset.checkpoint.every = Every::Never;
}

/// Trains for so many steps on a rung.
pub fn measure(run: &Run, rung: usize, device: &str, steps: usize) -> Outcome<Took> {
    let place = tempfile::tempdir()?;
    let dir = RunDir::create(place.path(), run)?;
    let mut watch = Watch::new(dir.path(), device);
    let mut command = Command::new(env!("CARGO_BIN_EXE_downshift"));
    command.args(["worker", "--attempt", "1", "--device", device, "--rung", &rung.to_string(), "--run-dir"]);
    let child = command.arg(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut child = Ended(child);
    let (out, pid) = (child.0.stdout.take().ok_or("the worker has no stdout")?, child.0.id());
    let (mut took, mut since, mut units) = (Took::default(), Instant::now(), (0, 0));
    let mut seen = 0;
    for text in BufReader::new(out).lines() {
        watch.look(pid, &mut took);
        match line::decode::<Event>(&text?) {
            Some(Event::Hello(hello)) => took.parameters = hello.parameters,
            Some(Event::Failed(failed)) => return Err(failed.message.into()),
            Some(Event::Step(step)) => {
                seen += 1;
                units.1 = step.samples;
                if seen == WARM_UP {
                    (since, units.0) = (Instant::now(), step.samples);
                }
                if seen >= WARM_UP + steps {
                    break;
                }
            }
            _ => {}
        }
    }
    if seen < WARM_UP + steps {
        return Err(format!("rung {} ended after {seen} steps", run.rungs[rung].name).into());
    }
    took.units_per_s = (units.1 - units.0) as f64 / since.elapsed().as_secs_f64();
    Ok(took)
}

/// A process that does not outlive its measurement.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Looks at a process's memory.
struct Watch {
    card: Option<Reader>,
    /// What the card held before.
    before: u64,
}

impl Watch {
    fn new(run_dir: &Path, device: &str) -> Self {
        let Some(index) = device.strip_prefix("cuda") else { return Self { card: None, before: 0 } };
        let gpu = index.trim_start_matches(':').parse().unwrap_or(0);
        let mut card = Reader::new(Probed { run_dir: run_dir.to_owned(), gpu, nvml_path: None }, Instant::now());
        let before = card.read(None, Instant::now()).gpu.ok().and_then(|gpu| bytes(&gpu.vram_used_bytes));
        Self { card: Some(card), before: before.unwrap_or(0) }
    }

    fn look(&mut self, pid: u32, took: &mut Took) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let high = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        let high = high.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0) * 1024;
        took.host = took.host.max(high);
        let Some(card) = &mut self.card else { return };
        let Ok(gpu) = card.read(Some(pid), Instant::now()).gpu else { return };
        // In a container the driver may not know the process: then what the card holds more than before.
        let own = bytes(&gpu.vram_worker_bytes).filter(|bytes| *bytes > 0);
        let held = own.or_else(|| Some(bytes(&gpu.vram_used_bytes)?.saturating_sub(self.before)));
        took.device = took.device.max(held);
    }
}

fn bytes(metric: &Metric<u64>) -> Option<u64> {
    if let Metric::Is(bytes) = metric { Some(*bytes) } else { None }
}
