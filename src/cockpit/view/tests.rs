mod any_state;
mod charts;
mod journal;
mod keys;
mod learning;
mod overlays;
mod preview;
mod ranks;
mod recovery;
mod samples;
mod speed;
mod stale;
mod themes;
mod unknown;

use super::render;
use crate::cockpit::fixture;
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::runs::OtherRun;
use crate::cockpit::state::screen::{Mode, Panel, Prompt, View};
use crate::cockpit::update::{HistoryBox, Msg, OtherBox, update};
use crate::protocol::control::{RunState, Status};
use crate::protocol::worker::ReducedRate;
use crate::store::labels::Tag;
use crate::store::removal::RunSize;
use crate::store::run_summary::{RunSummary, Times};
use crate::theme::{Colours, Theme};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use insta::assert_snapshot;
use ratatui::buffer::Buffer;
use ratatui::{Terminal, backend::TestBackend};
use std::fmt::Write;

fn draw(state: &State, theme: &Theme) -> Buffer {
    let (width, height) = state.screen.size;
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| render(frame, state, theme)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let rows = buffer.content.chunks(usize::from(buffer.area.width.max(1)));
    let row = |cells: &[ratatui::buffer::Cell]| {
        let mut text = String::new();
        let mut skip = 0usize;
        for cell in cells {
            if skip > 0 {
                skip -= 1;
                continue;
            }
            skip = unicode_width::UnicodeWidthStr::width(cell.symbol()).saturating_sub(1);
            text.push_str(cell.symbol());
        }
        text.trim_end().to_owned()
    };
    rows.map(row).collect::<Vec<_>>().join("\n")
}

fn draw_text(state: &State) -> String {
    text(&draw(state, &Theme::shipped().unwrap().remove(0).reduced_to(Colours::None)))
}

fn press_keys(state: &mut State, letters: &str) {
    for letter in letters.chars() {
        let code = match letter {
            '\u{1b}' => KeyCode::Esc,
            '\n' => KeyCode::Enter,
            letter => KeyCode::Char(letter),
        };
        update(state, Msg::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    }
}

const SIZES: [(u16, u16); 4] = [(80, 24), (120, 40), (200, 50), (40, 12)];

/// Returns the conditions a run may be in.
fn run_conditions(size: (u16, u16)) -> Vec<(&'static str, State)> {
    let mut starting = fixture::young(size);
    update(&mut starting, Msg::Log(vec!["loading data".to_owned()]));
    let mut trouble = fixture::on_gpu(size);
    let mut status = fixture::status(RunState::NeedsPerson, 700);
    status.why = Some("3 restarts without a new durable step; the last worker ran out of device memory".to_owned());
    fixture::apply_status(&mut trouble, status);
    let lines = ["INFO epoch 15 done", "thread 'cubecl' panicked: allocation of 2.1 GiB failed"];
    update(&mut trouble, Msg::Log(lines.map(str::to_owned).to_vec()));
    let mut finished = fixture::training(size);
    fixture::apply_status(&mut finished, fixture::status(RunState::Finished, 700));
    vec![
        ("no data", fixture::connected(size)),
        ("starting", starting),
        ("healthy", fixture::on_gpu(size)),
        ("trouble", trouble),
        ("finished", finished),
        ("without keeper", fixture::orphaned(size)),
        ("recovering", fixture::recovering(size)),
    ]
}

/// Returns the row of a run that started some milliseconds ago.
fn summary(name: &str, status: Option<Status>, ago_ms: i64) -> RunSummary {
    let started_ms = Some(fixture::NOW - ago_ms);
    let times = Times { started_ms, ended_workers_ms: ago_ms / 2, ..Times::default() };
    let curve = (0..24).map(|column| 2.0 * (-f64::from(column) / 6.0).exp() + 0.3).collect();
    RunSummary { name: name.to_owned(), status, times, curve, ..RunSummary::default() }
}

/// Adds a list of runs as the store would return it, one of them overlaid.
fn with_runs(state: &mut State) {
    let mut other = fixture::status(RunState::Stopped, 500);
    (other.run, other.samples) = ("日本語-run".to_owned(), 16_000);
    other.pid_keeper = None;
    let mut rows = vec![
        summary(state.run_name(), state.status().cloned(), 76_000),
        summary(&other.run, Some(other.clone()), 26 * 3_600_000),
        RunSummary { name: "empty-20261119".to_owned(), ..RunSummary::default() },
    ];
    rows[1].labels.tags.extend(["baseline", "sweep/3"].map(|tag| Tag::parse(tag).unwrap()));
    rows[1].labels.note = "half the learning rate, to see whether the loss spikes".to_owned();
    update(state, Msg::Runs(rows));
    update(state, Msg::Key(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE)));
    press_keys(state, " ");
    let ladder = fixture::ladder_at(1e-3);
    let watch = Some(crate::config::knobs::Watch { vram: 0.8, ..state.watch.clone() });
    let run = OtherRun { ladder, watch, series: Some(fixture::history(500, false).series), evals: Vec::new() };
    update(state, Msg::Other { name: other.run, run: Ok(OtherBox(Box::new(run))) });
}

