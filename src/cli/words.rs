//! Parses the command line. Unknown words get an answer of our own: what they look like, and what to type.

use super::guide::{self, MOST_COLUMNS};
use super::output::terminal_width;
use super::{Cli, say};
use crate::config::command::invocation::is_script;
use crate::config::typed::nearest;
use crate::protocol::exit_code::USAGE;
use crate::shipped;
use crate::untrusted::text;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Words of other tools, and the command that does the same.
const SYNONYMS: [(&[&str], &str); 12] = [
    (&["diagnose", "diagnosis", "debug", "explain", "why"], "triage"),
    (&["log", "logs", "tail", "top", "monitor", "dashboard", "ui", "tui", "view", "open"], "attach"),
    (&["ls", "list", "ps", "history"], "runs"),
    (&["rm", "remove", "clean"], "delete"),
    (&["kill", "cancel", "end", "quit"], "stop"),
    (&["train", "start", "launch"], "run"),
    (&["enqueue", "hold", "unhold", "reorder", "move"], "queue"),
    (&["continue", "recover"], "resume"),
    (&["validate", "lint", "verify"], "check"),
    (&["new", "create"], "init"),
    (&["compare", "diff"], "plot"),
    (&["gpu", "gpus", "info", "env"], "doctor"),
];

/// Parses these words; prints the help or the mistake otherwise.
pub fn parse(words: &[OsString]) -> Result<Cli, ExitCode> {
    let columns = terminal_width(&std::io::stdout()).unwrap_or(MOST_COLUMNS);
    let mut command = guide::add_to_help(Cli::command(), columns);
    let parsed = command.try_get_matches_from_mut(words).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = parsed.map_err(|error| {
        let Some(message) = explain(&error, &command, words) else {
            let _ = error.print();
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        };
        say(&message);
        ExitCode::from(USAGE)
    })?;
    // They are those of a start without a command, and would have no effect.
    if cli.command.is_some() && !cli.run.is_default() {
        say("options come after the command, such as in `downshift run my.yaml --headless`");
        return Err(ExitCode::from(USAGE));
    }
    Ok(cli)
}

/// Explains a word that nothing knows, and what is missing. clap explains the rest.
fn explain(error: &clap::Error, command: &Command, words: &[OsString]) -> Option<String> {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = word_of(error, ContextKind::InvalidSubcommand)?;
            Some(match called(command, words) {
                Some(owner) => explain_action(&word, owner),
                None => explain_command(&word, command),
            })
        }
        ErrorKind::UnknownArgument => {
            let near = word_of(error, ContextKind::SuggestedArg);
            Some(explain_argument(&word_of(error, ContextKind::InvalidArg)?, near, called(command, words)))
        }
        ErrorKind::MissingRequiredArgument => {
            Some(explain_missing(&word_of(error, ContextKind::InvalidArg)?, called(command, words)?))
        }
        // An empty value is none.
        ErrorKind::InvalidValue if word_of(error, ContextKind::InvalidValue)?.is_empty() => {
            Some(explain_no_value(&word_of(error, ContextKind::InvalidArg)?, called(command, words)))
        }
        _ => None,
    }
}

fn word_of(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(word) => Some(word.clone()),
        ContextValue::Strings(words) => words.first().cloned(),
        _ => None,
    }
}

/// Returns the command among these words.
fn called<'a>(command: &'a Command, words: &[OsString]) -> Option<&'a Command> {
    words.iter().skip(1).find_map(|word| command.find_subcommand(word))
}

fn explain_command(word: &str, command: &Command) -> String {
    let shown = text::escape_line(word);
    let path = Path::new(word);
    let ending = path.extension().unwrap_or_default();
    if shipped::run_file(path).is_some() || ending == "yaml" || ending == "yml" {
        return format!("`{shown}` is a run file, not a command; start it with `downshift run {shown}`");
    }
    if is_script(path) {
        return format!("`{shown}` is a script, not a command; start it with `downshift run -- python {shown}`");
    }
    let names: Vec<&str> =
        command.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name).collect();
    let synonym = SYNONYMS.iter().find(|(words, _)| words.contains(&word)).map(|(_, name)| *name);
    match synonym.or_else(|| nearest(word, &names)) {
        Some(near) => format!("unknown command `{shown}`; did you mean `{near}`?"),
        None if is_program(word) => {
            format!("unknown command `{shown}`; a training of your own starts with `downshift run -- {shown} …`")
        }
        None => format!("unknown command `{shown}`; list all: downshift --help"),
    }
}

/// Reports whether a word starts a program of this machine.
fn is_program(word: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    !word.contains('/') && std::env::split_paths(&folders).any(|folder| folder.join(word).is_file())
}

/// Explains a word that a command with commands of its own does not know.
fn explain_action(word: &str, owner: &Command) -> String {
    let (name, shown) = (owner.get_name(), text::escape_line(word));
    let actions: Vec<&str> = owner.get_subcommands().map(Command::get_name).filter(|name| *name != "help").collect();
    format!("{name}: unknown `{shown}`; choose from: {}", actions.join(", "))
}

