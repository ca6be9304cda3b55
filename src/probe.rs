//! The probe: a separate process that reads the GPU (NVML) and the machine.
//!
//! ```text
//! keeper ── ProbeOrder (stdin) ──▶ probe ── NVML, /proc, statvfs
//!        ◀── Reading (stdout) ────
//! ```
//! NVML can hang or crash its caller, so nothing that matters may run in this process. The main thread
//! reads the machine and prints; a second one calls NVML; a third only watches stdin and ends the process
//! when it closes, even while another thread is stuck in the library.

pub mod drill;
pub mod host;
mod last_values;
mod nvml;
mod nvml_convert;
mod nvml_error;
mod nvml_more;
pub mod reader;
mod worker_processes;
mod xid_events;

use crate::protocol::line;
use crate::protocol::probe::{CardList, ProbeOrder};
use reader::{Reader, Source};
use rustix::process::{Signal, getpid, kill_process};
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub use nvml_error::NVML_PATH_VARIABLE;

/// Arguments of the hidden command `downshift probe`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeArgs {
    /// The run directory, for the free space of its file system.
    pub run_dir: PathBuf,
    /// Time between two readings; at least 10 ms.
    pub interval: Duration,
    /// NVML's index of the GPU.
    pub gpu: u32,
    /// Print one reading and exit, without reading stdin.
    pub once: bool,
    /// Print the cards of the machine and exit.
    pub list: bool,
}

impl ProbeArgs {
    /// Defaults: the first GPU, once per second.
    #[must_use]
    pub fn new(run_dir: PathBuf) -> Self {
        Self { run_dir, interval: Duration::from_secs(1), gpu: 0, once: false, list: false }
    }
}

/// Reads until stdin closes or stdout has no reader.
pub fn run(args: &ProbeArgs) -> ExitCode {
    let nvml_path = std::env::var_os(NVML_PATH_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    if args.list {
        let sent = send_cards(nvml_path.as_deref(), &mut io::stdout());
        return if sent.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let source = Source { run_dir: args.run_dir.clone(), gpu: args.gpu, nvml_path };
    let mut reader = Reader::new(source, Instant::now());
    let worker = Arc::new(AtomicU32::new(0));
    if args.once {
        let sent = send_reading(&mut reader, None, &mut io::stdout());
        if !reader.stuck_for().is_zero() {
            exit_now();
        }
        return if sent.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let watched = Arc::clone(&worker);
    thread::spawn(move || {
        follow_orders(io::stdin().lock(), &watched);
        exit_now();
    });
    // The only error is a broken stdout: the keeper is gone, which is a normal end.
    let _ = serve_readings(&mut reader, &worker, args.interval.max(Duration::from_millis(10)), &mut io::stdout());
    if !reader.stuck_for().is_zero() {
        exit_now();
    }
    ExitCode::SUCCESS
}

/// Time after which an NVML call counts as stuck for good; a new probe process may do better. Long enough
/// that such restarts stay within the keeper's limit.
const STUCK: Duration = Duration::from_secs(150);

/// Prints a reading at every interval until NVML is stuck for good or `out` breaks. A late reading delays
/// the later ones; none is made up for.
fn serve_readings(reader: &mut Reader, worker: &AtomicU32, interval: Duration, out: &mut impl Write) -> io::Result<()> {
    loop {
        let started = Instant::now();
        let pid = worker.load(Ordering::Relaxed);
        send_reading(reader, (pid != 0).then_some(pid), out)?;
        if reader.stuck_for() > STUCK {
            return Ok(());
        }
        thread::sleep(interval.saturating_sub(started.elapsed()));
    }
}

fn send_reading(reader: &mut Reader, worker: Option<u32>, out: &mut impl Write) -> io::Result<()> {
    let mut reading = reader.read(worker, Instant::now());
    drill::apply_drill(reader.run_dir(), &mut reading);
    out.write_all(line::encode(&reading)?.as_bytes())?;
    out.flush()
}

fn send_cards(nvml_path: Option<&Path>, out: &mut impl Write) -> io::Result<()> {
    out.write_all(line::encode(&CardList { cards: nvml::list_cards(nvml_path) })?.as_bytes())?;
    out.flush()
}

/// Applies orders until the input ends. Kernel pids start at 1, so 0 means no worker.
fn follow_orders(orders: impl BufRead, worker: &AtomicU32) {
    for bytes in orders.split(b'\n') {
        let Ok(bytes) = bytes else { break };
        if let Some(order) = line::decode::<ProbeOrder>(&String::from_utf8_lossy(&bytes)) {
            worker.store(order.worker_pid.unwrap_or(0), Ordering::Relaxed);
        }
    }
}

/// Ends the process regardless of its other threads. A hanging library may also hang in the destructors
/// of a regular exit, so a kill follows.
fn exit_now() -> ! {
    thread::spawn(|| {
        thread::sleep(Duration::from_millis(500));
        let _ = kill_process(getpid(), Signal::KILL);
    });
    std::process::exit(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_valid_order_counts() {
        let cases: [(&[u8], u32); 8] = [
            (b"", 7),
            (b"{\"worker_pid\": 12}\n", 12),
            (b"{\"worker_pid\": 12}\n{\"worker_pid\": null}\n", 0),
            (b"{\"worker_pid\": 12}\nnoise\n{}\n{\"worker_pid\": -3}\n", 12),
            (b"{\"worker_pid\": \"12\"}\n", 7),
            (b"{}\n", 7),
            (b"\xff\xfe\n{\"worker_pid\": 5}\r\n", 5),
            (b"{\"worker_pid\": 99}", 99),
        ];
        for (text, expected) in cases {
            let worker = AtomicU32::new(7);
            follow_orders(text, &worker);
            assert_eq!(worker.load(Ordering::Relaxed), expected, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn serving_ends_when_the_reader_is_gone() {
        struct Breaks(u32);
        impl Write for Breaks {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if self.0 == 0 {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                self.0 -= 1;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let nowhere = Some(PathBuf::from("/nonexistent/libnvidia-ml.so"));
        let source = Source { run_dir: PathBuf::from("/"), gpu: 0, nvml_path: nowhere };
        let mut reader = Reader::new(source, Instant::now());
        let mut out = Breaks(2);
        let ended = serve_readings(&mut reader, &AtomicU32::new(0), Duration::ZERO, &mut out);
        assert_eq!(ended.map_err(|error| error.kind()), Err(io::ErrorKind::BrokenPipe));
        assert_eq!(out.0, 0, "both lines before the break were written");
    }
}
