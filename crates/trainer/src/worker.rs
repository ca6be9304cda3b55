//! The worker process.
//!
//! ```text
//!            stdin ─ orders thread ── orders ──▶ ┌─────────────┐
//! keeper                                         │ main thread │ ── events ──▶ writer thread ── private stdout
//!            panic of any thread ── hook ──┐     └─────────────┘
//!                                          └──▶ `failed` line, failure.json, _exit with the class's code
//! ```
//! The real stdout carries only events; fd 1 points at stderr. `worker.lock` is held (flock) for the lifetime
//! of the process, so there is never a second worker. The worker ends when either end stops listening, or on
//! SIGTERM: it saves at the next step boundary and exits within 5 s.

mod event_writer;
mod failure_record;
mod lock;
mod orders;
mod panic_hook;

use super::device;
use super::exit::exit_now;
use super::failure;
use super::job::{EventSink, StepPulse, TrainingJob, WorkerArgs};
use super::native;
use super::registry::Registry;
use downshift_core::config::knobs::Preset;
use downshift_core::config::run::OwnedSections;
use downshift_core::protocol::exit_code::STOPPED;
use downshift_core::protocol::worker::{DoneReason, Event, Failed, FailureClass, Order};
use downshift_core::store::checkpoint;
use orders::OrderForwarder;
use std::{
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    time::Duration,
};

pub use failure_record::{FAILURE_FILE, FailureRecord};
pub use lock::LOCK_FILE;

/// Runs the training process from start to exit.
pub fn run_worker(args: &WorkerArgs, registry: &Registry) -> ! {
    let pulse = Arc::new(StepPulse::default());
    let stdout = match event_writer::claim_stdout() {
        Ok(stdout) => stdout,
        Err(error) => {
            panic_hook::write_stderr(&format!("the worker cannot claim its stdout: {error}\n"));
            exit_now(FailureClass::Panic.exit_code());
        }
    };
    panic_hook::install_hook(&stdout, args, Arc::clone(&pulse));
    native::join_pool();
    let (sender, orders) = channel();
    let forwarder = OrderForwarder::new(sender, !args.measure);
    let writer = match event_writer::EventWriter::start(&stdout, forwarder.clone()) {
        Ok(writer) => writer,
        Err(error) => exit_failed(args, &failure::no_thread(error)),
    };
    let sink: Arc<dyn EventSink> = Arc::new(writer);
    let locked = lock::acquire_lock(&args.run_dir).and_then(|lock| {
        forwarder
            .watch_signals()
            .and_then(|()| forwarder.watch_stdin(Arc::clone(&sink)))
            .map_err(failure::no_thread)?;
        Ok(lock)
    });
    let outcome = match &locked {
        Ok(_lock) => {
            failure_record::remove_record(&args.run_dir);
            checkpoint::clean(&args.run_dir);
            run_in_process(args, registry, &sink, orders, pulse)
        }
        Err(failed) => {
            sink.send(Event::Failed(failed.clone()));
            Err(failed.clone())
        }
    };
    sink.flush(Duration::from_secs(5));
    match outcome {
        Ok(DoneReason::Finished) => exit_now(0),
        Ok(DoneReason::Stopped) => exit_now(STOPPED),
        Err(failed) => exit_failed(args, &failed),
    }
}

fn exit_failed(args: &WorkerArgs, failed: &Failed) -> ! {
    failure_record::write_record(args, failed);
    panic_hook::write_stderr(&format!("{}: {}\n", failed.class, failed.message));
    exit_now(failed.class.exit_code())
}

/// Runs one attempt in this process, without lock, hook or file descriptors. The last event is
/// `done` or `failed`.
///
/// # Errors
/// Returns the reason when training had to end.
pub fn run_in_process(
    args: &WorkerArgs,
    registry: &Registry,
    sink: &Arc<dyn EventSink>,
    orders: Receiver<Order>,
    pulse: Arc<StepPulse>,
) -> Result<DoneReason, Failed> {
    let outcome = train_task(args, registry, Arc::clone(sink), orders, pulse);
    if let Err(failed) = &outcome {
        sink.send(Event::Failed(failed.clone()));
    }
    outcome
}

fn train_task(
    args: &WorkerArgs,
    registry: &Registry,
    sink: Arc<dyn EventSink>,
    orders: Receiver<Order>,
    pulse: Arc<StepPulse>,
) -> Result<DoneReason, Failed> {
    let task = registry.get(&args.task).ok_or_else(|| {
        failure::invalid_config(format!("unknown task `{}`; known tasks: {}", args.task, registry.names().join(", ")))
    })?;
    let Preset { data, model, .. } = &args.preset;
    let sections = OwnedSections { data, model, base: &args.run_dir };
    if let Some(problem) = task.resolve(sections).1.first() {
        return Err(failure::invalid_config(problem));
    }
    let training = &args.preset.training;
    let device = device::choose_device(&args.device, training.precision).map_err(failure::invalid_config)?;
    let kernels = device::configure_kernel_caches(&device, &args.run_dir, &args.preset);
    task.train(TrainingJob { args: args.clone(), device, kernels, sink, orders, pulse })
}
