//! Settings files of the user's own: each rung gets a copy with its values, and nothing else of the file changes.

use super::shown;
use crate::helper::{Place, journal_says, wait_for, wait_status};
use downshift::store::reader::live_status;
use std::fs;
use std::process::Stdio;

/// Prints the settings that it was started with, and trains until a file says that it is enough.
const SCRIPT: &str = r#"
echo "settings: $(tr '\n' '|' < "$1")" >> "$RUN/seen"
step=$(cat "$FROM/state" 2>/dev/null || echo 0)
until [ -e "$RUN/enough" ]; do
  step=$((step + 1))
  echo "step $step loss 1.0"
  mkdir -p "$RUN/out/checkpoint-$step" && echo $step > "$RUN/out/checkpoint-$step/state"
  sleep 0.1
done
"#;

const RUN: &str = r#"name: settings
task: command
command: [sh, train.sh, "{files.my.toml}"]
environment: { RUN: "{run_dir}" }
files:
  my.toml: { from: my.toml, set: { train.batch_size: "{training.micro_batch}", train.lr: "{optimizer.lr}", train.clip: "{knobs.clip}" } }
training: { micro_batch: 4 }
optimizer: { lr: 1.0e-4 }
knobs: { clip: null }
checkpoints: { match: "{run_dir}/out/checkpoint-*", complete: state, keep_last: 3 }
resume: { environment: { FROM: "{checkpoint}" } }
ladder:
  - { name: small, relieves: [memory], set: { training.micro_batch: 2 } }
  - { name: wrong, relieves: [numerics], from: full, set: { knobs.clip: 0.5 } }
"#;

const SETTINGS: &str = "# mine\n[train]\nbatch_size = 4 # fits\nlr = 1e-4\nclip = 1.0\n";

fn place(settings: &str) -> Place {
    let place = Place::real();
    fs::write(place.dir.path().join("train.sh"), SCRIPT).unwrap();
    fs::write(place.dir.path().join("my.toml"), settings).unwrap();
    fs::write(place.dir.path().join("run.yaml"), RUN).unwrap();
    place
}

#[test]
fn each_rung_is_started_with_its_copy_and_a_change_of_the_file_is_noted() {
    let place = place(SETTINGS);
    let checked = place.succeed(&["check", "run.yaml", "--device", "cpu"]);
    assert!(checked.contains("my.toml: a copy of my.toml with train.batch_size: {training.micro_batch}"), "{checked}");
    let words = ["run", "run.yaml", "--trust", "--headless", "--device", "cpu"];
    let mut running = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let run = wait_for("a checkpoint", || {
        place.newest().filter(|run| live_status(run).is_some_and(|status| status.durable_step.is_some()))
    });
    let seen = |run: &downshift::store::run_dir::RunDir| fs::read_to_string(run.file("seen")).unwrap_or_default();
    let told = |settings: &str| format!("settings: {}", settings.replace('\n', "|"));
    assert!(seen(&run).contains(&told(SETTINGS)), "full has the bytes of the file: {}", seen(&run));
    let small = SETTINGS.replace("= 4", "= 2").replace("clip = 1.0", "clip = 2.0");
    fs::write(place.dir.path().join("my.toml"), SETTINGS.replace("clip = 1.0", "clip = 2.0")).unwrap();
    place.succeed(&["shift", "small"]);
    let shifted = wait_status(&run, "steps on the rung", |status| status.rung == 1 && status.rungs[1].steps > 0);
    assert!(seen(&run).contains(&told(&small)), "{}", seen(&run));
    assert!(journal_says(
        &run,
        "my.toml changed since attempt 1, and this attempt uses it as it is now: train.clip 1.0 → 2.0"
    ));
    // A rung whose copy cannot be made is left again.
    fs::write(place.dir.path().join("my.toml"), SETTINGS.replace("clip = 1.0", "clip = \"auto\"")).unwrap();
    place.succeed(&["shift", "wrong"]);
    let back = wait_status(&run, "the rung it came from", |status| {
        status.rung == 1 && status.rungs[2].unusable.is_some() && status.step > shifted.step
    });
    assert_eq!(back.exit_code, None);
    fs::write(run.file("enough"), "").unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(0));
}

