use super::{CheckpointWatch, Moment};
use crate::store::adopted;
use crate::untrusted::glob::Glob;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Begins the watch of a place with the folder of a run.
fn watch_of(place: &Path, run: &Path) -> CheckpointWatch {
    let pattern = Glob::parse("out/checkpoint-*").unwrap();
    CheckpointWatch::begin(pattern, Some("trainer_state.json"), place, run, None).unwrap()
}

/// One save of the Hugging Face Trainer, as strace recorded it.
const SAVE: &str = include_str!("../../../tests/saves/hf_trainer.txt");

/// Returns the operations of the recorded save. A process can also be killed in the middle of a write.
fn save_operations(place: &Path, step: u64) -> Vec<Box<dyn Fn()>> {
    let folder = place.join(format!("out/checkpoint-{step}"));
    let mut operations: Vec<Box<dyn Fn()>> = Vec::new();
    let mut written: BTreeMap<&str, u64> = BTreeMap::new();
    let open = |path: &Path| OpenOptions::new().write(true).open(path).unwrap();
    for line in SAVE.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let path = if words[1] == "." { folder.clone() } else { folder.join(words[1]) };
        match words[0] {
            "mkdir" => operations.push(Box::new(move || fs::create_dir_all(&path).unwrap())),
            "create" => operations.push(Box::new(move || drop(File::create(&path).unwrap()))),
            "resize" => {
                let size = words[2].parse().unwrap();
                operations.push(Box::new(move || open(&path).set_len(size).unwrap()));
            }
            "rename" => {
                let new = folder.join(words[2]);
                operations.push(Box::new(move || fs::rename(&path, &new).unwrap()));
            }
            "write" => {
                let content = content_of(&path, words[2].parse().unwrap());
                let (begin, rest) = content.split_at(content.len() / 2);
                let end = written.entry(words[1]).or_default();
                for part in [begin.to_owned(), rest.to_owned()] {
                    let (path, at) = (path.clone(), *end);
                    *end += part.len() as u64;
                    operations.push(Box::new(move || open(&path).write_all_at(&part, at).unwrap()));
                }
            }
            other => panic!("hf_trainer.txt: {other}"),
        }
    }
    operations
}

/// Saves a whole checkpoint.
fn save(place: &Path, step: u64) {
    for operation in save_operations(place, step) {
        operation();
    }
}

/// Invents the content of a write, whose size alone was recorded; that of a JSON file is one object.
fn content_of(path: &Path, size: usize) -> Vec<u8> {
    match path.extension() {
        Some(json) if json == "json" => format!("{{{:1$}}}", "", size - 2).into_bytes(),
        _ => vec![b'w'; size],
    }
}

#[test]
fn whatever_a_save_was_cut_off_at_only_the_whole_one_is_adopted() {
    let count = save_operations(Path::new("/nonexistent"), 20).len();
    for prefix in 0..=count {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join("run");
        fs::create_dir(&run).unwrap();
        let mut watch = watch_of(place.path(), &run);
        save(place.path(), 10);
        let whole = watch.look(Moment::JustEnded).pop().unwrap();
        watch.record_adopted(&adopted::adopt(&run, whole.step.unwrap(), 80, &whole.path).unwrap());
        save_operations(place.path(), 20)[..prefix].iter().for_each(|operation| operation());
        // The command was killed here; the next start looks once.
        let mut later = watch_of(place.path(), &run);
        let found = later.look(Moment::BeforeStart).pop();
        assert_eq!(found.as_ref().and_then(|found| found.step), (prefix == count).then_some(20), "after {prefix}");
        assert_eq!(adopted::newest_usable(&run).0.unwrap().step, 10, "the one before is untouched");
    }
}

#[test]
fn a_checkpoint_of_a_living_command_has_to_be_the_same_twice() {
    let place = tempfile::tempdir().unwrap();
    let mut watch = watch_of(place.path(), place.path());
    save(place.path(), 5);
    assert_eq!(watch.look(Moment::Alive).pop(), None);
    fs::write(place.path().join("out/checkpoint-5/late.bin"), "more").unwrap();
    assert_eq!(watch.look(Moment::Alive).pop(), None, "a file came in between");
    let found = watch.look(Moment::Alive).pop().unwrap();
    watch.record_adopted(&adopted::adopt(place.path(), 5, 5, &found.path).unwrap());
    assert_eq!((watch.look(Moment::Alive).pop(), watch.look(Moment::JustEnded).pop()), (None, None));
    fs::write(place.path().join("out/checkpoint-5/model.safetensors"), "other").unwrap();
    assert_eq!(watch.look(Moment::BeforeStart).pop(), None, "it may have been damaged");
    assert!(watch.look(Moment::JustEnded).pop().is_some(), "the command rewrote it");
}

