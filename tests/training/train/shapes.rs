//! Checkpoints of another model shape, and other runs that must be refused.

use super::harness::{args, live, preset, with};
use downshift::protocol::worker::{DoneReason, Event, Order};
use downshift::store::checkpoint;
use safetensors::SafeTensors;
use serde_json::json;
use tempfile::TempDir;

#[test]
fn another_shape_is_refused_by_name_and_migrated_on_request() {
    let dir = TempDir::new().unwrap();
    live(args(dir.path(), preset(0.0)), &[(10, Order::Stop { checkpoint: true })]);
    let wider = || args(dir.path(), with(preset(0.0), &[("model.hidden", json!(16))]));
    let refused = live(wider(), &[]).outcome.unwrap_err();
    assert_eq!(refused.class.exit_code(), 14);
    for part in ["blocks.0.weight [6, 12] in the checkpoint, [6, 16] in the model", "head.weight", "warm_start"] {
        assert!(refused.message.contains(part), "{}", refused.message);
    }
    let mut migrating = wider();
    migrating.migrate = true;
    let told = live(migrating, &[]);
    assert_eq!(told.outcome, Ok(DoneReason::Finished));
    assert!(told.has(|event| matches!(event, Event::Hello(hello) if hello.resumed_from == Some(10))));
    assert!(told.has(|event| matches!(event, Event::Note { text, .. }
        if text.contains("kept 1 of 6 parameters") && text.contains("blocks.0.weight"))));
}

#[test]
fn weights_are_stored_by_path_with_their_shapes() {
    let dir = TempDir::new().unwrap();
    live(args(dir.path(), preset(0.0)), &[(3, Order::Stop { checkpoint: true })]);
    let loaded = checkpoint::newest_valid(dir.path()).0.unwrap();
    let model = SafeTensors::deserialize(&loaded.files[checkpoint::MODEL]).unwrap();
    let mut shapes: Vec<_> = model.iter().map(|(name, view)| format!("{name} {:?}", view.shape())).collect();
    shapes.sort();
    let wanted = [
        "blocks.0.bias [12]",
        "blocks.0.weight [6, 12]",
        "head.bias [2]",
        "head.weight [12, 2]",
        "norm.beta [12]",
        "norm.gamma [12]",
    ];
    assert_eq!(shapes, wanted);
    let optimizer = SafeTensors::deserialize(&loaded.files[checkpoint::OPTIMIZER]).unwrap();
    assert_eq!(optimizer.tensor("head.weight.exp_avg_sq").unwrap().shape(), [12, 2]);
    assert_eq!(optimizer.len(), 12);
}

#[test]
fn invalid_runs_are_refused_with_the_reason() {
    let dir = TempDir::new().unwrap();
    let table = [
        (vec![("data.samples", json!(2000))], 15, "tiny.bin at byte 1000: it ends here"),
        (vec![("data.samples", json!(0))], 13, "nothing to train on"),
        (vec![("model.width", json!(3))], 13, "model.width: unknown key; choose from: hidden, dropout"),
        (vec![("training.precision", json!("bf16"))], 13, "use f32"),
        (vec![("training.epochs", json!(null))], 13, "training.epochs or training.steps"),
    ];
    for (knobs, code, part) in table {
        let failed = live(args(dir.path(), with(preset(0.0), &knobs)), &[]);
        let failure = failed.outcome.clone().unwrap_err();
        assert_eq!(failure.class.exit_code(), code, "{}", failure.message);
        assert!(failure.message.contains(part), "{}", failure.message);
        assert_eq!(failed.events, [Event::Failed(failure)]);
    }
    let mut unknown = args(dir.path(), preset(0.0));
    unknown.task = "nothing".into();
    assert!(live(unknown, &[]).outcome.unwrap_err().message.contains("known tasks: tiny"));
}
