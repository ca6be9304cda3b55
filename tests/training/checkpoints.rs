//! The checkpoints of real runs, as a user works with them: damaged, pruned, compared, exported, copied,
//! rolled back to, built upon.
#![cfg(feature = "train")]
#![expect(clippy::unwrap_used, reason = "a test")]

use crate::helper::{Place, journal_says, wait_status};
use downshift::protocol::control::RunState;
use downshift::store::checkpoint::{self, MODEL, aside};
use downshift::store::reader::Reader;
use downshift::store::run_dir::RunDir;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Two epochs of the shipped digits: 90 steps, with a checkpoint every 20 and no extra ones. Each step takes long enough for a
/// save to end before the next one is due.
const RUN: [&str; 17] = [
    "run",
    "digits",
    "--headless",
    "--device",
    "cpu",
    "--set",
    "training.epochs=2",
    "--set",
    "training.micro_batch=1",
    "--set",
    "training.accumulation=32",
    "--set",
    "checkpoint.every=20 steps",
    "--set",
    "checkpoint.keep_last=10",
    "--set",
    "checkpoint.keep_best=false",
];
const STEPS: u64 = 90;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the output of a command; fails unless it exits with this code.
fn says(place: &Place, code: i32, words: &[&str]) -> String {
    let out = place.output(words);
    let said = text(&out.stdout) + &text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{words:?}: {said}");
    said
}

/// Returns a finished run and its place.
fn finished(more: &[&str]) -> (Place, RunDir) {
    let place = Place::real();
    says(&place, 0, &[&RUN[..], more].concat());
    let run = place.newest().unwrap();
    (place, run)
}

fn steps_on_disk(run: &RunDir) -> Vec<u64> {
    checkpoint::list(run.path()).iter().rev().map(|entry| entry.step).collect()
}

fn weights(run: &Path, step: u64) -> Vec<u8> {
    let path = run.join(checkpoint::relative_path(step));
    checkpoint::load(&path).unwrap().files.remove(MODEL).unwrap()
}

/// Flips one bit in the middle of the weights.
fn damage(run: &RunDir, step: u64) {
    let file = run.path().join(checkpoint::relative_path(step)).join(MODEL);
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, bytes).unwrap();
}

#[test]
fn with_every_checkpoint_damaged_the_run_fails_and_never_starts_from_scratch() {
    let (place, run) = finished(&[]);
    assert_eq!(steps_on_disk(&run), [20, 40, 60, 80, 90]);
    for step in steps_on_disk(&run) {
        damage(&run, step);
    }
    let rows = place.rows().len();
    let said = says(&place, 14, &["resume", "--headless"]);
    assert!(said.contains("no usable checkpoint in") && said.contains("step-000000020"), "{said}");
    let status = place.status_json();
    assert_eq!((&status["state"], status["attempts"].as_u64()), (&"failed".into(), Some(2)));
    assert_eq!(place.rows().len(), rows, "no step was taken");
    assert_eq!(steps_on_disk(&run).len(), 5, "nothing was deleted");
    // The same when all checkpoints are gone: the store knows that there were some.
    fs::remove_dir_all(run.path().join(checkpoint::FOLDER)).unwrap();
    says(&place, 14, &["resume", "--headless"]);
    assert_eq!(place.rows().len(), rows);
}

#[test]
fn checkpoints_that_are_damaged_while_a_run_is_paused_stop_it() {
    let place = Place::real();
    let mut child = place.command(&[&RUN[..], &["--set", "training.epochs=60"]].concat()).spawn().unwrap();
    let run = crate::helper::wait_for("a run", || place.newest());
    wait_status(&run, "a checkpoint", |status| status.durable_step >= Some(20));
    says(&place, 0, &["pause"]);
    wait_status(&run, "rest", |status| status.state == RunState::Paused && status.pid_worker.is_none());
    for step in steps_on_disk(&run) {
        damage(&run, step);
    }
    let paused_at = place.rows().len();
    let asked = place.output(&["resume", "--headless"]);
    assert_eq!(asked.status.code(), Some(14), "{}", text(&asked.stdout));
    assert_eq!(child.wait().unwrap().code(), Some(14));
    let status = place.status_json();
    assert_eq!(status["state"], "failed");
    assert_eq!(place.rows().len(), paused_at);
}

