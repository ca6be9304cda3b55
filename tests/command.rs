//! Run files of commands on the command line: checked, shown, approved, and typed without a file.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

mod helper;

use downshift::protocol::control::CheckpointRow;
use downshift::store::reader::{Reader, live_status};
use helper::{Place, stop_run, wait_for, wait_parent_end};
use std::fs;
use std::process::{Output, Stdio};

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

#[test]
fn check_shows_the_knobs_of_the_file_its_level_and_everything_it_starts() {
    let place = place_with(FILE);
    let out = place.output(&["check", "run.yaml", "--device", "cpu"]);
    let text = shown(&out);
    assert_eq!(out.status.code(), Some(0), "{text}");
    for part in [
        "sft (command)",
        "training.micro_batch",
        "level 0: nothing is resumed",
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
        assert_eq!(place.output(&["check", "run.yaml"]).status.code(), Some(0), "{line}");
        for words in [&["check", "run.yaml", "--preflight"][..], &["run", "run.yaml", "--trust", "--headless"]] {
            let out = place.output(words);
            assert_eq!(out.status.code(), Some(13), "{}", shown(&out));
            assert!(shown(&out).contains(wrong), "{}", shown(&out));
        }
        assert!(place.newest().is_none(), "nothing was started");
    }
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
fn the_shipped_command_runs_to_its_end_and_shows_its_level() {
    let place = Place::real();
    let out =
        place.output(&["run", "command", "--trust", "--headless", "--device", "cpu", "--set", "training.steps=60"]);
    assert_eq!(out.status.code(), Some(0), "{}", shown(&out));
    let status = place.status_json();
    assert_eq!((&status["state"], &status["level"], &status["step"]), (&"finished".into(), &1.into(), &60.into()));
    assert!(shown(&place.output(&["status"])).contains("  level 1, "));
    let run = place.newest().unwrap();
    assert!(run.file("out/checkpoint-50/state").is_file(), "the script writes where the run file says");
}

/// Saves at every step, waits until the checkpoint is adopted, and reports its evaluation before or after that.
const RANKED: &str = r#"name: ranked
task: command
command: [sh, "{attempt_dir}/train.sh"]
environment: { OUT: "{run_dir}/out", RUN: "{run_dir}" }
checkpoints: { match: "{run_dir}/out/checkpoint-*", complete: state, keep_last: 1 }
resume: { environment: { FROM: "{checkpoint}" } }
files:
  train.sh: |
    step=0
    for fid in 9 3 8 7 6; do
      step=$((step + 1))
      echo "step $step loss 1.0"
      if [ $step != 2 ]; then echo "step $step eval_fid: $fid"; fi
      mkdir -p "$OUT/checkpoint-$step" && echo $step > "$OUT/checkpoint-$step/state"
      until [ -e "$RUN/adopted/step-00000000$step.json" ]; do sleep 0.05; done
      if [ $step = 2 ]; then echo "step $step eval_fid: $fid"; fi
    done
"#;

/// Runs a file to its end. Returns the place and the rows of its checkpoints.
fn checkpoints_of(text: &str) -> (Place, Vec<CheckpointRow>) {
    let place = Place::real();
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    let out = place.output(&["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]);
    assert_eq!(out.status.code(), Some(0), "{}", shown(&out));
    let rows = Reader::open(&place.newest().unwrap()).unwrap().checkpoints().unwrap();
    (place, rows)
}

#[test]
fn evaluations_rank_the_checkpoints_of_a_command_and_the_best_outlives_keep_last() {
    for (ranking, kept, best) in [
        ("{ best: { metric: fid, goal: min } }", vec![1, 2, 5], Some((2, 3.0))),
        // Without `keep_best` only the newest stays, and the oldest, which is the next to be proven.
        ("{ best: { metric: fid, goal: min }, keep_best: false }", vec![1, 5], Some((5, 6.0))),
        ("{ best: { metric: fid, goal: max } }", vec![1, 5], Some((1, 9.0))),
        ("{ keep_best: true }", vec![1, 5], None),
    ] {
        let (place, rows) = checkpoints_of(&format!("{RANKED}checkpoint: {ranking}\n"));
        let there: Vec<u64> = rows.iter().filter(|row| row.kept).map(|row| row.step).collect();
        assert_eq!(there, kept, "{ranking}: {rows:?}");
        let marked = rows.iter().find(|row| row.best).map(|row| (row.step, row.metrics["fid"]));
        assert_eq!(marked, best, "{ranking}: {rows:?}");
        let run = place.newest().unwrap();
        let files: Vec<u64> = (1..=5).filter(|step| run.file(&format!("out/checkpoint-{step}")).exists()).collect();
        assert_eq!(files, kept, "{ranking}");
    }
}

#[test]
fn checkpoints_lists_verifies_compares_and_prunes_those_of_a_command() {
    let (place, _) = checkpoints_of(
        &RANKED
            .replace(", keep_last: 1", "")
            .replace("name: ranked", "name: ranked\ncheckpoint: { best: { metric: fid, goal: min } }"),
    );
    let run = place.newest().unwrap();
    let said = |words: &[&str]| {
        let out = place.output(&[&["checkpoints"], words].concat());
        (out.status.code(), shown(&out))
    };
    let (code, listed) = said(&["list"]);
    assert_eq!((code, listed.lines().count()), (Some(0), 5), "{listed}");
    let best: Vec<&str> = listed.lines().filter(|line| line.contains("  best  ")).collect();
    assert!(matches!(best[..], [line] if line.contains("step         2") && line.contains("fid 3")), "{listed}");
    assert!(listed.contains(&run.file("out/checkpoint-2").display().to_string()), "{listed}");
    let (code, verified) = said(&["verify"]);
    assert_eq!((code, verified.matches("whole").count()), (Some(0), 5), "{verified}");
    let (code, ranked) = said(&["compare", "--last", "4"]);
    let order: Vec<&str> = ranked.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!((code, order), (Some(0), vec!["2", "5", "4", "3"]), "{ranked}");
    let (code, refused) = said(&["copy", "--to", "elsewhere"]);
    assert!(code == Some(14) && refused.contains("files of its command"), "{refused}");

    let damaged = run.file("out/checkpoint-5/state");
    fs::write(&damaged, "6\n").unwrap();
    fs::remove_file(run.file("adopted/step-000000003.json")).unwrap();
    let (code, verified) = said(&["verify"]);
    assert_eq!(code, Some(14), "{verified}");
    assert!(verified.contains("step         5  BROKEN") && verified.contains("step         3  MISSING"), "{verified}");

    // The damaged one does not count as the newest, and is left to the user.
    let text = fs::read_to_string(run.file("run.yaml")).unwrap();
    fs::write(run.file("run.yaml"), text.replace("complete: state", "complete: state\n  keep_last: 1")).unwrap();
    let there = || (1..=5).filter(|step| run.file(&format!("out/checkpoint-{step}")).exists()).collect::<Vec<u64>>();
    let (code, pruned) = said(&["prune"]);
    assert!(code == Some(0) && pruned.contains("left for your review"), "{pruned}");
    assert_eq!(there(), [1, 2, 3, 4, 5], "the oldest, the best and the newest whole one stay: {pruned}");
    fs::write(&damaged, "5\n").unwrap();
    let (_, pruned) = said(&["prune"]);
    assert!(pruned.contains("deleted step 4"), "{pruned}");
    assert_eq!(there(), [1, 2, 3, 5], "3 is not the run's any more: {pruned}");
}

#[test]
fn a_command_whose_checkpoints_are_all_damaged_is_not_started_over_unless_that_is_allowed() {
    let text = RANKED.replace(", keep_last: 1", "").replace("    done\n", "    done\n    sleep 60\n");
    let place = Place::real();
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    let words = ["run", "run.yaml", "--trust", "--headless", "--device", "cpu"];
    let mut running = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let run =
        wait_for("five checkpoints", || place.newest().filter(|run| run.file("adopted/step-000000005.json").exists()));
    stop_run(&place, &mut running);
    wait_parent_end(&run);
    let states = || (1..=5).map(|step| fs::read_to_string(run.file(&format!("out/checkpoint-{step}/state"))).unwrap());
    (1..=5).for_each(|step| fs::write(run.file(&format!("out/checkpoint-{step}/state")), "mine").unwrap());
    let out = place.output(&["resume", "--headless", "--trust"]);
    assert_eq!(out.status.code(), Some(14), "{}", shown(&out));
    assert!(states().all(|state| state == "mine"), "nothing was overwritten: {}", shown(&out));
    let log = fs::read_to_string(run.file("worker.log")).unwrap();
    assert!(log.contains("of step 5") && log.contains("restart: from_start"), "{log}");

    let file = fs::read_to_string(run.file("run.yaml")).unwrap();
    fs::write(run.file("run.yaml"), file.replace("restart: never", "restart: from_start")).unwrap();
    let mut running = place.command(&["resume", "--headless", "--trust"]).stdout(Stdio::null()).spawn().unwrap();
    wait_for("a new start", || states().any(|state| state != "mine").then_some(()));
    stop_run(&place, &mut running);
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
    let run = |more: &str| {
        let place = place_with(&format!("name: plain\ntask: command\ncommand: [sh, train.sh]\n{more}"));
        fs::write(place.dir.path().join("train.sh"), script).unwrap();
        let said = shown(&place.output(&["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]));
        (place, said)
    };
    let (place, said) = run("");
    for wanted in [
        "the script wrote 2 outputs that may be checkpoints, the newest out/step_2.pt, and nothing declares them",
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
    let (_, said) = run(other);
    assert!(said.contains("but `checkpoints.match: out/ckpt_*.pt` matched nothing; `out/step_*.pt` would"), "{said}");
    let (place, said) = run("checkpoints: { match: 'out/step_*.pt' }\n");
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
    assert!(said.contains("the output names losses and no step"), "{said}");
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
fn a_script_finds_the_folder_that_is_named_for_its_outputs() {
    let place = Place::real();
    let file = "name: outs\ntask: command\ncommand: [sh, -c, 'echo saved > \"$0/first\"', '{run_dir}/out']\n";
    fs::write(place.dir.path().join("run.yaml"), file).unwrap();
    let out = place.output(&["run", "run.yaml", "--headless", "--trust", "--device", "cpu"]);
    assert_eq!(out.status.code(), Some(0), "{}", shown(&out));
    assert_eq!(fs::read_to_string(place.newest().unwrap().file("out/first")).unwrap(), "saved\n");
}

#[test]
fn a_checkpoint_without_a_number_has_the_step_at_which_it_was_written() {
    let place = Place::real();
    let script = "i=0; while [ $i -lt 130 ]; do i=$((i + 1)); sleep 0.02; echo step $i loss 0.5; \
                  if [ $((i % 50)) = 0 ]; then echo $i > $0/part; mv $0/part $0/last; fi; done";
    let file = format!(
        "name: saves\ntask: command\ncommand: [sh, -c, '{script}', '{{run_dir}}/out']\n\
         checkpoints: {{ match: '{{run_dir}}/out/last', copy: true }}\nresume: {{}}\n"
    );
    fs::write(place.dir.path().join("run.yaml"), file).unwrap();
    let out = place.output(&["run", "run.yaml", "--headless", "--trust", "--device", "cpu"]);
    assert_eq!(out.status.code(), Some(0), "{}", shown(&out));
    let rows = Reader::open(&place.newest().unwrap()).unwrap().checkpoints().unwrap();
    let steps: Vec<u64> = rows.iter().map(|row: &CheckpointRow| row.step).collect();
    assert!(steps.contains(&100) && steps.iter().all(|step| step % 50 == 0), "{steps:?}");
}
