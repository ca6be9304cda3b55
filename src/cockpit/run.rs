//! The event loop: wait for a message, drain the queue, update, draw. It draws immediately after a key
//! and otherwise at most every 50 ms; it does not draw if nothing changed.

mod background;

use super::clipboard;
use super::connect::{self, KeeperSource};
use super::errand::Errand;
use super::glyphs::Glyphs;
use super::keymap::Keymap;
use super::log_tail::LogTail;
use super::pictures::PictureKind;
use super::pictures::ask::{self, LateAnswer};
use super::preferences::Preferences;
use super::read_error::ReadError;
use super::readers::samples::SampleSources;
use super::state::facts::History;
use super::state::runs::OtherRun;
use super::state::{Link, Notice, RungView, State};
use super::surface::Surface;
use super::terminal::HeldTerminal;
use super::update::{Effect, Msg, RunChange, join_bursts, update};
use crate::config::command::CommandSpec;
use crate::config::knobs::Watch;
use crate::protocol::claim::QueueChange;
use crate::protocol::control::{Request, Status, StepRow};
use crate::store::continuation::commands;
use crate::store::foreign::ForeignProcess;
use crate::store::labels::LabelEdit;
use crate::store::removal::RunSize;
use crate::store::run_dir::RunDir;
use crate::store::run_summary::RunSummary;
use crate::theme::Theme;
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinSet;

/// Reads the run's history from the store. Called on a blocking thread, and again after a keeper
/// reconnects.
pub type HistorySource = Arc<dyn Fn() -> Result<History, ReadError> + Send + Sync>;

/// Reads another run by name, with or without its curve.
pub type OtherSource = Arc<dyn Fn(&str, bool) -> Result<OtherRun, ReadError> + Send + Sync>;

/// Reads the rows of a range of steps in full.
pub type RowsSource = Arc<dyn Fn(&Range<u64>) -> Vec<StepRow> + Send + Sync>;

/// The runs of the folder.
#[derive(Clone)]
pub struct Others {
    /// Lists the runs, newest first.
    pub list: Arc<dyn Fn() -> Vec<RunSummary> + Send + Sync>,
    /// Reads one run.
    pub read: OtherSource,
}

/// Changes the labels of a run.
pub type LabelChange = Arc<dyn Fn(&str, &LabelEdit) -> RunChange + Send + Sync>;

/// Changes a run's place in the queue.
pub type PlaceChange = Arc<dyn Fn(&str, QueueChange) -> RunChange + Send + Sync>;

/// The changes of runs that the user can ask for.
#[derive(Clone)]
pub struct Changes {
    /// Changes the labels of a run.
    pub label: LabelChange,
    /// Measures a run.
    pub measure: Arc<dyn Fn(&str) -> RunSize + Send + Sync>,
    /// Deletes a run.
    pub delete: Arc<dyn Fn(&str) -> RunChange + Send + Sync>,
    /// Changes a run's place in the queue.
    pub queue: PlaceChange,
}

/// Readers of on-disk data; each is called on a blocking thread.
#[derive(Clone)]
pub struct Sources {
    /// The whole history.
    pub history: HistorySource,
    /// The run's status as far as it is known without the keeper.
    pub status: Arc<dyn Fn() -> Option<Status> + Send + Sync>,
    /// Rows of a range of steps in full.
    pub rows: RowsSource,
    /// The history up to a moment, Unix milliseconds.
    pub moment: Arc<dyn Fn(i64) -> Result<History, ReadError> + Send + Sync>,
    /// Other runs.
    pub others: Others,
    /// Samples and layers.
    pub samples: SampleSources,
    /// Changes to runs.
    pub changes: Changes,
}

/// Everything the cockpit needs to attach to a run.
pub struct Attach {
    /// The run directory.
    pub run_dir: PathBuf,
    /// The ways to the keeper.
    pub keeper: KeeperSource,
    /// The rungs, fastest first.
    pub ladder: Vec<RungView>,
    /// The command, in a run that starts one.
    pub command: Option<CommandSpec>,
    /// Thresholds.
    pub watch: Watch,
    /// Themes to cycle through, reduced to the terminal's capabilities; the first one is active at the start.
    pub themes: Vec<Theme>,
    /// Readers of the run's data.
    pub sources: Sources,
    /// Key bindings.
    pub keys: Keymap,
    /// Whether requests to the run are disabled.
    pub read_only: bool,
    /// Symbols the terminal can display.
    pub glyphs: Glyphs,
    /// How to show pictures; `None` asks the terminal.
    pub pictures: Option<PictureKind>,
    /// Preferences from the last session.
    pub preferences: Preferences,
    /// Notice to show first: a theme that failed to load, a key that tmux intercepts.
    pub notice: Option<String>,
}

