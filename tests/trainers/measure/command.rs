//! Measurements of a command: a shell script that takes memory by its argument, on a card that is played.

use super::{parsed, with_card, words};
use crate::helper::{Place, example, kill, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

const MB: u64 = 1_000_000;

/// Takes 100 MB of VRAM and 2 MB of RAM for each sample of a batch, and prints steps. A second process takes 50 MB of
/// VRAM more. From 1000 MB on it fails as PyTorch does.
const HUNGRY: &str = r#"
held=$1 mode=$2 batch=$3
take() { mkdir -p "$held"; echo "$(($2 * 1000000)) 0 $mode" > "$held/$1.new"; mv "$held/$1.new" "$held/$1"; }
if [ "$((batch * 100))" -ge 1000 ]; then
  echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.' >&2
  exit 1
fi
sleep 1000 &
take $! 50
take $$ $((batch * 100))
hold=$(head -c $((batch * 2000000)) /dev/zero | tr '\0' x)
step=0
while [ $step -lt 100000 ]; do
  step=$((step + 1))
  echo "step $step loss 0.$((batch * 100000 + step))"
  sleep 0.05
done
"#;

/// Writes the script and a run file that starts it.
fn hungry(place: &Place, mode: &str) {
    let dir = place.dir.path();
    fs::write(dir.join("hungry.sh"), HUNGRY).unwrap();
    let held = dir.join("libfake_nvml.held");
    let text = format!(
        "name: hungry\ntask: command\ncommand: [sh, hungry.sh, {}, {mode}, '{{training.micro_batch}}']\n\
         training: {{ micro_batch: 4 }}\nknobs: {{ unread: 8, word: none }}\nladder:\n\
         \x20 - {{ name: small, relieves: [memory], set: {{ training.micro_batch: 2 }} }}\n",
        held.display()
    );
    fs::write(dir.join("run.yaml"), text).unwrap();
}

/// Returns a place with a card, a folder for temporary files, and the hungry script.
fn with_script(mode: &str) -> (Place, PathBuf) {
    let mut place = with_card();
    let temporary = place.dir.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    place.variables.push(("TMPDIR", temporary.clone()));
    hungry(&place, mode);
    (place, temporary)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Fails if a process or a temporary file of a measurement is left.
fn assert_nothing_left(place: &Place, temporary: &Path) {
    wait_for("an empty place", || place.processes().is_empty().then_some(()));
    assert_eq!(files(temporary), Vec::<PathBuf>::new());
}

#[test]
fn each_rung_of_a_command_is_measured_by_its_processes() {
    let (place, temporary) = with_script("listed");
    let plan = ["plan", "run.yaml", "--device", "cuda:0", "--measure", "3", "--trust"];
    let out = place.output(&[&plan[..], &["--format", "json"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    assert!(words(&out).contains("each measurement starts `"), "{}", words(&out));
    for (rung, batch) in [(0, 4), (1, 2)] {
        let measured = &parsed(&out)["rungs"][rung]["measured"];
        assert_eq!(measured["peak_bytes"], (batch * 100 + 50) * MB, "{measured}");
        let ram = measured["ram"]["training"].as_u64().unwrap();
        assert!((batch * 2 * MB..(batch * 2 + 60) * MB).contains(&ram), "{measured}");
        assert!(measured["steps"].as_u64().unwrap() >= 3, "{measured}");
        let rate = measured["steps_per_s"].as_f64().unwrap();
        assert!(rate > 0.5 && rate < 21.0, "{measured}");
        assert!(measured.get("of_card").is_none(), "{measured}");
        assert_eq!(parsed(&out)["rungs"][rung]["verdict"], "fits");
    }
    assert_nothing_left(&place, &temporary);
    let table = words(&place.output(&plan));
    for part in ["peak VRAM", "429 MiB", "peak RAM", "steps/s", "loss", "verdict"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert!(!table.contains("activations") && !table.contains('?'), "{table}");
}

#[test]
fn without_amounts_per_process_the_card_itself_is_measured() {
    let (place, _) = with_script("unsized");
    let out = place.output(&["plan", "run.yaml", "--device", "cuda:0", "--measure", "2", "--rung", "small", "--trust"]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    assert!(words(&out).contains("238 MiB*"), "250 MB above the level before: {}", words(&out));
    assert!(words(&out).contains("* the driver reports no memory per process"), "{}", words(&out));
}

#[test]
fn a_slice_of_a_card_has_no_budget_and_host_memory_is_not_taken_for_its_own() {
    let (place, temporary) = with_script("listed");
    let on_slice = ["plan", "run.yaml", "--device", "cuda:MIG-7", "--rung", "small", "--measure", "2", "--trust"];
    let out = place.output(&[&on_slice[..], &["--format", "json"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    let plan = parsed(&out);
    assert_eq!((&plan["gpu"], plan["card"].is_null()), (&true.into(), true), "{plan}");
    let rung = &plan["rungs"][0];
    assert_eq!((&rung["verdict"], rung["measured"]["peak_bytes"].is_null()), (&"unknown".into(), true), "{rung}");
    assert!(rung["measured"]["ram"]["training"].as_u64().unwrap() > 4 * MB, "{rung}");
    assert_nothing_left(&place, &temporary);
}

#[test]
fn several_cards_are_planned_for_as_well_as_measured() {
    let (place, _) = with_script("listed");
    let library = place.dir.path().join("libfake_nvml.so");
    fs::write(library.with_extension("json"), r#"{"nvmlDeviceGetCount_v2": [{"value": 2}]}"#).unwrap();
    let card = |device: &str| {
        let plan = ["plan", "run.yaml", "--measure", "1", "--rung", "small", "--trust", "--format", "json"];
        let out = place.output(&[&plan[..], &["--device", device]].concat());
        assert_eq!(out.status.code(), Some(0), "{}", words(&out));
        parsed(&out)["card"].clone()
    };
    let first = card("cuda:0");
    assert!(first["free_bytes"].is_u64(), "{first}");
    assert_eq!(card("cuda:1,0"), first);
}

#[test]
fn the_largest_batch_is_found_below_a_failure_or_a_budget() {
    let (place, temporary) = with_script("listed");
    let fit = ["plan", "run.yaml", "--device", "cuda:0", "--fit", "--measure", "2", "--trust", "--format", "json"];
    let out = place.output(&fit);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    let found = parsed(&out);
    assert_eq!((&found["largest"], &found["knob"]), (&9.into(), &"training.micro_batch".into()));
    let tried: Vec<(u64, bool)> = found["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| (attempt["value"].as_u64().unwrap(), attempt["fits"].as_bool().unwrap()))
        .collect();
    assert_eq!(tried, [(4, true), (8, true), (16, false), (12, false), (10, false), (9, true)]);
    for said in [
        "training.micro_batch = 8: fits, peak 811 MiB",
        "training.micro_batch = 16: too large: rung full",
        "CUDA out of memory",
    ] {
        assert!(words(&out).contains(said), "{said}: {}", words(&out));
    }
    // 600 MB of them are 572 MiB: five samples and the second process.
    let out = place.output(&[&fit[..], &["--gpu", "600MB", "--rung", "small"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    let found = parsed(&out);
    assert_eq!(
        (&found["largest"], &found["rung"], &found["budget_bytes"]),
        (&5.into(), &"small".into(), &(600 * MB).into())
    );
    assert!(words(&out).contains("takes 811 MiB, more than 572 MiB"), "{}", words(&out));
    let out = place.output(&[&fit[..], &["--gpu", "100MB"]].concat());
    assert_eq!(out.status.code(), Some(10), "{}", words(&out));
    assert!(parsed(&out)["largest"].is_null());
    assert_nothing_left(&place, &temporary);
}

#[test]
fn a_knob_that_cannot_be_enlarged_is_refused_by_name_and_another_failure_ends_the_search() {
    let (place, _) = with_script("listed");
    let fit = |more: &[&str]| {
        let out = place.output(&[&["plan", "run.yaml", "--device", "cuda:0", "--fit", "--trust"], more].concat());
        (out.status.code(), words(&out))
    };
    for (knob, code, said) in [
        ("knobs.unread", 13, "knobs.unread: no argument, variable or file takes this knob"),
        ("knobs.missing", 2, "the run file does not set knobs.missing"),
    ] {
        let (ended, text) = fit(&["--knob", knob]);
        assert_eq!(ended, Some(code), "{text}");
        assert!(text.contains(said), "{text}");
    }
    let script =
        HUNGRY.replace("echo 'torch.OutOfMemoryError", "echo 'KeyError: x'; exit 1; echo 'torch.OutOfMemoryError");
    fs::write(place.dir.path().join("hungry.sh"), script).unwrap();
    let (ended, text) = fit(&["--measure", "1"]);
    assert_eq!(ended, Some(1), "{text}");
    assert!(text.contains("KeyError: x") && text.contains("that fitted so far is 8"), "{text}");
    let out = place.output(
        &[&["plan", "run.yaml", "--device", "cuda:0", "--fit", "--trust", "--measure", "1"][..], &["--format", "json"]]
            .concat(),
    );
    assert_eq!(out.status.code(), Some(1), "{}", words(&out));
    let found = parsed(&out);
    assert_eq!((&found["largest"], found["attempts"].as_array().unwrap().len()), (&8.into(), 2), "{found}");
    assert!(found["ended"].as_str().unwrap().contains("KeyError: x"), "{found}");
}

#[test]
fn a_value_that_a_run_refuses_ends_the_search_above_one_that_fits() {
    let (place, temporary) = with_script("listed");
    let file = place.dir.path().join("run.yaml");
    let text =
        fs::read_to_string(&file).unwrap().replace("micro_batch: 4 }", "micro_batch: 4, accumulation: 2796202 }");
    fs::write(&file, text).unwrap();
    let fit = ["plan", "run.yaml", "--device", "cuda:0", "--rung", "full", "--fit", "--measure", "1", "--trust"];
    let out = place.output(&[&fit[..], &["--format", "json"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    let found = parsed(&out);
    assert_eq!(found["largest"], 6, "{found}");
    let refused = |attempt: &serde_json::Value| attempt["refused"] == true;
    let tried: Vec<(u64, bool)> = found["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| (attempt["value"].as_u64().unwrap(), refused(attempt)))
        .collect();
    assert_eq!(tried, [(4, false), (8, true), (6, false), (7, true)]);
    let said = words(&place.output(&fit));
    assert!(said.contains("6 is the largest value that a run accepts on rung full"), "{said}");
    assert!(said.contains("exceeds 16777216 samples"), "{said}");
    assert_nothing_left(&place, &temporary);
}

#[test]
fn two_values_of_a_knob_are_compared_at_the_same_step() {
    let (place, temporary) = with_script("listed");
    let compare = ["compare-knob", "run.yaml", "training.micro_batch", "2", "4", "--steps", "3"];
    let out = place.output(&[&compare[..], &["--device", "cuda:0", "--trust", "--format", "json"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    let compared = parsed(&out);
    let step = compared["loss_step"].as_u64().unwrap();
    assert!(step >= 3, "{compared}");
    for (place, batch) in [(0, 2), (1, 4)] {
        let variant = &compared["variants"][place];
        assert_eq!(variant["peak_bytes"], (batch * 100 + 50) * MB, "{variant}");
        assert_eq!(variant["loss"], format!("0.{}", batch * 100_000 + step).parse::<f64>().unwrap(), "{variant}");
    }
    let out = place.output(&["prepare", "run.yaml", "--device", "cuda:0"]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    assert!(words(&out).contains("Nothing to prepare: a command"), "{}", words(&out));
    assert_nothing_left(&place, &temporary);
}

#[test]
fn a_command_without_steps_is_measured_until_the_limit_and_one_that_fails_is_not() {
    let (place, temporary) = with_script("listed");
    let silent = "hold=$(head -c 30000000 /dev/zero | tr '\\0' x); sleep 1000\n";
    fs::write(place.dir.path().join("hungry.sh"), silent).unwrap();
    let plan = ["plan", "run.yaml", "--device", "cpu", "--rung", "full", "--measure", "--limit", "2s", "--trust"];
    let out = place.output(&[&plan[..], &["--format", "json"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    let measured = &parsed(&out)["rungs"][0]["measured"];
    let peak = measured["peak_bytes"].as_u64().unwrap();
    assert!((30 * MB..300 * MB).contains(&peak) && measured["ram"]["training"] == peak, "{measured}");
    assert_eq!((&measured["steps"], &measured["steps_per_s"]), (&0.into(), &serde_json::Value::Null));
    assert!(words(&place.output(&plan)).contains("reported no steps was measured until the time limit"));
    let fit = ["plan", "run.yaml", "--device", "cpu", "--rung", "full", "--fit", "--limit", "1s", "--trust"];
    let out = place.output(&fit);
    assert_eq!(out.status.code(), Some(1), "{}", words(&out));
    let said = "no step within --limit (1 s), so whether 4 fits is unknown; raise it";
    assert!(words(&out).contains(said), "{}", words(&out));
    fs::write(place.dir.path().join("hungry.sh"), "echo gone wrong; exit 7\n").unwrap();
    let out = place.output(&plan);
    assert_eq!(out.status.code(), Some(1), "{}", words(&out));
    assert!(
        words(&out).contains("the command failed: exit code 7") && words(&out).contains("gone wrong"),
        "{}",
        words(&out)
    );
    assert_nothing_left(&place, &temporary);
}

/// Starts a measurement of the awkward script, which forks in every way, and waits for its steps.
fn start_awkward(place: &Place, temporary: &Path, seed: &str) -> Child {
    let script = example("awkward_script");
    let text = format!(
        "name: awkward\ntask: command\ncommand: ['{}', train, --seed, '{seed}', --marker, '{}']\n",
        script.display(),
        place.dir.path().display()
    );
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    let plan = ["plan", "run.yaml", "--device", "cpu", "--measure", "1000000", "--trust"];
    let child = place.command(&plan).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("steps", || {
        // An earlier measurement that was killed has left its folder.
        let own = temporary.join(format!("downshift-measured-{}-0", child.id()));
        let run = fs::read_dir(own).ok()?.flatten().find(|entry| entry.path().is_dir())?;
        fs::read_to_string(run.path().join("worker.log")).ok().filter(|log| log.contains("step 5 ")).map(drop)
    });
    child
}

#[test]
fn nothing_is_left_of_a_measurement_that_is_interrupted_or_killed() {
    // Forks, loaders, daemons, a bare environment, a child that ignores SIGTERM, a flood; it ignores SIGTERM itself.
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (place, temporary) = with_script("listed");
        let mut child = start_awkward(&place, &temporary, "511");
        kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(place.processes(), Vec::<u32>::new());
        assert_nothing_left(&place, &temporary);
    }
    let (place, temporary) = with_script("listed");
    let mut child = start_awkward(&place, &temporary, "511");
    kill(child.id());
    child.wait().unwrap();
    wait_for("the end of its processes", || place.processes().is_empty().then_some(()));
    assert_eq!(files(&temporary).len(), 1, "a killed program removes nothing");
    // Not even its harness is there to end the command: the next measurement does.
    let mut child = start_awkward(&place, &temporary, "64");
    let named = |pid: &u32, name: &str| {
        fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(name.as_bytes())
    };
    let harness = wait_for("the harness", || place.processes().into_iter().find(|pid| named(pid, "downshift-harness")));
    kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), Signal::STOP).unwrap();
    kill(harness);
    kill(child.id());
    child.wait().unwrap();
    assert!(!place.processes().is_empty(), "the command goes on");
    hungry(&place, "listed");
    let out = place.output(&["plan", "run.yaml", "--device", "cpu", "--rung", "full", "--measure", "1", "--trust"]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    assert_nothing_left(&place, &temporary);
}
