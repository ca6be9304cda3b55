use super::{Tone, verdict};
use crate::cockpit::action::Action;
use crate::cockpit::fixture::{self, NOW};
use crate::cockpit::quantity::Quantity;
use crate::cockpit::read_error::ReadError;
use crate::cockpit::state::State;
use crate::cockpit::update::{Msg, update};
use crate::config::knobs::Watch;
use crate::protocol::control::{RunState, Stage, StageName, Status, StepRow, Update};
use crate::protocol::probe::Metric;
use crate::protocol::unread::UnreadOutput;
use crate::protocol::worker::KernelCount;

const SIZE: (u16, u16) = (120, 40);

/// Returns the whole verdict as one text, with the advice.
fn verdict_text(state: &State) -> (Tone, String, Option<Action>) {
    let verdict = verdict(state);
    let command = verdict.command.map(|(command, what)| format!("{command} {what}"));
    let text = std::iter::once(verdict.text).chain(command).chain(verdict.more).collect::<Vec<_>>().join(" · ");
    (verdict.tone, text, verdict.advice.map(|(action, _)| action))
}

fn in_state(run: RunState, why: Option<&str>) -> State {
    let mut state = fixture::training(SIZE);
    let mut status = fixture::status(run, 700);
    status.why = why.map(str::to_owned);
    fixture::apply_status(&mut state, status);
    update(&mut state, Msg::Tick(NOW + 9_000));
    state.facts.heard_ms = Some(NOW + 9_000);
    state
}

#[test]
fn a_start_on_a_gpu_counts_its_kernels() {
    for (expected, text) in [
        (None, "compiling kernels, 140 so far, 9 s"),
        (Some(230), "compiling kernels, 140 of about 230, 9 s"),
        (Some(90), "compiling kernels, 140 so far, 9 s"),
    ] {
        let mut state = in_state(RunState::Compiling, None);
        let mut status = fixture::status(RunState::Compiling, 700);
        status.kernels = Some(KernelCount { used: 140, expected });
        fixture::apply_status(&mut state, status);
        assert_eq!(verdict_text(&state).1, text);
    }
}

#[test]
fn each_state_has_its_sentence() {
    let table = [
        (RunState::Paused, None, Tone::Warn, "paused for 9 s, memory freed", Some(Action::Pause)),
        (RunState::Starting, None, Tone::Busy, "loading data and weights, 9 s", None),
        (RunState::Compiling, None, Tone::Busy, "compiling kernels, 9 s", None),
        (
            RunState::AwaitingVram,
            Some("0.9 GiB still held"),
            Tone::Busy,
            "waiting for free VRAM, 9 s: 0.9 GiB still held",
            None,
        ),
        (
            RunState::AwaitingCard,
            Some("other holds cuda:0; next in the queue"),
            Tone::Warn,
            "waiting for its turn, 9 s: other holds cuda:0; next in the queue",
            None,
        ),
        (
            RunState::BackingOff,
            Some("device fault at step 861"),
            Tone::Warn,
            "restarting soon, waiting 9 s: device fault at step 861",
            None,
        ),
        (RunState::Finished, None, Tone::Good, "finished: 700 steps, accuracy 93.4 %, 3 skipped, 1 shift", None),
        (
            RunState::Stopped,
            None,
            Tone::Plain,
            "stopped at step 700, durable up to 600 · `downshift resume digits-20261120-140115` continues it",
            None,
        ),
        (
            RunState::Failed,
            Some("the data are gone"),
            Tone::Danger,
            "failed: the data are gone · `downshift resume digits-20261120-140115` continues it",
            None,
        ),
        (
            RunState::NeedsPerson,
            Some("3 restarts without progress"),
            Tone::Danger,
            "needs attention: 3 restarts without progress · `downshift resume digits-20261120-140115` continues it",
            None,
        ),
    ];
    for (run, why, tone, text, advice) in table {
        assert_eq!(verdict_text(&in_state(run, why)), (tone, text.to_owned(), advice), "{run:?}");
    }
}

#[test]
fn a_pause_from_before_the_cockpit_opened_has_no_duration() {
    let state = fixture::at(SIZE, fixture::status(RunState::Paused, 700), fixture::history(700, false));
    assert!(verdict_text(&state).1.eq("paused, memory freed"));
}

