//! Generates a long run.

use downshift::config::run::{AsWritten, Run, Source};
use downshift::format::count;
use downshift::protocol::control::{
    Best, CheckpointRow, EvalRow, JournalKind, JournalRow, ReadingRow, RunState, RungRecord, Status, StepRow,
};
use downshift::protocol::metrics::{ACCURACY, LOSS, Metrics};
use downshift::protocol::probe::{Host, HostMore, Metric, Reading};
use downshift::protocol::time_spent::TimeSpent;
use downshift::protocol::worker::{Eval, Level, ReducedRate};
use downshift::store::run_dir::RunDir;
use downshift::store::writer::{AttemptRow, Batch, Writer};
use std::error::Error;
use std::path::Path;

/// Samples per step.
const BATCH: u64 = 32;
/// Duration of a step.
const STEP_MS: i64 = 12;
/// Start time of the run.
const BEGUN_MS: i64 = 1_790_000_000_000;

const RUN_FILE: &str = "\
name: NAME
task: made
training: { steps: STEPS, micro_batch: 32 }
optimizer: { lr: 0.001 }
checkpoint: { every: 5000 steps }
ladder:
  - { name: plain, relieves: [kernels] }
";

/// Metrics that steps report by name, if they are wanted.
const NAMED: [&str; 6] = ["loss/box", "loss/class", "reward/mean", "reward/std", "entropy", "tokens_per_s"];

/// Writes a finished run of `steps` steps (at least 1 000) into a folder of runs.
pub fn long_run(runs: &Path, name: &str, steps: u64) -> Result<RunDir, Box<dyn Error>> {
    long_run_of(runs, name, steps, 0)
}

/// Writes such a run whose steps report `named` metrics by name, at most six, beside the six of every step.
pub fn long_run_of(runs: &Path, name: &str, steps: u64, named: usize) -> Result<RunDir, Box<dyn Error>> {
    let steps = steps.max(1000);
    let text = RUN_FILE.replace("NAME", name).replace("STEPS", &steps.to_string());
    std::fs::create_dir_all(runs)?;
    let source = Source { file: "long_run", text: &text, base: runs, overrides: &[] };
    let dir = RunDir::create(runs, &Run::read(&source, &AsWritten)?)?;
    let mut store = Writer::open(&dir.file("run.db"))?;
    // A fault at 30 %, redone from slightly earlier; a shift at 60 %.
    let (fault, shift) = (steps * 3 / 10, steps * 6 / 10);
    attempt(&mut store, 1, 1..=fault, (steps, named), "start")?;
    attempt(&mut store, 1, fault - fault.min(400)..=shift, (steps, named), "device fault")?;
    attempt(&mut store, 0, shift + 1..=steps, (steps, named), "requested by the user")?;
    events(&mut store, steps, fault, shift)?;
    store.put_fact("status", &status(&dir, steps))?;
    store.put_fact("exit_code", &0)?;
    Ok(dir)
}

fn attempt(
    store: &mut Writer,
    rung: usize,
    steps: std::ops::RangeInclusive<u64>,
    (of, named): (u64, usize),
    reason: &str,
) -> Result<(), Box<dyn Error>> {
    let rung_name = if rung == 0 { "full" } else { "plain" };
    let (from, last) = (*steps.start(), *steps.end());
    let id = store.next_attempt()?;
    let known = AttemptRow {
        id,
        rung,
        rung_name: rung_name.to_owned(),
        reason: reason.to_owned(),
        started_ms: time_ms(from),
        from_step: (from > 1).then(|| from - 1),
        ended_ms: Some(time_ms(last)),
        outcome: Some(if last == of { "finished" } else { "ended" }.to_owned()),
        ..AttemptRow::default()
    };
    let mut batch = Batch::default();
    batch.attempts.insert(id, known);
    for step in steps {
        batch.steps.push(StepRow { metrics: named_metrics(step, named), ..row(id, rung, step, of) });
        if batch.steps.len() == 20_000 || step == last {
            store.append(&batch)?;
            batch.steps.clear();
        }
    }
    Ok(())
}

