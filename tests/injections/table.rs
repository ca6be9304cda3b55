//! The faults. The numbers are those of the list of injections; what is not here, and why, stands
//! in RELIABILITY.md.

use crate::helper::{kill, wait_status};
use crate::scene::{Case, PLAIN, Scene};
use downshift::protocol::control::RunState;
use downshift::store::checkpoint;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const SLOW: &str = "step_ms: 6, save_ms: 1";
const ON_GPU: &str = "step_ms: 12, save_ms: 1, device: \"cuda:0 fake\"";
/// 3 GB in use by others.
const OTHERS: &str = r#"{"nvmlDeviceGetMemoryInfo_v2": [{"value": {"total": 24000000000, "used": 3000000000}}]}"#;
const FULL: &str = r#"{"nvmlDeviceGetMemoryInfo_v2": [{"value": {"total": 24000000000, "used": 9000000000}}]}"#;
const HOT: &str = r#"{"nvmlDeviceGetTemperature": [{"value": 70, "per_call": 10}, {"after": 3, "value": 92}]}"#;
const COOL: &str = r#"{"nvmlDeviceGetTemperature": [{"value": 70}]}"#;
const STUCK: &str = r#"{"nvmlDeviceGetTemperature": [{"after": 1, "hang": true}]}"#;
const LOST: &str = r#"{"nvmlDeviceGetTemperature": [{"code": 15}], "nvmlDeviceGetMemoryInfo_v2": [{"code": 15}]}"#;
const LIES: &str = r#"{"nvmlDeviceGetTemperature": [{"value": 0}, {"after": 2, "value": 4000}]}"#;

/// Every case.
pub fn cases() -> Vec<Case> {
    [deaths(), keepers(), hangs(), cards(), numbers(), disks(), recoveries()].into_iter().flatten().collect()
}

fn deaths() -> Vec<Case> {
    vec![
        Case {
            number: 1,
            fault: "kill -9 of the worker at drawn steps",
            inject: "kill@57,kill@123,kill@301",
            cause: "killed by SIGKILL",
            response: "restart after: killed by SIGKILL",
            ..PLAIN
        },
        Case {
            number: 5,
            fault: "SIGSEGV, SIGABRT, SIGILL",
            model: "step_ms: 2, trouble: [{ step: 60, attempts: 1, signal: 11 }, { step: 120, attempts: 2, signal: 6 }, \
                    { step: 180, attempts: 3, signal: 4 }]",
            cause: "crash: SIGSEGV",
            response: "restart after: crash: SIGILL",
            never: "out of device memory",
            ..PLAIN
        },
        Case {
            number: 7,
            fault: "exit code 0 before the last step",
            inject: "exit0@120",
            cause: "it ended before the last step",
            response: "restart after",
            ..PLAIN
        },
        Case {
            number: 18,
            fault: "out of device memory",
            inject: "oom@150",
            cause: "out of device memory",
            response: "shift down: full → accumulate, by the keeper",
            ..PLAIN
        },
        Case {
            number: 19,
            fault: "out of device memory on resume alone",
            model: "step_ms: 2, trouble: [{ load: true, from_attempt: 2, rungs: 1, class: device_out_of_memory }]",
            inject: "kill@120",
            cause: "out of device memory",
            response: "shift down: full → accumulate, by the keeper",
            never: "accumulate → plain",
            ..PLAIN
        },
        Case {
            number: 20,
            fault: "out of device memory in a save",
            model: "step_ms: 2, trouble: [{ save: true, attempts: 1, class: device_out_of_memory }]",
            cause: "out of device memory",
            response: "shift down: full → accumulate, by the keeper",
            ..PLAIN
        },
        Case {
            number: 21,
            fault: "sticky device fault (719), only with fused kernels",
            model: "step_ms: 2, trouble: [{ step: 150, rungs: 2, class: device_fault, message: \"launch failure (719)\" }]",
            cause: "launch failure (719)",
            response: "shift down: full → plain, by the keeper",
            ..PLAIN
        },
        Case {
            number: 22,
            fault: "an unknown error (exit code 77), once",
            model: "step_ms: 2, trouble: [{ step: 120, attempts: 1, code: 77 }]",
            cause: "exit code 77",
            response: "restart after: exit code 77",
            ..PLAIN
        },
        Case {
            number: 22,
            fault: "an unknown error (exit code 77), always",
            model: "step_ms: 2, trouble: [{ step: 120, code: 77 }]",
            cause: "exit code 77",
            response: "needs a person: 3 restarts brought no new durable step",
            code: 4,
            ..PLAIN
        },
    ]
}

