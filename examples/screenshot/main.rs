//! Renders the cockpit of a real run as SVG: the run's store, drawn by the real view into a buffer of cells.
//!
//! ```sh
//! cargo run --release --example screenshot -- runs/digits-… --size 120x36 --out screen.svg
//! ```

mod svg;

use clap::Parser;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use downshift::cockpit::state::State;
use downshift::cockpit::update::{HistoryBox, Msg, update};
use downshift::cockpit::{readers, view};
use downshift::protocol::control::{RunState, StageName, Update};
use downshift::store::continuation::commands;
use downshift::store::run_dir::RunDir;
use downshift::theme::Theme;
use ratatui::{Terminal, backend::TestBackend};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Parser)]
struct Arguments {
    /// Run directory
    run_dir: PathBuf,
    /// Columns and rows
    #[arg(long, default_value = "120x36")]
    size: String,
    /// View, 1 to 6
    #[arg(long, default_value_t = '1')]
    view: char,
    /// Name of a theme
    #[arg(long, default_value = "dark")]
    theme: String,
    /// Show the preview of a shift down
    #[arg(long)]
    shift: bool,
    /// Show the cockpit in the middle of the run's newest shift
    #[arg(long)]
    progress: bool,
    /// Output file
    #[arg(long)]
    out: PathBuf,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let (columns, rows) = arguments.size.split_once('x').ok_or("--size is COLUMNSxROWS")?;
    let size = (columns.parse()?, rows.parse()?);
    let themes = Theme::shipped()?;
    let theme = themes.iter().find(|theme| theme.name == arguments.theme).ok_or("no such theme")?;
    let mut state = open_state(&RunDir::open(&arguments.run_dir)?, size)?;
    if arguments.progress {
        state = rewind_to_shift(&RunDir::open(&arguments.run_dir)?, &state)?;
    }
    for key in [arguments.view].into_iter().chain(arguments.shift.then_some('d')) {
        update(&mut state, Msg::Key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE)));
    }
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1))?;
    terminal.draw(|frame| view::render(frame, &state, theme))?;
    std::fs::write(&arguments.out, svg::render_buffer(terminal.backend().buffer(), theme.base))?;
    Ok(())
}

/// Returns the state of a cockpit just opened on the run.
fn open_state(dir: &RunDir, size: (u16, u16)) -> Result<State, Box<dyn std::error::Error>> {
    let run = dir.run()?;
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
    let offset = jiff::Zoned::now().offset().seconds();
    let mut state = State::new(readers::rung_views(&run), run.watch.clone(), size, now, offset);
    state.commands = run.command.as_ref().map(|command| commands(dir, Some(command)));
    state.command = run.command;
    update(&mut state, Msg::KeeperBack);
    let asked = state.facts.ask_for_history().ok_or("the history was already requested")?;
    let history = readers::read_history(dir).map(|history| HistoryBox(Box::new(history)));
    update(&mut state, Msg::History { asked, history });
    Ok(state)
}

/// Returns the state while the worker of the newest shift was loading: the store's contents by then, and
/// the shift's progress so far.
fn rewind_to_shift(dir: &RunDir, today: &State) -> Result<State, Box<dyn std::error::Error>> {
    let mut status = today.status().cloned().ok_or("the run has no status")?;
    let next = today.facts.series.segments().last().ok_or("the run has no steps")?.spot.time_ms;
    let passage = status.passage.as_mut().ok_or("the run has not shifted yet")?;
    let starts = [StageName::Load, StageName::Start, StageName::StartAndStep];
    let place = passage.stages.iter().position(|stage| starts.contains(&stage.name));
    let place = place.ok_or("the newest shift started no worker")?;
    passage.stages.truncate(place + 1);
    let loads_ms = passage.stages[place].took_ms.take().unwrap_or(0);
    passage.after = None;
    let mut history = readers::read_history_until(dir, next - 1)?;
    let newest = history.recent.back().ok_or("no step before the shift")?;
    (status.state, status.step, status.samples) = (RunState::Starting, newest.step, newest.samples);
    (status.rung, status.loss) = (newest.rung, newest.loss);
    // Drop everything that came later.
    status.why = None;
    status.rung_name = today.ladder.get(newest.rung).map_or_else(String::new, |rung| rung.name.clone());
    status.eval = history.evals.last().map(|row| row.eval.clone());
    history.status = None;
    let begun = next - i64::try_from(loads_ms)?;
    let mut state = State::new(today.ladder.clone(), today.watch.clone(), today.screen.size, begun, today.utc_offset_s);
    (state.command, state.commands) = (today.command.clone(), today.commands.clone());
    update(&mut state, Msg::KeeperBack);
    update(&mut state, Msg::Keeper(Update::Status(Box::new(status))));
    let asked = state.facts.asked;
    update(&mut state, Msg::History { asked, history: Ok(HistoryBox(Box::new(history))) });
    update(&mut state, Msg::Tick(begun + i64::try_from(loads_ms * 6 / 10)?));
    Ok(state)
}
