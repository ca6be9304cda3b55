//! Checkpoints under the keeper: retention, pruning, going back, loss and damage.

use crate::helper::{Place, QUICK, SLOW, journal, journal_says, kill, wait_for, wait_status};
use downshift::store::checkpoint::{self, aside};
use downshift::store::reader::Reader;

#[test]
fn the_journal_says_that_a_checkpoint_was_deleted_before_the_worker_resumes_from_an_older_one() {
    let place = Place::scripted();
    place.script(SLOW, "");
    let (mut child, run) = place.start(&["--set", "checkpoint.every=100 steps"]);
    let before = wait_status(&run, "two checkpoints", |status| status.durable_step >= Some(200));
    let newest = before.durable_step.unwrap();
    std::fs::remove_dir_all(run.path().join(checkpoint::relative_path(newest))).unwrap();
    kill(before.pid_worker.unwrap());
    let texts = || -> Vec<String> { journal(&run).into_iter().map(|row| row.text).collect() };
    wait_for("another worker", || texts().iter().any(|text| text.contains("resumed at step")).then_some(()));
    let told = texts();
    let place_of =
        |words: &str| told.iter().position(|text| text.contains(words)).unwrap_or_else(|| panic!("{told:#?}"));
    assert!(
        place_of(&format!("checkpoint {newest} is gone")) < place_of(&format!("resumed at step {}", newest - 100)),
        "{told:#?}"
    );
    assert!(!told.iter().any(|text| text.contains("cannot be set aside")), "{told:#?}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    place.curve(400, 8);
}

#[test]
fn the_newest_proven_checkpoint_is_kept_in_addition_to_the_newest() {
    let place = Place::scripted();
    place.script(QUICK, "");
    let knobs = ["--set", "checkpoint.keep_last=1", "--set", "checkpoint.proven_after=120"];
    // A death in between: a checkpoint proven by redone steps is proven only once.
    let (mut child, run) = place.start(&[&knobs[..], &["--inject", "kill@230,nan@290"]].concat());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let kept: Vec<u64> = checkpoint::list(run.path()).iter().rev().map(|entry| entry.step).collect();
    assert_eq!(kept, [250, 350, 400], "the newest proven one, the one to be proven next, the newest");
    let rows = Reader::open(&run).unwrap().checkpoints().unwrap();
    let proven: Vec<u64> = rows.iter().filter(|row| row.proven).map(|row| row.step).collect();
    assert_eq!(proven, [50, 100, 150, 200, 250], "the skipped step counts for none");
    let listed = String::from_utf8(place.output(&["checkpoints", "list"]).stdout).unwrap();
    assert_eq!(listed.lines().filter(|line| line.contains("proven")).count(), 1, "{listed}");
}

#[test]
fn workers_that_fail_alike_just_after_a_load_make_the_next_one_go_back() {
    let place = Place::scripted();
    place.script(QUICK, "watch: { restarts_without_progress: 3 }\n");
    let (mut child, run) = place.start(&["--inject", "panic@105*"]);
    assert_eq!(child.wait().unwrap().code(), Some(4), "a fault that is not the checkpoint's uses the budget up");
    // A fresh start; from 100; from 100 again; one back, from 50; on the safer rung, from the 100 that this one saved again.
    let from: Vec<String> =
        journal(&run).into_iter().map(|row| row.text).filter(|text| text.contains("resumed at")).collect();
    let steps: Vec<&str> =
        from.iter().map(|text| text.split("step ").nth(1).unwrap().split(' ').next().unwrap()).collect();
    assert_eq!(steps, ["100", "100", "50", "100"]);
    assert!(
        journal_says(&run, "checkpoint 100 set aside") && journal_says(&run, "back to the checkpoint before, step 50")
    );
    assert!(!journal_says(&run, "put back"), "the last worker saved step 100 again: {:#?}", journal(&run));
    assert_eq!(aside::list_aside(run.path()).len(), 1);
    let pruned = place.output(&["checkpoints", "prune"]);
    assert!(String::from_utf8_lossy(&pruned.stdout).contains("set-aside/step-000000100"));
    assert!(aside::list_aside(run.path()).is_empty());
}

#[test]
fn a_living_keeper_prunes_itself() {
    let place = Place::scripted();
    place.script(SLOW, "");
    let (_child, run) = place.start(&[]);
    wait_status(&run, "two checkpoints", |status| status.durable_step >= Some(100));
    aside::set_aside(run.path(), 50).unwrap();
    let pruned = place.output(&["checkpoints", "prune"]);
    assert!(pruned.status.success() && String::from_utf8_lossy(&pruned.stdout).contains("1 checkpoint set aside"));
    wait_for("an empty place", || aside::list_aside(run.path()).is_empty().then_some(()));
}

#[test]
fn a_checkpoint_that_is_gone_is_missed_and_a_damaged_store_is_set_aside() {
    let place = Place::scripted();
    place.script(QUICK, "");
    let (mut child, run) = place.start(&["--set", "training.steps=200"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(place.output(&["checkpoints", "verify"]).status.success());
    let oldest = checkpoint::list(run.path()).pop().unwrap();
    std::fs::remove_dir_all(&oldest.path).unwrap();
    let verified = place.output(&["checkpoints", "verify"]);
    let text = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert_eq!(verified.status.code(), Some(14), "{text}");
    assert!(text.contains(&format!("{:>9}  MISSING", oldest.step)), "{text}");
    for end in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(run.file(&format!("run.db{end}")));
    }
    std::fs::write(run.file("run.db"), b"no database at all".repeat(500)).unwrap();
    let status = place.output(&["status"]);
    let said = String::from_utf8_lossy(&status.stderr).into_owned();
    assert!(status.status.code() == Some(1) && said.contains("run.db") && said.contains("downshift resume"), "{said}");
    assert!(String::from_utf8_lossy(&place.output(&["runs"]).stdout).contains("cannot be read"));
    let resumed = place.output(&["resume", "--headless"]);
    assert_eq!(resumed.status.code(), Some(0), "{}", String::from_utf8_lossy(&resumed.stderr));
    assert!(journal_says(&run, "set aside as") && run.file("run.db.damaged").exists());
    // An invalid run file is a configuration error.
    std::fs::write(run.file("run.yaml"), "nothing: [").unwrap();
    assert_eq!(place.output(&["resume", "--headless"]).status.code(), Some(13));
}
