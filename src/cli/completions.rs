//! `completions`: the script that lets a shell complete commands. At each Tab the shell calls this program, with
//! `DOWNSHIFT_COMPLETE` set, so that runs and run files are those of the moment.

use super::init::template;
use super::{Cli, Failure, Outcome, print_raw};
use crate::shipped;
use crate::store::run_dir::RunDir;
use crate::untrusted::text;
use clap::{Arg, Args, Command, CommandFactory, ValueHint};
use clap_complete::aot::Shell;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::{CompleteEnv, Shells};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Set by the shell's script when it asks for completions.
const VARIABLE: &str = "DOWNSHIFT_COMPLETE";

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Load it at the start of each shell, for example:\n  \
    bash        echo 'source <(downshift completions bash)' >> ~/.bashrc\n  \
    zsh         echo 'source <(downshift completions zsh)' >> ~/.zshrc\n  \
    fish        downshift completions fish > ~/.config/fish/completions/downshift.fish\n  \
    elvish      echo 'eval (downshift completions elvish | slurp)' >> ~/.elvish/rc.elv\n  \
    powershell  downshift completions powershell >> $PROFILE")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

/// Prints the script of a shell.
pub fn completions(args: &CompletionsArgs) -> Outcome {
    let shells = Shells::builtins();
    let shell = shells.completer(&args.shell.to_string()).ok_or_else(|| Failure::new(1, "unknown shell"))?;
    let called = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let name = called.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // A program outside of PATH is called where it lies.
    let program = if called.components().count() > 1 { std::path::absolute(&called)? } else { called };
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, &name, &name, &program.to_string_lossy(), &mut script)?;
    print_raw(&String::from_utf8_lossy(&script));
    Ok(0)
}

/// Answers a shell that asks for completions, and ends the program; does nothing otherwise.
pub fn answer_shell() {
    CompleteEnv::with_factory(|| complete_values(Cli::command())).var(VARIABLE).complete();
}

/// Gives every argument the completer for the values that its help names.
fn complete_values(command: Command) -> Command {
    command.mut_args(complete_argument).mut_subcommands(complete_values)
}

fn complete_argument(argument: Arg) -> Arg {
    let names: Vec<String> = argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let sources: Vec<Source> = names.iter().flat_map(|name| name.split([' ', '|'])).filter_map(Source::of).collect();
    let listed = !argument.get_possible_values().is_empty() || !argument.get_action().takes_values();
    let hint = match names.first().map(String::as_str) {
        Some("FILE") => ValueHint::FilePath,
        Some("DIR") => ValueHint::DirPath,
        Some("COMMAND") => ValueHint::CommandWithArguments,
        _ => ValueHint::Unknown,
    };
    match (listed, sources.is_empty()) {
        (true, _) => argument,
        (false, true) => argument.value_hint(hint),
        (false, false) => argument.add(ArgValueCompleter::new(Values(sources))),
    }
}

/// A source of values.
#[derive(Debug, Clone, PartialEq)]
enum Source {
    Runs,
    Logs,
    RunFiles,
    Shipped,
    Templates,
    Devices,
    /// A value that the help spells out.
    Word(String),
}

impl Source {
    /// Returns the source for the name of a value in the help.
    fn of(name: &str) -> Option<Self> {
        match name {
            "RUN" | "[RUN]" => Some(Self::Runs),
            "LOG" => Some(Self::Logs),
            "CONFIG" => Some(Self::RunFiles),
            "SHIPPED" => Some(Self::Shipped),
            "TEMPLATE" => Some(Self::Templates),
            "DEVICE" => Some(Self::Devices),
            word if !word.is_empty() && word.chars().all(|letter| letter.is_ascii_lowercase()) => {
                Some(Self::Word(word.to_owned()))
            }
            _ => None,
        }
    }

    fn values(&self) -> Vec<String> {
        match self {
            Self::Runs => run_names(&runs_dir(std::env::args_os())),
            Self::Logs => Vec::new(),
            Self::RunFiles => shipped::names().into_iter().map(str::to_owned).collect(),
            Self::Shipped => shipped::FILES.iter().map(|file| file.name.to_owned()).collect(),
            Self::Templates => template::names(cfg!(feature = "train")).into_iter().map(str::to_owned).collect(),
            Self::Devices => ["auto", "cpu", "cuda:0"].map(str::to_owned).to_vec(),
            Self::Word(word) => vec![word.clone()],
        }
    }

