//! One attempt, from top to bottom: data, model, resume, loop.
//!
//! Every step boundary handles, in this order: orders, the step, evaluation if due, a checkpoint if due. All of
//! it is a function of the state and the knobs, so an attempt resumed from a checkpoint does exactly what an
//! uninterrupted one would have done.

mod attempt;
mod phase_log;
mod save_timer;

use super::device::TensorDevice;
use super::inject::FaultInjector;
use super::job::{EventSink, TrainingJob, WorkerArgs};
use super::kernel_start::KernelWatch;
use super::layers::UpdateObserver;
use super::load_values::load_values;
use super::loader::{self, Loader};
use super::lora::rank_change::RankChange;
use super::memory::{self, MemoryReporter};
use super::native;
use super::optimizer::AdamW;
use super::param_rules::ParamRules;
use super::params::{self, TensorReader};
use super::resume::{self, Note};
use super::saver::{Saver, Snapshot, Values};
use super::sections::parse_sections;
use super::step::{self, StepSettings};
use super::stored_tensor::Masters;
use super::task::{Split, Task, Train, load_data};
use super::{evaluate, failure};
use attempt::Attempt;
use burn::module::{AutodiffModule, Module};
use burn::tensor::backend::AutodiffBackend;
use downshift_core::config::knobs::Preset;
use downshift_core::protocol::worker::{DoneReason, Event, Failed, Hello, Level, Order, PROTOCOL, Phase, Saved};
use downshift_core::recipe::schedule::Schedule;
use downshift_core::recipe::{
    batch::{BatchPlan, Position},
    seed::{Purpose, derive_seed},
};
use downshift_core::store::checkpoint::state::{Length, TrainState};
use phase_log::PhaseLog;
use std::{
    sync::{Arc, mpsc::Receiver},
    thread,
    time::Instant,
};

/// Trains until the run is complete or a stop is requested.
///
/// # Errors
/// Returns the reason when training cannot continue.
pub fn run_session<T: Train<B>, B: AutodiffBackend>(
    job: TrainingJob,
    device: &B::Device,
) -> Result<DoneReason, Failed> {
    let TrainingJob { args, device: chosen, kernels, sink, orders, pulse } = job;
    let mut notes: Vec<Note> = chosen.note().map(|text| (Level::Info, text)).into_iter().collect();
    let on_host = chosen.location == TensorDevice::Cpu;
    let _operations = native::Scope::new(args.preset.training.fused_kernels);
    let reporter = MemoryReporter::new(args.measure, &sink);
    let mut session = open_session::<T, B>(&args, device, on_host, &reporter, &mut notes)?;
    reporter.report_phase(Phase::Starting);
    if on_host {
        // Only now: what loading took for a moment goes back.
        memory::keep_freed_memory();
    }
    let scale = session.state.loss_scale.unwrap_or_default();
    session.state.loss_scale = params::has_f16::<B, _>(&session.model).then_some(scale);
    sink.send(Event::Hello(Hello {
        protocol: PROTOCOL,
        build: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        device: chosen.name.clone(),
        backend: chosen.backend_name(&args.preset.training),
        parameters: session.model.num_params() as u64,
        resumed_from: session.saved.as_ref().map(|saved| saved.step),
        position: session.state.position,
        epoch_units: session.plan.epoch_units(),
        total_units: session.total_units,
        total_steps: session.state.step + session.plan.steps_left(session.state.position, session.total_units),
        unit: T::UNIT.to_owned(),
    }));
    for (level, text) in notes {
        sink.send(Event::Note { level, text });
    }
    if let Some(change) = session.rank_change.take() {
        let text = describe_rank_change::<T, B>(change, &session, &args.preset, &*sink, device)?;
        sink.send(Event::Note { level: Level::Info, text });
    }
    let ranking = args.preset.checkpoint.best.clone();
    let saver = Saver::start(args.run_dir.clone(), session.saved.clone(), ranking, Arc::clone(&sink));
    let saver = saver.map_err(failure::no_thread)?;
    let injector = FaultInjector::new(&args.inject, Arc::clone(&sink), Arc::clone(&pulse));
    let kernels = kernels.map(|kernels| KernelWatch::begin(kernels, &sink));
    let mut attempt = Attempt::begin(&args, (T::UNIT, session.total_units), session.state.clone(), sink, pulse, saver);
    attempt.kernels = kernels;
    attempt.enter_phase(if chosen.compiles_kernels() { Phase::Compiling } else { Phase::Training });
    run_steps(session, attempt, injector, &orders, &args, &reporter, device)
}

