//! Documents: every source file and link that they name exists.

use std::fs;
use std::path::Path;

const DOCUMENTS: [&str; 5] = ["README.md", "ARCHITECTURE.md", "RELIABILITY.md", "BENCHMARKS.md", "CONTRIBUTING.md"];
/// Folders that paths in documents start from.
const BASES: [&str; 3] = ["", "src", "tests"];

#[test]
fn every_file_that_a_document_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let exists = |path: &str| BASES.iter().any(|base| root.join(base).join(path).exists());
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
