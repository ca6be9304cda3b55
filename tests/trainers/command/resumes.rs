//! The journal says of a resume only what the script shows: it may train on from its checkpoint, from another one, or from
//! the beginning.

use super::{launch, shown};
use crate::helper::{Place, journal, journal_says, stop_run, wait_for, wait_parent_end, wait_status};
use downshift::protocol::control::Status;
use downshift::protocol::resumed::{ActualStart, Resumed};
use downshift::store::reader::{Reader, live_status};
use downshift::store::run_dir::RunDir;
use std::fs;
use std::process::{Child, Command, Stdio};

/// Trains from the newest checkpoint in its folder, with a loss that falls from 4.5 to 0.5. It saves after steps 20, 40 and
/// 60, and goes on until a file says that it is enough.
const FINDS_ITSELF: &str = r#"name: finds
task: command
command: [sh, "{attempt_dir}/train.sh"]
environment: { OUT: "{run_dir}/full", RUN: "{run_dir}" }
checkpoints: { match: "{run_dir}/full/checkpoint-*", complete: state }
resume: {}
files:
  train.sh: |
    mkdir -p "$OUT"
    newest=$(ls "$OUT" | sed -n 's/^checkpoint-//p' | sort -n | tail -n 1)
    step=${{newest:-0}}
    until [ -e "$RUN/enough" ]; do
      step=$((step + 1))
      milli=$((40000 / (step + 9) + 500))
      echo "step $step loss $((milli / 1000)).$(printf %03d $((milli % 1000)))"
      case $step in
        20|40|60) mkdir "$OUT/checkpoint-$step" && echo $step > "$OUT/checkpoint-$step/state" ;;
      esac
      sleep 0.02
    done
ladder:
  - { name: elsewhere, relieves: [memory], set: { environment.OUT: "{run_dir}/elsewhere" } }
"#;

/// Starts a run, and waits until it is past its last checkpoint.
fn start(text: &str) -> (Place, Child, RunDir) {
    let (place, child) = launch(text);
    let run = wait_for("the last checkpoint", || {
        place
            .newest()
            .filter(|run| live_status(run).is_some_and(|status| status.durable_step == Some(60) && status.step > 70))
    });
    (place, child, run)
}

/// Waits until the resume of the second attempt is known, and a few steps more.
fn wait_known(run: &RunDir) -> Status {
    let known = wait_status(run, "the resume", |status| {
        status.attempts == 2 && status.resumed.as_ref().is_some_and(Resumed::is_known)
    });
    let from = known.resumed.as_ref().map_or(0, Resumed::step);
    wait_status(run, "steps after it", |status| status.step > from + 3 && status.step < from + 1_000);
    known
}

/// Returns the steps of an attempt in the store.
fn steps_of(run: &RunDir, attempt: u64) -> Vec<u64> {
    let mut steps = Vec::new();
    let store = Reader::open(run).unwrap();
    store.each_step(|row| steps.extend(Some(row.step).filter(|_| row.attempt == attempt))).unwrap();
    steps
}

#[test]
fn a_rung_with_another_folder_starts_from_scratch_and_the_journal_says_so() {
    let (place, mut child, run) = start(FINDS_ITSELF);
    place.succeed(&["shift", "elsewhere"]);
    let status = wait_known(&run);
    let wanted = Resumed::Contradicted { asked: 60, found: ActualStart::Beginning };
    assert_eq!(status.resumed, Some(wanted), "{:#?}", journal(&run));
    assert!(journal_says(&run, "asked to resume from step 60, but the script starts from scratch"));
    assert!(!journal_says(&run, "resumed at step"), "{:#?}", journal(&run));
    let told = shown(&place.output(&["status"]));
    assert!(told.contains("the script starts from scratch"), "{told}");
    let json = place.status_json();
    assert_eq!((&json["resumed"]["state"], &json["resumed"]["asked"]), (&"contradicted".into(), &60.into()), "{json}");
    stop_run(&place, &mut child);
    assert_eq!(steps_of(&run, 2)[..3], [1, 2, 3], "the steps that the script takes");
    assert_eq!(Reader::open(&run).unwrap().attempts().unwrap()[1].from_step, None);
    let shift = journal(&run).into_iter().find(|row| row.text.starts_with("shifted full → elsewhere"));
    assert!(shift.is_some_and(|row| row.text.contains("again from the beginning")), "{:#?}", journal(&run));
}

