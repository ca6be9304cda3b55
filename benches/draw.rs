//! Frame times: charts of a run of a million steps, drawn by the real view into a buffer of 200 × 60 cells
//! (all charts) and of 120 × 40 (four).
//!
//! `cargo bench --no-default-features --bench draw -- [STEPS]`

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use downshift::cockpit::layout::charts_per_page;
use downshift::cockpit::state::State;
use downshift::cockpit::state::facts::History;
use downshift::cockpit::update::{HistoryBox, Msg, update};
use downshift::cockpit::view;
use downshift::config::knobs::Watch;
use downshift::protocol::control::StepRow;
use downshift::theme::Theme;
use ratatui::{Terminal, backend::TestBackend};
use std::time::Instant;

const SIZE: (u16, u16) = (200, 60);
/// A screen that fits four charts.
const FOUR: (u16, u16) = (120, 40);
const FRAMES: usize = 500;

fn step_row(step: u64) -> StepRow {
    let noise = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / f64::from(1 << 24);
    let skipped = step.is_multiple_of(9_973);
    let value = |value: f64| (!skipped).then_some(value);
    StepRow {
        attempt: 1 + step / 300_000,
        rung: (step / 300_000) as usize,
        step,
        samples: step * 32,
        epoch: step / 1000,
        loss: value(2.0 / (1.0 + step as f64 / 1e4) + 0.2 * noise),
        lr: Some(1e-3),
        grad_norm: value(0.5 + noise),
        skipped,
        data_wait_ms: noise,
        compute_ms: 30.0 + noise,
        time_ms: step.cast_signed() * 33,
        ..StepRow::default()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let steps: u64 = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(1_000_000);
    let theme = Theme::shipped()?.remove(0);
    for (name, size) in [("the largest grid", SIZE), ("four charts", FOUR)] {
        let mut state = State::new(Vec::new(), Watch::default(), size, 0, 0);
        update(&mut state, Msg::KeeperLost("none".to_owned()));
        let asked = state.facts.asked;
        let history = History::default().with_steps((1..=steps).map(step_row));
        update(&mut state, Msg::History { asked, history: Ok(HistoryBox(Box::new(history))) });
        update(&mut state, Msg::Key(KeyEvent::new(KeyCode::Char('2'), KeyModifiers::NONE)));
        state.screen.trouble_hidden = true;
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1))?;
        let mut took = Vec::with_capacity(FRAMES);
        for _ in 0..FRAMES {
            let start = Instant::now();
            terminal.draw(|frame| view::render(frame, &state, &theme))?;
            took.push(start.elapsed());
        }
        took.sort();
        println!(
            "{name}: {} charts of {steps} steps on {} × {}: p50 {:.2?}, p99 {:.2?} a frame (aim: 4 ms)",
            charts_per_page(&state),
            size.0,
            size.1,
            took[FRAMES / 2],
            took[FRAMES * 99 / 100]
        );
    }
    Ok(())
}
