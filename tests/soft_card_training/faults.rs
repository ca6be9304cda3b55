//! Errors of the card: how a run responds, and what its journal says.

use crate::card::{eight_steps, place_with_card, place_with_unused_card, run_with_faults, set_faults};
use crate::helper::{Place, journal, journal_says, wait_for};
use downshift::protocol::control::RunState;
use downshift::store::reader::live_status;
use downshift::store::run_dir::RunDir;
use std::process::Stdio;

/// A driver's error: its code, how the journal names it, the class, and the rung that relieves it.
struct Case {
    code: i32,
    said: &'static str,
    class: &'static str,
    rung: &'static str,
}

const MEMORY: Case = Case {
    code: 2,
    said: "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory",
    class: "out of device memory",
    rung: "accumulate",
};
const ADDRESS: Case = Case {
    code: 700,
    said: "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered",
    class: "device fault",
    rung: "plain",
};
const LAUNCH: Case = Case {
    code: 719,
    said: "CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure",
    class: "device fault",
    rung: "plain",
};
const UNKNOWN: Case =
    Case { code: 999, said: "CUDA_ERROR_UNKNOWN (999): unknown error", class: "device fault", rung: "plain" };

impl Case {
    fn fault(&self, more: &str) -> String {
        format!(r#"[{{{more} "code": {}, "once": true}}]"#, self.code)
    }

    /// Checks that the run says what happened in short lines, and shifted to the rung that relieves it.
    fn check(&self, run: &RunDir) {
        let lines: Vec<String> = journal(run).into_iter().map(|row| row.text).collect();
        let all = lines.join("\n");
        for words in [&format!(": {}: {}", self.class, self.said), &format!("full → {}", self.rung)] {
            assert!(all.contains(words), "{words}\n{all}");
        }
        assert!(lines.iter().all(|line| line.lines().count() == 1 && line.chars().count() < 500), "{all}");
        assert!(!all.contains("unwrap()"), "{all}");
    }
}

#[test]
fn an_error_at_the_first_launches_shifts_down() {
    let place = place_with_card();
    for case in [ADDRESS, MEMORY] {
        case.check(&run_with_faults(&place, &case.fault(r#""launch": 20,"#)));
    }
}

/// Trains on a slow card, which has these faults once the run is in the state.
pub fn break_in(place: &Place, state: RunState, faults: &str) -> RunDir {
    set_faults(place, r#"[{"slow_ms": 1, "slow_copy_ms": 10}]"#);
    let mut words = eight_steps();
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
fn an_error_in_a_step_shifts_down() {
    let place = place_with_card();
    LAUNCH.check(&break_in(&place, RunState::Training, &LAUNCH.fault("")));
}

#[test]
fn an_error_in_an_evaluation_shifts_down() {
    let place = place_with_card();
    let run = break_in(&place, RunState::Evaluating, &UNKNOWN.fault(""));
    UNKNOWN.check(&run);
    assert!(journal_says(&run, "worker ended at step 4"), "the error was not in the evaluation after step 4");
}

/// A save launches no kernel: the error is that of a copy.
#[test]
fn an_error_in_a_save_shifts_down() {
    let place = place_with_card();
    let run = break_in(&place, RunState::Checkpointing, &MEMORY.fault(r#""lost": true,"#));
    MEMORY.check(&run);
    assert!(journal_says(&run, "worker ended at step 4"), "the error was not in the save after step 4");
    assert!(!journal_says(&run, "continues from step 4"), "the save had ended before the error");
}

#[test]
fn a_kernel_that_never_ends_is_a_hang() {
    let place = place_with_card();
    set_faults(&place, "[]");
    let mut words = eight_steps();
    words.extend(["--set", "watch.hang_min=5 s", "--set", "watch.hang.first_steps=20 s", "--set", "training.steps=40"]);
    let mut child = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    wait_for("a step", || live_status(&run).filter(|status| status.step > 4));
    set_faults(&place, r#"[{"hang": true, "once": true}]"#);
    assert!(child.wait().unwrap().success());
    let all: Vec<String> = journal(&run).into_iter().map(|row| row.text).collect();
    assert!(all.iter().any(|line| line.contains("hang: no progress for")), "{all:#?}");
    place.curve(40, 32);
}

#[test]
fn the_self_test_names_the_error_and_ends_a_hang() {
    let place = place_with_unused_card();
    let told = |faults: &str, limit: &str| {
        set_faults(&place, faults);
        let out = place.output(&["self-test", "--device", "cuda", "--limit", limit]);
        (out.status.code(), String::from_utf8(out.stdout).unwrap())
    };
    let (code, words) = told(r#"[{"launch": 1, "code": 719}]"#, "180");
    assert_eq!(code, Some(11));
    assert_eq!(words, format!("cuda:0 Soft Card 6.1: {}\n", LAUNCH.said));
    let (code, words) = told(r#"[{"launch": 1, "hang": true}]"#, "5");
    assert_eq!(
        (code, words.starts_with("cuda:0: no result within 5 s; restart the machine")),
        (Some(11), true),
        "{words}"
    );
    let (code, words) = told("[]", "180");
    assert_eq!(code, Some(0), "{words}");
}
