//! The profiles of trainers: the shipped ones and those of the user, and the one that a command has.

use super::init::script::{self, Found};
use super::{Failure, say};
use crate::config::command::{CommandSpec, first_launch};
use crate::config::document::DocumentError;
use crate::config::run::Run;
use crate::init::flag::Declared;
use crate::init::profile::{Evidence, Profile, Recognised};
use crate::store::user_folder::user_folder;
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns every profile, those of the user first. One that cannot be used is reported and left out.
pub fn load() -> Result<Vec<Profile>, Failure> {
    let mut profiles = Vec::new();
    for path in user_files() {
        match read(&path) {
            Ok(profile) => profiles.push(profile),
            Err(why) => say(&format!("this profile of yours is left out:\n{why}")),
        }
    }
    let shipped = Profile::shipped().map_err(|error| Failure::new(1, error.to_string()))?;
    let replaced: Vec<String> = profiles.iter().map(|profile| profile.name.clone()).collect();
    profiles.extend(shipped.into_iter().filter(|profile| !replaced.contains(&profile.name)));
    Ok(profiles)
}

/// Reads the profile that `--profile` names.
pub fn of_file(path: &Path) -> Result<Profile, Failure> {
    read(path).map_err(|why| Failure::config(format!("invalid profile:\n{why}")))
}

fn read(path: &Path) -> Result<Profile, DocumentError> {
    let shown = text::path(path);
    let unreadable = |error| DocumentError(vec![format!("{shown}: {error}")]);
    Profile::parse(&file::read_text(path, Limit::Handwritten).map_err(unreadable)?, &shown)
}

/// Returns the files in the user's configuration folder.
fn user_files() -> Vec<PathBuf> {
    let folder = user_folder("XDG_CONFIG_HOME", ".config").map(|folder| folder.join("trainers"));
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "yaml"));
    files.sort();
    files
}

/// Finds the profile of a command; none if no profile fits.
pub fn recognise<'a>(profiles: &'a [Profile], found: &Found, declared: &Declared) -> Option<Recognised<'a>> {
    let arguments = found.arguments();
    let declared: Vec<&str> = declared.flags.iter().map(|flag| flag.key.as_str()).collect();
    let evidence = Evidence {
        invocation: &found.invocation,
        arguments: &arguments,
        program: found.program.as_ref(),
        declared: &declared,
    };
    Recognised::find(profiles, &evidence)
}

/// Returns the arguments with which the trainer of a command resumes, if its profile knows them.
pub fn resume_arguments(command: &CommandSpec) -> Option<Vec<String>> {
    let profiles = load().ok()?;
    let found = script::find(&command.command, &command.directory).ok()?;
    let declared = found.declared().ok()?;
    recognise(&profiles, &found, &declared)?.profile.resume.clone()?.arguments
}

/// Says which profile the command of a run file has, and by which signs.
pub fn describe(run: &Run) -> Option<String> {
    let profiles = load().ok()?;
    let launch = first_launch(run, 0, 1)?;
    let found = script::find(&launch.argv, &launch.directory).ok()?;
    let declared = found.declared().ok()?;
    recognise(&profiles, &found, &declared).map(|known| known.to_string())
}
