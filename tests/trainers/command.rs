//! Run files of commands on the command line: checked, shown, approved, and typed without a file.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

mod best;
mod checkpoints;
mod first_checkpoint;
mod own_count;
mod resumes;
mod settings_files;
mod shifts;
mod skips;
mod unread;

use crate::helper::{Place, kill_keepers, wait_for, wait_parent_end, wait_status};
use downshift::protocol::control::RunState;
use downshift::store::reader::live_status;
use std::fs;
use std::process::{Child, Output, Stdio};

const FILE: &str = "name: sft\ntask: command\ncommand: [sh, train.sh, '--batch={training.micro_batch}']\n\
    training: { micro_batch: 4 }\nladder:\n\
    \x20 - { name: small, relieves: [memory], set: { training.micro_batch: 2 } }\n\
    \x20 - { name: words, relieves: [memory], set: { environment.MODE: careful } }\n";

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn place_with(text: &str) -> Place {
    let place = Place::scripted();
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    place
}

/// Runs a file headless, on real processes.
fn launch(text: &str) -> (Place, Child) {
    let place = Place::real();
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    let words = ["run", "run.yaml", "--trust", "--headless", "--device", "cpu"];
    let child = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    (place, child)
}

#[test]
fn check_shows_the_knobs_of_the_file_its_level_and_everything_it_starts() {
    let place = place_with(FILE);
    let out = place.output(&["check", "run.yaml", "--device", "cpu"]);
    let text = shown(&out);
    assert_eq!(out.status.code(), Some(0), "{text}");
    for part in [
        "sft (command)",
        "training.micro_batch",
        "resume: the command cannot resume",
        "needs your approval for:",
        "sh train.sh '--batch={training.micro_batch}'",
        "MODE=careful",
        "ladder[1].set.environment.MODE",
        "sft is valid",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("precision") && !text.contains("optimizer"), "no knob that the file does not write: {text}");
}

#[test]
fn rungs_that_only_change_the_environment_do_not_widen_the_table() {
    let rungs: Vec<String> = (1..=4)
        .map(|rung| {
            format!(
                "  - {{ name: env{rung}, relieves: [memory], set: {{ environment.PYTORCH_ALLOC_CONF: \
                 'expandable_segments:True,garbage_collection_threshold:0.{rung},max_split_size_mb:{rung}28' }} }}\n"
            )
        })
        .collect();
    let head = FILE.split("ladder:").next().unwrap();
    let place = place_with(&format!("{head}ladder:\n{}", rungs.concat()));
    let out = place.output(&["check", "run.yaml", "--device", "cpu"]);
    let text = shown(&out);
    assert_eq!(out.status.code(), Some(0), "{text}");
    let table: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    assert!(table.len() > 3 && table.iter().all(|line| line.chars().count() <= 130), "{text}");
    assert!(table.iter().any(|line| line.matches('…').count() == 4), "each value says that it is cut: {text}");
    assert!(text.contains("garbage_collection_threshold:0.4,max_split_size_mb:428"), "in full below: {text}");
}

#[test]
fn a_missing_program_or_directory_is_found_before_the_start() {
    for (line, wrong) in [
        (
            "command: [no-such-program-9, x, '{training.micro_batch}']",
            "no program called `no-such-program-9` is on the PATH",
        ),
        ("command: [./train.sh, '{training.micro_batch}']", "train.sh does not exist"),
        ("command: [sh, '{training.micro_batch}']\ndirectory: elsewhere", "elsewhere does not exist"),
        ("command: [python3, trian.py, '{training.micro_batch}']", "trian.py is missing in"),
    ] {
        let text = FILE.replace("command: [sh, train.sh, '--batch={training.micro_batch}']", line);
        let place = place_with(&text);
        let checked = place.output(&["check", "run.yaml"]);
        assert_eq!(checked.status.code(), Some(0), "the file is valid: {line}");
        let is_seen = line.contains("elsewhere") || line.contains("trian.py");
        assert_eq!(shown(&checked).contains("cannot start here"), is_seen, "{}", shown(&checked));
        for words in [&["check", "run.yaml", "--preflight"][..], &["run", "run.yaml", "--trust", "--headless"]] {
            let out = place.output(words);
            assert_eq!(out.status.code(), Some(13), "{}", shown(&out));
            assert!(shown(&out).contains(wrong), "{}", shown(&out));
        }
        assert!(place.newest().is_none(), "nothing was started");
    }
}

