//! Memory estimate of a rung: trains it on a backend that only counts ([`super::counting`]): model,
//! optimizer, steps, an evaluation, and a step while a checkpoint still holds weights and moments.

use super::counting::{Counter, Counting, CountingRecompute, Habits, Ledger, Lent};
use super::groups::Plan;
use super::loader::{self, Loader};
use super::optimizer::AdamW;
use super::params::{self, Reading};
use super::registry;
use super::step::{self, Gradient, Moment};
use super::task::{BatchRequest, Split, Task, Train, load};
use crate::config::knobs::{self, MomentBits, Precision, Preset};
use crate::protocol::plan::{Foreseen, Phases, Site};
use crate::recipe::batch::{BatchPlan, Position};
use burn::module::AutodiffModule;
use burn::tensor::FloatDType;
use burn::tensor::backend::AutodiffBackend;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The most micro-batches counted per step. More change nothing, since gradients are summed from the second on.
const MOST_ACCUMULATION: u64 = 3;
/// The most micro-batch sizes counted in the search for the largest that fits.
const MOST_LOOKS: usize = 12;
/// The largest host batch in bytes that is built for the estimate. Larger ones are not allocated just to
/// probe the limit.
const MOST_BATCH_BYTES: u64 = 1 << 30;
/// Bytes of a CUDA context with Burn's kernels loaded, plus rounding by the memory pool: a first guess,
/// corrected by measurements on the GPU.
const CUDA_OVERHEAD: u64 = 600 << 20;
/// Bytes that training adds on the CPU: code first run by training, stacks, and buffers of matrix products.
const CPU_OVERHEAD: u64 = 10 << 20;
/// Bytes of host memory for the driver and the kernel compiler; an equally rough guess.
const CUDA_HOST: u64 = 900 << 20;

/// The estimate of a rung, or the reason it could not be made.
pub type Outcome = Result<Foreseen, String>;

/// Estimates the memory of each of these rungs.
pub fn foresee<T: Task + Train<Counting> + Train<CountingRecompute>>(presets: &[&Preset], site: Site) -> Vec<Outcome> {
    let mut loaded: Option<(&Preset, Loaded<T>)> = None;
    // Measured first: memory still resident from counting one rung would look like part of the program to the next.
    let program = super::memory::resident().unwrap_or(0);
    let mut outcomes = Vec::new();
    for preset in presets {
        let same = |(earlier, _): &(&Preset, Loaded<T>)| {
            earlier.data == preset.data
                && earlier.model == preset.model
                && earlier.training.seed == preset.training.seed
        };
        if !loaded.as_ref().is_some_and(same) {
            // Free the old data set before loading the new one.
            drop(loaded.take());
            match Loaded::new(preset, program) {
                Ok(found) => loaded = Some((preset, found)),
                Err(why) => {
                    outcomes.push(Err(why));
                    continue;
                }
            }
        }
        let Some((_, loaded)) = &loaded else { continue };
        let counted = catch_unwind(AssertUnwindSafe(|| rung(loaded, preset, site)));
        let refused =
            || Err("its model does something that cannot be counted; its need is known once it has run".to_owned());
        outcomes.push(counted.unwrap_or_else(|_| refused()));
    }
    outcomes
}

/// A task's data, and the host memory of program and data.
struct Loaded<T: Task> {
    model: T::ModelConfig,
    data: Arc<T::Data>,
    program: u64,
    bytes: u64,
}

impl<T: Task> Loaded<T> {
    fn new(preset: &Preset, program: u64) -> Result<Self, String> {
        let (data, model) = registry::sections::<T>(preset).map_err(|problem| problem.to_string())?;
        let before = super::memory::allocated();
        let data = load::<T>(&data, &model, preset.training.seed).map_err(|error| error.to_string())?;
        let bytes = super::memory::allocated().saturating_sub(before);
        Ok(Self { model, data: Arc::new(data), program, bytes })
    }
}