fn keepers() -> Vec<Case> {
    vec![
        Case {
            number: 3,
            fault: "kill -9 of the keeper",
            model: SLOW,
            act: Some(|scene| {
                let status = wait_status(&scene.run, "steps", |status| status.step >= 60);
                kill(status.pid_keeper.unwrap());
            }),
            cause: "the keeper died",
            response: "goes on from step",
            ..PLAIN
        },
        Case {
            number: 4,
            fault: "kill -9 of keeper and worker",
            model: SLOW,
            act: Some(|scene| {
                let status =
                    wait_status(&scene.run, "steps", |status| status.step >= 60 && status.pid_worker.is_some());
                kill(status.pid_keeper.unwrap());
                kill(status.pid_worker.unwrap());
            }),
            cause: "the keeper died",
            response: "goes on from step",
            ..PLAIN
        },
        Case {
            number: 36,
            fault: "SIGSTOP of the keeper for three times the hang limit",
            model: "step_ms: 12, save_ms: 1",
            watch: "hang_min: 1 s",
            act: Some(|scene| {
                let keeper = wait_status(&scene.run, "steps", |status| status.step >= 60).pid_keeper.unwrap();
                let keeper = Pid::from_raw(keeper.cast_signed()).unwrap();
                kill_process(keeper, Signal::STOP).unwrap();
                let until = Instant::now() + Duration::from_secs(3);
                while Instant::now() < until {
                    std::thread::park_timeout(Duration::from_millis(50));
                }
                kill_process(keeper, Signal::CONT).unwrap();
            }),
            never: "hang",
            ..PLAIN
        },
        Case {
            number: 38,
            fault: "40 MB on stderr, half lines, bytes that are no text",
            model: "step_ms: 1, flood: true, noise: true",
            never: "hang",
            ..PLAIN
        },
        Case {
            number: 44,
            fault: "a second keeper on the same run",
            model: SLOW,
            act: Some(|scene| {
                wait_status(&scene.run, "steps", |status| status.step >= 20);
                let second = scene.place.output(&["keeper", "--run-dir", scene.run.path().to_str().unwrap()]);
                assert_eq!(second.status.code(), Some(1));
                assert!(String::from_utf8_lossy(&second.stderr).contains("a run has one keeper"));
            }),
            ..PLAIN
        },
    ]
}

fn hangs() -> Vec<Case> {
    const QUICK: &str = "hang_min: 1 s, ending: { grace: 1 s, kill: 5 s }";
    vec![
        Case {
            number: 8,
            fault: "SIGSTOP of the worker",
            model: "step_ms: 2, trouble: [{ step: 120, attempts: 1, signal: 19 }]",
            watch: QUICK,
            cause: "hang: no progress for 1 s while training",
            response: "restart after: hang",
            ..PLAIN
        },
        Case {
            number: 8,
            fault: "a hang, twice",
            model: "step_ms: 2, trouble: [{ step: 120, attempts: 1, hang: quiet }, { step: 200, attempts: 2, hang: quiet }]",
            watch: QUICK,
            cause: "hang: no progress",
            response: "shift down: full → plain, by the keeper",
            ..PLAIN
        },
        Case {
            number: 9,
            fault: "a hang of a worker that goes on talking",
            model: "step_ms: 2, trouble: [{ step: 120, attempts: 1, hang: talking }]",
            watch: QUICK,
            cause: "hang: no progress",
            response: "restart after: hang",
            ..PLAIN
        },
        Case {
            number: 10,
            fault: "steps ten times slower for a while",
            model: "step_ms: 3",
            watch: QUICK,
            inject: "slow@100-160",
            never: "hang",
            ..PLAIN
        },
        Case {
            number: 11,
            fault: "kernels compiled and a save copied for longer than a step may take",
            model: "step_ms: 2, compile_ms: 1500, save_phase_ms: 1500",
            watch: QUICK,
            every: "200 steps",
            never: "hang",
            ..PLAIN
        },
        Case {
            number: 12,
            fault: "a hang of a worker that ignores SIGTERM",
            model: "step_ms: 2, ignore_term: true",
            watch: QUICK,
            inject: "hang@120",
            cause: "hang: no progress",
            response: "restart after: hang",
            ..PLAIN
        },
    ]
}

