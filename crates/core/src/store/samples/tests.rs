use super::{
    FOLDER, FileName, KEPT_NEWEST, WHOLE_TEXT, delete, matching, prune, read, read_picture, sets_after, steps,
    superfluous, write,
};
use crate::config::run::{Run, Source};
use crate::protocol::samples::{Confusion, Sample, SampleSet};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

fn set(step: u64) -> SampleSet {
    let named = |name: &str| Sample { name: Some(name.to_owned()), loss: Some(0.5), ..Sample::default() };
    SampleSet { step, samples: vec![named("first"), named("second")], confusion: None }
}

#[test]
fn a_set_is_read_as_it_was_written() {
    let run = tempfile::tempdir().unwrap();
    let confusion = Confusion { classes: vec!["a".to_owned(), "b".to_owned()], counts: vec![vec![3, 1], vec![0, 4]] };
    let written = SampleSet { confusion: Some(confusion.clone()), ..set(120) };
    write(run.path(), written, &[(1, b"picture".to_vec()), (7, b"of no sample".to_vec())]).unwrap();
    let read = read(run.path(), 120, WHOLE_TEXT).unwrap();
    assert_eq!((read.step, read.confusion, read.samples.len()), (Some(120), Some(confusion), 2));
    assert_eq!((read.samples[0].sample.loss, &read.samples[0].picture), (Some(0.5), &None));
    assert_eq!(read_picture(read.samples[1].picture.as_ref().unwrap()).unwrap(), b"picture");
    assert_eq!(steps(run.path()), [120]);
    assert_eq!(fs::read_dir(run.path().join(FOLDER)).unwrap().count(), 2, "no draft is left");
}

#[test]
fn samples_of_a_script_are_read_by_step() {
    let run = tempfile::tempdir().unwrap();
    let folder = run.path().join(FOLDER);
    fs::create_dir(&folder).unwrap();
    for (name, content) in [
        ("step-000000120.txt", "Once upon a time"),
        ("step-000000120-1.txt", "and then"),
        ("step-000000120.png", "picture"),
        ("step-000000040.png", "earlier"),
        ("notes.txt", "not a sample"),
        ("step-12.txt", "nor is this"),
    ] {
        fs::write(folder.join(name), content).unwrap();
    }
    assert_eq!(steps(run.path()), [120, 40]);
    let found = read(run.path(), 120, WHOLE_TEXT).unwrap();
    let texts: Vec<Option<&str>> = found.samples.iter().map(|sample| sample.sample.text.as_deref()).collect();
    assert_eq!(texts, [None, Some("Once upon a time"), Some("and then")]);
    assert_eq!(found.samples[0].picture.as_deref(), Some(folder.join("step-000000120.png").as_path()));
    assert!(read(run.path(), 7, WHOLE_TEXT).unwrap_err().is_missing());
}

#[test]
fn a_set_from_elsewhere_names_no_file_outside_its_folder() {
    let run = tempfile::tempdir().unwrap();
    let folder = run.path().join(FOLDER);
    fs::create_dir(&folder).unwrap();
    let image = |name: &str| Sample { image: Some(name.to_owned()), ..Sample::default() };
    let samples = ["/etc/passwd", "../run.db", "a/b.png", "..", "", "good.png"].map(image).to_vec();
    let confusion = Some(Confusion { classes: vec!["a".to_owned()], counts: vec![vec![1, 2]] });
    let planted = SampleSet { step: 3, samples, confusion };
    fs::write(folder.join("step-000000003.json"), serde_json::to_vec(&planted).unwrap()).unwrap();
    let read = read(run.path(), 3, WHOLE_TEXT).unwrap();
    let pictures: Vec<_> = read.samples.iter().filter_map(|sample| sample.picture.clone()).collect();
    assert_eq!((pictures, read.confusion), (vec![folder.join("good.png")], None));
}

