//! `init`: writes a template, or proposes a run file for a training script, from the script's own source.

mod help;
pub mod script;
mod swap;
pub mod template;

use super::preflight::missing_script;
use super::run::load_run_file;
use super::undeclared::undeclared_words;
use super::{Failure, Outcome, first_checkpoint, line, profiles, refuse_existing};
use crate::config::check::check_name;
use crate::config::command::invocation::Target;
use crate::init::attached::Attached;
use crate::init::constants;
use crate::init::flag::{Declared, Flag};
use crate::init::given::undeclared_options;
use crate::init::hugging_face::Classes;
use crate::init::kept::Kept;
use crate::init::profile::Profile;
use crate::init::program::Program;
use crate::init::proposal::{Facts, Note, Proposal, propose};
use crate::init::roles::Table;
use crate::init::run_file::{Heading, write_run_file};
use crate::init::saves::saved_files;
use crate::init::settings;
use crate::init::user_settings::{self, Merged};
use crate::protocol::capability::Level;
use crate::trainer::Trainer;
use crate::trainer::program::refuse_lone_script;
use crate::untrusted::text;
use clap::Args;
use script::Found;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Arguments of `init`.
#[derive(Debug, Args)]
#[command(
    after_help = "A word before `--` is a template: a run file that ships inside, or `task`, a Cargo project with a \
    task of your own. Words after `--` are a command, whose script is read and not started."
)]
pub struct InitArgs {
    /// A template: digits, pictures, text, lora, finetune, stable, sizes, cifar10, search, command, task
    #[arg(value_name = "TEMPLATE", conflicts_with_all = ["command", "run_help"])]
    template: Option<String>,
    /// The run file to write, or the folder of the task [default: NAME.yaml here, after the template or the script; my-task]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Run COMMAND --help, without asking, if the script's source declares no arguments: without GPUs, for at most 10 s
    #[arg(long)]
    run_help: bool,
    /// A settings file for a rung, in place of the one that the command names; once for each rung, also after the command
    #[arg(long = "rung", value_name = "FILE", conflicts_with = "template")]
    rungs: Vec<PathBuf>,
    /// A profile of your own, in place of those that are known: `downshift init --profile my.yaml -- python train.py`
    #[arg(long, value_name = "FILE", conflicts_with = "template")]
    profile: Option<PathBuf>,
    /// The command that starts the training, as you would type it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The source of the files that `init` writes.
pub enum BeginWith<'a> {
    /// A template.
    Template(&'a str),
    /// The script of a command.
    Command(&'a [String]),
}

impl InitArgs {
    /// Returns the template or the command; an error if neither was given.
    pub fn begin_with(&self, trainer: &dyn Trainer) -> Result<BeginWith<'_>, Failure> {
        match &self.template {
            Some(template) => Ok(BeginWith::Template(template)),
            None if !self.command.is_empty() => Ok(BeginWith::Command(&self.command)),
            None => {
                let templates = template::names(trainer.require_tasks().is_ok()).join(", ");
                let fix = format!("name a template ({templates}), or a command: downshift init -- python train.py");
                Err(Failure::new(2, format!("init has nothing to begin with; {fix}")))
            }
        }
    }
}

/// Writes a template, or the proposal for a script.
pub fn init(args: &InitArgs, trainer: &dyn Trainer) -> Outcome {
    match args.begin_with(trainer)? {
        BeginWith::Template(name) => template::write_template(name, args.output.as_deref(), trainer),
        BeginWith::Command(command) => {
            let (command, more) = swap::take_rungs(command);
            let rungs = [args.rungs.as_slice(), &more].concat();
            if rungs.is_empty() {
                return write_proposal(command, args, trainer);
            }
            swap::write_swaps(command, &rungs, args.output.as_deref())
        }
    }
}

fn write_proposal(command: &[String], args: &InitArgs, trainer: &dyn Trainer) -> Outcome {
    refuse_lone_script(command, Path::new("")).map_err(|error| Failure::new(2, error.to_string()))?;
    if let Some(missing) = missing_script(command, &std::env::current_dir()?) {
        return Err(Failure::new(2, missing));
    }
    let found = script::find(command, Path::new(""))?;
    if let Some((option, file)) = user_settings::find_missing(&found.arguments(), Path::new("")) {
        let here = std::env::current_dir()?;
        let wrong = format!("{}, which {option} names, is not in {}", text::path(&file), text::path(&here));
        return Err(Failure::new(2, format!("{wrong}; nothing was written")));
    }
    let name = run_name(&found.script);
    let file = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.yaml")));
    refuse_existing(&file, "--output")?;
    if let (Target::Module(module), None) = (&found.invocation.target, &found.program) {
        line!("no module `{module}` in this folder: unless it is installed, run `init` in the folder that has it");
    }
    let mut declared = found.declared()?;
    let profiles = args.profile.as_deref().map_or_else(profiles::load, |path| Ok(vec![profiles::of_file(path)?]))?;
    let known = profiles::recognise(&profiles, &found, &declared);
    if let (Some(path), None) = (&args.profile, &known) {
        let fix = "each sign below one entry of its `recognise` has to be there";
        return Err(Failure::new(2, format!("{} does not recognise this command: {fix}", text::path(path))));
    }
    let profile = known.as_ref().map(|known| known.profile);
    let constants = find_constants(&found, &mut declared)?;
    let may_have_more = !found.program.as_ref().is_some_and(Program::reads_no_arguments);
    let knows_none = declared.flags.is_empty() && constants.is_empty() && !names_settings(&found);
    if knows_none && (may_have_more || args.run_help) && profile.is_none() {
        declared = help::ask_script(&found.help_command(), args.run_help)?.unwrap_or(declared);
    }
    let proposal = study(&found, &mut declared, profile, Path::new(""))?;
    let directory = working_directory(&file)?;
    let shown = text::path(&file);
    let heading = Heading { name: &name, file: &shown, directory: &directory };
    write_new(&file, &write_run_file(&proposal, &heading))?;
    report(&found, &declared, &proposal, known.is_some());
    for sentence in undeclared_words(command, Path::new("")) {
        line!("note: {sentence}");
    }
    if let Some(known) = &known {
        line!("{known}");
        for own in &known.profile.recovers {
            line!("note: {own}");
        }
    }
    let written = load_run_file(Some(&file), &[], "auto", trainer).ok();
    if let Some(note) = written.and_then(|run| first_checkpoint::note(&run, 0)) {
        line!("\nnote: {note}");
    }
    line!("\nwrote {shown}; next:");
    line!("  downshift check {shown}    shows every rung before anything starts");
    line!("  downshift run {shown}      starts it, after you have approved what it runs");
    if proposal.checkpoints.is_some() {
        line!("  downshift trial {shown}    kills and resumes it for a few steps, and says what a restart loses");
    }
    Ok(0)
}

/// Finds the settings that the script has as constants, if its companion can set others.
fn find_constants(found: &Found, declared: &mut Declared) -> Result<Vec<Flag>, Failure> {
    let program = found.program.as_ref().filter(|_| !found.invocation.isolated);
    let Some(program) = program else { return Ok(Vec::new()) };
    Ok(constants::find(program, &Classes::load()?, declared))
}

/// Reports whether a command names a settings file that was read.
fn names_settings(found: &Found) -> bool {
    !user_settings::find(&found.arguments(), found.words.fixed.len(), Path::new(""), &[], &BTreeSet::new())
        .settings
        .is_empty()
}

/// Proposes a run file for a command that starts in a folder. The arguments of its profile are added to the declared ones.
pub fn study(
    found: &Found,
    declared: &mut Declared,
    profile: Option<&Profile>,
    folder: &Path,
) -> Result<Proposal, Failure> {
    let program = found.program.as_ref();
    let arguments = found.arguments();
    let mut table = Table::load()?;
    if let Some(profile) = profile {
        // An option of the command that was not found is declared in code that was not read.
        let declares_all = program.is_some_and(|program| program.declares_all(declared))
            && undeclared_options(&arguments, &declared.flags).is_empty();
        table = table.of_profile(profile);
        if !declares_all {
            profile.add_arguments(found.invocation.started(), declared);
        }
    }
    let constants = find_constants(found, declared)?;
    let known = settings::read_files(declared, &arguments, folder);
    let options = profile.map(|profile| profile.settings.as_slice()).unwrap_or_default();
    let settings = user_settings::find(&arguments, found.words.fixed.len(), folder, options, &known);
    let Merged { flags, ambiguous, beaten, nested } =
        user_settings::merge(&declared.flags, &arguments, &settings, &table);
    // An argument that the script reads counts, and so does a key of a settings file.
    let roles: Vec<_> = flags.iter().filter_map(|flag| table.role_of(flag)).collect();
    let is_free = |flag: &Flag| table.role_of(flag).is_some_and(|role| !roles.contains(&role));
    let flags: Vec<Flag> = flags.iter().cloned().chain(constants.into_iter().filter(is_free)).collect();
    let user_settings::Found { settings, several, .. } = settings;
    let facts = Facts {
        words: found.words.clone(),
        flags: &flags,
        mentions: &|name: &str| program.is_some_and(|program| program.mentions(name)),
        attached: program.and_then(Attached::find),
        kept: program.and_then(|program| Kept::find(program, &found.invocation)),
        saved: program.map(saved_files).unwrap_or_default(),
        profile,
        settings,
        beaten,
        nested,
        ambiguous,
        several,
    };
    Ok(propose(&facts, &table))
}

/// Names the run after the script.
fn run_name(script: &Path) -> String {
    let stem = script.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let fits = |letter: char| if letter.is_alphanumeric() || "-_.".contains(letter) { letter } else { '-' };
    let name: String = stem.trim_start_matches(['.', '-']).chars().map(fits).take(48).collect();
    if check_name("name", &name).is_none() { name } else { "training".to_owned() }
}

/// Writes the file, unless one has appeared in the meantime.
fn write_new(file: &Path, content: &str) -> Result<(), Failure> {
    let written = File::create_new(file).and_then(|mut out| out.write_all(content.as_bytes()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::new(2, format!("{} exists; nothing was written", text::path(file))),
        _ => Failure::new(1, format!("{}: {error}", text::path(file))),
    })
}

/// Returns the current folder as the run file has it: `.` if the file is in it.
fn working_directory(file: &Path) -> Result<PathBuf, Failure> {
    let here = std::env::current_dir()?;
    let folder = std::path::absolute(file)?.parent().map(Path::to_owned).unwrap_or_default();
    let same = folder.canonicalize().is_ok_and(|folder| here.canonicalize().is_ok_and(|here| here == folder));
    Ok(if same { PathBuf::from(".") } else { here })
}

/// Prints what was found, what was not, and why.
fn report(found: &Found, declared: &Declared, proposal: &Proposal, has_profile: bool) {
    let script = text::path(&found.script);
    let sources: Vec<String> = declared.libraries.iter().map(ToString::to_string).collect();
    match declared.flags.len() {
        0 if !proposal.copies.is_empty() => {
            line!("{script}: its settings are read from the file that the command names");
        }
        0 if !proposal.constants.is_empty() => {
            line!(
                "{script}: its settings are constants, which downshift sets in the process where a rung changes them"
            );
        }
        0 if proposal.batch_by_companion => line!("{script}: a rung changes the batch of its `run.batches`"),
        0 if found.program.as_ref().is_some_and(Program::reads_no_arguments) => {
            line!("{script} takes no arguments, so a rung can change only variables of its environment");
        }
        0 => line!("{script}: no arguments found; the ladder uses variables of the environment alone"),
        1 => line!("{script}: 1 argument ({})", sources.join(", ")),
        count => line!("{script}: {count} arguments ({})", sources.join(", ")),
    }
    if !declared.packages.is_empty() {
        let packages: Vec<&str> = declared.packages.iter().map(String::as_str).collect();
        line!("  as downshift knows {}; another version may have others", packages.join(", "));
    }
    for argument in &proposal.recognised {
        let value = match (&argument.value, argument.given) {
            (Some(value), _) if value.is_empty() => "empty".to_owned(),
            (Some(value), true) => value.clone(),
            (Some(value), false) => format!("{value} by default"),
            (None, _) => "not set".to_owned(),
        };
        line!("  {:<24} {:<32} {value}", argument.title, argument.spelling);
    }
    // A profile has a ladder of its own, so nothing is missed.
    if !declared.flags.is_empty() && !proposal.missing.is_empty() && !has_profile {
        line!("not found: {}", proposal.missing.join(", "));
    }
    match declared.computed {
        0 => {}
        1 => line!("note: 1 more argument gets its name at run time, and was not read"),
        count => line!("note: {count} more arguments get their names at run time, and were not read"),
    }
    for note in &proposal.notes {
        line!("note: {note}");
    }
    for skipped in found.program.iter().flat_map(|program| &program.skipped) {
        line!("note: {} was left out: {}", text::path(&skipped.path), skipped.why);
    }
    let rungs: Vec<&str> = proposal.rungs.iter().map(|rung| rung.name.as_str()).collect();
    line!("ladder: full, {}", rungs.join(", "));
    if proposal.kept().is_some() || proposal.notes.contains(&Note::Attached) {
        line!("resume: {}", Level::Companion.meaning());
    }
}