fn cards() -> Vec<Case> {
    const WAIT: &str = "ending: { grace: 1 s, vram_wait: 3 s }";
    const HEAT: &str = "heat: { act_after: 1 s }";
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
            response: "needs a person: the card did not become free",
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
        Case {
            number: 25,
            fault: "temperature ramp",
            model: ON_GPU,
            watch: HEAT,
            nvml: Some(HOT),
            act: Some(|scene| {
                scene.wait_words("pauses to cool");
                wait_status(&scene.run, "rest", |status| status.pid_worker.is_none());
                scene.nvml(COOL);
            }),
            cause: "pauses to cool: the GPU is at 92 °C",
            response: "the card has cooled to 70 °C",
            ..PLAIN
        },
        Case {
            number: 25,
            fault: "a sensor that says 0 °C, then 4000 °C",
            model: ON_GPU,
            watch: HEAT,
            nvml: Some(LIES),
            never: "pauses to cool",
            ..PLAIN
        },
    ]
}

fn numbers() -> Vec<Case> {
    vec![
        Case {
            number: 26,
            fault: "one loss that is no number",
            inject: "nan@100",
            cause: "step 100 skipped",
            never: "shift",
            ..PLAIN
        },
        Case {
            number: 27,
            fault: "two in a row",
            inject: "nan@100-101",
            cause: "step 100 skipped",
            never: "shift",
            ..PLAIN
        },
        Case {
            number: 27,
            fault: "five in a row",
            inject: "nan@100-104",
            cause: "5 steps in a row were not finite",
            response: "shift down: full → safe, by the keeper",
            ..PLAIN
        },
        Case {
            number: 27,
            fault: "a loss that jumps and stays high",
            model: "step_ms: 2, trouble: [{ step: 320, last: 330, attempts: 1, spike: 50.0 }]",
            watch: "spike: { skip: 5 }",
            cause: "the loss jumped",
            response: "goes back to the checkpoint of step 200",
            whole: false,
            holds: Some(|scene| {
                let rows = scene.place.rows();
                let first = rows.iter().find(|row| row["attempt"] == 2).unwrap();
                let wanted = (201, (200 + 5 + 1) * 8);
                assert_eq!((first["step"].as_u64(), first["samples"].as_u64()), (Some(wanted.0), Some(wanted.1)));
            }),
            ..PLAIN
        },
        Case {
            number: 28,
            fault: "a sample that makes the worker panic",
            model: "step_ms: 2, trouble: [{ samples: 1400, class: panic }]",
            cause: "failed twice in the same way",
            response: "leaves out the samples from 1 400 to 1 401",
            whole: false,
            ..PLAIN
        },
    ]
}

