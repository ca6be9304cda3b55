//! Module dependencies: checks the code against the table of modules in ARCHITECTURE.md.

#![expect(clippy::panic, reason = "the helpers of a test fail by panicking, as the test does")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The program and the crate below it, whose modules are rooms.
const CRATES: [&str; 2] = ["src", "crates/core/src"];
/// The crate that is one room, `train`.
const TRAINER: &str = "crates/trainer/src";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Reads the table of modules in ARCHITECTURE.md: each module and the modules it may use. `everything but a, b`
/// stands for all others; a module that `all may use` is a leaf.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let text = include_str!("../../ARCHITECTURE.md");
    let is_head = |line: &str| line.starts_with("| module |") && line.ends_with("| may use |");
    let rows: Vec<[&str; 2]> = text
        .lines()
        .skip_while(|line| !is_head(line))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            let [module, _, may_use] = cells[..] else { panic!("not a row of three cells: {row}") };
            [module.trim_matches('`'), may_use]
        })
        .collect();
    let leaves: Vec<&str> = rows.iter().filter(|[_, uses]| uses.contains("all may use it")).map(|row| row[0]).collect();
    let all: BTreeSet<String> = rows.iter().map(|[module, _]| (*module).to_owned()).collect();
    let named = |list: &str| -> BTreeSet<String> {
        let names = list.split(',').map(|name| name.split('(').next().unwrap_or_default().trim().trim_matches('`'));
        let names: BTreeSet<String> = names.map(str::to_owned).collect();
        assert!(names.is_subset(&all), "not a module of the table: {list}");
        names
    };
    let allowed = |[module, uses]: &[&str; 2]| {
        let list = uses.split(';').next().unwrap_or_default();
        let mut allowed = match list.strip_prefix("everything but ") {
            Some(excluded) => all.difference(&named(excluded)).cloned().collect(),
            None if list == "nothing" => BTreeSet::new(),
            None => named(list),
        };
        allowed.extend(leaves.iter().filter(|leaf| *leaf != module).map(|leaf| (*leaf).to_owned()));
        ((*module).to_owned(), allowed)
    };
    rows.iter().map(allowed).collect()
}

#[test]
fn arrows_point_one_way() {
    let arrows = arrows();
    let mut declared: BTreeSet<String> = CRATES.iter().flat_map(|folder| modules_of_the_crate(folder)).collect();
    declared.insert("train".to_owned());
    assert_eq!(arrows.keys().cloned().collect::<BTreeSet<_>>(), declared, "the table and the crates");
    let mut found = 0;
    for (module, allowed) in &arrows {
        for (file, text) in sources(module) {
            for used in uses(module, &text) {
                if declared.contains(&used) && used != *module {
                    found += 1;
                    assert!(allowed.contains(&used), "{file} uses {used}, which {module} may not");
                }
            }
        }
    }
    assert!(found > 50, "only {found} arrows were seen: the test looks at the wrong place");
}

/// Returns the modules that a crate declares.
fn modules_of_the_crate(folder: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(folder).join("lib.rs")).unwrap_or_default();
    let declared = text.lines().filter_map(|line| line.rsplit_once("mod ")?.1.strip_suffix(';'));
    declared.map(str::to_owned).collect()
}

#[test]
fn only_the_trainer_knows_burn_and_one_file_each_knows_yaml_and_sqlite() {
    let rules: [(&str, &str); 4] =
        [("burn::", "train"), ("serde_yaml::", "config/yaml"), ("rusqlite::", "store"), ("nvml_wrapper::", "probe")];
    for (words, home) in rules {
        for (file, text) in sources("") {
            // An error of SQLite is named where a query is made.
            let queries = ["keeper", "export", "diagnose", "log_metrics", "untrusted"]
                .iter()
                .any(|module| file.starts_with(module));
            let at_home = file.starts_with(home) || words == "rusqlite::" && queries;
            assert!(at_home || !text.contains(words), "{file} uses {words}");
        }
    }
}

/// Files that read kernel files at composed paths.
const READ_KERNEL_FILES: [&str; 5] = [
    "diagnose/doctor/gpu.rs",
    "diagnose/doctor/machine.rs",
    "diagnose/watch/processes.rs",
    "train/cuda_probe.rs",
    "triage/cgroup.rs",
];

#[test]
fn files_from_outside_are_read_within_bounds() {
    let reads = ["fs::read(", "fs::read_to_string(", "File::open(", "ImageReader::open(", "Tokenizer::from_file("];
    let bounded =
        |file: &str| file.starts_with("untrusted/") || READ_KERNEL_FILES.iter().any(|known| file.starts_with(known));
    for (file, text) in sources("").into_iter().filter(|(file, _)| !bounded(file) && !file.ends_with("tests.rs")) {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code.lines().filter(|line| reads.iter().any(|read| line.contains(read))) {
            let harmless = ["\"/proc", "format!(\"/proc", "\"/sys", "sync_all"].iter().any(|part| line.contains(part));
            assert!(harmless, "{file} reads around untrusted::file: {}", line.trim());
        }
    }
}

/// Text reaches the screen through `ui`, which cuts it with an ellipsis; nothing else draws lines.
#[test]
fn only_the_shared_widgets_draw_text() {
    let drawing = sources("cockpit");
    let drawing: Vec<_> =
        drawing.iter().filter(|(file, _)| file.contains("/panels/") || file.contains("/overlays/")).collect();
    assert!(drawing.len() > 20);
    for (file, text) in drawing {
        assert!(!text.contains("render_widget("), "{file} draws past `ui`: nothing cuts its text");
    }
}

/// Returns the files of a module (all for an empty name), with their path below the folder of their crate; those of the
/// trainer begin with `train`.
fn sources(module: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for crate_folder in CRATES.into_iter().chain([TRAINER]) {
        let src = root().join(crate_folder);
        let mut folders = vec![src.clone()];
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let mut below = path.strip_prefix(&src).unwrap_or(&path).display().to_string();
                if crate_folder == TRAINER {
                    below = format!("train/{below}");
                }
                let code = path.extension().is_some_and(|ending| ending == "rs");
                let inside =
                    module.is_empty() || below == format!("{module}.rs") || below.starts_with(&format!("{module}/"));
                if code && inside {
                    found.push((below, fs::read_to_string(path).unwrap_or_default()));
                }
            }
        }
    }
    found
}

/// Returns the rooms that a file of a room refers to, as `crate::room` or `downshift_core::room`, outside its unit tests. In
/// the trainer, `crate::` leads to its own modules.
fn uses(module: &str, text: &str) -> BTreeSet<String> {
    let path = if module == "train" { "downshift_core::" } else { "crate::" };
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut names = BTreeSet::new();
    for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
        for rest in line.split(path).skip(1) {
            names.insert(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    names
}
