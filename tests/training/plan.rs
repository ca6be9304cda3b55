//! The memory plan, the comparison of a knob and `prepare`, as a user runs them, with the real trainer on the CPU.
#![cfg(feature = "train")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use crate::helper::{Place, kill, wait_for, wait_for_background};
use downshift::store::lock::living_owner;
use serde_json::Value;
use std::process::Stdio;

fn json(place: &Place, args: &[&str]) -> Value {
    let out = place.output(args);
    let words = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(0), "{args:?}: {words}");
    serde_json::from_slice(&out.stdout).unwrap()
}

fn refusal(place: &Place, args: &[&str]) -> (Option<i32>, String) {
    let out = place.output(args);
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

fn part(rung: &Value, name: &str) -> u64 {
    rung["foreseen"][name].as_u64().unwrap_or_else(|| panic!("{name}: {rung}"))
}

#[test]
fn every_shipped_run_file_has_a_plan_for_a_card_that_is_not_here() {
    let place = Place::real();
    for config in ["digits", "text", "lora", "finetune", "stable", "sizes"] {
        let plan = json(&place, &["plan", config, "--gpu", "16GiB", "--format", "json"]);
        assert_eq!((&plan["version"], &plan["gpu"]), (&1.into(), &true.into()));
        assert_eq!(plan["card"]["total_bytes"].as_u64(), Some(16 << 30));
        let rungs = plan["rungs"].as_array().unwrap();
        assert!(rungs.len() > 1, "{config}");
        for rung in rungs {
            assert_eq!(rung["verdict"], "fits", "{rung}");
            assert_eq!(part(rung, "gradients"), 4 * part(rung, "trained"));
            let total = rung["total_bytes"].as_u64().unwrap();
            assert!(total > part(rung, "overhead") + part(rung, "weights") + part(rung, "optimizer"), "{rung}");
            assert!(part(rung, "activations") > 0, "{rung}");
            // Visible from the shapes alone: a head with as many channels as there are samples hides the logits.
            assert!(part(rung, "logits") > 0 || config == "sizes", "{rung}");
            assert!(part(rung, "largest_micro_batch") >= rung["micro_batch"].as_u64().unwrap());
        }
    }
}

#[test]
fn state_is_exact_and_a_rungs_plan_shows_what_it_relieves() {
    let place = Place::real();
    let plan = json(&place, &["plan", "text", "--device", "cpu", "--format", "json"]);
    let rungs = plan["rungs"].as_array().unwrap();
    // 829 696 parameters, all trained, two moments each; there may be constants besides the weights.
    let parameters = 829_696;
    let constants = |rung: &Value, width: u64| part(rung, "weights").checked_sub(width * parameters).unwrap();
    assert_eq!((part(&rungs[0], "parameters"), part(&rungs[0], "trained")), (parameters, parameters));
    assert!(constants(&rungs[0], 4) < 64 << 10);
    assert_eq!(part(&rungs[0], "optimizer"), 8 * parameters);
    assert_eq!(part(&rungs[0], "overhead") >> 20, 10);
    let total = |name: &str| {
        let rung = rungs.iter().find(|rung| rung["name"] == name).unwrap();
        rung["total_bytes"].as_u64().unwrap()
    };
    assert!(total("accumulate") < total("full") && total("frugal") < total("accumulate"), "{plan}");
    // 16-bit weights take half the space, and f32 master weights join the moments.
    let half = ["plan", "text", "--gpu", "8GiB", "--set", "training.precision=bf16", "--format", "json"];
    let half = &json(&place, &half)["rungs"][0];
    assert!(constants(half, 2) < 64 << 10);
    assert_eq!(part(half, "optimizer"), 12 * parameters);
}

#[test]
fn only_adapters_have_gradients_and_moments() {
    let place = Place::real();
    let rung = &json(&place, &["plan", "lora", "--device", "cpu", "--format", "json"])["rungs"][0];
    let (all, trained) = (part(rung, "parameters"), part(rung, "trained"));
    assert!(trained * 2 < all, "{rung}");
    assert_eq!((part(rung, "gradients"), part(rung, "optimizer")), (4 * trained, 8 * trained));
}

#[test]
fn a_gpu_too_small_for_a_rung_is_reported_with_the_largest_micro_batch_that_fits() {
    let place = Place::real();
    let big = ["--set", "training.micro_batch=512", "--set", "model.channels=64"];
    let ask = |gpu: &str, more: &[&str]| {
        let args = ["plan", "digits", "--rung", "full", "--format", "json", "--gpu", gpu];
        json(&place, &[&args[..], &big, more].concat())["rungs"][0].clone()
    };
    let rung = ask("700MiB", &[]);
    assert_eq!(rung["verdict"], "does_not_fit", "{rung}");
    let largest = part(&rung, "largest_micro_batch");
    assert!((1..512).contains(&largest), "{rung}");
    let fits = |batch: u64| {
        let batch = format!("training.micro_batch={batch}");
        ask("700MiB", &["--set", &batch])["verdict"] != "does_not_fit"
    };
    assert!(fits(largest), "{largest}");
    assert!(!fits(largest + 2), "{largest}");
    assert_eq!(ask("100MiB", &[])["foreseen"]["largest_micro_batch"], Value::Null);
}

#[test]
fn measured_peaks_are_near_the_estimates() {
    let place = Place::real();
    let size = ["model.width=256", "model.layers=4", "training.micro_batch=32"];
    let set = size.iter().flat_map(|knob| ["--set", knob]);
    let args = ["plan", "text", "--device", "cpu", "--rung", "full", "--measure", "3", "--format", "json"];
    let rung = &json(&place, &args.into_iter().chain(set).collect::<Vec<_>>())["rungs"][0];
    let (measured, estimated) = (rung["measured"]["peak_bytes"].as_u64().unwrap(), part(rung, "training"));
    let ratio = estimated as f64 / measured as f64;
    assert!(measured > 80 << 20 && (0.85..1.15).contains(&ratio), "{estimated} estimated, {measured} measured");
    assert_eq!(rung["measured"]["steps"], 3);
    assert_eq!(rung["total_bytes"].as_u64(), Some(measured), "what was seen is believed");
    assert!(rung["measured"]["units_per_s"].as_f64().unwrap() > 0.0 && rung["measured"]["loss"].as_f64().is_some());
}

#[test]
fn two_values_of_a_knob_are_compared() {
    let place = Place::real();
    let args = ["compare-knob", "digits", "training.micro_batch", "8", "64", "--steps", "2", "--device", "cpu"];
    let compared = json(&place, &[&args[..], &["--format", "json"]].concat());
    let [small, large] = [0, 1].map(|index| compared["variants"][index].clone());
    assert_eq!((&small["value"], &large["value"]), (&"8".into(), &"64".into()));
    for variant in [&small, &large] {
        assert_eq!(variant["steps"], 2, "{variant}");
        assert!(variant["loss"].as_f64().unwrap() > 0.0 && variant["step_ms"].as_f64().unwrap() > 0.0);
    }
    assert!(large["peak_bytes"].as_u64() > small["peak_bytes"].as_u64(), "{compared}");
    let out = place.output(&args);
    let table = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(table.contains("loss after 2 steps") && table.contains("one after the other"), "{table}");
    assert!(!place.dir.path().join("runs").exists(), "nothing is left behind");
}

#[test]
fn impossible_options_are_refused_with_a_reason() {
    let place = Place::real();
    for (args, code, words) in [
        (&["plan", "digits", "--gpu", "16"][..], 2, "16GiB"),
        (&["plan", "digits", "--gpu", "16GiB", "--measure"], 2, "exclude each other"),
        (&["plan", "digits", "--rung", "nope"], 2, "accumulate"),
        (&["plan", "nothing.yaml"], 2, "digits"),
        (&["plan", "text", "--device", "cpu", "--set", "training.precision=bf16"], 13, "--gpu 16GiB"),
        (&["compare-knob", "digits", "training.micro_bath", "8", "16"], 13, "training.micro_batch"),
        (&["compare-knob", "digits", "training.micro_batch", "8", "lots"], 13, "training.micro_batch"),
    ] {
        let (found, said) = refusal(&place, args);
        assert_eq!(found, Some(code), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
    let out = place.output(&["prepare", "digits", "--device", "cpu"]);
    assert_eq!(out.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&out.stdout).contains("Nothing to prepare on cpu"));
}

#[test]
fn a_run_has_a_plan_that_measurements_correct() {
    let place = Place::real();
    let run = ["run", "digits", "--headless", "--device", "cpu", "--set", "training.epochs=10000"];
    let mut running = place.command(&run).stdout(Stdio::null()).spawn().unwrap();
    wait_for_background("plan of the run", || place.newest()?.file("plan.json").is_file().then_some(()));
    let name = place.newest().unwrap().name();
    let plan = wait_for_background("a rung that was seen", || {
        let plan = json(&place, &["plan", &name, "--device", "cpu", "--format", "json"]);
        (plan["rungs"][0]["measured"]["peak_bytes"].as_u64()? > 0).then_some(plan)
    });
    assert_eq!(place.output(&["stop"]).status.code(), Some(0));
    running.wait().unwrap();
    let rungs = plan["rungs"].as_array().unwrap();
    assert_eq!(rungs.len(), 5);
    let (seen, measured) = (place.status_json()["rungs"][0]["ram_bytes"].as_u64(), &rungs[0]["measured"]);
    let [peak, baseline] = ["peak_bytes", "baseline_bytes"].map(|figure| measured[figure].as_u64().unwrap());
    // The run continued for a little while after that.
    assert!(seen.is_some_and(|seen| seen >= peak + baseline), "{seen:?}: {measured}");
    assert_eq!(rungs[0]["total_bytes"], peak);
    assert!(rungs[4]["measured"].is_null(), "{plan}");
}

/// Returns the process that plans a run, if it is alive.
fn planner_of(run: &std::path::Path) -> Option<u32> {
    let run = run.to_string_lossy().into_owned();
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let mut words = line.split('\0');
        (words.any(|word| word == "--write") && line.contains(&run)).then_some(pid)
    })
}

