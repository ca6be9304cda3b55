//! A training loop on a backend that tracks shapes only: model, optimizer, steps, an evaluation, and a step while a
//! checkpoint still holds weights and moments.

use super::error::EstimateError;
use crate::loader::{self, Loader};
use crate::native;
use crate::optimizer::AdamW;
use crate::param_rules::ParamRules;
use crate::params::{self, TensorReader};
use crate::shape_backend::{BackendModel, LeasedDevice, Ledger, Peak, ShapeDevice};
use crate::step::{self, Gradient, StepSettings};
use crate::task::{BatchRequest, Split, Task, Train};
use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;
use downshift_core::config::knobs::{self, Preset};
use downshift_core::protocol::plan::MemoryEstimate;
use downshift_core::recipe::batch::{BatchPlan, Position};
use downshift_core::recipe::phases::SearchPhase;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most micro-batches run per step. More change nothing, since gradients are summed from the second on.
const MAX_ACCUMULATION: u64 = 3;

/// The input of a task: its model's config, and its data.
pub struct TaskInput<T: Task> {
    /// The section `model:`.
    pub model: T::ModelConfig,
    /// The data.
    pub data: Arc<T::Data>,
}

/// Runs the phases of training once and returns the peak of each; also returns the host memory of a micro-batch.
pub fn estimate_phases<T: Train<B>, B: AutodiffBackend<Device = ShapeDevice>>(
    input: &TaskInput<T>,
    preset: &Preset,
    (backend, leased): (BackendModel, &LeasedDevice),
    micro: u64,
) -> Result<(MemoryEstimate, u64), EstimateError> {
    let device = leased.device();
    let _operations = native::Scope::new(preset.training.fused_kernels);
    let mut model = T::init(&input.model, &input.data, device);
    let shapes = params::parameter_shapes::<B, _>(&model);
    let paths: Vec<String> = shapes.keys().cloned().collect();
    let rules = ParamRules::new::<T>(preset, &paths)?;
    model = rules.freeze::<B, _>(model);
    let count = |shape: &Vec<usize>| shape.iter().product::<usize>() as u64;
    let trained: u64 = shapes.iter().filter(|(path, _)| rules.is_trained(path)).map(|(_, shape)| count(shape)).sum();
    let trained_shapes: BTreeSet<Vec<usize>> =
        shapes.iter().filter(|(path, _)| rules.is_trained(path)).map(|(_, shape)| shape.clone()).collect();
    let (loading, weights) = (leased.read(Ledger::take_peak).taken, leased.read(|ledger| ledger.live()));
    leased.read(|ledger| ledger.end_parameters(trained_shapes, T::num_classes(&input.model, &input.data)));
    let optimizer = AdamW::new(preset.optimizer.clone(), rules);
    let mut dry_run = DryRun::<T, B>::new(model, optimizer, input, preset, micro, device)?;
    let gradient = dry_run.run_passes()?;
    dry_run.apply_update(gradient)?;
    let state = leased.read(|ledger| ledger.live());
    leased.read(Ledger::take_peak);
    let at_rest = leased.read(|ledger| ledger.others());
    let gradient = dry_run.run_passes()?;
    let pass = leased.read(Ledger::take_peak);
    dry_run.apply_update(gradient)?;
    let last = leased.read(Ledger::take_peak);
    let searches = dry_run.step_of_architecture(micro)?;
    let searching = if searches { leased.read(Ledger::take_peak) } else { Peak::default() };
    let (update, training) = (last.peak, pass.peak.max(last.peak).max(searching.peak));
    let samples = dry_run.evaluate_batch(micro);
    let evaluation = leased.read(Ledger::take_peak);
    dry_run.simulate_save(backend == BackendModel::Flex)?;
    let saving = leased.read(Ledger::take_peak).taken;
    let estimate = MemoryEstimate {
        parameters: shapes.values().map(count).sum(),
        trained,
        weights,
        gradients: 4 * trained,
        optimizer: state.saturating_sub(weights),
        activations: pass.others.max(searching.others).saturating_sub(at_rest),
        logits: pass.logits.max(searching.logits),
        update: update.saturating_sub(state + 4 * trained),
        pages: last.taken.saturating_sub(training),
        training: training.max(last.taken).max(searching.taken),
        loading,
        evaluation: evaluation.taken,
        saving,
        ..MemoryEstimate::default()
    };
    // An evaluation brings only its micro-batch from the host.
    Ok((estimate, evaluation.uploaded / samples.max(1) * micro))
}