/// Result of a cockpit session.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Last known status of the run.
    pub status: Option<Status>,
    /// Whether a keeper was answering at the end.
    pub keeper_answers: bool,
    /// Work to do next; none if the user closed the cockpit.
    pub errand: Option<Errand>,
    /// Preferences to remember.
    pub preferences: Preferences,
}

/// Reasons why a cockpit ends early. The run continues.
#[derive(Debug, thiserror::Error)]
pub enum CockpitError {
    /// The terminal failed.
    #[error("the terminal failed: {0}; the run continues; `downshift attach` reopens the cockpit")]
    Terminal(#[from] io::Error),
    /// No theme was given.
    #[error("no theme was given; this is a bug in the program that opened the cockpit")]
    NoTheme,
}

/// Opens the cockpit on a run and returns when the user closes it.
///
/// # Errors
/// Returns an error when the terminal fails; by then the terminal has been restored.
pub async fn run(attach: Attach) -> Result<Outcome, CockpitError> {
    let screen = HeldTerminal::acquire(attach.glyphs)?;
    let size = screen.size()?;
    let (inbox, messages) = mpsc::channel(1024);
    let (ask, requests) = mpsc::channel(64);
    // Dropping it on return aborts the background tasks.
    let mut background = JoinSet::new();
    let support = attach.pictures.map(ask::force_support);
    let asked = support.is_none() && ask::send_query().is_ok();
    background.spawn(read_terminal(inbox.clone(), asked));
    background.spawn(connect::run_client(attach.keeper, requests, inbox.clone()));
    background.spawn(forward_stops(inbox.clone()));
    let now = unix_ms(SystemTime::now());
    let mut state = State::new(attach.ladder, attach.watch, size, now, utc_offset_s());
    (state.keys, state.read_only, state.command) = (attach.keys, attach.read_only, attach.command);
    let dir = RunDir::open(&attach.run_dir).ok();
    state.watched = dir.as_ref().and_then(ForeignProcess::watched);
    state.commands = dir.map(|dir| commands(&dir, state.command.as_ref()));
    state.themes = attach.themes.iter().map(|theme| theme.name.clone()).collect();
    attach.preferences.apply(&mut state, &attach.themes);
    let pictures = attach.preferences.pictures;
    state.samples.support = support.unwrap_or(state.samples.support);
    let until_ms = now.saturating_add(10_000);
    state.notice = attach.notice.map(|text| Notice { text, refused: true, until_ms });
    let log = LogTail::new(attach.run_dir.join("worker.log"));
    let (themes, sources) = (attach.themes, attach.sources);
    let run_dir = attach.run_dir;
    let cockpit = Cockpit { state, screen, themes, messages, inbox, ask, log, run_dir, sources };
    let mut outcome = cockpit.run().await?;
    outcome.preferences.pictures = pictures;
    Ok(outcome)
}

/// Reads the terminal's answers about pictures if it was asked, then forwards its events until it ends.
pub(super) async fn read_terminal(inbox: Sender<Msg>, asked: bool) {
    let mut late = LateAnswer::default();
    if asked && let Ok((support, keys, unanswered)) = tokio::task::spawn_blocking(ask::await_support).await {
        late = LateAnswer::new(unanswered, Instant::now());
        let msgs = std::iter::once(Msg::Pictures(support)).chain(keys.into_iter().map(Msg::Key));
        for msg in msgs {
            let _ = inbox.send(msg).await;
        }
    }
    let mut events = EventStream::new();
    while let Some(event) = events.next().await {
        if event.as_ref().is_ok_and(|event| late.holds(event, Instant::now())) {
            continue;
        }
        let msg = match event {
            Ok(Event::Key(key)) => Msg::Key(key),
            Ok(Event::Mouse(mouse)) => Msg::Mouse(mouse),
            Ok(Event::Resize(width, height)) => Msg::Resize(width, height),
            Ok(Event::Paste(text)) => Msg::Paste(text),
            // Not requested, but some terminals send it anyway.
            Ok(Event::FocusGained | Event::FocusLost) => continue,
            Err(_) => break,
        };
        if inbox.send(msg).await.is_err() {
            return;
        }
    }
    // No more keys can arrive.
    let _ = inbox.send(Msg::InputLost).await;
}

/// Forwards stop signals. Ctrl-Z arrives as a key; a stop sent by another process arrives as a signal.
async fn forward_stops(inbox: Sender<Msg>) {
    let stop = rustix::process::Signal::TSTP.as_raw();
    let Ok(mut stops) = signal(SignalKind::from_raw(stop)) else { return };
    while stops.recv().await.is_some() {
        if inbox.send(Msg::SuspendRequested).await.is_err() {
            return;
        }
    }
}

/// Returns Unix milliseconds.
pub(super) fn unix_ms(now: SystemTime) -> i64 {
    now.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Returns the offset of local time from UTC in seconds.
pub(super) fn utc_offset_s() -> i32 {
    jiff::Zoned::now().offset().seconds()
}

/// Time from one frame to the next while news keep coming; keys are answered at once. A new step is on the screen within
/// 200 ms, and a run of 20 steps/s costs less than 2 % of a core.
const FRAME: Duration = Duration::from_millis(75);
/// Maximum number of messages handled before a frame may be drawn.
const BURST: usize = 4096;

struct Cockpit<S> {
    state: State,
    screen: S,
    themes: Vec<Theme>,
    messages: Receiver<Msg>,
    inbox: Sender<Msg>,
    ask: Sender<Request>,
    log: LogTail,
    run_dir: PathBuf,
    sources: Sources,
}

/// Consequence of a message.
enum Next {
    /// Whether and how soon to draw.
    Owed(Owed),
    /// Close this cockpit, and possibly carry out an errand.
    Close(Option<Errand>),
}

/// Urgency of the next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owed {
    Nothing,
    SomeTime,
    Now,
}

impl<S: Surface> Cockpit<S> {
    async fn run(mut self) -> Result<Outcome, CockpitError> {
        let mut drawn = Instant::now();
        let mut owed = Owed::Now;
        loop {
            if owed == Owed::Now || (owed == Owed::SomeTime && drawn.elapsed() >= FRAME) {
                let theme = self.themes.get(self.state.screen.theme % self.themes.len().max(1));
                self.screen.draw(&self.state, theme.ok_or(CockpitError::NoTheme)?)?;
                (drawn, owed) = (Instant::now(), Owed::Nothing);
            }
            let wait = match owed {
                Owed::Nothing => self.until_tick(),
                _ => FRAME.saturating_sub(drawn.elapsed()).min(self.until_tick()),
            };
            let first = tokio::time::timeout(wait, self.messages.recv()).await.ok().flatten();
            let tick = Msg::Tick(unix_ms(SystemTime::now()));
            let queued = std::iter::from_fn(|| self.messages.try_recv().ok()).take(BURST);
            let batch = join_bursts(std::iter::once(tick).chain(first).chain(queued));
            for msg in batch {
                match self.handle_message(msg)? {
                    Next::Owed(more) => owed = owed.max(more),
                    Next::Close(errand) => {
                        let keeper_answers = self.state.link == Link::Live;
                        let preferences = Preferences::from_screen(&self.state.screen, &self.themes);
                        return Ok(Outcome { keeper_answers, errand, preferences, status: self.state.facts.status });
                    }
                }
            }
        }
    }

