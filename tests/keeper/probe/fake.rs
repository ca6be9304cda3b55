//! A copy of the fake library with its own script, and the program that reads it.

use downshift::probe::reader::{Reader, Source};
use downshift::protocol::gpu_error::GpuError;
use downshift::protocol::probe::{Gpu, Metric};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(20);

/// A copy of the library with its own script.
pub struct Fake {
    pub dir: TempDir,
}

impl Fake {
    pub fn new(script: &Value) -> Self {
        let fake = Self { dir: TempDir::new().unwrap() };
        fs::write(fake.path(), built_library()).unwrap();
        fake.play(script);
        fake
    }

    /// Creates a copy in which `symbol` cannot be found.
    pub fn without_symbol(symbol: &str) -> Self {
        let fake = Self::new(&json!({}));
        let mut bytes = built_library();
        let name = format!("\0{symbol}\0").into_bytes();
        let places: Vec<usize> = (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(&name)).collect();
        assert!(!places.is_empty(), "{symbol} is not exported");
        for at in places {
            bytes[at + 1] = b'x';
        }
        fs::write(fake.path(), bytes).unwrap();
        fake
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("libfake_nvml.so")
    }

    /// Changes the script atomically.
    pub fn play(&self, script: &Value) {
        let new = self.dir.path().join("new");
        fs::write(&new, script.to_string()).unwrap();
        fs::rename(new, self.path().with_extension("json")).unwrap();
    }

    pub fn hangs(&self) -> bool {
        self.path().with_extension("hung").exists()
    }

    pub fn reader(&self, now: Instant) -> Reader {
        self.reader_of(0, now)
    }

    pub fn reader_of(&self, gpu: u32, now: Instant) -> Reader {
        Reader::new(Source { run_dir: self.dir.path().into(), gpu, nvml_path: Some(self.path()) }, now)
    }

    /// Takes one reading with a new reader.
    pub fn read(&self, worker: Option<u32>) -> Result<Gpu, GpuError> {
        let now = Instant::now();
        self.reader(now).read(worker, now).gpu
    }

    /// Starts the program as the keeper does.
    pub fn spawn(&self, words: &[&str]) -> Probe {
        let mut command = Command::new(env!("CARGO_BIN_EXE_downshift"));
        command.arg("probe").arg("--run-dir").arg(self.dir.path()).args(words);
        command.env("DOWNSHIFT_NVML_PATH", self.path());
        Probe(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }
}

/// Returns the library that `cargo test` built beside the tests.
fn built_library() -> Vec<u8> {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(Path::parent).unwrap().join("examples/libfake_nvml.so");
    fs::read(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; a filtered test run does not build it: cargo build --example fake_nvml", path.display())
    })
}

pub fn unknown<T>(why: &str) -> Metric<T> {
    Metric::Not(why.to_owned())
}

/// Waits until `holds` returns true.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < LIMIT, "{what} did not happen");
        thread::park_timeout(Duration::from_millis(2));
    }
}

/// The program; killed when dropped.
pub struct Probe(pub Child);

impl Probe {
    pub fn end(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the end of the probe", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