#[test]
fn check_names_arguments_that_the_script_does_not_declare() {
    let resume = "resume: { arguments: ['--resume_from={checkpoint}'] }\ncheckpoints: { match: 'out/*.pt' }\n";
    let place = place_with(&format!("name: x\ntask: command\ncommand: [python3, train.py, --lrr, '1']\n{resume}"));
    let script = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.add_argument('--resume')\n";
    fs::write(place.dir.path().join("train.py"), format!("{script}print(p.parse_args())\n")).unwrap();
    let said = place.succeed(&["check", "run.yaml"]);
    assert!(said.contains("declares no argument --lrr, as far as its source shows; did you mean `--lr`?"), "{said}");
    assert!(said.contains("declares no argument --resume_from, as far"), "{said}");
    let listed = shown(&place.output(&["check", "run.yaml", "--preflight"]));
    assert!(listed.contains("declares no argument --lrr"), "{listed}");
    let launcher = "p.add_argument('rest', nargs=argparse.REMAINDER)\nprint(p.parse_args())\n";
    let elsewhere = "from installed import add_common\nadd_common(p)\nprint(p.parse_args())\n";
    for takes_more in ["print(p.parse_known_args())\n", launcher, elsewhere] {
        fs::write(place.dir.path().join("train.py"), format!("{script}{takes_more}")).unwrap();
        assert!(!place.succeed(&["check", "run.yaml"]).contains("declares no"), "{takes_more}");
    }
    fs::write(place.dir.path().join("train.py"), format!("{script}print(p.parse_args())\n")).unwrap();
    fs::write(place.dir.path().join("train.sh"), "[ \"$1\" = --fast ] && exec python3 train.py --lr 1\n").unwrap();
    fs::write(place.dir.path().join("run.yaml"), "name: x\ntask: command\ncommand: [sh, train.sh, --fast]\n").unwrap();
    assert!(!place.succeed(&["check", "run.yaml"]).contains("declares no"), "the shell script takes it");
}

#[test]
fn a_command_in_a_file_needs_approval_and_another_number_does_not_ask_again() {
    let place = place_with(FILE);
    let refused = place.output(&["run", "run.yaml", "--headless"]);
    assert_eq!(refused.status.code(), Some(13));
    assert!(shown(&refused).contains("train.sh"), "{}", shown(&refused));
    assert!(place.newest().is_none(), "nothing was started");
    place.output(&["run", "run.yaml", "--headless", "--trust", "--device", "cpu"]);
    let approved = |words: &[&str]| {
        let words: Vec<&str> =
            ["check", "run.yaml", "--preflight", "--device", "cpu"].iter().chain(words).copied().collect();
        shown(&place.output(&words)).contains("approved") && place.output(&words).status.code() == Some(0)
    };
    assert!(approved(&[]) && approved(&["--set", "training.micro_batch=8"]));
    assert!(!approved(&["--set", "environment.LD_PRELOAD=x.so"]));
    assert!(!approved(&["--set", "ladder.small.environment.LD_PRELOAD=x.so"]), "nor on a rung");
}