/// Prepares the micro-batches of an epoch.
fn start_loader<T: Task>(
    input: &TaskInput<T>,
    preset: &Preset,
    micro: u64,
    epoch: u64,
) -> Result<Loader<T>, EstimateError> {
    let requests = loader::endless_requests(T::len(&input.data, Split::Training), micro, epoch);
    let ahead = knobs::Loader { threads: 1, prefetch: 0 };
    Ok(Loader::<T>::start(&input.data, preset.training.seed, ahead, &requests)?)
}

/// A training loop on a backend that computes nothing.
struct DryRun<'a, T: Train<B>, B: AutodiffBackend> {
    model: Option<T::Model>,
    optimizer: AdamW<B::InnerBackend>,
    loader: Loader<T>,
    phase: SearchPhase,
    plan: BatchPlan,
    input: &'a TaskInput<T>,
    preset: &'a Preset,
    device: &'a B::Device,
}

impl<'a, T: Train<B>, B: AutodiffBackend> DryRun<'a, T, B> {
    fn new(
        model: T::Model,
        optimizer: AdamW<B::InnerBackend>,
        input: &'a TaskInput<T>,
        preset: &'a Preset,
        micro: u64,
        device: &'a B::Device,
    ) -> Result<Self, EstimateError> {
        let accumulation = preset.training.accumulation.clamp(1, MAX_ACCUMULATION);
        let epoch_samples = micro * accumulation;
        let plan = BatchPlan { epoch_samples, units: T::units(&input.model).max(1), micro_batch: micro, accumulation };
        let phase = SearchPhase::Weights;
        let loader = start_loader::<T>(input, preset, micro, 0)?;
        Ok(Self { model: Some(model), optimizer, loader, phase, plan, input, preset, device })
    }

    /// Runs a step of a search that updates the architecture. Reports whether there is such a phase.
    fn step_of_architecture(&mut self, micro: u64) -> Result<bool, EstimateError> {
        let Some(phases) = T::phases(&self.input.data) else { return Ok(false) };
        let searching = start_loader::<T>(self.input, self.preset, micro, phases.first_arch_epoch())?;
        let training = std::mem::replace(&mut self.loader, searching);
        self.phase = SearchPhase::Architecture;
        let gradient = self.run_passes()?;
        self.apply_update(gradient)?;
        (self.loader, self.phase) = (training, SearchPhase::Weights);
        Ok(true)
    }

    /// Runs the forward and backward passes of a step.
    fn run_passes(&mut self) -> Result<Gradient<B::InnerBackend>, EstimateError> {
        let step = self.plan.step(Position::default());
        let training = &self.preset.training;
        let gradient_checkpointing = training.gradient_checkpointing;
        let settings =
            StepSettings { seed: training.seed, step: 1, nan_loss: false, gradient_checkpointing, loss_scale: None };
        let model = self.model.as_ref().ok_or(EstimateError::NoModel)?;
        let rules = &self.optimizer.rules;
        let result = step::run_step::<T, B>(model, &step, &mut self.loader, rules, &settings, self.device);
        let (verdict, _) = result.map_err(EstimateError::Step)?;
        verdict.map_err(|dropped| EstimateError::NonFinite(dropped.what))
    }

    /// Applies the gradient with the optimizer.
    fn apply_update(&mut self, gradient: Gradient<B::InnerBackend>) -> Result<(), EstimateError> {
        let Some(model) = self.model.take() else { return Ok(()) };
        let scales = self.optimizer.rules.clip_scales(&gradient.norms);
        let updated =
            self.optimizer.update::<B, _>(model, gradient.tensors, self.phase, self.preset.optimizer.lr, &scales);
        self.model = Some(updated?);
        Ok(())
    }

    /// Evaluates a micro-batch and returns its number of samples.
    fn evaluate_batch(&self, micro: u64) -> u64 {
        let Some(model) = &self.model else { return 0 };
        let samples = T::len(&self.input.data, Split::Validation).min(micro as usize);
        let indices: Vec<u32> = (0..samples).filter_map(|index| u32::try_from(index).ok()).collect();
        let seed = self.preset.training.seed;
        let request = BatchRequest { split: Split::Validation, indices: &indices, epoch: 0, seed };
        T::evaluate(&model.valid(), T::batch(&self.input.data, request), self.device);
        samples as u64
    }

    /// Simulates a save. If tensors are in host memory, a step runs while the previous step's tensors are
    /// still held; a device is read while training is paused.
    fn simulate_save(&mut self, training: bool) -> Result<(), EstimateError> {
        let mut held = TensorReader::default();
        if let Some(model) = &self.model {
            params::collect_parameters::<B::InnerBackend, _>(&model.valid(), &self.optimizer.masters, &mut held);
        }
        self.optimizer.collect_state(&mut held);
        if training {
            let gradient = self.run_passes()?;
            self.apply_update(gradient)?;
        }
        drop(held);
        Ok(())
    }
}