#[test]
fn a_command_whose_output_is_not_understood_says_so() {
    let pattern = Some(r"it=(?P<step>\d+)".to_owned());
    let unread = UnreadOutput { lines: 20, newest: "it=5 L=0.3".to_owned(), pattern };
    for (run, wanted) in [
        (RunState::Starting, "running; no step was found in 20 lines of its output"),
        (RunState::Finished, "finished; no step was found in its output"),
    ] {
        let status = Status { unread: Some(unread.clone()), ..fixture::status(run, 0) };
        let state = fixture::at(SIZE, status, fixture::history(0, false));
        let (tone, text, _) = verdict_text(&state);
        assert_eq!((tone, &*text), (Tone::Warn, wanted));
        let why = Quantity::Loss.why_empty(&state);
        assert!(why.contains("the newest is `it=5 L=0.3`") && why.contains("patterns: ['it="), "{why}");
    }
}

#[test]
fn a_healthy_run_says_how_it_goes() {
    let (tone, text, _) = verdict_text(&fixture::training(SIZE));
    assert_eq!((tone, text.as_str()), (Tone::Good, "healthy · training loss falling · 27.8 steps/s · saved 12 s ago"));
}

#[test]
fn it_is_healthy_again_only_after_a_fault() {
    for (failed_at, again) in [(430, true), (455, true), (400, false)] {
        let mut status = fixture::status(RunState::Training, 700);
        status.rungs[0].fault = Some(("killed by SIGKILL".to_owned(), failed_at));
        let state = fixture::at(SIZE, status, fixture::history(700, false));
        let text = verdict_text(&state).1;
        assert_eq!(text.starts_with("healthy again: 270 steps since the shift"), again, "{failed_at}: {text}");
    }
}

#[test]
fn trouble_is_named_with_the_key_that_helps() {
    // At 36 ms per step, some seconds without one are a stall, long before the keeper acts.
    let mut stalled = fixture::training(SIZE);
    update(&mut stalled, Msg::Tick(NOW + 4_500));
    stalled.facts.heard_ms = Some(NOW + 4_500);
    let text = "stalled: no step for 4 s (last: 700)";
    assert_eq!(verdict_text(&stalled), (Tone::Warn, text.to_owned(), Some(Action::Restart)));
    update(&mut stalled, Msg::Tick(NOW + 3_500));
    assert!(verdict_text(&stalled).1.starts_with("healthy"), "{:?}", verdict_text(&stalled));

    let mut silent = fixture::training(SIZE);
    update(&mut silent, Msg::Tick(NOW + 34_000));
    assert_eq!(verdict_text(&silent).1, "keeper silent for 34 s; data shown is from step 700");

    let mut skipping = fixture::training(SIZE);
    let row = |step| StepRow { loss: None, grad_norm: None, skipped: true, ..fixture::step_row(2, step, NOW) };
    update(&mut skipping, Msg::Keeper(Update::Steps { rows: (701..=712).map(row).collect() }));
    assert_eq!(
        verdict_text(&skipping),
        (
            Tone::Warn,
            "skipping: 6 % of the last 200 steps were not finite (limit 5 %)".to_owned(),
            Some(Action::ShiftDown)
        )
    );

    let gpu = |change: fn(&mut crate::protocol::probe::Gpu)| {
        let mut state = fixture::on_gpu(SIZE);
        if let Some(Ok(gpu)) = state.facts.samples.back_mut().map(|row| row.reading.gpu.as_mut()) {
            change(gpu);
        }
        verdict_text(&state)
    };
    let (tone, text, advice) = gpu(|gpu| gpu.temperature_c = Metric::Is(91.0));
    assert_eq!((tone, text.as_str(), advice), (Tone::Warn, "GPU at 91 °C (limit 85 °C)", Some(Action::ShiftDown)));
    let (_, text, _) = gpu(|gpu| gpu.vram_used_bytes = gpu.vram_total_bytes.clone());
    assert_eq!(text, "VRAM 100 % full (limit 95 %)");
    // An unknown value is not a problem.
    let (tone, ..) = gpu(|gpu| gpu.temperature_c = Metric::Not("not supported".to_owned()));
    assert_eq!(tone, Tone::Good);
}

#[test]
fn a_shift_is_proven_in_a_sentence() {
    let (tone, text, _) = verdict_text(&fixture::shifted(SIZE));
    assert_eq!((tone, text.as_str()), (Tone::Good, "accumulate → plain in 0.8 s: step 700 → 701, loss 0.312 → 0.309"));
}

#[test]
fn a_return_to_an_older_step_is_told_with_the_steps_that_follow_again() {
    let mut state = fixture::shifted(SIZE);
    let mut status = state.status().unwrap().clone();
    status.passage.as_mut().unwrap().after = Some((650, 0.309));
    fixture::apply_status(&mut state, status);
    let (tone, text, _) = verdict_text(&state);
    assert_eq!(tone, Tone::Warn);
    assert_eq!(text, "accumulate → plain in 0.8 s: step 700 → 650, 51 steps again (650 to 700), loss 0.312 → 0.309");
}

