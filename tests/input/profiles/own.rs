//! A profile of the user's own: its mistakes have a place, and it is used before the shipped ones.

use super::commands::{CASES, propose};
use crate::helper::Place;
use std::fs;

/// The example of the book.
const BOOK: &str = include_str!("../../../docs/src/profiles.md");

/// Returns the block of the book that begins with a line.
fn block(first: &str) -> String {
    let begin = BOOK.find(first).unwrap();
    BOOK[begin..].split("```").next().unwrap().to_owned()
}

fn place() -> Place {
    let place = Place::real();
    let script = "from my_trainer import Trainer\nimport argparse\np = argparse.ArgumentParser()\n\
                  p.add_argument('--workdir', default='work')\np.add_argument('--tile', type=int, default=512)\n\
                  p.add_argument('--images', type=int, default=8)\np.add_argument('--from-state')\nTrainer(p.parse_args()).train()\n";
    fs::write(place.dir.path().join("train.py"), script).unwrap();
    fs::write(place.dir.path().join("mine.yaml"), block("name: my trainer\n")).unwrap();
    place
}

#[test]
fn the_example_of_the_book_is_a_profile_that_init_uses() {
    let place = place();
    let said = place.succeed(&["init", "--profile", "mine.yaml", "--", "python", "train.py", "--images", "8"]);
    assert!(said.contains("profile my trainer: the script is train.py, its source imports my_trainer\n"), "{said}");
    assert!(said.contains("ladder: full, segments, small-tiles, half-batch\n"), "{said}");
    let file = fs::read_to_string(place.dir.path().join("train.yaml")).unwrap();
    for line in [
        "command: [python, train.py, --images, \"{knobs.images}\"]\n",
        "  \"--tile={knobs.tile}\": 512\n",
        "checkpoints: { match: \"work/state-*\", complete: done }\n",
        "resume: { arguments: [\"--from-state={checkpoint}\"] }\n",
        "metrics: { patterns: [\"batch (?P<step>\\\\d+) err (?P<loss>\\\\S+)\"] }\n",
        "    set: { knobs.images: 4 }\n",
    ] {
        assert!(file.contains(line), "{line}: {file}");
    }
    place.succeed(&["check", "train.yaml", "--device", "cpu"]);
    let other = place.output(&["init", "--output", "x.yaml", "--profile", "mine.yaml", "--", "python", "-m", "other"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&other.stderr).contains("mine.yaml does not recognise this command"));
}

#[test]
fn a_profile_in_the_configuration_folder_comes_before_the_shipped_ones() {
    let place = Place::real();
    let case = CASES.iter().find(|case| case.profile == "axolotl").unwrap();
    let folder = place.dir.path().join("config/downshift/trainers");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("a.yaml"), "name: ours\nrecognise: [{ programs: [axolotl] }]\n").unwrap();
    fs::write(folder.join("broken.yaml"), "name: broken\nrecognise: [{ program: [axolotl] }]\n").unwrap();
    let (said, _) = propose(&place, case, &[]);
    assert!(said.contains("\nprofile ours: the command starts axolotl\n"), "{said}");
    let checked = place.output(&["check", "run.yaml"]);
    let wrong = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(wrong.contains("broken.yaml:2:15: recognise[0].program: unknown key; did you mean `programs`?"), "{wrong}");
    assert!(checked.status.success(), "a mistake of one profile stops nothing: {wrong}");
}

#[test]
fn every_mistake_of_a_profile_is_refused_with_its_place() {
    let place = place();
    let good = block("name: my trainer\n");
    for (from, to, wanted) in [
        ("scripts: [train.py]", "scripts: train.py", "recognise[0].scripts: expected a list, found train.py"),
        ("imports:", "import:", "recognise[0].import: unknown key; did you mean `imports`?"),
        ("times: 0.5", "tims: 0.5", "this is not a value to set"),
        ("  - segments\n", "  - segment\n", "unknown value `segment`; did you mean `segments`?"),
        ("relieves: [memory]", "relieves: [memry]", "unknown value `memry`; did you mean `memory`?"),
        ("is: text", "is: txt", "unknown value `txt`"),
        ("(?P<step>", "(?P<step", "metrics.patterns[0]: not a regular expression"),
        ("count: continues", "count: maybe", "resume.count: unknown value `maybe`"),
        ("name: my trainer\n", "", "name: this key is missing; add it"),
    ] {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{from}");
        fs::write(place.dir.path().join("mine.yaml"), text).unwrap();
        let refused = place.output(&["init", "--profile", "mine.yaml", "--", "python", "train.py"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(wanted), "{to}: {said}");
        assert!(said.contains("mine.yaml:"), "{said}");
        assert!(!place.dir.path().join("train.yaml").exists());
    }
}
