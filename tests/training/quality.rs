//! Quality that is measured beside the training: its rhythm, its limits, and that training never waits for it.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use crate::helper::{
    Place, cut_power, journal, journal_says, kill, stop_run, wait_for, wait_parent_end, wait_state, wait_status,
};
use downshift::protocol::control::{RunState, Status};
use downshift::store::checkpoint;
use downshift::store::reader::{Reader, live_status};
use downshift::store::run_dir::RunDir;
use std::collections::BTreeMap;
use std::fs;
use std::process::Child;

/// A run of the scripted worker that saves every ten steps.
fn run_file(steps: u64, quality: &str) -> String {
    format!(
        "name: scripted\ntask: scripted\nmodel: {{ step_ms: 4, save_ms: 1 }}\n\
         training: {{ steps: {steps}, micro_batch: 8 }}\noptimizer: {{ lr: 0.1 }}\n\
         checkpoint: {{ every: 10 steps, keep_last: 1, proven_after: 5, best: {{ metric: quality.fid, goal: max }} }}\n\
         quality: {{ {quality}, command: [sh, score.sh, '{{step}}', '{{checkpoint}}'] }}\n"
    )
}

/// Starts a run whose checkpoints this script measures. Each call is listed in `calls`; `sleeper` sleeps under a name
/// that the place finds.
fn start(steps: u64, quality: &str, script: &str) -> (Place, Child, RunDir) {
    let place = Place::scripted();
    write_script(&place, script);
    fs::write(place.dir.path().join("run.yaml"), run_file(steps, quality)).unwrap();
    let (child, run) = place.start(&["--trust"]);
    (place, child, run)
}

fn write_script(place: &Place, script: &str) {
    let text = format!("echo \"$1\" >> calls\nsleeper=\"$PWD/sleeper\"\nnumber=$(wc -l < calls)\n{script}\n");
    fs::write(place.dir.path().join("score.sh"), text).unwrap();
    std::os::unix::fs::symlink("/bin/sleep", place.dir.path().join("sleeper")).unwrap();
}

