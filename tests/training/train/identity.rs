//! A run that is stopped and resumed, any number of times at any step, equals the uninterrupted run: losses,
//! rates, evaluations, weights, moments, counters. And for everything a resume restores: omitting it is noticed.

use super::harness::{Told, args, live, preset, tensors, with};
use downshift::protocol::inject::Inject;
use downshift::protocol::worker::{DoneReason, Event, Order};
use downshift::store::checkpoint::{self, Contents, STATE, state::TrainState};
use downshift::train::job::WorkerArgs;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::Path};
use tempfile::TempDir;

const STOP: Order = Order::Stop { checkpoint: true };

/// Everything about a run that must not depend on how often it was resumed.
#[derive(Debug, PartialEq)]
struct Whole {
    /// Loss, gradient norm and rate of each step, in order.
    steps: Vec<(f64, f64, f64)>,
    evals: Vec<(u64, f64)>,
    tensors: (Vec<u8>, Vec<u8>),
    state: TrainState,
}

fn steps(told: &Told) -> Vec<(f64, f64, f64)> {
    let step = |event: &Event| match event {
        Event::Step(step) => Some((step.loss.unwrap(), step.grad_norm.unwrap(), step.lr.unwrap())),
        _ => None,
    };
    told.events.iter().filter_map(step).collect()
}

/// Runs to the end, resumed after each of these steps; `forget` edits the checkpoint each time.
fn run(preset: &Value, stops: &[u64], forget: &dyn Fn(&Path)) -> Whole {
    let dir = TempDir::new().unwrap();
    let (mut all, mut evals) = (Vec::new(), Vec::new());
    for stop in stops {
        let told = live(args(dir.path(), preset.clone()), &[(*stop, STOP)]);
        assert_eq!((told.outcome.as_ref(), told.saved().last()), (Ok(&DoneReason::Stopped), Some(stop)));
        all.extend(steps(&told));
        evals.extend(told.evals());
        forget(dir.path());
    }
    let told = live(args(dir.path(), preset.clone()), &[]);
    assert_eq!(told.outcome, Ok(DoneReason::Finished));
    all.extend(steps(&told));
    evals.extend(told.evals());
    let state = state(dir.path());
    Whole { steps: all, evals, tensors: tensors(dir.path(), state.step), state }
}

/// Returns the state in the newest checkpoint, without wall-clock times.
fn state(run: &Path) -> TrainState {
    let loaded = checkpoint::newest_valid(run).0.unwrap();
    let state: TrainState = serde_json::from_slice(&loaded.files[STATE]).unwrap();
    TrainState { trained_s: 0.0, evaluated_at_s: 0.0, ..state }
}

#[test]
fn any_run_can_be_resumed_any_number_of_times() {
    let cases: [(&str, Vec<(&str, Value)>); 9] = [
        ("dropout, augmentation, accumulation, warm-up, ragged batches", vec![]),
        ("no accumulation", vec![("training.accumulation", json!(1))]),
        ("a ragged batch of a whole and a part", vec![("training.accumulation", json!(3))]),
        ("stopped within the warm-up", vec![("optimizer.schedule.warmup", json!(0.7))]),
        ("an evaluation after each step", vec![("evaluation.every", json!("1 step"))]),
        (
            "a straight line, gradients unclipped",
            vec![("optimizer.schedule.kind", json!("linear")), ("optimizer.max_norm", json!(null))],
        ),
        ("activations recomputed", vec![("training.gradient_checkpointing", json!(true))]),
        (
            "memory given back, other loaders",
            vec![
                ("training.memory_cleanup_every", json!(1)),
                ("training.loader", json!({ "threads": 3, "prefetch": 0 })),
            ],
        ),
        ("saves on the way", vec![("checkpoint.every", json!("2 steps"))]),
    ];
    for (name, knobs) in cases {
        let preset = with(preset(0.3), &knobs);
        let whole = run(&preset, &[], &|_| ());
        let last = whole.state.step;
        assert_eq!(whole.steps.len() as u64, last, "{name}");
        // Mid-epoch, before and after an epoch boundary, on it, twice in a row, just before the end.
        let epoch = last / 4;
        for stops in [vec![1], vec![epoch - 1, epoch, epoch + 1], vec![2, 3, 2 * epoch, last - 1]] {
            assert_eq!(run(&preset, &stops, &|_| ()), whole, "{name}: stopped at {stops:?}");
        }
    }
}

