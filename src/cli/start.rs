//! A bare `downshift` on a terminal, when runs exist: the start screen, and what was chosen there.

mod words;

use super::init::BeginWith;
use super::preferences::{self, UserFiles};
use super::{Cli, Command, Failure, Outcome, attach, find_run, init, run};
use crate::cockpit::glyphs::Glyphs;
use crate::cockpit::start::run::{Opening, choose};
use crate::cockpit::start::{Choice, Mistake, Typed};
use crate::store::run_dir::RunDir;
use crate::theme::Colours;
use crate::trainer::Trainer;
use clap::Parser;
use std::io::{self, IsTerminal};
use std::path::Path;
use words::split_words;

/// Shows the start screen if there is something to choose from; otherwise starts the default run.
pub fn start(options: &run::RunOptions, runs: &Path, trainer: &dyn Trainer) -> Outcome {
    let on_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !on_terminal || !options.is_default() || RunDir::all(runs).is_empty() {
        return run::begin(None, options, runs, trainer);
    }
    match ask(runs, trainer)? {
        Choice::Quit => Ok(0),
        Choice::New => run::begin(None, options, runs, trainer),
        Choice::Attach(name) => attach::open(&find_run(runs, Some(&name))?),
        Choice::Command(words) => {
            let cli = parse(&words)?;
            let runs = if names_runs_dir(&words) { &cli.place.runs_dir } else { runs };
            match cli.command {
                Some(Command::Run(args)) => run::run(&args, runs, trainer),
                Some(Command::Init(args)) => init::init(&args, trainer),
                _ => Err(Failure::new(2, "nothing was started")),
            }
        }
    }
}

fn ask(runs: &Path, trainer: &dyn Trainer) -> Result<Choice, Failure> {
    let variable = |name: &str| std::env::var(name).ok();
    let own = UserFiles::read()?;
    let wanted = preferences::remembered().theme;
    let themes = own.themes;
    let theme = themes.iter().find(|theme| Some(&theme.name) == wanted.as_ref()).or(themes.first());
    let theme = theme.ok_or_else(|| Failure::new(1, "no theme"))?.clone().reduced_to(Colours::detect(variable));
    let runs = runs.to_owned();
    let has_tasks = trainer.require_tasks().is_ok();
    let glyphs = Glyphs::detect(variable);
    let read_line = |line: &str| read_line(line, trainer);
    let opening = Opening { runs, theme, keys: own.keys, glyphs, has_tasks, read_line: &read_line };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let choice = runtime.block_on(choose(opening))?;
    runtime.shutdown_background();
    Ok(choice)
}

/// Finds the meaning of a typed line: `run …`, `init …`, or a command as `run --` takes it.
fn read_line(line: &str, trainer: &dyn Trainer) -> Typed {
    let mut words = match split_words(line) {
        Ok(words) => words,
        Err(mistake) => return Typed::Wrong(mistake),
    };
    if words.first().is_some_and(|word| word == "downshift") {
        words.remove(0);
    }
    let Some(first) = words.first().cloned() else { return Typed::Empty };
    if !["run", "init"].contains(&first.as_str()) {
        if is_command_name(&first) {
            return Typed::Wrong(Mistake::OtherCommand(first));
        }
        words.splice(0..0, ["run".to_owned(), "--".to_owned()]);
    }
    let rest = || words.iter().skip_while(|word| *word != "--").skip(1).cloned().collect::<Vec<String>>();
    match parse(&words).map(|cli| cli.command) {
        Err(failure) => Typed::Wrong(Mistake::Arguments(failure.message)),
        Ok(Some(Command::Run(_))) if words.iter().any(|word| word == "--") && rest().is_empty() => {
            Typed::Wrong(Mistake::Arguments("write the command after `run --`".to_owned()))
        }
        Ok(Some(Command::Init(args))) => match args.begin_with(trainer) {
            Ok(BeginWith::Template(name)) => Typed::Template { name: name.to_owned(), words },
            Ok(BeginWith::Command(_)) => Typed::Init { command: rest(), words },
            Err(failure) => Typed::Wrong(Mistake::Arguments(failure.message)),
        },
        Ok(Some(Command::Run(_))) if words.iter().any(|word| word == "--") => Typed::Command { command: rest(), words },
        Ok(Some(Command::Run(args))) => {
            let files: Vec<String> = args.config.iter().map(|path| crate::untrusted::text::path(path)).collect();
            let files = if files.is_empty() { vec!["digits".to_owned()] } else { files };
            Typed::RunFile { files, words }
        }
        Ok(_) => Typed::Wrong(Mistake::OtherCommand(first)),
    }
}

