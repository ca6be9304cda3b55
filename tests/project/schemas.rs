//! The schemas of the book: what the program prints fits them, and they name each field that it prints.

#![expect(clippy::unwrap_used, clippy::panic, reason = "the helpers of a test fail by panicking, as the test does")]

use crate::helper::Place;
use boon::{Compiler, Schemas};
use downshift::protocol::control::Status;
use downshift::protocol::plan::Plan;
use downshift::protocol::probe::Reading;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The schemas, in which no object may have a field that is not described.
struct Book {
    compiler: Compiler,
    names: BTreeSet<String>,
}

impl Book {
    fn open() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src/schemas");
        let (mut compiler, mut names) = (Compiler::new(), BTreeSet::new());
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let mut schema: Value = serde_json::from_str(&fs::read_to_string(entry.path()).unwrap()).unwrap();
            assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{name}");
            close(&mut schema);
            compiler.add_resource(&address(&name), schema).unwrap();
            names.insert(name);
        }
        Self { compiler, names }
    }

    /// Checks a value against the schema in a file.
    fn check(&mut self, name: &str, value: &Value) -> Result<(), String> {
        let mut schemas = Schemas::new();
        let schema =
            self.compiler.compile(&address(name), &mut schemas).map_err(|error| format!("{name}: {error:#}"))?;
        schemas.validate(value, schema).map_err(|error| format!("{name}: {error:#}"))
    }

    fn accept(&mut self, name: &str, value: &Value) {
        self.check(name, value).unwrap_or_else(|error| panic!("{error}\n{value:#}"));
    }
}

fn address(name: &str) -> String {
    format!("https://downshift.example/{name}")
}

/// Forbids fields without a description. The schemas themselves allow them, as later versions add some.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("properties").is_some_and(Value::is_object) && map.contains_key("type") {
                map.insert("additionalProperties".to_owned(), false.into());
            }
            map.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

const RUN: &str = r#"name: train
task: command
command: [sh, train.sh, "{knobs.x}"]
knobs: { x: 1 }
samples: { match: "*.sample.txt" }
"#;
const SCRIPT: &str = "for step in 1 2 3 4 5 6; do echo \"step $step loss $((9 - step)).0\"; sleep 0.02; done\n\
                      echo drawn > step-6.sample.txt\n\
                      echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB' >&2\nexit 1\n";
const LOG: &str = "step 1 loss 2.0\nMA 3.2 GB         Max_MA 3.5 GB         CA 4.0 GB         Max_CA 4 GB\n\
                   Traceback (most recent call last):\n\
                   \x20 File \"/home/me/train.py\", line 3, in <module>\n    main()\nValueError: bad batch\n";

#[test]
fn what_each_command_prints_fits_its_schema() {
    let mut book = Book::open();
    let place = Place::real();
    for (name, text) in
        [("run.yaml", RUN), ("train.sh", SCRIPT), ("train.log", LOG), ("empty.log", "step 1 loss 2.0\n")]
    {
        fs::write(place.dir.path().join(name), text).unwrap();
    }
    let trusted = ["--trust", "--device", "cpu"];
    let ended = place.output(&[&["run", "run.yaml", "--headless"][..], &trusted].concat());
    assert!(!ended.status.success());
    let measured = ["compare-knob", "run.yaml", "knobs.x", "1", "2", "--steps", "2", "--format", "json"];
    let cases: [(&str, Vec<&str>); 10] = [
        ("status.json", vec!["status", "--format", "json"]),
        ("runs.json", vec!["runs", "--format", "json"]),
        ("runs.json", vec!["queue", "--format", "json"]),
        ("triage.json", vec!["triage", "--format", "json"]),
        ("triage.json", vec!["triage", "train.log", "empty.log", "--format", "json"]),
        ("triage-memory.json", vec!["triage", "train.log", "--memory", "--format", "json"]),
        ("doctor.json", vec!["doctor", "--format", "json"]),
        ("watch.json", vec!["watch", "--once", "--format", "json"]),
        ("samples.json", vec!["samples", "--format", "json"]),
        ("compare-knob.json", [&measured[..], &trusted].concat()),
    ];
    let mut seen: BTreeSet<String> = ["plan.json".to_owned()].into();
    for (schema, words) in cases {
        let printed = parse(&String::from_utf8(place.output(&words).stdout).unwrap());
        book.accept(schema, &printed);
        assert!(words[0] == "queue" || printed.as_array().is_none_or(|rows| !rows.is_empty()), "{words:?}: {printed}");
        seen.insert(schema.to_owned());
    }
    for row in place.succeed(&["export", "--format", "jsonl"]).lines() {
        book.accept("export.json", &parse(row));
        seen.insert("export.json".to_owned());
    }
    assert_eq!(seen, book.names, "the schemas, and those that something printed was checked against");
}

