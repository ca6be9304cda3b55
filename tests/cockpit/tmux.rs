//! The cockpit as a user sees it: a real terminal (in its own tmux server), a real keeper, and a scripted worker.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test: what is missing fails it")]

mod adopt;
mod keys;
mod start;

use crate::helper::shift::{shift_down, shown_step};
use crate::helper::terminal::Terminal;
use crate::helper::{Place, journal, wait_for, wait_state, wait_status};
use downshift::cockpit::glyphs::Glyphs;
use downshift::cockpit::terminal::HeldTerminal;
use downshift::protocol::control::{JournalKind, RunState};
use downshift::store::run_dir::RunDir;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

const SMALL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (200, 50);
const DOWNSHIFT: &str = env!("CARGO_BIN_EXE_downshift");

/// Opens a terminal with the cockpit on a new run of the scripted worker.
fn open_cockpit(place: &Place, size: (u16, u16)) -> (Terminal, RunDir) {
    place.script("{ step_ms: 20, save_ms: 1, noise: true }", "");
    let terminal = Terminal::open(place, size);
    terminal.enter(&format!("{DOWNSHIFT} run run.yaml --set training.steps=100000 --set 'checkpoint.every=1 h'"));
    let run = wait_for("a run directory", || place.newest());
    terminal.wait("steps", |screen| screen.contains("● training") && shown_step(screen) > Some(5));
    (terminal, run)
}

/// Presses the keys that act on the run, except shift and stop.
fn press_run_keys(terminal: &Terminal, run: &RunDir) {
    let saved = || journal(run).iter().filter(|row| row.kind == JournalKind::Checkpoint).count();
    let before = saved();
    terminal.press(&["c"]);
    wait_for("a checkpoint", || (saved() > before).then_some(()));
    terminal.press(&["r"]);
    wait_status(run, "a restart", |status| status.attempts == 3 && status.state == RunState::Training);
    terminal.wait_words(&["restarted: accumulate"]);
    terminal.press(&["Escape"]);
    terminal.wait("the box to close", |screen| !screen.contains("restarted: accumulate"));
    terminal.press(&["p"]);
    let paused = wait_state(run, RunState::Paused);
    assert_eq!((paused.pid_worker, paused.durable_step), (None, Some(paused.step)));
    terminal.wait_words(&["○ paused", "p resume"]);
    terminal.press(&["p"]);
    let on = wait_status(run, "more steps", |status| status.step > paused.step && status.state == RunState::Training);
    assert_eq!((on.attempts, on.rung), (4, 1));
    terminal.wait("training again", |screen| screen.contains("● training") && !screen.contains("p resume"));
    terminal.press(&["a"]);
    wait_status(run, "the autopilot", |status| status.autopilot != on.autopilot);
    terminal.press(&["1"]);
    terminal.wait_words(&[if on.autopilot { "autopilot off" } else { "autopilot on" }]);
}

/// `/`, text, Enter: the log shows the lines that contain the text.
fn filter_log(terminal: &Terminal) {
    terminal.press(&["/"]);
    terminal.wait_words(&["filter:", "worker log ──"]);
    terminal.write("step 17");
    let screen = terminal.wait_words(&["match \"step 17\"", "a stray print of step 17"]);
    assert!(!screen.contains("a stray print of step 18"), "{screen}");
    terminal.press(&["Enter"]);
    terminal.wait("keys again", |screen| !screen.contains("filter:") && screen.contains("match \"step 17\""));
    terminal.press(&["Escape"]);
    terminal.wait_words(&["/ filter"]);
}

fn every_key(size: (u16, u16)) {
    let place = Place::scripted();
    let (terminal, run) = open_cockpit(&place, size);
    shift_down(&place, &terminal, &run);
    press_run_keys(&terminal, &run);
    keys::look_around(&terminal);
    keys::use_tabs_and_journal(&terminal);
    keys::see_samples(&terminal, &run);
    keys::use_chart(&terminal, &run);
    keys::copy_and_export(&terminal, &run);
    keys::page_charts(&terminal, size == LARGE);
    keys::replay(&terminal);
    keys::list_runs(&terminal);
    keys::palette_and_themes(&terminal);
    keys::suspend_and_resume(&terminal);
    filter_log(&terminal);
    keys::read_help(&terminal);
    terminal.press(&["x"]);
    terminal.wait_words(&["╭ stop the run", "Enter save and stop"]);
    terminal.confirm("Enter save and stop");
    let stopped = wait_state(&run, RunState::Stopped);
    assert_eq!(stopped.durable_step, Some(stopped.step));
    terminal.wait_words(&["○ stopped", "stopped at step"]);
    terminal.press(&["q"]);
    terminal.expect_given_back();
    keys::copy_by_sequence(&terminal);
}

#[test]
fn the_user_shifts_down_and_uses_every_key_on_80_columns() {
    every_key(SMALL);
}

#[test]
fn the_user_shifts_down_and_uses_every_key_on_200_columns() {
    every_key(LARGE);
}

