//! The loop: wait for one message, take all that are queued, update, draw. After a key it draws at
//! once, else at most every 50 ms; when nothing changed it does not draw.

use super::connect::{self, SocketSource};
use super::glyphs::Glyphs;
use super::keymap::Keymap;
use super::log_tail::LogTail;
use super::state::facts::History;
use super::state::runs::{OtherRun, RunRow};
use super::state::{Link, Notice, RungView, State};
use super::taste::Taste;
use super::terminal::Held;
use super::update::{Effect, HistoryBox, Msg, OtherBox, update};
use crate::config::knobs::Watch;
use crate::config::theme::Theme;
use crate::protocol::control::{Request, Status, StepRow};
use crate::store::run_dir::RunDir;
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

/// Reads what the store holds of the run; called on a thread that may block, again after a keeper
/// came back.
pub type HistorySource = Arc<dyn Fn() -> Result<History, String> + Send + Sync>;

/// Reads another run by its name; with its curve or without.
pub type OtherSource = Arc<dyn Fn(&str, bool) -> Result<OtherRun, String> + Send + Sync>;

/// Reads some steps of the curve in full.
pub type RowsSource = Arc<dyn Fn(&Range<u64>) -> Vec<StepRow> + Send + Sync>;

/// The runs of the folder.
#[derive(Clone)]
pub struct Others {
    /// Lists them, newest first.
    pub list: Arc<dyn Fn() -> Vec<RunRow> + Send + Sync>,
    /// Reads one of them.
    pub read: OtherSource,
}

/// What is read from disk; each called on a thread that may block.
#[derive(Clone)]
pub struct Sources {
    /// The whole history.
    pub history: HistorySource,
    /// Where the run stands, as far as that is known without its keeper.
    pub standing: Arc<dyn Fn() -> Option<Status> + Send + Sync>,
    /// Some steps of the curve in full.
    pub rows: RowsSource,
    /// The history up to a moment, Unix milliseconds.
    pub moment: Arc<dyn Fn(i64) -> Result<History, String> + Send + Sync>,
    /// Other runs.
    pub others: Others,
}

/// What a cockpit attaches to.
pub struct Attach {
    /// The run directory.
    pub run_dir: PathBuf,
    /// Where the keeper's socket is.
    pub socket: SocketSource,
    /// The rungs, fastest first.
    pub ladder: Vec<RungView>,
    /// Thresholds.
    pub watch: Watch,
    /// The themes to go through, brought down to what the terminal shows; the first comes first.
    pub themes: Vec<Theme>,
    /// Reads the store.
    pub sources: Sources,
    /// Which key asks for what.
    pub keys: Keymap,
    /// Nothing may be asked of the run.
    pub read_only: bool,
    /// Signs that the terminal has.
    pub glyphs: Glyphs,
    /// What was chosen the last time.
    pub taste: Taste,
    /// Something to say first: a theme that could not be read, a key that tmux takes.
    pub notice: Option<String>,
}

/// How the cockpit was left.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Where the run stood.
    pub status: Option<Status>,
    /// Whether a keeper answered at the end.
    pub keeper_answers: bool,
    /// Another run to open a cockpit on.
    pub open: Option<String>,
    /// What was chosen to look at, and how.
    pub taste: Taste,
}

/// Why a cockpit could not go on. The run does.
#[derive(Debug, thiserror::Error)]
pub enum CockpitError {
    /// The terminal failed.
    #[error("the terminal failed: {0}; the run goes on, `downshift attach` opens the cockpit again")]
    Terminal(#[from] io::Error),
    /// There is nothing to draw with.
    #[error("no theme was given; this is a fault of the program that opened the cockpit")]
    NoTheme,
}

/// Something to draw on.
pub trait Screen {
    /// Draws a frame.
    ///
    /// # Errors
    /// When the terminal is gone.
    fn draw(&mut self, state: &State, theme: &Theme) -> io::Result<()>;