/// A status in which nothing is missing. What a run has at one time cannot show every field.
const WHOLE_STATUS: &str = r#"{
    "run": "r", "state": "training", "why": "w", "exit_code": 0, "rung": 0, "rung_name": "full", "level": 1,
    "capability": { "resumes": "checkpoints", "saves_on_signal": true, "may_start_over": false, "may_end": true },
    "resume": { "grade": "same_data", "proven": true, "reason": "r" },
    "resumed": { "state": "contradicted", "asked": 8, "found": { "from": "untrained_loss", "loss": 2.0, "before": 1.0 } },
    "companion": { "framework": "loop", "version": "1", "python": "3", "torch": "2", "grade": "exact", "reason": "r",
        "saves": true, "guards": true, "counts_skips": true, "parameters": 1, "epoch_units": 1, "unit": "samples", "world": 2,
        "sharded": false, "knobs": { "optimizer.lr": 0.1 }, "ignored": [{ "name": "a", "rung": 1, "in_force": 2 }],
        "seen": { "a": { "rung": 1, "in_force": 1, "is_stuck": false } }, "imports_ahead": true },
    "awaits_companion": true,
    "ranks": [{ "rank": 0, "pid": 7, "node": 0, "card": 0, "step": 8, "phase": "training", "stands_ms": 1, "idle_ms": 1,
        "process": "sleeping", "mark": "straggler",
        "cpu": 0.5, "step_ms": 1.0, "own_ms": 1.0, "data_wait_ms": 1.0, "loss": 1.0, "memory_bytes": 1, "reserved_bytes": 1 }],
    "step": 8, "samples": 64, "total_samples": 640, "total_steps": 80, "ends_ms": 5, "epoch_samples": 64, "unit": "samples",
    "durable_step": 8, "failed_saves": { "step": 8, "count": 1, "why": "w" }, "attempts": 1, "restarts": 1, "pauses": 1,
    "shifts": 1, "rollbacks": 1, "skipped": 1,
    "updates": { "due": 9, "skipped": 1, "rescaled": 1, "recent": { "skipped": 1, "of": 9 } },
    "unguarded": 1, "not_finite": 1, "progress": { "since_ms": 1, "patience_ms": 1 }, "loss": 1.5,
    "unread": { "lines": 3, "newest": "n", "pattern": "p" },
    "eval": { "step": 8, "samples": 64, "loss": 1.5, "accuracy": 0.5, "perplexity": 4.0, "metrics": { "accuracy": 0.5, "bleu": 0.2 },
        "reduced": { "step": 8, "from": 0.2, "to": 0.1, "factor": 0.5, "metric": "loss", "evaluations": 3 } },
    "best": { "step": 8, "eval_loss": 1.5, "metric": "accuracy", "value": 0.5 }, "setback": { "sign": "rising", "evaluations": 3 },
    "reduced": { "step": 8, "from": 0.2, "to": 0.1, "factor": 0.5, "metric": "loss", "evaluations": 3 },
    "kernels": { "used": 1, "expected": 3 }, "device": "cpu", "parameters": 10, "host": "h", "pid_keeper": 1, "pid_worker": 2,
    "pid_probe": 3, "pid_quality": 4, "autopilot": true, "proposal": { "why": "w", "does": "d" }, "climb": "c",
    "plan": { "stages": 2, "stage": 1, "rung": "full", "next": "safe" },
    "time": { "parts_ms": { "steps": 5, "start": 3 }, "faults": 1, "lost_to_faults_ms": 2, "as_of_ms": 9 },
    "passage": { "from": "full", "to": "safe", "stages": [{ "name": "save", "took_ms": 3 }], "before": [8, 1.5], "resumed_from": 8,
        "after": [9, 1.4] },
    "rungs": [{ "name": "full", "steps": 8, "steps_per_s": 1.0, "units_per_s": 8.0, "vram_bytes": 1, "ram_bytes": 1,
        "planned_bytes": 1, "fault": ["f", 8], "unusable": "u" }],
    "run_dir": "/r"
}"#;

