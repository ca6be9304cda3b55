//! A script that looks like kohya's trainer, started without a run file and with a proposed one.

use crate::helper::{Place, journal_says, wait_for, wait_status};
use downshift::store::reader::live_status;
use std::fs;
use std::process::Stdio;

/// Counts steps in kohya's form, saves a state folder every third step, and ends when a file says so. It writes down the
/// arguments that it got, and the batch size of the data set.
const SCRIPT: &str = r#"
import argparse, os, sys, time
from library import train_util

def setup_parser():
    parser = argparse.ArgumentParser()
    train_util.add_arguments(parser)
    return parser

args, _ = setup_parser().parse_known_args()
batch = [line for line in open(args.dataset_config) if line.startswith("batch_size")][0].strip()
with open("seen", "a") as seen:
    seen.write(f"{sys.argv[1:]} {batch}\n")
step = 0
while not os.path.exists("enough"):
    step += 1
    sys.stderr.write(f"\rsteps:   1%|#         | {step}/5000 [00:10<01:13,  1.20s/it, avr_loss={1 / step:.3f}]")
    sys.stderr.flush()
    if step % 3 == 0:
        folder = os.path.join(args.output_dir, f"at-step{step:08d}-state")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "random_states_0.pkl"), "w") as states:
            states.write("states")
    time.sleep(0.05)
"#;
const LIBRARY: &str = "def add_arguments(parser):\n    parser.add_argument('--dataset_config')\n    \
                       parser.add_argument('--output_dir')\n    parser.add_argument('--resume')\n    \
                       parser.add_argument('--save_state', action='store_true')\n    \
                       parser.add_argument('--gradient_accumulation_steps', type=int, default=1)\n";
const WORDS: [&str; 6] =
    ["python3", "train_network.py", "--dataset_config=my.toml", "--output_dir=out", "--save_state", "--sdpa"];

fn place() -> Place {
    let place = Place::real();
    let folder = place.dir.path();
    fs::create_dir(folder.join("library")).unwrap();
    fs::write(folder.join("library/__init__.py"), "").unwrap();
    fs::write(folder.join("library/train_util.py"), LIBRARY).unwrap();
    fs::write(folder.join("train_network.py"), SCRIPT).unwrap();
    fs::write(folder.join("my.toml"), "# mine\n[[datasets]]\nbatch_size = 4 # fits\n").unwrap();
    place
}

/// Starts a run, waits for a checkpoint and returns the run with its process.
fn start(place: &Place, words: &[&str]) -> (downshift::store::run_dir::RunDir, std::process::Child) {
    let running = place.command(words).stdout(Stdio::null()).spawn().unwrap();
    let run = wait_for("a checkpoint", || {
        place.newest().filter(|run| live_status(run).is_some_and(|status| status.durable_step.is_some()))
    });
    (run, running)
}

#[test]
fn a_typed_command_has_the_checkpoints_and_the_resume_of_its_profile() {
    let place = place();
    let words: Vec<&str> = ["run", "--headless", "--device", "cpu", "--"].into_iter().chain(WORDS).collect();
    let (run, mut running) = start(&place, &words);
    let command = run.run().unwrap().command.unwrap();
    assert_eq!(command.checkpoints.unwrap().pattern, "out/*-state");
    let resume = command.resume.unwrap().arguments;
    assert_eq!(resume, ["--resume={checkpoint}", "--skip_until_initial_step", "--initial_step={step}"]);
    fs::write(place.dir.path().join("enough"), "").unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(0));
}

#[test]
fn full_starts_the_command_as_typed_and_a_rung_sets_the_batch_of_the_data_set() {
    let place = place();
    let made: Vec<&str> = ["init", "--output", "run.yaml", "--"].into_iter().chain(WORDS).collect();
    place.succeed(&made);
    let file = place.dir.path().join("run.yaml");
    let half = "ladder:\n  - { name: half, relieves: [memory], set: { training.micro_batch: 2 } }\n";
    fs::write(&file, fs::read_to_string(&file).unwrap().replacen("ladder:\n", half, 1)).unwrap();
    let (run, mut running) = start(&place, &["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]);
    let seen = || fs::read_to_string(place.dir.path().join("seen")).unwrap_or_default();
    let full = seen();
    assert!(full.contains("'--output_dir=out', '--save_state', '--sdpa'] batch_size = 4 # fits\n"), "{full}");
    place.succeed(&["shift", "half"]);
    wait_status(&run, "steps on the rung", |status| status.rung == 1 && status.rungs[1].steps > 0);
    let rung = seen().lines().last().unwrap().to_owned();
    assert!(rung.ends_with("batch_size = 2 # fits"), "{rung}");
    // Its next states have the names of those before, so they are copied.
    for word in ["/adopted/files-", "', '--skip_until_initial_step', '--initial_step="] {
        assert!(rung.contains(word), "{word}: {rung}");
    }
    assert!(!journal_says(&run, "cannot start"));
    fs::write(place.dir.path().join("enough"), "").unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(0));
}
