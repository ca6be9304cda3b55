//! Deterministic runs for tests: identical on every machine and at any time.

pub mod command;
mod ladder;
pub mod ranks;
pub mod samples;

pub use ladder::{ladder, ladder_at};

use super::state::facts::{History, Loading};
use super::state::{Link, State};
use super::update::{HistoryBox, Msg, update};
use crate::config::knobs::Watch;
use crate::protocol::control::{
    Best, CheckpointRow, EvalRow, JournalKind, JournalRow, Passage, ReadingRow, RunState, RungRecord, Stage, StageName,
    Status, StepRow, Update,
};
use crate::protocol::metrics::{ACCURACY, LOSS, Metrics};
use crate::protocol::probe::{Gpu, GpuMore, Host, HostMore, Metric, Reading, Throttle};
use crate::protocol::progress::Progress;
use crate::protocol::time_spent::TimeSpent;
use crate::protocol::worker::{Eval, Level};

/// 20 November 2026, 14:02:11 UTC.
pub const NOW: i64 = 1_795_183_331_000;
const GIB: u64 = 1 << 30;

fn record(name: &str, steps: u64) -> RungRecord {
    RungRecord {
        name: name.to_owned(),
        steps,
        steps_per_s: (steps > 0).then_some(27.4),
        units_per_s: (steps > 0).then_some(876.8),
        vram_bytes: None,
        ram_bytes: (steps > 0).then_some(312 << 20),
        planned_bytes: None,
        fault: None,
        unusable: None,
    }
}

pub fn status(state: RunState, step: u64) -> Status {
    Status {
        run: "digits-20261120-140115".to_owned(),
        state,
        why: None,
        rung: 1,
        rung_name: "accumulate".to_owned(),
        level: None,
        capability: None,
        resume: None,
        resumed: None,
        companion: None,
        awaits_companion: false,
        ranks: Vec::new(),
        step,
        samples: step.saturating_mul(32),
        total_samples: Some(43_110),
        total_steps: Some(1350),
        epoch_samples: Some(1437),
        unit: "samples".to_owned(),
        durable_step: Some(600),
        attempts: 2,
        restarts: 0,
        pauses: 0,
        shifts: 1,
        failed_saves: None,
        rollbacks: 0,
        skipped: Some(3),
        updates: None,
        unguarded: 0,
        not_finite: 0,
        progress: Some(Progress { since_ms: NOW, patience_ms: 4_000 }),
        loss: Some(0.312),
        eval: Some(evaluation()),
        best: Some(Best { step: 600, eval_loss: Some(0.298), metric: LOSS.to_owned(), value: 0.298 }),
        setback: None,
        ends_ms: None,
        unread: None,
        reduced: None,
        kernels: None,
        device: Some("cpu".to_owned()),
        parameters: Some(61_034),
        host: None,
        pid_keeper: Some(1),
        pid_worker: Some(2),
        pid_probe: Some(3),
        pid_quality: None,
        autopilot: false,
        proposal: None,
        climb: None,
        exit_code: None,
        plan: None,
        time: TimeSpent::default(),
        passage: None,
        rungs: vec![record("full", 430), record("accumulate", 270), record("plain", 0), record("safe", 0)],
        run_dir: "/home/ada/runs/digits-20261120-140115".to_owned(),
    }
}

fn evaluation() -> Eval {
    let metrics = Metrics::from([(ACCURACY.to_owned(), 0.934)]);
    Eval { step: 675, samples: 21_555, loss: Some(0.298), metrics, ..Eval::default() }
}

/// Returns pseudo-random noise in 0..1 that depends only on the step.
fn noise(step: u64) -> f64 {
    let mixed = (step ^ 0x9e37).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as f64 / f64::from(1 << 24)
}

pub fn step_row(attempt: u64, step: u64, time_ms: i64) -> StepRow {
    let skipped = matches!(step, 77 | 300 | 301);
    let loss = 2.2 * (-(step as f64) / 90.0).exp() + 0.25 + 0.25 * (noise(step) - 0.5);
    StepRow {
        attempt,
        rung: usize::from(attempt > 1),
        step,
        samples: step * 32,
        epoch: step / 45,
        loss: (!skipped).then_some(loss),
        lr: Some(2e-3),
        grad_norm: (!skipped).then_some(0.5 + noise(step + 7)),
        skipped,
        data_wait_ms: 0.6,
        compute_ms: 34.0 + 4.0 * noise(step + 3),
        time_ms,
        metrics: Metrics::new(),
    }
}