#[test]
fn what_cannot_be_set_is_refused_before_the_start_with_its_place() {
    let cases = [
        (
            SETTINGS.replace("batch_size", "batchsize"),
            "it has no key `train.batch_size`; did you mean `train.batchsize`?",
        ),
        (SETTINGS.replace("= 4", "= \"four\""), "my.toml:3:14: `train.batch_size` is text, and 4 is not"),
        (SETTINGS.replace("[train]", "[train"), "my.toml:2:"),
        (SETTINGS.replace("clip = 1.0", "clip = \"auto\""), "my.toml:5:8: `train.clip` is text, and 0.5 is not"),
    ];
    for (settings, wrong) in cases {
        let place = place(&settings);
        for words in [
            &["check", "run.yaml"][..],
            &["check", "run.yaml", "--preflight"],
            &["run", "run.yaml", "--trust", "--headless"],
        ] {
            let out = place.output(&[words, &["--device", "cpu"]].concat());
            assert_eq!(out.status.code(), Some(13), "{words:?}: {}", shown(&out));
            assert!(shown(&out).contains(wrong), "{words:?}: {wrong}: {}", shown(&out));
        }
        assert!(place.newest().is_none(), "nothing was started");
    }
    let place = place(SETTINGS);
    fs::remove_file(place.dir.path().join("my.toml")).unwrap();
    let out = place.output(&["check", "run.yaml", "--device", "cpu"]);
    assert!(out.status.code() == Some(13) && shown(&out).contains("my.toml does not exist"), "{}", shown(&out));
}

