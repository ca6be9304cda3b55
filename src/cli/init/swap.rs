//! `init --rung FILE`: a ladder whose rungs start the same command with other settings files.

use super::{run_name, working_directory, write_new};
use crate::cli::settings_copies::diff::{compare, relieved};
use crate::cli::{Failure, Outcome, line, refuse_existing};
use crate::config::command::template::escape;
use crate::config::settings_file::{Format, SettingsFile};
use crate::init::proposal::Proposal;
use crate::init::roles::Table;
use crate::init::run_file::{Heading, write_run_file};
use crate::untrusted::text;
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The option that names the file of a rung.
const OPTION: &str = "--rung";
/// The knob that holds the name of the settings file.
const KNOB: &str = "knobs.settings";

/// Takes the options of rungs from the end of a command, where they may stand as well.
pub fn take_rungs(command: &[String]) -> (&[String], Vec<PathBuf>) {
    let (mut rest, mut rungs) = (command, Vec::new());
    while let [before @ .., option, file] = rest {
        if option != OPTION || before.is_empty() || !Path::new(file).is_file() {
            break;
        }
        rungs.insert(0, PathBuf::from(file));
        rest = before;
    }
    (rest, rungs)
}

/// Writes a run file whose rungs have these settings files.
pub fn write_swaps(command: &[String], rungs: &[PathBuf], output: Option<&Path>) -> Outcome {
    let word = settings_word(command, rungs)?;
    let base = PathBuf::from(&command[word]);
    let name =
        super::script::find(command, Path::new("")).map_or_else(|_| run_name(&base), |found| run_name(&found.script));
    let file = output.map_or_else(|| PathBuf::from(format!("{name}-rungs.yaml")), Path::to_owned);
    refuse_existing(&file, "--output")?;
    let mut words: Vec<String> = command.iter().map(|word| escape(word)).collect();
    words[word] = format!("{{{KNOB}}}");
    let read = |path: &Path| SettingsFile::read(path).map_err(|error| Failure::new(2, error.to_string()));
    let (full, table) = (read(&base)?, Table::load()?);
    let proposal = Proposal {
        command: words,
        knobs: vec![(KNOB.to_owned(), command[word].as_str().into())],
        ..Proposal::default()
    };
    let (shown, directory) = (text::path(&file), working_directory(&file)?);
    let mut run_file = write_run_file(&proposal, &Heading { name: &name, file: &shown, directory: &directory });
    let mut names: Vec<String> = vec!["full".to_owned()];
    for rung in rungs {
        let differences = compare(&full, &read(rung)?, &table);
        let reliefs: Vec<String> = relieved(&differences).iter().map(ToString::to_string).collect();
        let mut own = run_name(rung);
        while names.contains(&own) {
            own.push('_');
        }
        let value = json!(rung.display().to_string());
        let _ = writeln!(
            run_file,
            "  - {{ name: {}, relieves: [{}], from: full, set: {{ {KNOB}: {value} }} }}",
            json!(own),
            reliefs.join(", ")
        );
        names.push(own);
    }
    write_new(&file, &run_file)?;
    line!("ladder: {}", names.join(", "));
    line!("note: each rung starts the command with its own file; the order is yours, the safest last");
    line!("\nwrote {shown}; next:");
    line!("  downshift check {shown}    shows what differs between the files, key by key");
    line!("  downshift run {shown}      starts it, after you have approved what it runs");
    Ok(0)
}

/// Returns the word of a command that names its settings file.
fn settings_word(command: &[String], rungs: &[PathBuf]) -> Result<usize, Failure> {
    let format = rungs.first().and_then(|rung| Format::of(rung));
    let is_file = |word: &String| Format::of(Path::new(word)) == format && Path::new(word).is_file();
    let words: Vec<usize> = (0..command.len()).filter(|word| is_file(&command[*word])).collect();
    match (format, &words[..]) {
        (None, _) => Err(Failure::new(2, "--rung takes a settings file: .toml, .yaml, .yml or .json")),
        (_, [word]) => Ok(*word),
        (Some(format), []) => {
            Err(Failure::new(2, format!("no word of the command is a {format} file that `--rung` could replace")))
        }
        (Some(format), _) => Err(Failure::new(
            2,
            format!("several words of the command are {format} files, so `--rung` could replace each"),
        )),
    }
}
