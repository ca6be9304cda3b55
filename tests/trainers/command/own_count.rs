//! A script that loads its state and counts its steps from the beginning again: the run counts the updates that were made.

use super::launch;
use crate::helper::{Place, journal, journal_says, wait_for, wait_parent_end, wait_status};
use downshift::protocol::control::RunState;
use downshift::store::adopted;
use downshift::store::reader::live_status;
use downshift::store::run_dir::RunDir;
use std::fs;
use std::process::Child;

/// Trains `--steps` more, from the state in `--resume`. Its step and the names of its checkpoints begin at 1 each time, and it saves
/// where its earlier checkpoints lie, with weights beside each. `updates` has the truth: the updates of the model, one a line.
const COUNTS_ANEW: &str = r#"name: anew
task: command
command: [sh, "{attempt_dir}/train.sh", "--steps={training.steps}"]
environment: { OUT: "{run_dir}/out", RUN: "{run_dir}" }
training: { steps: 100 }
checkpoints: { match: "{run_dir}/out/checkpoint-*", complete: state }
resume: { arguments: ["--resume={checkpoint}"] }
files:
  train.sh: |
    model=0
    for word in "$@"; do
      case $word in
        --steps=*) steps=${{word#*=}} ;;
        --resume=*) model=$(cat "${{word#*=}}/state") ;;
        --from=*) model=$(cat "$OUT/${{word#*=}}/state") ;;
      esac
    done
    echo $$ > "$RUN/pid"
    mkdir -p "$OUT"
    own=0
    while [ $own -lt $steps ]; do
      own=$((own + 1))
      model=$((model + 1))
      echo $model >> "$RUN/updates"
      milli=$((40000 / (model + 9) + 500))
      echo "step $own loss $((milli / 1000)).$(printf %03d $((milli % 1000)))"
      if [ $((own % 20)) = 0 ] || [ -e "$OUT/save" ]; then
        rm -rf "$OUT/save" "$OUT/checkpoint-$own"
        mkdir "$OUT/checkpoint-$own"
        echo $model > "$OUT/checkpoint-$own/state"
        echo $model > "$OUT/weights-$own.bin"
      fi
      sleep 0.05
    done
ladder:
  - { name: careful, relieves: [memory], set: { environment.MODE: careful } }
"#;

fn start(text: &str) -> (Place, Child, RunDir) {
    let (place, child) = launch(text);
    let run = wait_for("the run", || place.newest().filter(|run| live_status(run).is_some()));
    (place, child, run)
}

/// Kills the script past a checkpoint, and waits until the next attempt trains.
fn kill_script(run: &RunDir, past: u64) {
    let status = wait_status(run, "a checkpoint", |status| {
        status.durable_step.is_some_and(|durable| durable >= past) && status.step > past + 4
    });
    let pid = fs::read_to_string(run.file("pid")).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    wait_status(run, "the next attempt", |next| next.attempts > status.attempts && next.state == RunState::Training);
}

/// Waits until the run has finished, and returns its last step and its length.
fn wait_finish(place: &Place, child: &mut Child, run: &RunDir) -> (u64, Option<u64>) {
    assert_eq!(child.wait().unwrap().code(), Some(0), "{:#?}", journal(run));
    wait_parent_end(run);
    let status = place.status_json();
    (status["step"].as_u64().unwrap(), status["total_steps"].as_u64())
}

