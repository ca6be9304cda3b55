//! The notifications of a run, as a webhook receives them.
#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use crate::helper::{Place, example, journal_says, kill, stop_run, wait_for, wait_status};
use downshift::store::run_dir::RunDir;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Output};
use std::sync::mpsc::{self, Receiver};
use std::thread;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
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

/// A run that notifies a webhook, whose address is a secret.
struct Notified {
    place: Place,
    bodies: Receiver<String>,
    told: Vec<(String, String)>,
}

impl Notified {
    fn new(place: Place) -> (Self, String) {
        let (url, bodies) = server();
        let secret = place.dir.path().join("hook");
        fs::write(&secret, &url).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let hook = format!("{{ kind: json, url: 'file:{}' }}", secret.display());
        let notify = format!("notify: {{ bell: false, desktop: false, level: info, webhooks: [{hook}] }}\n");
        (Self { place, bodies, told: Vec::new() }, notify)
    }

    /// Creates a run of the scripted worker, with this section `watch` besides.
    fn scripted(watch: &str) -> Self {
        let (run, notify) = Self::new(Place::scripted());
        run.place.script("{ step_ms: 2, save_ms: 1 }", &format!("watch: {{ disk_free_mib: 0{watch} }}\n{notify}"));
        run
    }

    fn start(&self, words: &[&str]) -> (Child, RunDir) {
        self.place.start(&[&["--trust"], words].concat())
    }

    /// Waits for the message with this at the end of its title, and returns its text.
    fn hear(&mut self, title: &str) -> String {
        wait_for(title, || {
            while let Ok(body) = self.bodies.try_recv() {
                let body: Value = serde_json::from_str(&body).unwrap();
                let part = |name: &str| body[name].as_str().unwrap().to_owned();
                self.told.push((part("title"), part("text")));
            }
            self.told.iter().find(|(told, _)| told.ends_with(title)).map(|(_, text)| text.clone())
        })
    }

    /// Returns the titles so far, without the name of the run.
    fn titles(&self) -> Vec<&str> {
        self.told.iter().map(|(title, _)| title.split_once(": ").unwrap().1).collect()
    }
}

