//! The real program with the real trainer on the CPU, as a script uses it.
#![cfg(feature = "train")]

use crate::helper::terminal::Terminal;
use crate::helper::{Place, journal_says, wait_for, wait_state, wait_status};
use downshift::protocol::control::RunState;
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// A short run of the shipped digits, in the folder of the place.
const SHORT: [&str; 8] = ["run", "digits", "--headless", "--device", "cpu", "--set", "training.epochs=2", "--set"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn short<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SHORT.iter().copied().chain(["checkpoint.every=10 steps"]).chain(more.iter().copied()).collect()
}

/// Returns the clock of the digits run: 1 438 training samples per epoch in steps of 32, the last one smaller.
fn clock(step: u64) -> u64 {
    let (epoch, within) = ((step - 1) / 45, (step - 1) % 45 + 1);
    epoch * 1438 + (within * 32).min(1438)
}

#[test]
fn the_default_run_learns_and_leaves_everything_behind() {
    let place = Place::real();
    let out = place.output(&short(&[]));
    assert_eq!(out.status.code(), Some(0), "{}{}", text(&out.stdout), text(&out.stderr));
    let status = place.status_json();
    let (steps, batch) = (status["step"].as_u64().unwrap(), 32);
    assert_eq!((&status["state"], status["durable_step"].as_u64()), (&"finished".into(), Some(steps)));
    assert!(status["eval"]["accuracy"].as_f64().unwrap() > 0.3, "{status}");
    let rows = place.rows();
    assert_eq!(rows.len() as u64, steps);
    assert_eq!(rows[0]["samples"], batch);
    assert!(rows[0]["loss"].as_f64() > rows.last().unwrap()["loss"].as_f64());
    let tmux = place.output(&["status", "--format", "tmux"]);
    let line = text(&tmux.stdout);
    assert!(line.starts_with("#[fg=green]●#[default] digits #[fg=green]finished#[default] full 100 %"), "{line}");
    let listed = text(&place.output(&["checkpoints", "list"]).stdout);
    assert!(listed.contains("best"), "{listed}");
    assert_eq!(place.output(&["checkpoints", "verify"]).status.code(), Some(0));
}

#[test]
fn killed_again_and_again_it_ends_with_the_weights_of_the_unbroken_run() {
    let weights = |injected: &[&str]| {
        let place = Place::real();
        let out = place.output(&short(injected));
        assert_eq!(out.status.code(), Some(0), "{}{}", text(&out.stdout), text(&out.stderr));
        let file = place.dir.path().join("weights.safetensors");
        let exported = place.output(&["checkpoints", "export", "--out", file.to_str().unwrap()]);
        assert!(exported.status.success(), "{}", text(&exported.stderr));
        let steps = place.status_json()["step"].as_u64().unwrap();
        let losses: Vec<_> = place.curve_by(steps, clock).iter().map(|row| row["loss"].clone()).collect();
        (fs::read(file).unwrap(), losses, place.status_json()["restarts"].as_u64())
    };
    let (whole, curve, restarts) = weights(&[]);
    assert_eq!(restarts, Some(0));
    let (broken, again, restarts) = weights(&["--inject", "kill@15,panic@33,panic@47,exit0@52"]);
    assert_eq!(restarts, Some(4));
    assert!(whole == broken, "the weights differ");
    assert_eq!(curve, again);
}

