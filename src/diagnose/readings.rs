//! Readings of the GPU and the machine without a run. The probe is a separate process, so that a hanging
//! driver is reported and nothing hangs with it.

use crate::protocol::claim::Card;
use crate::protocol::line;
use crate::protocol::probe::{CardList, Reading};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Time limit for the list of cards, which delays a start.
const LISTING: Duration = Duration::from_secs(5);
/// Time limit for the probe to open the driver.
pub const FIRST: Duration = Duration::from_secs(20);

/// Time between two readings of which one is wanted.
const BETWEEN: Duration = Duration::from_millis(200);

/// Why the probe delivers no reading.
#[derive(Debug, thiserror::Error)]
pub enum ReadingError {
    /// The probe cannot be started.
    #[error("the probe cannot be started: {0}")]
    NotStarted(#[from] std::io::Error),
    /// The probe is silent.
    #[error("the NVIDIA driver has not answered for {} s", FIRST.as_secs())]
    Hangs,
    /// The probe ended without a reading.
    #[error("the NVIDIA library crashed the probe")]
    Crashed,
}

/// Takes one complete reading. Shares of time are differences, so it takes a while.
///
/// # Errors
/// Returns an error when the probe delivers no reading.
pub fn read_once(place: &Path, gpu: u32) -> Result<Reading, ReadingError> {
    await_driver(start_probe(gpu, true, place, BETWEEN)?)
}

/// Takes one reading at once: memory and processes are in it, shares of time are not.
///
/// # Errors
/// Returns an error when the probe delivers no reading.
pub fn read_gpu(place: &Path, gpu: u32) -> Result<Reading, ReadingError> {
    await_driver(start_probe(gpu, false, place, BETWEEN)?)
}

/// Returns the first reading for which the driver has been opened, and ends the probe.
fn await_driver((mut probe, readings): (Child, Receiver<Reading>)) -> Result<Reading, ReadingError> {
    let reading = loop {
        match readings.recv_timeout(FIRST) {
            Ok(reading) if reading.is_opening() => {}
            other => break other,
        }
    };
    end_probe(&mut probe);
    reading.map_err(|why| match why {
        RecvTimeoutError::Timeout => ReadingError::Hangs,
        RecvTimeoutError::Disconnected => ReadingError::Crashed,
    })
}

/// Calls `each` with readings at this interval while it returns true; returns none if there is no probe.
pub fn each_reading(place: &Path, gpu: u32, interval: Duration, mut each: impl FnMut(Reading) -> bool) -> Option<()> {
    let (mut probe, readings) = start_probe(gpu, false, place, interval).ok()?;
    while readings.recv_timeout(FIRST).is_ok_and(&mut each) {}
    end_probe(&mut probe);
    Some(())
}

/// Starts a probe. Its readings arrive on the channel; `once` skips the first one.
///
/// # Errors
/// Returns the system's error.
pub fn start_probe(
    gpu: u32,
    once: bool,
    place: &Path,
    interval: Duration,
) -> std::io::Result<(Child, Receiver<Reading>)> {
    let interval = if once { BETWEEN } else { interval };
    let mut child = Command::new("/proc/self/exe")
        .arg0("downshift-probe")
        .arg("probe")
        .arg("--run-dir")
        .arg(place)
        .args(["--gpu", &gpu.to_string(), "--interval-ms", &interval.as_millis().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (tell, readings) = mpsc::channel();
    let skip = usize::from(once);
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            for reading in lines.filter_map(|line| line::decode::<Reading>(&line)).skip(skip) {
                if tell.send(reading).is_err() {
                    break;
                }
            }
        });
    }
    Ok((child, readings))
}

/// Lists the cards of this machine; none without a driver that answers in time.
#[must_use]
pub fn list_cards() -> Vec<Card> {
    list_cards_within(LISTING).unwrap_or_default()
}

fn list_cards_within(limit: Duration) -> Option<Vec<Card>> {
    let mut probe = Command::new("/proc/self/exe")
        .arg0("downshift-probe")
        .args(["probe", "--list", "--run-dir", "."])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let (tell, cards) = mpsc::channel();
    if let Some(stdout) = probe.stdout.take() {
        thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.find_map(|line| line::decode::<CardList>(&line)).map(|list| tell.send(list.cards))
        });
    }
    let cards = cards.recv_timeout(limit).ok();
    end_probe(&mut probe);
    cards
}

/// Ends a probe.
pub fn end_probe(probe: &mut Child) {
    let _ = probe.kill();
    let _ = probe.wait();
}
