//! Named metrics from the worker to every file that leaves the run.

use crate::helper::{Place, journal, journal_says};
use downshift::protocol::metrics::MAX_NAMES;
use downshift::store::reader::Reader;
use serde_json::{Value, json};
use std::fs;

/// Plays a run of 400 steps whose worker reports these metrics; "step" stands for the step's number.
fn played(metrics: &Value, evals: &Value) -> Place {
    let place = Place::scripted();
    let scenario = json!({ "step_ms": 1, "save_ms": 1, "metrics": metrics, "eval_metrics": evals });
    place.script(&scenario.to_string(), "");
    place.succeed(&["run", "--headless", "run.yaml"]);
    place
}

#[test]
fn a_metric_reaches_the_store_and_every_export() {
    let metrics = json!({ "reward/mean": "step", "tokens per s": 1e6, "lr": 5.0 });
    let place = played(&metrics, &json!({ "fid": 12.5 }));
    let run = place.newest().unwrap();
    let names: Vec<String> =
        Reader::open(&run).unwrap().metric_names().unwrap().iter().map(|(_, name)| name.to_owned()).collect();
    assert_eq!(names, ["reward/mean", "tokens_per_s"]);
    assert!(journal_says(&run, "metric lr is left out"), "{:?}", journal(&run));

    let rows = place.rows();
    assert!(rows.iter().all(|row| row["metrics"]["reward/mean"].as_f64() == row["step"].as_f64()), "{:?}", rows[0]);
    let csv = place.succeed(&["export", "--format", "csv"]);
    let mut lines = csv.lines();
    assert!(lines.next().unwrap().ends_with(",skipped,reward/mean,tokens_per_s"));
    assert!(lines.next().unwrap().ends_with(",false,1,1000000"), "{csv}");

    let status = place.status_json();
    assert_eq!((&status["eval"]["metrics"]["fid"], &status["eval"]["accuracy"]), (&json!(12.5), &json!(0.9)));
    place.succeed(&["plot", "--out", "a.svg", "--metric", "reward/mean,eval/fid,eval/accuracy"]);
    let picture = fs::read_to_string(place.dir.path().join("a.svg")).unwrap();
    assert!(picture.contains("reward/mean") && picture.contains("eval/fid"), "{picture}");
    let out = place.output(&["plot", "--out", "a.svg", "--metric", "reward/men"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("did you mean `reward/mean`?"), "{said}");

    place.succeed(&["export", "--format", "tensorboard", "--out", "tb"]);
    let folder = fs::read_dir(place.dir.path().join("tb")).unwrap().next().unwrap().unwrap().path();
    let events = fs::read(fs::read_dir(folder).unwrap().next().unwrap().unwrap().path()).unwrap();
    for tag in ["metrics/reward/mean", "metrics/tokens_per_s", "eval/fid", "eval/accuracy"] {
        assert!(events.windows(tag.len()).any(|part| part == tag.as_bytes()), "{tag}");
    }
}

#[test]
fn the_rows_of_a_script_that_names_no_samples_have_none() {
    let place = Place::real();
    let prints = "for step in 1 2 3; do echo step $step loss 0.5; sleep 0.05; done";
    place.succeed(&["run", "--headless", "--device", "cpu", "--", "sh", "-c", prints]);
    let rows = place.rows();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["samples"] == Value::Null), "{rows:?}");
    let csv = place.succeed(&["export", "--format", "csv"]);
    assert!(csv.lines().skip(1).all(|line| line.split(',').nth(3) == Some("")), "{csv}");
}

#[test]
fn a_run_has_at_most_64_metrics() {
    let metrics: serde_json::Map<String, Value> = (0..80).map(|number| (format!("m{number:02}"), json!(1.0))).collect();
    let place = played(&Value::Object(metrics), &json!({}));
    let run = place.newest().unwrap();
    assert_eq!(Reader::open(&run).unwrap().metric_names().unwrap().len(), MAX_NAMES);
    let notes = journal(&run).into_iter().filter(|row| row.text.contains("at most 64")).count();
    assert_eq!(notes, 1, "{:?}", journal(&run));
    assert!(place.rows().iter().all(|row| row["metrics"].as_object().unwrap().len() == MAX_NAMES));
}