/// Starts a run whose plan takes many seconds; returns it with its planner.
fn planned_slowly(place: &Place) -> (std::process::Child, std::path::PathBuf, u32) {
    let size = ["model.width=32", "model.layers=96"];
    let set = size.iter().flat_map(|knob| ["--set", knob]);
    let run = ["run", "text", "--headless", "--device", "cpu"].into_iter().chain(set).collect::<Vec<_>>();
    let running = place.command(&run).stdout(Stdio::null()).spawn().unwrap();
    let dir = wait_for("the run", || Some(place.newest()?.path().to_owned()));
    let planner = wait_for("its planner", || planner_of(&dir));
    (running, dir, planner)
}

#[test]
fn a_planner_ends_with_its_run() {
    let place = Place::real();
    let (mut running, dir, _) = planned_slowly(&place);
    assert_eq!(place.output(&["stop"]).status.code(), Some(0));
    running.wait().unwrap();
    wait_for_background("the end of its planner", || planner_of(&dir).is_none().then_some(()));
}

#[test]
fn a_planner_runs_at_the_lowest_priority_and_ends_with_its_keeper() {
    let place = Place::real();
    let (mut running, dir, planner) = planned_slowly(&place);
    let status = || std::fs::read_to_string(format!("/proc/{planner}/status")).unwrap_or_default();
    let stat = wait_for_background("its priority", || {
        let stat = std::fs::read_to_string(format!("/proc/{planner}/stat")).ok()?;
        let nice = stat.rsplit(')').next()?.split_whitespace().nth(16)?.to_owned();
        (nice == "19").then_some(nice)
    });
    assert_eq!(stat, "19");
    let keeper = living_owner(&dir.join("keeper.lock")).unwrap();
    kill(keeper.pid);
    wait_for_background("the end of the planner", || {
        (!status().lines().any(|line| line.starts_with("VmRSS"))).then_some(())
    });
    wait_for("another keeper", || living_owner(&dir.join("keeper.lock")).filter(|new| new.pid != keeper.pid));
    wait_for("the stop", || (place.output(&["stop"]).status.code() == Some(0)).then_some(()));
    running.wait().unwrap();
}

