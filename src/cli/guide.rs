//! The commands by purpose, each with examples: one table for `--help`, the manual pages and the book.

mod table;

use clap::Command;
use clap::builder::StyledStr;
use std::fmt::Write as _;
pub use table::GROUPS;

/// Commands that serve one purpose.
#[derive(Debug)]
pub struct Group {
    /// The purpose.
    pub heading: &'static str,
    /// The commands, the most used first.
    pub commands: &'static [CommandGuide],
}

/// A command in the table.
#[derive(Debug)]
pub struct CommandGuide {
    /// Its name.
    pub name: &'static str,
    /// At least one.
    pub examples: &'static [Example],
}

/// A command line and its effect.
pub type Example = (&'static str, &'static str);

/// Width of the text, on a terminal that is wide enough.
pub const MOST_COLUMNS: usize = 100;

/// Width of the column of names.
const NAMES: usize = 14;

/// Returns the examples of a command.
pub fn examples_of(name: &str) -> &'static [Example] {
    let entry = GROUPS.iter().flat_map(|group| group.commands).find(|entry| entry.name == name);
    entry.map(|entry| entry.examples).unwrap_or_default()
}

/// Groups the commands in the help, and adds its examples to that of each.
pub fn add_to_help(command: Command, columns: usize) -> Command {
    let columns = columns.min(MOST_COLUMNS);
    let groups = write_groups(&command, columns);
    let header = *command.get_styles().get_header();
    let with_examples = command.mut_subcommands(|command| {
        let examples = examples_of(command.get_name());
        if examples.is_empty() {
            return command;
        }
        let text = write_examples(&command, examples, columns);
        command.after_help(text)
    });
    with_examples
        .help_template(format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{header}Options:{header:#}\n{{options}}{{after-help}}"
        ))
        .after_help("`downshift COMMAND --help` explains a command, with examples.")
}

/// Writes every group with its heading, and each command with its own description.
fn write_groups(command: &Command, columns: usize) -> String {
    let (header, literal) = (*command.get_styles().get_header(), *command.get_styles().get_literal());
    let mut out = String::new();
    for group in GROUPS {
        let _ = writeln!(out, "{header}{}:{header:#}", group.heading);
        for entry in group.commands {
            let about = command.find_subcommand(entry.name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let space = " ".repeat(NAMES.saturating_sub(entry.name.len()));
            let _ = write!(out, "  {literal}{}{literal:#}{space}", entry.name);
            out.push_str(&indent(&about, NAMES + 2, columns));
        }
        out.push('\n');
    }
    out
}

/// Writes the examples under a heading, after what else the help ends with.
fn write_examples(command: &Command, examples: &[Example], columns: usize) -> StyledStr {
    let (header, literal) = (*command.get_styles().get_header(), *command.get_styles().get_literal());
    let mut out = command.get_after_help().map(|text| format!("{}\n\n", text.ansi())).unwrap_or_default();
    let _ = write!(out, "{header}Examples:{header:#}");
    for (line, effect) in examples {
        let _ = write!(out, "\n  {literal}{line}{literal:#}\n      ");
        out.push_str(indent(effect, 6, columns).trim_end());
    }
    out.into()
}

/// Breaks a text into lines of this width; all but the first are indented. The first one begins at the indent.
fn indent(text: &str, margin: usize, columns: usize) -> String {
    let (mut out, mut used) = (String::new(), margin);
    for word in text.split_whitespace() {
        let width = unicode_width::UnicodeWidthStr::width(word);
        if used > margin && used + 1 + width > columns {
            let _ = write!(out, "\n{}", " ".repeat(margin));
            used = margin;
        }
        if used > margin {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += width;
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests;
