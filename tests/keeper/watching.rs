//! The keeper's own monitoring, through the real program: climb plans, planned restarts, overdue checkpoints,
//! an idle GPU, a GPU that others use, its memory errors and heat.
#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use crate::helper::{Place, example, journal, journal_says, kill, parent_of, send_signal, wait_for, wait_status};
use downshift::store::reader::{Reader, live_status};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;

const ON_GPU: &str = "{ step_ms: 12, save_ms: 1, device: \"cuda:0 fake\" }";
const PLAN: &str = "climb: { plan: [{ rung: safe, steps: 120 }, { rung: accumulate, steps: 120 }, { rung: full }] }\n";

/// Creates a place with the GPU of this script.
fn with_card(script: &Value) -> Place {
    let mut place = Place::scripted();
    let library = place.dir.path().join("libfake_nvml.so");
    fs::copy(example("libfake_nvml.so"), &library).unwrap();
    play(&place, script);
    place.variables.push(("DOWNSHIFT_NVML_PATH", library));
    place
}

fn play(place: &Place, script: &Value) {
    let folder = place.dir.path();
    fs::write(folder.join("new"), script.to_string()).unwrap();
    fs::rename(folder.join("new"), folder.join("libfake_nvml.json")).unwrap();
}

fn told(place: &Place, words: &str) -> Vec<String> {
    let rows = journal(&place.newest().unwrap());
    rows.into_iter().map(|row| row.text).filter(|text| text.contains(words)).collect()
}

fn refusal(place: &Place, words: &[&str]) -> String {
    let out = place.output(words);
    assert_eq!(out.status.code(), Some(13), "{}", String::from_utf8_lossy(&out.stdout));
    String::from_utf8(out.stderr).unwrap()
}

#[test]
fn a_climb_plan_is_followed_from_its_first_stage_on_and_outlives_the_keeper() {
    let place = Place::scripted();
    place.script("{ step_ms: 8, save_ms: 1 }", PLAN);
    let shown = String::from_utf8(place.output(&["check", "run.yaml"]).stdout).unwrap();
    assert!(shown.contains("climb plan: safe for 120 steps, accumulate for 120 steps, then full"), "{shown}");
    let sets = ["--set", "checkpoint.every=20 steps", "--set", "checkpoint.proven_after=10"];
    let (mut child, run) = place.start(&sets);
    wait_status(&run, "the first stage", |status| {
        let plan = status.plan.clone().filter(|_| status.step > 20);
        plan.is_some_and(|plan| (plan.stage, plan.stages, plan.next.as_deref()) == (Some(1), 3, Some("accumulate")))
    });
    let status = wait_status(&run, "the second stage", |status| status.rung_name == "accumulate" && status.step > 150);
    kill(status.pid_keeper.unwrap());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let status = place.status_json();
    assert_eq!(
        (&status["rung_name"], &status["shifts"], &status["plan"]["stage"]),
        (&json!("full"), &json!(2), &json!(3))
    );
    let stages = told(&place, "climb plan: ");
    assert!(stages.iter().any(|text| text.starts_with("climb plan: safe → accumulate, stage 2 of 3: 120 steps done")));
    assert!(stages.iter().any(|text| text.starts_with("climb plan: accumulate → full, stage 3 of 3")), "{stages:?}");
    place.curve(400, 8);
}