#[test]
fn nothing_is_written_through_a_link() {
    let (run, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    symlink(other.path(), run.path().join(FOLDER)).unwrap();
    write(run.path(), set(1), &[(0, Vec::new())]).unwrap_err();
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
}

#[test]
fn nothing_is_read_through_a_link() {
    let (run, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let secret = other.path().join("secret");
    fs::write(&secret, "a secret").unwrap();
    write(run.path(), set(1), &[(0, b"picture".to_vec())]).unwrap();
    let folder = run.path().join(FOLDER);
    // Nine digits or more are a step.
    for name in ["step-000000002.txt", "step-0000000003.txt", "step-0000000003-1.png"] {
        symlink(&secret, folder.join(name)).unwrap();
    }
    assert_eq!(steps(run.path()), [1]);
    assert!(read(run.path(), 3, WHOLE_TEXT).unwrap_err().is_missing());
    fs::remove_file(folder.join("step-000000001-0.png")).unwrap();
    symlink(&secret, folder.join("step-000000001-0.png")).unwrap();
    assert_eq!(read(run.path(), 1, WHOLE_TEXT).unwrap().samples[0].picture, None);
    fs::rename(folder.join("step-000000001.json"), other.path().join("set")).unwrap();
    symlink(other.path().join("set"), folder.join("step-000000001.json")).unwrap();
    assert!(!read(run.path(), 1, WHOLE_TEXT).unwrap_err().is_missing(), "the set itself is a link");
    fs::remove_file(folder.join("step-000000001.json")).unwrap();
    fs::rename(&folder, other.path().join("samples")).unwrap();
    fs::write(other.path().join("samples/step-000000009.txt"), "outside").unwrap();
    symlink(other.path().join("samples"), &folder).unwrap();
    assert!(steps(run.path()).is_empty());
}

#[test]
fn retention_deletes_sets_and_leaves_what_a_script_wrote() {
    let run = tempfile::tempdir().unwrap();
    let last = KEPT_NEWEST as u64 + 5;
    for step in 1..=last {
        write(run.path(), set(step), &[(0, b"picture".to_vec())]).unwrap();
    }
    for step in [2_u64, 500] {
        fs::write(run.path().join(FOLDER).join(format!("step-{:09}.png", step + 1000)), "a script's").unwrap();
    }
    assert_eq!(prune(run.path(), &BTreeSet::from([3])).unwrap(), 3);
    let left = steps(run.path());
    assert!([1, 3, 6, last, 1002, 1500].iter().all(|step| left.contains(step)), "{left:?}");
    assert!([2, 4, 5].iter().all(|step| !left.contains(step)), "{left:?}");
    assert_eq!(fs::read_dir(run.path().join(FOLDER)).unwrap().count(), 2 * (KEPT_NEWEST + 2) + 2);
    assert_eq!(prune(run.path(), &BTreeSet::from([3])).unwrap(), 0);
}

#[test]
fn sets_of_abandoned_steps_are_deleted_and_retention_keeps_the_new_ones() {
    let run = tempfile::tempdir().unwrap();
    for step in (1..=25).map(|number| number * 400) {
        write(run.path(), set(step), &[(0, b"picture".to_vec())]).unwrap();
    }
    fs::write(run.path().join(FOLDER).join("step-000009999.png"), "a script's").unwrap();
    let abandoned = sets_after(run.path(), 2_000);
    assert_eq!((abandoned.len(), abandoned.first(), abandoned.last()), (20, Some(&2_400), Some(&10_000)));
    delete(run.path(), &abandoned).unwrap();
    assert_eq!(steps(run.path()), [9_999, 2_000, 1_600, 1_200, 800, 400]);
    write(run.path(), set(2_100), &[]).unwrap();
    assert_eq!(prune(run.path(), &BTreeSet::new()).unwrap(), 0);
    assert!(steps(run.path()).contains(&2_100));
}

#[test]
fn long_texts_are_cut_where_they_are_read() {
    let run = tempfile::tempdir().unwrap();
    let folder = run.path().join(FOLDER);
    fs::create_dir(&folder).unwrap();
    let log = folder.join("step-000000120.log");
    fs::write(&log, "ä".repeat(4_000_000)).unwrap();
    let text = |step, most| read(run.path(), step, most).unwrap().samples.remove(0).sample.text.unwrap();
    // A character that lies across the limit is left out.
    assert_eq!(text(120, 5), "ää\n… cut after 5 B");
    assert!(text(120, 32 << 10).ends_with("ä\n… cut after 32.0 KiB"));
    assert!(text(120, WHOLE_TEXT).len() <= WHOLE_TEXT + 32);
    fs::write(&log, "ää").unwrap();
    assert_eq!(text(120, 4), "ää");
    let words = || Some("word ".repeat(100));
    let sample = Sample { prompt: words(), text: words(), ..Sample::default() };
    write(run.path(), SampleSet { step: 7, samples: vec![sample], confusion: None }, &[]).unwrap();
    let cut = read(run.path(), 7, 9).unwrap().samples.remove(0).sample;
    assert_eq!(cut.text.as_deref(), Some("word word\n… cut after 9 B"));
    assert_eq!(cut.prompt, cut.text);
}

#[test]
fn files_of_a_pattern_are_listed_newest_first() {
    let place = tempfile::tempdir().unwrap();
    let text = "name: a\ntask: command\ncommand: [python, train.py]\nsamples: { match: 'out/{training.epochs}/*' }\n\
                training: { epochs: 3 }\n";
    let source = Source { file: "run.yaml", text, base: place.path(), overrides: &[] };
    let run = Run::read(&source, &crate::config::run::AsWritten).unwrap();
    let folder = place.path().join("out/3");
    fs::create_dir_all(folder.join("folder.png")).unwrap();
    for (name, age) in [("old.png", 20), ("new.txt", 10)] {
        let file = fs::File::create(folder.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
    }
    let spec = run.command.as_ref().unwrap();
    let found = matching(place.path(), spec, (&run.rungs[0].name, &run.rungs[0].preset), 1);
    let found: Vec<_> = found.into_iter().map(|file| file.read(WHOLE_TEXT)).collect();
    let names: Vec<_> = found.iter().map(|set| set.samples[0].sample.name.as_deref()).collect();
    assert_eq!(names, [Some("new.txt"), Some("old.png")], "a folder is not a sample");
    assert_eq!(found[0].samples[0].sample.text.as_deref(), Some(""));
    assert_eq!(found[1].samples[0].picture.as_deref(), Some(folder.join("old.png").as_path()));
}

#[test]
fn names_of_files_are_parsed_strictly() {
    let parse = |name: &str| FileName::parse(name).map(|name| (name.step, name.number, name.ending));
    assert_eq!(parse("step-000000120.json"), Some((120, None, "json".to_owned())));
    assert_eq!(parse("step-1000000120-3.PNG"), Some((1_000_000_120, Some(3), "png".to_owned())));
    for name in
        ["step-12.json", "step-+00000012.json", "step-000000012", ".step-000000012.json.7", "step-000000012-x.png"]
    {
        assert_eq!(parse(name), None, "{name}");
    }
}

proptest! {
    #[test]
    fn the_first_the_newest_and_the_wanted_sets_stay(
        sets in prop::collection::btree_set(0u64..200, 0..60), kept in prop::collection::btree_set(0u64..200, 0..9),
    ) {
        let sets: Vec<u64> = sets.into_iter().collect();
        let gone = superfluous(&sets, &kept);
        let newest = &sets[sets.len().saturating_sub(KEPT_NEWEST)..];
        prop_assert!(gone.iter().all(|step| !newest.contains(step) && !kept.contains(step)));
        prop_assert!(sets.first().is_none_or(|first| !gone.contains(first)));
        let left = sets.len() - gone.len();
        prop_assert!(left <= KEPT_NEWEST + 1 + kept.len());
    }
}
