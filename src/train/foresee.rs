//! What training a rung will take of memory, found out by training it on a backend that only counts
//! ([`super::counting`]): model, optimizer, steps, an evaluation, and a step while a checkpoint holds
//! on to weights and moments.

use super::counting::{Counter, Counting, CountingRecompute, Habits, Ledger, Lent};
use super::groups::Plan;
use super::loader::{self, Loader};
use super::optimizer::AdamW;
use super::params::{self, Reading};
use super::registry;
use super::step::{self, Moment};
use super::task::{BatchRequest, Split, Task, Train};
use crate::config::knobs::{self, MomentBits, Precision, Preset};
use crate::protocol::plan::{Foreseen, Phases, Site};
use crate::recipe::batch::{BatchPlan, Position};
use burn::module::AutodiffModule;
use burn::tensor::FloatDType;
use burn::tensor::backend::AutodiffBackend;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// More micro-batches a step change nothing: gradients are summed from the second on.
const MOST_ACCUMULATION: u64 = 3;
/// Host batches larger than this are not made only to see that they fit.
const MOST_BATCH_BYTES: u64 = 1 << 30;
/// A CUDA context with Burn's kernels loaded, and what the memory pool rounds up by, in bytes: a first
/// guess, which what is measured on the card corrects.
const CUDA_OVERHEAD: u64 = 600 << 20;
/// On the CPU: the code that training is the first to run, stacks, and buffers of matrix products.
const CPU_OVERHEAD: u64 = 10 << 20;
/// Host memory that the driver and the compiler of kernels take: as rough.
const CUDA_HOST: u64 = 900 << 20;

/// A rung that could be counted, or why not.
pub type Outcome = Result<Foreseen, String>;