    /// Forgets what is on the screen, so that the next frame draws all of it.
    ///
    /// # Errors
    /// When the terminal is gone.
    fn repaint(&mut self) -> io::Result<()>;

    /// Rings.
    ///
    /// # Errors
    /// When the terminal is gone.
    fn bell(&mut self) -> io::Result<()>;

    /// Gives the terminal back, stops the process, and takes the terminal again once it goes on.
    ///
    /// # Errors
    /// When the terminal is gone.
    fn suspend(&mut self) -> io::Result<()>;
}

/// Opens the cockpit on a run and stays until a person closes it.
///
/// # Errors
/// When the terminal fails; it has been given back by then.
pub async fn run(attach: Attach) -> Result<Outcome, CockpitError> {
    let screen = Held::take(attach.glyphs)?;
    let size = screen.size()?;
    let (inbox, messages) = mpsc::channel(1024);
    let (ask, requests) = mpsc::channel(64);
    // Dropped on return, which ends what runs beside the loop.
    let mut beside = JoinSet::new();
    beside.spawn(read_terminal(inbox.clone()));
    beside.spawn(connect::keep(attach.socket, requests, inbox.clone()));
    beside.spawn(watch_stops(inbox.clone()));
    let now = unix_ms(SystemTime::now());
    let mut state = State::new(attach.ladder, attach.watch, size, now, utc_offset_s());
    (state.keys, state.read_only) = (attach.keys, attach.read_only);
    state.resume = RunDir::open(&attach.run_dir).ok().map(|run| run.command("resume"));
    state.themes = attach.themes.iter().map(|theme| theme.name.clone()).collect();
    attach.taste.apply(&mut state.screen, &attach.themes);
    let until_ms = now.saturating_add(10_000);
    state.notice = attach.notice.map(|text| Notice { text, refused: true, until_ms });
    let log = LogTail::new(attach.run_dir.join("worker.log"));
    let (themes, sources) = (attach.themes, attach.sources);
    let home = attach.run_dir;
    Cockpit { state, screen, themes, messages, inbox, ask, log, home, sources }.run().await
}

async fn read_terminal(inbox: Sender<Msg>) {
    let mut events = EventStream::new();
    while let Some(event) = events.next().await {
        let msg = match event {
            Ok(Event::Key(key)) => Msg::Key(key),
            Ok(Event::Mouse(mouse)) => Msg::Mouse(mouse),
            Ok(Event::Resize(width, height)) => Msg::Resize(width, height),
            Ok(Event::Paste(text)) => Msg::Paste(text),
            // Not asked for; a terminal may tell anyway.
            Ok(Event::FocusGained | Event::FocusLost) => continue,
            Err(_) => break,
        };
        if inbox.send(msg).await.is_err() {
            return;
        }
    }
    // Nobody can press a key any more.
    let _ = inbox.send(Msg::InputLost).await;
}

/// Ctrl-Z comes as a key; a stop that somebody else sends comes as a signal.
async fn watch_stops(inbox: Sender<Msg>) {
    let stop = rustix::process::Signal::TSTP.as_raw();
    let Ok(mut stops) = signal(SignalKind::from_raw(stop)) else { return };
    while stops.recv().await.is_some() {
        if inbox.send(Msg::Stopped).await.is_err() {
            return;
        }
    }
}

fn unix_ms(now: SystemTime) -> i64 {
    now.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn utc_offset_s() -> i32 {
    jiff::Zoned::now().offset().seconds()
}

const FRAME: Duration = Duration::from_millis(50);
/// So many messages at most before a frame may be drawn.
const BURST: usize = 4096;

struct Cockpit<S> {
    state: State,
    screen: S,
    themes: Vec<Theme>,
    messages: Receiver<Msg>,
    inbox: Sender<Msg>,
    ask: Sender<Request>,
    log: LogTail,
    home: PathBuf,
    sources: Sources,
}

/// What follows from a message.
enum Next {
    /// Drawing.
    Owed(Owed),
    /// The end of this cockpit, and perhaps another one on that run.
    Close(Option<String>),
}

/// What is owed to the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owed {
    Nothing,
    SomeTime,
    Now,
}

impl<S: Screen> Cockpit<S> {
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
            let batch: Vec<_> = std::iter::once(tick).chain(first).chain(queued).collect();
            for msg in batch {
                match self.take(msg)? {
                    Next::Owed(more) => owed = owed.max(more),
                    Next::Close(open) => {
                        let keeper_answers = self.state.link == Link::Live;
                        let taste = Taste::of(&self.state.screen, &self.themes);
                        return Ok(Outcome { keeper_answers, open, taste, status: self.state.facts.status });
                    }
                }
            }
        }
    }

    /// Takes a message in and does what follows from it.
    fn take(&mut self, msg: Msg) -> Result<Next, CockpitError> {
        let at_once = matches!(msg, Msg::Key(_) | Msg::Mouse(_) | Msg::Paste(_));
        let mut effects = VecDeque::from(update(&mut self.state, msg));
        let mut owed = Owed::Nothing;
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Redraw => owed = owed.max(if at_once { Owed::Now } else { Owed::SomeTime }),
                Effect::Repaint => {
                    self.screen.repaint()?;
                    owed = Owed::Now;
                }
                Effect::Bell => self.screen.bell()?,
                Effect::Quit => return Ok(Next::Close(None)),
                Effect::Open(name) => return Ok(Next::Close(Some(name))),
                Effect::Suspend => {
                    self.screen.suspend()?;
                    effects.extend(update(&mut self.state, Msg::Woken));
                }
                // A full queue means that the keeper does not read; what it says next tells.
                Effect::Send(request) => drop(self.ask.try_send(request)),
                Effect::LoadHistory(asked) => self.load_history(asked),
                Effect::LoadStanding => {
                    let source = Arc::clone(&self.sources.standing);
                    self.beside(move || Msg::Standing(source().map(Box::new)));
                }
                Effect::LoadRows(steps) => {
                    let source = Arc::clone(&self.sources.rows);
                    self.beside(move || Msg::Rows(source(&steps)));
                }
                Effect::LoadMoment(at_ms) => {
                    let source = Arc::clone(&self.sources.moment);
                    self.beside(move || Msg::Moment { at_ms, history: source(at_ms).map(boxed) });
                }
                Effect::ListRuns => {
                    let source = Arc::clone(&self.sources.others.list);
                    self.beside(move || Msg::Runs(source()));
                }
                Effect::LoadOther(name, with_curve) => {
                    let source = Arc::clone(&self.sources.others.read);
                    self.beside(move || {
                        let run = source(&name, with_curve).map(|run| OtherBox(Box::new(run)));
                        Msg::Other { name, run }
                    });
                }
                Effect::LookForHome => {
                    let home = self.home.clone();
                    self.beside(move || Msg::Home(home.is_dir()));
                }
                Effect::ReadLog => effects.extend(update(&mut self.state, Msg::Log(self.log.more()))),
            }
        }
        Ok(Next::Owed(owed))
    }

    fn until_tick(&self) -> Duration {
        let interval = self.state.tick_ms();
        let past = unix_ms(SystemTime::now()).rem_euclid(interval);
        Duration::from_millis(u64::try_from(interval - past).unwrap_or(1000))
    }

    fn load_history(&self, asked: u64) {
        let source = Arc::clone(&self.sources.history);
        self.beside(move || Msg::History { asked, history: source().map(boxed) });
    }

    /// Works on a thread that may block; what comes of it is a message.
    fn beside(&self, work: impl FnOnce() -> Msg + Send + 'static) {
        let inbox = self.inbox.clone();
        tokio::task::spawn_blocking(move || drop(inbox.blocking_send(work())));
    }
}

fn boxed(history: History) -> HistoryBox {
    HistoryBox(Box::new(history))
}

#[cfg(test)]
mod tests;
