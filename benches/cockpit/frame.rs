//! Frame times in this process: draws the state of a real run into memory.

use crate::help::{Outcome, quantile};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use downshift::cockpit::readers;
use downshift::cockpit::state::State;
use downshift::cockpit::update::{Effect, HistoryBox, Msg, update};
use downshift::cockpit::view;
use downshift::store::run_dir::RunDir;
use downshift::theme::Theme;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use std::time::Instant;

const SIZE: (u16, u16) = (200, 60);

/// Prints frame times of the view with the charts, zooming in and out between frames.
pub fn measure_frames(run: &RunDir) -> Outcome<()> {
    let resolved = run.run()?;
    let mut state = State::new(readers::rung_views(&resolved), resolved.watch.clone(), SIZE, 0, 0);
    let effects = update(&mut state, Msg::KeeperLost("not running".to_owned()));
    perform_effects(run, &mut state, effects)?;
    press_key(run, &mut state, '2')?;
    let themes = Theme::shipped()?;
    let theme = themes.first().ok_or("no theme")?;
    let viewport = Viewport::Fixed(Rect::new(0, 0, SIZE.0, SIZE.1));
    let mut terminal = Terminal::with_options(CrosstermBackend::new(std::io::sink()), TerminalOptions { viewport })?;
    let mut taken = Vec::new();
    for key in "++++----".chars().cycle().take(1000) {
        press_key(run, &mut state, key)?;
        let begun = Instant::now();
        terminal.draw(|frame| view::render(frame, &state, theme))?;
        taken.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    taken.sort_by(f64::total_cmp);
    let (median, most) = (quantile(&taken, 0.5), quantile(&taken, 0.99));
    println!("| a frame of charts at {} × {}, median and 99 % | {median:.2} ms, {most:.2} ms | 4 ms |", SIZE.0, SIZE.1);
    Ok(())
}

fn press_key(run: &RunDir, state: &mut State, key: char) -> Outcome<()> {
    let effects = update(state, Msg::Key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE)));
    perform_effects(run, state, effects)
}

/// Performs an update's effects, as the main loop would.
fn perform_effects(run: &RunDir, state: &mut State, effects: Vec<Effect>) -> Outcome<()> {
    for effect in effects {
        let reply = match effect {
            Effect::LoadHistory(asked) => {
                Msg::History { asked, history: Ok(HistoryBox(Box::new(readers::read_history(run)?))) }
            }
            Effect::LoadRows(steps) => Msg::Rows(readers::read_rows(run, &steps)),
            _ => continue,
        };
        let more = update(state, reply);
        perform_effects(run, state, more)?;
    }
    Ok(())
}
