//! A run that is stopped or dies at any step and resumes equals the uninterrupted run, to the last bit.

use super::harness::{args, live, preset, tensors, with};
use super::identity::rewrite;
use downshift::protocol::worker::{DoneReason, Event, Level, Order};
use downshift::recipe::leave_out::LeaveOut;
use downshift::store::checkpoint::{self, Contents, STATE, state::Row};
use downshift::train::job::WorkerArgs;
use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

const STEPS: u64 = 24;
const STOP: Order = Order::Stop { checkpoint: true };

#[test]
fn a_run_stopped_at_any_step_and_resumed_is_bit_identical() {
    for dropout in [0.0, 0.3] {
        let whole_dir = TempDir::new().unwrap();
        let whole = live(args(whole_dir.path(), preset(dropout)), &[]);
        assert_eq!(whole.outcome, Ok(DoneReason::Finished));
        assert_eq!(whole.curve().len() as u64, STEPS);
        let first = whole.curve()[0].1;
        let last = whole.evals().last().unwrap().1;
        assert!(last < first * 0.9, "it does not learn: {first} to {last}");
        for stop in 1..STEPS {
            let dir = TempDir::new().unwrap();
            let one = live(args(dir.path(), preset(dropout)), &[(stop, STOP)]);
            assert_eq!((one.outcome.as_ref(), one.saved()), (Ok(&DoneReason::Stopped), vec![stop]));
            let two = live(args(dir.path(), preset(dropout)), &[]);
            assert_eq!(two.outcome, Ok(DoneReason::Finished));
            let joined: Vec<_> = one.curve().into_iter().chain(two.curve()).collect();
            assert_eq!(joined, whole.curve(), "dropout {dropout}, stopped at {stop}");
            let evals: Vec<_> = one.evals().into_iter().chain(two.evals()).collect();
            assert_eq!(evals, whole.evals());
            assert_eq!(tensors(dir.path(), STEPS), tensors(whole_dir.path(), STEPS));
        }
    }
}