fn disks() -> Vec<Case> {
    fn strike(scene: &Scene, damage: fn(&Path)) {
        let status = wait_status(&scene.run, "two checkpoints", |status| status.durable_step >= Some(100));
        damage(scene.run.path());
        kill(status.pid_worker.unwrap());
    }
    fn spoil(folder: &Path) {
        let model = folder.join("model.safetensors");
        let mut bytes = fs::read(&model).unwrap();
        bytes[0] ^= 1;
        fs::write(model, bytes).unwrap();
    }
    vec![
        Case {
            number: 29,
            fault: "disk full for two saves",
            model: "step_ms: 2, disk_full_from: 50, disk_full_to: 150",
            cause: "not saved: No space left on device",
            response: "checkpoints are written again",
            ..PLAIN
        },
        Case {
            number: 33,
            fault: "one bit of the newest checkpoint flipped",
            model: SLOW,
            act: Some(|scene| strike(scene, |run| spoil(&checkpoint::list(run)[0].path))),
            cause: "set aside: it could not be used",
            response: "resumed at step",
            ..PLAIN
        },
        Case {
            number: 34,
            fault: "foreign files, a link and a half-written folder among the checkpoints",
            model: SLOW,
            act: Some(|scene| {
                strike(scene, |run| {
                    let folder = run.join(checkpoint::FOLDER);
                    fs::write(folder.join("notes.txt"), "mine").unwrap();
                    fs::create_dir(folder.join("step-000000999")).unwrap();
                    std::os::unix::fs::symlink("/nowhere", folder.join("step-000000998")).unwrap();
                });
            }),
            cause: "killed by SIGKILL",
            response: "resumed at step",
            holds: Some(|scene| {
                let kept = fs::read_to_string(scene.run.path().join(checkpoint::FOLDER).join("notes.txt"));
                assert_eq!(kept.unwrap(), "mine", "what is not ours is never deleted");
            }),
            ..PLAIN
        },
        Case {
            number: 35,
            fault: "every checkpoint damaged",
            model: SLOW,
            act: Some(|scene| strike(scene, |run| checkpoint::list(run).iter().for_each(|entry| spoil(&entry.path)))),
            cause: "no checkpoint can be used",
            response: "failed: checkpoint",
            code: 14,
            ..PLAIN
        },
    ]
}

fn recoveries() -> Vec<Case> {
    vec![
        Case {
            number: 39,
            fault: "a worker that dies at once, every time",
            model: "trouble: [{ load: true, code: 77 }]",
            cause: "exit code 77",
            response: "needs a person: 3 restarts brought no new durable step",
            code: 4,
            ..PLAIN
        },
        Case {
            number: 40,
            fault: "faults that take turns, without progress",
            model: "step_ms: 2, trouble: [{ step: 60, attempts: 1, class: panic }, { step: 61, attempts: 2, signal: 11 }, \
                    { step: 62, attempts: 3, code: 77 }, { step: 63, class: panic }]",
            every: "300 steps",
            cause: "crash: SIGSEGV",
            response: "needs a person: 3 restarts brought no new durable step",
            code: 4,
            ..PLAIN
        },
        Case {
            number: 39,
            fault: "six deaths in half an hour, with progress",
            inject: "kill@60,kill@110,kill@160,kill@210,kill@260,kill@310",
            cause: "killed by SIGKILL",
            response: "needs a person: 5 restarts within 30 min",
            code: 4,
            ..PLAIN
        },
        Case {
            number: 41,
            fault: "kill -9 of the keeper while it waits before a start",
            model: "step_ms: 2, trouble: [{ load: true, code: 77, attempts: 2 }]",
            act: Some(|scene| {
                let waits = wait_status(&scene.run, "back-off", |status| status.state == RunState::BackingOff);
                kill(waits.pid_keeper.unwrap());
            }),
            cause: "the keeper died",
            response: "attempt 3",
            ..PLAIN
        },
        Case {
            number: 41,
            fault: "a death while loading",
            model: "step_ms: 2, trouble: [{ load: true, from_attempt: 2, attempts: 2, signal: 9 }]",
            inject: "kill@120",
            cause: "killed by SIGKILL",
            response: "attempt 3",
            ..PLAIN
        },
    ]
}

/// What the scripted worker's children are still alive of this run.
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
