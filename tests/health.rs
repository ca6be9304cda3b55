//! The commands that inspect the machine, and the notifications that a run sends.
#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

mod helper;

use helper::{Place, example, wait_for, wait_status};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

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

/// Starts a server that accepts every request; returns its address and the request bodies.
fn server() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/s3cret-hook", listener.local_addr().unwrap());
    let (tell, bodies) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut headers = String::new();
            while !headers.ends_with("\r\n\r\n") {
                reader.read_line(&mut headers).unwrap();
            }
            let headers = headers.to_lowercase();
            let length = headers.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
            if tell.send(String::from_utf8(body).unwrap()).is_err() {
                break;
            }
        }
    });
    (url, bodies)
}

#[test]
fn a_run_notifies_of_a_fault_and_its_end_without_revealing_the_secret() {
    let place = Place::scripted();
    let (url, bodies) = server();
    let secret = place.dir.path().join("hook");
    fs::write(&secret, &url).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let notify = format!(
        "watch: {{ disk_free_mib: 0 }}\nnotify: {{ bell: false, desktop: false, level: info, webhooks: [{{ kind: json, url: 'file:{}' }}] }}\n",
        secret.display()
    );
    place.script("{ step_ms: 2, save_ms: 1 }", &notify);
    let (mut child, run) = place.start(&["--trust", "--inject", "oom@60,oom@120"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    wait_status(&run, "the keeper's end", |status| status.pid_keeper.is_none());
    let told: Vec<Value> = wait_for("both messages", || {
        thread::park_timeout(std::time::Duration::from_millis(50));
        let all: Vec<Value> = bodies.try_iter().map(|body| serde_json::from_str(&body).unwrap()).collect();
        (all.len() >= 2).then_some(all)
    });
    let titles: Vec<&str> = told.iter().map(|body| body["title"].as_str().unwrap()).collect();
    assert_eq!(titles.len(), 2, "the second fault of the kind is not told again: {titles:?}");
    assert!(titles[0].ends_with("out of device memory") && titles[1].ends_with("finished"), "{titles:?}");
    for name in ["run.yaml", "run.db", "run.db-wal", "keeper.log", "worker.log"] {
        let bytes = fs::read(run.file(name)).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains("s3cret-hook"), "{name} holds the secret");
    }
}

#[test]
fn notify_test_says_which_channel_took_the_message() {
    let place = Place::scripted();
    let (url, bodies) = server();
    let path = place.dir.path().join("config/downshift/notify.yaml");
    let hooks = "webhooks:\n  - { kind: ntfy, url: 'env:HOOK' }\n  - { kind: discord, url: 'env:NO_SUCH_HOOK' }\n";
    fs::write(&path, format!("bell: false\ndesktop: false\n{hooks}")).unwrap();
    let tried = place.command(&["notify", "test"]).env("HOOK", url).output().unwrap();
    assert_eq!(tried.status.code(), Some(1));
    let words = text(&tried);
    assert!(words.contains("ok    ntfy") && words.contains("NO_SUCH_HOOK is not set"), "{words}");
    assert_eq!(bodies.iter().next().unwrap(), "A run will notify you this way when it needs attention.");
}

#[test]
fn a_hot_gpu_is_reported_once_and_the_run_file_names_the_library() {
    let place = Place::scripted();
    let library = place.dir.path().join("libhot.so");
    fs::copy(example("libfake_nvml.so"), &library).unwrap();
    let script = json!({"nvmlDeviceGetTemperature": [{"value": 91}]});
    fs::write(library.with_extension("json"), script.to_string()).unwrap();
    let (url, bodies) = server();
    let around = format!(
        "probe: {{ nvml: libhot.so }}\nwatch: {{ disk_free_mib: 0 }}\nnotify: {{ bell: false, desktop: false, webhooks: [{{ kind: json, url: '{url}' }}] }}\n"
    );
    place.script("{ step_ms: 20, save_ms: 1, device: \"cuda:0 fake\" }", &around);
    let (_child, run) = place.start(&["--trust"]);
    let told: Value = serde_json::from_str(&bodies.recv_timeout(helper::LIMIT).unwrap()).unwrap();
    assert!(told["title"].as_str().unwrap().ends_with(": hot"), "{told}");
    assert!(told["text"].as_str().unwrap().contains("91 °C"), "{told}");
    // Two more readings at the same temperature.
    let now = wait_status(&run, "a status", |_| true).step;
    wait_status(&run, "two more seconds", |status| status.step > now + 100);
    assert_eq!(bodies.try_iter().count(), 0, "told once");
    place.output(&["stop"]);
}