fn named_metrics(step: u64, named: usize) -> Metrics {
    let value = |place: usize| mix(step.wrapping_mul(16).wrapping_add(8 + place as u64));
    NAMED.iter().take(named).enumerate().map(|(place, name)| ((*name).to_owned(), value(place))).collect()
}

/// Generates a step: a loss that falls with noise, occasionally skipped, with three one-step spikes.
pub fn row(attempt: u64, rung: usize, step: u64, of: u64) -> StepRow {
    let progress = step as f64 / of as f64;
    let skipped = is_skipped(step, of);
    let noise = |salt: u64| mix(step.wrapping_mul(4).wrapping_add(salt)) - 0.5;
    let spike = if spikes(of).contains(&step) { 8.0 } else { 1.0 };
    let loss = (0.25 + 2.1 * (-6.0 * progress).exp() + 0.12 * noise(0) / (1.0 + 3.0 * progress)) * spike;
    StepRow {
        attempt,
        rung,
        step,
        samples: step * BATCH,
        epoch: step * BATCH / 100_000,
        loss: (!skipped).then_some(loss),
        lr: Some(1e-3 * (progress * 50.0).min(1.0) * (0.55 + 0.45 * (std::f64::consts::PI * progress).cos())),
        grad_norm: (!skipped).then(|| (0.8 + 0.4 * noise(1)) * spike * (1.2 - progress)),
        skipped,
        data_wait_ms: if skipped { 0.0 } else { 0.4 + 0.3 * noise(2) },
        compute_ms: if skipped { 0.0 } else { 11.0 + noise(3) },
        time_ms: time_ms(step),
        metrics: Metrics::new(),
    }
}

/// Reports whether the guard dropped a step: about one in 5 000, and a streak at the midpoint.
pub fn is_skipped(step: u64, of: u64) -> bool {
    mix(step.wrapping_mul(7)) < 0.0002 || (of / 2..of / 2 + 5).contains(&step)
}

/// Returns the steps with a spike.
pub fn spikes(of: u64) -> [u64; 3] {
    [of / 5 + 1, of * 11 / 20, of * 9 / 10 - 3]
}

fn time_ms(step: u64) -> i64 {
    BEGUN_MS + step as i64 * STEP_MS
}

/// Maps a number to 0..1 deterministically (the finalizer of MurmurHash3).
fn mix(number: u64) -> f64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (bits ^ (bits >> 33)) as f64 / u64::MAX as f64
}

fn eval(step: u64, of: u64) -> Eval {
    let loss = 0.3 + 2.0 * (-6.0 * step as f64 / of as f64).exp();
    let metrics = Metrics::from([(ACCURACY.to_owned(), 1.0 - loss / 3.0)]);
    Eval { step, samples: step * BATCH, loss: Some(loss), metrics, ..Eval::default() }
}

fn reduced(step: u64) -> ReducedRate {
    ReducedRate { step, from: 5e-4, to: 2.5e-4, factor: 0.5, metric: LOSS.to_owned(), evaluations: 4 }
}

