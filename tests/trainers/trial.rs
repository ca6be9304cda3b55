//! `trial` on a command: real starts of a small training (examples/small_training) that resumes right, or leaves out a
//! part of its state.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use crate::helper::{Place, example, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};

/// The rest of a run file whose checkpoints lie in the run directory.
const RESUMES: &str = "checkpoints: { match: '{run_dir}/out/checkpoint-*', complete: state.json }\n\
                       resume: { arguments: [--resume, '{checkpoint}'] }\n";

/// Returns a place with a training that forgets these parts.
fn forgetting(parts: &str) -> Place {
    with_run_file(parts, "{run_dir}/out", RESUMES)
}

fn with_run_file(parts: &str, out: &str, rest: &str) -> Place {
    let place = Place::real();
    let script = example("small_training").display().to_string();
    let text = format!(
        "name: small\ntask: command\ncommand: [{script}, --out, '{out}', --batch, '{{training.micro_batch}}', --forget, \
         '{parts}']\ntraining: {{ micro_batch: 8 }}\n{rest}"
    );
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    place
}

fn trial(place: &Place, more: &[&str]) -> Output {
    place.output(&[&["trial", "run.yaml", "--device", "cpu", "--trust"], more].concat())
}

fn words(out: &Output) -> String {
    [&out.stdout[..], &out.stderr].map(String::from_utf8_lossy).concat()
}

