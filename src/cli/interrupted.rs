//! `resume --interrupted`: after a reboot, continues every run that was alive.

use super::elsewhere::{is_of_this_machine, take_over_ended};
use super::environment::{NextStart, Precedence};
use super::run::{has_room_to_go_on, start_keeper, wait_for_claim};
use super::trust::{self, Trust};
use super::{Failure, line, say};
use crate::format::count;
use crate::keeper::ENDED_BY_SIGNAL;
use crate::protocol::control::RunState;
use crate::store::checkpoint;
use crate::store::claims::Registry;
use crate::store::command_line::record_command_line;
use crate::store::identity::Identity;
use crate::store::reader::{Reader, UnreadableStore, live_status, unreadable};
use crate::store::run_dir::RunDir;
use crate::store::runs_directories::RunsDirectories;
use crate::store::{owners, permissions};
use crate::untrusted::poll::poll;
use crate::untrusted::text;
use clap::Args;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between two checks on the runs.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time without a keeper after which a run is no longer waited for.
const PATIENCE: Duration = Duration::from_mins(10);

/// Arguments of `resume --interrupted`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Interrupted {
    /// After a reboot: continue every run that was alive when the machine went down
    #[arg(long, conflicts_with_all = ["run", "headless", "device", "from", "as_base"])]
    #[expect(clippy::struct_field_names, reason = "the name of the option")]
    pub interrupted: bool,
    /// With --interrupted: return once these runs are over
    #[arg(long, requires = "interrupted")]
    pub wait: bool,
    /// With --interrupted: also in every other runs directory that you have started a run in
    #[arg(long, requires = "interrupted")]
    pub everywhere: bool,
}

/// The state of a run after the boot.
#[derive(Debug)]
pub(super) enum Found {
    /// It was alive when the machine went down.
    Interrupted {
        /// The durable step.
        durable: Option<u64>,
        /// It waited for its first turn on a device.
        waited: bool,
    },
    /// It has a keeper.
    Alive,
    /// It was paused, and stays paused.
    Paused,
    /// It was over, or never began.
    Over,
    /// Its store is lost, so this is unknown; without a reason the store is empty.
    Unknown(Option<UnreadableStore>),
}

/// Starts a keeper for every run that was alive when the machine went down, in this folder or in all that the user has
/// used. With `wait` it returns only once these runs are over: the caller may keep the machine up until then.
pub fn resume_all(runs: &Path, args: Interrupted) -> u8 {
    let folders = if args.everywhere { all_folders(runs) } else { vec![runs.to_owned()] };
    let mut report = Report::default();
    for dir in in_order_of_queue(&folders) {
        report.resume_one(dir);
    }
    if report.told == 0 {
        let folders: Vec<String> = folders.iter().map(|folder| text::path(folder)).collect();
        line!("no run in {} was interrupted", folders.join(", "));
    }
    if args.wait {
        wait_for(report.resumed);
    }
    u8::from(report.failed > 0)
}

/// Returns the runs of these folders: those of the queue in its order, whichever held the device first, then the others, the
/// oldest first.
fn in_order_of_queue(folders: &[PathBuf]) -> Vec<RunDir> {
    let mut all: Vec<RunDir> = folders.iter().flat_map(|folder| RunDir::all(folder).into_iter().rev()).collect();
    let order = Registry::of_user().map(|registry| registry.order()).unwrap_or_default();
    all.sort_by_key(|dir| order.iter().position(|queued| queued == dir.path()).unwrap_or(usize::MAX));
    all
}

/// Returns this folder and every other one that the user has used. Names those that are not there.
fn all_folders(runs: &Path) -> Vec<PathBuf> {
    let listed = RunsDirectories::of_user().map_or_else(|| Ok(Vec::new()), |list| list.list());
    let listed = listed.unwrap_or_else(|error| {
        say(&format!("only {} is looked through: {error}", text::path(runs)));
        Vec::new()
    });
    let here = runs.canonicalize().unwrap_or_else(|_| runs.to_owned());
    let (mut folders, gone): (Vec<PathBuf>, Vec<PathBuf>) = listed.into_iter().partition(|folder| folder.is_dir());
    for folder in gone {
        line!("{} does not exist now; runs in it do not continue", text::path(&folder));
    }
    folders.retain(|folder| *folder != here);
    folders.insert(0, here);
    folders
}

/// The runs so far.
#[derive(Default)]
struct Report {
    resumed: Vec<RunDir>,
    told: usize,
    failed: usize,
}