#[test]
fn a_run_that_cannot_work_is_refused_before_anything_is_started() {
    let place = Place::real();
    let folder = place.dir.path();
    fs::write(
        folder.join("bad.yaml"),
        "name: bad\ntask: vison\ntraining: { epochs: 1, micro_batch: 2.5 }\noptimizer: { lr: 1 }\n",
    )
    .unwrap();
    fs::write(folder.join("cut.gz"), b"\x1f\x8b\x08").unwrap();
    for name in ["empty", "mine", "text"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    for name in ["mine.yaml", "text.yaml"] {
        fs::write(folder.join(name), "name: mine\ntask: vison\n").unwrap();
    }
    let table: [(&[&str], i32, &str); 9] = [
        (&["run", "mine"], 13, "did you mean `mine.yaml`?"),
        (&["run", "text", "--device", "gpu"], 2, "the one in this folder is `text.yaml`"),
        (&["run", "bad.yaml"], 13, "bad.yaml:2:7: task: no task is called `vison`; did you mean `vision`?"),
        (&["check", "bad.yaml"], 13, "bad.yaml:3:37: training.micro_batch: expected a whole number, found 2.5"),
        (
            &["run", "nowhere.yaml"],
            2,
            "one that ships inside: digits, pictures, text, lora, finetune, stable, sizes, cifar10",
        ),
        (&["run", "digits", "--set", "data.source=nowhere"], 15, "nowhere"),
        (&["run", "digits", "--set", "data.source=empty"], 15, "empty"),
        (&["run", "digits", "--device", "cpu", "--set", "training.precision=bf16"], 13, "f32"),
        (&["run", "digits", "--device", "gpu"], 2, "cuda:0"),
    ];
    for (words, code, part) in table {
        let out = place.output(words);
        assert_eq!(out.status.code(), Some(code), "{words:?}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains(part), "{words:?}: {}", text(&out.stderr));
    }
    assert!(place.newest().is_none(), "something was started");
}

#[test]
fn a_start_that_is_refused_shows_the_whole_list_with_the_failed_row() {
    let place = Place::real();
    fs::write(place.dir.path().join("text.txt"), "abcdefgh".repeat(2500)).unwrap();
    fs::write(place.dir.path().join("cut.json"), "{").unwrap();
    let cases = [
        ("data.tokenizer=cut.json", "fail  tokenizer ", "not a readable tokenizer.json"),
        ("data.source=nowhere.txt", "fail  data ", "nowhere.txt"),
    ];
    for (set, row, why) in cases {
        let text_file = ["--device", "cpu", "--set", "data.source=text.txt", "--set", set];
        for words in [&["check", "text", "--preflight"][..], &["run", "text", "--headless"], &["trial", "text"]] {
            let out = place.output(&[words, &text_file].concat());
            let (shown, said) = (text(&out.stdout), text(&out.stderr));
            assert_eq!(out.status.code(), Some(15), "{words:?}: {shown}{said}");
            assert!(shown.contains(row) && shown.contains(why), "{words:?}: {shown}{said}");
            assert!(shown.contains("ok    config ") && shown.contains("ok    disk "), "{words:?}: {shown}");
        }
    }
    assert!(place.newest().is_none(), "something was started");
}

#[test]
fn misfits_of_device_and_data_are_reported_in_place_with_all_other_mistakes() {
    let place = Place::real();
    let digits = fs::read_to_string("configs/digits.yaml").unwrap();
    let wrong = digits
        .replace("precision: f32", "precision: bf16")
        .replace("micro_batch: 32 ", "micro_batch: 4096 ")
        .replace("max_norm: 1.0", "max_norm: -1.0");
    fs::write(place.dir.path().join("wrong.yaml"), wrong).unwrap();
    let out = place.output(&["check", "wrong.yaml", "--device", "cpu"]);
    assert_eq!(out.status.code(), Some(13));
    let said = text(&out.stderr);
    let lines: Vec<&str> = said.lines().skip(1).collect();
    let parts = [
        ("training.micro_batch: 4096 × 1 are 4096 samples per step", "write 1438 × 1 or less"),
        ("training.precision: bf16 does not train on the CPU", "use f32"),
        ("optimizer.max_norm: ", "write 1.0"),
    ];
    assert_eq!(lines.len(), parts.len(), "{said}");
    for (line, (wrong, fix)) in lines.iter().zip(parts) {
        assert!(line.starts_with("wrong.yaml:") && line.contains(wrong) && line.contains(fix), "{said}");
    }
}

#[test]
fn a_rung_further_down_that_could_not_be_trained_is_refused_before_the_start() {
    let place = Place::real();
    fs::write(place.dir.path().join("text.txt"), "abcdefgh".repeat(2500)).unwrap();
    let check = |rung: &str| {
        let body = "name: text\ntask: lm\ndata: { source: text.txt }\nmodel: { layers: 1, width: 16, sequence: 64 }\n\
                    training: { steps: 4, micro_batch: 32 }\n\
                    optimizer: { lr: 0.001, groups: { last: { match: norm } } }\nladder:\n";
        fs::write(
            place.dir.path().join("text.yaml"),
            format!("{body}  - {{ name: low, warm_start: true, set: {{ {rung} }} }}\n"),
        )
        .unwrap();
        let out = place.output(&["check", "text.yaml", "--device", "cpu"]);
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    };
    for (rung, part) in [
        ("optimizer.groups.last.match: gone", "optimizer.groups.last.match: `gone` matches no parameter"),
        ("training.trained: adapters", "training.trained: the model has no adapters"),
        ("model.sequence: 1024", "training.micro_batch: 32 × 1 are 32 samples per step, but there are only 16"),
    ] {
        let (code, said) = check(rung);
        assert!(code == Some(13) && said.contains("rung low: ") && said.contains(part), "{code:?} {said}");
    }
    // Shorter windows mean more samples than on the first rung.
    let (code, said) = check("model.sequence: 8, training.micro_batch: 1024");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_model_that_cannot_be_built_is_refused_and_not_built() {
    for (config, knob, named) in [
        ("digits", "model.dropout=1.5", "model.dropout"),
        ("text", "model.sequence=0", "model.sequence"),
        ("finetune", "model.lora.dropout=-1", "model.lora.dropout"),
    ] {
        let out = Place::real().output(&["check", config, "--device", "cpu", "--set", knob]);
        let said = text(&out.stderr);
        assert!(out.status.code() == Some(13) && said.contains(named) && !said.contains("panicked"), "{said}");
    }
}

#[test]
fn pretrained_weights_are_checked_before_a_run_begins() {
    let place = Place::real();
    let model = place.dir.path().join("model");
    fs::create_dir(&model).unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hf/gpt2");
    let copy = |name: &str| fs::copy(shipped.join(name), model.join(name)).map(drop).unwrap();
    let check = || {
        let set = ["model.init_from=model", "model.sequence=16"].map(|knob| ["--set", knob]).concat();
        let out = place.output(&[&["check", "lora", "--device", "cpu"][..], &set].concat());
        (out.status.code(), text(&out.stderr))
    };
    copy("config.json");
    for (name, part) in [
        ("tokenizer.json", "set data.tokenizer to the model's tokenizer.json"),
        ("model.safetensors", "contains neither model.safetensors nor"),
    ] {
        let (code, said) = check();
        assert!(code == Some(15) && said.contains(part), "{code:?} {said}");
        copy(name);
    }
    assert_eq!(check().0, Some(0), "{}", check().1);
    let weights = fs::read(model.join("model.safetensors")).unwrap();
    fs::write(model.join("model.safetensors"), &weights[..weights.len() - 8]).unwrap();
    let (code, said) = check();
    assert!(code == Some(15) && said.contains("download it again"), "{code:?} {said}");
}

#[test]
fn the_shipped_adapters_fit_a_gpt_2_too() {
    let gpt2 = format!("model.init_from={}/tests/fixtures/hf/gpt2", env!("CARGO_MANIFEST_DIR"));
    let words = ["check", "lora", "--device", "cpu", "--set", &gpt2, "--set", "model.sequence=16"];
    let out = Place::real().output(&words);
    assert_eq!(out.status.code(), Some(0), "{}{}", text(&out.stdout), text(&out.stderr));
}

#[test]
fn every_shipped_run_file_is_valid_with_three_rungs_below_full() {
    let place = Place::real();
    for name in ["digits", "text", "lora", "cifar10"] {
        let out = place.output(&["check", name, "--device", "cpu"]);
        let shown = text(&out.stdout);
        // CIFAR-10 does not ship: its table is shown, its data is reported missing.
        assert_eq!(out.status.code(), Some(if name == "cifar10" { 15 } else { 0 }), "{shown}{}", text(&out.stderr));
        let heading = shown.lines().next().unwrap();
        assert!(heading.contains("0 full") && heading.contains("   3 "), "{shown}");
        assert!(shown.contains("A same training") && shown.contains("helps against"), "{shown}");
    }
}

#[test]
fn out_of_memory_is_its_own_class_and_the_keeper_takes_the_rung_that_relieves_it() {
    let place = Place::real();
    let out = place.output(&short(&["--inject", "oom@33"]));
    assert_eq!(out.status.code(), Some(0), "{}{}", text(&out.stdout), text(&out.stderr));
    let status = place.status_json();
    assert_eq!((&status["rung_name"], &status["restarts"]), (&"accumulate".into(), &1.into()));
    let place = Place::real();
    let out = place.output(&short(&["--inject", "oom@33*", "--set", "watch.restarts_without_progress=0"]));
    assert_eq!(out.status.code(), Some(10), "{}{}", text(&out.stdout), text(&out.stderr));
}

#[test]
fn a_reader_that_closes_the_pipe_is_not_a_failure() {
    let place = Place::real();
    let mut check = place.command(&["check", "digits", "--device", "cpu"]);
    let mut child = check.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), text(&out.stderr).as_str()), (Some(0), ""));
}

#[test]
fn a_lasting_hang_is_ended_and_the_run_continues() {
    let place = Place::real();
    let out = place.output(&short(&["--inject", "hang@60", "--set", "watch.hang_min=1 s"]));
    assert_eq!(out.status.code(), Some(0), "{}{}", text(&out.stdout), text(&out.stderr));
    let run = place.newest().unwrap();
    assert!(journal_says(&run, "hang: no progress"));
    wait_status(&run, "one restart", |status| status.restarts == 1);
}

#[test]
fn the_shipped_digits_are_learnt_and_shifted() {
    let place = Place::real();
    let terminal = Terminal::open(&place, (80, 24));
    terminal.enter(&format!("{} run --device cpu", env!("CARGO_BIN_EXE_downshift")));
    let run = wait_for("a run directory", || place.newest());
    crate::helper::shift::shift_down(&place, &terminal, &run);
    terminal.press(&["x"]);
    terminal.confirm("stop the run");
    wait_state(&run, RunState::Stopped);
}
