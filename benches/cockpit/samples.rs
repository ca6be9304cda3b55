//! Frame times of the samples view: a grid of pictures and the matrix, drawn into the bytes for a terminal.

use crate::help::{Outcome, quantile};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use downshift::cockpit::pictures::{PictureKind, PictureSupport};
use downshift::cockpit::readers::{self, samples::sample_sources};
use downshift::cockpit::state::State;
use downshift::cockpit::update::{Effect, Msg, update};
use downshift::cockpit::view;
use downshift::protocol::samples::{Confusion, Sample, SampleSet};
use downshift::store::run_dir::RunDir;
use downshift::store::samples;
use downshift::theme::Theme;
use image::{ImageFormat, Rgb, RgbImage};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use std::io::Cursor;
use std::sync::Arc;
use std::time::Instant;

const SIZE: (u16, u16) = (120, 40);
const PICTURES: usize = 16;

/// Prints frame times with each kind of picture, and the time to read and encode the pictures of a set.
pub fn measure_samples(run: &RunDir) -> Outcome<()> {
    for step in [100, 200] {
        write_set(run, step)?;
    }
    for kind in [PictureKind::HalfBlocks, PictureKind::Kitty, PictureKind::Sixel, PictureKind::ITerm2] {
        let (frames, reading) = measure_kind(run, kind)?;
        let (median, most) = (quantile(&frames, 0.5), quantile(&frames, 0.99));
        let size = format!("{} × {}", SIZE.0, SIZE.1);
        println!("| a frame of samples at {size}, {kind:?}, median and 99 % | {median:.2} ms, {most:.2} ms | 30 ms |");
        println!("| reading and encoding its {PICTURES} pictures, on another thread | {reading:.0} ms | – |");
    }
    Ok(())
}

fn measure_kind(run: &RunDir, kind: PictureKind) -> Outcome<(Vec<f64>, f64)> {
    let resolved = run.run()?;
    let mut state = State::new(readers::rung_views(&resolved), resolved.watch.clone(), SIZE, 0, 0);
    update(&mut state, Msg::Pictures(PictureSupport { kind, cell: (10, 20), through_tmux: false }));
    let begun = Instant::now();
    press_key(run, &mut state, KeyCode::Char('7'));
    let reading = begun.elapsed().as_secs_f64() * 1e3;
    press_key(run, &mut state, KeyCode::Left);
    let themes = Theme::shipped()?;
    let theme = themes.first().ok_or("no theme")?;
    let viewport = Viewport::Fixed(Rect::new(0, 0, SIZE.0, SIZE.1));
    let mut terminal = Terminal::with_options(CrosstermBackend::new(std::io::sink()), TerminalOptions { viewport })?;
    let mut taken = Vec::new();
    // Each frame shows the other set, so that all pictures change.
    for key in [KeyCode::Right, KeyCode::Left].into_iter().cycle().take(200) {
        let begun = Instant::now();
        press_key(run, &mut state, key);
        terminal.draw(|frame| view::render(frame, &state, theme))?;
        taken.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    taken.sort_by(f64::total_cmp);
    Ok((taken, reading))
}

fn press_key(run: &RunDir, state: &mut State, code: KeyCode) {
    let effects = update(state, Msg::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    perform_effects(run, state, effects);
}

/// Performs an update's effects, as the main loop would.
fn perform_effects(run: &RunDir, state: &mut State, effects: Vec<Effect>) {
    let sources = sample_sources(run);
    for effect in effects {
        let reply = match effect {
            Effect::ListSamples => Msg::SampleSets((sources.list)()),
            Effect::LoadSamples(id) => Msg::SampleSet { id, set: (sources.read)(id).map(Arc::new) },
            Effect::LoadPicture(order) => Msg::Picture { picture: (sources.picture)(&order), order },
            _ => continue,
        };
        let more = update(state, reply);
        perform_effects(run, state, more);
    }
}

fn write_set(run: &RunDir, step: u64) -> Outcome<()> {
    let mut pictures = Vec::new();
    for number in 0..PICTURES {
        let light = |x: u32, y: u32| (x * 7 + y * 3 + number as u32 * 11 + step as u32) as u8;
        let image = RgbImage::from_fn(64, 64, |x, y| Rgb([light(x, y), light(y, x), light(x + 9, y)]));
        let mut png = Cursor::new(Vec::new());
        image.write_to(&mut png, ImageFormat::Png)?;
        pictures.push((number, png.into_inner()));
    }
    let sample = |number: usize| Sample {
        name: Some(format!("validation {number}")),
        label: Some("cat".to_owned()),
        answer: Some("dog".to_owned()),
        confidence: Some(0.9),
        loss: Some(3.0),
        ..Sample::default()
    };
    let classes: Vec<String> = (0..10).map(|class| format!("class {class}")).collect();
    let confusion = Confusion { classes, counts: vec![vec![7; 10]; 10] };
    let set = SampleSet { step, samples: (0..PICTURES).map(sample).collect(), confusion: Some(confusion) };
    Ok(samples::write(run.path(), set, &pictures)?)
}
