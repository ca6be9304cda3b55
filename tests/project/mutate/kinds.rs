//! Each kind of file the program reads: a valid sample, and the command that reads it.

use super::mutator::Draw;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file to damage, and the command that reads it.
pub struct Reading {
    /// The path of the damaged file; empty if the damage is in the command itself.
    pub file: PathBuf,
    /// The undamaged content.
    pub sample: Vec<u8>,
    /// The command that reads it.
    pub command: Command,
}

type Kind = (&'static str, fn(&Path, &mut Draw) -> Reading);

/// Returns all kinds this build can read.
pub fn all_kinds() -> Vec<Kind> {
    #[cfg(feature = "train")]
    let trained: Vec<Kind> = super::data::KINDS.to_vec();
    #[cfg(not(feature = "train"))]
    let trained: Vec<Kind> = Vec::new();
    let others: [Kind; 12] = [
        ("run-file", run_file),
        ("theme", theme),
        ("keymap", keymap),
        ("notify", notify),
        ("catalogue", catalogue),
        ("log", log),
        ("kept-run", kept_run),
        ("override", damaged_override),
        ("script", script),
        ("shell-script", shell_script),
        ("training-output", training_output),
        ("metric-file", metric_file),
    ];
    others.into_iter().chain(trained).collect()
}

/// Returns the program's command, isolated from the configuration of this machine's user.
pub fn program_command(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_downshift"));
    command.args(words).current_dir(folder).env_clear();
    command.env("HOME", folder).env("XDG_CONFIG_HOME", folder.join("config")).env("XDG_RUNTIME_DIR", folder);
    command.env("PATH", "/usr/bin:/bin").env("LANG", "C.UTF-8");
    command
}

pub fn read_source(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn run_file(folder: &Path, draw: &mut Draw) -> Reading {
    let name = draw
        .pick(&["digits", "pictures", "text", "lora", "finetune", "stable", "sizes", "cifar10", "search", "command"]);
    let sample = read_source(&format!("configs/{name}.yaml"));
    Reading {
        file: folder.join("run.yaml"),
        sample,
        command: program_command(folder, &["check", "run.yaml", "--device", "cpu"]),
    }
}

/// Runs this test binary as a separate process that reads one file: for files only the cockpit reads.
fn reader(kind: &str, file: PathBuf, sample: Vec<u8>) -> Reading {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["mutate::reader", "--exact", "--nocapture"])
        .env("DOWNSHIFT_READ", format!("{kind}:{}", file.display()));
    Reading { file, sample, command }
}

fn theme(folder: &Path, draw: &mut Draw) -> Reading {
    let name = draw.pick(&["dark", "light", "colour-blind", "high-contrast", "monochrome"]);
    reader("theme", folder.join("theme.yaml"), read_source(&format!("themes/{name}.yaml")))
}

fn keymap(folder: &Path, _: &mut Draw) -> Reading {
    let sample = b"name: mine\nkeys:\n  shift-down: [J]\n  quit: [q, Ctrl-c]\n  help: [h, F1]\n".to_vec();
    reader("keymap", folder.join("keymap.yaml"), sample)
}

fn notify(folder: &Path, _: &mut Draw) -> Reading {
    let sample =
        b"level: error\ndesktop: false\nagain_min: 30\nwebhooks:\n  - { kind: ntfy, url: 'https://ntfy.sh/x', \
                   token: 'env:T' }\n  - { kind: telegram, token: 'file:~/.tg', chat: '12' }\n";
    reader("notify", folder.join("notify.yaml"), sample.to_vec())
}

fn catalogue(folder: &Path, _: &mut Draw) -> Reading {
    let own = folder.join("config/downshift");
    fs::create_dir_all(&own).unwrap();
    fs::write(folder.join("log"), read_source("tests/triage/known.txt")).unwrap();
    let sample = b"causes:\n  - name: lost-mount\n    class: crash\n    patterns: ['Stale file handle', 'ESTALE [0-9]{1,3}']\n    \
                   unless: ['retrying']\n    meaning: The network file system went away.\n    advice: Mount it again.\n";
    Reading {
        file: own.join("catalogue.yaml"),
        sample: sample.to_vec(),
        command: program_command(folder, &["triage", "log"]),
    }
}

fn log(folder: &Path, draw: &mut Draw) -> Reading {
    let format = draw.pick(&["text", "json"]);
    let command = program_command(folder, &["triage", "log", "--format", format]);
    Reading { file: folder.join("log"), sample: read_source("tests/triage/known.txt"), command }
}

/// Builds a run directory from an untrusted source.
fn kept_run(folder: &Path, draw: &mut Draw) -> Reading {
    let run = folder.join("runs/digits-1");
    fs::create_dir_all(run.join("checkpoints/step-000000001")).unwrap();
    fs::write(run.join("run.yaml"), read_source("configs/digits.yaml")).unwrap();
    let command = match draw.below(4) {
        0 => program_command(folder, &["runs"]),
        1 => program_command(folder, &["status", "digits-1"]),
        2 => program_command(folder, &["checkpoints", "digits-1", "list"]),
        _ => program_command(folder, &["checkpoints", "digits-1", "verify"]),
    };
    let (file, sample) = match draw.below(3) {
        0 => (run.join("run.yaml"), read_source("configs/digits.yaml")),
        1 => (run.join("keeper.lock"), b"{\"pid\":1,\"start_time\":1,\"boot_id\":\"x\"}".to_vec()),
        _ => {
            let manifest = b"{\"version\":1,\"step\":1,\"samples\":64,\"files\":[{\"name\":\"state.json\",\"bytes\":2,\
                             \"blake3\":\"00\"}]}";
            (run.join("checkpoints/step-000000001/manifest.json"), manifest.to_vec())
        }
    };
    Reading { file, sample, command }
}

/// A training script whose arguments are read from its source.
fn script(folder: &Path, draw: &mut Draw) -> Reading {
    let name = draw.pick(&["train_gpt2", "nanogpt", "run_clm", "train_click", "train_tyro", "safe_mode"]);
    let words = ["init", "--output", "out.yaml", "--", "python", "train.py", "--batch_size", "4", "--compile", "train"];
    let sample = read_source(&format!("tests/init/scripts/{name}.py"));
    Reading { file: folder.join("train.py"), sample, command: program_command(folder, &words) }
}

/// A shell script with a line that starts Python.
fn shell_script(folder: &Path, _: &mut Draw) -> Reading {
    fs::write(folder.join("train.py"), read_source("tests/init/scripts/shell/train.py")).unwrap();
    let command = program_command(folder, &["init", "--output", "out.yaml", "--", "bash", "./train.sh", "name"]);
    Reading {
        file: folder.join("train.sh"),
        sample: read_source("tests/init/scripts/shell/train_single_gpu.sh"),
        command,
    }
}

/// Damages a setting on the command line.
fn damaged_override(folder: &Path, draw: &mut Draw) -> Reading {
    const KNOBS: [&str; 26] = [
        "model.layers",
        "model.heads",
        "model.width",
        "model.sequence",
        "model.channels",
        "model.dropout",
        "training.steps",
        "training.epochs",
        "training.micro_batch",
        "training.accumulation",
        "training.seed",
        "training.loader.threads",
        "training.loader.prefetch",
        "training.memory_cleanup_every",
        "optimizer.lr",
        "optimizer.max_norm",
        "optimizer.betas",
        "optimizer.schedule.warmup",
        "evaluation.every",
        "checkpoint.every",
        "checkpoint.keep_last",
        "checkpoint.proven_after",
        "checkpoint.keep_best",
        "watch.hang_min",
        "data.validation",
        "data.size",
    ];
    const VALUES: [&str; 14] = [
        "18446744073709551615",
        "9223372036854775808",
        "4000000000",
        "16777216",
        "65537",
        "1e308",
        "-1",
        "0",
        "nan",
        "999999999999 steps",
        "1e300 s",
        "18446744073709551615 epochs",
        "[1, 2]",
        "\u{1b}[2J",
    ];
    let (run, knob, value) = (draw.pick(&["digits", "text", "lora"]), draw.pick(&KNOBS), draw.pick(&VALUES));
    let command = program_command(folder, &["check", run, "--device", "cpu", "--set", &format!("{knob}={value}")]);
    Reading { file: folder.join("unused"), sample: Vec::new(), command }
}

/// The output of a real training.
fn training_output(folder: &Path, draw: &mut Draw) -> Reading {
    let name =
        draw.pick(&["hf", "hf-4.57", "keras", "lightning-rich", "lightning-tqdm", "tqdm-iterated", "tqdm-nested"]);
    let sample = read_source(&format!("tests/log_metrics/recorded/{name}/output"));
    reader("training-output", folder.join("output"), sample)
}

/// A file that a training's logger wrote.
fn metric_file(folder: &Path, draw: &mut Draw) -> Reading {
    let jsonl = "metrics.jsonl";
    let name = draw.pick(&[
        "hf-tensorboard/events.out.tfevents.hf",
        "tensorboard/events.out.tfevents.torch",
        "lightning-files/metrics.csv",
        "wandb/run.wandb",
        "trackio/tiny.db",
        jsonl,
    ]);
    let sample = if name == jsonl {
        b"{\"step\": 1, \"loss\": 2.5, \"lr\": 1e-4}\n{\"step\": 2, \"loss\": NaN, \"eval\": {\"loss\": 3}}\n".to_vec()
    } else {
        read_source(&format!("tests/log_metrics/recorded/{name}"))
    };
    let file = name.rsplit('/').next().unwrap_or_default();
    reader("metric-file", folder.join(file), sample)
}

/// Reads a file as the harness of a command would, and prints the readings.
fn read_training(kind: &str, file: &Path) {
    use downshift::log_metrics::{FileReader, OutputReader};
    use downshift::untrusted::text::escape_line;
    let mut readings = Vec::new();
    if kind == "training-output" {
        let mut reader = OutputReader::new(&[]);
        reader.push(&fs::read(file).unwrap(), &mut readings);
        reader.finish(&mut readings);
    } else {
        let outcome = FileReader::open(file).and_then(|mut reader| (0..3).try_for_each(|_| reader.poll(&mut readings)));
        if let Err(error) = outcome {
            println!("{error}");
        }
    }
    for reading in readings {
        println!("{}", escape_line(&format!("{reading:?}")));
    }
}

/// Reads a file as the cockpit would, and prints its errors as the cockpit would show them.
pub fn read_file(kind: &str, file: &Path) {
    use downshift::untrusted::file::{Limit, read_text};
    if matches!(kind, "training-output" | "metric-file") {
        return read_training(kind, file);
    }
    let Ok(text) = read_text(file, Limit::Handwritten) else { return };
    let wrong = match kind {
        "theme" => downshift::theme::Theme::parse(&text).err().map(|error| error.to_string()),
        "keymap" => downshift::cockpit::keymap::Keymap::parse(&text).err().map(|error| error.to_string()),
        _ => downshift::config::integrations::Notify::read("notify.yaml", &text).err().map(|lines| lines.join("\n")),
    };
    println!("{}", downshift::untrusted::text::escape_lines(&wrong.unwrap_or_default()));
}