#[test]
fn a_copy_beside_its_file_is_gone_when_the_command_has_ended_and_full_says_what_it_changes() {
    let place = place(SETTINGS);
    let text =
        RUN.replace("from: my.toml,", "from: conf/my.toml, beside: true,").replace("micro_batch: 4", "micro_batch: 8");
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    fs::create_dir(place.dir.path().join("conf")).unwrap();
    fs::rename(place.dir.path().join("my.toml"), place.dir.path().join("conf/my.toml")).unwrap();
    let script = "cat \"$1\" > \"$RUN/seen\"; dirname \"$1\" >> \"$RUN/seen\"; echo 'step 1 loss 1.0'\n";
    fs::write(place.dir.path().join("train.sh"), script).unwrap();
    let checked = place.succeed(&["check", "run.yaml", "--device", "cpu"]);
    assert!(
        checked.contains("note: `full` sets train.batch_size to 8, and") && checked.contains("my.toml says 4"),
        "{checked}"
    );
    let out = place.output(&["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]);
    assert_eq!(out.status.code(), Some(0), "{}", shown(&out));
    let seen = fs::read_to_string(place.newest().unwrap().file("seen")).unwrap();
    assert!(seen.contains("batch_size = 8 # fits") && seen.trim_end().ends_with("/conf"), "{seen}");
    let left: Vec<_> =
        fs::read_dir(place.dir.path().join("conf")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["my.toml"]);
}

/// Reads its settings as kohya's scripts do: those of the file are defaults, and arguments win.
const KOHYA: &str = r"import argparse, json, tomllib
p = argparse.ArgumentParser()
p.add_argument('--config_file')
p.add_argument('--train_batch_size', type=int, default=1)
p.add_argument('--gradient_accumulation_steps', type=int, default=1)
p.add_argument('--learning_rate', type=float, default=2e-6)
p.add_argument('--max_grad_norm', type=float, default=1.0)
p.add_argument('--mixed_precision', default='no', choices=['no', 'fp16', 'bf16'])
p.add_argument('--gradient_checkpointing', action='store_true')
args = p.parse_args()
values = {}
for key, value in tomllib.load(open(args.config_file, 'rb')).items():
    values.update(value if isinstance(value, dict) else {key: value})
effective = vars(p.parse_args(namespace=argparse.Namespace(**values)))
effective.pop('config_file')
print(json.dumps(effective), file=open('effective', 'a'))
print('step 1 loss 1.0')
";

/// Takes the text of its file for its settings, without comments and paths.
const NESTED: &str = r"import json, sys
lines = [line.split('#')[0].strip() for line in open(sys.argv[1])]
print(json.dumps(lines), file=open('effective', 'a'))
print('step 1 loss 1.0')
";

/// HfArgumentParser with one JSON file.
const HUGGING_FACE: &str = r"import json, sys
print(json.dumps(json.load(open(sys.argv[1]))), file=open('effective', 'a'))
print('step 1 loss 1.0')
";

/// Hydra: `key=value` words over defaults of its own.
const HYDRA: &str = r"import json, sys
values = {'lr': 0.01, 'seed': 1}
for word in sys.argv[1:]:
    key, value = word.lstrip('+').split('=', 1)
    try:
        values[key] = float(value)
    except ValueError:
        values[key] = value
print(json.dumps(values), file=open('effective', 'a'))
print('step 1 loss 1.0')
";

const KOHYA_FILE: &str = "# mine\nlearning_rate = 1e-4\nmixed_precision = \"bf16\"\n[batch]\ntrain_batch_size = 4\ngradient_accumulation_steps = 2\n";
const NESTED_FILE: &str = "job: extension\nconfig:\n  process:\n    - type: sd_trainer # one\n      train:\n        batch_size: 4\n        \
    gradient_accumulation_steps: 1\n        lr: 1e-4\n        gradient_checkpointing: false\n        dtype: bf16\n      save:\n        dtype: float16\n";
const JSON_FILE: &str = "{\n  \"model\": \"gpt2\",\n  \"per_device_train_batch_size\": 8,\n  \"gradient_accumulation_steps\": 2,\n  \
    \"learning_rate\": 5e-05,\n  \"bf16\": true,\n  \"max_grad_norm\": 1.0\n}\n";

/// A script, its settings file, its arguments, and what a rung has to change.
type Style =
    (&'static str, (&'static str, &'static str), &'static str, &'static str, &'static [(&'static str, &'static str)]);

const STYLES: [Style; 4] = [
    (
        KOHYA,
        ("my.toml", KOHYA_FILE),
        "--config_file my.toml",
        "accumulate",
        &[("\"train_batch_size\": 4", "\"train_batch_size\": 2"), ("_steps\": 2", "_steps\": 4")],
    ),
    (
        NESTED,
        ("config.yaml", NESTED_FILE),
        "config.yaml",
        "accumulate",
        &[("\"batch_size: 4\"", "\"batch_size: 2\""), ("_steps: 1\"", "_steps: 2\"")],
    ),
    (
        HUGGING_FACE,
        ("args.json", JSON_FILE),
        "args.json",
        "lower-rate",
        &[("5e-05", "2.5e-05"), ("\"max_grad_norm\": 1.0", "\"max_grad_norm\": 0.5")],
    ),
    (HYDRA, ("unused.txt", ""), "optim.lr=1e-3 +trainer.batch_size=16 seed=3", "lower-rate", &[("0.001", "0.0005")]),
];

#[test]
fn full_of_a_proposal_is_the_bare_command_and_a_rung_changes_its_values_alone() {
    for (script, (file, settings), arguments, rung, changes) in STYLES {
        let place = Place::real();
        fs::write(place.dir.path().join("train.py"), script).unwrap();
        fs::write(place.dir.path().join(file), settings).unwrap();
        let words: Vec<&str> = arguments.split(' ').collect();
        let bare =
            std::process::Command::new("python3").arg("train.py").args(&words).current_dir(place.dir.path()).output();
        assert!(bare.unwrap().status.success(), "{file}");
        let init = ["init", "--output", "run.yaml", "--", "python3", "train.py"];
        let said = place.succeed(&[&init, words.as_slice()].concat());
        let proposed = fs::read_to_string(place.dir.path().join("run.yaml")).unwrap();
        for on in ["full", rung] {
            let words = ["run", "run.yaml", "--rung", on, "--trust", "--headless", "--device", "cpu"];
            let out = place.output(&words);
            assert_eq!(out.status.code(), Some(0), "{}\n{proposed}", shown(&out));
        }
        let effective = fs::read_to_string(place.dir.path().join("effective")).unwrap();
        let [bare, full, lower] = effective.lines().collect::<Vec<_>>()[..] else { panic!("{effective}") };
        assert_eq!(full, bare, "{said}\n{proposed}");
        let wanted = changes.iter().fold(bare.to_owned(), |text, (old, new)| text.replacen(old, new, 1));
        assert_eq!(lower, wanted, "{said}\n{proposed}");
        assert_ne!(lower, bare);
        assert_eq!(fs::read_to_string(place.dir.path().join(file)).unwrap(), settings, "the user's file stays");
    }
}

#[test]
fn keys_that_mean_the_same_are_left_alone_and_named() {
    let place = Place::real();
    fs::write(place.dir.path().join("train.py"), NESTED).unwrap();
    fs::write(place.dir.path().join("config.yaml"), format!("{NESTED_FILE}      eval:\n        batch_size: 9\n"))
        .unwrap();
    let said = place.succeed(&["init", "--output", "run.yaml", "--", "python3", "train.py", "config.yaml"]);
    let both = "note: config.process[0].train.batch_size, config.process[0].eval.batch_size all mean the micro-batch, so no rung changes any of them";
    assert!(said.contains(both), "{said}");
    let proposed = fs::read_to_string(place.dir.path().join("run.yaml")).unwrap();
    assert!(!proposed.contains("micro_batch") && !proposed.contains("dtype"), "{proposed}");
    assert!(proposed.contains("\"config.process[0].train.lr\": \"{optimizer.lr}\""), "{proposed}");
}

#[test]
fn a_ladder_of_whole_settings_files_is_written_and_compared_key_by_key() {
    let place = Place::real();
    fs::write(place.dir.path().join("train.sh"), "cat \"$1\" >> seen\necho 'step 1 loss 1.0'\n").unwrap();
    let settings = "train:\n  batch_size: 8\n  gradient_accumulation_steps: 1\n  lr: 1e-3\n  name: a\n";
    for (file, text) in [
        ("conf_a.yaml", settings.to_owned()),
        ("conf_b.yaml", settings.replace("size: 8", "size: 4").replace("steps: 1", "steps: 2")),
        ("conf_c.yaml", settings.replace("1e-3", "5e-4").replace("name: a", "name: c")),
    ] {
        fs::write(place.dir.path().join(file), text).unwrap();
    }
    let words = ["init", "--output", "run.yaml", "--", "sh", "train.sh", "conf_a.yaml"];
    place.succeed(&[&words[..], &["--rung", "conf_b.yaml", "--rung", "conf_c.yaml"]].concat());
    let checked = place.succeed(&["check", "run.yaml", "--device", "cpu"]);
    for part in [
        "rung conf_b: conf_b.yaml against that of `full`",
        "train.batch_size                    8 → 4            A same training",
        "train.gradient_accumulation_steps   1 → 2            A same training",
        "train.lr     0.001 → 0.0005   B changes the training",
        "train.name   \"a\" → \"c\"",
    ] {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(&checked).contains(&words(part)), "{part}: {checked}");
    }
    let out = place.output(&["run", "run.yaml", "--rung", "conf_b", "--trust", "--headless", "--device", "cpu"]);
    assert_eq!(out.status.code(), Some(0), "{}", shown(&out));
    assert!(fs::read_to_string(place.dir.path().join("seen")).unwrap().contains("batch_size: 4"));
}
