//! A run directory kept from before: written by the program of November 2026 (commit cbcfa34), stopped at step
//! 78 of 120. It must open, and go on to its end.
#![expect(clippy::unwrap_used, reason = "a test: what is missing fails it")]

use crate::helper::{Place, journal_says, wait_state};
use downshift::protocol::control::RunState;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Copies a folder, with the permissions that a run directory has, whatever the checkout's are.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, Permissions::from_mode(0o755)).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
            fs::set_permissions(&target, Permissions::from_mode(0o644)).unwrap();
        }
    }
}

#[test]
fn a_run_directory_kept_from_before_opens_and_resumes_to_its_end() {
    let place = Place::scripted();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/old_run");
    copy_folder(&kept, &place.dir.path().join("runs"));
    let store = || fs::read(place.newest().unwrap().file("run.db")).unwrap();
    let before = store();

    let status = place.status_json();
    assert_eq!(
        (&status["state"], &status["step"], &status["durable_step"]),
        (&"stopped".into(), &78.into(), &78.into())
    );
    assert_eq!((&status["rung_name"], &status["attempts"]), (&"accumulate".into(), &2.into()));
    assert!(place.succeed(&["status"]).contains("step 78 65 %") && place.succeed(&["runs"]).contains("stopped"));
    assert_eq!(place.succeed(&["checkpoints", "verify"]).matches("whole").count(), 3);
    assert!(place.succeed(&["checkpoints", "list"]).contains("step        78"));
    // 29 steps of the first attempt, then steps 21 to 78 of the second.
    assert_eq!(place.rows().len(), 29 + 58);
    place.succeed(&["plot", "--out", "loss.svg"]);
    let picture = fs::read_to_string(place.dir.path().join("loss.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("accumulate"), "{picture}");

    assert!(before == store(), "a command that reads changed the store");
    let resumed = place.output(&["resume", "--headless"]);
    assert_eq!(resumed.status.code(), Some(0), "{}", String::from_utf8_lossy(&resumed.stderr));
    let run = place.newest().unwrap();
    let status = wait_state(&run, RunState::Finished);
    assert_eq!((status.step, status.attempts, status.restarts), (120, 3, 1));
    place.curve(120, 8);
    assert!(journal_says(&run, "out of device memory"), "the old journal");
}
