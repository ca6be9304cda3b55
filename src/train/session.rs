//! One life of training, from top to bottom: data, model, resume, loop.
//!
//! Every step boundary handles, in this order: orders, the step, evaluation if due, a checkpoint if due. All of
//! it is a function of the state and the knobs, so a life resumed from a checkpoint does exactly what an
//! uninterrupted one would have done.

mod life;
mod rhythm;

use super::device::Place;
use super::evaluate;
use super::groups::Plan;
use super::loader::{self, Loader};
use super::lora::refit::Refit;
use super::memory::Gauge;
use super::optimizer::{AdamW, kept::Masters};
use super::params::{self, Reading};
use super::pour::pour;
use super::registry;
use super::resume::{self, Note};
use super::saver::{Saver, Snapshot, Values};
use super::step::{self, Moment};
use super::strike::Strikes;
use super::task::{Split, Task, Train, load};
use super::worker::{Job, Sink, WorkerArgs, failure};
use crate::config::knobs::Preset;
use crate::protocol::worker::{DoneReason, Event, Failed, Hello, Level, Order, PROTOCOL, Phase, Saved};
use crate::recipe::{
    batch::BatchPlan,
    seed::{Purpose, derive},
};
use crate::store::checkpoint::state::{Length, TrainState};
use burn::module::{AutodiffModule, Module};
use burn::tensor::backend::AutodiffBackend;
use life::Life;
use std::{
    sync::{Arc, mpsc::Receiver},
    thread,
    time::Instant,
};

