//! Prepares the companion of a command: its package, its socket, and the file that it reads at its start.

use super::companion_link::CompanionLink;
use super::resume_point::Chosen;
use super::save_timer::SaveTimer;
use super::{HarnessArgs, Purpose};
use crate::companion::{self, PATH_VARIABLE};
use crate::config::command::{AttemptContext, CommandLaunch, SETUP_FILE};
use crate::config::units::Every;
use crate::protocol::companion::{PROTOCOL, SETUP_VARIABLE, Setup};
use crate::store::checkpoint;
use crate::store::run_dir::write_whole;
use crate::store::socket_place;
use crate::untrusted::file::{self, Limit};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The list of modules that the last attempt imported, in the run directory.
const MODULES: &str = "imported-modules.json";

/// Everything that a start of a command with a companion needs.
pub(super) struct Prepared {
    pub(super) link: CompanionLink,
    package: String,
    setup_file: String,
}

/// Returns the rhythm in which the companion of a plain loop saves. A run file of a command need not write one.
pub(super) fn save_interval(args: &HarnessArgs) -> Every {
    let is_written = args.preset.tree().pointer("/checkpoint/every").is_some();
    match args.purpose {
        Purpose::Measurement => Every::Never,
        _ if is_written => args.preset.checkpoint.every,
        _ => Every::Auto,
    }
}

/// Prepares the companion. Without one, the command is still kept as far as its files and its output allow.
pub(super) fn prepare(
    args: &HarnessArgs,
    context: &AttemptContext,
    chosen: Option<&Chosen>,
    timer: &SaveTimer,
    notes: &mut Vec<String>,
) -> Option<Prepared> {
    let mut refuse = |why: String| {
        notes.push(format!("no companion in the command: {why}"));
        None
    };
    let package = match companion::unpack() {
        Ok(folder) => folder,
        Err(error) => return refuse(error.to_string()),
    };
    let Some(package) = package.to_str().filter(|package| !package.contains(':')).map(str::to_owned) else {
        return refuse(format!("{PATH_VARIABLE} cannot name {}", package.display()));
    };
    let prepared = socket_place::prepare_companion(&args.run_dir).and_then(|socket| {
        let setup = setup_of(args, context, chosen, timer, socket.clone());
        fs::create_dir_all(&context.attempt_dir)?;
        let setup_file = context.attempt_dir.join(SETUP_FILE);
        write_whole(&setup_file, &serde_json::to_vec_pretty(&setup)?)?;
        let setup_file =
            setup_file.to_str().map(str::to_owned).ok_or_else(|| io::Error::other("its path is not UTF-8"))?;
        Ok((CompanionLink::listen(socket)?, setup_file))
    });
    match prepared {
        Ok((link, setup_file)) => Some(Prepared { link, package, setup_file }),
        Err(error) => refuse(error.to_string()),
    }
}

impl Prepared {
    /// Adds the variables that bring the companion into the processes of the command.
    pub(super) fn add_to(&self, launch: &mut CommandLaunch) {
        let inherited = || std::env::var(PATH_VARIABLE).ok();
        let existing = launch.environment.get(PATH_VARIABLE).cloned().or_else(inherited);
        let path = companion::search_path(&self.package, existing.as_deref());
        launch.environment.insert(PATH_VARIABLE.to_owned(), path);
        launch.environment.insert(SETUP_VARIABLE.to_owned(), self.setup_file.clone());
    }
}

/// Removes the checkpoint to resume from, for processes that the command starts from now on.
///
/// # Errors
/// Returns the system's error.
pub(super) fn forget_resume_point(attempt_dir: &Path) -> io::Result<()> {
    let path = attempt_dir.join(SETUP_FILE);
    let mut setup: Value = serde_json::from_slice(&file::read(&path, Limit::Record).map_err(io::Error::from)?)?;
    if let Value::Object(fields) = &mut setup {
        fields.insert("resume".to_owned(), Value::Null);
    }
    write_whole(&path, &serde_json::to_vec_pretty(&setup)?)
}

fn setup_of(
    args: &HarnessArgs,
    context: &AttemptContext,
    chosen: Option<&Chosen>,
    timer: &SaveTimer,
    socket: PathBuf,
) -> Setup {
    let run_dir = context.run_dir.clone();
    let mut knobs = args.preset.tree();
    if let Value::Object(sections) = &mut knobs {
        sections.shift_remove("environment");
    }
    Setup {
        protocol: PROTOCOL,
        socket,
        attempt_dir: context.attempt_dir.clone(),
        attempt: args.attempt,
        rung: args.rung_name.clone(),
        seed: seed_of(&knobs, chosen, seeding_path(args)),
        knobs,
        skip_non_finite: true,
        checkpoint: timer.rhythm(),
        inject: args.inject.clone(),
        resume: chosen.map(Chosen::for_companion),
        staging: run_dir.join(checkpoint::FOLDER),
        modules: run_dir.join(MODULES),
        gate: None,
        trial: args.purpose == Purpose::Trial,
        run_dir,
    }
}

/// Returns the path that a run's seed is derived from. All trainings of a trial need the same one.
pub(super) fn seeding_path(args: &HarnessArgs) -> &Path {
    if args.purpose == Purpose::Trial { Path::new("trial") } else { args.run_dir.path() }
}

/// Returns the run's seed: the one that the run file writes, the one that the run began with, or one derived from the
/// run's name. It has 32 bits, because NumPy takes no more.
pub(super) fn seed_of(knobs: &Value, chosen: Option<&Chosen>, run_dir: &Path) -> u64 {
    let written = ["/training/seed", "/knobs/seed"].iter().find_map(|path| knobs.pointer(path)?.as_u64());
    let earlier = match chosen {
        Some(Chosen::Container { state, .. }) => Some(state.seed).filter(|seed| *seed > 0),
        _ => None,
    };
    let derived = || {
        let name = run_dir.file_name().unwrap_or_default();
        let hash = blake3::hash(name.as_encoded_bytes());
        hash.as_bytes()[..4].iter().fold(0, |seed, byte| seed << 8 | u64::from(*byte))
    };
    written.or(earlier).unwrap_or_else(derived)
}

#[cfg(test)]
mod tests {
    use super::super::resume_point::Chosen;
    use super::seed_of;
    use crate::protocol::companion::ResumePoint;
    use crate::store::checkpoint::state::TrainState;
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn the_seed_of_a_run_stays_the_same() {
        let run = Path::new("/runs/sdxl-20261122-101500");
        let none = json!({});
        let derived = seed_of(&none, None, run);
        assert_eq!(derived, seed_of(&none, None, Path::new("/elsewhere/sdxl-20261122-101500")), "a run that was moved");
        assert_ne!(derived, seed_of(&none, None, Path::new("/runs/sdxl-20261122-101501")));
        assert!(u32::try_from(derived).is_ok());
        assert_eq!(seed_of(&json!({"knobs": {"seed": 7}}), None, run), 7);
        assert_eq!(seed_of(&json!({"training": {"seed": 0}, "knobs": {"seed": 7}}), None, run), 0);
        let point = ResumePoint { path: "/x".into(), step: 5, samples: 5 };
        let state = Box::new(TrainState { seed: 99, ..TrainState::default() });
        let chosen = Chosen::Container { point, state };
        assert_eq!(seed_of(&none, Some(&chosen), Path::new("/runs/renamed")), 99, "a run that was renamed");
    }
}
