use super::{Contents, FOLDER, MANIFEST, clean, list, load, newest_valid, newest_verified, remove, verify, write};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
};
use tempfile::TempDir;

const FILES: [(&str, &[u8]); 3] = [("model.safetensors", b"weights"), ("state.json", b"{}"), ("steps.jsonl", b"")];

fn save(run: &Path, step: u64, files: &[(&str, &[u8])]) -> PathBuf {
    let contents = Contents { step, samples: step * 32, build: "test", files };
    let written = write(run, &contents).unwrap();
    run.join(written.path)
}

#[test]
fn a_checkpoint_is_read_as_it_was_written() {
    let run = TempDir::new().unwrap();
    let path = save(run.path(), 1200, &FILES);
    assert!(path.ends_with("checkpoints/step-000001200"));
    let loaded = load(&path).unwrap();
    assert_eq!((loaded.manifest.step, loaded.manifest.samples), (1200, 38_400));
    for (name, bytes) in FILES {
        assert_eq!(loaded.files[name], bytes);
    }
    let on_disk: u64 = fs::read_dir(&path).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    let again = write(run.path(), &Contents { step: 1200, samples: 38_400, build: "test", files: &FILES }).unwrap();
    assert_eq!(again.bytes, on_disk);
}

#[test]
fn every_flipped_bit_truncation_and_missing_file_is_noticed() {
    let run = TempDir::new().unwrap();
    let path = save(run.path(), 7, &FILES);
    for name in FILES.map(|(name, _)| name).into_iter().chain([MANIFEST]) {
        let file = path.join(name);
        let good = fs::read(&file).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(&file, bad).unwrap();
            assert!(verify(&path).is_err(), "{name}: bit {bit}");
            assert!(bit % 8 > 0 || load(&path).is_err(), "{name}: bit {bit}");
        }
        for length in 0..good.len() {
            fs::write(&file, &good[..length]).unwrap();
            let refusal = verify(&path).unwrap_err().to_string();
            assert!(refusal.contains(name), "{refusal}");
        }
        fs::remove_file(&file).unwrap();
        let refusal = load(&path).unwrap_err().to_string();
        assert!(refusal.contains(name), "{refusal}");
        fs::write(&file, good).unwrap();
        verify(&path).unwrap();
    }
}

#[test]
fn swapped_files_and_directories_are_noticed() {
    let run = TempDir::new().unwrap();
    let same_length: [(&str, &[u8]); 2] = [("a", b"first"), ("b", b"other")];
    let path = save(run.path(), 7, &same_length);
    fs::write(path.join("a"), b"other").unwrap();
    fs::write(path.join("b"), b"first").unwrap();
    assert!(verify(&path).unwrap_err().to_string().contains("BLAKE3"));
    let path = save(run.path(), 8, &FILES);
    let renamed = path.with_file_name("step-000000009");
    fs::rename(&path, &renamed).unwrap();
    assert!(verify(&renamed).unwrap_err().to_string().contains("of step 8"));
}

#[test]
fn the_newest_that_verifies_is_used_and_the_others_are_named() {
    let run = TempDir::new().unwrap();
    for step in [10, 20, 30] {
        save(run.path(), step, &FILES);
    }
    fs::write(run.path().join("checkpoints/step-000000030/state.json"), b"[]").unwrap();
    let (loaded, rejected) = newest_valid(run.path());
    assert_eq!(loaded.unwrap().manifest.step, 20);
    assert_eq!(rejected.len(), 1);
    assert!(rejected[0].1.to_string().contains("state.json is damaged"), "{}", rejected[0].1);
    assert!(newest_valid(&run.path().join("elsewhere")).0.is_none());
}

