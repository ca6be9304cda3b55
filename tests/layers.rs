//! Module dependencies: checks the code against the table of modules in ARCHITECTURE.md.

#![expect(clippy::panic, reason = "the helpers of a test fail by panicking, as the test does")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Reads the table of modules in ARCHITECTURE.md: each module and the modules it may use.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let text = include_str!("../ARCHITECTURE.md");
    let rows = text.lines().skip_while(|line| *line != "| module | what it is | may use |").skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut everything_but = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [module, _, may_use] = cells[..] else { panic!("not a row of three cells: {row}") };
        let module = module.trim_matches('`').to_owned();
        let names = |text: &str| text.split(',').map(|name| name.trim().trim_matches('`').to_owned()).collect();
        let list = may_use.split(';').next().unwrap_or_default();
        if let Some(excluded) = list.strip_prefix("everything but ") {
            everything_but.push((module.clone(), names(excluded)));
        }
        let list: BTreeSet<String> = if list == "nothing" { BTreeSet::new() } else { names(list) };
        arrows.insert(module, list);
    }
    let all: BTreeSet<String> = arrows.keys().cloned().collect();
    for (module, excluded) in everything_but {
        let excluded: BTreeSet<String> = excluded;
        assert!(excluded.is_subset(&all), "{module}: {excluded:?}");
        arrows.insert(module, all.difference(&excluded).cloned().collect());
    }
    // Modules that every other one may use.
    for leaf in ["format", "untrusted"] {
        for (_, list) in arrows.iter_mut().filter(|(module, _)| *module != leaf) {
            list.insert(leaf.to_owned());
        }
    }
    arrows
}

#[test]
fn arrows_point_one_way() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let arrows = arrows();
    let declared = modules_of_the_crate(&src);
    assert_eq!(arrows.keys().cloned().collect::<BTreeSet<_>>(), declared, "the table and src/lib.rs");
    let mut found = 0;
    for (module, allowed) in &arrows {
        for (file, text) in sources(&src, module) {
            for used in uses(&text) {
                if declared.contains(&used) && used != *module {
                    found += 1;
                    assert!(allowed.contains(&used), "{file} uses {used}, which {module} may not");
                }
            }
        }
    }
    assert!(found > 50, "only {found} arrows were seen: the test looks at the wrong place");
}

/// Returns the modules that src/lib.rs declares.
fn modules_of_the_crate(src: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(src.join("lib.rs")).unwrap_or_default();
    let declared = text.lines().filter_map(|line| line.rsplit_once("mod ")?.1.strip_suffix(';'));
    declared.map(str::to_owned).collect()
}

#[test]
fn only_the_trainer_knows_burn_and_one_file_each_knows_yaml_and_sqlite() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let rules: [(&str, &str); 4] =
        [("burn::", "train"), ("serde_yaml::", "config/yaml"), ("rusqlite::", "store"), ("nvml_wrapper::", "probe")];
    for (words, home) in rules {
        for (file, text) in sources(&src, "") {
            // An error of SQLite is named where a query is made.
            let queries = ["keeper", "export", "diagnose"].iter().any(|module| file.starts_with(module));
            let at_home = file.starts_with(home) || words == "rusqlite::" && queries;
            assert!(at_home || !text.contains(words), "src/{file} uses {words}");
        }
    }
}

/// Files that read kernel files at composed paths, and the bundle, which reads the program's own output.
const READ_KERNEL_FILES: [&str; 6] = [
    "diagnose/bundle",
    "diagnose/doctor/gpu.rs",
    "diagnose/doctor/machine.rs",
    "diagnose/watch/processes.rs",
    "train/cuda_probe.rs",
    "triage/cgroup.rs",
];

#[test]
fn files_from_outside_are_read_within_bounds() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let reads = ["fs::read(", "fs::read_to_string(", "File::open(", "ImageReader::open(", "Tokenizer::from_file("];
    let bounded =
        |file: &str| file.starts_with("untrusted/") || READ_KERNEL_FILES.iter().any(|known| file.starts_with(known));
    for (file, text) in sources(&src, "").into_iter().filter(|(file, _)| !bounded(file) && !file.ends_with("tests.rs"))
    {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code.lines().filter(|line| reads.iter().any(|read| line.contains(read))) {
            let harmless = ["\"/proc", "format!(\"/proc", "\"/sys", "sync_all"].iter().any(|part| line.contains(part));
            assert!(harmless, "src/{file} reads around untrusted::file: {}", line.trim());
        }
    }
}

/// Returns the files of a module (all for an empty name), with their path below src.
fn sources(src: &Path, module: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![src.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let below = path.strip_prefix(src).unwrap_or(&path).display().to_string();
            let code = path.extension().is_some_and(|ending| ending == "rs");
            let inside =
                module.is_empty() || below == format!("{module}.rs") || below.starts_with(&format!("{module}/"));
            if code && inside {
                found.push((below, fs::read_to_string(path).unwrap_or_default()));
            }
        }
    }
    found
}

/// Returns the modules a text refers to as `crate::module`, outside its unit tests.
fn uses(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut names = BTreeSet::new();
    for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
        for rest in line.split("crate::").skip(1) {
            names.insert(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    names
}
