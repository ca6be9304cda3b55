//! Keeps a probe alive: a silent one is killed and restarted, within a limit.

use super::Input;
use crate::protocol::line;
use crate::protocol::probe::{ProbeOrder, Reading};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

/// Silence after which a probe is stuck; one whose driver hangs still reports the host.
const SILENCE: Duration = Duration::from_secs(3);
/// Time for the first line, which takes longer because the process has to start.
const FIRST: Duration = Duration::from_secs(10);
/// Starts allowed within [`WINDOW`]; after that the keeper gives up.
const STARTS: usize = 5;
const WINDOW: Duration = Duration::from_mins(10);

/// Runs until the keeper ends. `worker` names the process whose memory is measured.
pub async fn keep_alive(
    run_dir: PathBuf,
    gpu: u32,
    nvml: Option<PathBuf>,
    worker: watch::Receiver<Option<u32>>,
    inputs: mpsc::Sender<Input>,
) {
    let mut starts: VecDeque<Instant> = VecDeque::new();
    loop {
        starts.push_back(Instant::now());
        if starts.len() > STARTS && starts.pop_front().is_some_and(|first| first.elapsed() < WINDOW) {
            let why = "the GPU monitor ended six times in ten minutes and stays off; training continues".to_owned();
            let _ = inputs.send(Input::ProbeLost(Some(why))).await;
            return;
        }
        match start_probe(&run_dir, gpu, nvml.as_deref()) {
            Ok(child) => {
                let _ = inputs.send(Input::ProbeStarted(child.id().unwrap_or_default())).await;
                pass_on_readings(child, worker.clone(), &inputs).await;
                let _ = inputs.send(Input::ProbeLost(None)).await;
            }
            Err(error) => {
                let _ = inputs.send(Input::ProbeLost(Some(format!("the GPU monitor failed to start: {error}")))).await;
                return;
            }
        }
        sleep(Duration::from_millis(500)).await;
    }
}

fn start_probe(run_dir: &std::path::Path, gpu: u32, nvml: Option<&std::path::Path>) -> std::io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    if let Some(nvml) = nvml.filter(|_| std::env::var_os("DOWNSHIFT_NVML_PATH").is_none()) {
        command.env("DOWNSHIFT_NVML_PATH", nvml);
    }
    command
        .arg0("downshift-probe")
        .arg("probe")
        .arg("--run-dir")
        .arg(run_dir)
        .args(["--gpu", &gpu.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// Passes readings on until the probe exits or is silent for too long, and then kills it.
async fn pass_on_readings(mut child: Child, mut worker: watch::Receiver<Option<u32>>, inputs: &mpsc::Sender<Input>) {
    let (Some(stdout), Some(mut stdin)) = (child.stdout.take(), child.stdin.take()) else { return };
    let mut lines = BufReader::new(stdout).lines();
    let mut patience = FIRST;
    worker.mark_changed();
    loop {
        tokio::select! {
            heard = timeout(patience, lines.next_line()) => {
                let Ok(Ok(Some(text))) = heard else { break };
                if let Some(reading) = line::decode::<Reading>(&text) {
                    patience = SILENCE;
                    let _ = inputs.send(Input::Reading(Box::new(reading))).await;
                }
            }
            changed = worker.changed() => {
                if changed.is_err() {
                    break;
                }
                let order = ProbeOrder { worker_pid: *worker.borrow_and_update() };
                let Ok(text) = line::encode(&order) else { continue };
                if stdin.write_all(text.as_bytes()).await.is_err() {
                    break;
                }
            }
        }
    }
    let _ = child.start_kill();
    let _ = timeout(SILENCE, child.wait()).await;
}