#[test]
fn a_fault_and_its_answer_are_one_message_and_the_secret_stays_one() {
    let mut run = Notified::scripted("");
    let (mut child, dir) = run.start(&["--inject", "oom@60,oom@120"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    run.hear("finished");
    let shifts = ["out of device memory, shifts to accumulate", "out of device memory, shifts to safe"];
    assert_eq!(run.titles(), [shifts[0], shifts[1], "finished"]);
    let first = run.hear(shifts[0]);
    for part in ["worker ended at step 59: out of device memory", "shift down: full → accumulate, by the keeper"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert!(first.contains(". A worker starts on accumulate, from checkpoint 50. No one is needed."), "{first}");
    assert!(!first.contains("use a smaller micro-batch"), "{first}");
    wait_status(&dir, "the keeper's end", |status| status.pid_keeper.is_none());
    for name in ["run.yaml", "run.db", "run.db-wal", "keeper.log", "worker.log"] {
        let bytes = fs::read(dir.file(name)).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains("s3cret-hook"), "{name} holds the secret");
    }
}

#[test]
fn a_shift_of_the_autopilot_and_its_proposal_without_it_are_told() {
    let title = "too many NaN steps, shifts to safe";
    let mut run = Notified::scripted("");
    let (mut child, _) = run.start(&["--inject", "nan@12-16"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    run.hear("finished");
    assert_eq!(run.titles(), [title, "finished"]);
    let told = run.hear(title);
    assert!(told.contains("shift down: full → safe, by the keeper: 5 steps in a row were not finite"), "{told}");
    assert!(told.contains("the next one starts on safe. No one is needed."), "{told}");

    let mut proposed = Notified::scripted(", autopilot: false");
    let (mut child, _) = proposed.start(&["--inject", "nan@12-16", "--set", "training.steps=100000"]);
    let told = proposed.hear("too many NaN steps, waits for your decision");
    assert!(told.contains("would shift down to safe. Training continues on full"), "{told}");
    assert!(told.contains("Your decision is needed: `downshift accept"), "{told}");
    proposed.place.output(&["stop"]);
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn an_end_that_needs_attention_is_one_message() {
    let mut run = Notified::scripted(", restarts_without_progress: 2");
    let (mut child, _) = run.start(&["--inject", "oom@120*"]);
    assert_eq!(child.wait().unwrap().code(), Some(4));
    let told = run.hear("needs attention");
    let out = "out of device memory";
    assert_eq!(
        run.titles(),
        [&*format!("{out}, shifts to accumulate"), &*format!("{out}, shifts to safe"), "needs attention"]
    );
    assert!(told.contains(out) && told.contains("checkpoint 100 is kept. You are needed."), "{told}");
}

#[test]
fn a_shift_that_the_script_ignores_is_told() {
    let (mut run, notify) = Notified::new(Place::real());
    let script = example("awkward_script");
    let marker = run.place.dir.path().display();
    let yaml = format!(
        "name: kept\ntask: command\ncommand: [{}, train, --companion, loop, --marker, '{marker}', --every, '20', --step-ms, \
         '10', --steps, '100000', --mischief, ignore-knobs, '--batch={{training.micro_batch}}']\n\
         training: {{ micro_batch: 8 }}\nladder:\n\
         \x20 - {{ name: half, relieves: [memory], set: {{ training.micro_batch: 4 }} }}\n{notify}",
        script.display()
    );
    fs::write(run.place.dir.path().join("run.yaml"), yaml).unwrap();
    let (mut child, dir) = run.start(&["--device", "cpu"]);
    wait_status(&dir, "a checkpoint", |status| status.durable_step.is_some());
    run.place.output(&["shift", "down"]);
    let told = run.hear("the shift changed nothing");
    assert!(told.contains("The shift full → half changed nothing else, so it does not count."), "{told}");
    assert!(told.contains("on half") && told.ends_with("Have a look when you can."), "{told}");
    stop_run(&run.place, &mut child);
}

#[test]
fn another_keeper_does_not_tell_the_same_again() {
    let mut run = Notified::scripted("");
    let (mut child, dir) = run.start(&["--inject", "kill@60,kill@300", "--set", "training.steps=600"]);
    run.hear("killed, restarts on full");
    let status = wait_status(&dir, "steps", |status| status.step > 100);
    kill(status.pid_keeper.unwrap());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    run.hear("finished");
    assert!(journal_says(&dir, "injected kill@300"), "the second death came under the second keeper");
    assert_eq!(run.titles(), ["killed, restarts on full", "finished"]);
}

#[test]
fn a_drill_sends_nothing_and_notes_what_it_would_have_sent() {
    let mut run = Notified::scripted("");
    let (mut child, dir) = run.start(&["--set", "training.steps=6100", "--inject", "oom@6000"]);
    wait_status(&dir, "steps", |status| status.step > 60);
    fs::write(dir.file("drill.json"), json!({"temperature_c": 60.0}).to_string()).unwrap();
    run.place.output(&["stop"]);
    assert_eq!(child.wait().unwrap().code(), Some(3));
    run.hear("stopped");
    let resumed = run.place.output(&["resume", "--headless", "--trust"]);
    assert_eq!(resumed.status.code(), Some(0), "{resumed:?}");
    wait_status(&dir, "the keeper's end", |status| status.pid_keeper.is_none());
    for title in ["out of device memory, shifts to accumulate", "finished"] {
        assert!(journal_says(&dir, &format!(": {title}: ")), "{title}");
    }
    assert!(journal_says(&dir, "a drill sends no notification"));
    assert_eq!(run.bodies.try_iter().count(), 0);
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
    let told: Value = serde_json::from_str(&bodies.recv_timeout(crate::helper::LIMIT).unwrap()).unwrap();
    assert!(told["title"].as_str().unwrap().ends_with(": hot"), "{told}");
    assert!(told["text"].as_str().unwrap().contains("91 °C"), "{told}");
    // Two more readings at the same temperature.
    let now = wait_status(&run, "a status", |_| true).step;
    wait_status(&run, "two more seconds", |status| status.step > now + 100);
    assert_eq!(bodies.try_iter().count(), 0, "told once");
    place.output(&["stop"]);
}
