//! `resume --interrupted`: after a reboot, every run that was alive goes on.

use super::client::keeper_listens;
use super::run::{has_room_to_go_on, start_keeper};
use super::trust::{self, Trust};
use super::{Failure, Outcome, command_line, line};
use crate::keeper::ENDED_BY_SIGNAL;
use crate::keeper::sentences::grouped;
use crate::protocol::control::{RunState, Status};
use crate::store::lock::Identity;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::store::{owners, permissions};
use std::path::Path;
use std::time::Duration;

/// Between two looks at runs that are waited for.
const LOOK: Duration = Duration::from_secs(2);

/// Where a run stands after the machine came up.
enum Found {
    /// It was alive when the machine went down.
    Interrupted(Status),
    /// A keeper watches over it.
    Alive,
    /// It was paused, and stays so.
    Paused,
    /// It was over, or never began.
    Over,
}

/// Starts a keeper for every run of the folder that was alive when the machine went down. With `wait`
/// it returns only when these runs are over: what started it may keep the machine up until then.
pub fn resume_all(runs: &Path, wait: bool) -> Outcome {
    let (mut resumed, mut told, mut failed) = (Vec::new(), 0, 0);
    let mut tell = |dir: &RunDir, words: &str| {
        told += 1;
        line!("{}: {words}", dir.name());
    };
    for dir in RunDir::all(runs).into_iter().rev() {
        match find(&dir) {
            Found::Over => {}
            Found::Alive => tell(&dir, "is alive; left alone"),
            Found::Paused => tell(&dir, &format!("was paused and stays so; `{}` goes on", dir.command("resume"))),
            Found::Interrupted(status) => match go_on(&dir) {
                Ok(()) => {
                    let from = status
                        .durable_step
                        .map_or_else(|| "the beginning".to_owned(), |step| format!("step {}", grouped(step)));
                    tell(&dir, &format!("goes on from {from}"));
                    resumed.push(dir);
                }
                Err(failure) => {
                    failed += 1;
                    tell(&dir, &format!("cannot go on: {}", failure.message));
                }
            },
        }
    }
    if told == 0 {
        line!("no run in {} was interrupted", runs.display());
    }
    while wait && resumed.iter().any(|dir| owners::keeper(dir).is_some()) {
        std::thread::sleep(LOOK);
    }
    Ok(u8::from(failed > 0))
}

/// By what the keeper last wrote and by who lives now.
fn find(dir: &RunDir) -> Found {
    if owners::keeper(dir).is_some() || keeper_listens(dir) {
        return Found::Alive;
    }
    let Some((reader, status)) =
        Reader::open(dir).ok().and_then(|reader| reader.status().map(|status| (reader, status)))
    else {
        return Found::Over;
    };
    let shown = || live_status(dir).unwrap_or_else(|| status.clone());
    match status.state {
        RunState::Paused => Found::Paused,
        // A shutdown sends SIGTERM to every process before it takes the machine down.
        RunState::Stopped if ended_with_the_machine(&reader) => Found::Interrupted(shown()),
        state if state.is_over() => Found::Over,
        _ => Found::Interrupted(shown()),
    }
}

/// Whether a signal ended the run in an earlier boot of the machine.
fn ended_with_the_machine(reader: &Reader) -> bool {
    let boot: Option<String> = reader.fact::<Option<String>>(ENDED_BY_SIGNAL).flatten();
    boot.is_some_and(|boot| boot != Identity::own().boot)
}

fn go_on(dir: &RunDir) -> Result<(), Failure> {
    permissions::check(dir)?;
    let run = dir.run().map_err(|error| Failure::new(13, error.to_string()))?;
    trust::ask(&run, Trust::default())?;
    has_room_to_go_on(dir, &run)?;
    command_line::remember(dir);
    start_keeper(dir, None)
}
