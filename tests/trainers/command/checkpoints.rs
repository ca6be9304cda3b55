//! Where a command saves, and what becomes of its checkpoints.

use super::shown;
use crate::helper::{Place, stop_run, wait_for, wait_parent_end};
use downshift::protocol::control::CheckpointRow;
use downshift::store::adopted;
use downshift::store::reader::Reader;
use downshift::store::run_dir::RunDir;
use std::fs;
use std::process::Stdio;

/// Saves at every step, waits until the checkpoint is adopted, and reports its evaluation before or after that.
const RANKED: &str = r#"name: ranked
task: command
command: [sh, "{attempt_dir}/train.sh"]
environment: { OUT: "{run_dir}/out", RUN: "{run_dir}" }
checkpoints: { match: "{run_dir}/out/checkpoint-*", complete: state, keep_last: 1 }
resume: { environment: { FROM: "{checkpoint}" } }
files:
  train.sh: |
    step=0
    for fid in 9 3 8 7 6; do
      step=$((step + 1))
      echo "step $step loss 1.0"
      if [ $step != 2 ]; then echo "step $step eval_fid: $fid"; fi
      mkdir -p "$OUT/checkpoint-$step" && echo $step > "$OUT/checkpoint-$step/state"
      until [ -e "$RUN/adopted/step-00000000$step.json" ]; do sleep 0.05; done
      if [ $step = 2 ]; then echo "step $step eval_fid: $fid"; fi
    done
"#;

