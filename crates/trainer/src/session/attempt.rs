//! The non-computing part of an attempt: state, events, rows of the curve, save timing, orders, saves.

mod evaluation;
mod rate;

use super::save_timer::{SaveTimer, is_due};
use crate::failure::{self, NonFinite};
use crate::job::{EventSink, StepPulse, WorkerArgs};
use crate::kernel_start::KernelWatch;
use crate::saver::{SaveJob, Saver, Values};
use crate::step::{Dropped, Timing};
use downshift_core::config::units::Every;
use downshift_core::format::count;
use downshift_core::protocol::control::StepRow;
use downshift_core::protocol::worker::{DoneReason, Event, Failed, Level, Order, Phase, Skipped, Step};
use downshift_core::recipe::batch::{Position, StepPlan};
use downshift_core::store::checkpoint::state::{Row, TrainState};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, mpsc::Receiver},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Attempts to make the last step durable before giving up.
const LAST_SAVES: u32 = 3;

/// The state of training, and everything that is notified of it.
pub struct Attempt<'a> {
    /// The current training state.
    pub state: TrainState,
    /// The kernels of a device that compiles them.
    pub kernels: Option<KernelWatch>,
    args: &'a WorkerArgs,
    /// The unit of the run's clock.
    unit: &'static str,
    /// Units in the whole run.
    total_units: u64,
    sink: Arc<dyn EventSink>,
    pulse: Arc<StepPulse>,
    saver: Saver,
    phase: Option<Phase>,
    begun: Instant,
    trained_before_s: f64,
    save_timer: SaveTimer,
    save_is_pending: bool,
    /// Whether the latest evaluation beats all whose weights are saved.
    is_best: bool,
    /// Parameters whose gradient was not finite since the latest evaluation.
    non_finite: BTreeSet<String>,
}

