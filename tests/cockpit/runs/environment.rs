//! The environment of a run: what a start keeps, and what a later start restores.

use super::text;
use crate::helper::{Place, cut_power, journal, journal_says, wait_for, wait_state};
use downshift::protocol::control::RunState;
use downshift::store::owners;
use downshift::store::reader::live_status;
use downshift::store::run_dir::RunDir;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A token as the hub gives them; it must be in no file of a run.
const TOKEN: &str = "hf_abcdefghijklmnopqrstuvwxyz012345";
const PASSWORD: &str = "correct-horse";

/// A command that writes its variables into a file `seen/FOLDER-ATTEMPT`, and trains on.
const SCRIPT: &str = "\
folder=$(dirname \"$(dirname \"$(dirname \"$DOWNSHIFT_ATTEMPT_DIR\")\")\")
env -0 > seen/.$$
mv seen/.$$ \"seen/$(basename \"$folder\")-$(basename \"$DOWNSHIFT_ATTEMPT_DIR\")\"
while :; do echo step $((n += 1)) loss 1; sleep 0.05; done
";

type Variables = BTreeMap<String, String>;

fn place_with(more: &str) -> Place {
    let place = Place::scripted();
    fs::create_dir(place.dir.path().join("seen")).unwrap();
    fs::write(place.dir.path().join("train.sh"), SCRIPT).unwrap();
    let script = place.dir.path().join("train.sh");
    let file = format!("name: env\ntask: command\ncommand: [sh, {}]\nrestart: from_start\n{more}", script.display());
    fs::write(place.dir.path().join("run.yaml"), file).unwrap();
    place
}

/// Starts the run in this folder with these variables, and waits until it trains.
fn begin(place: &Place, folder: &Path, variables: &[(&str, &str)]) -> (Child, RunDir) {
    let mut command = place.command(&["run", "run.yaml", "--headless", "--trust", "--another", "--runs-dir"]);
    command.arg(folder).envs(variables.iter().copied()).stdout(Stdio::null());
    let child = command.spawn().unwrap();
    let run = wait_for("a run directory", || RunDir::find(folder, None).ok());
    wait_state(&run, RunState::Training);
    (child, run)
}

