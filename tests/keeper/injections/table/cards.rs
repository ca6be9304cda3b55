//! GPU faults, played by a fake NVML library, and faults of the processes that hold GPU memory.

use crate::helper::{kill, wait_status};
use crate::injections::scene::{Case, PLAIN};
use std::fs;
use std::path::Path;

const ON_GPU: &str = "step_ms: 12, save_ms: 1, device: \"cuda:0 fake\"";
/// 3 GB used by other processes.
const OTHERS: &str = r#"{"nvmlDeviceGetMemoryInfo_v2": [{"value": {"total": 24000000000, "used": 3000000000}}]}"#;
const FULL: &str = r#"{"nvmlDeviceGetMemoryInfo_v2": [{"value": {"total": 24000000000, "used": 9000000000}}]}"#;
const HOT: &str = r#"{"nvmlDeviceGetTemperature": [{"value": 70, "per_call": 10}, {"after": 3, "value": 92}]}"#;
const COOL: &str = r#"{"nvmlDeviceGetTemperature": [{"value": 70}]}"#;
const STUCK: &str = r#"{"nvmlDeviceGetTemperature": [{"after": 1, "hang": true}]}"#;
const LOST: &str = r#"{"nvmlDeviceGetTemperature": [{"code": 15}], "nvmlDeviceGetMemoryInfo_v2": [{"code": 15}]}"#;
const LIES: &str = r#"{"nvmlDeviceGetTemperature": [{"value": 0}, {"after": 2, "value": 4000}]}"#;

pub fn cases() -> Vec<Case> {
    [cards(), driver(), heat()].into_iter().flatten().collect()
}

fn cards() -> Vec<Case> {
    const WAIT: &str = "ending: { grace: 1 s, vram_wait: 3 s }";
    vec![
        Case {
            number: 14,
            fault: "a grandchild that outlives the worker",
            model: "step_ms: 2, grandchild: true",
            inject: "kill@120",
            cause: "killed by SIGKILL",
            response: "restart after",
            holds: Some(|scene| assert_eq!(sleepers(scene.run.path()), [0_u32; 0])),
            ..PLAIN
        },
        Case {
            number: 15,
            fault: "VRAM that is never released",
            model: ON_GPU,
            watch: WAIT,
            nvml: Some(OTHERS),
            act: Some(|scene| {
                wait_status(&scene.run, "steps", |status| status.step >= 20);
                scene.nvml(FULL);
                let used = |status: &downshift::protocol::control::Status| status.step >= 150;
                kill(wait_status(&scene.run, "steps", used).pid_worker.unwrap());
            }),
            cause: "killed by SIGKILL",
            response: "needs attention: the GPU memory was not released",
            code: 4,
            ..PLAIN
        },
        Case {
            number: 16,
            fault: "3 GB of VRAM in use by others",
            model: ON_GPU,
            watch: WAIT,
            nvml: Some(OTHERS),
            inject: "kill@120",
            cause: "killed by SIGKILL",
            response: "restart after",
            ..PLAIN
        },
    ]
}

fn driver() -> Vec<Case> {
    vec![
        Case {
            number: 24,
            fault: "NVML hangs inside a call",
            model: "step_ms: 12, device: \"cuda:0 fake\"",
            nvml: Some(STUCK),
            never: "hang",
            ..PLAIN
        },
        Case {
            number: 24,
            fault: "the driver reports that the GPU is lost",
            model: ON_GPU,
            nvml: Some(OTHERS),
            act: Some(|scene| {
                wait_status(&scene.run, "steps", |status| status.step >= 60);
                scene.nvml(LOST);
            }),
            cause: "the GPU is lost",
            response: "restart the machine",
            code: 4,
            ..PLAIN
        },
    ]
}

fn heat() -> Vec<Case> {
    const HEAT: &str = "heat: { act_after: 1 s }";
    vec![
        Case {
            number: 25,
            fault: "temperature ramp",
            model: ON_GPU,
            watch: HEAT,
            nvml: Some(HOT),
            act: Some(|scene| {
                scene.wait_words("pause to cool");
                wait_status(&scene.run, "rest", |status| status.pid_worker.is_none());
                scene.nvml(COOL);
            }),
            cause: "pause to cool: the GPU is at 92 °C",
            response: "the GPU has cooled to 70 °C",
            ..PLAIN
        },
        Case {
            number: 25,
            fault: "a sensor that reads 0 °C, then 4000 °C",
            model: ON_GPU,
            watch: HEAT,
            nvml: Some(LIES),
            never: "pause to cool",
            ..PLAIN
        },
    ]
}

/// Returns the scripted worker's children that are still alive in this run.
fn sleepers(run: &Path) -> Vec<u32> {
    let mark = format!("OF_RUN={}", run.display());
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        words.starts_with(b"sleep") && String::from_utf8_lossy(&variables).contains(&mark)
    })
    .collect()
}
