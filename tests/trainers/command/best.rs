//! Which checkpoint of a command is the best, at any pace, against the truth that the script writes beside itself.

use super::checkpoints::checkpoints_of;
use super::shown;
use downshift::protocol::control::CheckpointRow;
use downshift::store::adopted;
use downshift::store::reader::Reader;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Takes steps at a pace, evaluates and saves under names without a number, in the given order. The second evaluation is the
/// best one.
const SCRIPT: &str = r#"name: paced
task: command
command: [python3, "{attempt_dir}/train.py", "PACE", "EVERY", "ORDER"]
environment: { OUT: "{run_dir}/out" }
checkpoints: { match: "{run_dir}/out/*.pt", keep_last: 2 }
files:
  train.py: |
    import json, os, sys, time
    pace, every, order = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    out, truth = os.environ["OUT"], dict()
    os.makedirs(out, exist_ok=True)
    losses = [0.9, 0.2, 0.8, 0.7, 0.6, 0.5]
    for step in range(1, every * len(losses) + 1):
        time.sleep(1 / pace)
        print("step", step, "loss", round(1 / step, 4), flush=True)
        if step % every:
            continue
        place = step // every - 1
        def save():
            with open(out + "/" + "abcdef"[place] + ".pt", "w") as file:
                file.write(str(step))
            truth["abcdef"[place]] = [step, losses[place]]
        if order == "save":
            save()
        time.sleep(0.02)
        print("val_loss", losses[place], flush=True)
        if order == "evaluate":
            save()
    with open(out + "/truth.json", "w") as file:
        json.dump(truth, file)
    time.sleep(1.2)
"#;

#[test]
fn the_best_file_is_that_of_the_best_evaluation_at_any_pace() {
    std::thread::scope(|scope| {
        for (pace, every) in [(3, 2), (50, 21), (1000, 250)] {
            for order in ["evaluate", "save"] {
                // On a busy machine lines are read late, and the order may stay open.
                scope.spawn(move || {
                    let knows_all = (0..3).any(|_| compare_with_truth(pace, every, order));
                    assert!(knows_all, "{pace} steps/s, first {order}: checkpoints without their evaluation");
                });
            }
        }
    });
}

/// Runs the script once. Returns whether each checkpoint on disk has its evaluation and its step; none may have another one.
fn compare_with_truth(pace: u64, every: u64, order: &str) -> bool {
    let what = format!("{pace} steps/s, first {order}");
    let text = SCRIPT.replace("PACE", &pace.to_string()).replace("EVERY", &every.to_string()).replace("ORDER", order);
    let (home, rows) = checkpoints_of(&text);
    let run = home.newest().unwrap();
    let truth: BTreeMap<String, (u64, f64)> =
        serde_json::from_slice(&fs::read(run.file("out/truth.json")).unwrap()).unwrap();
    let listed: BTreeMap<u64, PathBuf> = adopted::list(run.path()).into_iter().map(|it| (it.step, it.path)).collect();
    let true_loss = |step: u64| truth[listed[&step].file_stem().unwrap().to_str().unwrap()].1;
    for row in rows.iter().filter(|row| row.kept) {
        assert!(
            row.eval_loss.is_none_or(|loss| loss.to_bits() == true_loss(row.step).to_bits()),
            "{what}: {row:?} of {truth:?}"
        );
    }
    assert!(run.file("out/b.pt").exists(), "{what}: the best weights are deleted: {rows:?}");
    let is_known = |row: &CheckpointRow| {
        let (step, _) = truth[listed[&row.step].file_stem().unwrap().to_str().unwrap()];
        row.eval_loss.is_some() && row.step == step
    };
    let best = rows.iter().find(|row| row.best).and_then(|row| row.eval_loss);
    rows.iter().filter(|row| row.kept).all(is_known) && best == Some(0.2)
}

/// Saves between evaluations, so that no order tells which weights were measured.
const APART: &str = r#"name: apart
task: command
command: [sh, "{attempt_dir}/train.sh"]
environment: { OUT: "{run_dir}/out", RUN: "{run_dir}" }
checkpoints: { match: "{run_dir}/out/checkpoint-*.pt", keep_last: 1 }
files:
  train.sh: |
    mkdir -p "$OUT"
    for step in 10 20 30 40 50; do
      echo "step $step loss 1.0"
      echo "step $step val_loss 0.$((90 - step))"
      echo "step $((step + 5)) loss 1.0"
      echo $step > "$OUT/checkpoint-$((step + 5)).pt"
      until [ -e "$RUN/adopted/step-0000000$((step + 5)).json" ]; do sleep 0.05; done
    done
"#;

#[test]
fn evaluations_that_match_no_checkpoint_keep_all_of_them_and_that_is_said() {
    let (place, rows) = checkpoints_of(APART);
    assert_eq!(rows.iter().filter(|row| row.kept).count(), 5, "{rows:?}");
    let run = place.newest().unwrap();
    assert_eq!(fs::read_dir(run.file("out")).unwrap().count(), 5);
    let said: Vec<String> =
        Reader::open(&run).unwrap().journal(1000).unwrap().into_iter().map(|row| row.text).collect();
    let reasons = said.iter().filter(|text| text.starts_with("checkpoints.keep_last deletes nothing for now")).count();
    assert_eq!(reasons, 1, "{said:#?}");
    let listed = shown(&place.output(&["checkpoints", "list"]));
    assert!(listed.contains("matches no checkpoint") && listed.contains("deletes nothing"), "{listed}");
    assert!(!listed.contains("  best"), "{listed}");
}
