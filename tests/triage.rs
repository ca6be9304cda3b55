//! The catalogue against what programs really print, and the command that applies it.
#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use downshift::triage::catalogue::Catalogue;
use downshift::triage::scan::{look, scan};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Output, Stdio};

const KNOWN: &str = include_str!("triage/known.txt");
const LOOKALIKES: &str = include_str!("triage/lookalikes.txt");

fn catalogue() -> Catalogue {
    Catalogue::with(None).unwrap()
}

/// The lines of a table, without those that explain it.
fn rows(text: &str) -> impl Iterator<Item = &str> {
    text.lines().skip(1).filter(|line| !line.trim().is_empty())
}

#[test]
fn real_messages_are_recognised() {
    let catalogue = catalogue();
    let (mut wrong, mut count, mut classes) = (Vec::new(), 0, BTreeSet::new());
    for row in rows(KNOWN) {
        let (class, message) = row.split_once(" | ").unwrap();
        let found = look(message.as_bytes(), 1, &catalogue).map(|finding| finding.class.word());
        count += 1;
        classes.insert(class);
        if found != Some(class) {
            wrong.push(format!("{class}, not {found:?}: {message}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 60 && classes.len() >= 16, "{count} messages of {classes:?}");
}

#[test]
fn lookalikes_are_not() {
    let catalogue = catalogue();
    let found: Vec<String> = rows(LOOKALIKES)
        .filter_map(|line| look(line.as_bytes(), 1, &catalogue).map(|found| format!("{} is no {}", line, found.name)))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(rows(LOOKALIKES).count() >= 20);
}

#[test]
fn whole_logs_have_their_root_cause() {
    let catalogue = catalogue();
    let torchrun = scan(&mut include_bytes!("triage/logs/torchrun_oom.log").as_slice(), &catalogue).unwrap();
    let root = torchrun.root().unwrap();
    assert_eq!((root.class.word(), root.line), ("device_out_of_memory", 7));
    assert!(torchrun.findings.iter().any(|finding| finding.class.word() == "collective" && finding.symptom));
    let healthy = scan(&mut include_bytes!("triage/logs/healthy.log").as_slice(), &catalogue).unwrap();
    assert_eq!(healthy.findings, []);
}

fn run(words: &[&str], input: &[u8], config: Option<&str>) -> Output {
    let home = tempfile::tempdir().unwrap();
    if let Some(text) = config {
        std::fs::create_dir(home.path().join("downshift")).unwrap();
        std::fs::write(home.path().join("downshift/catalogue.yaml"), text).unwrap();
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_downshift"))
        .arg("triage")
        .args(words)
        .env("XDG_CONFIG_HOME", home.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).ok();
    child.wait_with_output().unwrap()
}

#[test]
fn the_command_prints_json_and_words() {
    let log = b"fine\nRuntimeError: CUDA error: an illegal memory access was encountered\n\xff\xff\n";
    let output = run(&["-", "--format", "json"], log, None);
    assert!(output.status.success());
    let list: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list.len(), 1);
    let keys: BTreeSet<&str> = list[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(["class", "line", "text", "meaning", "advice"]));
    assert_eq!((list[0]["class"].as_str(), list[0]["line"].as_u64()), (Some("device_fault"), Some(2)));

    let words = String::from_utf8(run(&["-"], log, None).stdout).unwrap();
    assert!(words.contains("line 2: RuntimeError") && words.contains("do: "), "{words}");
    assert_eq!(run(&["-", "--format", "json"], b"all is well\n", None).stdout, b"[]\n");
    let packed = run(&["-"], b"\x1f\x8b\x08\0\0\0\0\0", None);
    assert_eq!(packed.status.code(), Some(1));
    assert!(String::from_utf8(packed.stderr).unwrap().contains("gzip"));
    let missing = run(&["/nonexistent.log"], b"", None);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8(missing.stderr).unwrap().contains("/nonexistent.log"));
}

#[test]
fn the_users_catalogue_extends_the_shipped_one() {
    let own = "causes:\n  - name: lab\n    class: data\n    patterns: ['LAB-ERROR \\d+']\n    meaning: the sampler failed\n    advice: call the lab\n";
    let output = run(&["-", "--format", "json"], b"LAB-ERROR 7\nNo space left on device\n", Some(own));
    let list: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list[0]["advice"], "call the lab");
    assert_eq!(list[1]["class"], "disk_full");

    let output = run(&["-"], b"", Some(&own.replace("advice: call", "advise: call")));
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(words.contains("catalogue.yaml:6:"), "{words}");
}