/// Returns the updates of the model in the order in which they were made.
fn updates(run: &RunDir) -> Vec<u64> {
    fs::read_to_string(run.file("updates")).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn a_count_that_begins_again_is_seen_and_the_run_counts_updates() {
    let (place, mut child, run) = start(COUNTS_ANEW);
    kill_script(&run, 40);
    let ended = wait_finish(&place, &mut child, &run);
    let last = *updates(&run).last().unwrap();
    assert_eq!(ended, (last, Some(last)), "it made all its steps again: {:#?}", journal(&run));
    assert_eq!(last, 140, "40 before, and 100 after");
    let said = "counts its steps from the beginning again after checkpoint 40: its step 1 is step 41 of the run";
    assert!(journal_says(&run, said), "{:#?}", journal(&run));
    let truth = |path: &std::path::Path| fs::read_to_string(path.join("state")).unwrap().trim().parse::<u64>().unwrap();
    let known = adopted::list(run.path());
    assert!(known.len() > 4, "{known:#?}");
    for checkpoint in &known {
        assert!(checkpoint.verify().is_ok(), "{checkpoint:#?}");
        assert_eq!(truth(&checkpoint.path), checkpoint.step, "its name has come again: {checkpoint:#?}");
    }
    // Those of the first attempt are replaced, and their copies are not.
    let weights = |path: &str| fs::read_to_string(run.file(path)).unwrap();
    assert_eq!((weights("out/weights-20.bin"), weights("out/weights-40.bin")), ("60\n".to_owned(), "80\n".to_owned()));
    let earlier = ["earlier/attempt-1/out/weights-20.bin", "earlier/attempt-1/out/weights-40.bin"].map(weights);
    assert_eq!(earlier, ["20\n".to_owned(), "40\n".to_owned()], "{:#?}", journal(&run));
    assert!(journal_says(&run, "of earlier attempts to"), "{:#?}", journal(&run));
}

#[test]
fn a_script_that_skips_whole_epochs_names_its_checkpoints_by_another_count() {
    // Its bar counts the rest from 0; its names count from the beginning of the epoch of 16 steps in which it goes on: 28, 48, 68.
    let skips = COUNTS_ANEW
        .replace("    own=0\n", "    own=0; name=$((model % 16)); steps=$((steps - model + name))\n")
        .replace("      own=$((own + 1))\n", "      own=$((own + 1)); name=$((name + 1))\n")
        .replace("while [ $own -lt $steps ]", "while [ $name -lt $steps ]")
        .replace("echo \"step $own loss", "echo \"step $own/$steps loss")
        .replace("checkpoint-$own", "checkpoint-$name")
        .replace("weights-$own", "weights-$name");
    let (place, mut child, run) = start(&skips);
    kill_script(&run, 40);
    let status = wait_status(&run, "steps behind the resume", |status| status.step > 44);
    assert_eq!(status.total_steps, Some(100), "the run file says it: {:#?}", journal(&run));
    assert_eq!(wait_finish(&place, &mut child, &run), (100, Some(100)), "{:#?}", journal(&run));
    let updates = updates(&run);
    assert_eq!(updates.last(), Some(&100), "{updates:?}");
    let known = adopted::list(run.path());
    let steps: Vec<u64> = known.iter().map(|known| known.step).collect();
    // Read off the lines around it, a step is known give or take one.
    let is_near = |(found, wanted): (&u64, u64)| found.abs_diff(wanted) <= 1;
    assert!(steps.len() == 5 && steps.iter().zip([100, 80, 60, 40, 20]).all(is_near), "{known:#?}");
}

#[test]
fn a_script_that_is_told_how_much_is_left_ends_where_the_run_ends() {
    let declared = COUNTS_ANEW.replace(
        r#"["--resume={checkpoint}"] }"#,
        r#"["--resume={checkpoint}", "--steps={steps_left}"], count: restarts }"#,
    );
    let (place, mut child, run) = start(&declared);
    kill_script(&run, 20);
    wait_status(&run, "a step", |status| status.step > 25);
    place.succeed(&["shift", "careful"]);
    kill_script(&run, 60);
    assert_eq!(wait_finish(&place, &mut child, &run).0, 100, "{:#?}", journal(&run));
    let updates = updates(&run);
    assert_eq!(updates.last(), Some(&100), "{updates:?}");
    let mut once = updates.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once, (1..=100).collect::<Vec<u64>>(), "every update was made");
    for checkpoint in adopted::list(run.path()) {
        assert!(checkpoint.copy_of.is_some() && checkpoint.verify().is_ok(), "{checkpoint:#?}");
    }
}

#[test]
fn a_script_saves_when_its_file_appears_and_continues_from_where_it_wrote() {
    let touched = COUNTS_ANEW
        .replace(
            r#"["--resume={checkpoint}"] }"#,
            r#"["--from={checkpoint.name}", "--steps={steps_left}"], count: restarts }"#,
        )
        .replace("files:\n", "save: { touch: \"{run_dir}/ou*/save\", within: 20 s }\nfiles:\n")
        .replace("% 20", "% 1000");
    let (place, mut child, run) = start(&touched);
    wait_status(&run, "some steps", |status| status.step > 10);
    place.succeed(&["pause"]);
    let paused = wait_status(&run, "the pause", |status| status.state == RunState::Paused);
    let durable = paused.durable_step.unwrap();
    assert!(durable >= 10 && !run.file("out/save").exists(), "{:#?}", journal(&run));
    fs::write(run.file(&format!("out/checkpoint-{durable}/state")), "0\n").unwrap();
    place.succeed(&["resume"]);
    assert_eq!(wait_finish(&place, &mut child, &run).0, 100, "{:#?}", journal(&run));
    let updates = updates(&run);
    assert_eq!(updates.last(), Some(&100), "the copy was put back in its place: {updates:?}");
    assert!(updates.contains(&(durable + 1)));
}