fn rung<T: Task + Train<Counting> + Train<CountingRecompute>>(
    loaded: &Loaded<T>,
    preset: &Preset,
    site: Site,
) -> Outcome {
    let micro = preset.training.micro_batch;
    let (mut foreseen, batch) = at(loaded, preset, site, micro)?;
    let lanes = preset.training.loader.threads.max(1);
    foreseen.loader = batch * lanes * (preset.training.loader.prefetch.div_ceil(lanes) + 1);
    foreseen.data = loaded.bytes;
    // State resting in host memory is not on the device; on the CPU both are the same memory.
    let resting = resting_on_host(preset, foreseen.trained).saturating_sub(foreseen.optimizer);
    if !site.gpu {
        foreseen.optimizer += resting;
        // Tensors and micro-batches share the host's memory.
        foreseen.overhead = CPU_OVERHEAD;
        for bytes in [&mut foreseen.training, &mut foreseen.evaluation, &mut foreseen.saving, &mut foreseen.loading] {
            *bytes += CPU_OVERHEAD + resting;
        }
        foreseen.training += foreseen.loader;
        foreseen.evaluation += 2 * foreseen.loader;
        foreseen.saving += foreseen.loader;
    }
    foreseen.ram = ram(&foreseen, loaded, site, preset.training.precision);
    if site.gpu {
        for bytes in [&mut foreseen.ram.training, &mut foreseen.ram.evaluation, &mut foreseen.ram.saving] {
            *bytes += resting;
        }
    }
    if let Some(room) = site.room {
        let room = if site.gpu { room } else { room.saturating_sub(loaded.program + loaded.bytes) };
        let beside =
            |other: u64| if site.gpu { 0 } else { CPU_OVERHEAD + resting + foreseen.loader / micro.max(1) * other };
        let samples = T::len(&loaded.data, Split::Training) as u64;
        foreseen.largest_micro_batch = largest(room, (micro, foreseen.peak()), samples, |other| {
            let small = batch / micro.max(1) * other < MOST_BATCH_BYTES;
            small.then(|| at(loaded, preset, site, other).ok().map(|(found, _)| found.peak() + beside(other))).flatten()
        });
    }
    Ok(foreseen)
}

/// Returns the bytes of moments and masters that `optimizer.offload` keeps in host memory.
fn resting_on_host(preset: &Preset, trained: u64) -> u64 {
    if !preset.optimizer.offload {
        return 0;
    }
    let moments = match preset.optimizer.moments {
        MomentBits::F32 => 8 * trained,
        // One code per value, and one scale per 256 values.
        MomentBits::Eight => 2 * trained + trained / 32,
    };
    let masters = if preset.training.precision == Precision::F32 { 0 } else { 4 * trained };
    moments + masters
}

/// Returns the host memory by phase.
fn ram<T: Task>(foreseen: &Foreseen, loaded: &Loaded<T>, site: Site, precision: Precision) -> Phases {
    let base = loaded.program + loaded.bytes;
    if site.gpu {
        // Frozen weights computed in 16 bits are kept in host memory in f32, for checkpoints.
        let frozen = if precision == Precision::F32 { 0 } else { 4 * (foreseen.parameters - foreseen.trained) };
        let base = base + CUDA_HOST + frozen;
        // A checkpoint copies the other weights and both moments to the host, in f32.
        let copies = 4 * (foreseen.parameters + 2 * foreseen.trained) - frozen;
        return Phases {
            loading: base + 4 * foreseen.parameters,
            training: base + foreseen.loader,
            evaluation: base + foreseen.loader,
            saving: base + foreseen.loader + copies,
        };
    }
    Phases {
        loading: base + foreseen.loading,
        training: base + foreseen.training,
        evaluation: base + foreseen.evaluation,
        saving: base + foreseen.saving,
    }
}

/// Returns the largest micro-batch that needs at most `room`: extrapolates linearly through the last two
/// sizes counted, until the answer lies between one that fits and the next one. `need` returns `None` where
/// counting would be too expensive; the search does not go beyond that.
fn largest(room: u64, known: (u64, u64), samples: u64, need: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    let along = |(low, at_low): (u64, u64), (high, at_high): (u64, u64)| {
        let slope = (at_high as f64 - at_low as f64) / (high as f64 - low as f64);
        (slope > 0.0).then(|| low + ((room - at_low) as f64 / slope) as u64)
    };
    let mut fits: Option<(u64, u64)> = None;
    let mut too_large: Option<(u64, Option<u64>)> = None;
    let mut smaller: Option<(u64, u64)> = None;
    let mut next = (known.0.min(samples), Some(known.1).filter(|_| known.0 <= samples));
    for turn in 1..=MOST_LOOKS {
        match next {
            (batch, Some(bytes)) if bytes <= room => smaller = fits.replace((batch, bytes)),
            (batch, bytes) => too_large = Some((batch, bytes)),
        }
        let batch = match (fits, too_large) {
            (Some(low), None) => smaller.and_then(|smaller| along(low, smaller)).unwrap_or(low.0 * 4).min(samples),
            (None, Some((high, _))) => high / 4,
            (Some(low), Some((high, Some(bytes)))) if turn % 3 != 0 => along(low, (high, bytes)).unwrap_or(low.0),
            (Some((low, _)), Some((high, _))) => low.midpoint(high),
            (None, None) => 0,
        };
        let (low, high) = (fits.map_or(0, |(low, _)| low), too_large.map_or(samples + 1, |(high, _)| high));
        if low + 1 >= high {
            break;
        }
        let batch = batch.clamp(low + 1, high - 1);
        next = (batch, need(batch));
    }
    fits.map(|(batch, _)| batch)
}

