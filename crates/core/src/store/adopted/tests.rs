use super::{
    AdoptError, FOLDER, adopt, adopt_copy, adopt_found, copy_listed, delete_copies_aside, forget_removed, list,
    list_aside, newest_usable, put_back, record_going_back, remove, set_aside, still_aside, went_back,
};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

fn paths_aside(run_dir: &Path) -> Vec<PathBuf> {
    still_aside(run_dir).into_iter().map(|adopted| adopted.path).collect()
}

fn checkpoint(place: &Path, step: u64) -> PathBuf {
    let path = place.join(format!("out/checkpoint-{step}"));
    fs::create_dir_all(path.join("optimizer")).unwrap();
    fs::write(path.join("model.safetensors"), vec![step as u8; 3000]).unwrap();
    fs::write(path.join("optimizer/state.bin"), "moments").unwrap();
    path
}

#[test]
fn a_changed_checkpoint_is_noticed_and_the_one_before_it_is_used() {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    fs::create_dir(&run).unwrap();
    let (old, new) = (checkpoint(place.path(), 10), checkpoint(place.path(), 20));
    adopt(&run, 10, 80, &old).unwrap();
    let adopted = adopt(&run, 20, 160, &new).unwrap();
    assert_eq!((adopted.files.len(), adopted.bytes()), (2, 3007));
    assert_eq!(newest_usable(&run).0.unwrap().step, 20);
    fs::write(new.join("optimizer/state.bin"), "moments").unwrap();
    assert_eq!(newest_usable(&run).0.unwrap().step, 20, "rewritten with the same content");
    fs::write(new.join("optimizer/state.bin"), "MOMENTS").unwrap();
    let (usable, refused) = newest_usable(&run);
    assert_eq!(usable.unwrap().step, 10);
    assert!(matches!(&refused[..], [(_, AdoptError::Changed(path))] if path.ends_with("state.bin")), "{refused:?}");
    fs::remove_file(old.join("model.safetensors")).unwrap();
    let (usable, refused) = newest_usable(&run);
    assert!(usable.is_none() && refused.len() == 2);
    assert_eq!(list(&run).iter().map(|adopted| adopted.step).collect::<Vec<_>>(), [20, 10]);
}

#[test]
fn a_checkpoint_that_the_command_removed_is_forgotten_but_not_one_on_a_disk_that_is_away() {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    fs::create_dir(&run).unwrap();
    let elsewhere = place.path().join("disk");
    let (old, new, away) = (checkpoint(place.path(), 1), checkpoint(place.path(), 2), checkpoint(&elsewhere, 3));
    for (step, path) in [(1, &old), (2, &new), (3, &away)] {
        adopt(&run, step, step, path).unwrap();
    }
    fs::remove_dir_all(&old).unwrap();
    fs::remove_file(new.join("model.safetensors")).unwrap();
    fs::remove_dir_all(&elsewhere).unwrap();
    assert_eq!(forget_removed(&run).into_iter().collect::<Vec<_>>(), [2, 3]);
    let listed: Vec<u64> = list(&run).iter().map(|adopted| adopted.step).collect();
    assert_eq!(listed, [3, 2], "a damaged one stays, to be named");
}

#[test]
fn files_of_the_command_are_deleted_only_if_they_are_the_ones_listed() {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    fs::create_dir(&run).unwrap();
    let (kept, changed, gone) = (checkpoint(place.path(), 1), checkpoint(place.path(), 2), checkpoint(place.path(), 3));
    for (step, path) in [(1, &kept), (2, &changed), (3, &gone)] {
        adopt(&run, step, step, path).unwrap();
    }
    set_aside(&run, 1).unwrap();
    fs::write(changed.join("model.safetensors"), "new").unwrap();
    remove(&run, 2).unwrap();
    remove(&run, 3).unwrap();
    assert!(kept.exists() && changed.exists() && !gone.exists());
    assert!(list(&run).is_empty());
}

#[test]
fn a_copy_outlives_its_original_and_one_file_is_a_checkpoint_too() {
    let place = tempfile::tempdir().unwrap();
    let from = checkpoint(place.path(), 7);
    let copied = adopt_copy(place.path(), 7, 7, &from).unwrap();
    assert_eq!(copied.original().path, from);
    fs::remove_dir_all(&from).unwrap();
    let (usable, _) = newest_usable(place.path());
    assert_eq!(fs::read(usable.unwrap().path.join("optimizer/state.bin")).unwrap(), b"moments");
    let file = place.path().join("ckpt.pt");
    fs::write(&file, "weights").unwrap();
    let adopted = adopt(place.path(), 5, 5, &file).unwrap();
    adopted.verify().unwrap();
    fs::write(&file, "other").unwrap();
    assert!(adopted.verify().is_err());
}

