//! Runs one worker attempt in this process and collects its events.

use super::marked::Marked;
use super::tiny::Tiny;
use downshift::config::knobs::Preset;
use downshift::protocol::device::DeviceChoice;
use downshift::protocol::worker::{DoneReason, Event, Failed, Order};
use downshift::recipe::interval::Faults;
use downshift::recipe::leave_out::LeaveOut;
use downshift::store::checkpoint;
use downshift::train::job::{EventSink, StepPulse, WorkerArgs};
use downshift::train::registry::Registry;
use downshift::train::tasks::{lm::LanguageModel, search::Search, vision::Vision};
use downshift::train::worker::run_in_process;
use serde_json::{Value, json};
use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Sender, channel},
    },
};

/// Burn's CPU backend has one random generator per process: one attempt at a time.
static EXCLUSIVE: Mutex<()> = Mutex::new(());

/// Keeps other tests from drawing from the generator while the guard is held.
pub fn exclusive() -> MutexGuard<'static, ()> {
    EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn registry() -> Registry {
    Registry::new().with::<Tiny>().with::<Marked>().with::<LanguageModel>().with::<Vision>().with::<Search>()
}

/// 41 samples in steps of 8: an epoch is five full steps and one of a single sample.
pub fn preset(dropout: f64) -> Value {
    json!({
        "data": { "samples": 41 },
        "model": { "hidden": 12, "dropout": dropout },
        "training": { "epochs": 4, "micro_batch": 4, "accumulation": 2, "seed": 7,
                      "loader": { "threads": 2, "prefetch": 3 } },
        "optimizer": { "lr": 0.01, "weight_decay": 0.1, "max_norm": 0.5,
                       "schedule": { "kind": "cosine", "warmup": 0.1, "final": 0.1 } },
        "evaluation": { "every": "1 epoch" },
        "checkpoint": { "every": "never" },
    })
}

/// Sets knobs by path.
pub fn with(mut preset: Value, knobs: &[(&str, Value)]) -> Value {
    for (path, value) in knobs {
        let mut at = &mut preset;
        for key in path.split('.') {
            at = &mut at[key];
        }
        *at = value.clone();
    }
    preset
}

pub fn args(run_dir: &Path, preset: Value) -> WorkerArgs {
    WorkerArgs {
        run_dir: run_dir.to_owned(),
        rung: 0,
        rung_name: "full".into(),
        attempt: 1,
        task: "tiny".into(),
        preset: serde_json::from_value::<Preset>(preset).unwrap(),
        skips_in_a_row: 5,
        layers: true,
        device: DeviceChoice::Cpu,
        from: None,
        require_checkpoint: false,
        migrate: false,
        faults: Faults::default(),
        leave_out: LeaveOut::default(),
        inject: Vec::new(),
        measure: false,
    }
}

/// The events of an attempt and how it ended.
#[derive(Debug)]
pub struct Told {
    pub outcome: Result<DoneReason, Failed>,
    pub events: Vec<Event>,
}

struct Recorder {
    events: Mutex<Vec<Event>>,
    orders: Mutex<Vec<(u64, Order)>>,
    give: Sender<Order>,
}

impl EventSink for Recorder {
    fn send(&self, event: Event) {
        let step = match &event {
            Event::Step(step) => Some(step.step),
            Event::Skipped(skipped) => Some(skipped.step),
            _ => None,
        };
        for (_, order) in self.orders.lock().unwrap().extract_if(.., |(at, _)| step == Some(*at)) {
            self.give.send(order).ok();
        }
        self.events.lock().unwrap().push(event);
    }
}

/// Runs to the end, or until an order sent right after a step takes effect.
#[expect(clippy::needless_pass_by_value, reason = "every test makes its own")]
pub fn live(args: WorkerArgs, orders: &[(u64, Order)]) -> Told {
    let _exclusive = exclusive();
    let (give, take) = channel();
    let recorder = Arc::new(Recorder { events: Mutex::default(), orders: Mutex::new(orders.to_vec()), give });
    let sink: Arc<dyn EventSink> = recorder.clone();
    let outcome = run_in_process(&args, &registry(), &sink, take, Arc::new(StepPulse::default()));
    let events = std::mem::take(&mut *recorder.events.lock().unwrap());
    Told { outcome, events }
}

impl Told {
    /// Returns step number, loss and gradient norm of every step taken.
    pub fn curve(&self) -> Vec<(u64, f64, f64)> {
        let step = |event: &Event| match event {
            Event::Step(step) => Some((step.step, step.loss.unwrap(), step.grad_norm.unwrap())),
            _ => None,
        };
        self.events.iter().filter_map(step).collect()
    }

    pub fn evals(&self) -> Vec<(u64, f64)> {
        let eval = |event: &Event| match event {
            Event::Eval(eval) => Some((eval.step, eval.loss.unwrap())),
            _ => None,
        };
        self.events.iter().filter_map(eval).collect()
    }

    pub fn saved(&self) -> Vec<u64> {
        let saved = |event: &Event| match event {
            Event::Saved(saved) => Some(saved.step),
            _ => None,
        };
        self.events.iter().filter_map(saved).collect()
    }

    pub fn has(&self, wanted: impl Fn(&Event) -> bool) -> bool {
        self.events.iter().any(wanted)
    }
}

/// Returns weights and moments of a checkpoint, as bytes.
pub fn tensors(run_dir: &Path, step: u64) -> (Vec<u8>, Vec<u8>) {
    let mut loaded = checkpoint::load(&run_dir.join(checkpoint::relative_path(step))).unwrap();
    (loaded.files.remove(checkpoint::MODEL).unwrap(), loaded.files.remove(checkpoint::OPTIMIZER).unwrap())
}