/// The state that training continues from.
struct Session<T: Train<B>, B: AutodiffBackend> {
    data: Arc<T::Data>,
    plan: BatchPlan,
    total_units: u64,
    model: T::Model,
    optimizer: AdamW<B::InnerBackend>,
    state: TrainState,
    saved: Option<Saved>,
    /// The adapter changes not reported yet.
    rank_change: Option<RankChange>,
    /// Whether tensors are in host memory.
    on_host: bool,
}

/// Builds data, model and optimizer, fresh or from a checkpoint.
fn open_session<T: Train<B>, B: AutodiffBackend>(
    args: &WorkerArgs,
    device: &B::Device,
    on_host: bool,
    reporter: &MemoryReporter,
    notes: &mut Vec<Note>,
) -> Result<Session<T, B>, Failed> {
    let (preset, seed) = (&args.preset, args.preset.training.seed);
    let (data_config, model_config) = parse_sections::<T>(preset).map_err(failure::invalid_config)?;
    let data = Arc::new(load_data::<T>(&data_config, &model_config, seed).map_err(failure::unreadable_data)?);
    reporter.report_phase(Phase::Starting);
    let (plan, total_units) = batch_plan::<T>(preset, &data, &model_config)?;
    let found = resume::find_checkpoint(args, notes)?;
    B::seed(device, derive_seed(seed, Purpose::Weights, [0; 3]));
    let model = T::init(&model_config, &data, device);
    // Burn initializes weights lazily; this initializes them now, in order.
    let shapes = params::parameter_shapes::<B, _>(&model);
    let paths: Vec<String> = shapes.keys().cloned().collect();
    let rules = ParamRules::new::<T>(preset, &paths).map_err(failure::invalid_config)?;
    notes.extend(rules.frozen_note(&shapes).map(|text| (Level::Info, text)));
    let model = rules.freeze::<B, _>(model);
    let mut optimizer = AdamW::new(preset.optimizer.clone(), rules);
    let fingerprint = T::fingerprint(&data);
    let by_steps = preset.training.steps.filter(|_| preset.training.epochs.is_none());
    let length = by_steps.map(|steps| Length { steps, units: total_units });
    let simd = on_host.then(|| native::level().to_string());
    let classes = T::classes(&data);
    let fresh = TrainState {
        seed,
        length,
        data: fingerprint.clone(),
        classes: classes.clone(),
        simd: simd.clone(),
        ..TrainState::default()
    };
    let Some(loaded) = found else {
        let mut model = model;
        if let Some(mut weights) = T::pretrained(&model_config, &data).map_err(failure::unreadable_data)? {
            model = load_values::<B, _>(model, |path| weights.remove(path), &mut optimizer.masters, device);
        }
        let (state, saved, rank_change) = (fresh, None, None);
        return Ok(Session { data, plan, total_units, model, optimizer, state, saved, rank_change, on_host });
    };
    // A rung with `warm_start` may learn other classes on the same weights.
    if !args.migrate {
        resume::check_classes(&loaded, classes.as_ref())?;
    }
    let restored = resume::restore_checkpoint::<B, _>(&loaded, model, optimizer, args, device, notes)?;
    let resume::Restored { model, optimizer, state, saved, rank_change } = restored;
    let begin = begin_warmup(&preset.optimizer.schedule, &state, notes);
    if state.data.is_some() && fingerprint.is_some() && state.data != fingerprint {
        let text = "the training data changed since this checkpoint: its files, their size or the tokenizer";
        notes.push((Level::Warn, text.to_owned()));
    }
    let length = state.length.filter(|known| Some(known.steps) == by_steps).or(length);
    let total_units = length.map_or(total_units, |length| length.units);
    // A run on the weights of another has computed nothing yet that could differ.
    if state.step > 0 {
        notes.extend(note_of_processor(state.simd.as_deref(), simd.as_deref()));
    }
    let state = TrainState { warmup_from: begin, length, data: fingerprint, classes, simd, ..state };
    if state.seed != seed {
        let text =
            format!("the seed changed from {} to {seed}; the order of the data changes from here on", state.seed);
        notes.push((Level::Warn, text));
    }
    let saved = Some(saved);
    Ok(Session { data, plan, total_units, model, optimizer, state, saved, rank_change, on_host })
}

/// Returns the clock at the start of the warm-up in force; another one than that of the checkpoint begins here.
fn begin_warmup(schedule: &Schedule, state: &TrainState, notes: &mut Vec<Note>) -> u64 {
    let begin = schedule.warmup_begin(state.warmup, state.warmup_from, state.position.samples);
    if begin != state.warmup_from {
        let text = format!("a new warm-up starts here and lasts {:.0} % of the run", schedule.warmup * 100.0);
        notes.push((Level::Info, text));
    }
    begin
}

