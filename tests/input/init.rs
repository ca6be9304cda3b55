//! `init`: for scripts of many styles, the proposed run file is the expected one, and `check` accepts it.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Runs the program in a folder, isolated from the configuration of this machine's user.
fn run_program(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_downshift"));
    command.args(words).current_dir(folder).env_clear().env("HOME", folder).env("PATH", "/usr/bin:/bin");
    command.env("XDG_CONFIG_HOME", folder.join("config")).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Copies the scripts of the tests into a folder.
fn copy_scripts(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_scripts(&path, &target);
        } else {
            fs::copy(path, target).unwrap();
        }
    }
}

fn scripts() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_scripts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/init/scripts"), folder.path());
    folder
}

/// Every style of script, and a command that starts it.
const COMMANDS: [(&str, &str); 18] = [
    ("argparse", "python train_gpt2.py --batch_size 32 --learning_rate=1e-4 --flash"),
    ("configurator", "python nanogpt.py config/train.py --batch_size=6 --grad_clip=0.5"),
    (
        "hugging_face",
        "torchrun --nproc_per_node 2 run_clm.py --model_name_or_path gpt2 --output_dir out/clm --do_train \
         --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --bf16 --num_train_epochs 2",
    ),
    (
        "llava",
        "deepspeed llava/train_mem.py --deepspeed zero3.json --bf16 True --output_dir ./checkpoints/llava \
         --per_device_train_batch_size 16 --gradient_checkpointing True --torch_compile True --learning_rate 2e-5",
    ),
    (
        "kohya",
        "accelerate launch --num_cpu_threads_per_process 1 kohya/train_network.py --output_dir=out --train_batch_size=4 \
         --mixed_precision=fp16 --xformers --network_args conv_dim=4 conv_alpha=1 --save_state --max_train_epochs=10",
    ),
    ("click", "uv run --with click train_click.py --data data --batch-size 48 -v"),
    ("tyro", "python train_tyro.py --data data --optim.lr 3e-4 --no-compile"),
    ("shell", "bash shell/train_single_gpu.sh lora_r16 --lr 0.05"),
    ("module", "python -m pkg.train --batch_size 4 --output_dir out"),
    ("subcommand", "python3 -u safe_mode.py train --mode separated"),
    ("attached", "python train_attached.py --lr 1e-4"),
    ("trainer", "python train_trainer.py --lr 1e-4"),
    ("clm_alone", "python run_clm.py --model_name_or_path gpt2 --output_dir out/clm --do_train"),
    ("lightning", "python train_lightning.py --lr 1e-4"),
    ("saves", "python train_saves.py --lr 1e-4"),
    ("switch", "python train_switch.py --lr 1e-4"),
    ("abbreviated", "python train_gpt2.py --batch 32 --learn 1e-4"),
    ("braces", "python train_gpt2.py --input_bin {a}.bin"),
];

#[test]
fn each_style_of_script_gets_the_expected_run_file_and_check_accepts_it() {
    for (style, line) in COMMANDS {
        let folder = scripts();
        let words: Vec<&str> =
            ["init", "--output", "run.yaml", "--"].into_iter().chain(line.split_whitespace()).collect();
        let made = run_program(folder.path(), &words);
        assert!(made.status.success(), "{style}: {}", text(&made.stderr));
        let file = fs::read_to_string(folder.path().join("run.yaml")).unwrap();
        insta::assert_snapshot!(style, format!("$ {line}\n\n{}\n{file}", text(&made.stdout)));
        let checked = run_program(folder.path(), &["check", "run.yaml"]);
        assert!(checked.status.success(), "{style}: {}\n{file}", text(&checked.stderr));
        let says = text(&checked.stdout);
        let kept = match style {
            "attached" => Some("train_attached.py calls downshift.attach, as its source says"),
            "trainer" => Some("train_trainer.py trains with Hugging Face's Trainer, as its source says"),
            "clm_alone" => Some("run_clm.py trains with Hugging Face's Trainer, as its source says"),
            "lightning" => Some("train_lightning.py trains with Lightning's Trainer, as its source says"),
            _ => None,
        };
        assert_eq!(
            says.contains("\nresume: a restart continues from the last saved step"),
            kept.is_some(),
            "{style}: {says}"
        );
        assert!(kept.is_none_or(|kept| says.contains(kept)), "{style}: {says}");
    }
}

#[test]
fn weights_alone_are_no_checkpoints_and_the_run_file_says_what_resumes() {
    let arguments = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--out', default='out')\n";
    let resume = "p.add_argument('--resume')\n";
    let weights = "args = p.parse_args()\nsave_file(model.state_dict(), f'{args.out}/step_{step}.safetensors')\n";
    let plain = "import torch\ntorch.save(model.state_dict(), 'model.pt')\n".to_owned();
    for (script, files) in [(format!("{arguments}{resume}{weights}"), "*/step_*.safetensors"), (plain, "model.pt")] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("train.py"), &script).unwrap();
        let made = run_program(folder.path(), &["init", "--", "python", "train.py"]);
        let says = text(&made.stdout);
        assert!(made.status.success() && says.contains(&format!("saves its weights alone ({files})")), "{says}");
        assert!(!says.contains("--run-help"), "{says}");
        let file = fs::read_to_string(folder.path().join("train.yaml")).unwrap();
        assert!(!file.lines().any(|line| line.starts_with("checkpoints:") || line.starts_with("resume:")), "{file}");
        assert!(file.contains("#   run = downshift.attach(model, optimizer)"), "{file}");
    }
}

