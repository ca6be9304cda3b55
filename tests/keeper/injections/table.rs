//! The faults, numbered as in the list of injections; RELIABILITY.md explains which are missing, and why.

mod cards;
mod data;

use super::scene::{Case, PLAIN};
use crate::helper::{kill, wait_status};
use downshift::protocol::control::RunState;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// Steps slow enough to catch a run in the middle.
pub const SLOW: &str = "step_ms: 6, save_ms: 1";

/// Returns every case.
pub fn cases() -> Vec<Case> {
    let here = [deaths(), memory(), unknown(), keepers(), strains(), hangs(), recoveries()];
    here.into_iter().flatten().chain(cards::cases()).chain(data::cases()).collect()
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
            cause: "crashed with SIGSEGV",
            response: "shift down: full → plain, by the keeper",
            never: "out of device memory",
            ..PLAIN
        },
        Case {
            number: 7,
            fault: "exit code 0 before the last step",
            inject: "exit0@120",
            cause: "before the last step",
            response: "restart after",
            ..PLAIN
        },
    ]
}

fn memory() -> Vec<Case> {
    vec![
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
            fault: "out of device memory only on resume",
            model: "step_ms: 2, trouble: [{ load: true, from_attempt: 2, rungs: 1, class: device_out_of_memory }]",
            inject: "kill@120",
            cause: "out of device memory",
            response: "shift down: full → accumulate, by the keeper",
            never: "accumulate → plain",
            ..PLAIN
        },
        Case {
            number: 20,
            fault: "out of device memory during a save",
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
    ]
}

fn unknown() -> Vec<Case> {
    vec![
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
            response: "needs attention: 3 restarts without progress",
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
            cause: "the keeper was killed",
            response: "from the newest usable checkpoint",
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
            cause: "the keeper was killed",
            response: "from the newest usable checkpoint",
            ..PLAIN
        },
    ]
}

fn strains() -> Vec<Case> {
    vec![
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
            fault: "40 MB on stderr, half lines, bytes that are not UTF-8",
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
            cause: "hang: no progress",
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
            fault: "a hang of a worker that keeps sending events",
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
            fault: "compiling and saving for longer than a step may take",
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

fn recoveries() -> Vec<Case> {
    vec![
        Case {
            number: 39,
            fault: "a worker that dies at once, every time",
            model: "trouble: [{ load: true, code: 77 }]",
            cause: "exit code 77",
            response: "needs attention: 3 restarts without progress",
            code: 4,
            ..PLAIN
        },
        Case {
            number: 40,
            fault: "alternating faults, without progress",
            model: "step_ms: 2, trouble: [{ step: 60, attempts: 1, class: panic }, { step: 61, attempts: 2, signal: 11 }, \
                    { step: 62, attempts: 3, code: 77 }, { step: 63, class: panic }]",
            every: "300 steps",
            cause: "crashed with SIGSEGV",
            response: "needs attention: 3 restarts without progress",
            code: 4,
            ..PLAIN
        },
        Case {
            number: 39,
            fault: "six deaths in half an hour, with progress",
            inject: "kill@60,kill@110,kill@160,kill@210,kill@260,kill@310",
            cause: "killed by SIGKILL",
            response: "needs attention: 5 restarts within 30 min",
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
            cause: "the keeper was killed",
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
