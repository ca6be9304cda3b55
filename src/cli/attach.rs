//! `attach`: opens the cockpit on a run.

use super::preferences::{self, UserFiles};
use super::{Failure, Outcome, Which, errand, find_run, queue, say};
use crate::cockpit::action::Action;
use crate::cockpit::connect::KeeperSource;
use crate::cockpit::errand::Errand;
use crate::cockpit::glyphs::Glyphs;
use crate::cockpit::pictures;
use crate::cockpit::preferences::Preferences;
use crate::cockpit::readers;
use crate::cockpit::run::{self, Attach};
use crate::cockpit::state::screen::View;
use crate::protocol::control::RunState;
use crate::store::owners;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::theme::Colours;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

/// Arguments of `attach`.
#[derive(Debug, clap::Args)]
pub struct AttachArgs {
    #[command(flatten)]
    which: Which,
    /// Read-only: no key of this cockpit sends requests to the run
    #[arg(long)]
    read_only: bool,
}

pub fn attach(args: &AttachArgs, runs: &Path) -> Outcome {
    let dir = find_run(runs, args.which.run.as_deref())?;
    if !std::io::stdout().is_terminal() {
        let name = dir.name();
        return Err(Failure::new(2, format!("the cockpit needs a terminal; `downshift status {name}` prints a line")));
    }
    open_cockpit(&dir, args.read_only)
}

/// Opens the cockpit. Returns the run's exit code once the run is over.
pub fn open(dir: &RunDir) -> Outcome {
    open_cockpit(dir, false)
}

/// Opens the cockpit on a run, and on any run chosen from its list.
fn open_cockpit(dir: &RunDir, read_only: bool) -> Outcome {
    let runs = dir.path().parent().unwrap_or(dir.path()).to_owned();
    let mut dir = dir.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut before: Option<String> = None;
    loop {
        let mut attach = attach_to(&dir, &runs, read_only)?;
        let list = attach.keys.key_of(Action::View(View::Runs));
        let way_back = before.map(|name| format!("{list} lists the runs; Enter on {name} returns to it"));
        attach.notice = attach.notice.or(way_back);
        let outcome = runtime.block_on(run::run(attach))?;
        preferences::remember(&Preferences { run: Some(dir.name()), ..outcome.preferences });
        match outcome.errand {
            Some(Errand::Open(name)) => {
                before = Some(dir.name());
                dir = find_run(&runs, Some(&name))?;
            }
            Some(errand) => {
                before = None;
                errand::carry_out(&errand, &runs)?;
            }
            None => break,
        }
    }
    runtime.shutdown_background();
    Ok(farewell(&dir))
}

fn attach_to(dir: &RunDir, runs: &Path, read_only: bool) -> Result<Attach, Failure> {
    let run = dir.run()?;
    let variable = |name: &str| std::env::var(name).ok();
    let colours = Colours::detect(variable);
    let own = UserFiles::read().map_err(|error| Failure::new(1, error.to_string()))?;
    let wrong = own.wrong.into_iter().next().or_else(|| preferences::tmux_clash(&own.keys));
    let (glyphs, preferences) = (Glyphs::detect(variable), preferences::remembered().for_run(&dir.name()));
    Ok(Attach {
        run_dir: dir.path().to_owned(),
        keeper: KeeperSource {
            socket: Arc::new({
                let dir = dir.clone();
                move || dir.socket()
            }),
            folder: Arc::new({
                let dir = dir.clone();
                move || owners::keeper_elsewhere(&dir).map(|_| dir.clone())
            }),
        },
        ladder: readers::rung_views(&run),
        command: run.command,
        watch: run.watch,
        themes: own.themes.into_iter().map(|theme| theme.reduced_to(colours)).collect(),
        sources: readers::run_sources(dir, runs, queue::change_for_cockpit),
        keys: own.keys,
        read_only,
        glyphs,
        pictures: pictures::choose_kind(variable, preferences.pictures.as_deref(), colours, glyphs),
        preferences,
        notice: wrong,
    })
}

/// Prints the run's state after the cockpit closes.
fn farewell(dir: &RunDir) -> u8 {
    let name = dir.name();
    match live_status(dir) {
        None if !dir.path().exists() => {
            say(&format!("{name} was moved or deleted; if it still trains, it ends within a minute"));
            0
        }
        Some(status) if status.state == RunState::Unattended => {
            say(&super::status::status_line(&status));
            0
        }
        Some(status) if status.state.is_over() => {
            say(&super::status::status_line(&status));
            Reader::open(dir).ok().and_then(|reader| reader.fact("exit_code")).unwrap_or(0)
        }
        _ => {
            say(&format!("{name} continues; `downshift attach` reopens the cockpit, `downshift stop` ends the run"));
            0
        }
    }
}
