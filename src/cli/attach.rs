//! The cockpit on a run.

use super::{Failure, Outcome, Which, say};
use crate::cockpit::run::{self, Attach};
use crate::cockpit::stored;
use crate::config::theme::{Colours, Theme};
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

pub fn attach(which: &Which, runs: &Path) -> Outcome {
    let dir = RunDir::find(runs, which.run.as_deref())?;
    if !std::io::stdout().is_terminal() {
        let name = dir.name();
        return Err(Failure::new(2, format!("the cockpit needs a terminal; `downshift status {name}` prints a line")));
    }
    open(&dir)
}

/// Opens the cockpit. Its exit code is that of a run in the foreground once the run is over.
pub fn open(dir: &RunDir) -> Outcome {
    let run = dir.run()?;
    let colours = Colours::detect(|name| std::env::var(name).ok());
    let themes = Theme::shipped().map_err(|why| Failure::new(1, why))?;
    let (source, in_full) = (dir.clone(), dir.clone());
    let attach = Attach {
        run_dir: dir.path().to_owned(),
        socket: dir.socket(),
        ladder: stored::ladder(&run),
        watch: run.watch.clone(),
        themes: themes.into_iter().map(|theme| theme.shown_with(colours)).collect(),
        history: Arc::new(move || stored::history(&source)),
        rows: Arc::new(move |steps| stored::rows(&in_full, steps)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run::run(attach))?;
    runtime.shutdown_background();
    Ok(farewell(dir))
}

/// Says where the run stands once the cockpit is closed.
fn farewell(dir: &RunDir) -> u8 {
    let name = dir.name();
    match live_status(dir) {
        Some(status) if status.state.is_over() => {
            say(&super::status::text(&status));
            Reader::open(dir).ok().and_then(|reader| reader.fact("exit_code")).unwrap_or(0)
        }
        _ => {
            say(&format!("{name} goes on; `downshift attach` opens the cockpit again, `downshift stop` ends the run"));
            0
        }
    }
}