#[test]
fn the_schema_of_a_status_names_every_field_and_no_other() {
    let mut book = Book::open();
    let status: Status = serde_json::from_str(WHOLE_STATUS).unwrap();
    let printed = serde_json::to_value(&status).unwrap();
    book.accept("status.json", &printed);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src/schemas/status.json");
    let schema = parse(&fs::read_to_string(path).unwrap());
    let described = schema["properties"].as_object().unwrap().keys();
    let missing: Vec<&String> = described.filter(|name| printed.get(name).is_none()).collect();
    assert_eq!(missing, ["useful", "stalled_ms"], "these two are added to what a keeper knows");
    for (field, wrong) in
        [("step", json!("8")), ("state", json!("asleep")), ("new_field", json!(1)), ("proposal", json!({}))]
    {
        let mut changed = printed.clone();
        changed[field] = wrong;
        assert!(book.check("status.json", &changed).is_err(), "{field}");
    }
}

#[test]
fn readings_of_a_gpu_and_a_memory_plan_fit_their_schemas() {
    let mut book = Book::open();
    let old = json!({ "stale": { "value": 5, "for_s": 3, "why": "w" } });
    let reading = json!({
        "gpu": { "Ok": { "index": 0, "name": "GPU", "driver": { "is": "1" }, "vram_total_bytes": { "is": 9 }, "vram_used_bytes": old,
            "vram_worker_bytes": { "not": "w" }, "temperature_c": { "is": 60.5 }, "slowdown_c": { "not": "w" },
            "utilisation": { "is": 0.5 }, "power_w": { "is": 100.0 }, "power_limit_w": { "is": 300.0 },
            "sm_clock_mhz": { "is": 1000 }, "throttle": { "is": { "thermal": false, "power": true, "hardware": false } } } },
        "host": { "ram_total_bytes": { "is": 9 }, "ram_used_bytes": { "is": 5 }, "ram_worker_bytes": { "not": "w" },
            "cpu": { "is": 0.5 }, "disk_free_bytes": { "is": 9 } }
    });
    let reading: Reading = serde_json::from_value(reading).unwrap();
    let mut printed = serde_json::to_value(&reading).unwrap();
    printed["time"] = "2026-01-31T14:25:00Z".into();
    printed["processes"] = json!([]);
    printed["kernel_log"] = json!({ "xids": { "79": 1 }, "oom_killer": 0 });
    book.accept("watch.json", &printed);
    let plan = r#"{
        "version": 1, "run": "r", "task": "text", "device": "cuda:0", "gpu": true,
        "card": { "name": "GPU", "total_bytes": 9, "free_bytes": 8 },
        "rungs": [{ "name": "full", "micro_batch": 8, "unknown": "w", "total_bytes": 5, "verdict": "does_not_fit", "failed": "f",
            "foreseen": { "parameters": 1, "trained": 1, "weights": 1, "gradients": 1, "optimizer": 1, "activations": 1, "logits": 1,
                "update": 1, "overhead": 1, "pages": 1, "training": 1, "loading": 1, "evaluation": 1, "saving": 1, "loader": 1, "data": 1,
                "ram": { "loading": 1, "training": 1, "evaluation": 1, "saving": 1 }, "largest_micro_batch": 4 },
            "measured": { "peak_bytes": 1, "all_phases": true, "of_card": true, "baseline_bytes": 1,
                "ram": { "loading": 1, "training": 1, "evaluation": 1, "saving": 1 }, "steps_per_s": 1.0, "step_ms": 1.0,
                "units_per_s": 1.0, "steps": 3, "loss": 1.0, "first_step_s": 1.0 } }]
    }"#;
    let plan: Plan = serde_json::from_str(plan).unwrap();
    book.accept("plan.json", &serde_json::to_value(&plan).unwrap());
}
