//! Standalone measurement of workers: the real commands with the scripted worker, and where a GPU is requested,
//! with a fake one (examples/fake_nvml).
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod command;

use crate::helper::{Place, example, kill, stop_run, wait_for, wait_state};
use downshift::protocol::control::RunState;
use downshift::store::kernels::decisions_of;
use downshift::store::lock::living_owner;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Output;

/// Creates a place with its own fake GPU, with 6 GB of 24 GB in use.
fn with_card() -> Place {
    let mut place = Place::scripted();
    let library = place.dir.path().join("libfake_nvml.so");
    std::fs::copy(example("libfake_nvml.so"), &library).unwrap();
    place.variables.push(("DOWNSHIFT_NVML_PATH", library));
    place
}

fn parsed(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {}", words(out)))
}

fn words(out: &Output) -> String {
    [&out.stdout[..], &out.stderr].map(String::from_utf8_lossy).concat()
}

#[test]
fn rungs_below_one_that_cannot_run_are_measured_and_prepared() {
    let place = with_card();
    place.script("{ trouble: [{ step: 2, rungs: 1, class: device_out_of_memory, message: no room }] }", "");
    let out = place.output(&["plan", "run.yaml", "--device", "cuda:0", "--measure", "3", "--format", "json"]);
    assert_eq!(out.status.code(), Some(10), "{}", words(&out));
    let plan = parsed(&out);
    let [full, accumulate, safe] = [0, 1, 2].map(|rung| &plan["rungs"][rung]);
    assert!(full["failed"].as_str().unwrap().contains("no room") && full["measured"].is_null(), "{full}");
    assert_eq!(full["verdict"], "does_not_fit");
    for rung in [accumulate, safe] {
        assert_eq!((&rung["measured"]["steps"], &rung["failed"]), (&3.into(), &Value::Null), "{rung}");
    }
    let out = place.output(&["prepare", "run.yaml", "--device", "cuda:0"]);
    assert_eq!(out.status.code(), Some(10), "{}", words(&out));
    for said in ["no room", "rung accumulate: first step", "rung safe: first step", "2 of 3 rungs prepared"] {
        assert!(words(&out).contains(said), "{said}: {}", words(&out));
    }
}

