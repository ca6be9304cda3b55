//! The book: its blocks marked `sh,tested` run as written, and its tables of keys are those of the program.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

use crate::helper::Place;
use downshift::config::run::{AsWritten, Run, Source};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src")
}

fn page(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap()
}

/// Returns the blocks of a page that are marked as tested.
fn tested_blocks(page: &str) -> Vec<&str> {
    let blocks = page.split("\n```").skip(1).step_by(2);
    blocks.filter_map(|block| block.strip_prefix("sh,tested\n")).collect()
}

/// Runs the blocks of a page in turn, in a folder of its own, as a reader would.
fn run_blocks(name: &str, text: &str) {
    let place = Place::real();
    let script = place.dir.path().join("blocks.sh");
    fs::write(&script, format!("set -eo pipefail\n{}\n", tested_blocks(text).join("\n"))).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_downshift"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    let model = place.command(&[]);
    let mut bash = Command::new("bash");
    bash.args(["-x", "blocks.sh"]).current_dir(place.dir.path()).env("PATH", path);
    bash.envs(model.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let out = bash.output().unwrap();
    let told = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "docs/src/{name}: {told}");
}

/// Built-in tasks need the trainer; pages about commands do not.
#[test]
fn the_commands_of_the_pages_work() {
    let without_trainer = ["agents.md", "pytorch.md", "per-epoch.md", "diagnosis.md", "extending.md"];
    let mut tested = 0;
    for entry in fs::read_dir(folder()).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        let name = entry.file_name().into_string().unwrap();
        let text = page(&name);
        let blocks = tested_blocks(&text).len();
        tested += blocks;
        if blocks > 0 && (cfg!(feature = "train") || without_trainer.contains(&name.as_str())) {
            run_blocks(&name, &text);
        }
    }
    assert!(tested >= 10, "only {tested} blocks are marked");
}

/// A table of keys: for each key, the default as written, and whether it is one.
type Table = BTreeMap<String, Option<String>>;

/// Returns the tables of keys by their headings, such as `watch.hang`.
fn tables() -> Vec<(String, Table)> {
    let text = page("keys.md");
    let mut tables: Vec<(String, Table)> = Vec::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            tables.push((heading.replace('`', ""), Table::new()));
        }
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if let ([key, default, _, ..], Some((_, table))) = (&cells[..], tables.last_mut())
            && let Some(key) = key.strip_prefix('`').and_then(|key| key.strip_suffix('`'))
        {
            let written = default.strip_prefix('`').and_then(|text| text.strip_suffix('`')).map(str::to_owned);
            assert!(table.insert(key.to_owned(), written).is_none(), "{key} is listed twice");
        }
    }
    tables
}

/// A key that no section has.
const UNKNOWN: &str = "qqqqqqqqqqqqqqqqqqqqqqqq";

const VISION: &str = "name: a\ntask: vision\ndata: { source: 'embedded:digits' }\ntraining: { epochs: 1, micro_batch: 4 }\n\
    optimizer: { lr: 0.1 }\nnotify: {}\nquality: { every: 5 epochs, command: [score] }\n";
const COMMAND: &str = "name: a\ntask: command\ncommand: [sh]\n";

/// Sets an unknown key in the section at a path.
fn with_unknown_key(path: &str) -> (String, String) {
    let path = path.replace("NAME", "some");
    match path.split_once("[]") {
        Some((list, _)) => (list.to_owned(), format!("[{{ {UNKNOWN}: 1 }}]")),
        None if path.is_empty() => (UNKNOWN.to_owned(), "1".to_owned()),
        None => (format!("{path}.{UNKNOWN}"), "1".to_owned()),
    }
}

/// Returns the keys that the program names when it refuses an unknown one.
fn known_keys(text: &str, path: &str) -> BTreeSet<String> {
    let overrides = [with_unknown_key(path)];
    let source = Source { file: "k.yaml", text, base: Path::new("/"), overrides: &overrides };
    let refusal = Run::read(&source, &AsWritten).expect_err(path).to_string();
    let line = refusal
        .lines()
        .find(|line| line.contains(&format!("{UNKNOWN}: unknown key")))
        .unwrap_or_else(|| panic!("{path}: {refusal}"));
    let list = line.split("choose from: ").nth(1).unwrap_or_else(|| panic!("{path}: {line}"));
    list.split(',').map(|key| key.trim().to_owned()).collect()
}

#[test]
fn the_tables_of_keys_are_complete() {
    let tables = tables();
    assert!(tables.len() > 30, "only {} tables were seen", tables.len());
    for (heading, table) in &tables {
        if heading.contains(" of ") {
            continue; // the trainer's own
        }
        let mut listed: BTreeSet<String> = table.keys().cloned().collect();
        let of_command = ["resume", "checkpoints", "save", "metrics", "samples"].contains(&heading.as_str());
        let known = if heading == "The file" {
            listed.retain(|key| !["variant", "variants"].contains(&key.as_str()));
            known_keys(VISION, "")
        } else {
            known_keys(if of_command { COMMAND } else { VISION }, heading)
        };
        assert_eq!(listed, known, "{heading}");
    }
}

#[test]
fn a_documented_default_changes_nothing() {
    let read = |text: &str, overrides: &[(String, String)]| {
        let source = Source { file: "k.yaml", text, base: Path::new("/"), overrides };
        Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}")).to_yaml()
    };
    let of_command = ["defaults", "directory", "environment", "files", "knobs", "restart", "terminal", "standby"];
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for (heading, table) in tables().into_iter().filter(|(heading, _)| !heading.contains(" of ")) {
        for (key, default) in table {
            let Some(default) = default else { continue };
            let path = if heading == "The file" { key.clone() } else { format!("{heading}.{key}") };
            let section = if of_command.contains(&path.as_str()) { &mut there } else { &mut here };
            section.push((path, default));
        }
    }
    assert!(here.len() > 60 && there.len() > 4, "{} and {} defaults were seen", here.len(), there.len());
    assert_eq!(read(VISION, &here), read(VISION, &[]));
    assert_eq!(read(COMMAND, &there), read(COMMAND, &[]));
}
