//! The commands that set things up: templates, shipped files, completions, manual pages.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use crate::helper::Place;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const TEMPLATES: [&str; 10] =
    ["digits", "pictures", "text", "lora", "finetune", "stable", "sizes", "cifar10", "search", "command"];

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Reports a failure with this exit code and part of its message.
fn assert_refused(place: &Place, words: &[&str], code: i32, part: &str) {
    let out = place.output(words);
    let text = told(&out);
    assert!(out.status.code() == Some(code) && text.contains(part), "{words:?}: {:?} {text}", out.status.code());
}

#[test]
fn options_before_the_command_are_refused_since_they_would_have_no_effect() {
    let place = Place::scripted();
    for words in [&["--headless", "runs"][..], &["--set", "training.epochs=2", "check", "digits"]] {
        assert_refused(&place, words, 2, "options come after the command");
    }
    assert_eq!(
        place.output(&["--runs-dir", "runs", "runs"]).status.code(),
        Some(0),
        "this one belongs to every command"
    );
}

#[test]
fn every_template_is_a_commented_run_file_that_check_accepts() {
    let place = Place::real();
    for name in TEMPLATES {
        if !cfg!(feature = "train") && name != "command" {
            assert_refused(&place, &["init", name], 13, "built without a trainer");
            continue;
        }
        place.succeed(&["init", name]);
        let file = format!("{name}.yaml");
        let text = fs::read_to_string(place.dir.path().join(&file)).unwrap();
        assert!(text.starts_with(&format!("# Written by `downshift init {name}`")), "{text}");
        assert!(text.contains(&place.succeed(&["show", name])), "the comments are those of the shipped file");
        // The photographs of these two do not ship.
        let data: &[&str] =
            if ["cifar10", "pictures"].contains(&name) { &["--set", "data.source=embedded:digits"] } else { &[] };
        place.succeed(&[&["check", &file, "--device", "cpu"], data].concat());
    }
    assert_refused(&place, &["init", "command"], 2, "command.yaml exists; nothing was written");
    place.succeed(&["init", "command", "--output", "mine.yaml"]);
    place.succeed(&["check", "mine.yaml"]);
    let mine = fs::read_to_string(place.dir.path().join("mine.yaml")).unwrap();
    assert!(
        mine.contains("\nname: mine\n") && !mine.contains("\nname: command"),
        "`attach mine` finds its run: {mine}"
    );
}

#[test]
fn templates_scripts_and_commands_are_told_apart() {
    let place = Place::real();
    let here = place.dir.path();
    fs::write(here.join("train.py"), "import argparse\n").unwrap();
    fs::write(here.join("command"), "#!/bin/sh\n").unwrap();
    for (words, part) in [
        (
            &["init"][..],
            if cfg!(feature = "train") {
                "name a template (digits, pictures, text,"
            } else {
                "name a template (command,"
            },
        ),
        (&["init", "comand"], "did you mean `command`?"),
        (&["init", "train.py"], "`train.py` is a script; write its command: downshift init -- python train.py"),
        (&["init", "python", "train.py"], "a command of your own goes after `--`"),
        (
            &["run", "train.py"],
            "`train.py` is a script, not a run file; start it with `downshift run -- python train.py`",
        ),
        (&["check", "train.py"], "`train.py` is a script, not a run file"),
    ] {
        assert_refused(&place, words, 2, part);
    }
    let wrote = place.succeed(&["init", "command"]);
    assert!(wrote.contains("note: `command` here was not read") && wrote.contains("init -- ./command"), "{wrote}");
    place.succeed(&["init", "--", "python", "train.py"]);
    assert!(fs::read_to_string(here.join("train.yaml")).unwrap().contains("task: command"));

    fs::write(here.join("loop.py"), "import downshift\nrun = downshift.attach(model, optimizer)\n").unwrap();
    let proposed = place.succeed(&["init", "--", "python", "loop.py"]);
    assert!(proposed.contains("the script saves and resumes by `downshift.attach`"), "{proposed}");
    let file = fs::read_to_string(here.join("loop.yaml")).unwrap();
    assert!(!file.contains("cannot continue"), "{file}");
}