#[test]
fn a_copy_takes_the_place_of_an_original_that_differs() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("out/ckpt.pt");
    let folder = checkpoint(place.path(), 8);
    fs::write(&file, "weights of 7").unwrap();
    let one = adopt_copy(place.path(), 7, 7, &file).unwrap();
    let many = adopt_copy(place.path(), 8, 8, &folder).unwrap();
    assert!(!one.restore_original().unwrap() && !many.restore_original().unwrap(), "nothing differs");
    fs::write(&file, "weights").unwrap();
    fs::write(folder.join("optimizer/state.bin"), "MOMENTS").unwrap();
    fs::remove_file(folder.join("model.safetensors")).unwrap();
    fs::write(folder.join("mine"), "mine").unwrap();
    assert!(one.restore_original().unwrap() && many.restore_original().unwrap());
    assert_eq!(fs::read(&file).unwrap(), b"weights of 7", "a save was cut off");
    assert_eq!(fs::read(folder.join("optimizer/state.bin")).unwrap(), b"moments");
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), vec![8; 3000]);
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["mine", "model.safetensors", "optimizer"], "no draft stays, nothing else is deleted");
    assert!(!one.restore_original().unwrap() && !many.restore_original().unwrap());
    fs::remove_dir_all(&folder).unwrap();
    assert!(many.restore_original().unwrap() && folder.join("optimizer/state.bin").exists());
    let in_place = adopt(place.path(), 9, 9, &file).unwrap();
    fs::write(&file, "newer").unwrap();
    assert!(!in_place.restore_original().unwrap(), "its files are the command's");
    assert_eq!(fs::read(&file).unwrap(), b"newer");
}

#[test]
fn a_run_that_went_back_gives_up_newer_checkpoints_written_before() {
    let place = tempfile::tempdir().unwrap();
    record_going_back(place.path(), 7).unwrap();
    assert_eq!(went_back(place.path()), None, "a run without a command has no list to go back to");
    let before = adopt(place.path(), 8, 8, &checkpoint(place.path(), 8)).unwrap().original();
    record_going_back(place.path(), 7).unwrap();
    let went = went_back(place.path()).unwrap();
    assert!(went.gave_up(8, &before) && !went.gave_up(7, &before));
    let mut after = before;
    after.files[0].1.modified_ns = (went.time_ms + 1) * 1_000_000;
    assert!(!went.gave_up(8, &after), "the next attempt wrote it");
}

#[test]
fn lists_of_one_step_are_read_from_the_oldest_to_the_newest() {
    let place = tempfile::tempdir().unwrap();
    let path = checkpoint(place.path(), 4);
    for _ in 0..12 {
        adopt(place.path(), 4, 4, &path).unwrap();
        set_aside(place.path(), 4).unwrap();
    }
    // The names have no order in a folder, so the times are given out against the order of the counts.
    for (count, time_ms) in (1..=12).zip((1..=12).rev()) {
        let list = place.path().join(FOLDER).join(format!("aside-step-000000004-{count}.json"));
        let mut adopted: super::Adopted = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
        adopted.time_ms = time_ms;
        fs::write(&list, serde_json::to_vec(&adopted).unwrap()).unwrap();
    }
    let times: Vec<i64> = list_aside(place.path()).iter().map(|adopted| adopted.time_ms).collect();
    assert_eq!(times, (1..=12).collect::<Vec<i64>>());
}

#[test]
fn a_copy_that_was_set_aside_is_not_overwritten_and_is_deleted_alone() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("ckpt.pt");
    fs::write(&file, "first").unwrap();
    adopt_copy(place.path(), 5, 5, &file).unwrap();
    set_aside(place.path(), 5).unwrap();
    fs::write(&file, "second").unwrap();
    let live = adopt_copy(place.path(), 5, 5, &file).unwrap();
    assert_eq!(live.path.extension().unwrap(), "pt", "a script may tell the format by the name");
    assert_eq!(list_aside(place.path())[0].path.extension().unwrap(), "pt");
    let aside = list_aside(place.path());
    aside[0].verify_every_byte().unwrap();
    assert_eq!(paths_aside(place.path()), [aside[0].path.clone()]);
    // A list from before copies were renamed names the copy of today.
    let old = place.path().join(FOLDER).join("aside-step-000000005-9.json");
    fs::write(&old, serde_json::to_vec(&live).unwrap()).unwrap();
    assert_eq!(delete_copies_aside(place.path()), [aside[0].path.clone()]);
    live.verify_every_byte().unwrap();
    assert!(paths_aside(place.path()).is_empty());
    assert_eq!(list_aside(place.path()).len(), 2, "the original is still known");
    // Once no list names it, it is set aside as well.
    fs::remove_file(place.path().join(super::relative_path(5))).unwrap();
    assert_eq!(delete_copies_aside(place.path()), [live.path]);
}