pub fn reading(gpu: bool, second: i64) -> Reading {
    let sway = (second % 20) as f64;
    let gpu = if gpu {
        Ok(Gpu {
            index: 0,
            name: "NVIDIA GeForce RTX 4090".to_owned(),
            driver: Metric::Is("550.1".to_owned()),
            vram_total_bytes: Metric::Is(24 * GIB),
            vram_used_bytes: Metric::Is(18 * GIB + GIB / 5),
            vram_worker_bytes: Metric::Is(17 * GIB),
            temperature_c: Metric::Is(70.0 + sway / 10.0),
            slowdown_c: Metric::Is(90.0),
            utilisation: Metric::Is(0.94),
            power_w: Metric::Is(312.0),
            power_limit_w: Metric::Is(450.0),
            sm_clock_mhz: Metric::Not("not supported".to_owned()),
            throttle: Metric::Is(Throttle::default()),
            more: GpuMore::default(),
        })
    } else {
        let text = "the NVIDIA library was not found: install the NVIDIA driver, or name the library in \
                    DOWNSHIFT_NVML_PATH (libnvidia-ml.so.1: cannot open shared object file)";
        Err(text.to_owned().into())
    };
    let host = Host {
        ram_total_bytes: Metric::Is(16 * GIB),
        ram_used_bytes: Metric::Is(3 * GIB),
        ram_worker_bytes: Metric::Is(312 << 20),
        cpu: Metric::Is(0.8 + sway / 100.0),
        disk_free_bytes: Metric::Is(211 * GIB),
        more: HostMore::default(),
    };
    Reading { gpu, host }
}

fn journal_row(id: i64, before_s: i64, level: Level, kind: JournalKind, text: &str) -> JournalRow {
    JournalRow { id, time_ms: NOW - before_s * 1000, step: None, level, kind, text: text.to_owned() }
}

fn checkpoint(step: u64, before_s: i64, best: bool, kept: bool) -> CheckpointRow {
    CheckpointRow {
        step,
        samples: step * 32,
        path: format!("checkpoints/step-{step:09}"),
        bytes: 31 << 20,
        time_ms: NOW - before_s * 1000,
        pause_ms: 12.0,
        total_ms: 210.0,
        eval_loss: Some(0.298),
        best,
        kept,
        proven: false,
        metrics: Metrics::new(),
    }
}

pub fn history(steps: u64, gpu: bool) -> History {
    let time = |step: u64| NOW - (steps - step).cast_signed() * 36;
    let eval = |step: u64| EvalRow {
        attempt: 1 + u64::from(step > 430),
        time_ms: time(step),
        eval: Eval {
            step,
            samples: step * 32,
            loss: Some(2.0 * (-(step as f64) / 100.0).exp() + 0.2957),
            metrics: Metrics::from([(ACCURACY.to_owned(), 0.9545 - 0.6 * (-(step as f64) / 200.0).exp())]),
            ..Eval::default()
        },
    };
    History {
        evals: (1..=steps / 45).map(|epoch| eval(epoch * 45)).collect(),
        journal: vec![
            journal_row(1, 56, Level::Info, JournalKind::Run, "worker 4242 starts at step 0 on cpu (f32), 61 034 parameters"),
            journal_row(
                2,
                40,
                Level::Warn,
                JournalKind::Skip,
                "step 300 skipped: gradient not finite (conv2.weight); weights and optimizer state unchanged",
            ),
            journal_row(3, 32, Level::Info, JournalKind::Checkpoint, "checkpoint 400 · 31.0 MiB · 200 ms"),
            journal_row(
                4,
                30,
                Level::Info,
                JournalKind::Shift,
                "shifted full → accumulate in 0.90 s: step 430 → 431, loss 0.3440 → 0.3450 (save 0.21 s, stop 0.09 s, start and load 0.56 s, first step 0.04 s)",
            ),
            journal_row(5, 12, Level::Info, JournalKind::Checkpoint, "checkpoint 600 · 31.0 MiB · 200 ms"),
        ],
        checkpoints: vec![
            checkpoint(200, 40, false, false),
            checkpoint(400, 32, false, true),
            checkpoint(600, 12, true, true),
        ],
        samples: (0..90)
            .map(|second| ReadingRow { time_ms: NOW - (90 - second) * 1000, reading: reading(gpu, second) })
            .collect(),
        ..History::default()
    }
    .with_steps((1..=steps).map(|step| step_row(1 + u64::from(step > 430), step, time(step))))
}

