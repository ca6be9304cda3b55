//! The custom-task example, trained from start to finish as a standalone program.
#![cfg(feature = "train")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the path of the example, which `cargo test` builds beside the tests.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(Path::parent).unwrap().join("examples/own_task");
    assert!(
        program.exists(),
        "{}: a filtered test run does not build it: cargo build --example own_task",
        program.display()
    );
    program
}

fn call(runs: &Path, arguments: &[&str]) -> Output {
    Command::new(example())
        .args(arguments)
        .args([Path::new("--runs-dir"), runs])
        .env("XDG_RUNTIME_DIR", runs)
        .env("XDG_STATE_HOME", runs)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

#[test]
fn a_user_defined_task_learns_and_reports_its_own_mistakes() {
    let runs = tempfile::tempdir().unwrap();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/own_task.yaml");
    let run = call(runs.path(), &["run", "--headless", "--device", "cpu", file]);
    assert!(run.status.success(), "{}", text(&run));
    let status = call(runs.path(), &["status", "--format", "json"]);
    let status: serde_json::Value =
        serde_json::from_slice(&status.stdout).unwrap_or_else(|_| panic!("{}", text(&status)));
    assert_eq!(status["state"], "finished");
    assert!(status["eval"]["accuracy"].as_f64().unwrap() > 0.95, "{status}");
    let confidence = status["eval"]["metrics"]["confidence"].as_f64().unwrap();
    assert!(confidence > 0.8 && confidence <= 1.0, "{status}");
    assert_eq!(status["best"]["metric"], "confidence", "{status}");
    assert!(status["best"]["value"].as_f64().unwrap() >= confidence, "{status}");

    let samples = call(runs.path(), &["samples", "--format", "json"]);
    let samples: serde_json::Value =
        serde_json::from_slice(&samples.stdout).unwrap_or_else(|_| panic!("{}", text(&samples)));
    let shown = samples["sets"][0]["samples"].as_array().unwrap();
    assert_eq!((shown.len(), &samples["sets"][0]["step"]), (8, &status["step"]));
    let right = shown.iter().filter(|sample| sample["label"] == sample["answer"]).count();
    assert!(right >= 7, "{samples}");
    assert!(shown.iter().all(|sample| sample["confidence"].as_f64().is_some_and(|share| share >= 0.5)), "{samples}");

    let refused = call(runs.path(), &["check", "--set", "checkpoint.best.metric=confidense", file]);
    assert_eq!(refused.status.code(), Some(13), "{}", text(&refused));
    let told = "evaluations of task spirals do not report `confidense`; did you mean `confidence`?";
    assert!(text(&refused).contains(told), "{}", text(&refused));

    let refused = call(runs.path(), &["check", "--set", "data.points=3", file]);
    assert_eq!(refused.status.code(), Some(13), "{}", text(&refused));
    assert!(text(&refused).contains("data.points: this leaves no point to hold out; 1000 works"), "{}", text(&refused));
}