#[test]
fn a_file_that_exists_is_kept() {
    let folder = scripts();
    fs::write(folder.path().join("train_gpt2.yaml"), "mine").unwrap();
    let made = run_program(folder.path(), &["init", "--", "python", "train_gpt2.py"]);
    assert_eq!(made.status.code(), Some(2));
    assert!(text(&made.stderr).contains("train_gpt2.yaml exists; nothing was written"), "{}", text(&made.stderr));
    assert_eq!(fs::read_to_string(folder.path().join("train_gpt2.yaml")).unwrap(), "mine");
}

#[test]
fn commands_without_a_readable_script_are_refused_in_a_sentence() {
    let folder = scripts();
    for (words, wanted) in [
        (vec!["init", "--", "python", "-c", "print(1)"], "names no script"),
        (vec!["init", "--", "python", "missing.py"], "missing.py is missing in "),
        (vec!["init", "--", "python", "kohya"], "kohya: this is a folder"),
    ] {
        let made = run_program(folder.path(), &words);
        assert!(!made.status.success() && text(&made.stderr).contains(wanted), "{words:?}: {}", text(&made.stderr));
    }
    assert!(
        !fs::read_dir(folder.path())
            .unwrap()
            .flatten()
            .any(|entry| entry.path().extension().is_some_and(|it| it == "yaml"))
    );
}

fn write_program(path: &Path, content: &str) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn help_is_asked_only_with_consent_and_without_gpus() {
    let folder = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\ntouch ran\n[ -z \"$CUDA_VISIBLE_DEVICES\" ] && [ \"$*\" = --help ] || exit 1\n\
                  echo 'usage: train [options]'\necho\necho '  --batch-size N   samples (default: 8)'\n\
                  echo '  --accum N        micro-batches (default: 1)'\n";
    write_program(&folder.path().join("train"), script);
    let asked = run_program(folder.path(), &["init", "--", "./train", "--batch-size", "4"]);
    assert!(asked.status.success() && text(&asked.stdout).contains("add --run-help to run `./train --help`"));
    assert!(!folder.path().join("ran").exists(), "without a terminal nothing runs unasked");
    fs::remove_file(folder.path().join("train.yaml")).unwrap();
    let made = run_program(folder.path(), &["init", "--run-help", "--", "./train", "--batch-size", "4"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let file = fs::read_to_string(folder.path().join("train.yaml")).unwrap();
    let command = "command: [./train, --batch-size, \"{training.micro_batch}\"]\n";
    assert!(file.contains(command) && file.contains("\n  \"--accum={training.accumulation}\": 1\n"), "{file}");
    assert!(run_program(folder.path(), &["check", "train.yaml"]).status.success());
}

#[test]
fn a_script_that_trains_whatever_it_is_given_is_ended_with_all_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\ntrap '' TERM\n(setsid sleep 1000 & echo $! > child)\necho training\nsleep 1000\n";
    write_program(&folder.path().join("train"), script);
    let begun = Instant::now();
    let made = run_program(folder.path(), &["init", "--run-help", "--", "./train"]);
    assert!(made.status.success() && begun.elapsed() < Duration::from_secs(14), "{}", text(&made.stderr));
    assert!(text(&made.stdout).contains("`./train --help` printed no arguments either"), "{}", text(&made.stdout));
    let child = fs::read_to_string(folder.path().join("child")).unwrap();
    let alive = fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
    assert!(alive.is_empty() || alive.contains(") Z "), "{alive}");
}

#[test]
fn doctor_and_triage_know_the_environment_and_the_users_own_code() {
    let folder = tempfile::tempdir().unwrap();
    let site = folder.path().join(".venv/lib/python3.12/site-packages");
    fs::create_dir_all(site.join("torch")).unwrap();
    fs::create_dir_all(site.join("transformers-5.23.0.dist-info")).unwrap();
    fs::create_dir_all(folder.path().join(".venv/bin")).unwrap();
    fs::write(folder.path().join(".venv/bin/python"), "").unwrap();
    fs::write(folder.path().join(".venv/pyvenv.cfg"), "home = /usr/bin\nversion = 3.12.3\n").unwrap();
    fs::write(site.join("torch/version.py"), "__version__ = '2.15.0+cpu'\ncuda: Optional[str] = None\n").unwrap();
    fs::write(folder.path().join("x.yaml"), "name: x\ntask: command\ncommand: [.venv/bin/python, train.py]\n").unwrap();
    let said = text(&run_program(folder.path(), &["doctor", "x.yaml"]).stdout);
    for wanted in ["3.12.3, ", "2.15.0+cpu, built for the CPU alone", "1 installed: transformers 5.23.0"] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let log = "Traceback (most recent call last):\n  File \"/home/me/train.py\", line 7, in main\n    loss.backward()\n  \
               File \"/v/lib/python3.12/site-packages/torch/_tensor.py\", line 1, in backward\n\
               torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n";
    fs::write(folder.path().join("log"), log).unwrap();
    let said = text(&run_program(folder.path(), &["triage", "log"]).stdout);
    assert!(said.contains("your code: /home/me/train.py:7, in main: loss.backward()  (line 5)"), "{said}");
    fs::write(
        folder.path().join("own"),
        log.replace("torch.OutOfMemoryError: CUDA out of memory.", "KeyError: 'cat'."),
    )
    .unwrap();
    let own = text(&run_program(folder.path(), &["triage", "own"]).stdout);
    for wanted in [
        "exception: the log ends with an exception of the script",
        "line 5: KeyError: 'cat'. Tried to allocate 2.00 GiB",
        "your code: /home/me/train.py:7, in main: loss.backward()  (line 5)",
    ] {
        assert!(own.contains(wanted), "{wanted}: {own}");
    }
    let said = text(&run_program(folder.path(), &["triage", "log", "--format", "json"]).stdout);
    assert!(said.contains("\"file\": \"/home/me/train.py\""), "{said}");
}