#[test]
fn a_path_that_is_adopted_again_is_not_set_aside() {
    let place = tempfile::tempdir().unwrap();
    let (again, gone) = (checkpoint(place.path(), 6), checkpoint(place.path(), 7));
    for (step, path) in [(6, &again), (7, &gone)] {
        adopt(place.path(), step, step, path).unwrap();
        set_aside(place.path(), step).unwrap();
    }
    assert_eq!(paths_aside(place.path()), [gone.clone(), again.clone()]);
    adopt(place.path(), 6, 6, &again).unwrap();
    assert_eq!(paths_aside(place.path()), [gone]);
}

#[test]
fn a_path_that_is_adopted_again_has_one_list_and_copies_of_it_have_theirs() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("last.ckpt");
    let other = checkpoint(place.path(), 2);
    adopt(place.path(), 2, 2, &other).unwrap();
    let steps = || list(place.path()).iter().map(|adopted| adopted.step).collect::<Vec<_>>();
    for step in [3, 4] {
        fs::write(&file, format!("weights of {step}")).unwrap();
        adopt_copy(place.path(), step, step, &file).unwrap();
    }
    for step in [5, 6, 7] {
        fs::write(&file, format!("weights of {step}")).unwrap();
        adopt(place.path(), step, step, &file).unwrap();
    }
    assert_eq!(steps(), [7, 4, 3, 2]);
    assert!(list(place.path()).iter().all(|adopted| adopted.verify_every_byte().is_ok()));
}

#[test]
fn a_checkpoint_is_put_back_only_if_it_is_as_it_was() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("ckpt.pt");
    let mut written = Vec::new();
    for content in ["first", "second"] {
        fs::write(&file, content).unwrap();
        written.push(adopt_copy(place.path(), 5, 5, &file).unwrap());
        set_aside(place.path(), 5).unwrap();
    }
    put_back(place.path(), 5).unwrap();
    let back = list(place.path()).remove(0);
    assert_eq!((back.time_ms, back.step), (written[1].time_ms, 5), "the last one that was set aside");
    assert_eq!(fs::read(&back.path).unwrap(), b"second");
    assert_eq!(delete_copies_aside(place.path()).len(), 1, "that of the first");
    back.verify_every_byte().unwrap();
    let again = put_back(place.path(), 5).unwrap_err().to_string();
    assert!(again.contains("No such file"), "its copy was deleted: {again}");
    fs::write(&file, "third").unwrap();
    adopt_copy(place.path(), 5, 5, &file).unwrap();
    for _ in 0..3 {
        set_aside(place.path(), 5).unwrap();
        put_back(place.path(), 5).unwrap();
        assert_eq!(fs::read(&list(place.path())[0].path).unwrap(), b"third", "again and again");
    }
    remove(place.path(), 5).unwrap();
    let in_place = checkpoint(place.path(), 6);
    adopt(place.path(), 6, 6, &in_place).unwrap();
    set_aside(place.path(), 6).unwrap();
    fs::write(in_place.join("optimizer/state.bin"), "others").unwrap();
    assert!(matches!(put_back(place.path(), 6), Err(AdoptError::Changed(_))));
    assert!(list(place.path()).is_empty(), "nothing was listed");
}

#[test]
fn what_another_user_put_among_the_checkpoints_is_not_adopted() {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    fs::create_dir(&run).unwrap();
    let path = checkpoint(place.path(), 10);
    assert!(adopt_found(&run, (10, 80), &path, true).is_ok());
    if !rustix::process::getuid().is_root() {
        return;
    }
    chown(path.join("optimizer/state.bin"), Some(4242), None).unwrap();
    for copies in [false, true] {
        let refused = adopt_found(&run, (10, 80), &path, copies).unwrap_err();
        assert!(matches!(refused, AdoptError::Foreign(_)), "{refused}");
        assert!(refused.to_string().contains("state.bin belongs to user 4242"), "{refused}");
    }
}

#[test]
fn a_copy_can_be_changed_by_nobody_else() {
    let place = tempfile::tempdir().unwrap();
    let path = checkpoint(place.path(), 10);
    fs::set_permissions(path.join("model.safetensors"), Permissions::from_mode(0o666)).unwrap();
    let copy = adopt_copy(place.path(), 10, 80, &path).unwrap();
    let mode = fs::metadata(copy.path.join("model.safetensors")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
}

#[test]
fn a_listed_checkpoint_that_was_replaced_is_not_copied_as_that_of_its_step() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("net-20.pt");
    fs::write(&file, "20").unwrap();
    let listed = adopt(place.path(), 20, 160, &file).unwrap();
    fs::write(&file, "60").unwrap();
    assert!(copy_listed(place.path(), &listed).is_err());
    assert_eq!(list(place.path()), std::slice::from_ref(&listed), "the list stays");
    fs::write(&file, "20").unwrap();
    let copy = copy_listed(place.path(), &listed).unwrap();
    assert_eq!(fs::read_to_string(&copy.path).unwrap(), "20");
}