#[test]
fn a_planner_gives_up_where_the_data_takes_too_much_memory() {
    let place = Place::real();
    let folder = place.dir.path().join("runs/big");
    std::fs::create_dir_all(&folder).unwrap();
    // 300 MiB on no disk, and four times as much as tokens.
    let text = place.dir.path().join("big.txt");
    std::fs::File::create(&text).unwrap().set_len(300 << 20).unwrap();
    let run = include_str!("../../configs/text.yaml").replace("embedded:text", text.to_str().unwrap());
    std::fs::write(folder.join("run.yaml"), run).unwrap();
    let words = ["plan", "--write", "--device", "cpu", folder.to_str().unwrap()];
    // The planner ends when its stdin closes.
    let mut planner = place.command(&words).stdin(Stdio::piped()).spawn().unwrap();
    let ended = wait_for_background("the planner", || planner.try_wait().unwrap());
    assert!(ended.success(), "{ended:?}");
    let plan: Value = serde_json::from_slice(&std::fs::read(folder.join("plan.json")).unwrap()).unwrap();
    let rungs = plan["rungs"].as_array().unwrap();
    assert!(rungs.len() > 1);
    for rung in rungs {
        assert_eq!(rung["unknown"], "not planned: too large (planning takes more than 1.0 GiB of memory)");
    }
}