/// Returns a connected state that has received nothing yet.
pub fn connected(size: (u16, u16)) -> State {
    let mut state = State::new(ladder(), Watch { skip_rate: 0.05, ..Watch::default() }, size, NOW, 0);
    update(&mut state, Msg::KeeperBack);
    state
}

/// Returns a run in mid-training.
pub fn training(size: (u16, u16)) -> State {
    at(size, status(RunState::Training, 700), history(700, false))
}

/// Returns the same run on a GPU.
pub fn on_gpu(size: (u16, u16)) -> State {
    let mut status = status(RunState::Training, 700);
    status.device = Some("cuda:0 NVIDIA GeForce RTX 4090".to_owned());
    for record in &mut status.rungs {
        record.vram_bytes = record.ram_bytes.map(|_| 17 * GIB);
        record.planned_bytes = Some(record.vram_bytes.unwrap_or(19 * GIB + GIB / 2));
    }
    at(size, status, history(700, true))
}

/// Returns a run with the given status and history.
pub fn at(size: (u16, u16), status: Status, history: History) -> State {
    let mut state = connected(size);
    apply_status(&mut state, status);
    let asked = state.facts.asked;
    update(&mut state, Msg::History { asked, history: Ok(HistoryBox(Box::new(history))) });
    assert_eq!(state.facts.loading, Loading::Done);
    state
}

pub fn apply_status(state: &mut State, status: Status) {
    update(state, Msg::Keeper(Update::Status(Box::new(status))));
}

/// Lets the keeper's status follow the newest step, as it does within a tenth of a second.
pub fn follow_steps(state: &mut State) {
    let mut status = state.status().unwrap().clone();
    let since_ms = state.facts.recent.back().unwrap().time_ms;
    status.progress = status.progress.map(|progress| Progress { since_ms, ..progress });
    apply_status(state, status);
}

/// Returns a shift in progress: the completed stages, then the open one if any.
pub fn shift_stages(done: &[(StageName, u64)], open: Option<StageName>) -> Passage {
    let stage = |name, took_ms| Stage { name, took_ms };
    let mut stages: Vec<_> = done.iter().map(|(name, took)| stage(*name, Some(*took))).collect();
    stages.extend(open.map(|name| stage(name, None)));
    Passage {
        from: "accumulate".to_owned(),
        to: "plain".to_owned(),
        stages,
        before: Some((700, 0.312)),
        resumed_from: None,
        after: None,
    }
}

/// Returns a run with a shift under way.
pub fn shifting(size: (u16, u16)) -> State {
    let mut state = training(size);
    let mut status = status(RunState::Starting, 700);
    status.passage = Some(shift_stages(&[(StageName::Save, 212), (StageName::Stop, 94)], Some(StageName::Load)));
    apply_status(&mut state, status);
    update(&mut state, Msg::Tick(NOW + 300));
    state
}

/// Returns the same run after the shift completed.
pub fn shifted(size: (u16, u16)) -> State {
    let mut state = shifting(size);
    let mut status = status(RunState::Training, 701);
    (status.rung, status.rung_name) = (2, "plain".to_owned());
    let mut passage = shift_stages(
        &[(StageName::Save, 212), (StageName::Stop, 94), (StageName::Load, 470), (StageName::FirstStep, 38)],
        None,
    );
    passage.after = Some((701, 0.309));
    status.passage = Some(passage);
    apply_status(&mut state, status);
    state
}

/// Returns a run whose keeper is gone.
pub fn orphaned(size: (u16, u16)) -> State {
    let mut state = training(size);
    update(&mut state, Msg::KeeperLost("connection refused".to_owned()));
    update(&mut state, Msg::StoredStatus(None));
    update(&mut state, Msg::Tick(NOW + 12_000));
    assert!(matches!(state.link, Link::Lost { .. }));
    state
}