#[test]
fn the_peak_of_a_short_measurement_is_found_once_the_gpu_is_free_of_the_previous_worker() {
    let place = with_card();
    let vram = |bytes: u64| format!("vram: {{ from_step: 2, bytes: {bytes}, lingers: 3 }}");
    // Allocates late enough for the previous worker's memory to be released by then.
    let less = format!(
        "ladder:\n  - {{ name: less, warm_start: true, set: {{ model: {{ step_ms: 400, {} }} }} }}\n",
        vram(400_000_000)
    );
    std::fs::write(
        place.dir.path().join("run.yaml"),
        format!(
            "name: scripted\ntask: scripted\nmodel: {{ {} }}\ntraining: {{ steps: 100000, micro_batch: 8 }}\n\
             optimizer: {{ lr: 0.1 }}\n{less}",
            vram(3_000_000_000)
        ),
    )
    .unwrap();
    let out = place.output(&["plan", "run.yaml", "--device", "cuda:0", "--measure", "2", "--format", "json"]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    let peaks = [0, 1].map(|rung| parsed(&out)["rungs"][rung]["measured"]["peak_bytes"].as_u64());
    assert_eq!(peaks, [Some(3_000_000_000), Some(400_000_000)]);
}

#[test]
fn a_worker_that_ends_silently_is_not_a_measurement() {
    let place = Place::scripted();
    place.script("{ trouble: [{ step: 2, signal: 9 }] }", "");
    let out = place.output(&["plan", "run.yaml", "--device", "cpu", "--rung", "full", "--measure", "3"]);
    assert_eq!(out.status.code(), Some(1), "{}", words(&out));
    assert!(words(&out).contains("ended after 1 of 3 steps"), "{}", words(&out));
}

#[test]
fn a_worker_on_the_cpu_stays_within_its_budget() {
    let place = Place::scripted();
    place.script("{ step_ms: 20 }", "");
    let fit = |budget| {
        let fit = ["plan", "run.yaml", "--device", "cpu", "--rung", "full", "--fit", "--measure", "2"];
        place.output(&[&fit[..], &["--gpu", budget, "--format", "json"]].concat())
    };
    let out = fit("1MB");
    assert_eq!(out.status.code(), Some(10), "{}", words(&out));
    assert!(words(&out).contains("more than 977 KiB") && parsed(&out)["largest"].is_null(), "{}", words(&out));
    // Nothing reports an error of a worker that the kernel kills; its size tells why.
    place.script("{ step_ms: 300, trouble: [{ step: 2, signal: 9 }] }", "");
    let out = fit("1TiB");
    assert_eq!(out.status.code(), Some(1), "{}", words(&out));
    assert!(words(&out).contains("ended after 1 of 2 steps"), "{}", words(&out));
}

#[test]
fn a_device_that_a_run_uses_is_measured_only_on_request() {
    let place = Place::scripted();
    place.script("{ step_ms: 20 }", "");
    let (mut child, run) = place.start(&["--device", "cpu", "--set", "training.steps=1000000"]);
    wait_state(&run, RunState::Training);
    let plan = ["plan", "run.yaml", "--device", "cpu", "--rung", "full", "--measure", "1"];
    let fit = ["plan", "run.yaml", "--device", "cpu", "--rung", "full", "--fit"];
    let compare = ["compare-knob", "run.yaml", "optimizer.lr", "0.1", "0.2", "--steps", "1", "--device", "cpu"];
    for command in [&plan[..], &fit, &compare] {
        let out = place.output(command);
        assert_eq!(out.status.code(), Some(2), "{}", words(&out));
        for said in ["cpu is in use by", &run.name(), "downshift stop", "--another"] {
            assert!(words(&out).contains(said), "{said}: {}", words(&out));
        }
    }
    for command in [&plan[..], &compare] {
        let out = place.output(&[command, &["--another"]].concat());
        assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    }
    stop_run(&place, &mut child);
    assert_eq!(place.output(&plan).status.code(), Some(0));
}

#[test]
fn a_card_that_a_run_uses_is_prepared_only_on_request() {
    let place = with_card();
    place.script("{ step_ms: 20 }", "");
    let (mut child, run) = place.start(&["--device", "cuda:0", "--set", "training.steps=1000000"]);
    wait_state(&run, RunState::Training);
    let prepare = ["prepare", "run.yaml", "--device", "cuda:0"];
    let out = place.output(&prepare);
    assert_eq!(out.status.code(), Some(2), "{}", words(&out));
    assert!(words(&out).contains(&format!("is in use by {}", run.name())), "{}", words(&out));
    let out = place.output(&[&prepare[..], &["--another"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    stop_run(&place, &mut child);
}

#[test]
fn only_leftovers_of_a_killed_measurement_are_removed_by_the_next_one() {
    let mut place = Place::scripted();
    let temporary = place.dir.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    place.variables.push(("TMPDIR", temporary.clone()));
    place.script("{ step_ms: 200 }", "");
    let folders =
        || -> Vec<PathBuf> { std::fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().path()).collect() };
    let measure = |steps| ["plan", "run.yaml", "--device", "cpu", "--rung", "full", "--measure", steps];
    let mut long = place.command(&measure("100000")).spawn().unwrap();
    let worker = wait_for("the worker", || {
        let run = std::fs::read_dir(folders().pop()?).ok()?.flatten().find(|entry| entry.path().is_dir())?;
        Some(run.path().join("worker.lock")).filter(|lock| living_owner(lock).is_some())
    });
    let of_long = folders();
    assert_eq!(place.output(&measure("1")).status.code(), Some(0));
    assert_eq!(folders(), of_long, "it is still at work");
    kill(long.id());
    long.wait().unwrap();
    wait_for("the end of its worker", || living_owner(&worker).is_none().then_some(()));
    assert_eq!(folders(), of_long, "who is killed removes nothing");
    assert_eq!(place.output(&measure("1")).status.code(), Some(0));
    assert_eq!(folders(), Vec::<PathBuf>::new());
}

#[test]
fn a_run_begins_with_the_decisions_of_prepare() {
    let place = with_card();
    place.script("{ tunes: fast }", "");
    let out = place.output(&["prepare", "run.yaml", "--device", "cuda:0"]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    place.script("{}", "");
    let out = place.output(&["run", "run.yaml", "--headless", "--device", "cuda:0"]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    for of in ["training", "evaluation"] {
        let decision = decisions_of(place.newest().unwrap().path()).join(of);
        assert_eq!(std::fs::read_to_string(&decision).unwrap_or_default(), "fast", "{of}");
    }
}
