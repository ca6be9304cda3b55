//! Memory that others hold, or that a dead worker does not release: the soft card counts it, and NVML shows it.

use super::card::{PLAIN, place_with_card, set_faults};
use crate::helper::{
    Place, example, journal, journal_says, kill, send_signal, stop_run, wait_for, wait_state, wait_status,
};
use downshift::protocol::control::{RunState, Status};
use downshift::store::run_dir::RunDir;
use rustix::process::Signal;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// All but 2 MiB of the card.
const MOST: u64 = 8190 << 20;

/// A process that the test ends.
struct Holder(Child);

impl Holder {
    fn start() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a place whose NVML shows what the soft card counts, and the folder of the processes that hold memory.
pub fn place_with_gauges() -> (Place, PathBuf) {
    let mut place = place_with_card();
    let library = place.dir.path().join("libfake_nvml.so");
    fs::copy(example("libfake_nvml.so"), &library).unwrap();
    let memory = r#"{"nvmlDeviceGetMemoryInfo_v2": [{"value": {"total": 8589934592, "used": 0}}]}"#;
    fs::write(library.with_extension("json"), memory).unwrap();
    let held = library.with_extension("held");
    place.variables.extend([("DOWNSHIFT_NVML_PATH", library), ("SOFT_CARD_LEDGER", held.clone())]);
    (place, held)
}

/// Starts a long run whose steps ask for their memory again. Returns once NVML has named its worker.
fn start(place: &Place) -> (Child, RunDir, Status) {
    set_faults(place, r#"[{"slow_ms": 1}]"#);
    let words = ["run", "digits", "--headless", "--device", "cuda", "--set", "training.steps=1000"];
    let more = ["--set", "training.memory_cleanup_every=1", "--set", "watch.ending.vram_wait=5 s"];
    let words = [&words[..], &PLAIN, &more].concat();
    let child = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    let status = wait_status(&run, "a worker that NVML names", |status| status.rungs[0].vram_bytes.is_some());
    (child, run, status)
}

#[test]
fn a_card_that_others_fill_shifts_down_and_is_waited_for() {
    let (place, held) = place_with_gauges();
    let (mut child, run, status) = start(&place);
    let holder = Holder::start();
    let entry = held.join(holder.0.id().to_string());
    let fill = || fs::write(&entry, format!("{MOST} 0 listed")).unwrap();

    fill();
    wait_state(&run, RunState::AwaitingVram);
    assert!(journal_says(&run, "full → accumulate"), "{:#?}", journal(&run));
    fs::remove_file(&entry).unwrap();
    wait_status(&run, "steps", |now| now.attempts > 1 && now.step > status.step + 1);

    fill();
    assert_eq!(child.wait().unwrap().code(), Some(4));
    let said = format!("sleep (pid {}) holds {} MiB", holder.0.id(), MOST >> 20);
    assert!(journal_says(&run, &said), "{said}: {:#?}", journal(&run));
}

#[test]
fn memory_that_a_dead_worker_keeps_is_waited_for() {
    let (place, held) = place_with_gauges();
    let (mut child, run, status) = start(&place);
    let worker = status.pid_worker.unwrap();
    let entry = held.join(worker.to_string());
    // A living worker would write its own count over this one.
    send_signal(worker, Signal::STOP);
    fs::write(&entry, format!("{MOST} 1000000 stuck")).unwrap();
    kill(worker);
    assert_eq!(child.wait().unwrap().code(), Some(4));
    let said = format!("the driver still counts {} MiB for it", MOST >> 20);
    assert!(journal_says(&run, &said), "{said}: {:#?}", journal(&run));

    fs::remove_file(&entry).unwrap();
    let mut child = place.command(&["resume", "--headless"]).stdout(Stdio::null()).spawn().unwrap();
    wait_status(&run, "steps", |now| now.attempts > 1 && now.pid_worker.is_some() && now.step > 1);
    stop_run(&place, &mut child);
}