#[test]
fn the_best_is_one_thing_everywhere_and_its_weights_are_on_the_disk() {
    let more = ["--set", "training.epochs=6", "--set", "checkpoint.keep_best=true", "--set", "checkpoint.keep_last=1"];
    let (place, run) = finished(&more);
    let evals = Reader::open(&run).unwrap().evals().unwrap();
    let lowest = evals.iter().map(|row| &row.eval);
    let lowest = lowest.min_by(|a, b| a.loss.unwrap().total_cmp(&b.loss.unwrap())).unwrap();
    let status = place.status_json();
    assert_eq!(status["best"]["step"].as_u64(), Some(lowest.step), "{status}");
    assert_eq!(status["best"]["eval_loss"].as_f64(), lowest.loss);
    assert!(steps_on_disk(&run).contains(&lowest.step), "{:?}", steps_on_disk(&run));
    let listed = says(&place, 0, &["checkpoints"]);
    let marked: Vec<&str> = listed.lines().filter(|line| line.contains("  best")).collect();
    assert!(marked.len() == 1 && marked[0].contains(&format!("{:>9}", lowest.step)), "{listed}");
    let out = place.dir.path().join("best.safetensors");
    says(&place, 0, &["checkpoints", "export", "--best", "--out", out.to_str().unwrap()]);
    assert_eq!(tensors(&fs::read(out).unwrap()), tensors(&weights(run.path(), lowest.step)));
    let copied = says(&place, 0, &["checkpoints", "copy", "--to", place.dir.path().join("copy").to_str().unwrap()]);
    assert!(copied.contains(&format!("the best one, step {}", lowest.step)), "{copied}");
    let picture = place.dir.path().join("loss.svg");
    says(&place, 0, &["plot", "--out", picture.to_str().unwrap()]);
    let drawn = fs::read_to_string(picture).unwrap();
    assert!(drawn.contains("best evaluation") && drawn.contains(&format!("at {}", lowest.step)), "{}", lowest.step);
    assert!(says(&place, 0, &["status"]).contains(&format!("at step {}", lowest.step)));
}

#[test]
fn a_damaged_newest_one_is_set_aside_and_the_run_ends_as_it_would_have() {
    let (place, run) = finished(&[]);
    let wanted = weights(run.path(), STEPS);
    damage(&run, 90);
    damage(&run, 80);
    let said = says(&place, 0, &["resume", "--headless"]);
    assert!(said.contains("resumed at step 60") && said.contains("checkpoint 90 set aside"), "{said}");
    assert_eq!(aside::list_aside(run.path()).len(), 2);
    assert_eq!(weights(run.path(), STEPS), wanted);
    says(&place, 0, &["checkpoints", "verify"]);
}

#[test]
fn a_run_goes_back_to_an_older_checkpoint_and_stays_there() {
    let (place, run) = finished(&[]);
    let wanted = weights(run.path(), STEPS);
    let said = says(&place, 14, &["resume", "--headless", "--from", "41"]);
    assert!(said.contains("no checkpoint of step 41; there are 90, 80, 60, 40, 20"), "{said}");
    damage(&run, 60);
    says(&place, 14, &["resume", "--headless", "--from", "60"]);
    assert_eq!(aside::list_aside(run.path()).len(), 0, "nothing was touched for one that cannot be used");
    let said = says(&place, 0, &["resume", "--headless", "--from", "40"]);
    assert!(said.contains("back to the checkpoint of step 40") && said.contains("resumed at step 40"), "{said}");
    assert_eq!(aside::list_aside(run.path()).len(), 3);
    assert_eq!(steps_on_disk(&run), [20, 40, 60, 80, 90], "taken again");
    assert_eq!(weights(run.path(), STEPS), wanted, "and the same");
    assert_eq!(place.rows().len() as u64, STEPS + 50);
    // A checkpoint that was set aside is still one to continue from.
    says(&place, 0, &["resume", "--headless", "--from", "20"]);
    aside::set_aside(run.path(), 60).unwrap();
    let listed = says(&place, 0, &["checkpoints", "list"]);
    assert!(listed.contains("step        60  set aside"), "{listed}");
    let said = says(&place, 14, &["resume", "--headless", "--from", "41"]);
    assert!(said.contains("there are 90, 80, 40, 20; set aside, and put back by `downshift resume"), "{said}");
    let said = says(&place, 0, &["resume", "--headless", "--from", "60"]);
    assert!(said.contains("checkpoint 60, which had been set aside, was put back"), "{said}");
    assert!(said.contains("resumed at step 60"), "{said}");
    assert_eq!(weights(run.path(), STEPS), wanted);
}