#[test]
fn the_start_of_a_command_is_told_from_its_first_step() {
    let mut state = fixture::shifted(SIZE);
    let mut status = state.status().unwrap().clone();
    let took = |name, ms| Stage { name, took_ms: Some(ms) };
    let stages = vec![took(StageName::Save, 200), took(StageName::Start, 4100), took(StageName::FirstStep, 300)];
    status.passage.as_mut().unwrap().stages = stages;
    fixture::apply_status(&mut state, status);
    let text = verdict_text(&state).1;
    assert!(text.starts_with("accumulate → plain in 4.6 s (start 4.1 s, first step 0.3 s): step 700"), "{text}");
}

#[test]
fn before_the_first_status_the_screen_says_what_it_waits_for() {
    let mut state = State::new(Vec::new(), Watch::default(), SIZE, NOW, 0);
    assert_eq!(verdict_text(&state).1, "connecting to the keeper");
    update(&mut state, Msg::KeeperLost("no such file".to_owned()));
    assert_eq!(verdict_text(&state).1, "no keeper answers; reading the run directory");
    let failed = Msg::History { asked: 1, history: Err(ReadError::Store("file is not a database".to_owned())) };
    update(&mut state, failed);
    assert_eq!(
        (verdict_text(&state).0, verdict_text(&state).1.as_str()),
        (Tone::Danger, "no keeper, and run.db: file is not a database")
    );
    assert_eq!(verdict_text(&fixture::connected(SIZE)).1, "connected; waiting for the first status");
    assert!(verdict_text(&fixture::orphaned(SIZE)).1.contains("`downshift resume digits-20261120-140115`"));
}

#[test]
fn a_slow_run_says_why() {
    let slow = |change: &dyn Fn(&mut State)| {
        let mut state = fixture::on_gpu(SIZE);
        change(&mut state);
        verdict_text(&state).1
    };
    // Over half a minute of steps that take four times as long as those before.
    let later = |state: &mut State, data_wait_ms: f64| {
        let row = |step: u64| StepRow {
            data_wait_ms,
            compute_ms: 150.0,
            ..fixture::step_row(2, step, NOW + (step.cast_signed() - 700) * 300)
        };
        let rows: Vec<StepRow> = (701..=803).map(row).collect();
        let now = rows.last().unwrap().time_ms;
        update(state, Msg::Tick(now));
        update(state, Msg::Keeper(Update::Steps { rows }));
        fixture::follow_steps(state);
        let mut newest = state.facts.samples.back().unwrap().clone();
        newest.time_ms = now;
        update(state, Msg::Keeper(Update::Reading(Box::new(newest))));
    };
    let alone = slow(&|state| later(state, 0.0));
    assert!(alone.starts_with("slow: 15") && alone.contains(" ms per step, usually 3"), "{alone}");
    assert!(alone.ends_with(" (compute, not data)"), "{alone}");
    let waiting = slow(&|state| later(state, 150.0));
    assert!(waiting.ends_with(" (50 % of each step waits for data)"), "{waiting}");
    let hot = slow(&|state| {
        later(state, 0.0);
        if let Some(Ok(gpu)) = state.facts.samples.back_mut().map(|row| row.reading.gpu.as_mut()) {
            gpu.throttle = Metric::Is(crate::protocol::probe::Throttle { thermal: true, ..Default::default() });
        }
    });
    assert!(hot.ends_with(" (GPU throttled by heat)"), "{hot}");
    // Saves and evaluations between steps slow the run down, but not its steps.
    let pausing = slow(&|state| {
        let row = |step: u64| fixture::step_row(2, step, NOW + (step.cast_signed() - 700) * 80);
        let rows: Vec<StepRow> = (701..=1100).map(row).collect();
        update(state, Msg::Tick(rows.last().unwrap().time_ms));
        update(state, Msg::Keeper(Update::Steps { rows }));
        fixture::follow_steps(state);
    });
    assert!(!pausing.starts_with("slow"), "{pausing}");
    // A worker that has barely started does not define what is usual.
    let young = slow(&|state| {
        let row = |step: u64| StepRow {
            compute_ms: step as f64,
            ..fixture::step_row(3, step, NOW + 36 * step.cast_signed())
        };
        update(state, Msg::Keeper(Update::Steps { rows: (701..=800).map(row).collect() }));
    });
    assert!(!young.starts_with("slow"), "{young}");
}

#[test]
fn a_gpu_that_the_run_does_not_use_raises_no_warning() {
    let mut state = fixture::on_gpu(SIZE);
    if let Some(Ok(gpu)) = state.facts.samples.back_mut().map(|row| row.reading.gpu.as_mut()) {
        gpu.temperature_c = Metric::Is(91.0);
    }
    assert_eq!(verdict_text(&state).0, Tone::Warn);
    if let Some(status) = &mut state.facts.status {
        status.device = Some("cpu".to_owned());
    }
    assert_eq!(verdict_text(&state).0, Tone::Good);
}