#[test]
fn memory_grows_in_proportion_to_the_sequence() {
    let place = Place::real();
    let passes = |sequence: &str| {
        let args = ["plan", "text", "--device", "cpu", "--rung", "full", "--format", "json", "--set", sequence];
        let rung = &json(&place, &args)["rungs"][0];
        part(rung, "activations") + part(rung, "logits")
    };
    // Stored attention scores would grow fourfold.
    let growth = passes("model.sequence=1024") as f64 / passes("model.sequence=512") as f64;
    assert!((1.7..2.2).contains(&growth), "{growth}");
}

#[test]
fn rungs_that_do_not_fit_come_with_advice_in_order() {
    let place = Place::real();
    let advice = |args: &[&str]| {
        let out = place.output(&[&["plan"], args].concat());
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(out.status.code(), Some(0), "{said}");
        said.lines().find(|line| line.contains("not fit: ")).unwrap_or_else(|| panic!("{said}")).to_owned()
    };
    let smaller = advice(&["text", "--gpu", "800MiB", "--set", "training.micro_batch=512"]);
    let places =
        ["micro-batch smaller", "smaller model", "mixed precision", "accumulate more"].map(|word| smaller.find(word));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{smaller}");
    let none = advice(&["digits", "--gpu", "100MiB"]);
    assert!(none.contains("not even one sample") && !none.contains("micro-batch smaller"), "{none}");
}

#[test]
fn a_worker_whose_measurement_is_killed_ends_and_saves_nothing() {
    let mut place = Place::real();
    let temporary = place.dir.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    place.variables.push(("TMPDIR", temporary.clone()));
    let args = ["plan", "digits", "--device", "cpu", "--rung", "full", "--measure", "100000"];
    let mut command = place.command(&args).spawn().unwrap();
    let run = wait_for("the worker", || {
        let folder = std::fs::read_dir(&temporary).unwrap().flatten().next()?;
        let run = std::fs::read_dir(folder.path()).ok()?.flatten().find(|entry| entry.path().is_dir())?.path();
        living_owner(&run.join("worker.lock")).map(|_| run)
    });
    kill(command.id());
    command.wait().unwrap();
    wait_for("the end of the worker", || living_owner(&run.join("worker.lock")).is_none().then_some(()));
    let saved: Vec<_> = std::fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten().collect();
    assert!(saved.is_empty(), "{saved:?}");
}