#[test]
fn foreign_and_unfinished_things_are_passed_over_and_only_ours_are_cleaned() {
    let run = TempDir::new().unwrap();
    let real = save(run.path(), 5, &FILES);
    let folder = run.path().join(FOLDER);
    for name in [".new-step-000000006", ".old-step-000000004", ".new-things", "step-6", "step-00000000x", "notes"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    fs::write(folder.join("step-000000007"), b"a file").unwrap();
    std::os::unix::fs::symlink(&real, folder.join("step-000000008")).unwrap();
    assert_eq!(list(run.path()).iter().map(|entry| entry.step).collect::<Vec<_>>(), [5]);
    clean(run.path());
    let mut left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    let wanted =
        [".new-things", "notes", "step-000000005", "step-000000007", "step-000000008", "step-00000000x", "step-6"];
    assert_eq!(left, wanted);
}

#[test]
fn a_redone_step_replaces_the_old_one_and_equal_content_stays() {
    use std::os::unix::fs::MetadataExt;
    let run = TempDir::new().unwrap();
    let path = save(run.path(), 5, &FILES);
    let inode = || fs::metadata(run.path().join("checkpoints/step-000000005")).unwrap().ino();
    let first = inode();
    save(run.path(), 5, &FILES);
    assert_eq!(inode(), first);
    save(run.path(), 5, &[("state.json", b"other")]);
    assert_eq!(load(&path).unwrap().files["state.json"], b"other");
    assert_eq!(fs::read_dir(run.path().join(FOLDER)).unwrap().count(), 1);
}

#[test]
fn a_removed_checkpoint_is_gone_whole() {
    let run = TempDir::new().unwrap();
    save(run.path(), 5, &FILES);
    remove(run.path(), 5).unwrap();
    assert_eq!(fs::read_dir(run.path().join(FOLDER)).unwrap().count(), 0);
    assert!(remove(run.path(), 5).unwrap_err().to_string().contains("does not exist"));
}

#[test]
fn a_write_that_fails_leaves_what_was_there() {
    let run = TempDir::new().unwrap();
    let path = save(run.path(), 5, &FILES);
    let contents = Contents { step: 5, samples: 0, build: "test", files: &[("no/such/folder", b"x")] };
    let refusal = write(run.path(), &contents).unwrap_err().to_string();
    assert!(refusal.starts_with("cannot create") && refusal.contains("no/such/folder"), "{refusal}");
    verify(&path).unwrap();
    assert_eq!(list(run.path()).len(), 1);
    assert_eq!(fs::read_dir(run.path().join(FOLDER)).unwrap().count(), 1);
}

#[test]
fn a_run_directory_that_is_gone_is_not_made_again() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    let error = write(&run, &Contents { step: 1, samples: 1, build: "test", files: &FILES }).unwrap_err();
    assert!(error.to_string().contains("run/checkpoints"), "{error}");
    assert!(!run.exists());
}

#[test]
fn a_checkpoint_of_another_user_is_not_resumed() {
    let run = TempDir::new().unwrap();
    for step in [10, 20, 30] {
        save(run.path(), step, &FILES);
    }
    assert_eq!(newest_valid(run.path()).0.unwrap().manifest.step, 30);
    if !rustix::process::getuid().is_root() {
        return;
    }
    let path = |step: u64| run.path().join(super::relative_path(step));
    chown(path(30), Some(4242), None).unwrap();
    chown(path(20).join("model.safetensors"), Some(4242), None).unwrap();
    let (newest, rejected) = newest_valid(run.path());
    assert_eq!(newest.unwrap().manifest.step, 10);
    let said: Vec<String> = rejected.iter().map(|(_, error)| error.to_string()).collect();
    assert!(said.iter().all(|said| said.contains("belongs to user 4242")), "{said:?}");
    assert_eq!(newest_verified(run.path()).verified.unwrap().0.step, 10);
    // A server that maps owners shows another one for all files of the run.
    chown(run.path(), Some(4242), None).unwrap();
    assert_eq!(newest_valid(run.path()).0.unwrap().manifest.step, 30);
}

#[test]
fn other_users_cannot_change_a_checkpoint() {
    let run = TempDir::new().unwrap();
    let path = save(run.path(), 10, &FILES);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o022;
    assert_eq!((mode(&path), mode(&path.join("model.safetensors"))), (0, 0));
}