fn events(store: &mut Writer, steps: u64, fault: u64, shift: u64) -> Result<(), Box<dyn Error>> {
    let mut batch = Batch::default();
    let mut note = |step: u64, level, kind, text: String| {
        let id = batch.journal.len() as i64 + 1;
        batch.journal.push(JournalRow { id, time_ms: time_ms(step), step: Some(step), level, kind, text });
    };
    note(1, Level::Info, JournalKind::Run, "started on plain".to_owned());
    for spike in spikes(steps) {
        note(spike, Level::Warn, JournalKind::Note, format!("the loss jumped at step {}", count(spike)));
    }
    note(fault, Level::Error, JournalKind::Worker, format!("worker ended: device fault at step {}", count(fault)));
    note(shift, Level::Info, JournalKind::Shift, "shifted up to full (requested by the user)".to_owned());
    note(steps, Level::Info, JournalKind::Run, format!("finished at step {}", count(steps)));
    // In time order, as a keeper writes it.
    batch.journal.sort_by_key(|row| row.time_ms);
    for (place, row) in batch.journal.iter_mut().enumerate() {
        row.id = place as i64 + 1;
    }
    for part in 1..=20 {
        let step = steps * part / 20;
        let redone = fault - fault.min(400);
        let attempt = if step < redone { 1 } else { 2 + u64::from(step > shift) };
        batch.evals.push(EvalRow {
            attempt,
            time_ms: time_ms(step),
            eval: Eval { reduced: (part == 15).then(|| reduced(step)), ..eval(step, steps) },
        });
        let row = CheckpointRow {
            step,
            samples: step * BATCH,
            path: format!("checkpoints/step-{step:09}"),
            bytes: 31_000_000,
            time_ms: time_ms(step),
            pause_ms: 41.0,
            total_ms: 210.0,
            eval_loss: eval(step, steps).loss,
            best: part == 20,
            proven: part < 20,
            kept: part > 17,
            metrics: eval(step, steps).metrics,
        };
        batch.checkpoints.insert(step, row);
    }
    // One probe reading per second.
    let last_ms = time_ms(steps);
    batch.samples.extend((0..).map(|second| BEGUN_MS + second * 1000).take_while(|time| *time < last_ms).map(sample));
    Ok(store.append(&batch)?)
}

fn sample(time_ms: i64) -> ReadingRow {
    let host = Host {
        ram_total_bytes: Metric::Is(24 << 30),
        ram_used_bytes: Metric::Is(6 << 30),
        ram_worker_bytes: Metric::Is((2 << 30) + time_ms.unsigned_abs() % 77 * 1_000_000),
        cpu: Metric::Is(0.5 + 0.4 * mix(time_ms.unsigned_abs())),
        disk_free_bytes: Metric::Is(300 << 30),
        more: HostMore::default(),
    };
    ReadingRow { time_ms, reading: Reading { gpu: Err("a generated run has no GPU".to_owned().into()), host } }
}

fn best(step: u64, loss: f64) -> Best {
    Best { step, eval_loss: Some(loss), metric: LOSS.to_owned(), value: loss }
}

fn rung(name: &str, steps: u64) -> RungRecord {
    RungRecord {
        name: name.to_owned(),
        steps,
        steps_per_s: Some(1000.0 / STEP_MS as f64),
        units_per_s: None,
        vram_bytes: None,
        ram_bytes: None,
        planned_bytes: None,
        fault: None,
        unusable: None,
    }
}

fn status(dir: &RunDir, steps: u64) -> Status {
    Status {
        run: dir.name(),
        state: RunState::Finished,
        capability: None,
        climb: None,
        exit_code: Some(0),
        plan: None,
        proposal: None,
        why: None,
        rung: 0,
        rung_name: "full".to_owned(),
        level: None,
        resume: None,
        resumed: None,
        companion: None,
        awaits_companion: false,
        ranks: Vec::new(),
        step: steps,
        samples: steps * BATCH,
        total_samples: Some(steps * BATCH),
        total_steps: Some(steps),
        epoch_samples: Some(100_000),
        unit: "samples".to_owned(),
        durable_step: Some(steps),
        attempts: 3,
        restarts: 1,
        pauses: 0,
        shifts: 1,
        failed_saves: None,
        rollbacks: 0,
        skipped: Some((1..=steps).filter(|step| is_skipped(*step, steps)).count() as u64),
        updates: None,
        unguarded: 0,
        not_finite: 0,
        progress: None,
        loss: row(3, 0, steps, steps).loss,
        eval: Some(eval(steps, steps)),
        best: eval(steps, steps).loss.map(|value| best(steps, value)),
        setback: None,
        ends_ms: None,
        unread: None,
        reduced: None,
        kernels: None,
        device: Some("made".to_owned()),
        parameters: Some(829_696),
        host: None,
        pid_keeper: None,
        pid_worker: None,
        pid_probe: None,
        pid_quality: None,
        autopilot: false,
        time: TimeSpent::default(),
        passage: None,
        rungs: vec![rung("full", steps * 4 / 10), rung("plain", steps * 6 / 10)],
        run_dir: dir.path().display().to_string(),
    }
}
