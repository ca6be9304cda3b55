//! Rungs that cannot start: found before the start where the run file tells, left again where it does not.

use super::shown;
use crate::helper::{Place, journal_says, wait_for, wait_status};
use downshift::store::reader::live_status;
use std::fs;
use std::process::Stdio;

/// Saves at every step until a file says that it is enough. One rung ends before its first step, and all but the last run out
/// of memory once a file says so.
const SHIFTS: &str = r#"name: shifts
task: command
command: [sh, "{attempt_dir}/train.sh"]
environment: { MODE: fast, OUT: "{run_dir}/out", RUN: "{run_dir}" }
checkpoints: { match: "{run_dir}/out/checkpoint-*", complete: state, keep_last: 3 }
resume: { environment: { FROM: "{checkpoint}" } }
files:
  train.sh: |
    if [ "$MODE" = broken ]; then echo "train.sh: no such mode"; exit 2; fi
    step=$(cat "$FROM/state" 2>/dev/null || echo 0)
    until [ -e "$RUN/enough" ]; do
      if [ -e "$RUN/full" ] && [ "$MODE" = fast ]; then
        echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"; exit 1
      fi
      step=$((step + 1))
      echo "step $step loss 1.0"
      mkdir -p "$OUT/checkpoint-$step" && echo $step > "$OUT/checkpoint-$step/state"
      sleep 0.1
    done
ladder:
  - { name: broken, relieves: [memory], set: { environment.MODE: broken } }
  - { name: safe, relieves: [memory], set: { environment.MODE: careful } }
"#;

#[test]
fn a_run_goes_back_from_a_rung_that_exits_before_its_first_step_and_does_not_choose_it_again() {
    let place = Place::real();
    fs::write(place.dir.path().join("run.yaml"), SHIFTS).unwrap();
    let words = ["run", "run.yaml", "--trust", "--headless", "--device", "cpu"];
    let mut running = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let run = wait_for("a checkpoint", || {
        place.newest().filter(|run| live_status(run).is_some_and(|status| status.durable_step.is_some()))
    });
    place.succeed(&["shift", "broken"]);
    let back = wait_status(&run, "the rung it came from", |status| {
        status.rung == 0 && status.rungs[1].unusable.is_some() && status.pid_worker.is_some()
    });
    assert_eq!(back.rungs[1].unusable.as_deref(), Some("exit code 2"));
    assert!(journal_says(&run, "shift back: broken → full, by the keeper: broken cannot start here"));
    let told = shown(&place.output(&["status"]));
    assert!(told.contains("broken cannot start here: exit code 2"), "{told}");
    let trained = wait_status(&run, "a step after it", |status| status.step > back.step && status.rungs[0].steps > 0);
    assert_eq!(trained.exit_code, None);
    fs::write(run.file("full"), "").unwrap();
    wait_status(&run, "the other rung that helps against lack of memory", |status| {
        status.rung == 2 && status.rungs[2].steps > 0
    });
    fs::write(run.file("enough"), "").unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(0));
    let starts = shown(&place.output(&["triage", "shifts"]));
    assert!(!starts.contains("needs attention"), "{starts}");
}

#[test]
fn preflight_names_arguments_files_and_shapes_that_a_rung_would_fail_with() {
    let place = Place::real();
    let script = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--config')\np.add_argument('--n-layer')\n\
                  p.add_argument('--fast', action='store_true')\nprint(p.parse_args())\n";
    fs::write(place.dir.path().join("train.py"), script).unwrap();
    fs::write(place.dir.path().join("full.json"), "{}").unwrap();
    let text = "name: x\ntask: command\n\
                command: [python3, train.py, '--config={knobs.config}', --n-layer, '{knobs.layers}', '{knobs.more}']\n\
                knobs: { config: full.json, layers: 4, more: '--fast' }\nladder:\n\
                \x20 - { name: lost, relieves: [memory], set: { knobs.config: lost.json } }\n\
                \x20 - { name: typo, relieves: [memory], from: full, set: { knobs.more: '--fats' } }\n\
                \x20 - { name: thin, relieves: [memory], from: full, set: { knobs.layers: 2 } }\n";
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    let listed = shown(&place.output(&["check", "run.yaml", "--preflight", "--device", "cpu"]));
    for part in [
        "`lost`: lost.json does not exist, which --config names",
        "`typo`: train.py declares no argument --fats, as far as its source shows; did you mean `--fast`?",
        "`thin`: --n-layer becomes 2, so a checkpoint of another rung may not fit its model",
    ] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    assert_eq!(listed.matches("rungs  ").count(), 3, "{listed}");
}

/// Names each epoch on a line of its own, with five steps in it, and saves at the end of each, until it trains on the last rung.
const EPOCHS: &str = r#"name: epochs
task: command
command: [sh, "{attempt_dir}/train.sh"]
environment: { MODE: fast, OUT: "{run_dir}/out" }
checkpoints: { match: "{run_dir}/out/checkpoint-*", complete: state }
resume: { environment: { FROM: "{checkpoint}" } }
checkpoint: { proven_after: 1 }
watch: { climb: { after: 5 } }
climb: { plan: [{ rung: safe, epochs: 2 }, { rung: full }] }
files:
  train.sh: |
    step=$(cat "$FROM/state" 2>/dev/null || echo 0)
    while true; do
      echo "Epoch $((step / 5 + 1))"
      for i in 1 2 3 4 5; do
        step=$((step + 1))
        sleep 0.05
        echo "step $step loss 1.0"
      done
      mkdir -p "$OUT/checkpoint-$step" && echo $step > "$OUT/checkpoint-$step/state"
      if [ "$MODE" = fast ] && [ -n "$FROM" ]; then exit 0; fi
      sleep 0.5
    done
ladder:
  - { name: safe, relieves: [memory], set: { environment.MODE: careful } }
"#;

#[test]
fn a_climb_plan_in_epochs_follows_those_that_a_script_prints_and_none_is_shown_that_cannot_be_followed() {
    let place = Place::real();
    fs::write(place.dir.path().join("run.yaml"), EPOCHS).unwrap();
    let check = place.succeed(&["check", "run.yaml", "--device", "cpu"]);
    assert!(check.contains("climb plan: safe for 2 epochs, then full"), "{check}");
    let said = shown(&place.output(&["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]));
    assert!(said.contains("climb plan: safe → full, stage 2 of 2: 2 epochs done and proven"), "{said}");

    let lost = EPOCHS.replace("resume: { environment: { FROM: \"{checkpoint}\" } }\n", "");
    fs::write(place.dir.path().join("lost.yaml"), lost.replace("while true", "for epoch in 1 2 3 4 5")).unwrap();
    let refusal = "lost.yaml:8: climb.plan is not followed: nothing resumes the command";
    let check = place.succeed(&["check", "lost.yaml", "--device", "cpu"]);
    assert!(check.contains(refusal) && check.contains("the run stays on safe"), "{check}");
    assert!(!check.contains("climb plan: "), "{check}");
    let preflight = shown(&place.output(&["check", "lost.yaml", "--device", "cpu", "--preflight"]));
    assert!(preflight.contains(refusal), "{preflight}");
    let said = shown(&place.output(&["run", "lost.yaml", "--trust", "--headless", "--device", "cpu"]));
    assert!(said.contains(refusal) && !said.contains("climb plan: safe"), "{said}");
    let told = "the climb plan is not followed: nothing resumes the command, so the next stage would start it from its beginning";
    assert_eq!(said.matches(told).count(), 1, "{said}");
}