#[test]
fn the_run_survives_every_end_of_the_cockpit() {
    let place = Place::scripted();
    let (terminal, run) = open_cockpit(&place, SMALL);
    let keeper = wait_status(&run, "a keeper", |status| status.pid_keeper.is_some()).pid_keeper;
    let goes_on = |after: &str| {
        let seen = wait_status(&run, after, |status| status.state == RunState::Training).step;
        let later = wait_status(&run, after, |status| status.step > seen + 10);
        assert_eq!((later.pid_keeper, later.attempts), (keeper, 1), "{after}");
    };
    terminal.press(&["q"]);
    terminal.wait_words(&["continues; `downshift attach` reopens the"]);
    terminal.expect_given_back();
    goes_on("q");
    terminal.enter(&format!("{DOWNSHIFT} attach"));
    terminal.wait_words(&["● training", "loss ──"]);
    let cockpit = terminal.program().unwrap();
    kill_process(Pid::from_raw(cockpit.cast_signed()).unwrap(), Signal::TERM).unwrap();
    terminal.expect_given_back();
    goes_on("SIGTERM");
    terminal.enter(&format!("{DOWNSHIFT} attach"));
    terminal.wait_words(&["● training", "loss ──"]);
    // A tmux client attaches and detaches: the cockpit stays open and uses no CPU.
    let cockpit = terminal.program().unwrap();
    terminal.attach_and_detach();
    goes_on("a detached client");
    assert_eq!(terminal.program(), Some(cockpit));
    let (began, used) = (Instant::now(), processor_time(cockpit));
    goes_on("a look at its appetite");
    let share = processor_time(cockpit).saturating_sub(used).as_secs_f64() / began.elapsed().as_secs_f64().max(0.2);
    assert!(share < 0.5, "the cockpit spins: {share}");
    // The pane is killed while the server stays alive.
    terminal.kill_pane();
    wait_for("the cockpit to end with its pane", || (!is_alive(cockpit)).then_some(()));
    goes_on("a killed pane");
    terminal.wait("a prompt", |screen| screen.starts_with(['$', '#']));
    terminal.enter(&format!("{DOWNSHIFT} attach --read-only"));
    terminal.wait_words(&["● training", "loss ──"]);
    terminal.press(&["c"]);
    terminal.wait_words(&["opened with --read-only"]);
    let cockpit = terminal.program().unwrap();
    terminal.vanish();
    let torn = Instant::now();
    wait_for("the cockpit to end", || (!is_alive(cockpit)).then_some(()));
    // One second, doubled for a loaded machine.
    assert!(torn.elapsed() < Duration::from_secs(2), "it took {:?}", torn.elapsed());
    let (began, used) = (Instant::now(), processor_time(keeper.unwrap()));
    goes_on("the end of the terminal");
    let share =
        processor_time(keeper.unwrap()).saturating_sub(used).as_secs_f64() / began.elapsed().as_secs_f64().max(0.2);
    assert!(share < 0.5, "the keeper spins: {share}");
}

#[test]
fn a_busy_device_and_a_bare_stop_are_asked_about() {
    let place = Place::scripted();
    let (terminal, first) = open_cockpit(&place, SMALL);
    let run = |answer: &str, then: &[&str]| {
        terminal.enter(&format!("clear; {DOWNSHIFT} run run.yaml --set training.steps=100000"));
        terminal.wait_words(&["ok    config", "is in use by", "[q]uit?"]);
        terminal.enter(answer);
        terminal.wait_words(then);
    };
    let close = || {
        terminal.press(&["q"]);
        terminal.wait_words(&["continues; `downshift attach`"]);
    };
    close();
    run("q", &["nothing was started"]);
    run("", &["● training", "loss ──"]);
    close();
    assert_eq!(place.newest(), Some(first.clone()), "a second run was started unasked");
    run("s", &["● training", "loss ──"]);
    close();
    let second = place.newest().filter(|newest| *newest != first).unwrap();
    terminal.enter(&format!("clear; {DOWNSHIFT} stop"));
    terminal.wait_words(&["  1   ", "  2   ", "which run to stop? [1-2, Enter for none]"]);
    terminal.enter("9");
    terminal.wait("the question again", |screen| screen.matches("which run to stop?").count() == 2);
    terminal.enter("1");
    wait_state(&second, RunState::Stopped);
    assert_eq!(wait_state(&first, RunState::Training).attempts, 1);
    terminal.enter(&format!("clear; {DOWNSHIFT} stop"));
    wait_state(&first, RunState::Stopped);
}

const TAKES_AND_PANICS: &str = "DOWNSHIFT_TEST_TAKES_AND_PANICS";

#[test]
fn a_ladder_too_wide_for_the_terminal_is_checked_rung_by_rung() {
    let place = Place::real();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/pytorch/fine_tune.yaml");
    let wide = Terminal::open(&place, (200, 60));
    wide.enter(&format!("{DOWNSHIFT} check {file}"));
    wide.wait_words(&["0 full", "1 b", "2 b-safe", "fine-tune is valid"]);
    let narrow = Terminal::open(&place, (80, 80));
    narrow.enter(&format!("{DOWNSHIFT} check {file}"));
    narrow.wait_words(&[
        "1 b: class B changes the training, helps against lack of memory, NaN losses",
        "training.accumulation",
        "1 → 4",
        "fine-tune is valid",
    ]);
}

#[test]
fn a_panic_gives_the_terminal_back() {
    if std::env::var_os(TAKES_AND_PANICS).is_some() {
        let held = HeldTerminal::acquire(Glyphs::Unicode).unwrap();
        std::mem::forget(held);
        panic!("on purpose");
    }
    let place = Place::scripted();
    let terminal = Terminal::open(&place, SMALL);
    let itself = std::env::current_exe().unwrap();
    let name = "tmux::a_panic_gives_the_terminal_back";
    terminal.enter(&format!("RUST_BACKTRACE=0 {TAKES_AND_PANICS}=1 {} --exact {name} --nocapture", itself.display()));
    terminal.wait_words(&["on purpose", "test result: FAILED"]);
    terminal.expect_given_back();
}

/// Reports whether a process exists and is not a zombie.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Returns the CPU time a process has used.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    // Linux reports it in hundredths of a second, whatever the kernel's tick rate.
    Duration::from_millis(ticks * 10)
}