/// Describes a change of the SIMD level since a checkpoint.
fn note_of_processor(before: Option<&str>, now: Option<&str>) -> Option<Note> {
    let now = now?;
    let Some(before) = before else {
        let text = "the checkpoint is of a version without native operations: sums differ in their last bits";
        return Some((Level::Info, text.to_owned()));
    };
    if before == now {
        return None;
    }
    let text = format!("the processor now computes with {now} instead of {before}: sums differ in their last bits");
    Some((Level::Info, text))
}

/// Describes what happened to adapters, with the validation loss before and after if a lower rank truncated
/// them. Each pass over the validation set is an evaluation with its own time limit.
fn describe_rank_change<T: Train<B>, B: AutodiffBackend>(
    change: RankChange,
    session: &Session<T, B>,
    preset: &Preset,
    sink: &dyn EventSink,
    device: &B::Device,
) -> Result<String, Failed> {
    let RankChange { mut cut, summary, .. } = change;
    if cut.is_empty() {
        return Ok(summary.to_string());
    }
    let Session { data, model, .. } = session;
    let loss = |model: &T::Model| {
        sink.send(Event::Phase { phase: Phase::Evaluating });
        let means =
            evaluate::evaluate_all::<T, B>(model, data, &preset.training, device).map_err(failure::no_thread)?;
        Ok(means.map_or(f64::NAN, |means| means.loss))
    };
    let before = loss(&load_values::<B, _>(model.clone(), |path| cut.remove(path), &mut Masters::new(), device))?;
    let after = loss(model)?;
    Ok(format!("{summary}; validation loss {before:.4} before, {after:.4} after"))
}

/// Runs the training loop.
fn run_steps<T: Train<B>, B: AutodiffBackend>(
    session: Session<T, B>,
    mut attempt: Attempt<'_>,
    mut injector: FaultInjector,
    orders: &Receiver<Order>,
    args: &WorkerArgs,
    reporter: &MemoryReporter,
    device: &B::Device,
) -> Result<DoneReason, Failed> {
    let Session { data, plan, total_units, mut model, mut optimizer, state, on_host, .. } = session;
    let training = &args.preset.training;
    let requests = loader::training_requests(plan, training.seed, state.position, total_units, &args.leave_out);
    let mut loader =
        Loader::<T>::start(&data, training.seed, training.loader, &requests).map_err(failure::no_thread)?;
    let mut phase_log = PhaseLog::begin(T::phases(&data), !on_host, total_units / plan.epoch_units(), &attempt);
    let is_end = |at: Position| args.leave_out.next_step_start(&plan, at).samples >= total_units;
    evaluate_without_steps::<T, B>(&mut attempt, (is_end, total_units), &model, &data, args, device)?;
    while attempt.state.position.samples < total_units {
        if let Some(reason) = attempt.execute_orders(orders, || take_snapshot::<B, _>(&model, &optimizer, on_host))? {
            return Ok(attempt.finish(reason));
        }
        attempt.skip_left_out(args.leave_out.next_step_start(&plan, attempt.state.position));
        if attempt.state.position.samples >= total_units {
            break;
        }
        let begun = Instant::now();
        let (step_plan, number) = (plan.step(attempt.state.position), attempt.begin_step());
        let phase = phase_log.enter(step_plan.epoch, &mut attempt);
        let faults = injector.inject_due(number);
        let settings = StepSettings {
            seed: training.seed,
            step: number,
            nan_loss: faults.nan_loss,
            loss_scale: attempt.state.loss_scale.map(|loss_scale| loss_scale.scale),
            gradient_checkpointing: training.gradient_checkpointing,
        };
        let (verdict, timing) =
            step::run_step::<T, B>(&model, &step_plan, &mut loader, &optimizer.rules, &settings, device)?;
        let lr = attempt.learning_rate(phase, step_plan.after.samples);
        let evaluates = attempt.evaluation_is_due(&step_plan, is_end(step_plan.after));
        match verdict {
            Ok(gradient) => {
                optimizer.observer = (evaluates && args.layers).then(UpdateObserver::default);
                let scales = optimizer.rules.clip_scales(&gradient.norms);
                let updated = optimizer.update::<B, _>(model, gradient.tensors, phase, lr, &scales);
                model = updated.map_err(failure::device_error)?;
                attempt.record_step(&step_plan, gradient.loss, gradient.norm, lr, timing, optimizer.update_counts());
            }
            Err(dropped) => attempt.record_skip(&step_plan, dropped, lr, timing)?,
        }
        reporter.report_phase(Phase::Training);
        clean_memory::<B>(training.memory_cleanup_every, number, device);
        if faults.slow {
            thread::sleep(begun.elapsed() * 9);
        }
        if evaluates {
            let observer = optimizer.observer.take();
            evaluate_step::<T, B>(&mut attempt, &model, &data, args, observer, device)?;
            reporter.report_phase(Phase::Evaluating);
        }
        attempt.enter_phase(Phase::Training);
        if attempt.checkpoint_is_due(step_plan.epoch) {
            attempt.save(|| take_snapshot::<B, _>(&model, &optimizer, on_host))?;
        }
    }
    attempt.make_last_step_durable(|| take_snapshot::<B, _>(&model, &optimizer, on_host))?;
    reporter.report_phase(Phase::Checkpointing);
    Ok(attempt.finish(DoneReason::Finished))
}