/// Reports whether the line itself names the runs directory; otherwise the one of this process applies.
fn names_runs_dir(words: &[String]) -> bool {
    let mut options = words.iter().take_while(|word| *word != "--");
    options.any(|word| word == "--runs-dir" || word.starts_with("--runs-dir="))
}

fn is_command_name(word: &str) -> bool {
    use clap::CommandFactory;
    Cli::command().get_subcommands().any(|command| command.get_name() == word) || word == "help"
}

/// Parses words after `downshift` as the command line does.
fn parse(words: &[String]) -> Result<Cli, Failure> {
    let all = std::iter::once("downshift").chain(words.iter().map(String::as_str));
    Cli::try_parse_from(all).map_err(|error| {
        let text = error.to_string();
        // The lines up to the first empty one are the error; the usage follows.
        let lines = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
        let error = lines.collect::<Vec<_>>().join(" ");
        Failure::new(2, error.strip_prefix("error: ").unwrap_or(&error))
    })
}

#[cfg(test)]
mod tests {
    use super::{names_runs_dir, parse};
    use crate::cockpit::start::{Mistake, Typed};
    use crate::config::run::AsWritten;

    fn read_line(line: &str) -> Typed {
        super::read_line(line, &AsWritten)
    }

    fn list(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_line_means_what_the_command_line_would_make_of_it() {
        let command = list(&["python", "train.py", "--lr", "1e-3", "a b"]);
        let words = [list(&["run", "--"]), command.clone()].concat();
        for line in [
            "python train.py --lr 1e-3 'a b'",
            "run -- python train.py --lr 1e-3 \"a b\"",
            "downshift run -- python train.py --lr 1e-3 a\\ b",
        ] {
            assert_eq!(read_line(line), Typed::Command { command: command.clone(), words: words.clone() }, "{line}");
        }
        let words = list(&["run", "my.yaml", "--set", "training.epochs=2"]);
        assert_eq!(
            read_line("run my.yaml --set training.epochs=2"),
            Typed::RunFile { files: list(&["my.yaml"]), words }
        );
        let files = list(&["a.yaml", "b.yaml"]);
        let words = list(&["run", "a.yaml", "b.yaml"]);
        assert_eq!(read_line("run a.yaml b.yaml"), Typed::RunFile { files, words });
        let init = Typed::Init { command: list(&["python", "a.py"]), words: list(&["init", "--", "python", "a.py"]) };
        assert_eq!(read_line("init -- python a.py"), init);
        assert_eq!((read_line(""), read_line("  downshift ")), (Typed::Empty, Typed::Empty));
        assert_eq!(read_line("stop all"), Typed::Wrong(Mistake::OtherCommand("stop".to_owned())));
        assert_eq!(read_line("python 'a"), Typed::Wrong(Mistake::OpenQuote));
        assert_eq!(read_line("python a.py > log"), Typed::Wrong(Mistake::Shell('>')));
        assert!(matches!(read_line("run --no-such-option"), Typed::Wrong(Mistake::Arguments(_))));
        let Typed::Wrong(Mistake::Arguments(text)) = read_line("init") else { panic!("init needs a word") };
        assert!(text.contains("name a template (command,"), "{text}");
        let template = Typed::Template { name: "text".to_owned(), words: list(&["init", "text"]) };
        assert_eq!(read_line("init text"), template);
        assert!(matches!(read_line("run --"), Typed::Wrong(Mistake::Arguments(_))));
    }

    #[test]
    fn a_line_may_name_its_runs_directory() {
        for line in [&["run", "--runs-dir", "d", "--", "a"][..], &["run", "--runs-dir=d", "--", "a"]] {
            let words = list(line);
            assert!(names_runs_dir(&words));
            assert_eq!(parse(&words).unwrap().place.runs_dir.to_str(), Some("d"));
        }
        assert!(!names_runs_dir(&list(&["run", "--", "python", "--runs-dir", "d"])));
    }
}
