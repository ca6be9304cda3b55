//! Prepares the companion of a command: its package, its socket, and the file that it reads at its start.

use super::companion_link::{CompanionLink, NewsQueue};
use super::resume_point::Chosen;
use super::save_timer::SaveTimer;
use super::{HarnessArgs, Purpose};
use crate::companion::{self, PATH_VARIABLE};
use crate::config::best::Goal;
use crate::config::command::launch::render_words;
use crate::config::command::{AttemptContext, CommandLaunch, SETUP_FILE};
use crate::config::units::Every;
use crate::protocol::companion::{BestSoFar, PROTOCOL, ResumeFrom, SETUP_VARIABLE, Setup};
use crate::store::checkpoint;
use crate::store::checkpoint::state::best_value_on_disk;
use crate::store::run_dir::write_whole;
use crate::store::socket_place;
use crate::untrusted::text;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};

/// The list of modules that the last attempt imported, in the run directory.
const MODULES: &str = "imported-modules.json";

/// Everything that a start of a command with a companion needs.
pub(super) struct Prepared {
    pub(super) link: CompanionLink,
    pub(super) setup: SetupFile,
    pub(super) variables: Variables,
}

/// The variables that bring the companion into the processes of the command.
pub(super) struct Variables {
    pub(super) package: PathBuf,
    pub(super) setup_file: PathBuf,
}

/// The file that each process of the command reads at its start, so a later one finds what changed since.
#[derive(Debug)]
pub(super) struct SetupFile {
    path: PathBuf,
    setup: Setup,
    /// The last write failed: the file holds an older state.
    is_stale: bool,
}

impl SetupFile {
    fn create(context: &AttemptContext, setup: Setup) -> io::Result<Self> {
        let mut file = Self { path: context.attempt_dir.join(SETUP_FILE), setup, is_stale: true };
        file.write()?;
        Ok(file)
    }

    /// Returns what it holds.
    pub(super) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Returns the step that a process started now resumes from.
    pub(super) fn resume_step(&self) -> Option<u64> {
        self.setup.resume.as_ref().map(|from| from.point().step)
    }

    /// Sets the checkpoint that later processes resume from; none for a start from the beginning.
    ///
    /// # Errors
    /// Returns the system's error.
    pub(super) fn resume_from(&mut self, resume: Option<ResumeFrom>) -> io::Result<()> {
        if self.setup.resume == resume {
            return Ok(());
        }
        self.setup.resume = resume;
        self.write()
    }

    /// Leaves out a fault that was injected, unless it is to strike in every process.
    ///
    /// # Errors
    /// Returns the system's error.
    pub(super) fn leave_out_fault(&mut self, fault: &str) -> io::Result<()> {
        let before = self.setup.inject.len();
        self.setup.inject.retain(|inject| inject.always || inject.to_string() != fault);
        if self.setup.inject.len() == before { Ok(()) } else { self.write() }
    }