/// Releases cached device memory every `every` steps; 0 = never.
fn clean_memory<B: AutodiffBackend>(every: u64, step: u64, device: &B::Device) {
    if every > 0 && step.is_multiple_of(every) {
        B::memory_cleanup(device);
    }
}

/// Evaluates a run whose remaining steps are all left out: no step does.
fn evaluate_without_steps<T: Train<B>, B: AutodiffBackend>(
    attempt: &mut Attempt<'_>,
    (is_end, total_units): (impl Fn(Position) -> bool, u64),
    model: &T::Model,
    data: &Arc<T::Data>,
    args: &WorkerArgs,
    device: &B::Device,
) -> Result<(), Failed> {
    let at = attempt.state.position;
    if at.samples >= total_units || !is_end(at) {
        return Ok(());
    }
    evaluate_step::<T, B>(attempt, model, data, args, None, device)
}

/// Evaluates after a step: loss and metrics, samples, and the layers as the step's update left them.
fn evaluate_step<T: Train<B>, B: AutodiffBackend>(
    attempt: &mut Attempt<'_>,
    model: &T::Model,
    data: &Arc<T::Data>,
    args: &WorkerArgs,
    observer: Option<UpdateObserver<B::InnerBackend>>,
    device: &B::Device,
) -> Result<(), Failed> {
    attempt.enter_phase(Phase::Evaluating);
    let training = &args.preset.training;
    // A measuring run needs the memory of an evaluation, not its result.
    if args.measure {
        let means = evaluate::evaluate_ends::<T, B>(model, data, training, device).map_err(failure::no_thread)?;
        attempt.record_evaluation(means);
        return Ok(());
    }
    let evaluated = evaluate::evaluate_and_sample::<T, B>(model, data, training, device).map_err(failure::no_thread)?;
    let (means, samples) = evaluated.unzip();
    attempt.record_evaluation(means);
    if let Some(samples) = samples {
        attempt.record_samples(samples);
    }
    if let Some(observer) = observer {
        attempt.record_layers(&observer.read().map_err(failure::device_error)?);
    }
    Ok(())
}

/// Returns the division of the run into steps and its length on the clock.
fn batch_plan<T: Task>(preset: &Preset, data: &T::Data, model: &T::ModelConfig) -> Result<(BatchPlan, u64), Failed> {
    let training = &preset.training;
    let epoch_samples = T::len(data, Split::Training) as u64;
    let units = T::units(model);
    if epoch_samples == 0 || units == 0 || training.micro_batch == 0 || training.accumulation == 0 {
        return Err(failure::invalid_config(format!(
            "nothing to train on: {epoch_samples} training samples of {units} {}, {} micro-batches of {}; each must be at \
             least 1",
            T::UNIT,
            training.accumulation,
            training.micro_batch
        )));
    }
    let plan =
        BatchPlan { epoch_samples, units, micro_batch: training.micro_batch, accumulation: training.accumulation };
    match (training.epochs, training.steps) {
        (Some(epochs), _) => Ok((plan, epochs.saturating_mul(plan.epoch_units()))),
        (None, Some(steps)) => Ok((plan, plan.units_of_steps(steps))),
        (None, None) => Err(failure::invalid_config("training has no length; set training.epochs or training.steps")),
    }
}

/// Returns the current weights and moments while training is paused. If they are in host memory, the saver
/// reads them later and training does not wait.
fn take_snapshot<B: AutodiffBackend, M: AutodiffModule<B>>(
    model: &M,
    optimizer: &AdamW<B::InnerBackend>,
    on_host: bool,
) -> Result<Values, Failed> {
    let (mut weights, mut moments) = (TensorReader::default(), TensorReader::default());
    params::collect_parameters::<B::InnerBackend, _>(&model.valid(), &optimizer.masters, &mut weights);
    optimizer.collect_state(&mut moments);
    let read = |reader: TensorReader<B::InnerBackend>| reader.read_all().map_err(failure::device_error);
    let values = move || Ok(Snapshot { model: read(weights)?, optimizer: read(moments)? });
    if on_host {
        return Ok(Box::new(values));
    }
    let snapshot = values()?;
    Ok(Box::new(move || Ok(snapshot)))
}