/// Returns a run whose keeper is being restarted.
pub fn recovering(size: (u16, u16)) -> State {
    let mut state = training(size);
    update(&mut state, Msg::KeeperLost("connection refused".to_owned()));
    let mut status = status(RunState::Recovering, 700);
    status.why = Some("the keeper was killed by signal 9; restarting it".to_owned());
    update(&mut state, Msg::StoredStatus(Some(Box::new(status))));
    update(&mut state, Msg::Tick(NOW + 2_000));
    state
}

/// Returns a run before its first step.
pub fn young(size: (u16, u16)) -> State {
    let mut status = status(RunState::Starting, 0);
    (status.rung, status.attempts, status.shifts, status.skipped) = (0, 1, 0, Some(0));
    status.rung_name = "full".to_owned();
    (status.loss, status.eval, status.durable_step) = (None, None, None);
    status.rungs.iter_mut().for_each(|record| {
        (record.steps, record.steps_per_s, record.units_per_s, record.ram_bytes) = (0, None, None, None);
    });
    at(size, status, History::default())
}

/// Returns journal rows and checkpoints of a run with many saves, a fault that ended in a shift, and another one
/// whose next worker still loads.
pub fn eventful_history() -> History {
    use JournalKind::{Checkpoint, Injected, Request, Shift, Worker};
    let mut history = history(700, false);
    let (mut rows, mut before_s) = (Vec::new(), 300);
    let mut add = |level, kind, step: u64, text: String| {
        let id = rows.len() as i64 + 1;
        rows.push(JournalRow { step: Some(step), ..journal_row(id, before_s, level, kind, &text) });
        before_s -= 7;
    };
    add(Level::Info, Request, 0, "start requested by downshift (process 6137, started by bash)".to_owned());
    add(Level::Info, Worker, 0, "worker 4242 starts at step 0 on cpu (f32), 61 034 parameters".to_owned());
    for save in 1..=14 {
        add(Level::Info, Checkpoint, save * 30, format!("checkpoint {} · 31.0 MiB · 210 ms", save * 30));
    }
    add(Level::Warn, Injected, 430, "injected oom at step 430".to_owned());
    let cause = "cause: out of device memory (the worker said: can't allocate buffer of size 2147483648; exit code 10); do: \
                 shift to a rung that helps against lack of memory (a smaller micro-batch with more accumulation)";
    add(Level::Warn, Worker, 430, cause.to_owned());
    let end = "worker ended at step 430: out of device memory: can't allocate buffer of size 2147483648";
    add(Level::Error, Worker, 430, end.to_owned());
    add(Level::Warn, Shift, 430, "shift down: full → accumulate, by the keeper: it helps against the cause".to_owned());
    add(Level::Info, Worker, 430, "attempt 2: shift down: full → accumulate after: out of device memory".to_owned());
    add(Level::Info, Worker, 420, "worker 4301 resumed at step 420 on cpu (f32), 61 034 parameters".to_owned());
    add(Level::Info, Shift, 421, "shifted full → accumulate in 0.90 s: step 430 → 421, loss 0.344 → 0.346".to_owned());
    for save in 15..=20 {
        add(Level::Info, Checkpoint, save * 30, format!("checkpoint {} · 31.0 MiB · 210 ms", save * 30));
    }
    add(
        Level::Warn,
        Worker,
        700,
        "cause: killed (killed by SIGKILL); do: find out what ended it: check `dmesg`".to_owned(),
    );
    add(Level::Error, Worker, 700, "worker ended at step 700: killed by SIGKILL".to_owned());
    add(Level::Info, Worker, 700, "attempt 3: restart after: killed by SIGKILL".to_owned());
    let save = |row: &JournalRow| checkpoint(row.step.unwrap_or(0), (NOW - row.time_ms) / 1000, false, false);
    history.checkpoints = rows.iter().filter(|row| row.kind == Checkpoint).map(save).collect();
    history.journal = rows;
    history
}

/// Returns a run with that journal.
pub fn eventful(size: (u16, u16)) -> State {
    at(size, status(RunState::Starting, 700), eventful_history())
}