#[test]
fn a_checkpoint_that_was_set_aside_is_adopted_only_when_it_is_rewritten() {
    let place = tempfile::tempdir().unwrap();
    let mut first = watch_of(place.path(), place.path());
    save(place.path(), 5);
    let found = first.look(Moment::JustEnded).pop().unwrap();
    adopted::adopt(place.path(), 5, 5, &found.path).unwrap();
    adopted::set_aside(place.path(), 5).unwrap();
    let mut second = watch_of(place.path(), place.path());
    assert_eq!(second.look(Moment::BeforeStart).pop(), None, "the run went back before it");
    fs::write(place.path().join("out/checkpoint-5/model.safetensors"), "other").unwrap();
    assert!(second.look(Moment::JustEnded).pop().is_some());
}

#[test]
fn a_checkpoint_that_is_being_deleted_is_not_adopted_again() {
    let place = tempfile::tempdir().unwrap();
    let mut watch = watch_of(place.path(), place.path());
    save(place.path(), 5);
    let found = watch.look(Moment::JustEnded).pop().unwrap();
    watch.record_adopted(&adopted::adopt(place.path(), 5, 5, &found.path).unwrap());
    fs::remove_file(place.path().join("out/checkpoint-5/model.safetensors")).unwrap();
    assert_eq!(watch.look(Moment::JustEnded).pop(), None, "its last file is there, its weights are gone");
    assert!(adopted::newest_usable(place.path()).0.is_none());
}

#[test]
fn checkpoints_from_before_the_run_are_not_the_runs() {
    let place = tempfile::tempdir().unwrap();
    save(place.path(), 500);
    let mut first = watch_of(place.path(), place.path());
    assert_eq!(first.look(Moment::JustEnded).pop(), None);
    save(place.path(), 10);
    let mut second = watch_of(place.path(), place.path());
    let found = second.look(Moment::JustEnded).pop().unwrap();
    assert_eq!(found.step, Some(10));
    second.ignore(&found.path).unwrap();
    let mut third = watch_of(place.path(), place.path());
    assert_eq!(third.look(Moment::JustEnded).pop(), None, "weights that were NaN stay ignored");
    save(place.path(), 500);
    assert_eq!(third.look(Moment::JustEnded).pop().and_then(|found| found.step), Some(500), "rewritten");
}

#[test]
fn a_file_without_a_step_in_its_name_is_adopted_only_after_the_command_rewrites_it() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("ckpt.pt");
    let watch =
        || CheckpointWatch::begin(Glob::parse("ckpt.pt").unwrap(), None, place.path(), place.path(), None).unwrap();
    watch();
    fs::write(&file, "weights of 7").unwrap();
    adopted::adopt_copy(place.path(), 7, 7, &file).unwrap();
    // Killed in the middle of the next save.
    fs::write(&file, "weights").unwrap();
    let mut next = watch().settle();
    assert_eq!((next.look(Moment::Alive).pop(), next.look(Moment::Alive).pop()), (None, None));
    fs::write(&file, "weights of 8").unwrap();
    assert_eq!(next.look(Moment::Alive).pop(), None, "it may still change");
    assert!(next.look(Moment::Alive).pop().is_some());
}

#[test]
fn a_link_to_a_checkpoint_does_not_rewrite_it() {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    fs::create_dir(&run).unwrap();
    let pattern = Glob::parse("epoch-*.pt").unwrap();
    let mut watch = CheckpointWatch::begin(pattern, None, place.path(), &run, None).unwrap();
    let file = place.path().join("epoch-2.pt");
    fs::write(&file, "weights").unwrap();
    let found = watch.look(Moment::JustEnded).pop().unwrap();
    watch.record_adopted(&adopted::adopt(&run, 24, 0, &found.path).unwrap());
    fs::hard_link(&file, place.path().join("best.pt")).unwrap();
    assert_eq!(watch.look(Moment::JustEnded), []);
    fs::write(&file, "weightS").unwrap();
    assert_eq!(watch.look(Moment::JustEnded).len(), 1);
}

#[test]
fn of_an_adopted_process_the_checkpoints_since_its_start_are_its_own() {
    let place = tempfile::tempdir().unwrap();
    let old = place.path().join("epoch-1.pt");
    fs::write(&old, "weights").unwrap();
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_hours(1);
    File::options().append(true).open(&old).unwrap().set_modified(hour_ago).unwrap();
    fs::write(place.path().join("epoch-2.pt"), "weights").unwrap();
    let begun_ns = crate::store::identity::Identity::own().started_ns();
    let pattern = Glob::parse("epoch-*.pt").unwrap();
    let mut watch = CheckpointWatch::begin(pattern, None, place.path(), place.path(), Some(begun_ns)).unwrap();
    let found: Vec<_> = watch.look(Moment::JustEnded).into_iter().map(|found| found.epoch).collect();
    assert_eq!(found, [Some(2)]);
}