/// Compiling the project would build Burn again. The example, whose code it has, is compiled and trained by
/// tests/own_task.rs; here Cargo reads the manifest and resolves its dependencies.
#[test]
fn the_project_of_a_task_resolves_to_this_crate() {
    let place = Place::real();
    let wrote = place.succeed(&["init", "task"]);
    assert!(wrote.contains("cargo run --release -- run spirals.yaml"), "{wrote}");
    let project = place.dir.path().join("my-task");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // With the versions of this crate for this platform, Cargo downloads only what no build here has needed yet.
    fs::copy(root.join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--filter-platform"])
        .arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
        .current_dir(&project)
        .output()
        .unwrap();
    let found: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{}", told(&out)));
    let nodes = found["resolve"]["nodes"].as_array().unwrap();
    let downshift = nodes
        .iter()
        .find(|node| node["id"].as_str().unwrap().contains("/downshift#"))
        .or_else(|| nodes.iter().find(|node| node["id"].as_str().unwrap().contains(&*root.to_string_lossy())));
    let features = downshift.unwrap_or_else(|| panic!("{}", told(&out)))["features"].to_string();
    assert!(features.contains("train"), "{features}");
    let program = fs::read_to_string(project.join("src/main.rs")).unwrap();
    assert!(program.contains("downshift::main_with"), "{program}");
    assert_refused(&place, &["init", "task"], 2, "my-task exists; nothing was written");
    assert_refused(&place, &["init", "task", "--output", "1st"], 2, "begins with a letter");
    place.succeed(&["init", "task", "--output", "second"]);
}

#[test]
fn show_prints_what_ships_byte_for_byte() {
    let place = Place::real();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = place.succeed(&["show"]);
    for (name, file) in [("lora", "configs/lora.yaml"), ("dark", "themes/dark.yaml"), ("hjkl", "keymaps/hjkl.yaml")] {
        assert_eq!(place.succeed(&["show", name]), fs::read_to_string(root.join(file)).unwrap());
        assert!(list.contains(&format!("\n  {name} ")), "{list}");
    }
    assert_refused(&place, &["show", "drak"], 2, "no file `drak` ships inside; did you mean `dark`?");
}

/// Asks bash, as Tab does.
fn complete_in_bash(place: &Place, line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let script = format!(
        "source <(downshift completions bash); COMP_TYPE=9; COMP_WORDS=({line}{}); COMP_CWORD={}; \
         _clap_complete_downshift downshift \"${{COMP_WORDS[COMP_CWORD]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        if line.ends_with(' ') { "''" } else { "" },
        words.len() - 1
    );
    let program = Path::new(env!("CARGO_BIN_EXE_downshift"));
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    let model = place.command(&[]);
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &script]).current_dir(place.dir.path()).env("PATH", path);
    bash.envs(model.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let out = bash.output().unwrap();
    told(&out).lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn bash_completes_commands_run_files_runs_and_templates() {
    let place = Place::real();
    let run = place.dir.path().join("runs/spiral-20260131-142500");
    fs::create_dir_all(&run).unwrap();
    fs::write(run.join("run.yaml"), "name: spiral\n").unwrap();
    fs::write(place.dir.path().join("textual.yaml"), "").unwrap();
    fs::write(place.dir.path().join("textual.py"), "").unwrap();
    for (line, expected) in [
        ("downshift att", vec!["attach"]),
        ("downshift run text", vec!["text", "textual.yaml"]),
        ("downshift attach ", vec!["spiral-20260131-142500"]),
        ("downshift attach runs/sp", vec!["runs/spiral-20260131-142500/"]),
        ("downshift shift spi", vec!["spiral-20260131-142500"]),
        ("downshift shift dow", vec!["down"]),
        ("downshift init ta", vec!["task"]),
        ("downshift show hj", vec!["hjkl"]),
        ("downshift no-such-command", vec![""]),
    ] {
        let mut found = complete_in_bash(&place, line);
        found.retain(|word| !word.starts_with("--"));
        found.sort();
        assert_eq!(found, expected, "{line}");
    }
}

#[test]
fn every_shell_has_a_script_and_others_are_named() {
    let place = Place::real();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.succeed(&["completions", shell]);
        assert!(script.contains("DOWNSHIFT_COMPLETE") && script.contains(shell), "{script}");
    }
    assert_refused(&place, &["completions", "tcsh"], 2, "possible values: bash");
}

#[test]
fn every_command_has_a_manual_page_with_its_options_and_examples() {
    let place = Place::real();
    place.succeed(&["man", "man1"]);
    let pages = place.dir.path().join("man1");
    let page = |name: &str| fs::read_to_string(pages.join(name)).unwrap().replace("\\-", "-");
    let first = page("downshift.1");
    for part in [".SH \"EXIT STATUS\"", ".SH ENVIRONMENT", "DOWNSHIFT_RUNS_DIR", "downshift-triage", "fB124"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    let names: Vec<String> =
        fs::read_dir(&pages).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(names.len() > 30 && !names.contains(&"downshift-keeper.1".to_owned()), "{names:?}");
    for name in names.iter().filter(|name| *name != "downshift.1") {
        let text = page(name);
        let verb = name.trim_start_matches("downshift-").trim_end_matches(".1");
        assert!(text.contains(".SH EXAMPLES") && text.contains(&format!("downshift {verb}")), "{name}: {text}");
    }
    assert!(page("downshift-run.1").contains("--headless"));
    fs::write(place.dir.path().join("file"), "").unwrap();
    assert_refused(&place, &["man", "file"], 1, "file: ");
}
