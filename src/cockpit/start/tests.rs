use super::{Choice, Mistake, Next, Start, Typed, view};
use crate::cockpit::fixture::{self, NOW};
use crate::cockpit::keymap::Keymap;
use crate::cockpit::update::Msg;
use crate::protocol::control::RunState;
use crate::store::run_summary::{RunSummary, Times};
use crate::theme::{Colours, Theme};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use insta::assert_snapshot;
use ratatui::{Terminal, backend::TestBackend};
use std::fmt::Write;

fn run(name: &str, state: RunState, step: u64, ago_ms: i64) -> RunSummary {
    let mut status = fixture::status(state, step);
    name.clone_into(&mut status.run);
    status.pid_keeper = (!state.is_over()).then_some(1);
    let times = Times { started_ms: Some(NOW - ago_ms), ..Times::default() };
    let curve = (0..24).map(|column| 2.0 * (-f64::from(column) / 6.0).exp() + 0.3).collect();
    RunSummary { name: name.to_owned(), status: Some(status), times, curve, ..RunSummary::default() }
}

fn start(size: (u16, u16), runs: Vec<RunSummary>) -> Start {
    let mut start = Start::new(size, Keymap::default(), "runs".to_owned(), NOW, 0);
    start.update(Msg::Runs(runs));
    start
}

const HOUR: i64 = 3_600_000;

fn ended() -> Vec<RunSummary> {
    let mut archived = run("archived", RunState::Finished, 9, HOUR);
    archived.labels.archived = true;
    vec![
        run("digits-20261120-130115", RunState::Finished, 1_350, HOUR),
        archived,
        run("日本語-lora-20261119-090000", RunState::Failed, 77, 29 * HOUR),
        RunSummary { name: "never-began".to_owned(), ..RunSummary::default() },
    ]
}

fn with_living() -> Vec<RunSummary> {
    let mut runs = ended();
    runs.insert(2, run("text-20261120-120000", RunState::Training, 120, 2 * HOUR));
    runs
}