#[test]
fn a_run_that_is_alive_does_not_go_back() {
    let place = Place::real();
    let mut child = place.command(&[&RUN[..], &["--set", "training.epochs=200"]].concat()).spawn().unwrap();
    let run = crate::helper::wait_for("a run", || place.newest());
    wait_status(&run, "a checkpoint", |status| status.durable_step >= Some(20));
    let said = says(&place, 1, &["resume", "--from", "20"]);
    assert!(said.contains("is running") && said.contains("downshift stop"), "{said}");
    says(&place, 0, &["stop"]);
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn a_new_run_is_built_on_the_weights_of_an_old_one() {
    let (place, base) = finished(&[]);
    let asked = ["resume", "--headless", "--as-base", "--lr-factor", "0.5", "--epochs", "1", "--from", "80"];
    let said = says(&place, 0, &asked);
    let run = place.newest().unwrap();
    assert_ne!(run, base);
    let words = format!("starts from the weights of step 80 of {}", base.name());
    assert!(said.contains(&words) && journal_says(&run, "learning rate × 0.5, 1 epoch"), "{said}");
    assert!(!said.contains("1 epochs") && !said.contains("sums differ"), "nothing was summed before: {said}");
    let (old, new) = (base.run().unwrap(), run.run().unwrap());
    for (old, new) in old.rungs.iter().zip(&new.rungs) {
        assert!((new.preset.optimizer.lr - 0.5 * old.preset.optimizer.lr).abs() < 1e-15);
        assert_eq!(new.preset.training.epochs, Some(1));
    }
    assert_eq!(weights(run.path(), 0), weights(base.path(), 80));
    let rows = place.rows();
    assert_eq!((rows.len(), rows[0]["step"].as_u64(), rows[0]["samples"].as_u64()), (45, Some(1), Some(32)));
    // It starts far below the loss of a fresh model, ln 10.
    assert!(rows[0]["loss"].as_f64().unwrap() < 2.0, "{}", rows[0]);
    // Before its first save a restart starts again from these weights.
    let old_rows = says(&place, 0, &["export", &base.name()]);
    assert_eq!(old_rows.lines().count() as u64, STEPS, "the old run is as it was");
    for wrong in [&["resume", "--lr-factor", "2"][..], &["resume", "--as-base", "--lr-factor", "-1"]] {
        assert_eq!(place.output(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// A run file whose ladder is shorter than that of digits, with a rung of another shape.
const TWO_WIDTHS: &str = "name: widths
task: vision
data: { source: embedded:digits }
model: { channels: 32, layers: 4 }
training: { epochs: 3, micro_batch: 32 }
optimizer: { lr: 2.0e-3 }
ladder:
  - { name: narrow, warm_start: true, set: { model.channels: 16 } }
";

#[test]
fn a_run_begins_with_a_checkpoint_of_another_if_it_fits_the_model() {
    let (place, base) = finished(&["--rung", "plain"]);
    fs::write(place.dir.path().join("widths.yaml"), TWO_WIDTHS).unwrap();
    let begin = |code: i32, from: &RunDir, words: &[&str]| {
        let from = from.name();
        says(&place, code, &[&["run", "--headless", "--device", "cpu", "--from", &from], words].concat())
    };
    for words in [["digits", "--set", "model.channels=16"], ["text", "--set", "training.steps=9"]] {
        let said = begin(14, &base, &words);
        assert!(said.contains("on rung `full`: the checkpoint does not match the model"), "{said}");
        assert_eq!(place.newest().unwrap(), base, "no run was created");
    }
    let said = says(&place, 2, &["resume", "--headless"]);
    let (over, way) =
        ("has finished: it has trained for 2 epochs", "--set training.epochs=N` begins a new run from its end");
    assert!(said.contains(over) && said.contains(way), "a resume would take no step: {said}");
    let said = begin(13, &base, &["digits", "--set", "training.epochs=2"]);
    assert!(said.contains("it has trained for 2 epochs, and this run ends after 2"), "{said}");
    assert_eq!(place.newest().unwrap(), base);
    // The other run's rung is the fifth of its ladder.
    let said = begin(0, &base, &["widths.yaml"]);
    assert!(said.contains(&format!("begins from step {STEPS} of {}", base.name())), "{said}");
    assert_eq!(place.status_json()["rung_name"], "full");
    // A jump of the loss is measured against the start of the training, not against its end.
    let first = |run: &RunDir| Reader::open(run).unwrap().fact::<Value>("ledger").unwrap()["first_losses"].clone();
    assert_eq!(first(&base)[0]["count"], 8);
    assert_eq!(first(&place.newest().unwrap()), first(&base));

    let said = begin(0, &base, &["widths.yaml", "--rung", "narrow"]);
    assert!(said.contains("from the checkpoint and initialized the others"), "a warm start: {said}");
    let narrow = place.newest().unwrap();
    let said = begin(14, &narrow, &["widths.yaml"]);
    assert!(said.contains("it was written on `narrow`: --rung narrow"), "{said}");
    assert_eq!(place.newest().unwrap(), narrow);
}

#[test]
fn prune_follows_retention_and_a_damaged_checkpoint_displaces_none() {
    // Counted from the step at which a save has ended, which takes longer beside other work.
    let (place, run) = finished(&["--set", "checkpoint.proven_after=12"]);
    let rows = Reader::open(&run).unwrap().checkpoints().unwrap();
    let proven = rows.iter().filter(|row| row.proven).map(|row| row.step).max().unwrap();
    assert!([20, 40, 60].contains(&proven), "{rows:?}");
    let said = says(&place, 0, &["checkpoints", "prune"]);
    assert!(said.contains("nothing to delete"), "{said}");
    let file = run.file("run.yaml");
    fs::write(&file, fs::read_to_string(&file).unwrap().replace("keep_last: 10", "keep_last: 1")).unwrap();
    damage(&run, 90);
    let said = says(&place, 0, &["checkpoints", "prune"]);
    assert!(said.contains("left for your review") && said.contains("step-000000090"), "{said}");
    // 80 is the newest that verifies.
    assert_eq!(steps_on_disk(&run), [proven, 80, 90]);
    for step in [20, 40, 60] {
        assert_eq!(said.contains(&format!("deleted step {step}\n")), step != proven, "{said}");
    }
}

#[test]
fn checkpoints_are_ranked_by_what_the_validation_set_says() {
    let (place, run) = finished(&[]);
    let said = says(&place, 0, &["checkpoints", "compare"]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 5, "{said}");
    let losses: Vec<f64> = lines
        .iter()
        .map(|line| line.split("loss ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap())
        .collect();
    assert!(losses.is_sorted(), "{said}");
    // The last step was evaluated during training: same weights, same loss.
    let trained = place.status_json()["eval"]["loss"].as_f64().unwrap();
    let last = lines.iter().find(|line| line.contains("step        90")).unwrap();
    assert!(last.contains(&format!("loss {trained:.4}, accuracy")), "{last}, {trained}");
    damage(&run, 90);
    let said = says(&place, 0, &["checkpoints", "compare", "--last", "2"]);
    assert_eq!(said.lines().filter(|line| line.contains("loss")).count(), 1, "{said}");
    assert!(said.contains("cannot be measured") && said.contains("damaged"), "{said}");
}

#[test]
fn the_best_checkpoint_is_copied_to_a_place_that_a_run_can_resume_from() {
    let (place, run) = finished(&[]);
    let second = place.dir.path().join("second");
    let to = second.display().to_string();
    let said = says(&place, 0, &["checkpoints", "copy", "--to", &to]);
    assert!(said.contains("the best one") && said.contains("verified"), "{said}");
    says(&place, 0, &["checkpoints", "copy", "--to", &to, "--step", "40"]);
    let copy = RunDir::open(&second.join(run.name())).unwrap();
    for step in steps_on_disk(&copy) {
        let path = |run: &RunDir| run.path().join(checkpoint::relative_path(step));
        assert_eq!(checkpoint::verify(&path(&copy)).unwrap(), checkpoint::verify(&path(&run)).unwrap());
    }
    assert!(steps_on_disk(&copy).contains(&40));
    let runs = run.path().parent().unwrap().display().to_string();
    assert!(says(&place, 2, &["checkpoints", "copy", "--to", &runs]).contains("is the run directory"));
    assert!(says(&place, 2, &["checkpoints", "copy"]).contains("--to"));
    // The original run directory is lost.
    let wanted = weights(run.path(), STEPS);
    fs::remove_dir_all(run.path()).unwrap();
    let name = copy.path().display().to_string();
    says(&place, 0, &["resume", &name, "--headless"]);
    assert_eq!(weights(copy.path(), STEPS), wanted);
}

/// Returns the part of a safetensors file behind its header.
fn tensors(file: &[u8]) -> &[u8] {
    let header = u64::from_le_bytes(*file.first_chunk::<8>().unwrap()) as usize;
    assert_eq!(header % 8, 0, "tensors are aligned");
    &file[8 + header..]
}

#[test]
fn exported_weights_depend_on_the_weights_alone_and_open_everywhere() {
    let (one, run) = finished(&[]);
    let (other, _) = finished(&["--inject", "kill@50"]);
    let export = |place: &Place| {
        says(place, 0, &["checkpoints", "export", "--out", "weights.safetensors"]);
        fs::read(place.dir.path().join("weights.safetensors")).unwrap()
    };
    let bytes = export(&one);
    assert_eq!(export(&other), bytes, "killed, resumed, in another folder, at another time");
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let numbers: usize = file.iter().map(|(_, view)| view.shape().iter().product::<usize>()).sum();
    assert_eq!(tensors(&bytes), tensors(&weights(run.path(), STEPS)));
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let entry = |name: &str| header.metadata().as_ref().unwrap()[name].clone();
    assert_eq!(entry("classes"), r#"["0","1","2","3","4","5","6","7","8","9"]"#);
    assert_eq!(entry("picture_shape"), "[1,8,8]");
    assert!(entry("pixel_mean").starts_with('[') && entry("pixel_std").starts_with('['));
    open_in_pytorch(&one.dir.path().join("weights.safetensors"), numbers);
}

/// PyTorch reads the same tensors, if `python3` (or the one in `DOWNSHIFT_PYTHON`) has it.
fn open_in_pytorch(file: &Path, numbers: usize) {
    let python = std::env::var("DOWNSHIFT_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_it = Command::new(&python).args(["-c", "import torch, safetensors.torch"]).output();
    if !has_it.is_ok_and(|out| out.status.success()) {
        assert!(std::env::var_os("DOWNSHIFT_PYTHON").is_none(), "{python} has no torch with safetensors");
        println!("not tried: python3 has no torch with safetensors");
        return;
    }
    let script = "import sys, torch\nfrom safetensors.torch import load_file\nweights = load_file(sys.argv[1])\n\
                  assert all(t.dtype == torch.float32 and torch.isfinite(t).all() for t in weights.values())\n\
                  print(sum(t.numel() for t in weights.values()))\n";
    let out = Command::new(python).args(["-c", script]).arg(file).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(text(&out.stdout).trim(), numbers.to_string());
}

#[test]
fn a_disk_too_small_for_the_plan_is_refused_before_anything_starts() {
    let place = Place::real();
    let said = says(&place, 1, &[&RUN[..], &["--set", "checkpoint.keep_last=100000000"]].concat());
    for part in ["free, and", "are needed", "checkpoint.keep_last", "--runs-dir", "iB"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(place.newest().is_none(), "nothing was started");
}
