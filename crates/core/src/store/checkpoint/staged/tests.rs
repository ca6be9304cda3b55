//! Staged folders: published, refused, merged, left behind.

use super::super::{CheckpointError, MANIFEST, STATE, STEPS, clean, list, load, newest_valid, verify};
use super::{StagedContents, StagedError, StagedWriter, discard_staged, discard_staged_by, publish_staged};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn stage(run: &Path, step: u64, weights: &[u8]) -> PathBuf {
    let folder = run.join(format!("checkpoints/.new-step-{step:09}"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("model.safetensors"), weights).unwrap();
    fs::write(folder.join("python.json"), b"{}").unwrap();
    folder
}

fn contents(step: u64, folder: &str) -> StagedContents<'_> {
    StagedContents { step, samples: step * 4, build: "test", folder, parts: &[], state: b"{\"step\":1}", steps: b"" }
}

fn publish(run: &Path, step: u64) -> Result<super::Written, StagedError> {
    publish_staged(run, &contents(step, &format!(".new-step-{step:09}")))
}

#[test]
fn a_staged_folder_becomes_a_checkpoint_like_any_other() {
    let run = TempDir::new().unwrap();
    stage(run.path(), 7, b"weights");
    let written = publish(run.path(), 7).unwrap();
    let loaded = load(&run.path().join(&written.path)).unwrap();
    let names: Vec<&str> = loaded.files.keys().map(String::as_str).collect();
    assert_eq!(names, ["model.safetensors", "python.json", STATE, STEPS]);
    assert_eq!((loaded.manifest.step, loaded.manifest.samples), (7, 28));
    assert_eq!(loaded.files["model.safetensors"], b"weights");
    let on_disk = fs::read_dir(run.path().join(&written.path)).unwrap();
    assert_eq!(written.bytes, on_disk.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>());
    // A redone step replaces the old one.
    stage(run.path(), 7, b"others!");
    publish(run.path(), 7).unwrap();
    assert_eq!(load(&run.path().join(&written.path)).unwrap().files["model.safetensors"], b"others!");
    assert_eq!(fs::read_dir(run.path().join("checkpoints")).unwrap().count(), 1);
}

#[test]
fn what_is_not_exactly_a_staged_folder_is_refused_and_the_published_one_stays() {
    let run = TempDir::new().unwrap();
    stage(run.path(), 5, b"good");
    publish(run.path(), 5).unwrap();
    stage(run.path(), 6, b"good");
    let wrong = ["step-000000005", ".new-step-6", "../checkpoints/.new-step-000000006", "", ".new-step-000000006/"];
    for name in wrong.into_iter().chain([".new-step-000000006.", ".new-step-000000006.7/x", ".new-step-000000006.07"]) {
        let refused = publish_staged(run.path(), &contents(6, name));
        assert!(matches!(refused, Err(StagedError::Name { .. })), "{name}: {refused:?}");
    }
    let refused = publish_staged(run.path(), &contents(7, ".new-step-000000006"));
    assert!(matches!(refused, Err(StagedError::Name { step: 7, .. })), "the step differs");
    assert!(matches!(publish(run.path(), 8), Err(StagedError::NoFolder(_))));
    symlink(run.path().join("checkpoints/step-000000005"), run.path().join("checkpoints/.new-step-000000009")).unwrap();
    assert!(matches!(publish(run.path(), 9), Err(StagedError::NoFolder(_))), "the folder is a link");
    for (spoil, is_expected) in [
        (
            (|folder| symlink("/etc/passwd", folder.join("more")).unwrap()) as fn(&Path),
            (|error| matches!(error, StagedError::NotPlain(_))) as fn(&StagedError) -> bool,
        ),
        (|folder| fs::create_dir(folder.join("more")).unwrap(), |error| matches!(error, StagedError::NotPlain(_))),
        (|folder| fs::write(folder.join(MANIFEST), "").unwrap(), |error| matches!(error, StagedError::Reserved(_))),
        (|folder| fs::write(folder.join(STATE), "").unwrap(), |error| matches!(error, StagedError::Reserved(_))),
    ] {
        let folder = stage(run.path(), 5, b"spoilt");
        spoil(&folder);
        let error = publish(run.path(), 5).unwrap_err();
        assert!(is_expected(&error), "{error}");
        assert!(!folder.exists(), "a refused folder is removed: {error}");
    }
    fs::create_dir(run.path().join("checkpoints/.new-step-000000010")).unwrap();
    assert!(matches!(publish(run.path(), 10), Err(StagedError::Count { count: 0, .. })));
    assert_eq!(newest_valid(run.path()).0.unwrap().files["model.safetensors"], b"good");
}