/// Runs a file to its end. Returns the place and the rows of its checkpoints.
pub fn checkpoints_of(text: &str) -> (Place, Vec<CheckpointRow>) {
    let place = Place::real();
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    let out = place.output(&["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]);
    assert_eq!(out.status.code(), Some(0), "{}", shown(&out));
    let rows = Reader::open(&place.newest().unwrap()).unwrap().checkpoints().unwrap();
    (place, rows)
}

#[test]
fn evaluations_rank_the_checkpoints_of_a_command_and_the_best_outlives_keep_last() {
    for (ranking, kept, best) in [
        ("{ best: { metric: fid, goal: min } }", vec![1, 2, 5], Some((2, 3.0))),
        // Without `keep_best` only the newest stays, and the oldest, which is the next to be proven.
        ("{ best: { metric: fid, goal: min }, keep_best: false }", vec![1, 5], Some((5, 6.0))),
        ("{ best: { metric: fid, goal: max } }", vec![1, 5], Some((1, 9.0))),
        ("{ keep_best: true }", vec![1, 5], None),
    ] {
        let (place, rows) = checkpoints_of(&format!("{RANKED}checkpoint: {ranking}\n"));
        let there: Vec<u64> = rows.iter().filter(|row| row.kept).map(|row| row.step).collect();
        assert_eq!(there, kept, "{ranking}: {rows:?}");
        let marked = rows.iter().find(|row| row.best).map(|row| (row.step, row.metrics["fid"]));
        assert_eq!(marked, best, "{ranking}: {rows:?}");
        let run = place.newest().unwrap();
        let files: Vec<u64> = (1..=5).filter(|step| run.file(&format!("out/checkpoint-{step}")).exists()).collect();
        assert_eq!(files, kept, "{ranking}");
    }
}

#[test]
fn checkpoints_lists_verifies_compares_and_prunes_those_of_a_command() {
    let (place, _) = checkpoints_of(
        &RANKED
            .replace(", keep_last: 1", "")
            .replace("name: ranked", "name: ranked\ncheckpoint: { best: { metric: fid, goal: min } }"),
    );
    let run = place.newest().unwrap();
    let said = |words: &[&str]| {
        let out = place.output(&[&["checkpoints"], words].concat());
        (out.status.code(), shown(&out))
    };
    let (code, listed) = said(&["list"]);
    assert_eq!((code, listed.lines().count()), (Some(0), 5), "{listed}");
    let best: Vec<&str> = listed.lines().filter(|line| line.contains("  best  ")).collect();
    assert!(matches!(best[..], [line] if line.contains("step         2") && line.contains("fid 3")), "{listed}");
    assert!(listed.contains(&run.file("out/checkpoint-2").display().to_string()), "{listed}");
    let (code, verified) = said(&["verify"]);
    assert_eq!((code, verified.matches("whole").count()), (Some(0), 5), "{verified}");
    let (code, ranked) = said(&["compare", "--last", "4"]);
    let order: Vec<&str> = ranked.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!((code, order), (Some(0), vec!["2", "5", "4", "3"]), "{ranked}");
    let (code, refused) = said(&["export"]);
    assert!(code == Some(14) && refused.contains("files of its command"), "{refused}");
    let to = place.dir.path().join("elsewhere");
    let (code, copied) = said(&["copy", "--to", to.to_str().unwrap()]);
    assert!(code == Some(0) && copied.contains("copied the best one, step 2 to"), "{copied}");
    let copy = RunDir::open(&to.join(run.name())).unwrap();
    let adopted = adopted::find(copy.path(), 2).unwrap();
    adopted.verify_every_byte().unwrap();
    assert!(adopted.path.starts_with(copy.path()), "{adopted:?}");
    assert_eq!(fs::read_to_string(adopted.path.join("state")).unwrap(), "2\n");
    let (code, copied) = said(&["copy", "--to", to.to_str().unwrap(), "--step", "4"]);
    assert!(code == Some(0) && copied.contains("copied step 4 to"), "{copied}");
    assert_eq!(said(&["copy", "--to", to.to_str().unwrap(), "--step", "7"]).0, Some(14));

    let damaged = run.file("out/checkpoint-5/state");
    fs::write(&damaged, "6\n").unwrap();
    fs::remove_file(run.file("adopted/step-000000003.json")).unwrap();
    let (code, verified) = said(&["verify"]);
    assert_eq!(code, Some(14), "{verified}");
    assert!(verified.contains("step         5  BROKEN") && verified.contains("step         3  MISSING"), "{verified}");

    // The damaged one does not count as the newest, and is left to the user.
    let text = fs::read_to_string(run.file("run.yaml")).unwrap();
    fs::write(run.file("run.yaml"), text.replace("complete: state", "complete: state\n  keep_last: 1")).unwrap();
    let there = || (1..=5).filter(|step| run.file(&format!("out/checkpoint-{step}")).exists()).collect::<Vec<u64>>();
    let (code, pruned) = said(&["prune"]);
    assert!(code == Some(0) && pruned.contains("left for your review"), "{pruned}");
    assert_eq!(there(), [1, 2, 3, 4, 5], "the oldest, the best and the newest whole one stay: {pruned}");
    fs::write(&damaged, "5\n").unwrap();
    let (_, pruned) = said(&["prune"]);
    assert!(pruned.contains("deleted step 4"), "{pruned}");
    assert_eq!(there(), [1, 2, 3, 5], "3 is not the run's any more: {pruned}");
}

#[test]
fn a_command_whose_checkpoints_are_all_damaged_is_not_started_over_unless_that_is_allowed() {
    let text = RANKED.replace(", keep_last: 1", "").replace("    done\n", "    done\n    sleep 60\n");
    let place = Place::real();
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    let words = ["run", "run.yaml", "--trust", "--headless", "--device", "cpu"];
    let mut running = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let run =
        wait_for("five checkpoints", || place.newest().filter(|run| run.file("adopted/step-000000005.json").exists()));
    stop_run(&place, &mut running);
    wait_parent_end(&run);
    let states = || (1..=5).map(|step| fs::read_to_string(run.file(&format!("out/checkpoint-{step}/state"))).unwrap());
    (1..=5).for_each(|step| fs::write(run.file(&format!("out/checkpoint-{step}/state")), "mine").unwrap());
    let out = place.output(&["resume", "--headless", "--trust"]);
    assert_eq!(out.status.code(), Some(14), "{}", shown(&out));
    assert!(states().all(|state| state == "mine"), "nothing was overwritten: {}", shown(&out));
    let log = fs::read_to_string(run.file("worker.log")).unwrap();
    assert!(log.contains("of step 5") && log.contains("restart: from_start"), "{log}");

    let file = fs::read_to_string(run.file("run.yaml")).unwrap();
    fs::write(run.file("run.yaml"), file.replace("restart: never", "restart: from_start")).unwrap();
    let mut running = place.command(&["resume", "--headless", "--trust"]).stdout(Stdio::null()).spawn().unwrap();
    wait_for("a new start", || states().any(|state| state != "mine").then_some(()));
    stop_run(&place, &mut running);
}

#[test]
fn a_script_finds_the_folder_that_is_named_for_its_outputs() {
    let place = Place::real();
    let file = "name: outs\ntask: command\ncommand: [sh, -c, 'echo saved > \"$0/first\"', '{run_dir}/out']\n";
    fs::write(place.dir.path().join("run.yaml"), file).unwrap();
    let out = place.output(&["run", "run.yaml", "--headless", "--trust", "--device", "cpu"]);
    assert_eq!(out.status.code(), Some(0), "{}", shown(&out));
    assert_eq!(fs::read_to_string(place.newest().unwrap().file("out/first")).unwrap(), "saved\n");
}

#[test]
fn a_checkpoint_without_a_number_has_the_step_at_which_it_was_written() {
    let script = "i=0; while [ $i -lt 130 ]; do i=$((i + 1)); sleep 0.02; echo step $i loss 0.5; \
                  if [ $((i % 50)) = 0 ]; then echo $i > $0/part; mv $0/part $0/last; fi; done";
    let file = format!(
        "name: saves\ntask: command\ncommand: [sh, -c, '{script}', '{{run_dir}}/out']\n\
         checkpoints: {{ match: '{{run_dir}}/out/last', copy: true }}\nresume: {{}}\n"
    );
    let (_place, rows) = checkpoints_of(&file);
    let steps: Vec<u64> = rows.iter().map(|row| row.step).collect();
    assert!(steps.contains(&100) && steps.iter().all(|step| step % 50 == 0), "{steps:?}");
}

/// Runs `sh train.sh` with this script and these sections until it needs attention. Returns its output.
fn run_until_stuck(script: &str, sections: &str) -> (Place, RunDir, String) {
    let place = Place::real();
    let folder = place.dir.path();
    fs::write(folder.join("train.sh"), script).unwrap();
    let file = format!(
        "name: stuck\ntask: command\ncommand: [sh, train.sh]\n{sections}\nresume: {{ arguments: ['{{checkpoint}}'] }}\n"
    );
    fs::write(folder.join("run.yaml"), file).unwrap();
    let out = place.output(&["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]);
    assert_eq!(out.status.code(), Some(4), "{}", shown(&out));
    let run = place.newest().unwrap();
    wait_parent_end(&run);
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (place, run, said)
}

/// Corrects the stored run file.
fn correct(run: &RunDir, wrong: &str, right: &str) {
    let stored = fs::read_to_string(run.file("run.yaml")).unwrap();
    fs::write(run.file("run.yaml"), stored.replace(wrong, right)).unwrap();
}

/// Writes a checkpoint after steps 2 and 4, dies after step 5, and continues from its argument.
const DIES: &str = r#"
mkdir -p out
step=0
[ -z "$1" ] || step=$(cat "$1")
while [ $step -lt 6 ]; do
  step=$((step + 1))
  echo "step $step loss 0.5"
  [ $((step % 2)) = 1 ] || echo $step > out/step_$step.pt
  [ $step != 5 ] || [ -n "$1" ] || kill -9 $$
done
"#;

#[test]
fn checkpoints_that_a_mistyped_pattern_misses_are_not_overwritten_and_the_corrected_pattern_finds_them() {
    let (place, run, said) = run_until_stuck(DIES, "checkpoints: { match: 'out/stp_*.pt' }");
    assert!(
        said.contains("would overwrite the outputs `out/step_*.pt`, which `checkpoints.match` does not match"),
        "{said}"
    );
    correct(&run, "stp_", "step_");
    let said = place.succeed(&["resume", "--trust", "--headless"]);
    assert!(said.contains("finished at step 6"), "{said}");
    let attempts = Reader::open(&run).unwrap().attempts().unwrap();
    assert_eq!((attempts.len(), attempts[1].from_step), (2, Some(4)), "{said}");
}

/// Writes a checkpoint after steps 10 and 20, dies after step 20, and fails after every load until somebody mends it.
const BROKEN: &str = r#"
mkdir -p out
step=0
[ -z "$1" ] || step=$(basename "$1" .pt | cut -d_ -f2)
while [ $step -lt 30 ]; do
  [ -n "$1" ] || [ $step != 20 ] || kill -9 $$
  if [ ! -e mended ] && [ -n "$1" ]; then
    echo "Traceback (most recent call last):
  File \"train.py\", line 7, in <module>
RuntimeError: mat1 and mat2 shapes cannot be multiplied" >&2
    exit 1
  fi
  step=$((step + 1))
  echo "step $step loss 0.5"
  [ $((step % 10)) != 0 ] || { echo $step > part; mv part out/step_$step.pt; sleep 1; }
done
"#;

#[test]
fn a_script_that_fails_with_every_checkpoint_is_mended_and_continues_from_the_newest() {
    let (place, run, said) = run_until_stuck(BROKEN, "checkpoints: { match: 'out/step_*.pt' }");
    assert!(said.contains("checkpoint 20 set aside") && said.contains("checkpoint 20 put back"), "{said}");
    assert!(
        said.contains("an older checkpoint failed in the same way, so the newest is put back if it is whole"),
        "{said}"
    );
    fs::write(place.dir.path().join("mended"), "").unwrap();
    let said = place.succeed(&["resume", "--headless"]);
    assert!(said.contains("finished at step 30"), "{said}");
    let from: Vec<_> =
        Reader::open(&run).unwrap().attempts().unwrap().iter().map(|attempt| attempt.from_step).collect();
    assert_eq!(from, [None, Some(20), Some(20), Some(10), Some(20)], "{said}");
}

/// Writes a checkpoint without a number at every tenth step, dies after step 25, and continues from its argument.
const UNNUMBERED: &str = r#"
step=0
[ -z "$1" ] || step=$(cat "$1")
while [ $step -lt 30 ]; do
  step=$((step + 1))
  echo "step $step loss 0.5"
  [ $((step % 10)) != 0 ] || { echo $step > part; mv part ckpt.pt; }
  sleep 0.1
  [ $step != 25 ] || [ -n "$1" ] || kill -9 $$
done
"#;

#[test]
fn a_checkpoint_without_a_number_is_found_by_the_corrected_pattern_with_its_step() {
    let (place, run, _) = run_until_stuck(UNNUMBERED, "checkpoints: { match: 'cpt.pt', copy: true }");
    let refused = place.output(&["resume", "--headless"]);
    let said = shown(&refused);
    assert!(
        refused.status.code() == Some(14) && said.contains("would overwrite") && said.contains("ckpt.pt"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(place.dir.path().join("ckpt.pt")).unwrap(), "20\n", "nothing was started");
    wait_parent_end(&run);
    correct(&run, "cpt.pt", "ckpt.pt");
    let said = place.succeed(&["resume", "--trust", "--headless"]);
    assert!(said.contains("resumed at step 20") && said.contains("finished at step 30"), "{said}");
}