/// What each of these rungs takes.
pub fn foresee<T: Task + Train<Counting> + Train<CountingRecompute>>(presets: &[&Preset], site: Site) -> Vec<Outcome> {
    let mut loaded: Option<(&Preset, Loaded<T>)> = None;
    let mut outcomes = Vec::new();
    for preset in presets {
        let same = |(earlier, _): &(&Preset, Loaded<T>)| {
            earlier.data == preset.data
                && earlier.model == preset.model
                && earlier.training.seed == preset.training.seed
        };
        if !loaded.as_ref().is_some_and(same) {
            // The old set goes before the new one comes.
            drop(loaded.take());
            match Loaded::new(preset) {
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

/// A task's data, and what they take.
struct Loaded<T: Task> {
    model: T::ModelConfig,
    data: Arc<T::Data>,
    before: u64,
    bytes: u64,
}

impl<T: Task> Loaded<T> {
    fn new(preset: &Preset) -> Result<Self, String> {
        let (data, model) = registry::sections::<T>(preset).map_err(|problem| problem.to_string())?;
        let before = super::memory::resident().unwrap_or(0);
        let data = T::load(&data, &model, preset.training.seed).map_err(|error| error.to_string())?;
        let bytes = super::memory::resident().unwrap_or(0).saturating_sub(before);
        Ok(Self { model, data: Arc::new(data), before, bytes })
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
    // What rests in host memory is nowhere on the device; on the CPU that is the same memory.
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
    foreseen.ram = ram(&foreseen, loaded, site);
    if site.gpu {
        for bytes in [&mut foreseen.ram.training, &mut foreseen.ram.evaluation, &mut foreseen.ram.saving] {
            *bytes += resting;
        }
    }
    if let Some(room) = site.room {
        let beside =
            |other: u64| if site.gpu { 0 } else { CPU_OVERHEAD + resting + foreseen.loader / micro.max(1) * other };
        let samples = T::len(&loaded.data, Split::Training) as u64;
        foreseen.largest_micro_batch = largest(room, (micro, foreseen.training), samples, |other| {
            (batch / micro.max(1) * other < MOST_BATCH_BYTES)
                .then(|| at(loaded, preset, site, other).ok().map(|(found, _)| found.training + beside(other)))
                .flatten()
        });
    }
    Ok(foreseen)
}

/// Moments and masters that `optimizer.offload` keeps in host memory.
fn resting_on_host(preset: &Preset, trained: u64) -> u64 {
    if !preset.optimizer.offload {
        return 0;
    }
    let moments = match preset.optimizer.moments {
        MomentBits::F32 => 8 * trained,
        // A code each, and a scale for each 256 of them.
        MomentBits::Eight => 2 * trained + trained / 32,
    };
    let masters = if preset.training.precision == Precision::F32 { 0 } else { 4 * trained };
    moments + masters
}

/// Host memory by phase.
fn ram<T: Task>(foreseen: &Foreseen, loaded: &Loaded<T>, site: Site) -> Phases {
    let base = loaded.before + loaded.bytes;
    if site.gpu {
        let base = base + CUDA_HOST;
        // A checkpoint copies weights and both moments to the host, in f32.
        let copies = 4 * (foreseen.parameters + 2 * foreseen.trained);
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

/// The largest micro-batch whose need is within `room`, by the line through two that are known, and
/// the line through those it leads to. `need` gives nothing where it would cost too much to see.
fn largest(room: u64, known: (u64, u64), samples: u64, need: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    let (mut low, other) = (known, if known.0 >= samples { (known.0 / 2).max(1) } else { known.0 * 2 });
    let mut high = (other, need(other).filter(|_| other != low.0)?);
    let mut best = None;
    for _ in 0..6 {
        for (batch, need) in [low, high] {
            if need <= room && batch <= samples {
                best = best.max(Some(batch));
            }
        }
        let slope = (high.1 as f64 - low.1 as f64) / (high.0 as f64 - low.0 as f64);
        if slope <= 0.0 {
            break;
        }
        let guess = low.0 as f64 + (room as f64 - low.1 as f64) / slope;
        let guess = (guess.floor().max(0.0) as u64).min(samples);
        if guess == 0 || guess == high.0 || guess == low.0 {
            return if guess == 0 { best } else { best.max(Some(guess).filter(|guess| Some(*guess) == best)) };
        }
        match need(guess) {
            Some(bytes) => (low, high) = (high, (guess, bytes)),
            None => return Some(guess),
        }
    }
    best
}

/// One rung with this micro-batch: what it takes, and what a micro-batch takes on the host.
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
        count::<T, CountingRecompute>(loaded, preset, &lent, micro)
    } else {
        count::<T, Counting>(loaded, preset, &lent, micro)
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
    lent: &Lent,
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
    training.step()?;
    let state = lent.read(|ledger| ledger.live());
    lent.read(Ledger::look);
    let at_rest = lent.read(|ledger| ledger.others());
    training.step()?;
    let level = lent.read(Ledger::look);
    let samples = training.evaluate(micro);
    let evaluation = lent.read(Ledger::look);
    training.step_while_saving()?;
    let saving = lent.read(Ledger::look).peak;
    let foreseen = Foreseen {
        parameters: shapes.values().map(numbers).sum(),
        trained,
        weights,
        gradients: 4 * trained,
        optimizer: state.saturating_sub(weights),
        activations: level.others.saturating_sub(at_rest),
        logits: level.logits,
        training: level.peak,
        loading,
        evaluation: evaluation.peak,
        saving: saving.max(level.peak),
        ..Foreseen::default()
    };
    // All that an evaluation brings from the host is its micro-batch.
    Ok((foreseen, evaluation.given / samples.max(1) * micro))
}

/// Training on a backend that computes nothing.
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

    fn step(&mut self) -> Result<(), String> {
        let Some(model) = self.model.take() else { return Ok(()) };
        let step = self.plan.step(Position::default());
        let training = &self.preset.training;
        let gradient_checkpointing = training.gradient_checkpointing;
        let moment = Moment { seed: training.seed, step: 1, poisoned: false, gradient_checkpointing, loss_scale: None };
        let taken = step::take::<T, B>(&model, &step, &mut self.loader, &self.optimizer.plan, &moment, self.device);
        let (verdict, _) = taken.map_err(|failed| failed.message)?;
        let gradient = verdict.map_err(|dropped| format!("its {} is not finite", dropped.what))?;
        let scales = self.optimizer.plan.scales(&gradient.norms);
        let updated = self.optimizer.update::<B, _>(model, gradient.tensors, self.preset.optimizer.lr, &scales);
        self.model = Some(updated.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Evaluates a micro-batch; how many samples it had.
    fn evaluate(&self, micro: u64) -> u64 {
        let Some(model) = &self.model else { return 0 };
        let samples = T::len(&self.loaded.data, Split::Validation).min(micro as usize);
        let indices: Vec<u32> = (0..samples).filter_map(|index| u32::try_from(index).ok()).collect();
        let seed = self.preset.training.seed;
        let request = BatchRequest { split: Split::Validation, indices: &indices, epoch: 0, seed };
        T::evaluate(&model.valid(), T::batch(&self.loaded.data, request), self.device);
        samples as u64
    }

    /// A step while weights and moments of the one before are still held.
    fn step_while_saving(&mut self) -> Result<(), String> {
        let mut held = Reading::default();
        if let Some(model) = &self.model {
            params::read_into::<B::InnerBackend, _>(&model.valid(), &self.optimizer.masters, &mut held);
        }
        self.optimizer.read_into(&mut held);
        self.step()?;
        drop(held);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::largest;

    #[test]
    fn the_largest_micro_batch_is_the_last_one_that_fits() {
        // 100 bytes of state and 7 a sample.
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