impl Report {
    /// Continues a run if it was interrupted.
    fn resume_one(&mut self, dir: RunDir) {
        match find_state(&dir) {
            Found::Over => {}
            Found::Unknown(why) => self.tell_failure(&dir, &may_have_been_alive(&dir, why.as_ref())),
            Found::Alive => self.tell(&dir, "is already running"),
            Found::Paused => {
                self.tell(&dir, &format!("was paused and stays paused; `{}` continues it", dir.command("resume")));
            }
            Found::Interrupted { durable, waited } => match go_on(&dir) {
                Ok(()) => {
                    // The next one must find it in the queue.
                    wait_for_claim(&dir);
                    let step = durable.map(|step| format!("step {}", count(step)));
                    let begun = || format!("continues from {}", step.as_deref().unwrap_or("the beginning"));
                    self.tell(&dir, &if waited { "waits for its turn again".to_owned() } else { begun() });
                    self.resumed.push(dir);
                }
                Err(failure) => self.tell_failure(&dir, &format!("cannot continue: {}", failure.message)),
            },
        }
    }

    fn tell(&mut self, dir: &RunDir, words: &str) {
        self.told += 1;
        line!("{}: {words}", dir.name());
    }

    fn tell_failure(&mut self, dir: &RunDir, words: &str) {
        self.failed += 1;
        self.tell(dir, words);
    }
}

/// Waits until all of them are over. The parent restarts a keeper that died, so a run may go without a
/// keeper for a while.
fn wait_for(mut runs: Vec<RunDir>) {
    let mut watched = Instant::now();
    poll(INTERVAL, || {
        runs.retain(is_unfinished);
        if runs.iter().any(is_alive) {
            watched = Instant::now();
        }
        (runs.is_empty() || watched.elapsed() >= PATIENCE).then_some(())
    });
}

/// Reports whether the run has yet to end. A store that cannot be read for a moment does not end a living run.
fn is_unfinished(dir: &RunDir) -> bool {
    let status = || Reader::open(dir).ok().and_then(|reader| reader.status());
    is_alive(dir) || status().is_some_and(|status| !status.state.is_over())
}

/// Reports whether the run has a keeper or is about to get one back: by the lock files, or by the socket
/// if those were deleted.
fn is_alive(dir: &RunDir) -> bool {
    owners::is_kept(dir) || UnixStream::connect(dir.socket()).is_ok()
}

/// Determines the state from the keeper's last status and from the living processes.
pub(super) fn find_state(dir: &RunDir) -> Found {
    // A power cut left the lease of this machine; it is taken back after some seconds.
    if owners::keeper_elsewhere(dir).is_some_and(|lease| is_of_this_machine(&lease))
        && let Err(failure) = take_over_ended(dir, false)
    {
        say(&failure.message);
    }
    if is_alive(dir) {
        return Found::Alive;
    }
    let Some((reader, status)) =
        Reader::open(dir).ok().and_then(|reader| reader.status().map(|status| (reader, status)))
    else {
        return match unreadable(dir) {
            None if checkpoint::list(dir.path()).is_empty() => Found::Over,
            why => Found::Unknown(why),
        };
    };
    // The worker may have saved after its keeper was gone.
    let durable = || live_status(dir).and_then(|status| status.durable_step);
    let interrupted = || Found::Interrupted { durable: durable(), waited: status.attempts == 0 };
    match status.state {
        RunState::Paused => Found::Paused,
        _ if owners::unwritten_end(dir).is_some_and(|ending| ending.wish) => Found::Over,
        // A shutdown sends SIGTERM to every process before it takes the machine down.
        RunState::Stopped if ended_with_the_machine(&reader) => interrupted(),
        state if state.is_over() => Found::Over,
        _ => interrupted(),
    }
}

/// Describes a run that is not continued because its store does not tell whether it was alive.
fn may_have_been_alive(dir: &RunDir, why: Option<&UnreadableStore>) -> String {
    let resume = dir.command("resume");
    let why = why.map_or_else(
        || format!("run.db is empty; `{resume}` continues it from its newest checkpoint"),
        ToString::to_string,
    );
    format!("may have been interrupted: {why}")
}

/// Reports whether a signal ended the run in an earlier boot of the machine.
fn ended_with_the_machine(reader: &Reader) -> bool {
    let boot: Option<String> = reader.fact::<Option<String>>(ENDED_BY_SIGNAL).flatten();
    boot.is_some_and(|boot| boot != Identity::own().boot)
}

fn go_on(dir: &RunDir) -> Result<(), Failure> {
    permissions::check(dir)?;
    let run = dir.run().map_err(Failure::config)?;
    trust::require_approval(&run, Trust::default())?;
    has_room_to_go_on(dir, &run)?;
    record_command_line(dir);
    start_keeper(dir, None, NextStart::later(dir, Precedence::Start))
}