#[test]
fn a_typed_command_needs_no_file_and_no_approval() {
    let place = Place::scripted();
    let out = place.output(&["run", "--headless", "--device", "cpu", "--", "sh", "-c", "exit 0 # {x} {{y"]);
    assert!(!shown(&out).contains("needs your approval"), "{}", shown(&out));
    let run = place.newest().unwrap_or_else(|| panic!("{}", shown(&out)));
    assert!(run.name().starts_with("sh-"), "{}", run.name());
    let text = fs::read_to_string(run.file("run.yaml")).unwrap();
    let config = run.run().unwrap();
    let spec = config.command.unwrap();
    assert!(spec.command[0].starts_with('/') && spec.command[0].ends_with("/sh"), "{text}");
    assert_eq!(spec.command[1..], ["-c", "exit 0 # {{x}} {{{{y"], "{text}");
    assert_eq!(spec.directory, place.dir.path().canonicalize().unwrap(), "{text}");
    for burn in ["micro_batch", "precision", "lr:", "evaluation"] {
        assert!(!text.contains(burn), "{burn} in {text}");
    }
    let trusted = fs::read_to_string(place.dir.path().join("state/downshift/trusted")).unwrap();
    assert_eq!(trusted.lines().count(), 1, "resume does not ask for it: {trusted}");
}

#[test]
fn a_file_and_a_typed_command_exclude_each_other() {
    let place = place_with(FILE);
    let out = place.output(&["run", "run.yaml", "--", "true"]);
    assert_eq!(out.status.code(), Some(2), "{}", shown(&out));
}

#[test]
fn a_run_has_the_name_that_its_start_gives_it() {
    let place = place_with("name: plain\ntask: command\ncommand: [sh, -c, 'true']\n");
    for from in [&["run.yaml", "--trust"][..], &["--", "true"]] {
        let words = [&["run", "--headless", "--device", "cpu", "--name", "low-rate"], from].concat();
        let out = place.output(&words);
        let name = place.newest().unwrap().name();
        assert!(name.starts_with("low-rate-"), "{name}: {}", shown(&out));
        fs::remove_dir_all(place.newest().unwrap().path()).unwrap();
    }
    let out = place.output(&["run", "--name", "a/b", "--", "true"]);
    assert_eq!(out.status.code(), Some(13), "{}", shown(&out));
    assert!(shown(&out).contains("a name consists of letters"), "{}", shown(&out));
}

#[test]
fn the_shipped_command_runs_to_its_end_and_shows_its_level() {
    let place = Place::real();
    let out =
        place.output(&["run", "command", "--trust", "--headless", "--device", "cpu", "--set", "training.steps=60"]);
    assert_eq!(out.status.code(), Some(0), "{}", shown(&out));
    let status = place.status_json();
    assert_eq!((&status["state"], &status["level"], &status["step"]), (&"finished".into(), &1.into(), &60.into()));
    assert!(shown(&place.output(&["status"])).contains("  resume "));
    let run = place.newest().unwrap();
    assert!(run.file("out/checkpoint-50/state").is_file(), "the script writes where the run file says");
}

#[test]
fn a_stopped_command_that_nothing_resumes_stays_stopped() {
    let place = place_with("name: plain\ntask: command\ncommand: [sh, train.sh]\n");
    fs::write(place.dir.path().join("train.sh"), "echo 'step 1 loss 0.5'; sleep 60\n").unwrap();
    let words = ["run", "run.yaml", "--trust", "--headless", "--device", "cpu"];
    let mut running = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    wait_for("a step", || place.newest().filter(|run| live_status(run).is_some_and(|status| status.step > 0)));
    let stopped = shown(&place.output(&["stop"]));
    running.wait().unwrap();
    let anew = "`downshift run run.yaml --trust --headless --device cpu`";
    assert!(stopped.contains(anew) && !stopped.contains("downshift resume"), "{stopped}");
    let out = place.output(&["resume", "--headless"]);
    let said = shown(&out);
    assert!(out.status.code() == Some(2) && said.contains("nothing of it can be resumed"), "{said}");
    assert!(said.contains(anew), "{said}");
    assert_eq!(place.status_json()["state"], "stopped", "{said}");
    let log = shown(&place.output(&["triage", "plain"]));
    assert!(log.contains("No known failure in "), "the name of a run stands for its log: {log}");
}