    /// Returns the files that are values too. A run is a folder only where a path is being typed.
    fn paths(&self, begun: &str) -> Option<PathCompleter> {
        match self {
            Self::Runs if begun.contains('/') => Some(PathCompleter::dir()),
            Self::Logs => Some(PathCompleter::file()),
            Self::RunFiles => {
                let is_yaml = |path: &Path| path.extension().is_some_and(|end| end == "yaml" || end == "yml");
                Some(PathCompleter::any().filter(move |path| path.is_dir() || is_yaml(path)))
            }
            _ => None,
        }
    }
}

/// The values of an argument.
#[derive(Debug, Clone)]
struct Values(Vec<Source>);

impl ValueCompleter for Values {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let begun = current.to_string_lossy();
        let values = self.0.iter().flat_map(Source::values).filter(|value| value.starts_with(&*begun));
        let mut found: Vec<CompletionCandidate> = values.map(CompletionCandidate::new).collect();
        found.extend(self.0.iter().filter_map(|source| source.paths(&begun)).flat_map(|paths| paths.complete(current)));
        found
    }
}

/// Returns the runs directory of the command line that is being typed.
fn runs_dir(words: impl Iterator<Item = OsString>) -> PathBuf {
    let words: Vec<OsString> = words.collect();
    let behind = words.iter().position(|word| word == "--runs-dir").and_then(|place| words.get(place + 1)).cloned();
    let joined = words.iter().find_map(|word| Some(OsString::from(word.to_str()?.strip_prefix("--runs-dir=")?)));
    let typed = behind.or(joined).or_else(|| std::env::var_os("DOWNSHIFT_RUNS_DIR"));
    typed.map_or_else(|| PathBuf::from("runs"), PathBuf::from)
}

/// Returns the names of all runs, without those that a terminal would not show as they are.
fn run_names(runs: &Path) -> Vec<String> {
    let names = RunDir::all(runs).into_iter().map(|run| run.name());
    names.filter(|name| text::escape_line(name) == name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Source, Values, complete_values, runs_dir};
    use crate::cli::Cli;
    use clap::CommandFactory;
    use clap_complete::engine::{ArgValueCompleter, ValueCompleter};
    use std::ffi::{OsStr, OsString};
    use std::path::Path;

    #[test]
    fn every_argument_that_names_a_run_or_a_run_file_is_completed() {
        let command = complete_values(Cli::command());
        let mut completed = 0;
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            for argument in command.get_arguments() {
                let names = argument.get_value_names().unwrap_or_default();
                if names
                    .iter()
                    .any(|name| ["RUN", "CONFIG", "LOG|RUN"].contains(&name.as_str()) || name.starts_with("[RUN]"))
                {
                    assert!(argument.get::<ArgValueCompleter>().is_some(), "{} {names:?}", command.get_name());
                    completed += 1;
                }
            }
        }
        assert!(completed > 20, "only {completed} arguments were seen");
        let logs = [Source::of("LOG"), Source::of("RUN")].map(Option::unwrap);
        assert_eq!(logs, [Source::Logs, Source::Runs], "triage reads both");
    }

    #[test]
    fn values_begin_with_what_is_typed() {
        let values = Values(vec![Source::RunFiles, Source::Word("down".to_owned())]);
        let found = |begun: &str| -> Vec<OsString> {
            values.complete(OsStr::new(begun)).iter().map(|value| value.get_value().to_owned()).collect()
        };
        assert_eq!(found("dig"), ["digits"]);
        assert_eq!(found("dow"), ["down"]);
        assert!(found("zzz").is_empty());
    }

    #[test]
    fn runs_are_those_of_the_folder_on_the_line() {
        for (line, folder) in [
            ("downshift -- downshift --runs-dir old status", "old"),
            ("downshift -- downshift status --runs-dir=older", "older"),
        ] {
            assert_eq!(runs_dir(line.split(' ').map(OsString::from)), Path::new(folder));
        }
    }
}
