//! The commands that inspect the machine.
#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use crate::helper::{Place, example, wait_for};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Output, Stdio};

/// Returns a command that sees the GPU of this script, or no GPU.
fn with_card(place: &Place, script: Option<&Value>, words: &[&str]) -> Command {
    let mut command = place.command(words);
    let library = place.dir.path().join("libfake_nvml.so");
    if let Some(script) = script {
        fs::copy(example("libfake_nvml.so"), &library).unwrap();
        fs::write(library.with_extension("json"), script.to_string()).unwrap();
    }
    command.env("DOWNSHIFT_NVML_PATH", library).env_remove("TMUX").env_remove("DOWNSHIFT_WORKER");
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn watch_shows_card_and_machine_and_what_is_unknown() {
    let place = Place::scripted();
    let script = json!({"nvmlDeviceGetPowerUsage": [{"code": 3}], "nvmlDeviceGetTemperature": [{"value": 71}]});
    let seen = with_card(&place, Some(&script), &["watch", "--once"]).output().unwrap();
    let words = text(&seen);
    assert!(seen.status.success(), "{words}");
    for part in [
        "RTX 4090",
        "71 °C",
        "power        – of 450 W",
        "not supported",
        "RAM",
        "processes",
        "5.6 GiB of 22.4 GiB in use",
    ] {
        assert!(words.contains(part), "{part} is missing:\n{words}");
    }
    let counted = json!({"nvmlDeviceGetEccMode": [{"value": 1}], "nvmlDeviceGetTotalEccErrors": [{"value": 2}]});
    let words = text(&with_card(&place, Some(&counted), &["watch", "--once"]).output().unwrap());
    assert!(words.contains("health       ECC 2 corrected, 2 not"), "{words}");
    let seen = with_card(&place, Some(&script), &["watch", "--once", "--format", "json"]).output().unwrap();
    let reading: Value = serde_json::from_slice(&seen.stdout).unwrap();
    assert_eq!(reading["gpu"]["Ok"]["power_w"], json!({"not": "not supported"}));
    assert_eq!(reading["gpu"]["Ok"]["more"]["ecc"], json!({"not": "not supported"}));
    assert!(reading["host"]["cpu"]["is"].is_number() && reading["processes"][0]["ram_bytes"].is_number());
}

#[test]
fn watch_repeats_and_works_without_a_card() {
    let place = Place::scripted();
    let mut command = with_card(&place, None, &["watch", "--interval", "0.1", "--format", "json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let readings: Vec<Value> = lines.take(3).map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(readings[2]["gpu"]["Err"].as_str().unwrap().contains("DOWNSHIFT_NVML_PATH"));
    let wrong = place.output(&["watch", "--interval", "0"]);
    assert_eq!(wrong.status.code(), Some(2));
}

fn doctor(place: &Place, script: Option<&Value>, log: &str) -> (Option<i32>, BTreeMap<String, Value>) {
    fs::write(place.dir.path().join("kern.log"), log).unwrap();
    let seen = with_card(place, script, &["doctor", "--format", "json"]).output().unwrap();
    let checks: Vec<Value> = serde_json::from_slice(&seen.stdout).unwrap();
    let named = checks.into_iter().map(|check| (check["name"].as_str().unwrap().to_owned(), check));
    (seen.status.code(), named.collect())
}

#[test]
fn the_doctor_finds_what_is_wrong_with_a_card_and_says_the_fix() {
    let place = Place::scripted();
    let script = json!({
        "nvmlDeviceGetEccMode": [{"value": 1}],
        "nvmlDeviceGetTotalEccErrors": [{"value": 2}],
        "nvmlDeviceGetTemperature": [{"value": 93}],
    });
    let log =
        "NVRM: Xid (PCI:0000:01:00): 31, x\nNVRM: Xid (PCI:0000:01:00): 79, x\nNVRM: Xid (PCI:0000:02:00): 48, x\n";
    let (code, checks) = doctor(&place, Some(&script), log);
    assert_eq!(code, Some(1));
    assert_eq!((&checks["GPU"]["verdict"], &checks["driver"]["verdict"]), (&json!("ok"), &json!("ok")));
    assert_eq!(checks["health"]["verdict"], "fail");
    assert_eq!(checks["heat"]["verdict"], "warn");
    let history = &checks["Xid history"];
    let said = history["text"].as_str().unwrap();
    assert!(said.contains("Xid 31") && said.contains("Xid 79") && !said.contains("48"), "{history}");
    assert!(history["fix"].as_str().unwrap().contains("restart the machine"), "the worst_class: {history}");
    assert!(checks["driver"]["text"].as_str().unwrap().contains("CUDA 13.0"));
    for name in ["RAM", "disk", "file system", "terminal", "catalogue", "notifications"] {
        assert!(checks.contains_key(name), "{name} is missing");
    }
}

#[test]
fn a_broken_driver_is_not_reported_as_a_missing_gpu() {
    let place = Place::scripted();
    for (script, words, fix) in [
        (json!({"nvmlInit_v2": [{"code": 18}]}), "different versions", "reboot"),
        (json!({"nvmlInit_v2": [{"code": 9}]}), "driver", "→"),
        (json!({"nvmlInit_v2": [{"hang": true}]}), "does not answer", "restart the machine"),
    ] {
        let (code, checks) = doctor(&place, Some(&script), "");
        let gpu = &checks["GPU"];
        assert_eq!((code, &gpu["verdict"]), (Some(1), &json!("fail")), "{gpu}");
        assert!(gpu["text"].as_str().unwrap().contains(words), "{gpu}");
        assert!(fix == "→" || gpu["fix"].as_str().unwrap().contains(fix), "{gpu}");
        assert!(checks.contains_key("RAM") && checks.contains_key("disk"), "the machine is looked at all the same");
    }
}

#[test]
fn the_doctor_says_when_the_card_is_lost_or_the_users_files_are_wrong() {
    let place = Place::scripted();
    let (code, checks) = doctor(&place, Some(&json!({"*": [{"code": 15}]})), "");
    assert_eq!((code, &checks["GPU"]["verdict"]), (Some(1), &json!("fail")));
    assert_eq!(checks["notifications"]["text"], "bell and desktop are off, and no webhook is set");
    fs::write(place.dir.path().join("config/downshift/notify.yaml"), "bel: true\n").unwrap();
    let (_, checks) = doctor(&place, None, "");
    assert_eq!(checks["notifications"]["verdict"], "fail");
    assert!(checks["notifications"]["text"].as_str().unwrap().contains("notify.yaml:1:"));
}

#[test]
fn a_bundle_holds_what_a_report_needs_and_nothing_private() {
    let place = Place::scripted();
    place.script("{ step_ms: 2, save_ms: 1 }", "");
    let (mut child, run) = place.start(&["--inject", "oom@60"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut log = fs::OpenOptions::new().append(true).open(run.file("worker.log")).unwrap();
    writeln!(log, "wandb_key=0123456789abcdef at /home/ada/x\nfrom {}", place.dir.path().display()).unwrap();
    let mut command = with_card(&place, None, &["bundle", "--out", "b.tar.gz"]);
    let made = command.env("HOME", place.dir.path()).env("SOME_TOKEN", "s3cret-value").output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));

    let file = fs::File::open(place.dir.path().join("b.tar.gz")).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut parts = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        parts.insert(name.split_once('/').unwrap().1.to_owned(), text);
    }
    for name in [
        "run.yaml",
        "journal.txt",
        "worker.log",
        "keeper.log",
        "attempts.txt",
        "causes.json",
        "doctor.txt",
        "versions.txt",
        "status.json",
    ] {
        assert!(parts.contains_key(name), "{name} is missing: {:?}", parts.keys());
    }
    assert!(parts.keys().any(|name| name.starts_with("checkpoints/") && name.ends_with("manifest.json")));
    assert!(!parts.keys().any(|name| name.contains("safetensors")), "no weights");
    assert!(parts["causes.json"].contains("device_out_of_memory"));
    assert!(parts["journal.txt"].contains("cause: out of device memory"));
    assert!(parts["versions.txt"].contains(env!("CARGO_PKG_VERSION")));
    let home = place.dir.path().display().to_string();
    for (name, text) in &parts {
        for private in [home.as_str(), "s3cret-value", "0123456789abcdef", "/home/ada"] {
            assert!(!text.contains(private), "{name} holds {private}");
        }
    }
    assert!(parts["worker.log"].contains("from ~"));
}

#[test]
fn a_bundle_does_not_wait_for_a_pipe_in_place_of_the_users_settings() {
    let place = Place::scripted();
    place.script("{ step_ms: 1, save_ms: 1 }", "");
    let (mut child, _run) = place.start(&["--set", "training.steps=60"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let settings = place.dir.path().join("config/downshift/notify.yaml");
    fs::remove_file(&settings).unwrap();
    assert!(Command::new("mkfifo").arg(&settings).status().unwrap().success());
    let mut bundle = place.command(&["bundle", "--out", "b.tar.gz"]).stdout(Stdio::null()).spawn().unwrap();
    let ended = wait_for("the bundle", || bundle.try_wait().unwrap());
    assert!(ended.success(), "{ended:?}");
}