    /// Writes the file again if the last write failed.
    ///
    /// # Errors
    /// Returns the system's error.
    pub(super) fn retry(&mut self) -> io::Result<()> {
        if self.is_stale { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> io::Result<()> {
        self.is_stale = true;
        write_whole(&self.path, &serde_json::to_vec_pretty(&self.setup)?)?;
        self.is_stale = false;
        Ok(())
    }
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
    queue: NewsQueue,
    notes: &mut Vec<String>,
) -> Option<Prepared> {
    let prepared = unpack_package().and_then(|package| {
        let socket = socket_place::prepare_companion(&args.run_dir)?;
        let setup = SetupFile::create(context, setup_of(args, context, chosen, timer, socket.clone()))?;
        let variables = Variables { package, setup_file: setup.path.clone() };
        Ok(Prepared { link: CompanionLink::listen(socket, queue)?, setup, variables })
    });
    prepared.map_err(|error| notes.push(format!("the command has no helper of downshift: {error}"))).ok()
}

/// Prepares the companion of a standby: it knows where to wait, and what to import until then. Everything else is written
/// when its attempt begins.
///
/// # Errors
/// Returns why there is none.
pub(super) fn prepare_standby(args: &HarnessArgs, context: &AttemptContext, gate: &Path) -> io::Result<Variables> {
    let package = unpack_package()?;
    let timer = SaveTimer::new(Every::Never, args.faults);
    let unused = PathBuf::new();
    let setup = Setup { gate: Some(gate.to_owned()), ..setup_of(args, context, None, &timer, unused) };
    Ok(Variables { package, setup_file: SetupFile::create(context, setup)?.path })
}

/// Returns the folder of the package, as an element of the variable that holds it.
pub(super) fn unpack_package() -> io::Result<PathBuf> {
    let folder = companion::unpack().map_err(io::Error::other)?;
    if folder.as_os_str().as_encoded_bytes().contains(&b':') {
        return Err(io::Error::other(format!("{PATH_VARIABLE} cannot name {}", text::path(&folder))));
    }
    Ok(folder)
}

impl Variables {
    /// Adds the variables that bring the companion into the processes of the command. Folders that Python searches
    /// already stay as they are, whatever their bytes.
    pub(super) fn add_to(&self, launch: &mut CommandLaunch) {
        let inherited = || std::env::var_os(PATH_VARIABLE);
        let existing = launch.environment.get(PATH_VARIABLE).cloned().or_else(inherited);
        let path = companion::search_path(&self.package, existing.as_deref());
        launch.environment.insert(PATH_VARIABLE.to_owned(), path);
        launch.environment.insert(SETUP_VARIABLE.to_owned(), self.setup_file.clone().into_os_string());
    }
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
        node: context.place.node,
        nodes: context.place.nodes,
        attempt: args.attempt,
        rung: args.rung_name.clone(),
        seed: seed_of(&knobs, chosen, seeding_path(args)),
        knobs,
        constants: args.constants.clone(),
        skip_non_finite: true,
        checkpoint: timer.rhythm(),
        best: best_so_far(args, context.step),
        inject: args.inject.clone(),
        resume: chosen.map(Chosen::for_companion),
        staging: run_dir.join(checkpoint::FOLDER),
        modules: run_dir.join(MODULES),
        gate: None,
        states: states_path(args, context),
        length: context.length,
        counts_anew: args.spec.counts_anew(),
        trial: args.purpose == Purpose::Trial,
        run_dir,
    }
}

/// Returns where the companion writes the states of a loop: among the script's own folders where their names have one changing part,
/// so that a script which looks for its newest one finds it, or else into the run directory.
fn states_path(args: &HarnessArgs, context: &AttemptContext) -> String {
    let own = || context.run_dir.join("states/step-*").display().to_string();
    let spec = args.spec.checkpoints.as_ref().filter(|spec| spec.complete.is_some());
    let pattern = spec.and_then(|spec| render_words([&spec.pattern], &args.preset, context).pop());
    let plain = |pattern: &String| pattern.matches('*').count() == 1 && !pattern.contains(['?', '[']);
    pattern.filter(plain).map_or_else(own, |pattern| args.spec.directory.join(pattern).display().to_string())
}

/// Returns what a better evaluation has to beat; none where the best is not kept.
fn best_so_far(args: &HarnessArgs, step: u64) -> Option<BestSoFar> {
    let knobs = &args.preset.checkpoint;
    if !knobs.keep_best || args.purpose != Purpose::Run || save_interval(args) == Every::Never {
        return None;
    }
    let value = best_value_on_disk(args.run_dir.path(), step, &knobs.best);
    Some(BestSoFar { metric: knobs.best.metric.clone(), lower_is_better: knobs.best.goal == Goal::Min, value })
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
    use super::{SetupFile, seed_of};
    use crate::protocol::companion::{PROTOCOL, ResumeFrom, ResumePoint, SaveRhythm, Setup};
    use crate::store::checkpoint::state::TrainState;
    use serde_json::json;
    use std::collections::BTreeMap;
    use std::path::Path;

    fn setup(attempt_dir: &Path) -> Setup {
        Setup {
            protocol: PROTOCOL,
            socket: "/s".into(),
            run_dir: "/r".into(),
            attempt_dir: attempt_dir.to_owned(),
            node: 0,
            nodes: 1,
            attempt: 1,
            rung: "full".to_owned(),
            seed: 7,
            knobs: json!({}),
            constants: BTreeMap::new(),
            skip_non_finite: true,
            checkpoint: SaveRhythm::default(),
            best: None,
            inject: Vec::new(),
            resume: None,
            staging: "/r/checkpoints".into(),
            modules: "/r/modules".into(),
            gate: None,
            states: String::new(),
            length: None,
            counts_anew: false,
            trial: false,
        }
    }

    #[test]
    fn a_setup_that_could_not_be_written_is_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("1");
        let path = folder.join("companion.json");
        let mut file = SetupFile { path: path.clone(), setup: setup(&folder), is_stale: false };
        file.retry().unwrap();
        assert!(!path.exists(), "nothing to write again");
        let point = ResumePoint { path: "/x".into(), step: 40, samples: 40 };
        assert!(file.resume_from(Some(ResumeFrom::Container(point.clone()))).is_err(), "no folder");
        std::fs::create_dir(&folder).unwrap();
        file.retry().unwrap();
        let written: Setup = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(written.resume, Some(ResumeFrom::Container(point)));
        std::fs::remove_file(&path).unwrap();
        file.retry().unwrap();
        assert!(!path.exists());
    }

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