/// Stops after step 9 and applies `forget` to the checkpoint; returns that run and the uninterrupted one.
fn with_and_without(dropout: f64, forget: &dyn Fn(&Path)) -> (Whole, Whole) {
    let preset = preset(dropout);
    (run(&preset, &[9], forget), run(&preset, &[], &|_| ()))
}

#[test]
fn nothing_forgotten_nothing_changed() {
    let (resumed, whole) = with_and_without(0.3, &|run| rewrite(run, |_| ()));
    assert_eq!(resumed, whole, "the control of the controls: rewriting the checkpoint alone changes nothing");
}

#[test]
fn a_forgotten_moment_is_noticed() {
    for (name, suffix) in [("first", ".exp_avg"), ("second", ".exp_avg_sq")] {
        let (resumed, whole) = with_and_without(0.3, &|run| forget_moments(run, suffix));
        assert_eq!(resumed.steps[..10], whole.steps[..10], "{name}: the next loss is of the same weights");
        assert_ne!(resumed.steps, whole.steps, "{name} moment");
        assert_ne!(resumed.tensors, whole.tensors, "{name} moment");
    }
}

#[test]
fn a_forgotten_optimizer_time_is_noticed() {
    let (resumed, whole) = with_and_without(0.3, &|run| edit(run, "/optimizer_time", &json!(0)));
    assert_eq!(resumed.steps[..10], whole.steps[..10]);
    assert_ne!(resumed.steps, whole.steps);
}

#[test]
fn a_forgotten_data_position_is_noticed() {
    // The clock stays, so the rates match the uninterrupted run: only the samples differ.
    let (resumed, whole) = with_and_without(0.0, &|run| edit(run, "/position/offset", &json!(0)));
    assert_eq!(resumed.steps[9].2.to_bits(), whole.steps[9].2.to_bits(), "the rate");
    assert_ne!(resumed.steps[9].0.to_bits(), whole.steps[9].0.to_bits(), "the loss of the very next step");
    let (other_epoch, whole) = with_and_without(0.0, &|run| edit(run, "/position/epoch", &json!(0)));
    assert_ne!(other_epoch.steps[9].0.to_bits(), whole.steps[9].0.to_bits(), "the order of another epoch");
}

#[test]
fn a_forgotten_random_stream_is_noticed() {
    // Draws on the device depend on the step number and on nothing else.
    let forget = |run: &Path| edit(run, "/step", &json!(8));
    let (resumed, whole) = with_and_without(0.3, &forget);
    assert_ne!(resumed.steps[9].0.to_bits(), whole.steps[9].0.to_bits(), "the loss of the very next step");
    let (resumed, whole) = with_and_without(0.0, &forget);
    assert_eq!(resumed.steps, whole.steps, "without dropout nothing is drawn: it was the stream alone");
}

#[test]
fn a_forgotten_schedule_is_noticed() {
    // The clock restarts, the position in the epoch does not.
    let (resumed, whole) = with_and_without(0.0, &|run| edit(run, "/position/samples", &json!(0)));
    assert_eq!(resumed.steps[9].0.to_bits(), whole.steps[9].0.to_bits(), "the next loss is of the same samples");
    assert_ne!(resumed.steps[9].2.to_bits(), whole.steps[9].2.to_bits(), "at another rate");
    assert_ne!(resumed.steps[10].0.to_bits(), whole.steps[10].0.to_bits(), "which the loss after that shows");
}

#[test]
fn a_forgotten_warm_up_start_is_noticed() {
    let rates = |forget: bool| {
        let dir = TempDir::new().unwrap();
        let longer = with(preset(0.0), &[("optimizer.schedule.warmup", json!(0.4))]);
        live(args(dir.path(), preset(0.0)), &[(9, STOP)]);
        let one = live(args(dir.path(), longer.clone()), &[(12, STOP)]);
        if forget {
            edit(dir.path(), "/warmup_from", &json!(0));
        }
        let two = live(args(dir.path(), longer), &[]);
        steps(&one).into_iter().chain(steps(&two)).map(|step| step.2).collect::<Vec<_>>()
    };
    let whole = rates(false);
    assert!(whole[..4].is_sorted() && whole[0] < 0.002, "a longer warm-up is a new one from the shift on: {whole:?}");
    assert_ne!(rates(true), whole);
}