#[test]
fn memory_that_runs_out_is_reported_before_it_does() {
    let mut state = fixture::on_gpu(SIZE);
    for second in 1..=120i64 {
        let mut reading = fixture::reading(true, 0);
        if let Ok(gpu) = &mut reading.gpu {
            gpu.vram_used_bytes = Metric::Is((18 << 30) + (20 << 20) * second.unsigned_abs());
        }
        let row = crate::protocol::control::ReadingRow { time_ms: NOW + second * 1000, reading };
        update(&mut state, Msg::Keeper(Update::Reading(Box::new(row))));
    }
    let (tone, text, advice) = verdict_text(&state);
    assert_eq!((tone, advice), (Tone::Warn, Some(Action::ShiftDown)));
    assert!(
        text.starts_with("VRAM full in ") && text.contains(": grows by ") && text.ends_with(" per minute"),
        "{text}"
    );
}

#[test]
fn trouble_outranks_the_line_of_a_shift_and_a_proposal() {
    let shifted = |seconds: i64| {
        let mut state = fixture::shifted(SIZE);
        update(&mut state, Msg::Tick(NOW + seconds * 1000));
        state
    };
    assert!(verdict_text(&shifted(3)).1.starts_with("accumulate → plain"));
    // The line stays for some seconds, then shows how the run has gone since.
    let mut later = shifted(8);
    later.facts.heard_ms = Some(NOW + 8_000);
    later.facts.recent.back_mut().unwrap().time_ms = NOW + 8_000;
    fixture::follow_steps(&mut later);
    assert!(verdict_text(&later).1.starts_with("healthy"), "{:?}", verdict_text(&later));
    assert!(verdict_text(&shifted(7)).1.starts_with("keeper silent for 6 s"));
    let mut stalled = shifted(5);
    stalled.facts.heard_ms = Some(NOW + 5_000);
    assert!(verdict_text(&stalled).1.starts_with("stalled: no step for"), "{:?}", verdict_text(&stalled));
    let proposal = crate::protocol::control::Proposal { why: "a hang".to_owned(), does: "would shift down".to_owned() };
    let mut status = fixture::status(RunState::Training, 700);
    status.proposal = Some(proposal);
    let mut asked = fixture::training(SIZE);
    fixture::apply_status(&mut asked, status);
    assert_eq!(
        verdict_text(&asked),
        (Tone::Warn, "the keeper would shift down: a hang".to_owned(), Some(Action::Accept))
    );
    update(&mut asked, Msg::Tick(NOW + 7_000));
    assert!(verdict_text(&asked).1.starts_with("keeper silent"));
    asked.facts.heard_ms = Some(NOW + 7_000);
    let (_, text, action) = verdict_text(&asked);
    assert!(text.starts_with("stalled") && action == Some(Action::Accept), "{text}");
}

#[test]
fn a_run_that_no_longer_learns_is_not_healthy() {
    let mut history = fixture::history(700, false);
    for row in &mut history.evals {
        row.eval.loss = Some(if row.eval.step < 200 { 0.3 } else { 0.31 });
    }
    let mut state = fixture::at(SIZE, fixture::status(RunState::Training, 700), history);
    let text = "no better evaluation in the last 14".to_owned();
    assert_eq!(verdict_text(&state), (Tone::Warn, text, None));
    state.watch.patience = 0;
    assert!(verdict_text(&state).1.starts_with("healthy"), "{:?}", verdict_text(&state));
}

#[test]
fn a_missing_run_directory_is_reported_until_it_is_back() {
    let mut state = fixture::shifted(SIZE);
    update(&mut state, Msg::RunDirExists(false));
    update(&mut state, Msg::Tick(NOW + 2_300));
    let (tone, text, _) = verdict_text(&state);
    assert!(tone == Tone::Danger && text.starts_with("run directory missing: 58 s to move it back"), "{text}");
    update(&mut state, Msg::RunDirExists(true));
    assert!(verdict_text(&state).1.starts_with("accumulate → plain"));
}

#[test]
fn steps_that_arrive_all_at_once_give_no_speed() {
    let mut state = fixture::training(SIZE);
    // A keeper that was suspended reads 12 s of the worker's output in one go.
    let rows = (701..=1030).map(|step| fixture::step_row(2, step, NOW + 40_000 + step.cast_signed() / 100)).collect();
    update(&mut state, Msg::Keeper(Update::Steps { rows }));
    let pace = state.facts.pace().unwrap();
    assert!((20.0..35.0).contains(&pace.steps_per_s), "{pace:?}");
}