#[test]
fn two_processes_stage_the_same_step_and_each_ones_leftovers_are_its_own() {
    let run = TempDir::new().unwrap();
    let stage_by = |step: u64, pid: u32, weights: &[u8]| {
        let plain = stage(run.path(), step, weights);
        fs::rename(&plain, plain.with_file_name(format!(".new-step-{step:09}.{pid}"))).unwrap();
    };
    let names = || -> Vec<String> {
        let all = fs::read_dir(run.path().join("checkpoints")).unwrap();
        let mut names: Vec<String> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    stage_by(5, 41, b"first");
    stage_by(5, 42, b"other");
    let written = publish_staged(run.path(), &contents(5, ".new-step-000000005.41")).unwrap();
    assert_eq!(load(&run.path().join(&written.path)).unwrap().files["model.safetensors"], b"first");
    assert_eq!(names(), [".new-step-000000005.42", "step-000000005"], "the other one's folder is untouched");
    stage_by(6, 42, b"whole");
    stage_by(6, 4, b"others");
    let elsewhere = stage(run.path(), 6, b"elsewhere");
    fs::rename(&elsewhere, elsewhere.with_file_name(".new-step-000000006.1-42")).unwrap();
    discard_staged_by(run.path(), StagedWriter { node: 0, pid: 42 }, &[".new-step-000000006.42"]);
    let all = [".new-step-000000006.1-42", ".new-step-000000006.4", ".new-step-000000006.42", "step-000000005"];
    assert_eq!(names(), all, "the process 42 of another node");
    discard_staged_by(run.path(), StagedWriter { node: 1, pid: 42 }, &[]);
    assert_eq!(names(), [".new-step-000000006.4", ".new-step-000000006.42", "step-000000005"]);
    discard_staged(run.path(), 5, "step-000000005");
    discard_staged(run.path(), 6, ".new-step-000000006.42");
    assert_eq!(names(), [".new-step-000000006.4", "step-000000005"]);
    clean(run.path());
    assert_eq!(names(), ["step-000000005"], "the next start");
}

#[test]
fn the_parts_of_several_processes_become_one_checkpoint_or_none() {
    let run = TempDir::new().unwrap();
    let stage_by = |pid: u32, file: &str| {
        let folder = run.path().join(format!("checkpoints/.new-step-000000005.{pid}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(file), pid.to_string()).unwrap();
    };
    let publish = || {
        let parts = [".new-step-000000005.42"];
        publish_staged(run.path(), &StagedContents { parts: &parts, ..contents(5, ".new-step-000000005.41") })
    };
    for pid in [41, 42] {
        stage_by(pid, "model.safetensors");
        assert!(matches!(publish(), Err(StagedError::NoFolder(_))), "a part is missing");
        assert_eq!(fs::read_dir(run.path().join("checkpoints")).unwrap().count(), 0, "the part of {pid} is removed");
    }
    stage_by(41, "model.safetensors");
    stage_by(42, "rank-1.model.safetensors");
    let loaded = load(&run.path().join(publish().unwrap().path)).unwrap();
    assert_eq!(loaded.files["model.safetensors"], b"41");
    assert_eq!(loaded.files["rank-1.model.safetensors"], b"42");
    stage_by(41, "model.safetensors");
    stage_by(42, "model.safetensors");
    assert!(matches!(publish(), Err(StagedError::Twice(_))));
    let left = fs::read_dir(run.path().join("checkpoints")).unwrap().count();
    assert_eq!((left, verify(&list(run.path())[0].path).unwrap().step), (1, 5), "the old one stays, alone");
}

/// The folder after each action of a publisher that is killed: the next start finds the old checkpoint or the new
/// one, whole.
#[test]
fn a_publisher_killed_at_any_point_leaves_the_old_checkpoint_or_the_new_one() {
    type Stage = fn(&Path);
    let stages: [(&str, Stage); 5] = [
        ("half a file", |folder| fs::write(folder.join("model.safetensors"), b"hal").unwrap()),
        ("staged", |_| {}),
        ("state", |folder| fs::write(folder.join(STATE), b"{}").unwrap()),
        ("half a manifest", |folder| fs::write(folder.join(MANIFEST), b"{\"version\": 1").unwrap()),
        ("synced", |folder| fs::write(folder.join(MANIFEST), b"{}").unwrap()),
    ];
    for (what, act) in stages {
        let run = TempDir::new().unwrap();
        stage(run.path(), 5, b"old");
        publish(run.path(), 5).unwrap();
        act(&stage(run.path(), 10, b"new"));
        clean(run.path());
        let entries: Vec<u64> = list(run.path()).iter().map(|entry| entry.step).collect();
        assert_eq!(entries, [5], "{what}");
        assert_eq!(fs::read_dir(run.path().join("checkpoints")).unwrap().count(), 1, "{what}");
        stage(run.path(), 10, b"new");
        publish(run.path(), 10).unwrap();
        clean(run.path());
        let newest = &list(run.path())[0];
        assert_eq!(verify(&newest.path).unwrap().step, 10, "{what}");
    }
}

#[test]
fn a_full_disk_is_told_from_a_refused_folder() {
    let full =
        CheckpointError::Io { file: "x".into(), action: "write", source: std::io::ErrorKind::StorageFull.into() };
    assert!(StagedError::Write(full).is_disk_failure());
    assert!(!StagedError::NoFolder("x".into()).is_disk_failure());
}