#[test]
fn a_failed_command_is_explained_and_its_undeclared_checkpoints_are_named() {
    let script = "mkdir -p out; echo 'step 1 loss 0.5'; touch out/w.txt; echo x > out/step_1.pt; echo 'step 2 loss 0.4'\n\
                  echo x > out/step_2.pt; echo 'no space for me'; exit 7\n";
    let run = |script: &str, more: &str| {
        let place = place_with(&format!("name: plain\ntask: command\ncommand: [sh, train.sh]\n{more}"));
        fs::write(place.dir.path().join("train.sh"), script).unwrap();
        let said = shown(&place.output(&["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]));
        (place, said)
    };
    let (place, said) = run(script, "");
    for wanted in [
        "the script wrote 2 outputs that may be checkpoints, the newest out/step_2.pt, and no run file declares that",
        "`checkpoints: { match: \"out/step_*.pt\" }`",
        "worker.log line 3: no space for me",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let named = shown(&place.output(&["triage", "plain"]));
    for wanted in ["needs attention\nattempt 1 ended: unknown\n  exit code 7\n", "worker.log names no other cause."] {
        assert!(named.contains(wanted), "{wanted}: {named}");
    }
    let absent = place.output(&["triage", "absent"]);
    assert!(shown(&absent).contains("absent is neither a file nor a run in "), "{}", shown(&absent));
    let other = "checkpoints: { match: 'out/ckpt_*.pt' }\nresume: { arguments: [\"{checkpoint}\"] }\n";
    let (_, said) = run(script, other);
    assert!(said.contains("but `checkpoints.match: out/ckpt_*.pt` matched nothing; `out/step_*.pt` would"), "{said}");
    // Nothing would have resumed a run that ended well, either.
    let (_, said) = run(&script.replace("exit 7", "exit 0"), other);
    assert!(said.contains("finished at step 2") && said.contains("matched nothing; `out/step_*.pt` would"), "{said}");
    let (place, said) = run(script, "checkpoints: { match: 'out/step_*.pt' }\n");
    assert!(!said.contains("may be checkpoints"), "{said}");
    drop(place);
}

#[test]
fn a_start_from_the_beginning_says_how_many_steps_are_redone() {
    let place = place_with("name: over\ntask: command\ncommand: [sh, train.sh]\nrestart: from_start\n");
    let script =
        "for step in 1 2 3 4; do echo \"step $step loss 0.5\"; done\n[ -e again ] && exit 0\ntouch again; kill -9 $$\n";
    fs::write(place.dir.path().join("train.sh"), script).unwrap();
    let said = shown(&place.output(&["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]));
    let redone = "the command cannot resume: starts again from step 0, 4 steps are redone";
    assert_eq!(said.matches("starts again from step 0").count(), 1, "{said}");
    assert!(said.contains(redone) && said.contains("finished at step 4"), "{said}");
}

#[test]
fn a_step_that_begins_again_in_each_epoch_is_added_up_or_the_journal_says_why_not() {
    let run = |script: &str| {
        let place = place_with("name: epochs\ntask: command\ncommand: [sh, train.sh]\n");
        fs::write(place.dir.path().join("train.sh"), script).unwrap();
        shown(&place.output(&["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]))
    };
    let said = run("for e in 1 2 3; do for s in 5 10; do echo \"Epoch $e/3, Step $s/10, Loss: 0.5\"; done; done\n");
    assert!(said.contains("finished at step 30") && !said.contains("begin again"), "{said}");
    let said = run("for e in 1 2 3; do for s in 5 10; do echo \"step $s loss 0.5\"; done; done\n");
    assert!(said.contains("finished at step 10") && said.contains("begin again at 5 after step 10"), "{said}");
    let said = run("for s in 64 128 192 256; do echo \"Train Epoch: 1 [$s/6000 (1%)]  Loss: 0.5\"; done\n");
    assert!(said.contains("finished at step 4") && !said.contains("no step"), "{said}");
    let said = run("for s in 1 2 3 4; do echo \"loss 0.5\"; done\n");
    assert!(said.contains("the output names losses and no step, so the curve stays empty"), "{said}");
}

#[test]
fn a_step_of_another_counter_leaves_the_curve_as_it_is() {
    let place = place_with("name: wild\ntask: command\ncommand: [sh, train.sh]\n");
    let script = "for s in $(seq 1 40); do echo \"step $s loss 0.5\"\n\
                  if [ $s = 20 ]; then echo 'step 123456789 loss 7'; fi; done\n";
    fs::write(place.dir.path().join("train.sh"), script).unwrap();
    let said = shown(&place.output(&["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]));
    assert!(said.contains("finished at step 40"), "{said}");
    let steps: Vec<u64> = place.rows().iter().map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=40).collect::<Vec<_>>(), "{said}");
}

/// Ignores SIGTERM, as a script may while it loads its libraries, and takes its steps then.
const LATE: &str = r#"name: late
task: command
command: [sh, "{attempt_dir}/train.sh"]
environment: { OUT: "{run_dir}/out", STEPS: "{training.steps}" }
training: { steps: 5 }
checkpoints: { match: "{run_dir}/out/checkpoint-*", complete: state }
resume: { arguments: ["{checkpoint}"] }
save: { signal: USR1, within: 30 s }
files:
  train.sh: |
    trap '' TERM
    mkdir -p "$OUT" && touch "$OUT/loading"
    sleep 0.7
    for step in 1 2 3 4 5; do echo "step $step loss 1.5"; done
    exit 0
"#;

#[test]
fn a_stop_before_the_script_handles_signals_says_so_and_counts_the_steps_that_follow() {
    for (steps, code, state) in [("5", 0, "finished"), ("500", 3, "stopped")] {
        let place = Place::real();
        fs::write(place.dir.path().join("run.yaml"), LATE).unwrap();
        let words = ["--trust", "--device", "cpu", "--set", &format!("training.steps={steps}")];
        let (mut child, run) = place.start(&words);
        wait_for("the script", || run.file("out/loading").exists().then_some(()));
        place.output(&["stop"]);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{steps}: {}", place.printed());
        let status = place.status_json();
        assert_eq!((&status["state"], &status["step"]), (&state.into(), &5.into()), "{}", place.printed());
        let told = "the command is ended without a save: no process of the command handles SIGUSR1 yet";
        assert!(place.printed().contains(told), "{}", place.printed());
    }
}

#[test]
fn the_list_of_runs_says_why_a_command_failed() {
    let place = Place::scripted();
    let fails = "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1";
    let out = place.output(&["run", "--headless", "--device", "cpu", "--", "sh", "-c", fails]);
    assert!(!out.status.success(), "{}", shown(&out));
    let run = place.newest().unwrap();
    wait_parent_end(&run);
    let row = place.succeed(&["runs"]);
    assert!(row.contains("No module named 'torch'"), "{row}");
    // A ladder of one rung counts nothing.
    let status = place.succeed(&["status"]);
    assert!(!status.contains("(rung ") && status.contains("  full  "), "{status}");
}

#[test]
fn a_command_without_a_keeper_is_unattended_until_it_is_taken_over() {
    let place = place_with("name: alone\ntask: command\ncommand: [sh, train.sh]\n");
    let script = "for step in $(seq 60); do echo \"step $step loss 0.5\"; sleep 0.2; done\n";
    fs::write(place.dir.path().join("train.sh"), script).unwrap();
    let (child, run) = place.start(&["--trust", "--device", "cpu"]);
    let before = wait_status(&run, "steps", |status| status.step >= 3);
    kill_keepers(child, &before);
    let alone = wait_status(&run, "no keeper", |status| status.state == RunState::Unattended);
    assert_eq!((alone.pid_keeper, alone.pid_worker), (None, before.pid_worker));
    let resume = format!("`downshift resume {}` takes it over", run.name());
    assert!(place.succeed(&["status"]).contains(&resume) && place.succeed(&["runs"]).contains("unattended"));
    let said = place.succeed(&["resume", "--headless"]);
    assert!(said.contains("finished at step 60"), "{said}");
    assert_eq!(live_status(&run).unwrap().attempts, 1, "the same process");
}