/// Estimates one rung with this micro-batch; also returns the host memory of a micro-batch.
fn at<T: Task + Train<Counting> + Train<CountingRecompute>>(
    loaded: &Loaded<T>,
    preset: &Preset,
    site: Site,
    micro: u64,
) -> Result<(Foreseen, u64), String> {
    let habits = match (site.gpu, preset.training.precision) {
        (false, _) => Habits::Flex,
        (true, Precision::F32) => Habits::Cube(FloatDType::F32),
        (true, Precision::Bf16) => Habits::Cube(FloatDType::BF16),
        (true, Precision::F16) => Habits::Cube(FloatDType::F16),
    };
    let lent = Lent::new(habits);
    let counted = if preset.training.gradient_checkpointing && !T::RECOMPUTES {
        count::<T, CountingRecompute>(loaded, preset, (habits, &lent), micro)
    } else {
        count::<T, Counting>(loaded, preset, (habits, &lent), micro)
    };
    let (mut foreseen, batch) = counted?;
    if site.gpu {
        foreseen.overhead = CUDA_OVERHEAD;
        for bytes in [&mut foreseen.training, &mut foreseen.evaluation, &mut foreseen.saving, &mut foreseen.loading] {
            *bytes += CUDA_OVERHEAD;
        }
    }
    Ok((foreseen, batch))
}

fn count<T: Train<B>, B: AutodiffBackend<Device = Counter>>(
    loaded: &Loaded<T>,
    preset: &Preset,
    (habits, lent): (Habits, &Lent),
    micro: u64,
) -> Result<(Foreseen, u64), String> {
    let device = lent.device();
    let mut model = T::init(&loaded.model, &loaded.data, device);
    let shapes = params::shapes::<B, _>(&model);
    let paths: Vec<String> = shapes.keys().cloned().collect();
    let plan = Plan::new::<T>(preset, &paths)?;
    model = plan.freeze::<B, _>(model);
    let numbers = |shape: &Vec<usize>| shape.iter().product::<usize>() as u64;
    let trained: u64 = shapes.iter().filter(|(path, _)| plan.trains(path)).map(|(_, shape)| numbers(shape)).sum();
    let trained_shapes: BTreeSet<Vec<usize>> =
        shapes.iter().filter(|(path, _)| plan.trains(path)).map(|(_, shape)| shape.clone()).collect();
    let (loading, weights) = (lent.read(Ledger::look).peak, lent.read(|ledger| ledger.live()));
    lent.read(|ledger| ledger.tell_apart(trained_shapes, T::answers(&loaded.model, &loaded.data)));
    let optimizer = AdamW::new(preset.optimizer.clone(), plan);
    let mut training = Dry::<T, B>::new(model, optimizer, loaded, preset, micro, device)?;
    let gradient = training.gradient()?;
    training.update(gradient)?;
    let state = lent.read(|ledger| ledger.live());
    lent.read(Ledger::look);
    let at_rest = lent.read(|ledger| ledger.others());
    let gradient = training.gradient()?;
    let pass = lent.read(Ledger::look);
    training.update(gradient)?;
    let update = lent.read(Ledger::look).peak;
    let samples = training.evaluate(micro);
    let evaluation = lent.read(Ledger::look);
    training.save(habits == Habits::Flex)?;
    let saving = lent.read(Ledger::look).peak;
    let foreseen = Foreseen {
        parameters: shapes.values().map(numbers).sum(),
        trained,
        weights,
        gradients: 4 * trained,
        optimizer: state.saturating_sub(weights),
        activations: pass.others.saturating_sub(at_rest),
        logits: pass.logits,
        update: update.saturating_sub(state + 4 * trained),
        training: pass.peak.max(update),
        loading,
        evaluation: evaluation.peak,
        saving,
        ..Foreseen::default()
    };
    // An evaluation brings only its micro-batch from the host.
    Ok((foreseen, evaluation.given / samples.max(1) * micro))
}

/// A training loop on a backend that computes nothing.
struct Dry<'a, T: Train<B>, B: AutodiffBackend> {
    model: Option<T::Model>,
    optimizer: AdamW<B::InnerBackend>,
    loader: Loader<T>,
    plan: BatchPlan,
    loaded: &'a Loaded<T>,
    preset: &'a Preset,
    device: &'a B::Device,
}