/// Returns the steps of the checkpoints that were measured, in the order of their measurements.
fn calls(place: &Place) -> Vec<u64> {
    let text = fs::read_to_string(place.dir.path().join("calls")).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Returns the stored values of a metric by step.
fn values(run: &RunDir, name: &str) -> BTreeMap<u64, f64> {
    let rows = Reader::open(run).unwrap().evals().unwrap();
    rows.iter().filter_map(|row| Some((row.eval.step, row.eval.value(name)?))).collect()
}

/// Reports whether anything that a script started is alive.
fn sleepers(place: &Place) -> bool {
    let name = place.dir.path().join("sleeper").display().to_string();
    let line = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    place.processes().iter().any(|pid| line(pid).starts_with(&name))
}

fn measuring(run: &RunDir, what: &str) -> Status {
    wait_status(run, what, |status| status.pid_quality.is_some())
}

#[test]
fn each_border_is_measured_once_and_a_resumed_run_repeats_nothing() {
    let (place, mut child, run) = start(230, "every: 40 steps", "echo fid $1");
    wait_for("a measurement", || journal_says(&run, "quality of checkpoint").then_some(()));
    stop_run(&place, &mut child);
    wait_parent_end(&run);
    let before = calls(&place);
    let resumed = place.output(&["resume", "--headless"]);
    assert_eq!(resumed.status.code(), Some(0), "{}", String::from_utf8_lossy(&resumed.stderr));
    let mut calls = calls(&place);
    assert!(!before.is_empty() && calls.starts_with(&before), "{before:?} and {calls:?}");
    let values = values(&run, "quality.fid");
    // The stop may cut off the last measurement before it; then its border is measured again.
    if !values.contains_key(&calls[before.len() - 1]) {
        calls.remove(before.len() - 1);
    }
    assert_eq!(calls.last(), Some(&230), "a run that has finished is measured at its end");
    let borders: Vec<u64> = calls[..calls.len() - 1].iter().map(|step| step / 40).collect();
    assert!(borders[0] > 0 && borders.windows(2).all(|pair| pair[0] < pair[1]), "{calls:?}");
    assert_eq!(values, calls.iter().map(|step| (*step, *step as f64)).collect());
    let best = live_status(&run).unwrap().best.unwrap();
    assert_eq!((best.step, best.value), (230, 230.0));
    let kept: Vec<u64> = checkpoint::list(run.path()).iter().map(|entry| entry.step).collect();
    assert!(kept.contains(&230), "{kept:?}");
    let listed = place.succeed(&["checkpoints", "list"]);
    assert!(listed.lines().any(|line| line.contains("quality.fid 230") && line.contains("best")), "{listed}");
}

#[test]
fn training_goes_on_while_a_measurement_hangs_and_its_checkpoint_stays_until_the_time_limit() {
    let hangs = "[ $number = 1 ] && { \"$sleeper\" 600 & exec \"$sleeper\" 600; }\necho fid 1";
    let (place, mut child, run) = start(100_000, "every: 20 steps, timeout: 3 s", hangs);
    let begun = measuring(&run, "a measurement");
    let measured = wait_for("a call", || calls(&place).first().copied());
    let later = wait_status(&run, "more steps", |status| status.durable_step > Some(measured + 40));
    assert_eq!(later.pid_quality, begun.pid_quality, "it was measured all the time");
    assert!(run.path().join(checkpoint::relative_path(measured)).is_dir(), "the measured one stays");
    let steps: Vec<u64> = checkpoint::list(run.path()).iter().map(|entry| entry.step).collect();
    assert!(!steps.contains(&(measured + 10)), "others go: {measured} of {steps:?}");
    let stat = fs::read_to_string(format!("/proc/{}/stat", begun.pid_quality.unwrap())).unwrap();
    let nice = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(16)).unwrap();
    assert_eq!(nice, "19", "the lowest priority");
    let told = format!("quality of checkpoint {measured} not measured: it took longer than 3 s");
    wait_for("the time limit", || journal_says(&run, &told).then_some(()));
    wait_for("the end of what it started", || (!sleepers(&place)).then_some(()));
    wait_for("the next measurement", || (!values(&run, "quality.fid").is_empty()).then_some(()));
    let gone = || !run.path().join(checkpoint::relative_path(measured)).is_dir();
    wait_for("its deletion", || gone().then_some(()));
    assert_eq!(live_status(&run).unwrap().attempts, 1, "the worker did not notice");
    stop_run(&place, &mut child);
}

#[test]
fn rubbish_and_failures_cost_a_line_and_nothing_that_a_command_started_survives() {
    let script = "case $number in\n1) echo 'so much for numbers'; echo torn >&2;;\n2) echo fid 3; echo boom >&2; exit 3;;\n\
        3) \"$sleeper\" 600 & setsid env -i \"$sleeper\" 601 & echo fid=nan; echo clip=0.5;;\n\
        *) \"$sleeper\" 602;;\nesac";
    let (place, mut child, run) = start(100_000, "every: 10 steps", script);
    for told in [
        "sh printed no number on stdout, such as `fid 12.3` or {\"fid\": 12.3} (torn)",
        "sh failed: exit code 3 (boom)",
        "not measured: fid is NaN",
        "clip 0.5000",
    ] {
        wait_for(told, || journal_says(&run, told).then_some(()));
    }
    wait_for("the fourth", || (calls(&place).len() == 4).then_some(()));
    let left = |seconds: &str| {
        let line = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        place.processes().iter().any(|pid| line(pid).ends_with(&format!("sleeper\0{seconds}\0")))
    };
    assert!(!left("600") && !left("601"), "they outlived their measurement");
    assert_eq!(values(&run, "quality.clip").len(), 1);
    assert!(values(&run, "quality.fid").is_empty(), "numbers of a program that failed do not count");
    assert_eq!(fs::read_to_string(run.file("quality.log")).unwrap(), "", "of the newest that ended");
    stop_run(&place, &mut child);
    wait_for("the end of the fourth", || (!sleepers(&place)).then_some(()));
    let warned = journal(&run).iter().filter(|row| row.text.contains("not measured")).count();
    assert_eq!(warned, 3, "a measurement that a stop ends is none that failed: {:#?}", journal(&run));
}