#[test]
fn a_rung_that_is_asked_for_outranks_the_plan() {
    let place = Place::scripted();
    place.script("{ step_ms: 1, save_ms: 1 }", PLAN);
    let (mut child, _) = place.start(&["--rung", "1", "--set", "checkpoint.proven_after=1000"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let status = place.status_json();
    assert_eq!((&status["plan"]["stage"], &status["shifts"]), (&json!(2), &json!(0)), "nothing was proven: {status}");
}

#[test]
fn an_unreachable_rung_is_refused_with_the_knob_and_the_fix() {
    let place = Place::scripted();
    let wide = "  - { name: wide, set: { model.width: 64 } }\n";
    place.script("{ width: 32 }", wide);
    for verb in ["check", "run"] {
        let said = refusal(&place, &[verb, "run.yaml"]);
        for words in
            ["run.yaml:", "no shift reaches rung `wide`", "model.width 32 → 64", "`warm_start: true`", "variant"]
        {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
    place.script("{ width: 32 }", &wide.replace("set:", "warm_start: true, set:"));
    assert_eq!(place.output(&["check", "run.yaml"]).status.code(), Some(0));
    place.script("{ step_ms: 1 }", "climb: { plan: [{ rung: save, epochs: 0 }, { rung: full }] }\n");
    let said = refusal(&place, &["check", "run.yaml"]);
    assert!(said.contains("did you mean `safe`?") && said.contains("a stage of length 0"), "{said}");
}

#[test]
fn a_planned_restart_loses_no_step_and_uses_no_budget() {
    let place = Place::scripted();
    place.script("{ step_ms: 12, save_ms: 1 }", "watch: { restart_every: 1 s, restarts_in_window: 1 }\n");
    let (mut child, run) = place.start(&[]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let restarts = told(&place, "(watch.restart_every)");
    assert!(restarts.len() >= 4, "a line for the journal and one for the attempt, twice at least: {restarts:?}");
    let status = wait_status(&run, "the end", |status| status.pid_keeper.is_none());
    assert_eq!((status.restarts, status.shifts), (0, 0));
    let rows = place.rows();
    assert_eq!(rows.len(), 400, "no step was taken twice");
    place.curve(400, 8);
}

#[test]
fn an_overdue_checkpoint_is_requested_and_a_failed_one_is_a_hang() {
    let place = Place::scripted();
    let rhythm = ["--set", "checkpoint.every=never"];
    place.script("{ step_ms: 8, save_ms: 1 }", "watch: { checkpoint_age: 1 s }\n");
    let (mut child, _) = place.start(&rhythm);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!told(&place, "requesting one now (watch.checkpoint_age)").is_empty());
    assert!(place.printed().contains("requesting one now"), "headless output has it too");
    assert_eq!(place.status_json()["restarts"], 0);

    let place = Place::scripted();
    let model = "{ step_ms: 8, save_ms: 1, save_fails_from: 60, save_fails_to: 300 }";
    place.script(model, "watch: { checkpoint_age: 1 s, disk_free_mib: 0 }\n");
    let (mut child, run) = place.start(&["--set", "checkpoint.every=50 steps"]);
    wait_for("a hang", || journal_says(&run, "hang: the requested checkpoint cannot be saved").then_some(()));
    assert!(journal_says(&run, "the weights cannot be copied to the host"));
    place.output(&["stop"]);
    place.output(&["stop"]);
    let _ = child.wait();
}

#[test]
fn a_full_disk_that_delays_a_checkpoint_is_not_a_hang() {
    let place = Place::scripted();
    let model = "{ step_ms: 8, save_ms: 1, disk_full_from: 60, disk_full_to: 300 }";
    place.script(model, "watch: { checkpoint_age: 1 s, disk_free_mib: 0 }\n");
    let (mut child, run) = place.start(&["--set", "checkpoint.every=50 steps"]);
    let failed = wait_for("a save that fails", || live_status(&run)?.failed_saves);
    assert!(failed.step >= 60 && failed.why.contains("No space left on device"), "{failed:?}");
    wait_for("a save that does not", || live_status(&run).filter(|status| status.failed_saves.is_none()).map(drop));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(journal_says(&run, "the overdue checkpoint cannot be saved: No space left on device"));
    assert_eq!(place.status_json()["restarts"], 0);
    assert_eq!(place.rows().len(), 400, "no work was thrown away");
}

#[test]
fn a_run_that_no_longer_learns_is_reported_once_until_it_does() {
    let place = Place::scripted();
    let model =
        "{ step_ms: 1, save_ms: 1, eval_losses: [0.9, 0.5, 0.6, 0.5, 0.6, 0.5, 0.6, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9] }";
    place.script(model, "watch: { patience: 3 }\n");
    let (mut child, run) = place.start(&["--set", "training.steps=140"]);
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", place.printed());
    assert_eq!(told(&place, "no better evaluation").len(), 2, "one for each of two stalls");
    let status = wait_status(&run, "the end", |status| status.pid_keeper.is_none());
    assert_eq!(status.setback, None, "the last evaluation is the best");
    assert!(place.status_json()["setback"].is_null());

    let place = Place::scripted();
    place.script("{ step_ms: 1, save_ms: 1, eval_losses: [0.01, 0.5, 0.6, 0.7, 0.8, 0.9] }", "");
    let (mut child, _) = place.start(&["--set", "training.steps=70"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let rising = told(&place, "validation loss rising for 4 evaluations");
    assert_eq!(rising.len(), 1, "{rising:?}");
}

#[test]
fn an_idle_gpu_is_explained_and_training_continues() {
    let place = with_card(&json!({"nvmlDeviceGetUtilizationRates": [{"value": 2}]}));
    place.script(ON_GPU, "watch: { utilisation: { after: 1 s } }\n");
    let (mut child, _) = place.start(&[]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let idle = told(&place, "the GPU has been below 5 %");
    assert_eq!(idle.len(), 1, "{idle:?}");
    assert!(idle[0].contains("the host is the bottleneck") && idle[0].ends_with("training continues"), "{idle:?}");
    assert_eq!(place.status_json()["restarts"], 0);
}

#[test]
fn fused_kernels_that_are_off_are_named_as_the_reason_of_an_idle_gpu() {
    let place = with_card(&json!({"nvmlDeviceGetUtilizationRates": [{"value": 2}]}));
    place.script(ON_GPU, "watch: { utilisation: { after: 1 s } }\n");
    let (mut child, _) = place.start(&["--set", "training.fused_kernels=false"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let idle = told(&place, "the GPU has been below 5 %");
    assert_eq!(idle.len(), 1, "{idle:?}");
    assert!(idle[0].contains("fused kernels are off (training.fused_kernels: false)"), "{idle:?}");
}

/// Slows the steps down tenfold on a card in this condition; returns whether the keeper shifted for it, and the journal's words.
fn slowed_down(card: &Value, wsl: &str) -> (bool, Vec<String>) {
    let mut place = with_card(card);
    place.variables.push(("DOWNSHIFT_WSL", wsl.into()));
    place.script(ON_GPU, "watch: { spill: { after: 1 s } }\n");
    let words = ["--set", "training.steps=110", "--inject", "slow@60-90"];
    let (mut child, _) = place.start(&words);
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", place.printed());
    let shifts = told(&place, "shift down: full → accumulate, by the keeper: the GPU's memory has spilled");
    (!shifts.is_empty(), told(&place, "spilled"))
}

#[test]
fn memory_that_spilled_to_the_host_is_named_and_relieved_and_nothing_else_is_taken_for_it() {
    let card = |used: u64, throttle: u64| {
        json!({
            "nvmlDeviceGetMemoryInfo_v2": [{"value": {"total": 24_000_000_000_u64, "used": used}}],
            "nvmlDeviceGetCurrentClocksThrottleReasons": [{"value": throttle}],
        })
    };
    let (shifted, said) = slowed_down(&card(23_800_000_000, 0), "1");
    assert!(shifted && said.iter().any(|text| text.contains("No Sysmem Fallback")), "{said:?}");
    // The power limit (4), or heat (32), explains slow steps; so does nothing, with memory left.
    for (used, throttle) in [(23_800_000_000, 4), (23_800_000_000, 32), (20_000_000_000, 0)] {
        assert_eq!(
            slowed_down(&card(used, throttle), "1"),
            (false, Vec::new()),
            "{used} bytes, throttled by {throttle}"
        );
    }
    assert_eq!(slowed_down(&card(23_800_000_000, 0), "0"), (false, Vec::new()), "the driver of Linux spills nothing");
}

#[test]
fn almost_full_memory_of_the_host_is_told_once() {
    let place = Place::scripted();
    place.script("{ step_ms: 12, save_ms: 1 }", "watch: { ram: 0.001 }\n");
    let (mut child, _) = place.start(&[]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let full = told(&place, "is in use; the limit is 0 %");
    assert_eq!(full.len(), 1, "{full:?}");
}

#[test]
fn heat_full_memory_and_new_memory_errors_reach_journal_and_headless_output() {
    let card = |errors: u64| {
        json!({
            "nvmlDeviceGetTemperature": [{"value": 91}],
            "nvmlDeviceGetMemoryInfo_v2": [{"value": {"total": 24_000_000_000_u64, "used": 23_500_000_000_u64}}],
            "nvmlDeviceGetEccMode": [{"value": 1}],
            "nvmlDeviceGetTotalEccErrors": [{"value": errors}],
        })
    };
    let place = with_card(&card(0));
    place.script(ON_GPU, "");
    let (mut child, run) = place.start(&[]);
    wait_for("heat", || journal_says(&run, "the GPU is at 91 °C; the limit is 85 °C").then_some(()));
    play(&place, &card(2));
    wait_for("errors", || journal_says(&run, "2 new uncorrectable ECC errors").then_some(()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    for words in ["the GPU is at 91 °C", "98 % of the GPU's memory is in use", "2 new uncorrectable ECC errors"] {
        assert_eq!(told(&place, words).len(), 1, "{words}");
        assert!(place.printed().contains(words), "{words} in headless output");
    }
    // The same GPU, and a run that does not use it.
    let place = with_card(&card(0));
    place.script("{ step_ms: 8, save_ms: 1, device: cpu }", "");
    let (mut child, _) = place.start(&[]);
    wait_status(&place.newest().unwrap(), "readings", |status| status.step > 100);
    play(&place, &card(2));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    for words in ["°C", "of the GPU's memory", "ECC"] {
        assert_eq!(told(&place, words), [""; 0], "a card that the run does not use");
    }
}

#[test]
fn memory_errors_while_the_keeper_is_dead_are_an_alarm_of_the_next_one() {
    let card = |errors: u64| json!({"nvmlDeviceGetEccMode": [{"value": 1}], "nvmlDeviceGetTotalEccErrors": [{"value": errors}]});
    let place = with_card(&card(3));
    place.script(ON_GPU, "");
    let (mut child, run) = place.start(&["--set", "training.steps=100000"]);
    let seen = || Reader::open(&run).ok()?.fact::<Value>("ecc_seen")?["uncorrected"].as_u64();
    wait_for("the first count", || seen().filter(|count| *count == 3));
    let keeper = wait_status(&run, "steps", |status| status.step > 20).pid_keeper.unwrap();
    let parent = parent_of(keeper).unwrap();
    send_signal(parent, Signal::STOP);
    kill(keeper);
    play(&place, &card(5));
    send_signal(parent, Signal::CONT);
    wait_for("the alarm", || journal_says(&run, "2 new uncorrectable ECC errors").then_some(()));
    assert_eq!(told(&place, "uncorrectable ECC").len(), 1, "the three from before the run raise no alarm");
    place.output(&["stop"]);
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn the_limit_on_free_disk_space_is_a_setting() {
    let short = |limit: &str| {
        let place = Place::scripted();
        place.script("{ step_ms: 12, save_ms: 1 }", &format!("watch: {{ disk_free_mib: {limit} }}\n"));
        let (mut child, run) = place.start(&["--set", "training.steps=100000"]);
        // Every reading has the free space, so one is enough.
        wait_for("readings", || Reader::open(&run).ok()?.samples(3).ok().filter(|rows| rows.len() == 3));
        place.output(&["stop"]);
        assert_eq!(child.wait().unwrap().code(), Some(3));
        let words = "are free on the run's disk; the limit is";
        (told(&place, words).len(), place.printed().matches(words).count())
    };
    assert_eq!(short("1000000000"), (1, 1), "once in the journal, once in headless output");
    assert_eq!(short("0"), (0, 0));
}

#[test]
fn the_preflight_list_names_the_other_processes_on_the_gpu() {
    let card = |used: u64, processes: Value| {
        json!({
            "nvmlDeviceGetMemoryInfo_v2": [{"value": {"total": 24_000_000_000_u64, "used": used}}],
            "nvmlDeviceGetComputeRunningProcesses_v3": [{"value": processes}],
        })
    };
    let place = with_card(&card(8_000_000_000, json!([{"pid": 4711, "used": 7_000_000_000_u64}])));
    place.script(ON_GPU, "");
    let listed = || {
        let out = place.output(&["check", "run.yaml", "--preflight", "--device", "cuda:0"]);
        assert_eq!(out.status.code(), Some(0), "a warning does not refuse a start");
        String::from_utf8(out.stdout).unwrap()
    };
    let busy = listed();
    assert!(busy.contains("warn  others          7.5 GiB of 22.4 GiB in use by processes 4711"), "{busy}");
    play(&place, &card(100_000_000, json!([])));
    let free = listed();
    assert!(free.contains("ok    others          95.4 MiB of 22.4 GiB in use"), "{free}");
}

#[test]
fn on_a_shared_card_a_run_waits_for_its_own_memory_and_says_who_holds_the_rest() {
    const GB: u64 = 1_000_000_000;
    // The worker holds 6 GB of 24, another process the rest of the memory in use.
    let card = |others: u64, worker: Option<u32>| {
        let ours = if worker.is_some() { 6 * GB } else { 0 };
        let worker = worker.map(|pid| json!({"pid": pid, "used": 6 * GB}));
        let list: Vec<Value> = worker.into_iter().chain([json!({"pid": 1, "used": others})]).collect();
        json!({
            "nvmlDeviceGetMemoryInfo_v2": [{"value": {"total": 24 * GB, "used": others + ours}}],
            "nvmlDeviceGetComputeRunningProcesses_v3": [{"value": list}],
        })
    };
    for (others, code) in [(12 * GB, 0), (20 * GB, 4)] {
        let place = with_card(&card(GB, None));
        place.script(&ON_GPU.replace("12", "30"), "watch: { ending: { vram_wait: 3 s } }\n");
        let (mut child, run) = place.start(&[]);
        let worker = wait_status(&run, "steps", |status| status.step >= 20).pid_worker.unwrap();
        play(&place, &card(GB, Some(worker)));
        wait_status(&run, "its peak", |status| status.rungs[0].vram_bytes == Some(6 * GB));
        // Another job grows far beyond the memory used before the run, and then the worker dies.
        play(&place, &card(others, None));
        kill(worker);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{:?}", told(&place, ""));
        if code == 4 {
            let why = told(&place, "needs attention: rung full needs 5722 MiB of GPU memory, and 3814 MiB are free");
            assert!(why[0].contains("(pid 1) holds 19073 MiB"), "{why:?}");
        }
    }
}
