//! `init TEMPLATE`: writes a shipped run file, or the Cargo project of a task, for the user to edit.

use super::{run_name, write_new};
use crate::cli::{Failure, Outcome, line, refuse_existing};
use crate::config::command::invocation::is_script;
use crate::config::typed::suggest;
use crate::shipped;
use crate::trainer::Trainer;
use crate::untrusted::text;
use std::fs;
use std::path::{Path, PathBuf};

/// The template that is a project instead of a run file.
const TASK: &str = "task";
/// The template whose task is a command.
const COMMAND: &str = "command";
/// The template that trains pictures of the user's.
const PICTURES: &str = "pictures";
/// The file of a packaged crate that a checkout lacks.
const PACKAGED: &str = "Cargo.toml.orig";

const PROGRAM: &str = include_str!("../../../examples/own_task.rs");
const RUN_FILE: &str = include_str!("../../../examples/own_task.yaml");

/// Returns the names of the templates; without built-in tasks, only a command and a task of one's own are left.
pub fn names(has_tasks: bool) -> Vec<&'static str> {
    let names = shipped::names().into_iter().filter(|name| has_tasks || *name == COMMAND);
    names.chain([TASK]).collect()
}

/// Writes the template.
pub fn write_template(name: &str, output: Option<&Path>, trainer: &dyn Trainer) -> Outcome {
    if name == TASK {
        return write_project(output.unwrap_or(Path::new("my-task")));
    }
    let found = shipped::names().into_iter().find(|known| *known == name).map(Path::new).and_then(shipped::run_file);
    let (_, content) = found.ok_or_else(|| explain_unknown(name, trainer))?;
    if name != COMMAND {
        trainer.require_tasks().map_err(Failure::of)?;
    }
    let file = output.map_or_else(|| PathBuf::from(format!("{name}.yaml")), Path::to_owned);
    refuse_existing(&file, "--output")?;
    let content = content.replacen(&format!("\nname: {name}"), &format!("\nname: {}", run_name(&file)), 1);
    write_new(&file, &format!("# Written by `downshift init {name}`, for you to edit.\n#\n{content}"))?;
    let shown = text::path(&file);
    line!("wrote {shown}; next:");
    if name == PICTURES {
        let folder = text::path(&file.with_file_name(PICTURES));
        line!(
            "  put your pictures into {folder}/CLASS/, or set data.source to a folder with one folder for each class"
        );
    }
    line!("  downshift check {shown}    shows every rung, and every mistake with its line");
    line!("  downshift run {shown}      starts it");
    mention_program(name);
    Ok(0)
}

/// A program of the template's name is not what was read.
fn mention_program(name: &str) {
    if Path::new(name).is_file() {
        line!("note: `{name}` here was not read; for a run file of that command: downshift init -- ./{name}");
    }
}

fn explain_unknown(name: &str, trainer: &dyn Trainer) -> Failure {
    let shown = text::escape_line(name);
    let path = Path::new(name);
    if is_script(path) {
        return Failure::new(2, format!("`{shown}` is a script; write its command: downshift init -- python {shown}"));
    }
    if path.exists() {
        return Failure::new(
            2,
            format!("`{shown}` is not a template; write a command after `--`: downshift init -- {shown}"),
        );
    }
    let fix = suggest(name, &names(trainer.require_tasks().is_ok()));
    Failure::new(2, format!("unknown template `{shown}` (for a script: downshift init -- python train.py); {fix}"))
}

/// Writes a Cargo project with the task of examples/own_task.rs.
fn write_project(folder: &Path) -> Outcome {
    let shown = text::path(folder);
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !is_package_name(name) {
        let why = "a package is named with letters, digits, `-` and `_`, and begins with a letter";
        return Err(Failure::new(2, format!("`{shown}`: {why}; choose another folder with --output")));
    }
    refuse_existing(folder, "--output")?;
    let source = Source::find(Path::new(env!("CARGO_MANIFEST_DIR")));
    let created = |error| Failure::new(1, format!("{shown}: {error}"));
    fs::create_dir_all(folder.join("src")).map_err(created)?;
    for (file, content) in project(name, &source) {
        write_new(&folder.join(file), &content)?;
    }
    line!("wrote {shown}: Cargo.toml, src/main.rs, spirals.yaml, .gitignore");
    line!("downshift comes from {}", source.describe());
    line!("next (the first build takes minutes, later ones seconds):");
    line!("  cd {shown}");
    line!("  cargo run --release -- check spirals.yaml");
    line!("  cargo run --release -- run spirals.yaml");
    mention_program(TASK);
    Ok(0)
}