fn runs(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.dir.path().join("runs")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Returns what `check` and the list of a start say.
fn checked(place: &Place) -> String {
    let check = place.output(&["check", "run.yaml", "--device", "cpu"]);
    let list = place.output(&["check", "run.yaml", "--device", "cpu", "--preflight"]);
    let trial = |out: &Output| words(out).lines().find(|line| line.contains("the trial of ")).map(str::to_owned);
    let [check, list] = [trial(&check).unwrap(), trial(&list).unwrap()];
    assert!(list.contains(&check), "{check}\n{list}");
    check
}

/// Returns the stored outcomes.
fn proofs(place: &Place) -> Vec<Value> {
    let entries = fs::read_dir(place.dir.path().join("state/downshift/proven")).into_iter().flatten();
    entries.map(|entry| serde_json::from_slice(&fs::read(entry.unwrap().path()).unwrap()).unwrap()).collect()
}

fn assert_nothing_left(place: &Place) {
    wait_for("an empty place", || place.processes().is_empty().then_some(()));
    assert_eq!(runs(place), Vec::<PathBuf>::new());
}

#[test]
fn a_command_that_restores_everything_is_proven() {
    let place = forgetting("");
    let out = trial(&place, &[]);
    let said = words(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    for part in [
        "run 1: killed after step",
        "✓ reproducible",
        "✓ resumed",
        "✓ learning rate",
        "✓ loss  ",
        "✓ batch size obeyed",
        "rounds its losses to 6 decimals",
        "exact: the resumed training equals the unbroken one",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let [proof] = &proofs(&place)[..] else { panic!("one proof: {said}") };
    assert_eq!((&proof["outcome"], &proof["name"]), (&"exact".into(), &"small".into()), "{proof}");
    assert!(proof["resumed_from"].as_u64() >= Some(10) && proof["steps"].as_u64() >= Some(10), "{proof}");
    assert_nothing_left(&place);
}

#[test]
fn each_broken_resume_is_named() {
    for (forgotten, said, differs) in [
        ("order", "probably missing: the order of the data", true),
        ("scheduler", "probably missing: the scheduler", true),
        ("random", "probably missing: the random state", true),
        ("moments", "probably missing: the optimizer's moments", true),
        ("weights", "probably missing: the weights", true),
        ("everything", "starts over: the resumed command begins at its first step again", true),
        ("batch", "the script ignores training.micro_batch: with 4, 3 steps have exactly the same losses", false),
    ] {
        let place = forgetting(forgotten);
        let out = trial(&place, &[]);
        assert_eq!(out.status.code(), Some(1), "{forgotten}: {}", words(&out));
        assert!(words(&out).contains(said), "{forgotten}: {}", words(&out));
        let outcome = if differs { "differs" } else { "exact" };
        assert_eq!(proofs(&place)[0]["outcome"], outcome, "{forgotten}: {}", words(&out));
        let told = match forgotten {
            "everything" => "failed: the resumed command starts over",
            "batch" => "resumed exactly",
            _ => "failed: the resumed training differs from step",
        };
        assert!(checked(&place).contains(told), "{forgotten}: {}", checked(&place));
        assert_nothing_left(&place);
    }
}

#[test]
fn a_script_without_a_seed_and_one_that_cannot_resume_are_told_apart() {
    let place = forgetting("seed,scheduler");
    let out = trial(&place, &[]);
    assert_eq!(out.status.code(), Some(1), "{}", words(&out));
    for part in ["not reproducible: two starts of this command differ from step 1 on", "missing: the scheduler"] {
        assert!(words(&out).contains(part), "{part}: {}", words(&out));
    }
    assert_eq!(proofs(&place)[0]["outcome"], "unknown", "nothing is known of its resume");
    assert!(checked(&place).contains("proved nothing: not reproducible"), "{}", checked(&place));
    let place = forgetting("resume");
    let out = trial(&place, &[]);
    assert_eq!(out.status.code(), Some(14), "the class of an unusable checkpoint: {}", words(&out));
    for part in ["run 1, resumed: the command failed", "KeyError: 'optimizer'"] {
        assert!(words(&out).contains(part), "{part}: {}", words(&out));
    }
    assert!(checked(&place).contains("proved nothing: run 1, resumed: the command failed"), "{}", checked(&place));
    assert_nothing_left(&place);
}

/// Trains for 30 steps, evaluates twice and saves.
const WHOLE: &str = r#"
import sys, time
for step in range(1, 31):
    time.sleep(0.15)
    print("step", step, "loss", round(1 / step, 4), flush=True)
    if step % 15 == 0:
        print("step", step, "val_loss", round(2 / step, 4), flush=True)
open(sys.argv[1] + "/model.pt", "w").write("weights")
"#;

#[test]
fn a_command_that_nothing_resumes_gets_a_checklist_and_nothing_is_claimed_that_was_not_seen() {
    let checklist = |script: &str, time: &str| {
        let place = Place::real();
        let text = "name: plain\ntask: command\ncommand: [python3, train.py, '{run_dir}']\n";
        fs::write(place.dir.path().join("run.yaml"), text).unwrap();
        fs::write(place.dir.path().join("train.py"), script).unwrap();
        let out = trial(&place, &["--for", time]);
        let said = words(&out);
        let (before, after) =
            said.split_once("it cannot prove a resume: the run file has no").unwrap_or_else(|| panic!("{said}"));
        assert!(before.contains("trial of plain for") && after.contains("started"), "{said}");
        assert_nothing_left(&place);
        assert_eq!(proofs(&place), Vec::<Value>::new(), "nothing is proven");
        (out.status.code(), said)
    };
    let (code, said) = checklist(WHOLE, "10m");
    assert_eq!(code, Some(0), "{said}");
    for check in [
        "✓ started                  step 30 after",
        "✓ no fault                 it ended with exit code 0",
        "✓ memory stable",
        "✓ loss falls               0.4083 → 0.0365",
        "✓ evaluation improves      loss 0.1333 → 0.0667",
        "✓ full cycle seen          trained to step 30, evaluated at step 30, wrote model.pt",
        "6 of 6 checks passed, 0 failed, 0 unknown",
    ] {
        assert!(said.contains(check), "{check}: {said}");
    }
    let (code, said) = checklist("import time\ntime.sleep(600)\n", "2s");
    assert_eq!(code, Some(0), "{said}");
    for check in [
        "– started                  it ran for ",
        " s and named no step",
        "✓ no fault                 it ran for ",
        "– memory stable",
        "– loss falls               0 of 10 losses seen",
        "– evaluation improves      0 evaluations seen",
        "– full cycle seen          not seen: a step, an evaluation, a save",
    ] {
        assert!(said.contains(check), "{check}: {said}");
    }
    let (code, said) = checklist("print('boom: no data')\nraise SystemExit(7)\n", "10m");
    assert_eq!(code, Some(1), "{said}");
    for check in
        ["✗ started", "✗ no fault                 the command failed after step 0: exit code 7", "boom: no data"]
    {
        assert!(said.contains(check), "{check}: {said}");
    }
}

#[test]
fn checkpoints_outside_the_run_directories_are_refused_if_there_are_any_and_removed_afterwards() {
    let outside = RESUMES.replace("{run_dir}/", "");
    let place = with_run_file("", "out", &outside);
    let other = place.dir.path().join("out/checkpoint-5");
    fs::create_dir_all(&other).unwrap();
    fs::write(other.join("state.json"), "{}").unwrap();
    let out = trial(&place, &[]);
    assert_eq!(out.status.code(), Some(2), "{}", words(&out));
    assert!(words(&out).contains("may replace earlier outputs;\nwrite {run_dir} into the script's"), "{}", words(&out));
    let out = trial(&place, &["--in-place"]);
    assert_eq!(out.status.code(), Some(2), "{}", words(&out));
    assert!(words(&out).contains("exists already"), "{}", words(&out));
    assert!(words(&out).contains("write {run_dir} into the script's output argument"), "{}", words(&out));
    assert!(other.join("state.json").exists());
    fs::remove_dir_all(&other).unwrap();
    let kept = trial(&place, &["--keep", "--in-place"]);
    assert_eq!(kept.status.code(), Some(2), "{}", words(&kept));
    fs::write(place.dir.path().join("out/notes.txt"), "mine").unwrap();
    let out = trial(&place, &["--in-place"]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    let left: Vec<_> = fs::read_dir(place.dir.path().join("out")).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"], "only the trial's own checkpoints are removed");
    assert_nothing_left(&place);
}

#[test]
fn run_directories_stay_if_asked_and_an_interrupted_trial_leaves_nothing() {
    let place = forgetting("");
    let out = trial(&place, &["--keep", "--steps", "5"]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    let [folder] = &runs(&place)[..] else { panic!("one folder: {}", words(&out)) };
    assert!(words(&out).contains(&format!("kept in {}", folder.display())), "{}", words(&out));
    let kept = fs::read_dir(folder).unwrap().filter(|it| it.as_ref().unwrap().path().join("run.yaml").exists());
    assert_eq!(kept.count(), 2, "the run that was killed, and the one that was not");
    let mut interrupted = place.command(&["trial", "run.yaml", "--device", "cpu", "--trust", "--steps", "100000"]);
    let mut child = interrupted.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let words_of = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let training = || place.processes().iter().any(|pid| String::from_utf8_lossy(&words_of(pid)).contains("--forget"));
    wait_for("a training", || training().then_some(()));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    wait_for("an empty place", || place.processes().is_empty().then_some(()));
    assert_eq!(runs(&place).len(), 1, "a later trial removes no folder that was kept");
}