fn press(start: &mut Start, code: KeyCode) -> Next {
    start.update(Msg::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn draw(start: &Start) -> String {
    let mut terminal = Terminal::new(TestBackend::new(start.size.0, start.size.1)).unwrap();
    let theme = Theme::shipped().unwrap().remove(0).reduced_to(Colours::None);
    terminal.draw(|frame| view::render(frame, start, &theme)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content.chunks(usize::from(buffer.area.width));
    let row = |cells: &[ratatui::buffer::Cell]| {
        let mut text = String::new();
        let mut skip = 0;
        for cell in cells {
            if skip == 0 {
                skip = unicode_width::UnicodeWidthStr::width(cell.symbol()).max(1);
                text.push_str(cell.symbol());
            }
            skip -= 1;
        }
        text.trim_end().to_owned()
    };
    rows.map(row).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_screen_at_every_size() {
    for size in [(80, 24), (120, 40), (200, 50), (40, 12)] {
        let mut typing = start(size, ended());
        press(&mut typing, KeyCode::Char('c'));
        typing.input = Some("python train.py --lr 1e-3".to_owned());
        let command = ["python", "train.py", "--lr", "1e-3"].map(str::to_owned).to_vec();
        typing.typed = Typed::Command { words: command.clone(), command };
        let mut wrong = typing.clone();
        wrong.input = Some("python train.py | tee log".to_owned());
        wrong.typed = Typed::Wrong(Mistake::Shell('|'));
        let mut many = start(size, (0..60).map(|n| run(&format!("run-{n}"), RunState::Stopped, n, HOUR)).collect());
        (0..40).for_each(|_| drop(press(&mut many, KeyCode::Down)));
        let conditions = [
            ("listing", Start::new(size, Keymap::default(), "runs".to_owned(), NOW, 0)),
            ("a run lives", start(size, with_living())),
            ("none lives", start(size, ended())),
            ("typing a command", typing),
            ("a line that needs a shell", wrong),
            ("many runs", many),
        ];
        let mut pictures = String::new();
        for (name, start) in conditions {
            let _ = writeln!(pictures, "══ {name} ══\n{}\n", draw(&start));
        }
        assert_snapshot!(format!("start_{}x{}", size.0, size.1), pictures);
    }
}

#[test]
fn enter_attaches_to_a_living_run_and_starts_a_new_one_if_none_lives() {
    let mut alive = start((80, 24), with_living());
    assert_eq!(press(&mut alive, KeyCode::Enter), Next::Choose(Choice::Attach("text-20261120-120000".to_owned())));
    let mut quiet = start((80, 24), ended());
    assert_eq!(press(&mut quiet, KeyCode::Enter), Next::Choose(Choice::New));
    assert_eq!(press(&mut alive, KeyCode::Char('n')), Next::Choose(Choice::New));
    (0..2).for_each(|_| drop(press(&mut quiet, KeyCode::Down)));
    let first = Choice::Attach("digits-20261120-130115".to_owned());
    assert_eq!(press(&mut quiet, KeyCode::Enter), Next::Choose(first));
    assert_eq!(quiet.recent().count(), 2, "neither archived runs nor those that never began");
    // The cursor stays on its run when another one comes to life above it.
    quiet.update(Msg::Runs(with_living()));
    assert_eq!(press(&mut quiet, KeyCode::Enter), Next::Choose(Choice::Attach("digits-20261120-130115".to_owned())));
    assert_eq!(press(&mut quiet, KeyCode::Esc), Next::Choose(Choice::Quit));
}

#[test]
fn a_program_without_tasks_offers_only_commands() {
    let mut listing = Start::new((80, 24), Keymap::default(), "runs".to_owned(), NOW, 0);
    listing.has_tasks = false;
    assert!(draw(&listing).contains("a command"), "{}", draw(&listing));
    let mut start = start((80, 24), ended());
    start.has_tasks = false;
    let screen = draw(&start);
    assert!(!screen.contains("new run") && screen.contains("日"), "{screen}");
    // The row of an entry is found where it is drawn.
    let row = |word: &str| screen.lines().position(|line| line.contains(word)).unwrap() as u16;
    assert_eq!(view::entry_at(&start, row("a command")), Some(0));
    assert_eq!(view::entry_at(&start, row("recent")), None);
    assert_eq!(view::entry_at(&start, row("digits-2026")), Some(1));
    assert_ne!(press(&mut start.clone(), KeyCode::Char('n')), Next::Choose(Choice::New));
    assert_eq!(press(&mut start, KeyCode::Enter), Next::Draw, "the line to type a command");
}

#[test]
fn a_typed_command_is_carried_out_only_when_it_means_something() {
    let mut start = start((80, 24), ended());
    assert_eq!(press(&mut start, KeyCode::Char('c')), Next::Draw);
    assert_eq!(press(&mut start, KeyCode::Char('n')), Next::Read("n".to_owned()), "a letter, not the key");
    start.typed = Typed::Wrong(Mistake::OpenQuote);
    assert_eq!(press(&mut start, KeyCode::Enter), Next::Wait);
    let words = vec!["run".to_owned(), "--".to_owned(), "nvidia-smi".to_owned()];
    start.typed = Typed::Command { command: vec!["nvidia-smi".to_owned()], words: words.clone() };
    assert_eq!(press(&mut start, KeyCode::Enter), Next::Choose(Choice::Command(words)));
    assert_eq!(press(&mut start, KeyCode::Esc), Next::Draw);
    assert!(start.input.is_none());
    assert_eq!(press(&mut start, KeyCode::Char('q')), Next::Choose(Choice::Quit));
}

#[test]
fn a_click_chooses_and_a_second_one_confirms() {
    let mut start = start((80, 24), ended());
    let click = |row: u16| {
        let kind = MouseEventKind::Down(MouseButton::Left);
        Msg::Mouse(MouseEvent { kind, column: 9, row, modifiers: KeyModifiers::NONE })
    };
    let row = draw(&start).lines().position(|line| line.contains("digits-2026")).unwrap() as u16;
    assert_eq!(start.update(click(row)), Next::Draw);
    assert_eq!(start.update(click(row)), Next::Choose(Choice::Attach("digits-20261120-130115".to_owned())));
    assert_eq!(start.update(click(0)), Next::Wait, "the first line is a heading");
}
