//! The checkpoint that a new run begins from: one of another run, or one that the script wrote before.

use super::kept_script::KeptScript;
use super::occupied::ask_user;
use super::{Failure, checkpoints, line, profiles, say};
use crate::config::command::{CommandSpec, earlier_pattern};
use crate::config::run::Run;
use crate::format::{age, count};
use crate::init::kept::Kept;
use crate::init::run_file::example_argument;
use crate::keeper::offline::OfflineKeeper;
use crate::protocol::exit_code::CHECKPOINT;
use crate::recipe::class::units_per_step;
use crate::store::adopted::{self, Adopted, find_complete, step_in_name};
use crate::store::checkpoint::{self, Loaded, STATE, STEPS, state::TrainState};
use crate::store::companion::KnownCompanion;
use crate::store::reader::live_status;
use crate::store::run_dir::{RunDir, RunDirError};
use crate::trainer::Trainer;
use crate::untrusted::glob::Glob;
use crate::untrusted::text;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A checkpoint to begin from.
#[derive(Debug)]
pub enum FirstCheckpoint {
    /// One that downshift wrote, of another run.
    OfRun {
        /// The run.
        base: RunDir,
        /// The checkpoint.
        loaded: Box<Loaded>,
    },
    /// One that a script wrote.
    OfScript {
        /// Its file or folder.
        path: PathBuf,
        /// Its step.
        step: u64,
        /// The run that it belongs to, if it was found through one.
        base: Option<RunDir>,
    },
}

