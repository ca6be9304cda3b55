//! The checkpoint that a new run begins from: one that was there before, or one of another run.

use super::shown;
use crate::helper::Place;
use downshift::store::reader::Reader;
use std::fs;

/// Trains to `LAST` from the checkpoint that it is given, and saves over one file.
const FILE: &str = r#"name: counts
task: command
command: [sh, train.sh]
training: { micro_batch: 4 }
checkpoints: { match: out/ckpt.pt, copy: true }
resume: { arguments: ["{checkpoint}"] }
"#;
const SCRIPT: &str = r#"step=0
if [ -n "$1" ]; then read step < "$1"; fi
while [ $step -lt $LAST ]; do
  step=$((step + 1))
  echo "step $step loss 1.0"
done
# The clock of files ticks every few milliseconds.
sleep 0.1
mkdir -p out && echo $step > out/ckpt.pt
"#;

fn place_of(last: u64) -> Place {
    let place = Place::real();
    fs::write(place.dir.path().join("run.yaml"), FILE).unwrap();
    change_length(&place, last);
    place
}

fn change_length(place: &Place, last: u64) {
    fs::write(place.dir.path().join("train.sh"), SCRIPT.replace("$LAST", &last.to_string())).unwrap();
}

/// Returns the exit code and the output of a run.
fn run(place: &Place, more: &[&str]) -> (Option<i32>, String) {
    let words = ["run", "run.yaml", "--trust", "--headless", "--device", "cpu"];
    let out = place.output(&[&words, more].concat());
    (out.status.code(), shown(&out))
}

/// Returns the steps that the newest run stored, and its journal.
fn stored(place: &Place) -> (Vec<u64>, String) {
    let store = Reader::open(&place.newest().unwrap()).unwrap();
    let mut steps = Vec::new();
    store.each_step(|row| steps.push(row.step)).unwrap();
    let journal: Vec<String> = store.journal(100).unwrap().into_iter().map(|entry| entry.text).collect();
    (steps, journal.join("\n"))
}

#[test]
fn a_run_begins_from_a_file_that_was_there_and_says_so_where_it_starts_over() {
    let place = place_of(5);
    fs::create_dir(place.dir.path().join("out")).unwrap();
    let file = place.dir.path().join("out/ckpt.pt");
    fs::write(&file, "3\n").unwrap();
    for words in [&["check", "run.yaml"][..], &["init", "--output", "new.yaml", "--", "sh", "train.sh"]] {
        let said = shown(&place.output(words));
        assert_eq!(said.contains("is there already"), words[0] == "check", "a template names no checkpoints: {said}");
    }
    let (code, said) = run(&place, &["--from", "out/ckpt.pt"]);
    assert!(code == Some(2) && said.contains("tells no step; write --from out/ckpt.pt@STEP"), "{said}");
    let (code, said) = run(&place, &["--from", "out/other.pt"]);
    assert!(code == Some(14) && said.contains("neither a checkpoint nor a run"), "{said}");
    assert!(place.newest().is_none(), "nothing was started");

    let (code, said) = run(&place, &["--from", "out/ckpt.pt@3"]);
    assert_eq!(code, Some(0), "{said}");
    let (steps, journal) = stored(&place);
    assert_eq!(steps, [4, 5], "{journal}");
    assert!(journal.contains("begins from step 3 of ") && journal.contains("out/ckpt.pt"), "{journal}");
    assert!(!said.contains("is there already"), "{said}");

    let (code, said) = run(&place, &[]);
    assert_eq!((code, stored(&place).0), (Some(0), vec![1, 2, 3, 4, 5]), "{said}");
    assert!(said.contains("is there already; a run that starts over may write over it"), "{said}");
    assert!(said.contains("`--from out/ckpt.pt@STEP` continues from it"), "{said}");
}

#[test]
fn the_rate_and_length_of_a_new_run_are_named_where_the_command_takes_them() {
    let place = place_of(5);
    let takes = "optimizer: { lr: 0.004 }\nenvironment: { LR: \"{optimizer.lr}\", EPOCHS: \"{training.epochs}\" }\n";
    fs::write(place.dir.path().join("run.yaml"), FILE.replace("micro_batch: 4", "epochs: 1") + takes).unwrap();
    assert_eq!(run(&place, &[]).0, Some(0));
    let name = place.newest().unwrap().name();
    let said = shown(&place.output(&["resume", "--as-base", "--lr-factor", "0.5", "--epochs", "2"]));
    let way = format!("--from {name} --set optimizer.lr=0.002 --set training.epochs=2` starts a new run");
    assert!(said.contains(&way) && !said.contains("in the script"), "{said}");
}

#[test]
fn a_finished_command_trains_longer_as_a_new_run_from_its_end() {
    let place = place_of(5);
    assert_eq!(run(&place, &[]).0, Some(0));
    let first = place.newest().unwrap();
    let refused = shown(&place.output(&["resume"]));
    let way = format!("`downshift run run.yaml --trust --headless --device cpu --from {}`", first.name());
    let as_base = place.output(&["resume", "--as-base", "--lr-factor", "0.5", "--epochs", "2"]);
    let said = shown(&as_base);
    assert!(as_base.status.code() == Some(2) && said.contains(&way), "{said}");
    assert!(said.contains("no argument takes optimizer.lr: change it in the script"), "{said}");
    assert!(refused.contains(&way), "{refused}");
    change_length(&place, 8);
    let (code, said) = run(&place, &["--from", &first.name()]);
    assert_eq!((code, stored(&place).0), (Some(0), vec![6, 7, 8]), "{said}");
    let refused = shown(&place.output(&["resume"]));
    assert!(refused.contains(&format!("cpu --from {}`", place.newest().unwrap().name())), "only one: {refused}");
    let (code, said) = run(&place, &["--from", &format!("{}@4", first.name())]);
    assert!(code == Some(14) && said.contains("no checkpoint of step 4"), "{said}");
}

#[test]
fn a_run_that_writes_to_its_own_folder_names_what_lies_beside() {
    let place = place_of(5);
    let text = FILE.replace("match: out/", "match: '{run_dir}/out/").replace("ckpt.pt,", "ckpt.pt',");
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    fs::create_dir(place.dir.path().join("out")).unwrap();
    fs::write(place.dir.path().join("out/ckpt.pt"), "3\n").unwrap();
    let said = shown(&place.output(&["check", "run.yaml"]));
    assert!(said.contains("is there already; a run starts over without it; `--from out/ckpt.pt@STEP`"), "{said}");
}

#[test]
fn a_command_that_cannot_resume_begins_from_nothing() {
    let place = place_of(5);
    let text = FILE.replace("resume: { arguments: [\"{checkpoint}\"] }\n", "");
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    fs::write(place.dir.path().join("old.pt"), "3\n").unwrap();
    let (code, said) = run(&place, &["--from", "old.pt@3"]);
    assert!(code == Some(13) && said.contains("does not say how its command resumes"), "{said}");
    let out = place.output(&["run", "digits", "--headless", "--device", "cpu", "--from", "old.pt@3"]);
    assert!(out.status.code() != Some(0) && place.newest().is_none(), "{}", shown(&out));
}