#[test]
fn a_killed_keeper_leaves_no_measurement_behind_and_the_next_one_measures_again() {
    let script = "[ $number -le 2 ] && { \"$sleeper\" 600 & setsid \"$sleeper\" 600; }\necho fid $1";
    let (place, mut child, run) = start(100_000, "every: 20 steps", script);
    for killed_before in [0, 1] {
        let before = measuring(&run, "a measurement");
        wait_for("a call", || (calls(&place).len() == killed_before + 1 && sleepers(&place)).then_some(()));
        let (keeper, quality) = (before.pid_keeper.unwrap(), before.pid_quality.unwrap());
        // The second time nobody is left to end the command.
        if killed_before == 0 {
            kill(keeper);
        } else {
            cut_power(&[keeper, quality]);
        }
        wait_status(&run, "another keeper", |status| {
            status.pid_keeper.is_some_and(|pid| pid != keeper) && status.state == RunState::Training
        });
    }
    wait_for("a measurement", || (!values(&run, "quality.fid").is_empty()).then_some(()));
    assert!(!sleepers(&place) && calls(&place).len() >= 3);
    assert!(!journal_says(&run, "not measured"), "{:#?}", journal(&run));
    stop_run(&place, &mut child);
}

#[test]
fn a_finished_run_waits_for_its_last_measurement_unless_it_is_told_to_stop() {
    let (place, mut child, run) = start(60, "every: never", "exec \"$sleeper\" 600");
    let waits = |status: &Status| status.state == RunState::Stopping && status.step == 60;
    let status = wait_status(&run, "the last measurement", waits);
    assert!(status.pid_worker.is_none() && status.exit_code.is_none(), "{status:?}");
    let why = status.why.unwrap_or_default();
    assert!(why.contains("training is over; measuring the quality of checkpoint 60"), "{why}");
    wait_for("its command", || sleepers(&place).then_some(()));
    kill(status.pid_keeper.unwrap());
    let again = wait_status(&run, "another keeper", |next| waits(next) && next.pid_keeper != status.pid_keeper);
    assert_eq!((again.attempts, again.pid_worker), (1, None), "nothing is trained again");
    wait_for("its command", || (calls(&place).len() == 2).then_some(()));
    let stopped = place.output(&["stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", place.printed());
    wait_state(&run, RunState::Finished);
    assert!(journal_says(&run, "ended without the last measurement") && journal_says(&run, "finished at step 60"));
    assert!(!sleepers(&place));
}

#[test]
fn the_checkpoints_of_a_command_are_measured_and_ranked() {
    let place = Place::real();
    write_script(&place, "echo '{\"fid\": '$(cat \"$2/state\")', \"mode\": \"x\"}'");
    let text = r#"name: measured
task: command
command: [sh, "{attempt_dir}/train.sh"]
environment: { OUT: "{run_dir}/out", RUN: "{run_dir}" }
checkpoints: { match: "{run_dir}/out/checkpoint-*", complete: state, keep_last: 1 }
resume: { environment: { FROM: "{checkpoint}" } }
checkpoint: { best: { metric: quality.fid, goal: min } }
quality: { every: 1 step, command: [sh, ../score.sh, "{step}", "{checkpoint}"], directory: sub }
files:
  train.sh: |
    step=0
    for fid in 9 3 8; do
      step=$((step + 1))
      echo "step $step loss 1.0"
      mkdir -p "$OUT/checkpoint-$step" && echo $fid > "$OUT/checkpoint-$step/state"
      until grep -q $step "$RUN/../../sub/calls" 2> /dev/null; do sleep 0.05; done
    done
"#;
    fs::create_dir(place.dir.path().join("sub")).unwrap();
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    let shown = place.succeed(&["check", "run.yaml", "--device", "cpu"]);
    assert!(shown.contains("quality, every 1 step and at the end, beside the training for at most 600 s"), "{shown}");
    let out = place.output(&["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let run = place.newest().unwrap();
    assert_eq!(values(&run, "quality.fid"), BTreeMap::from([(1, 9.0), (2, 3.0), (3, 8.0)]), "{out:?}");
    let best = live_status(&run).unwrap().best.unwrap();
    assert_eq!((best.step, best.value), (2, 3.0));
    let compared = place.succeed(&["checkpoints", "compare"]);
    assert!(
        compared.lines().next().is_some_and(|line| line.contains("step         2  quality.fid 3.0000")),
        "{compared}"
    );
}

#[test]
fn a_program_that_is_missing_is_found_before_the_start() {
    let place = Place::scripted();
    let file = place.dir.path().join("run.yaml");
    for (wrong, told) in [
        ("[no-such-program-9]", "in section `quality`: no program called `no-such-program-9` is on the PATH"),
        ("[sh, x], directory: elsewhere", "elsewhere does not exist"),
        ("[sh, '{knobs.x}']", "quality.command[1]: `{knobs.x}` has no value in a measurement"),
    ] {
        let text = run_file(60, "every: 1 epoch");
        let text = text.replace("[sh, score.sh, '{step}', '{checkpoint}']", wrong);
        fs::write(&file, text).unwrap();
        let out = place.output(&["check", "run.yaml", "--preflight"]);
        let shown = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        assert!(out.status.code() == Some(13) && shown.contains(told), "{shown}");
    }
}

#[cfg(feature = "train")]
#[test]
fn the_metrics_of_a_task_are_measured_ranked_and_compared() {
    let place = Place::real();
    let digits = place.succeed(&["show", "digits"]);
    let quality = "quality: { every: 1 epoch, metrics: [accuracy_by_class, calibration] }\n";
    fs::write(place.dir.path().join("run.yaml"), format!("{digits}\n{quality}")).unwrap();
    let sets = ["training.epochs=2", "checkpoint.every=20 steps", "checkpoint.best={ metric: quality.calibration }"];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let words: Vec<&str> = ["run", "run.yaml", "--headless", "--device", "cpu"].into_iter().chain(sets).collect();
    let out = place.succeed(&words);
    let status = place.status_json();
    let metrics = &status["eval"]["metrics"];
    let metric = |name: &str| metrics[name].as_f64().unwrap_or_else(|| panic!("{name}: {status:#}\n{out}"));
    let classes: Vec<f64> = (0..10).map(|class| metric(&format!("quality.accuracy.{class}"))).collect();
    let mean = classes.iter().sum::<f64>() / 10.0;
    assert!((metric("quality.balanced_accuracy") - mean).abs() < 1e-9);
    assert_eq!(classes.iter().copied().fold(1.0, f64::min).to_bits(), metric("quality.worst_class_accuracy").to_bits());
    // The classes are of similar size.
    assert!((mean - metric("accuracy")).abs() < 0.02, "{metrics}");
    assert!((0.0..1.0).contains(&metric("quality.calibration")));
    assert_eq!(status["best"]["metric"], "quality.calibration");
    let compared = place.succeed(&["checkpoints", "compare"]);
    assert!(compared.lines().next().unwrap().contains("quality.calibration"), "{compared}");
    let wrong = quality.replace("calibration", "calibratoin");
    fs::write(place.dir.path().join("wrong.yaml"), format!("{digits}\n{wrong}")).unwrap();
    let refused = place.output(&["check", "wrong.yaml"]);
    let told = "quality.metrics[1]: task vision has no quality metric `calibratoin`; did you mean `calibration`?";
    assert!(String::from_utf8_lossy(&refused.stderr).contains(told), "{refused:?}");
}