#[test]
fn the_best_evaluated_weights_are_saved_without_affecting_training() {
    let (plain_dir, dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let plain = live(args(plain_dir.path(), preset(0.3)), &[]);
    let knobs = with(preset(0.3), &[("checkpoint.every", json!("17 steps"))]);
    let life = live(args(dir.path(), knobs), &[]);
    assert_eq!((life.curve(), life.evals()), (plain.curve(), plain.evals()));
    assert_eq!(tensors(dir.path(), STEPS), tensors(plain_dir.path(), STEPS));
    let evals: Vec<_> = life
        .events
        .iter()
        .filter_map(|event| if let Event::Eval(eval) = event { Some((eval.step, eval.loss.unwrap())) } else { None })
        .collect();
    let saves: Vec<_> = life
        .events
        .iter()
        .filter_map(|event| if let Event::Saved(saved) = event { Some((saved.step, saved.eval_loss)) } else { None })
        .collect();
    // Every evaluation lower than all before it, however soon after the last save.
    let mut lowest = f64::INFINITY;
    for (step, loss) in &evals {
        if *loss < lowest {
            assert!(saves.iter().any(|(saved, _)| saved == step), "{step} is the best so far: {saves:?} of {evals:?}");
            lowest = *loss;
        }
    }
    for (step, loss) in saves {
        let own = evals.iter().find(|(at, _)| *at == step).map(|(_, loss)| *loss);
        assert_eq!(loss, own, "step {step}");
    }
}

#[test]
fn a_run_whose_last_steps_are_left_out_ends_with_an_evaluation() {
    let dir = TempDir::new().unwrap();
    let without_end = || WorkerArgs {
        leave_out: LeaveOut::new(vec![(140, 164)]),
        ..args(dir.path(), with(preset(0.0), &[("evaluation.every", json!("1000 steps"))]))
    };
    let life = live(without_end(), &[]);
    let last = life.curve().last().unwrap().0;
    assert_eq!((life.outcome.as_ref(), last < STEPS), (Ok(&DoneReason::Finished), true));
    assert_eq!(life.evals().iter().map(|eval| eval.0).collect::<Vec<_>>(), [last]);
    // The same where nothing is left to do after a checkpoint.
    let dir_of_stop = TempDir::new().unwrap();
    let preset = || with(preset(0.0), &[("evaluation.every", json!("1000 steps"))]);
    assert_eq!(live(args(dir_of_stop.path(), preset()), &[(19, STOP)]).saved(), [19]);
    let rest = WorkerArgs { leave_out: LeaveOut::new(vec![(100, 164)]), ..args(dir_of_stop.path(), preset()) };
    let life = live(rest, &[]);
    assert_eq!((life.outcome.as_ref(), life.curve()), (Ok(&DoneReason::Finished), vec![]));
    assert_eq!(life.evals().iter().map(|eval| eval.0).collect::<Vec<_>>(), [19]);
}

#[test]
fn the_best_is_the_best_on_disk() {
    let dir = TempDir::new().unwrap();
    let knobs = || with(preset(0.0), &[("checkpoint.every", json!("17 steps"))]);
    live(args(dir.path(), knobs()), &[(7, STOP)]);
    // A loss lower than any to come, from weights that were never saved.
    rewrite(dir.path(), |files| {
        let mut state: Value = serde_json::from_slice(&files[STATE]).unwrap();
        state["best_eval_loss"] = json!(1e-9);
        files.insert(STATE.to_owned(), serde_json::to_vec(&state).unwrap());
    });
    let life = live(args(dir.path(), knobs()), &[]);
    let lowest = life.evals().into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    let best = |event: &Event| matches!(event, Event::Saved(saved) if saved.eval_loss == Some(lowest.1));
    assert!(life.has(best), "{lowest:?}: {:?}", life.saved());
}

#[test]
fn a_run_that_dies_between_checkpoints_redoes_the_same_steps() {
    let (whole_dir, dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let whole = live(args(whole_dir.path(), preset(0.3)), &[]);
    live(args(dir.path(), preset(0.3)), &[(5, STOP)]);
    let lost = live(args(dir.path(), preset(0.3)), &[(13, Order::Stop { checkpoint: false })]);
    assert_eq!(lost.curve()[..], whole.curve()[5..13]);
    let redone = live(args(dir.path(), preset(0.3)), &[]);
    assert_eq!(redone.curve()[..], whole.curve()[5..]);
    assert_eq!(tensors(dir.path(), STEPS), tensors(whole_dir.path(), STEPS));
}

#[test]
fn a_checkpoint_with_nan_counts_as_damaged() {
    for file in [checkpoint::MODEL, checkpoint::OPTIMIZER] {
        let dir = TempDir::new().unwrap();
        for step in [6, 12] {
            live(args(dir.path(), preset(0.0)), &[(step, STOP)]);
        }
        // The last four bytes of the file are its last number.
        rewrite(dir.path(), |files| {
            let bytes = files.get_mut(file).unwrap();
            let last = bytes.len() - 4;
            bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
        });
        checkpoint::verify(&dir.path().join(checkpoint::relative_path(12))).unwrap();
        let resumed = live(args(dir.path(), preset(0.0)), &[(7, Order::Stop { checkpoint: false })]);
        assert!(resumed.has(|event| matches!(event, Event::Hello(hello) if hello.resumed_from == Some(6))), "{file}");
        assert!(resumed.has(|event| matches!(event, Event::Note { level: Level::Warn, text }
            if text.contains(file) && text.contains("contains NaN or infinity"))));
        let mut asked = args(dir.path(), preset(0.0));
        asked.from = Some(12);
        assert_eq!(live(asked, &[]).outcome.unwrap_err().class.exit_code(), 14);
    }
}

#[test]
fn a_checkpoint_with_mismatched_parts_is_skipped() {
    let dir = TempDir::new().unwrap();
    for step in [6, 12] {
        live(args(dir.path(), preset(0.0)), &[(step, STOP)]);
    }
    let [mut newest, older] =
        [12, 6].map(|step| checkpoint::load(&dir.path().join(checkpoint::relative_path(step))).unwrap());
    newest.files.insert(STATE.to_owned(), older.files[STATE].clone());
    let files: Vec<(&str, &[u8])> =
        newest.files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let contents = Contents { step: 12, samples: newest.manifest.samples, build: "test", files: &files };
    checkpoint::write(dir.path(), &contents).unwrap();
    checkpoint::verify(&newest.path).unwrap();
    let resumed = live(args(dir.path(), preset(0.0)), &[(7, Order::Stop { checkpoint: false })]);
    assert!(resumed.has(|event| matches!(event, Event::Hello(hello) if hello.resumed_from == Some(6))));
    assert!(resumed.has(|event| matches!(event, Event::Note { level: Level::Warn, text }
        if text.contains("state.json is damaged: it is from step 6 (clock 41), but the checkpoint is from step 12"))));
}

#[test]
fn checkpoints_carry_the_rows_since_the_one_before() {
    let dir = TempDir::new().unwrap();
    let told = live(args(dir.path(), with(preset(0.0), &[("checkpoint.every", json!("1 epoch"))])), &[]);
    let mut steps = Vec::new();
    let mut evals = Vec::new();
    for entry in checkpoint::list(dir.path()).into_iter().rev() {
        let loaded = checkpoint::load(&entry.path).unwrap();
        for row in Row::read_all(&loaded.files[checkpoint::STEPS]) {
            match row {
                Row::Step(row) => steps.push((row.step, row.loss.unwrap(), row.grad_norm.unwrap())),
                Row::Eval(row) => evals.push((row.eval.step, row.eval.loss.unwrap())),
            }
        }
    }
    assert_eq!(steps, told.curve());
    assert_eq!(evals, told.evals());
}

#[test]
fn the_clock_carries_schedule_and_evaluation() {
    let dir = TempDir::new().unwrap();
    let told = live(args(dir.path(), preset(0.0)), &[]);
    assert_eq!(told.evals().iter().map(|(step, _)| *step).collect::<Vec<_>>(), [6, 12, 18, 24]);
    let samples: Vec<u64> = told
        .events
        .iter()
        .filter_map(|event| if let Event::Step(step) = event { Some(step.samples) } else { None })
        .collect();
    assert_eq!(samples[..7], [8, 16, 24, 32, 40, 41, 49]);
    assert!(told.has(|event| matches!(event, Event::Hello(hello)
        if hello.total_units == 164 && hello.total_steps == 24 && hello.epoch_units == 41 && hello.resumed_from.is_none())));
    let again = live(args(dir.path(), preset(0.0)), &[]);
    assert_eq!((again.outcome, again.events.len()), (Ok(DoneReason::Finished), 3), "hello, phase, done");
}

#[test]
fn a_damaged_checkpoint_is_skipped_but_never_restarts_the_run_from_scratch() {
    let dir = TempDir::new().unwrap();
    for step in [6, 12, 13] {
        assert_eq!(live(args(dir.path(), preset(0.0)), &[(step, STOP)]).saved().last(), Some(&step));
    }
    let damage = |step| {
        let file = dir.path().join(checkpoint::relative_path(step)).join(checkpoint::MODEL);
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        fs::write(file, bytes).unwrap();
    };
    damage(13);
    let resumed = live(args(dir.path(), preset(0.0)), &[(14, Order::Stop { checkpoint: false })]);
    assert!(resumed.has(|event| matches!(event, Event::Hello(hello) if hello.resumed_from == Some(12))));
    assert!(resumed.has(|event| matches!(event, Event::Note { level: Level::Warn, text }
        if text.contains("step-000000013") && text.contains("damaged"))));
    let mut asked = args(dir.path(), preset(0.0));
    asked.from = Some(13);
    assert_eq!(live(asked, &[]).outcome.unwrap_err().class.exit_code(), 14);
    damage(12);
    damage(6);
    let refused = live(args(dir.path(), preset(0.0)), &[]).outcome.unwrap_err();
    assert_eq!(refused.class.exit_code(), 14);
    assert!(refused.message.contains("step-000000006"), "{}", refused.message);
    let empty = TempDir::new().unwrap();
    let mut required = args(empty.path(), preset(0.0));
    required.require_checkpoint = true;
    assert_eq!(live(required, &[]).outcome.unwrap_err().class.exit_code(), 14);
}

#[test]
fn a_replaced_text_is_reported_at_the_next_start() {
    let dir = TempDir::new().unwrap();
    let source = dir.path().join("text.txt");
    fs::write(&source, "abcdefgh".repeat(100)).unwrap();
    let mut one = with(preset(0.0), &[]);
    one["data"] = json!({ "source": source, "tokenizer": "bytes", "validation": 0.1 });
    one["model"] = json!({ "init_from": "embedded:tiny-llama", "sequence": 8 });
    one["training"] = json!({ "steps": 40, "micro_batch": 4, "seed": 7 });
    let next = |stop: u64, preset: &Value| {
        let told = live(WorkerArgs { task: "lm".into(), ..args(dir.path(), preset.clone()) }, &[(stop, STOP)]);
        assert_eq!(told.outcome, Ok(DoneReason::Stopped));
        told.has(
            |event| matches!(event, Event::Note { level: Level::Warn, text } if text.contains("training data changed")),
        )
    };
    assert!(!next(2, &one) && !next(4, &one));
    // A rung with shorter windows cuts the same data into different samples.
    one["model"]["sequence"] = json!(4);
    assert!(!next(6, &one));
    fs::write(&source, "abcdefgi".repeat(100)).unwrap();
    assert!(next(7, &one) && !next(8, &one), "it is said once");
}