/// Returns the variables of the command in an attempt.
fn seen(place: &Place, run: &RunDir, attempt: u64) -> Variables {
    let folder = run.path().parent().unwrap().file_name().unwrap().to_str().unwrap();
    let file = place.dir.path().join(format!("seen/{folder}-{attempt}"));
    let text = wait_for("its variables", || fs::read_to_string(&file).ok());
    let pairs = text.split_terminator('\0').map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns the start command of the systemd unit, with the unit's variables.
fn words_of_unit(unit: &str) -> (Vec<String>, Vec<String>) {
    let words = |line: &str| -> Vec<String> {
        line.split(' ').map(|word| word.trim_matches('"').replace("%%", "%").replace("$$", "$")).collect()
    };
    let lines = |key: &'static str| unit.lines().filter_map(move |line| line.strip_prefix(key));
    let variables = lines("Environment=").flat_map(words).collect();
    (variables, lines("ExecStart=").flat_map(words).collect())
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

fn stop(place: &Place, run: &RunDir, child: &mut Child) {
    let out = place.output(&["stop", run.path().to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out));
    child.wait().unwrap();
    wait_for("the end of the run", || {
        (live_status(run)?.pid_keeper.is_none() && owners::parent_record(run).is_none()).then_some(())
    });
}

#[test]
fn after_a_reboot_runs_of_every_folder_go_on_in_the_environment_of_their_start() {
    let place = place_with("");
    let home = place.dir.path().join("home");
    fs::create_dir(&home).unwrap();
    let path = format!("{}:/usr/bin:/bin", place.dir.path().join("venv/bin").display());
    let secret_url = format!("postgres://me:{PASSWORD}@db/runs");
    let variables = |flag: &'static str| {
        [
            ("FLAG", flag),
            ("HF_HOME", "/data/hf"),
            ("HOME", home.to_str().unwrap()),
            ("LD_LIBRARY_PATH", "/usr/lib/wsl/lib"),
            ("LINES_OF_TEXT", "one\n\"two\"\n"),
            ("OMP_NUM_THREADS", "1"),
            ("PATH", path.as_str()),
            ("VIRTUAL_ENV", "/data/venv"),
            ("HF_TOKEN", TOKEN),
            ("STORAGE", secret_url.as_str()),
            ("TMUX", "/tmp/tmux,1,0"),
        ]
    };
    let folders = ["runs", "elsewhere"].map(|name| place.dir.path().join(name));
    let runs = [("a", &folders[0]), ("b", &folders[1])].map(|(flag, folder)| begin(&place, folder, &variables(flag)));
    let before = [0, 1].map(|index| seen(&place, &runs[index].1, 1));
    assert_eq!(before[0]["HF_TOKEN"], TOKEN, "the first start has its secrets");
    let unit = place.succeed(&["doctor", "--autostart", "systemd"]);

    cut_power(&place.processes());
    let runs = runs.map(|(mut client, run)| {
        client.wait().unwrap();
        run
    });
    wait_for("the end of every process", || place.processes().is_empty().then_some(()));
    // A dying process has no command line before it lets go of its locks.
    wait_for("the end of every lock", || runs.iter().all(|run| !owners::is_kept(run)).then_some(()));
    let (given, words) = words_of_unit(&unit);
    let mut entry = Command::new("env");
    entry.args(["-i", &format!("HOME={}", home.display()), "PATH=/usr/bin:/bin"]).args(given).args(words);
    let out = entry.current_dir("/").stdin(Stdio::null()).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", text(&out));
    assert_eq!(text(&out).matches("continues from").count(), 2, "{}", text(&out));

    for (run, before) in runs.iter().zip(before) {
        let after = seen(&place, run, 2);
        for (name, value) in variables("") {
            let is_kept = !["HF_TOKEN", "STORAGE", "TMUX"].contains(&name);
            let expected = before.get(name).filter(|_| is_kept);
            assert_eq!(after.get(name), expected, "{name}, which was {value}");
        }
        let rows = journal(run);
        for words in [["VIRTUAL_ENV", "as at the start again"], ["HF_TOKEN", "Secrets are not kept"]] {
            let says = rows.iter().any(|row| words.iter().all(|part| row.text.contains(part)));
            assert!(says, "{words:?}: {rows:?}");
        }
        let kept = run.file("environment.json");
        assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
        for file in files_below(run.path()) {
            let bytes = fs::read(&file).unwrap();
            for secret in [TOKEN, PASSWORD] {
                let found = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
                assert!(!found, "{} holds {secret}", file.display());
            }
        }
    }
}

#[test]
fn a_resume_in_another_shell_names_what_differs_and_trusts_no_file_from_elsewhere() {
    let place = place_with("environment: { GIVEN: file }\n");
    let folder = place.dir.path().join("runs");
    let at_start = [("FLAG", "a"), ("GIVEN", "start"), ("HIDDEN", "one"), ("OMP_NUM_THREADS", "2")];
    let (mut child, run) = begin(&place, &folder, &at_start);
    assert_eq!(seen(&place, &run, 1)["GIVEN"], "file", "the run file always wins");
    stop(&place, &run, &mut child);
    let resume = |variables: &[(&str, &str)]| {
        let mut command = place.command(&["resume", "--headless", "--another"]);
        command.envs(variables.iter().copied()).stdout(Stdio::null()).spawn().unwrap()
    };

    let mut child = resume(&[("GIVEN", "shell"), ("HIDDEN", "two"), ("OMP_NUM_THREADS", "4")]);
    let after = seen(&place, &run, 2);
    let values = ["FLAG", "GIVEN", "HIDDEN", "OMP_NUM_THREADS"].map(|name| after[name].as_str());
    assert_eq!(values, ["a", "file", "two", "4"]);
    let named = "the environment is not that of the start: OMP_NUM_THREADS is 4, was 2; HIDDEN differs";
    assert!(journal_says(&run, named), "{:?}", journal(&run));
    assert!(journal_says(&run, "environment: FLAG is as at the start again"), "{:?}", journal(&run));
    stop(&place, &run, &mut child);

    // As an archive may bring it along: a file of the user, closed to others.
    let planted = fs::read_to_string(run.file("environment.json")).unwrap().replace("\"HIDDEN\"", "\"PLANTED\"");
    fs::write(run.file("environment.json"), planted).unwrap();
    let mut child = resume(&[("FLAG", "b")]);
    let after = seen(&place, &run, 3);
    assert_eq!((after.get("PLANTED"), after["FLAG"].as_str()), (None, "b"));
    let why = "environment.json was not written by you on this machine";
    assert!(journal_says(&run, why), "{:?}", journal(&run));
    stop(&place, &run, &mut child);

    let mut child = resume(&[]);
    assert_eq!(seen(&place, &run, 4)["FLAG"], "b", "the start after that one is kept again");
    stop(&place, &run, &mut child);
}
