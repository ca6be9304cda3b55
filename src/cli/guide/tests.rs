//! The table against the parser, the help and the documents.

use super::{GROUPS, add_to_help, indent};
use crate::cli::Cli;
use clap::{Command, CommandFactory, Parser};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_command_is_in_one_group_with_examples_that_parse() {
    let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|group| group.commands).map(|entry| entry.name).collect();
    grouped.sort_unstable();
    let command = Cli::command();
    let mut visible: Vec<&str> =
        command.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name).collect();
    visible.sort_unstable();
    assert_eq!(grouped, visible);
    for entry in GROUPS.iter().flat_map(|group| group.commands) {
        assert!(!entry.examples.is_empty(), "{} has no example", entry.name);
        for (line, effect) in entry.examples {
            let start = format!("downshift {}", entry.name);
            assert!(line.starts_with(&start), "{line} is not an example of {}", entry.name);
            assert!(!effect.ends_with('.') && !effect.is_empty(), "{line}: {effect}");
            if let Err(error) = Cli::try_parse_from(line.split(' ')) {
                panic!("{line}: {error}");
            }
        }
    }
}

#[test]
fn the_help_shows_every_command_with_its_own_description() {
    for columns in [72, 100] {
        let help = add_to_help(Cli::command(), columns).render_help().to_string();
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(words.contains(&format!("{} {about}", command.get_name())), "{about}: {help}");
        }
        assert!(GROUPS.iter().all(|group| help.contains(&format!("\n{}:\n", group.heading))), "{help}");
        let groups = help.split("Options:").next().unwrap_or_default();
        assert!(groups.lines().all(|line| line.chars().count() <= columns.max(90)), "{groups}");
    }
}

#[test]
fn the_help_of_a_command_ends_with_its_examples() {
    let command = add_to_help(Cli::command(), 100);
    for (name, parts) in [
        ("run", vec!["Examples:\n  downshift run text\n      trains the small"]),
        ("sbatch", vec!["is not requeued", "Examples:\n  downshift sbatch"]),
    ] {
        let help = command.find_subcommand(name).unwrap().clone().render_help().to_string();
        assert!(parts.iter().all(|part| help.contains(part)), "{help}");
    }
}

#[test]
fn lines_break_between_words() {
    assert_eq!(indent("one two three", 2, 9), "one two\n  three\n");
    assert_eq!(indent("incomprehensibilities", 2, 9), "incomprehensibilities\n");
}

/// Returns the folder of the book.
fn book() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src")
}

/// Writes the page of the book with every command.
fn write_page() -> String {
    let mut page = "# Every command\n\nEvery action of the cockpit is also a command, for scripts and ssh. RUN defaults to the \
        newest run; for `stop`\nto the run that is alive, and if several are, `stop` asks which. `downshift COMMAND --help` lists all \
        options.\n\nThis page is made from the program's own table: `WRITE_BOOK=1 cargo test --lib guide`.\n"
        .to_owned();
    let command = Cli::command();
    for group in GROUPS {
        let _ = write!(page, "\n## {}\n", group.heading);
        for entry in group.commands {
            let about = command.find_subcommand(entry.name).and_then(Command::get_about).unwrap();
            let _ = write!(page, "\n### {}\n\n{about}.\n\n", entry.name);
            for (line, effect) in entry.examples {
                let _ = write!(page, "```sh\n{line}\n```\n\n{}.\n\n", capitalise(effect));
            }
            page.pop();
        }
    }
    page
}

fn capitalise(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[test]
fn the_page_of_the_book_has_every_command() {
    let path = book().join("commands.md");
    let page = write_page();
    if std::env::var_os("WRITE_BOOK").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap();
    assert!(written == page, "docs/src/commands.md is out of date: WRITE_BOOK=1 cargo test --lib guide");
}

/// Returns the calls of downshift in the shell blocks of a page.
fn calls(page: &str) -> Vec<Vec<String>> {
    let blocks = page.split("\n```").skip(1).step_by(2).filter(|block| block.starts_with("sh"));
    let lines = blocks.flat_map(|block| block.lines().skip(1)).map(str::trim);
    let calls = lines.filter(|line| line.starts_with("downshift"));
    calls
        .map(|line| {
            let command =
                [" #", " | ", " || ", " > ", " && "].iter().fold(line, |line, end| line.split(end).next().unwrap());
            split_words(command)
        })
        .collect()
}

/// Splits a command at its blanks, except between quotation marks.
fn split_words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in command.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// Returns the calls of downshift in the tables of a page.
fn calls_in_tables(page: &str) -> Vec<Vec<String>> {
    let spans = page.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('`').skip(1).step_by(2));
    let commands = spans.filter_map(|span| {
        let start = span.find("downshift ").filter(|start| *start == 0 || span[..*start].ends_with(' '))?;
        let call = span[start..].split(" \\| ").next()?;
        Some(call.trim_end_matches(" &"))
    });
    commands.map(split_words).collect()
}

#[test]
fn every_command_of_the_requirements_is_one_that_the_program_takes() {
    let calls = calls_in_tables(
        &fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/requirements.md")).unwrap(),
    );
    for call in &calls {
        if let Err(error) = Cli::try_parse_from(call) {
            panic!("{}: {error}", call.join(" "));
        }
    }
    assert!(calls.len() > 57, "only {} calls were seen", calls.len());
}

#[test]
fn every_call_in_the_documents_is_one_that_the_program_takes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = fs::read_dir(book()).unwrap().flatten().map(|entry| entry.path()).filter(|path| path.is_file());
    let mut seen = 0;
    for page in pages.chain([root.join("README.md"), root.join("CONTRIBUTING.md"), root.join("python/README.md")]) {
        for call in calls(&fs::read_to_string(&page).unwrap()) {
            seen += 1;
            if let Err(error) = Cli::try_parse_from(&call) {
                panic!("{}: {}: {error}", page.display(), call.join(" "));
            }
        }
    }
    assert!(seen > 80, "only {seen} calls were seen");
}