    /// Handles a message and runs its effects.
    fn handle_message(&mut self, msg: Msg) -> Result<Next, CockpitError> {
        let at_once = matches!(msg, Msg::Key(_) | Msg::Burst(_) | Msg::Mouse(_) | Msg::Paste(_));
        let mut effects = VecDeque::from(update(&mut self.state, msg));
        let mut owed = Owed::Nothing;
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Redraw => owed = owed.max(if at_once { Owed::Now } else { Owed::SomeTime }),
                Effect::Repaint => {
                    self.screen.repaint()?;
                    owed = Owed::Now;
                }
                Effect::Bell => self.screen.ring_bell()?,
                Effect::Quit => return Ok(Next::Close(None)),
                Effect::Leave(errand) => return Ok(Next::Close(Some(errand))),
                Effect::Suspend => {
                    self.screen.suspend()?;
                    effects.extend(update(&mut self.state, Msg::Resumed));
                }
                // A full queue means that the keeper is not reading; its next update shows the result.
                Effect::Send(request) => drop(self.ask.try_send(request)),
                Effect::Copy(text) if clipboard::in_tmux() => self.copy_by_tmux(text),
                Effect::Copy(text) | Effect::CopyByTerminal(text) => {
                    self.screen.copy_text(&text)?;
                    effects.extend(update(&mut self.state, Msg::Copied(text)));
                }
                Effect::ReadLog => effects.extend(update(&mut self.state, Msg::Log(self.log.read_new_lines()))),
                other => self.start_in_background(other),
            }
        }
        Ok(Next::Owed(owed))
    }

    fn until_tick(&self) -> Duration {
        let interval = self.state.tick_ms();
        let past = unix_ms(SystemTime::now()).rem_euclid(interval);
        Duration::from_millis(u64::try_from(interval - past).unwrap_or(1000))
    }
}

#[cfg(test)]
mod tests;