fn explain_argument(word: &str, near: Option<String>, called: Option<&Command>) -> String {
    let shown = text::escape_line(word);
    let Some(called) = called else {
        return match near {
            Some(near) => format!("unknown option `{shown}`; did you mean `{near}`?"),
            None => format!("unexpected `{shown}`; see: downshift --help"),
        };
    };
    let name = called.get_name();
    match near {
        Some(near) => format!("{name}: unknown option `{shown}`; did you mean `{near}`?"),
        None if called.get_positionals().any(is_command_line) => {
            let example = format!("downshift {name} -- python train.py");
            format!("{name}: unexpected `{shown}`; a command of your own goes after `--`, as in: {example}")
        }
        None => format!("{name}: unexpected `{shown}`; see: downshift {name} --help"),
    }
}

/// Explains that a command needs a word, with an example of the command that has it, or else the first one.
fn explain_missing(missing: &str, called: &Command) -> String {
    let name = called.get_name();
    let start = format!("downshift {name} ");
    let mut examples = guide::examples_of(name).iter().map(|(line, _)| *line).filter(|line| line.starts_with(&start));
    let option = missing.split(' ').next().filter(|word| word.starts_with("--"));
    let first = examples.clone().next();
    let example = examples.find(|line| option.is_some_and(|option| line.contains(option))).or(first);
    let example = example.map_or_else(String::new, |line| format!(", as in: {line}"));
    let missing = missing.trim_end_matches("...");
    let missing = missing.strip_prefix('<').and_then(|name| name.strip_suffix('>')).unwrap_or(missing);
    format!("{name}: it needs {missing}{example}; see: downshift {name} --help")
}

/// Explains that an option needs a value.
fn explain_no_value(option: &str, called: Option<&Command>) -> String {
    match called.map(Command::get_name) {
        Some(name) => format!("{name}: `{option}` needs a value; see: downshift {name} --help"),
        None => format!("`{option}` needs a value; see: downshift --help"),
    }
}

/// Reports whether an argument is a command to start, behind `--`.
fn is_command_line(argument: &Arg) -> bool {
    argument.is_last_set() && argument.get_value_names().is_some_and(|names| names.iter().any(|name| name == "COMMAND"))
}

#[cfg(test)]
mod tests {
    use super::{Cli, SYNONYMS, explain};
    use clap::CommandFactory;
    use std::ffi::OsString;

    #[test]
    fn unknown_words_are_answered_with_what_to_type() {
        for (line, answer) in [
            ("atach", "unknown command `atach`; did you mean `attach`?"),
            ("logs", "unknown command `logs`; did you mean `attach`?"),
            ("diagnose", "unknown command `diagnose`; did you mean `triage`?"),
            ("digits", "`digits` is a run file, not a command; start it with `downshift run digits`"),
            ("my.yaml", "`my.yaml` is a run file, not a command; start it with `downshift run my.yaml`"),
            ("train.py", "`train.py` is a script, not a command; start it with `downshift run -- python train.py`"),
            ("keeeeper-of-it", "unknown command `keeeeper-of-it`; list all: downshift --help"),
            ("worke", "unknown command `worke`; list all: downshift --help"),
            ("mkdir", "unknown command `mkdir`; a training of your own starts with `downshift run -- mkdir …`"),
            ("run --hedless", "run: unknown option `--hedless`; did you mean `--headless`?"),
            ("--headles", "unknown option `--headles`; did you mean `--headless`?"),
            ("queue mv a 1", "queue: unknown `mv`; choose from: move, hold, release, remove"),
            ("status a b", "status: unexpected `b`; see: downshift status --help"),
            ("shift", "shift: it needs [RUN] down|up|RUNG, as in: downshift shift down; see: downshift shift --help"),
            ("--runs-dir", "`--runs-dir <DIR>` needs a value; see: downshift --help"),
            ("run --device", "run: `--device <DEVICE>` needs a value; see: downshift run --help"),
            (
                "init python train.py",
                "init: unexpected `train.py`; a command of your own goes after `--`, as in: downshift init -- \
                 python train.py",
            ),
        ] {
            let words: Vec<OsString> = ["downshift"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
            let mut command = Cli::command();
            let error = command.try_get_matches_from_mut(&words).expect_err(line);
            assert_eq!(explain(&error, &command, &words).as_deref(), Some(answer), "{line}");
        }
    }

    #[test]
    fn synonyms_lead_to_commands_and_are_none_themselves() {
        let command = Cli::command();
        let is_command = |name: &str| command.find_subcommand(name).is_some();
        for (words, name) in SYNONYMS {
            assert!(is_command(name) && !words.iter().any(|word| is_command(word)), "{name}");
        }
    }

    #[test]
    fn other_mistakes_are_left_to_clap() {
        for line in ["status --format xml", "--help"] {
            let words: Vec<OsString> = ["downshift"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
            let mut command = Cli::command();
            let error = command.try_get_matches_from_mut(&words).expect_err(line);
            assert_eq!(explain(&error, &command, &words), None, "{line}");
        }
    }
}
