//! Errors and hangs of the card in every phase of a run: cause and response in the journal, and a run that goes on from
//! the durable step.
//!
//! A seed chooses a fault for each of the five phases, each of the five faults once. Five seeds in a row are the whole table:
//! `scripts/campaign card`.

use super::card::{eight_steps, place_with_card, place_with_unused_card, seed, set_faults};
use crate::helper::{Place, journal, wait_for};
use downshift::protocol::control::RunState;
use downshift::store::reader::{Reader, live_status};
use downshift::store::run_dir::RunDir;
use std::process::Stdio;

/// A fault on order, and the response of a run.
struct Fault {
    /// As the soft card's script of faults says it.
    script: &'static str,
    cause: &'static str,
    /// The rung that the run goes on with.
    rung: &'static str,
}

const LAUNCH: &str = "CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure";
const HANG: &str = r#""hang": true"#;

const FAULTS: [Fault; 5] = [
    Fault {
        script: r#""code": 2"#,
        cause: ": out of device memory: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory",
        rung: "accumulate",
    },
    Fault {
        script: r#""code": 719"#,
        cause: ": device fault: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure",
        rung: "plain",
    },
    Fault {
        script: r#""code": 700"#,
        cause: ": device fault: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered",
        rung: "plain",
    },
    // Its first repetition would take a rung with other kernels.
    Fault { script: HANG, cause: "hang: no progress for", rung: "full" },
    Fault { script: r#""code": 999"#, cause: ": device fault: CUDA_ERROR_UNKNOWN (999): unknown error", rung: "plain" },
];

/// The phase in which a fault strikes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Start,
    Step,
    Evaluation,
    Save,
    Resume,
}