/// Reports whether Cargo accepts a name.
fn is_package_name(name: &str) -> bool {
    let known = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.chars().all(known) && name != "downshift"
}

/// The place where the project finds downshift.
#[derive(Debug, PartialEq)]
enum Source {
    /// The checkout that this program was built from.
    Checkout(PathBuf),
    /// The registry.
    Registry,
}

impl Source {
    /// Finds the checkout of this version, if it is still there.
    fn find(folder: &Path) -> Self {
        let is_checkout = folder.join("Cargo.toml").is_file() && !folder.join(PACKAGED).exists();
        if is_checkout { Self::Checkout(folder.to_owned()) } else { Self::Registry }
    }

    fn describe(&self) -> String {
        match self {
            Self::Checkout(folder) => format!("the checkout in {}", text::path(folder)),
            Self::Registry => format!("crates.io, version {}", env!("CARGO_PKG_VERSION")),
        }
    }

    /// Returns the value of `downshift =` in Cargo.toml.
    fn dependency(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        match self {
            Self::Checkout(folder) => {
                // A TOML basic string has the escapes of a JSON string.
                let folder = serde_json::Value::from(folder.to_string_lossy()).to_string();
                format!("{{ version = \"{version}\", path = {folder} }}")
            }
            Self::Registry => format!("\"{version}\""),
        }
    }
}

/// Returns the files of the project.
fn project(name: &str, source: &Source) -> [(&'static str, String); 4] {
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\n\
         # For the CPU alone, which builds in half the time: default-features = false, features = [\"train\"]\n\
         downshift = {}\nserde = {{ version = \"1\", features = [\"derive\"] }}\n\n\
         # Tensors on the CPU are slow without optimisation.\n[profile.dev.package.\"*\"]\nopt-level = 3\n",
        source.dependency()
    );
    let heading = "//! A task of your own: edit the data, the model and the loss below.\n//!\n";
    let start = "cargo run --release --example own_task -- run examples/own_task.yaml";
    let program = format!("{heading}{}", PROGRAM.replace(start, "cargo run --release -- run spirals.yaml"));
    let run_file = RUN_FILE.replace("examples/own_task.rs", "src/main.rs");
    [
        ("Cargo.toml", manifest),
        ("src/main.rs", program),
        ("spirals.yaml", run_file),
        (".gitignore", "/target\n/runs\n".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::{PACKAGED, PROGRAM, Source, is_package_name, project};
    use std::path::Path;

    #[test]
    fn the_project_is_the_example_with_paths_of_its_own() {
        let files = project("mine", &Source::Registry);
        let [(_, manifest), (_, program), (_, run_file), _] = &files;
        assert!(manifest.contains("name = \"mine\"") && manifest.contains("\ndownshift = \"0."), "{manifest}");
        assert!(program.contains("cargo run --release -- run spirals.yaml"), "{program}");
        let is_code = |line: &&str| !line.starts_with("//!");
        assert!(program.lines().filter(is_code).eq(PROGRAM.lines().filter(is_code)));
        assert!(files.iter().all(|(_, content)| !content.contains("example")), "{program}{run_file}");
    }

    #[test]
    fn a_checkout_is_used_where_it_lies_and_a_packaged_crate_is_not() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(Source::find(here), Source::Checkout(here.to_owned()));
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Source::find(folder.path()), Source::Registry, "the checkout is gone");
        for file in ["Cargo.toml", PACKAGED] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        assert_eq!(Source::find(folder.path()), Source::Registry);
        let odd = Source::Checkout("/a \"b\"".into());
        assert!(odd.dependency().ends_with("path = \"/a \\\"b\\\"\" }"), "{}", odd.dependency());
    }

    #[test]
    fn folders_that_cargo_would_refuse_are_refused() {
        for name in ["", "1st", "my task", "..", "downshift", "é"] {
            assert!(!is_package_name(name), "{name}");
        }
        assert!(is_package_name("my-task_2"));
    }
}
