//! Module dependencies: checks the code against the arrows of ARCHITECTURE.md.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Each module and the modules it may use.
const ARROWS: [(&str, &[&str]); 11] = [
    (
        "cli",
        &[
            "cockpit",
            "config",
            "keeper",
            "notify",
            "probe",
            "protocol",
            "recipe",
            "store",
            "train",
            "triage",
            "untrusted",
        ],
    ),
    ("cockpit", &["config", "protocol", "recipe", "store", "untrusted"]),
    ("keeper", &["config", "notify", "policy", "protocol", "recipe", "store", "triage", "untrusted"]),
    ("policy", &["config", "protocol", "recipe", "untrusted"]),
    ("train", &["config", "protocol", "recipe", "store", "untrusted"]),
    ("probe", &["protocol", "triage", "untrusted"]),
    ("triage", &["config", "protocol", "untrusted"]),
    ("notify", &["config", "protocol", "untrusted"]),
    ("store", &["config", "protocol", "recipe", "untrusted"]),
    ("protocol", &["recipe", "untrusted"]),
    ("config", &["recipe", "untrusted"]),
];

#[test]
fn arrows_point_one_way() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut modules: BTreeSet<String> = ARROWS.iter().map(|(module, _)| (*module).to_owned()).collect();
    modules.extend(["recipe".to_owned(), "untrusted".to_owned()]);
    let mut found = 0;
    for module in &modules {
        let allowed = ARROWS.iter().find(|(name, _)| name == module).map_or(&[][..], |(_, allowed)| *allowed);
        for (file, text) in sources(&src, module) {
            for used in uses(&text) {
                if modules.contains(&used) && used != *module {
                    found += 1;
                    assert!(allowed.contains(&used.as_str()), "{file} uses {used}, which {module} may not");
                }
            }
        }
    }
    assert!(found > 50, "only {found} arrows were seen: the test looks at the wrong place");
}

#[test]
fn only_the_trainer_knows_burn_and_one_file_each_knows_yaml_and_sqlite() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let rules: [(&str, &str); 4] =
        [("burn::", "train"), ("serde_yaml::", "config/yaml"), ("rusqlite::", "store"), ("nvml_wrapper::", "probe")];
    for (words, home) in rules {
        for (file, text) in sources(&src, "") {
            let at_home = file.starts_with(home)
                || words == "rusqlite::" && (file.starts_with("keeper") || file.starts_with("cli"));
            assert!(at_home || !text.contains(words), "src/{file} uses {words}");
        }
    }
}

/// Files that read kernel files at composed paths, and the bundle, which reads the program's own output.
const READ_KERNEL_FILES: [&str; 6] = [
    "cli/bundle",
    "cli/doctor/gpu.rs",
    "cli/doctor/machine.rs",
    "cli/watch.rs",
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