impl Phase {
    fn fault(self) -> &'static Fault {
        &FAULTS[(seed() as usize + self as usize) % FAULTS.len()]
    }

    /// Returns the script of faults, for a process that is in the phase or about to begin it.
    fn script(self) -> String {
        let script = self.fault().script;
        match self {
            // Weights are made by the first launches; the first step ends after some hundred.
            Self::Start | Self::Resume => format!(r#"[{{"launch": {}, {script}, "once": true}}]"#, 1 + seed() * 7 % 60),
            Self::Step | Self::Evaluation => format!(r#"[{{{script}, "once": true}}]"#),
            // A save launches no kernel: it copies.
            Self::Save if script == HANG => r#"[{"hang_copy": true, "once": true}]"#.to_owned(),
            Self::Save => format!(r#"[{{"lost": true, {script}, "once": true}}]"#),
        }
    }
}

/// Returns the words of eight steps which do not wait for minutes where these faults hang. Elsewhere a busy machine may
/// take its time.
fn impatient(faults: &str) -> Vec<&'static str> {
    let mut words = eight_steps();
    if !faults.contains("hang") {
        return words;
    }
    let limits = [
        "watch.hang_min=5 s",
        "watch.hang.starting=60 s",
        "watch.hang.compiling=60 s",
        "watch.hang.first_steps=20 s",
        "watch.hang.evaluating=20 s",
        "watch.hang.checkpointing=20 s",
    ];
    words.extend(limits.iter().flat_map(|limit| ["--set", limit]));
    words
}

/// Checks that the journal names cause and response in short lines, that the run went on from the durable step on the rung
/// that the fault asks for, and that no step is missing. Returns the step at which the worker ended, and that step.
fn check(place: &Place, run: &RunDir, fault: &Fault) -> (u64, u64) {
    let lines: Vec<String> = journal(run).into_iter().map(|row| row.text).collect();
    let all = lines.join("\n");
    let end = lines.iter().position(|line| line.contains(fault.cause));
    assert!(end.is_some(), "{} is not in\n{all}", fault.cause);
    let end = end.unwrap();
    assert!(lines.iter().all(|line| line.lines().count() == 1 && line.chars().count() < 500), "{all}");
    assert!(!all.contains("unwrap()"), "{all}");
    let number = |line: &String, before: &str| -> Option<u64> {
        line.split_once(before)?.1.split([' ', ':']).next()?.parse().ok()
    };
    let told = |line| number(line, "checkpoint ").or(number(line, "resumed at step "));
    let durable = lines[..end].iter().rev().find_map(told).unwrap_or(0);
    let attempts = Reader::open(run).unwrap().attempts().unwrap();
    assert!(attempts.len() > 1, "no restart:\n{all}");
    let last = attempts.last().unwrap();
    assert!(last.reason.contains(fault.cause), "{}\n{all}", last.reason);
    assert_eq!((last.rung_name.as_str(), last.from_step.unwrap_or(0)), (fault.rung, durable), "{all}");
    place.curve(8, 32);
    let ended_at = lines[end..].iter().find_map(|line| number(line, "worker ended at step "));
    (ended_at.unwrap_or(0), durable)
}

#[test]
fn a_fault_before_the_first_step_starts_again() {
    let place = place_with_card();
    let faults = Phase::Start.script();
    set_faults(&place, &faults);
    place.succeed(&impatient(&faults));
    assert_eq!(check(&place, &place.newest().unwrap(), Phase::Start.fault()), (0, 0));
}

/// Trains on a slow card, which has these faults once the run is in the state.
pub fn break_in(place: &Place, state: RunState, faults: &str) -> RunDir {
    set_faults(place, r#"[{"slow_ms": 1, "slow_copy_ms": 10}]"#);
    let mut words = impatient(faults);
    // Whatever follows a step has to ask for its memory again.
    words.extend(["--set", "evaluation.every=4 steps", "--set", "training.memory_cleanup_every=1"]);
    let mut child = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    wait_for("the state", || {
        live_status(&run).filter(|status| status.state == state && (status.step > 1 || state != RunState::Training))
    });
    set_faults(place, faults);
    assert!(child.wait().unwrap().success());
    run
}

#[test]
fn a_fault_in_a_step_starts_again() {
    let place = place_with_card();
    let run = break_in(&place, RunState::Training, &Phase::Step.script());
    assert!(check(&place, &run, Phase::Step.fault()).0 > 1);
}

#[test]
fn a_fault_in_an_evaluation_starts_again() {
    let place = place_with_card();
    let run = break_in(&place, RunState::Evaluating, &Phase::Evaluation.script());
    assert_eq!(check(&place, &run, Phase::Evaluation.fault()).0, 4, "it was not in the evaluation after step 4");
}

#[test]
fn a_fault_in_a_save_starts_again() {
    let place = place_with_card();
    let run = break_in(&place, RunState::Checkpointing, &Phase::Save.script());
    assert_eq!(check(&place, &run, Phase::Save.fault()), (4, 0), "it was not in the save after step 4");
}

#[test]
fn a_fault_in_a_resume_starts_again() {
    let place = place_with_card();
    let faults = Phase::Resume.script();
    place.succeed(&impatient(&faults));
    set_faults(&place, &faults);
    place.succeed(&["resume", "--from", "4", "--headless", "--device", "cuda"]);
    assert_eq!(check(&place, &place.newest().unwrap(), Phase::Resume.fault()), (4, 4));
}

#[test]
fn the_self_test_names_the_error_and_ends_a_hang() {
    let place = place_with_unused_card();
    let told = |faults: &str, limit: &str| {
        set_faults(&place, faults);
        let out = place.output(&["self-test", "--device", "cuda", "--limit", limit]);
        (out.status.code(), String::from_utf8(out.stdout).unwrap())
    };
    let (code, words) = told(r#"[{"launch": 1, "code": 719}]"#, "600");
    assert_eq!(code, Some(11));
    assert_eq!(words, format!("cuda:0 Soft Card 6.1: {LAUNCH}\n"));
    let (code, words) = told(r#"[{"launch": 1, "hang": true}]"#, "5");
    assert_eq!(
        (code, words.starts_with("cuda:0: no result within 5 s; restart the machine")),
        (Some(11), true),
        "{words}"
    );
    let (code, words) = told("[]", "600");
    assert_eq!(code, Some(0), "{words}");
}