impl<'a, T: Train<B>, B: AutodiffBackend> Dry<'a, T, B> {
    fn new(
        model: T::Model,
        optimizer: AdamW<B::InnerBackend>,
        loaded: &'a Loaded<T>,
        preset: &'a Preset,
        micro: u64,
        device: &'a B::Device,
    ) -> Result<Self, String> {
        let accumulation = preset.training.accumulation.clamp(1, MOST_ACCUMULATION);
        let epoch_samples = micro * accumulation;
        let plan = BatchPlan { epoch_samples, units: T::units(&loaded.model).max(1), micro_batch: micro, accumulation };
        let requests = loader::again_and_again(T::len(&loaded.data, Split::Training), micro);
        let ahead = knobs::Loader { threads: 1, prefetch: 0 };
        let batches = Loader::<T>::start(&loaded.data, preset.training.seed, ahead, &requests)
            .map_err(|error| format!("no thread to load data with: {error}"))?;
        Ok(Self { model: Some(model), optimizer, loader: batches, plan, loaded, preset, device })
    }

    /// Runs the forward and backward passes of a step.
    fn gradient(&mut self) -> Result<Gradient<B::InnerBackend>, String> {
        let step = self.plan.step(Position::default());
        let training = &self.preset.training;
        let gradient_checkpointing = training.gradient_checkpointing;
        let moment = Moment { seed: training.seed, step: 1, poisoned: false, gradient_checkpointing, loss_scale: None };
        let model = self.model.as_ref().ok_or("an update failed")?;
        let taken = step::take::<T, B>(model, &step, &mut self.loader, &self.optimizer.plan, &moment, self.device);
        let (verdict, _) = taken.map_err(|failed| failed.message)?;
        verdict.map_err(|dropped| format!("its {} is not finite", dropped.what))
    }

    /// Applies the gradient with the optimizer.
    fn update(&mut self, gradient: Gradient<B::InnerBackend>) -> Result<(), String> {
        let Some(model) = self.model.take() else { return Ok(()) };
        let scales = self.optimizer.plan.scales(&gradient.norms);
        let updated = self.optimizer.update::<B, _>(model, gradient.tensors, self.preset.optimizer.lr, &scales);
        self.model = Some(updated.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Evaluates a micro-batch and returns its number of samples.
    fn evaluate(&self, micro: u64) -> u64 {
        let Some(model) = &self.model else { return 0 };
        let samples = T::len(&self.loaded.data, Split::Validation).min(micro as usize);
        let indices: Vec<u32> = (0..samples).filter_map(|index| u32::try_from(index).ok()).collect();
        let seed = self.preset.training.seed;
        let request = BatchRequest { split: Split::Validation, indices: &indices, epoch: 0, seed };
        T::evaluate(&model.valid(), T::batch(&self.loaded.data, request), self.device);
        samples as u64
    }

    /// Simulates a save. If tensors are in host memory, a step runs while the previous step's tensors are
    /// still held; a device is read while training is paused.
    fn save(&mut self, training: bool) -> Result<(), String> {
        let mut held = Reading::default();
        if let Some(model) = &self.model {
            params::read_into::<B::InnerBackend, _>(&model.valid(), &self.optimizer.masters, &mut held);
        }
        self.optimizer.read_into(&mut held);
        if training {
            let gradient = self.gradient()?;
            self.update(gradient)?;
        }
        drop(held);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::largest;

    #[test]
    fn the_largest_micro_batch_is_the_last_one_that_fits() {
        // An update that needs more memory than small micro-batches do, then 7 bytes per sample.
        let flat = |batch: u64| Some(800.max(100 + 7 * batch));
        assert_eq!(largest(1507, (1, 800), 1000, flat), Some(201));
        assert_eq!(largest(799, (4, 800), 1000, flat), None);
        let dear = |batch: u64| (batch < 40).then_some(100 + 7 * batch);
        assert_eq!(largest(1 << 20, (8, 156), 1000, dear), Some(39), "as far as it is looked");
        // 100 bytes of state and 7 per sample.
        let need = |batch: u64| Some(100 + 7 * batch);
        assert_eq!(largest(170, (2, 114), 1000, need), Some(10));
        assert_eq!(largest(176, (2, 114), 1000, need), Some(10));
        assert_eq!(largest(177, (2, 114), 1000, need), Some(11));
        assert_eq!(largest(1 << 40, (2, 114), 64, need), Some(64), "no more than there are samples");
        assert_eq!(largest(90, (2, 114), 1000, need), None, "not even one");
        assert_eq!(largest(107, (8, 156), 1000, need), Some(1));
        assert_eq!(largest(107, (8, 156), 8, need), Some(1));
    }
}