/// Trains until the run is complete or a stop is requested.
///
/// # Errors
/// Returns the reason when training cannot continue.
pub fn train<T: Train<B>, B: AutodiffBackend>(job: Job, device: &B::Device) -> Result<DoneReason, Failed> {
    let Job { args, device: chosen, sink, orders, pulse } = job;
    let mut notes: Vec<Note> = chosen.notes.iter().map(|text| (Level::Info, text.clone())).collect();
    let on_host = chosen.place == Place::Cpu;
    let gauge = Gauge::new(args.measure, &sink);
    let mut session = open::<T, B>(&args, device, on_host, &gauge, &mut notes)?;
    gauge.mark(Phase::Starting);
    let scale = session.state.loss_scale.unwrap_or_default();
    session.state.loss_scale = params::is_half::<B, _>(&session.model).then_some(scale);
    sink.send(Event::Hello(Hello {
        protocol: PROTOCOL,
        build: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        device: chosen.name.clone(),
        backend: chosen.backend(&args.preset.training),
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
    if let Some(refit) = session.refit.take() {
        let text = refit_note::<T, B>(refit, &session, &args.preset, &*sink, device)?;
        sink.send(Event::Note { level: Level::Info, text });
    }
    let saver =
        Saver::start(args.run_dir.clone(), session.saved.clone(), Arc::clone(&sink)).map_err(failure::no_thread)?;
    let strikes = Strikes::new(&args.inject, Arc::clone(&sink), Arc::clone(&pulse));
    let mut life = Life::begin(&args, session.state.clone(), sink, pulse, saver);
    life.turn_to(if chosen.compiles() { Phase::Compiling } else { Phase::Training });
    learn(session, life, strikes, &orders, &args, &gauge, device)
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
    refit: Option<Refit>,
    /// Whether tensors are in host memory.
    on_host: bool,
}

/// Builds data, model and optimizer, fresh or from a checkpoint.
fn open<T: Train<B>, B: AutodiffBackend>(
    args: &WorkerArgs,
    device: &B::Device,
    on_host: bool,
    gauge: &Gauge,
    notes: &mut Vec<Note>,
) -> Result<Session<T, B>, Failed> {
    let (preset, seed) = (&args.preset, args.preset.training.seed);
    let (data_config, model_config) =
        registry::sections::<T>(preset).map_err(|problem| failure::config(problem.to_string()))?;
    let data = Arc::new(load::<T>(&data_config, &model_config, seed).map_err(|error| failure::data(&error))?);
    gauge.mark(Phase::Starting);
    let (plan, total_units) = plan::<T>(preset, &data, &model_config)?;
    let found = resume::find(args, notes)?;
    B::seed(device, derive(seed, Purpose::Weights, [0; 3]));
    let model = T::init(&model_config, &data, device);
    // Burn initializes weights lazily; this initializes them now, in order.
    let shapes = params::shapes::<B, _>(&model);
    let paths: Vec<String> = shapes.keys().cloned().collect();
    let groups = Plan::new::<T>(preset, &paths).map_err(failure::config)?;
    notes.extend(groups.note(&shapes).map(|text| (Level::Info, text)));
    let model = groups.freeze::<B, _>(model);
    let mut optimizer = AdamW::new(preset.optimizer.clone(), groups);
    let fingerprint = T::fingerprint(&data);
    let by_steps = preset.training.steps.filter(|_| preset.training.epochs.is_none());
    let length = by_steps.map(|steps| Length { steps, units: total_units });
    let fresh = TrainState { seed, length, data: fingerprint.clone(), ..TrainState::default() };
    let Some(loaded) = found else {
        let mut model = model;
        if let Some(mut weights) = T::pretrained(&model_config, &data).map_err(|error| failure::data(&error))? {
            model = pour::<B, _>(model, |path| weights.remove(path), &mut optimizer.masters, device);
        }
        let (state, saved, refit) = (fresh, None, None);
        return Ok(Session { data, plan, total_units, model, optimizer, state, saved, refit, on_host });
    };
    let restored = resume::restore::<B, _>(&loaded, model, optimizer, args, device, notes)?;
    let resume::Restored { model, optimizer, state, saved, refit } = restored;
    let schedule = &preset.optimizer.schedule;
    let at = state.position.samples;
    let begin = schedule.warmup_begin(state.warmup, state.warmup_from, at);
    if begin != state.warmup_from {
        let text = format!("a new warm-up begins here, for {:.0} % of the run", schedule.warmup * 100.0);
        notes.push((Level::Info, text));
    }
    if state.data.is_some() && fingerprint.is_some() && state.data != fingerprint {
        let text = "the data read otherwise than before this checkpoint: a source or its tokenizer was replaced";
        notes.push((Level::Warn, text.to_owned()));
    }
    let length = state.length.filter(|known| Some(known.steps) == by_steps).or(length);
    let total_units = length.map_or(total_units, |length| length.units);
    let state = TrainState { warmup_from: begin, length, data: fingerprint, ..state };
    if state.seed != seed {
        let text = format!("the seed changes from {} to {seed}: another order of the data from here on", state.seed);
        notes.push((Level::Warn, text));
    }
    let saved = Some(saved);
    Ok(Session { data, plan, total_units, model, optimizer, state, saved, refit, on_host })
}

/// Describes what happened to adapters, with the validation loss before and after if a lower rank truncated
/// them. Each pass over the validation set is an evaluation with its own time limit.
fn refit_note<T: Train<B>, B: AutodiffBackend>(
    refit: Refit,
    session: &Session<T, B>,
    preset: &Preset,
    sink: &dyn Sink,
    device: &B::Device,
) -> Result<String, Failed> {
    let Refit { mut cut, text, .. } = refit;
    if cut.is_empty() {
        return Ok(text);
    }
    let Session { data, model, .. } = session;
    let loss = |model: &T::Model| {
        sink.send(Event::Phase { phase: Phase::Evaluating });
        let means = evaluate::measure::<T, B>(model, data, &preset.training, device).map_err(failure::no_thread)?;
        Ok(means.map_or(f64::NAN, |means| means.loss))
    };
    let before = loss(&pour::<B, _>(model.clone(), |path| cut.remove(path), &mut Masters::new(), device))?;
    let after = loss(model)?;
    Ok(format!("{text}; validation loss {before:.4} before, {after:.4} after"))
}

/// Runs the training loop.
fn learn<T: Train<B>, B: AutodiffBackend>(
    session: Session<T, B>,
    mut life: Life<'_>,
    mut strikes: Strikes,
    orders: &Receiver<Order>,
    args: &WorkerArgs,
    gauge: &Gauge,
    device: &B::Device,
) -> Result<DoneReason, Failed> {
    let Session { data, plan, total_units, mut model, mut optimizer, state, on_host, .. } = session;
    let (training, knobs) = (&args.preset.training, &args.preset.optimizer);
    let requests = loader::training(plan, training.seed, state.position, total_units, &args.leave_out);
    let mut loader =
        Loader::<T>::start(&data, training.seed, training.loader, &requests).map_err(failure::no_thread)?;
    while life.state.position.samples < total_units {
        if let Some(reason) = life.obey(orders, || snapshot::<B, _>(&model, &optimizer, on_host))? {
            return Ok(life.done(reason));
        }
        life.pass_over(args.leave_out.next(&plan, life.state.position));
        if life.state.position.samples >= total_units {
            break;
        }
        let begun = Instant::now();
        let (step_plan, number) = (plan.step(life.state.position), life.begin_step());
        let suffering = strikes.at(number);
        let moment = Moment {
            seed: training.seed,
            step: number,
            poisoned: suffering.poisoned,
            loss_scale: life.state.loss_scale.map(|loss_scale| loss_scale.scale),
            gradient_checkpointing: training.gradient_checkpointing,
        };
        let (verdict, timing) = step::take::<T, B>(&model, &step_plan, &mut loader, &optimizer.plan, &moment, device)?;
        let lr = knobs.schedule.lr_warming(knobs.lr, step_plan.after.samples, total_units, life.state.warmup_from);
        match verdict {
            Ok(gradient) => {
                let (loss, norm) = (gradient.loss, gradient.norm);
                let scales = optimizer.plan.scales(&gradient.norms);
                let updated = optimizer.update::<B, _>(model, gradient.tensors, lr, &scales);
                model = updated.map_err(|error| failure::device(&error.to_string()))?;
                life.took(&step_plan, loss, norm, lr, timing, optimizer.time());
            }
            Err(dropped) => life.skipped(&step_plan, dropped, lr, timing)?,
        }
        gauge.mark(Phase::Training);
        if training.memory_cleanup_every > 0 && number.is_multiple_of(training.memory_cleanup_every) {
            B::memory_cleanup(device);
        }
        if suffering.slowed {
            thread::sleep(begun.elapsed() * 9);
        }
        if life.evaluation_is_due(step_plan.epoch, total_units) {
            life.turn_to(Phase::Evaluating);
            // A measuring run needs the memory of an evaluation, not its result.
            let pass = if args.measure { evaluate::try_out::<T, B> } else { evaluate::measure::<T, B> };
            life.evaluated(pass(&model, &data, training, device).map_err(failure::no_thread)?);
            gauge.mark(Phase::Evaluating);
        }
        life.turn_to(Phase::Training);
        if life.checkpoint_is_due(step_plan.epoch) {
            life.save(|| snapshot::<B, _>(&model, &optimizer, on_host))?;
        }
    }
    life.make_last_step_durable(|| snapshot::<B, _>(&model, &optimizer, on_host))?;
    gauge.mark(Phase::Checkpointing);
    Ok(life.done(DoneReason::Finished))
}

/// Returns the division of the run into steps and its length on the clock.
fn plan<T: Task>(preset: &Preset, data: &T::Data, model: &T::ModelConfig) -> Result<(BatchPlan, u64), Failed> {
    let training = &preset.training;
    let epoch_samples = T::len(data, Split::Training) as u64;
    let units = T::units(model);
    if epoch_samples == 0 || units == 0 || training.micro_batch == 0 || training.accumulation == 0 {
        return Err(failure::config(format!(
            "there is nothing to train on: {epoch_samples} training samples of {units} {}, in {} micro-batches of {}; \
             all of these must be at least 1",
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
        (None, None) => Err(failure::config("training: no length is given; set training.epochs or training.steps")),
    }
}

/// Returns the current weights and moments while training is paused. If they are in host memory, the saver
/// reads them later and training does not wait.
fn snapshot<B: AutodiffBackend, M: AutodiffModule<B>>(
    model: &M,
    optimizer: &AdamW<B::InnerBackend>,
    on_host: bool,
) -> Result<Values, Failed> {
    let (mut weights, mut moments) = (Reading::default(), Reading::default());
    params::read_into::<B::InnerBackend, _>(&model.valid(), &optimizer.masters, &mut weights);
    optimizer.read_into(&mut moments);
    let read =
        |reading: Reading<B::InnerBackend>| reading.finish().map_err(|error| failure::device(&error.to_string()));
    let values = move || Ok(Snapshot { model: read(weights)?, optimizer: read(moments)? });
    if on_host {
        return Ok(Box::new(values));
    }
    let snapshot = values()?;
    Ok(Box::new(move || Ok(snapshot)))
}