#[test]
fn every_view_in_every_condition_at_every_size() {
    for (key, view) in ('1'..='9').zip(View::ALL) {
        for size in SIZES {
            let mut pictures = String::new();
            for (condition, mut state) in run_conditions(size) {
                press_keys(&mut state, &key.to_string());
                // A box would hide the view; boxes have their own snapshots.
                state.screen.trouble_hidden = true;
                match view {
                    View::Runs => with_runs(&mut state),
                    View::Samples | View::Layers if state.facts.evals.is_empty() => {
                        fixture::samples::read_all(&mut state, fixture::samples::NOTHING);
                    }
                    View::Samples | View::Layers => {
                        fixture::samples::read_all(&mut state, fixture::samples::DIGITS);
                    }
                    _ => {}
                }
                let _ = writeln!(pictures, "══ {condition} ══\n{}\n", draw_text(&state));
            }
            assert_snapshot!(format!("{}_{}x{}", view.name(), size.0, size.1), pictures);
        }
    }
}

/// Returns the boxes and the keys that open them.
fn open_boxes(size: (u16, u16)) -> Vec<(&'static str, State)> {
    let pressed = |keys: &str| {
        let mut state = fixture::training(size);
        press_keys(&mut state, keys);
        state
    };
    let mut on_gpu = fixture::on_gpu(size);
    press_keys(&mut on_gpu, "u");
    let mut full = pressed("2v");
    full.screen.full = Some(Quantity::Loss);
    let mut past = pressed("g");
    let at_ms = past.replay.as_ref().unwrap().at_ms;
    update(&mut past, Msg::Moment { at_ms, history: Ok(HistoryBox(Box::new(fixture::history(450, false)))) });
    let trouble = run_conditions(size).swap_remove(3).1;
    let mut asked = pressed("m");
    asked.screen.mode = Mode::Delete;
    asked.screen.delete_size = Some(RunSize { bytes: 412 << 20, files: 131 });
    let mut ended = fixture::training(size);
    fixture::apply_status(&mut ended, fixture::status(RunState::Stopped, 700));
    ended.screen.focus = Panel::Checkpoints;
    press_keys(&mut ended, "5m");
    let mut tagged = pressed("6");
    let rows = vec![summary(tagged.run_name(), tagged.status().cloned(), 76_000)];
    update(&mut tagged, Msg::Runs(rows));
    tagged.screen.mode = Mode::Prompt(Prompt::Tags);
    tagged.screen.input = "baseline sweep/3".to_owned();
    let mut menu = pressed("m");
    let rows = vec![summary(menu.run_name(), menu.status().cloned(), 76_000)];
    update(&mut menu, Msg::Runs(rows));
    vec![
        ("the menu of a run", menu),
        ("the menu of a checkpoint", ended),
        ("the question before a deletion", asked),
        ("tags being typed", tagged),
        ("preview of a shift down", pressed("d")),
        ("preview of a shift up, on a GPU", on_gpu),
        ("a shift under way", fixture::shifting(size)),
        ("a shift that is done", fixture::shifted(size)),
        ("the question before a stop", pressed("x")),
        ("help", pressed("?")),
        ("actions", pressed(":sh")),
        ("filter", pressed("/loss")),
        ("one chart with a cursor", full),
        ("the past", past),
        ("no keeper", fixture::orphaned(size)),
        ("needs attention", trouble),
        ("paused", {
            let mut state = fixture::training(size);
            fixture::apply_status(&mut state, fixture::status(RunState::Paused, 700));
            state
        }),
    ]
}

/// Draws states below each other, each under its name.
fn draw_all<'a>(states: impl IntoIterator<Item = (&'a str, State)>) -> String {
    let mut pictures = String::new();
    for (name, state) in states {
        let _ = writeln!(pictures, "══ {name} ══\n{}\n", draw_text(&state));
    }
    pictures
}

#[test]
fn every_box_at_every_size() {
    for size in SIZES {
        assert_snapshot!(format!("boxes_{}x{}", size.0, size.1), draw_all(open_boxes(size)));
    }
}

#[test]
fn the_whole_ladder_is_visible_on_80_columns() {
    let shown = draw_text(&fixture::training((80, 24)));
    for rung in fixture::ladder() {
        assert!(shown.contains(&rung.name), "{} in {shown}", rung.name);
    }
}

#[test]
fn a_lower_learning_rate_is_a_mark_on_the_charts() {
    let mut state = fixture::training((120, 40));
    assert!(!draw_text(&state).contains("┊ lr "), "{}", draw_text(&state));
    let row = state.facts.evals.values_mut().next_back().unwrap();
    row.eval.reduced = Some(ReducedRate { step: row.eval.step, to: 5e-4, ..ReducedRate::default() });
    assert!(draw_text(&state).contains("┊ lr 5e-4"), "{}", draw_text(&state));
}

#[test]
fn help_scrolls_where_it_does_not_fit() {
    let mut state = fixture::training((80, 24));
    press_keys(&mut state, "?");
    press_keys(&mut state, &"j".repeat(99));
    assert!(draw_text(&state).contains("close the cockpit; the run continues"));
    press_keys(&mut state, "w");
    assert_eq!(state.screen.mode, Mode::Normal);
}