impl<'a> Attempt<'a> {
    /// Begins an attempt that continues from `state`.
    pub fn begin(
        args: &'a WorkerArgs,
        (unit, total_units): (&'static str, u64),
        mut state: TrainState,
        sink: Arc<dyn EventSink>,
        pulse: Arc<StepPulse>,
        saver: Saver,
    ) -> Self {
        (state.rung, state.rung_name, state.attempt) = (args.rung, args.rung_name.clone(), args.attempt);
        (state.seed, state.is_foreign) = (args.preset.training.seed, false);
        state.warmup = Some(args.preset.optimizer.schedule.warmup);
        let (now, trained_before_s) = (Instant::now(), state.trained_s);
        let every = args.preset.checkpoint.every;
        let save_timer = SaveTimer::new(every, args.faults, state.step, state.position.epoch);
        Self {
            state,
            kernels: None,
            args,
            unit,
            total_units,
            sink,
            pulse,
            saver,
            phase: None,
            begun: now,
            trained_before_s,
            save_timer,
            save_is_pending: false,
            is_best: false,
            non_finite: BTreeSet::new(),
        }
    }

    /// Reports the worker's phase if it changed.
    pub fn enter_phase(&mut self, phase: Phase) {
        if self.phase.replace(phase) != Some(phase) {
            self.sink.send(Event::Phase { phase });
        }
    }

    /// Returns the number of the step that begins.
    pub fn begin_step(&mut self) -> u64 {
        let number = self.state.step + 1;
        self.pulse.at_step(number);
        number
    }

    /// Skips data that are left out, so that the next step begins at `to`.
    pub fn skip_left_out(&mut self, to: Position) {
        let from = self.state.position.samples;
        if to.samples > from {
            self.state.position = to;
            self.note(Level::Info, format!("skipped {} {} from {}", count(to.samples - from), self.unit, count(from)));
        }
    }

    /// Adds a line to the journal.
    pub fn note(&self, level: Level, text: String) {
        self.sink.send(Event::Note { level, text });
    }

    /// Records a step that moved the weights.
    pub fn record_step(&mut self, plan: &StepPlan, loss: f64, norm: f64, lr: f64, timing: Timing, updates: [u64; 2]) {
        self.advance(plan, timing);
        self.state.skips_in_a_row = 0;
        if let Some(scale) = &mut self.state.loss_scale {
            scale.record_clean_step();
        }
        let searches = updates[1] > self.state.architecture_time;
        [self.state.optimizer_time, self.state.architecture_time] = updates;
        let row = StepRow { loss: Some(loss), grad_norm: Some(norm), ..self.step_row(plan, lr, timing) };
        self.sink.send(Event::Step(Step {
            step: row.step,
            samples: row.samples,
            epoch: row.epoch,
            loss: Some(loss),
            lr: Some(lr),
            grad_norm: Some(norm),
            micro_batches: u32::try_from(plan.micro_batches.len()).unwrap_or(u32::MAX),
            data_wait_ms: row.data_wait_ms,
            compute_ms: row.compute_ms,
            searches,
            ..Step::default()
        }));
        self.saver.add_row(Row::Step(row));
    }

    /// Records a step that the guard dropped.
    ///
    /// # Errors
    /// Returns an error when too many steps in a row were dropped.
    pub fn record_skip(&mut self, plan: &StepPlan, dropped: Dropped, lr: f64, timing: Timing) -> Result<(), Failed> {
        self.advance(plan, timing);
        let Dropped { what, mut place, parameter } = dropped;
        self.non_finite.extend(parameter.clone());
        let rescaled = what == NonFinite::Gradient && self.lower_scale(&mut place);
        self.state.skipped += 1;
        self.state.skips_in_a_row += u64::from(!rescaled);
        let row = StepRow { skipped: true, ..self.step_row(plan, lr, timing) };
        let (step, samples, epoch) = (row.step, row.samples, row.epoch);
        self.saver.add_row(Row::Step(row));
        self.sink.send(Event::Skipped(Skipped {
            step,
            samples,
            epoch,
            lr,
            what: what.to_string(),
            place,
            parameter,
            rescaled,
            applied: false,
        }));
        let in_a_row = self.state.skips_in_a_row;
        if in_a_row >= self.args.skips_in_a_row.max(1) {
            return Err(failure::non_finite_steps(step, in_a_row, what));
        }
        Ok(())
    }

    /// Halves the loss scale after a gradient overflow if that may help.
    fn lower_scale(&mut self, place: &mut String) -> bool {
        let Some(scale) = &mut self.state.loss_scale else { return false };
        let before = scale.scale;
        let lower = scale.record_overflow();
        if lower {
            *place = format!("{place}; loss scale {before} → {}", scale.scale);
        }
        lower
    }

    /// Reports whether a checkpoint is due after a step of epoch `epoch`.
    pub fn checkpoint_is_due(&mut self, epoch: u64) -> bool {
        let by_clock = self.save_timer.is_due();
        self.best_is_due()
            || self.save_is_pending
            || by_clock.unwrap_or_else(|| {
                let epochs = [epoch, self.state.position.epoch];
                is_due(self.args.preset.checkpoint.every, self.state.step, epochs, 0.0)
            })
    }

    /// Reports whether to save weights that were just measured to be the best; the next step overwrites them.
    /// So it waits for a save in flight, which is cheaper than a second copy in memory.
    fn best_is_due(&mut self) -> bool {
        let knobs = &self.args.preset.checkpoint;
        let wanted = std::mem::take(&mut self.is_best) && knobs.keep_best && knobs.every != Every::Never;
        if wanted && self.saver.is_busy() {
            self.enter_phase(Phase::Checkpointing);
            self.saver.wait();
            self.enter_phase(Phase::Training);
        }
        wanted
    }

    /// Saves at this step boundary, or at the next one if a save is still in flight.
    ///
    /// # Errors
    /// Returns an error when the device cannot be read.
    pub fn save(&mut self, snapshot: impl Fn() -> Result<Values, Failed>) -> Result<(), Failed> {
        self.save_is_pending = self.saver.is_busy();
        if !self.save_is_pending && self.saver.durable_step() != Some(self.state.step) {
            self.submit(snapshot)?;
        }
        if let Some(kernels) = &mut self.kernels {
            kernels.announce_tuned();
        }
        Ok(())
    }

    /// Executes pending orders and returns the reason to end, if there is one.
    ///
    /// # Errors
    /// Returns an error when the device cannot be read.
    pub fn execute_orders(
        &mut self,
        orders: &Receiver<Order>,
        snapshot: impl Fn() -> Result<Values, Failed>,
    ) -> Result<Option<DoneReason>, Failed> {
        while let Ok(order) = orders.try_recv() {
            match order {
                // A worker of ours is never taken over: it saves and ends when its keeper dies.
                Order::Adopt { .. } | Order::Stacks | Order::Begin => {}
                Order::Checkpoint => self.save_now(&snapshot)?,
                Order::Stop { checkpoint: false } => return Ok(Some(DoneReason::Stopped)),
                Order::Stop { checkpoint: true } => {
                    self.save_now(&snapshot)?;
                    self.saver.wait();
                    let step = self.state.step;
                    if self.saver.durable_step() == Some(step) {
                        return Ok(Some(DoneReason::Stopped));
                    }
                    // Refuse to stop rather than discard training progress that is not saved.
                    let message = self.saver.failure().to_owned();
                    self.sink.send(Event::StopRefused { step, message });
                }
            }
        }
        Ok(None)
    }

    /// Returns once the current step is on disk.
    ///
    /// # Errors
    /// Returns an error when it cannot be written, or the device cannot be read.
    pub fn make_last_step_durable(&mut self, snapshot: impl Fn() -> Result<Values, Failed>) -> Result<(), Failed> {
        for attempt in 0..LAST_SAVES {
            self.saver.wait();
            if self.saver.durable_step() != Some(self.state.step) {
                thread::sleep(Duration::from_secs(attempt.into()));
                self.submit(&snapshot)?;
                self.saver.wait();
            }
        }
        if self.saver.durable_step() == Some(self.state.step) {
            return Ok(());
        }
        let (step, why) = (self.state.step, self.saver.failure());
        let text = format!("the last step, {step}, could not be saved after {LAST_SAVES} attempts: {why}");
        Err(if self.saver.disk_refuses() { failure::disk_failure(text) } else { failure::unusable_checkpoint(text) })
    }

    /// Reports that the worker ended normally.
    pub fn finish(self, reason: DoneReason) -> DoneReason {
        self.sink.send(Event::Done { reason, step: self.state.step });
        reason
    }

    fn save_now(&mut self, snapshot: impl Fn() -> Result<Values, Failed>) -> Result<(), Failed> {
        let was_busy = self.saver.is_busy();
        self.saver.wait();
        if self.saver.durable_step() != Some(self.state.step) {
            return self.submit(snapshot);
        }
        if !was_busy {
            self.saver.announce_again();
        }
        Ok(())
    }

    fn submit(&mut self, snapshot: impl Fn() -> Result<Values, Failed>) -> Result<(), Failed> {
        let phase = self.phase;
        self.enter_phase(Phase::Checkpointing);
        let begun = Instant::now();
        let values = snapshot()?;
        let (state, pause) = (self.state.clone(), begun.elapsed());
        self.saver.submit(SaveJob { values, state, begun, pause });
        self.save_timer.record_save_begin(pause);
        if let Some(phase) = phase {
            self.enter_phase(phase);
        }
        Ok(())
    }

    /// Advances the clock over a step's samples, used or dropped.
    fn advance(&mut self, plan: &StepPlan, timing: Timing) {
        if let Some(kernels) = &mut self.kernels {
            kernels.end_first_step();
        }
        self.state.step += 1;
        self.state.position = plan.after;
        self.state.trained_s = self.trained_s();
        self.save_timer.record_step(timing.data_wait + timing.compute);
        if !self.saver.is_busy() {
            self.save_timer.record_save_end(self.saver.durable_step(), plan.epoch);
        }
        if let Some(text) = self.save_timer.overdue_warning(self.state.step, plan.epoch) {
            self.note(Level::Warn, text);
        }
    }

    fn trained_s(&self) -> f64 {
        self.trained_before_s + self.begun.elapsed().as_secs_f64()
    }

    fn step_row(&self, plan: &StepPlan, lr: f64, timing: Timing) -> StepRow {
        StepRow {
            attempt: self.args.attempt,
            rung: self.args.rung,
            step: self.state.step,
            samples: self.state.position.samples,
            epoch: plan.epoch,
            loss: None,
            lr: Some(lr),
            grad_norm: None,
            skipped: false,
            data_wait_ms: timing.data_wait.as_secs_f64() * 1e3,
            compute_ms: timing.compute.as_secs_f64() * 1e3,
            time_ms: unix_ms(),
            metrics: BTreeMap::new(),
        }
    }
}

fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