impl FirstCheckpoint {
    /// Finds the checkpoint that `--from` names: a run, or what the script wrote, with `@STEP` for another step than its
    /// newest or its name's.
    pub fn named(name: &str, run: &Run, runs: &Path) -> Result<Self, Failure> {
        let (place, step) = match name.rsplit_once('@').and_then(|(place, step)| Some((place, step.parse().ok()?))) {
            Some((place, step)) if !Path::new(name).exists() => (place, Some(step)),
            _ => (name, None),
        };
        let path = Path::new(place);
        // A task has no files of its own, so this folder is not a checkpoint.
        if run.command.is_some() && path.exists() && RunDir::open(path).is_err() {
            return Self::of_file(path, step, run);
        }
        match RunDir::find(runs, Some(place)) {
            Ok(base) => Self::of_run(base, step, run),
            Err(error @ (RunDirError::Unknown { .. } | RunDirError::Misspelt { .. } | RunDirError::None(_))) => {
                if path.exists() {
                    resumable(run)?;
                }
                let (place, runs, meant) = (text::path(path), text::path(runs), error.suggestion());
                Err(Failure::new(
                    CHECKPOINT,
                    format!(
                        "--from {place}: neither a checkpoint nor a run in {runs}{meant}; `downshift runs` lists the runs"
                    ),
                ))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn of_file(path: &Path, step: Option<u64>, run: &Run) -> Result<Self, Failure> {
        resumable(run)?;
        let shown = text::path(path);
        let unknown = || Failure::new(2, format!("the name of {shown} tells no step; write --from {shown}@STEP"));
        let step = step.or_else(|| step_in_name(path)).filter(|step| *step > 0).ok_or_else(unknown)?;
        Ok(Self::OfScript { path: path.canonicalize()?, step, base: None })
    }

    fn of_run(base: RunDir, step: Option<u64>, run: &Run) -> Result<Self, Failure> {
        if base.run()?.command.is_some() != run.command.is_some() {
            let [of_base, of_run] =
                if run.command.is_some() { ["a built-in task", "a command"] } else { ["a command", "a built-in task"] };
            let name = base.name();
            return Err(Failure::new(2, format!("--from {name}: that run trains {of_base}, this one {of_run}")));
        }
        let chosen = match step {
            Some(step) => adopted::find(base.path(), step),
            None => adopted::newest_usable(base.path()).0,
        };
        let container = checkpoint::list(base.path()).into_iter().map(|entry| entry.step);
        let newest = container.filter(|there| step.is_none_or(|step| step == *there)).max();
        if let Some(Adopted { path, step, .. }) = chosen.filter(|it| newest.is_none_or(|newest| newest < it.step)) {
            // A companion passes it on, without a word about it in the run file.
            if !KnownCompanion::of_run(&base).is_some_and(|known| known.resumes_script()) {
                resumable(run)?;
            }
            return Ok(Self::OfScript { path, step, base: Some(base) });
        }
        let loaded = Box::new(checkpoints::load_chosen(&base, step)?);
        Ok(Self::OfRun { base, loaded })
    }

    /// Checks that the model of this rung can begin with it.
    pub fn check(&self, run: &Run, rung: usize, trainer: &dyn Trainer) -> Result<(), Failure> {
        let Self::OfRun { base, loaded } = self else { return Ok(()) };
        let begun = &run.rungs[rung];
        trainer.check_checkpoint(run, rung, &loaded.files).map_err(|refusal| {
            let written = TrainState::in_files(&loaded.files).map(|state| state.rung_name);
            let other = written.filter(|name| *name != begun.name && run.rung_named(name).is_some());
            let way = other
                .filter(|_| refusal.code == CHECKPOINT)
                .map(|name| format!("; it was written on `{name}`: --rung {name}"));
            let way = way.unwrap_or_default();
            Failure::new(refusal.code, format!("--from {}, on rung `{}`: {refusal}{way}", base.name(), begun.name))
        })
    }

    /// Makes it the first checkpoint of a run that has not started.
    pub fn give_to(&self, dir: &RunDir, run: &Run, rung: usize) -> Result<(), Failure> {
        match self {
            Self::OfRun { base, loaded } => copy_container(base, dir, loaded, Some(&state_on(loaded, run, rung)?))?,
            Self::OfScript { path, step, base } => {
                if let Some(base) = base {
                    KnownCompanion::copy(base, dir.path())?;
                }
                let spec = run.command.as_ref().and_then(|spec| spec.checkpoints.as_ref());
                // Retention deletes the run's own files, not one from before.
                let copies = spec.is_some_and(|spec| spec.copy || spec.keep_last.is_some());
                let adopt = if copies { adopted::adopt_copy } else { adopted::adopt };
                let samples = step.saturating_mul(units_per_step(&run.preset_tree(rung)));
                adopt(dir.path(), *step, samples, path).map_err(|error| Failure::new(CHECKPOINT, error.to_string()))?;
            }
        }
        let mut keeper = OfflineKeeper::step_in(dir)?;
        match self {
            Self::OfRun { base, .. } | Self::OfScript { base: Some(base), .. } => {
                keeper.begin_from(base, self.describe());
            }
            Self::OfScript { base: None, .. } => keeper.note(self.describe()),
        }
        Ok(())
    }

    fn describe(&self) -> String {
        match self {
            Self::OfRun { base, loaded } => {
                format!(
                    "begins from step {} of {}; the schedule of the learning rate follows this run's length",
                    count(loaded.manifest.step),
                    base.name()
                )
            }
            Self::OfScript { path, step, .. } => format!("begins from step {} of {}", count(*step), text::path(path)),
        }
    }
}

/// Returns the state in a checkpoint of another run, whose ladder may be another one, for a run that begins on this rung.
fn state_on(loaded: &Loaded, run: &Run, rung: usize) -> Result<Vec<u8>, Failure> {
    let Some(state) = TrainState::in_files(&loaded.files) else {
        return Err(Failure::new(CHECKPOINT, format!("{} has no {STATE}", text::path(&loaded.path))));
    };
    let rung_name = run.rungs[rung].name.clone();
    Ok(serde_json::to_vec_pretty(&TrainState { rung, rung_name, is_foreign: true, ..state })?)
}

/// Copies a checkpoint of downshift's into a new run, with another state if one is given. The rows that it carries are a part
/// of the old run's curve, so they stay there: the new run has a curve of its own.
pub fn copy_container(base: &RunDir, to: &RunDir, loaded: &Loaded, state: Option<&[u8]>) -> Result<(), Failure> {
    // Without it, the new run would not be known to resume.
    KnownCompanion::copy(base, to.path())?;
    let replaced: Vec<(&str, &[u8])> =
        state.map(|state| (STATE, state)).into_iter().chain([(STEPS, &[][..])]).collect();
    checkpoints::copy::write_copy(to.path(), loaded, &replaced)?;
    Ok(())
}

/// Returns the command of a run that can resume from its script's checkpoints.
fn resumable(run: &Run) -> Result<&CommandSpec, Failure> {
    let Some(command) = &run.command else {
        let way = "set model.init_from to begin from weights, or give --from the name of a run";
        return Err(Failure::new(2, format!("--from a file is for commands; {way}")));
    };
    if !command.resumes() {
        let way = way_to_resume(command);
        return Err(Failure::config(format!("--from: {} does not say how its command resumes; {way}", run.name)));
    }
    Ok(command)
}

/// Returns what has to be done before a command can begin from a checkpoint of its script.
fn way_to_resume(command: &CommandSpec) -> String {
    if KeptScript::of(command).is_some_and(|script| script.kept == Kept::Loop) {
        return "let the script load it before it calls downshift.attach, which saves checkpoints of its own"
            .to_owned();
    }
    let known = profiles::resume_arguments(command);
    let arguments = known.unwrap_or_else(|| vec![example_argument(&command.command).to_owned()]);
    let quoted: Vec<String> = arguments.iter().map(|word| format!("{word:?}")).collect();
    format!(
        "add `checkpoints` and `resume` to a run file (`downshift init` proposes one), such as `arguments: [{}]`",
        quoted.join(", ")
    )
}

/// A checkpoint of a command from before its run.
struct Earlier {
    path: PathBuf,
    written: Option<SystemTime>,
    /// A run that starts over may write over it.
    at_risk: bool,
    /// The run that wrote it, and its step, if it was found through one.
    base: Option<(RunDir, u64)>,
}

/// Newest runs whose checkpoints a start looks for.
const RUNS: usize = 30;

impl Earlier {
    /// Finds the newest one.
    fn find(run: &Run, rung: usize) -> Option<Self> {
        let command = run.command.as_ref()?;
        let place = earlier_pattern(run, rung)?;
        let pattern = Glob::parse(&place.pattern).ok()?;
        let last = command.checkpoints.as_ref()?.complete.as_deref();
        let found = find_complete(&pattern, &command.directory, last).into_iter();
        let written = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
        let at_risk = !place.in_run;
        let dated = found.map(|path| Self { written: written(&path), path, at_risk, base: None });
        dated.max_by_key(|earlier| earlier.written)
    }

    /// Finds the newest one of the newest run of the same command, if it lies outside its run directory, where this one
    /// writes too.
    fn of_earlier_run(run: &Run, folder: &Path) -> Option<Self> {
        let command = run.command.as_ref()?;
        if command.command.iter().any(|word| word.contains("{run_dir}")) {
            return None;
        }
        let same = |dir: &RunDir| {
            let other = dir.run().ok().and_then(|run| run.command);
            other.is_some_and(|other| other.directory == command.directory && other.command == command.command)
        };
        let dir = RunDir::all(folder).into_iter().take(RUNS).find(same)?;
        let has_ended = live_status(&dir).is_some_and(|status| status.state.is_over());
        let newest = adopted::list(dir.path()).into_iter().next().filter(|_| has_ended)?;
        if newest.path.starts_with(dir.path()) || newest.verify().is_err() {
            return None;
        }
        let written = newest.path.metadata().and_then(|data| data.modified()).ok();
        Some(Self { path: newest.path, written, at_risk: true, base: Some((dir, newest.step)) })
    }

    /// Says that it is there, and what a run would do to it.
    fn describe(&self) -> String {
        let since = self.written.and_then(|time| time.elapsed().ok());
        let since = since.and_then(|since| i64::try_from(since.as_millis()).ok());
        let written = since.map_or_else(String::new, |since| format!(" (written {} ago)", age(since)));
        let path = self.shown();
        let risk =
            if self.at_risk { "a run that starts over may write over it" } else { "a run starts over without it" };
        format!("{path}{written} is there already; {risk}")
    }

    /// Returns the option that begins from it.
    fn option(&self) -> String {
        if let Some((base, step)) = &self.base {
            return format!("--from {}@{step}", base.name());
        }
        let step = if step_in_name(&self.path).is_some() { "" } else { "@STEP" };
        format!("--from {}{step}", self.shown())
    }

    /// Returns the path as it is typed here.
    fn shown(&self) -> String {
        let here = std::env::current_dir().unwrap_or_default();
        text::path(self.path.strip_prefix(here).unwrap_or(&self.path))
    }

    /// Reports whether a run can begin from it.
    fn is_usable(&self, run: &Run) -> bool {
        let known = self.base.as_ref().and_then(|(base, _)| KnownCompanion::of_run(base));
        known.is_some_and(|known| known.resumes_script()) || resumable(run).is_ok()
    }

    /// Says how a run begins from it.
    fn way(&self, run: &Run) -> String {
        if self.is_usable(run) {
            return format!("`{}` continues from it", self.option());
        }
        let way = run.command.as_ref().map(way_to_resume).unwrap_or_default();
        format!("the run file does not say how the command continues from it: {way}")
    }

    /// Makes it the first checkpoint; asks for its step where its name tells none.
    fn begin(self) -> Result<FirstCheckpoint, Failure> {
        if let Some((base, step)) = self.base {
            return Ok(FirstCheckpoint::OfScript { path: self.path, step, base: Some(base) });
        }
        let step = step_in_name(&self.path).filter(|step| *step > 0).map_or_else(ask_step, Ok)?;
        Ok(FirstCheckpoint::OfScript { path: self.path.canonicalize()?, step, base: None })
    }
}

fn ask_step() -> Result<u64, Failure> {
    loop {
        let answer = ask_user("after which step was it saved? Its training printed that step last: ")?;
        let answer = answer.ok_or_else(|| Failure::new(2, "nothing was started"))?;
        if let Some(step) = answer.parse().ok().filter(|step| *step > 0) {
            return Ok(step);
        }
    }
}

/// Returns a note about a checkpoint that lies where the command saves.
pub fn note(run: &Run, rung: usize) -> Option<String> {
    Earlier::find(run, rung).map(|earlier| format!("{}; {}", earlier.describe(), earlier.way(run)))
}

/// Settles what a new run does with a checkpoint from before: asks on a terminal if it may be lost, else starts over.
pub fn settle(run: &Run, rung: usize, headless: bool, folder: &Path) -> Result<Option<FirstCheckpoint>, Failure> {
    let earlier = Earlier::find(run, rung).or_else(|| Earlier::of_earlier_run(run, folder));
    let Some(earlier) = earlier else { return Ok(None) };
    let may_ask = !headless && io::stdin().is_terminal() && io::stdout().is_terminal();
    if !may_ask || !earlier.at_risk {
        say(&format!("{}; {}", earlier.describe(), earlier.way(run)));
        return Ok(None);
    }
    line!("{}.", earlier.describe());
    let continues = earlier.is_usable(run);
    if !continues {
        line!("{}.", earlier.way(run));
    }
    // The command of another run may have ended as it should.
    let default = if continues && earlier.base.is_none() { "c" } else { "q" };
    let choices = if continues { "[c]ontinue from it, " } else { "" };
    let question = format!("{choices}[s]tart over, or [q]uit? [{default}] ");
    loop {
        let answer = ask_user(&question)?;
        match answer.as_deref().map(|answer| if answer.is_empty() { default } else { answer }) {
            Some("c") if continues => return earlier.begin().map(Some),
            Some("s") => return Ok(None),
            Some("q") | None => return Err(Failure::new(2, "nothing was started")),
            Some(_) => {}
        }
    }
}