#[test]
fn a_script_that_loads_a_newer_checkpoint_than_it_was_asked_to_is_named_with_that_step() {
    let (place, mut child, run) = start(FINDS_ITSELF);
    stop_run(&place, &mut child);
    wait_parent_end(&run);
    let words = ["resume", &run.name(), "--from", "20", "--headless"];
    let mut again = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let status = wait_known(&run);
    let wanted = Resumed::Contradicted { asked: 20, found: ActualStart::Checkpoint { step: 60, file: None } };
    assert_eq!(status.resumed, Some(wanted), "{:#?}", journal(&run));
    assert!(journal_says(&run, "asked to resume from step 20, but the script trains on from step 60"));
    assert!(!journal_says(&run, "resumed at step"), "{:#?}", journal(&run));
    stop_run(&place, &mut again);
    assert_eq!(steps_of(&run, 2)[0], 61);
    assert_eq!(Reader::open(&run).unwrap().attempts().unwrap()[1].from_step, Some(60));
}

#[test]
fn a_resume_is_said_once_the_first_step_shows_it() {
    let (place, mut child, run) = start(FINDS_ITSELF);
    place.succeed(&["restart"]);
    let status = wait_known(&run);
    assert_eq!(status.resumed, Some(Resumed::Verified { step: 60, file: None }), "{:#?}", journal(&run));
    let rows = journal(&run);
    let at = |words: &str| rows.iter().position(|row| row.text.contains(words)).unwrap_or_else(|| panic!("{rows:#?}"));
    assert!(at("is asked to resume from step 60") < at("resumed at step 60"), "{rows:#?}");
    wait_for("the restart", || journal_says(&run, "again from checkpoint 60").then_some(()));
    stop_run(&place, &mut child);
}

#[test]
fn a_count_over_all_epochs_goes_on_at_once_after_a_resume() {
    let line = "echo \"epoch $(((step - 1) / 20 + 1)) step";
    let (place, mut child, run) = start(&FINDS_ITSELF.replace("echo \"step", line));
    place.succeed(&["restart"]);
    wait_known(&run);
    stop_run(&place, &mut child);
    assert_eq!(steps_of(&run, 2)[..3], [61, 62, 63], "epoch 4 begins: {:#?}", journal(&run));
    assert!(!journal_says(&run, "begin again") && !journal_says(&run, "curve waits"), "{:#?}", journal(&run));
}

#[test]
fn nothing_begins_again_in_a_training_that_is_adopted_in_a_later_epoch() {
    let place = Place::real();
    let script = "step=97; while :; do step=$((step + 1)); echo \"epoch $(((step - 1) / 50 + 1)) step $step loss 0.5\"; \
                  sleep 0.05; done";
    let log = place.dir.path().join("train.log");
    let output = fs::File::create(&log).unwrap();
    let mut by_hand = Command::new("sh").args(["-c", script]).stdout(output).spawn().unwrap();
    let pid = by_hand.id().to_string();
    let words = ["adopt", "--pid", &pid, "--log", "train.log", "--device", "cpu", "--headless"];
    let mut client = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let run = wait_for("a run", || place.newest());
    wait_status(&run, "the steps of the next epoch", |status| status.step > 100 && status.loss.is_some());
    assert!(journal_says(&run, "in a later epoch; whether it counts over all epochs"), "{:#?}", journal(&run));
    assert!(!journal_says(&run, "begin again"), "{:#?}", journal(&run));
    by_hand.kill().unwrap();
    by_hand.wait().unwrap();
    client.wait().unwrap();
}

/// Names no step and no loss; its checkpoints have numbers. It dies once.
const SILENT: &str = r#"name: silent
task: command
command: [sh, "{attempt_dir}/train.sh"]
environment: { OUT: "{run_dir}/out", RUN: "{run_dir}" }
checkpoints: { match: "{run_dir}/out/checkpoint-*", complete: state }
resume: {}
files:
  train.sh: |
    mkdir -p "$OUT/checkpoint-20" && echo 20 > "$OUT/checkpoint-20/state"
    until [ -e "$RUN/adopted/step-000000020.json" ]; do sleep 0.05; done
    if [ ! -e "$RUN/died" ]; then touch "$RUN/died"; kill -9 $$; fi
    echo training
    until [ -e "$RUN/enough" ]; do sleep 0.05; done
"#;

#[test]
fn a_script_that_prints_no_step_is_not_said_to_have_resumed() {
    let (place, mut child) = launch(SILENT);
    let run = wait_for("the run", || place.newest().filter(|run| live_status(run).is_some()));
    let said = "is asked to resume from step 20 on cpu (command); not verified yet";
    wait_for("another attempt", || journal_says(&run, said).then_some(()));
    wait_for("its output", || fs::read_to_string(run.file("worker.log")).ok().filter(|log| log.contains("training")));
    let status = wait_status(&run, "its status", |status| status.attempts == 2 && status.resumed.is_some());
    assert_eq!(status.resumed, Some(Resumed::Unverified { asked: 20, counts_from: None }));
    assert!(!journal_says(&run, "resumed at step"), "{:#?}", journal(&run));
    stop_run(&place, &mut child);
}