#[test]
fn forgotten_skip_counters_are_noticed() {
    // Five in a row end a worker; two of them come before the stop, three after it.
    let end = |forget: &[(&str, Value)]| {
        let dir = TempDir::new().unwrap();
        let struck = |faults: &str| {
            let mut struck = args(dir.path(), preset(0.3));
            struck.inject = Inject::parse_list(faults).unwrap();
            struck
        };
        live(struck("nan@8-9"), &[(9, STOP)]);
        for (path, value) in forget {
            edit(dir.path(), path, value);
        }
        let told = live(struck("nan@10-12"), &[]);
        (told.outcome.map_err(|failed| (failed.class.exit_code(), failed.step)), state(dir.path()).skipped)
    };
    assert_eq!(end(&[]).0, Err((12, Some(12))));
    assert_eq!(end(&[("/skips_in_a_row", json!(0))]), (Ok(DoneReason::Finished), 5));
    let forgotten = end(&[("/skips_in_a_row", json!(0)), ("/skipped", json!(0))]);
    assert_eq!(forgotten, (Ok(DoneReason::Finished), 3), "the count of the whole run");
}

#[test]
fn a_forgotten_best_evaluation_is_noticed() {
    let (resumed, whole) = with_and_without(0.3, &|run| edit(run, "/best_eval_loss", &json!(1e-9)));
    assert_eq!(resumed.steps, whole.steps);
    assert_ne!(resumed.state, whole.state);
}

/// Sets a value in the newest checkpoint's state.
fn edit(run: &Path, pointer: &str, value: &Value) {
    rewrite(run, |files| {
        let state = files.get_mut(STATE).unwrap();
        let mut json: Value = serde_json::from_slice(state).unwrap();
        let old = json.pointer_mut(pointer).unwrap();
        assert_ne!(old, value, "{pointer}: this forgets nothing");
        *old = value.clone();
        *state = serde_json::to_vec(&json).unwrap();
    });
}

/// Zeroes the moments of this kind in the newest checkpoint.
fn forget_moments(run: &Path, suffix: &str) {
    rewrite(run, |files| {
        let bytes = files.get_mut(checkpoint::OPTIMIZER).unwrap();
        let (header, metadata) = SafeTensors::read_metadata(bytes).unwrap();
        for name in SafeTensors::deserialize(&bytes.clone()).unwrap().names() {
            if name.ends_with(suffix) {
                let (start, end) = metadata.info(name).unwrap().data_offsets;
                bytes[8 + header + start..8 + header + end].fill(0);
            }
        }
    });
}

/// Rewrites the newest checkpoint with other content: bytes that verify, for the step and clock in the state.
pub fn rewrite(run: &Path, edit: impl Fn(&mut BTreeMap<String, Vec<u8>>)) {
    let mut loaded = checkpoint::newest_valid(run).0.unwrap();
    edit(&mut loaded.files);
    let files: Vec<(&str, &[u8])> =
        loaded.files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let state: TrainState = serde_json::from_slice(&loaded.files[STATE]).unwrap();
    let build = &loaded.manifest.build;
    checkpoint::remove(run, loaded.manifest.step).unwrap();
    let contents = Contents { step: state.step, samples: state.position.samples, build, files: &files };
    checkpoint::write(run, &contents).unwrap();
}

#[test]
fn a_measured_attempt_trains_the_same_and_evaluates_fewer_samples() {
    let life = |measure| {
        let dir = TempDir::new().unwrap();
        live(WorkerArgs { measure, ..args(dir.path(), preset(0.0)) }, &[])
    };
    let (usual, measured) = (life(false), life(true));
    assert_eq!(usual.curve(), measured.curve());
    let steps = |told: &Told| told.evals().into_iter().map(|(step, _)| step).collect::<Vec<_>>();
    assert_eq!((steps(&usual).len(), steps(&usual)), (4, steps(&measured)));
    assert!(usual.evals().iter().zip(&measured.evals()).all(|(whole, ends)| whole != ends), "{measured:?}");
}
