//! Documents: every source file and link that they name exists, and every page of the book is in its summary.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const DOCUMENTS: [&str; 5] = ["README.md", "ARCHITECTURE.md", "RELIABILITY.md", "BENCHMARKS.md", "CONTRIBUTING.md"];
/// Folders that paths in documents start from.
const BASES: [&str; 4] = ["", "src", "crates/core/src", "tests"];

#[test]
fn every_file_that_a_document_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let in_trainer = |path: &str| path.strip_prefix("train/").map(|below| root.join("crates/trainer/src").join(below));
    let exists = |path: &str| {
        BASES.iter().any(|base| root.join(base).join(path).exists())
            || in_trainer(path).is_some_and(|file| file.exists())
    };
    let (mut missing, mut found) = (Vec::new(), 0);
    for document in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).unwrap_or_default();
        for path in quoted_files(&text).chain(links(&text)) {
            found += 1;
            if !exists(path) {
                missing.push(format!("{document}: {path}"));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(found > 100, "only {found} files were seen: the test looks at the wrong place");
}

#[test]
fn every_link_of_the_book_leads_to_a_file_and_a_heading() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let names = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let is_page = |name: &std::ffi::OsString| Path::new(name).extension().is_some_and(|ending| ending == "md");
    let pages: BTreeSet<String> = names.filter(is_page).map(|name| name.to_string_lossy().into_owned()).collect();
    let summary = read("SUMMARY.md");
    let listed: BTreeSet<String> = links(&summary).map(str::to_owned).chain(["SUMMARY.md".to_owned()]).collect();
    assert_eq!(listed, pages, "the summary and the pages");
    let (mut wrong, mut found) = (Vec::new(), 0);
    for page in &pages {
        let text = read(page);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains(':') {
                continue;
            }
            found += 1;
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() { page } else { path };
            let there = folder.join(path).exists();
            if !there || !heading.is_empty() && !headings(&read(path)).contains(heading) {
                wrong.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found > 40, "only {found} links were seen");
}

/// The commands themselves run with `scripts/requirements PROGRAM`, which takes minutes.
#[test]
fn the_page_of_requirements_has_a_row_for_each_and_is_what_its_script_writes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let written = Command::new("python3").args(["scripts/requirements", "--check"]).current_dir(root).output();
    let written = written.map_err(|error| format!("python3: {error}"));
    let refusal = written.map(|out| String::from_utf8_lossy(&out.stderr).into_owned());
    assert_eq!(refusal, Ok(String::new()));
    let page = fs::read_to_string(root.join("tests/requirements.md")).unwrap_or_default();
    let rows: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| R")?.split(" | ").next()).collect();
    let wanted: Vec<String> = (1..=57).map(|number| number.to_string()).collect();
    assert_eq!(rows, wanted);
}

/// A faster program takes more steps in the same time.
#[test]
fn a_count_in_a_requirement_may_have_any_size() {
    let check = "import importlib.machinery as m, sys, types; sys.dont_write_bytecode = True\n\
                 script = types.ModuleType('requirements'); script.__file__ = sys.argv[1]\n\
                 m.SourceFileLoader('requirements', sys.argv[1]).exec_module(script)\n\
                 row = {'shows': r'step (\\d+) of (\\d+) is durable'}\n\
                 for line in ['step 841 of 900 is durable', 'step 2 700 of 1 234 567 is durable']:\n\
                 \x20   assert script.fits(row, [line]), line\n\
                 assert not script.fits(row, ['step 84 1 of 900 is durable'])";
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = Command::new("python3").args(["-c", check]).arg(root.join("scripts/requirements")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Returns the anchors of a page's headings, as mdBook and GitHub name them.
fn headings(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |line: &str| -> String {
        let kept = line.to_lowercase();
        let kept = kept.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    };
    lines.map(anchor).collect()
}

/// Returns the paths of files in backticks. Patterns (`*`, `NAME`) and files of the user are not paths of this repository.
fn quoted_files(text: &str) -> impl Iterator<Item = &str> {
    let is_file = |path: &&str| {
        let source = [".rs", ".yaml", ".txt", ".py", ".svg"].iter().any(|ending| path.ends_with(ending));
        source && path.contains('/') && !path.starts_with('~') && !path.contains(['*', ' ']) && !path.contains("NAME")
    };
    text.split('`').skip(1).step_by(2).filter(is_file)
}

/// Returns the targets of links to files of this repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains(':'))
}
