//! The command line of the worker, and its orders.

use crate::{Failing, Script};
use downshift::protocol::inject::Inject;
use downshift::protocol::line;
use downshift::protocol::worker::Order;
use downshift::store::checkpoint::state::TrainState;
use downshift::store::run_dir::RunDir;
use serde_json::Value;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::mpsc;

/// Reads the arguments that the keeper gives to its worker.
pub fn read_arguments() -> Failing<Script> {
    let words: Vec<String> = std::env::args().collect();
    let after = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1)).cloned();
    let run_dir = RunDir::open(&PathBuf::from(after("--run-dir").ok_or("no --run-dir")?))?;
    let run = run_dir.run()?;
    let rung: usize = after("--rung").ok_or("no --rung")?.parse()?;
    let preset = &run.rungs[rung].preset;
    let (sender, orders) = mpsc::channel();
    std::thread::spawn(move || {
        for text in std::io::stdin().lock().lines().map_while(Result::ok) {
            if let Some(order) = line::decode::<Order>(&text) {
                let _ = sender.send(order);
            }
        }
        // The keeper is gone: save and end.
        let _ = sender.send(Order::Stop { checkpoint: true });
    });
    Ok(Script {
        rung,
        attempt: after("--attempt").ok_or("no --attempt")?.parse()?,
        inject: Inject::parse_list(&after("--inject").unwrap_or_default())?,
        scenario: Value::Object(preset.model.clone()),
        batch: preset.training.micro_batch * preset.training.accumulation,
        steps: preset.training.steps.unwrap_or(100),
        save_every: preset.checkpoint.every,
        evaluate_every: preset.evaluation.every,
        state: TrainState { rung, ..TrainState::default() },
        rows: Vec::new(),
        saved: (0, String::new()),
        orders,
        leave_out: after("--leave-out").unwrap_or_default().parse()?,
        require_checkpoint: words.iter().any(|word| word == "--require-checkpoint"),
        run_dir,
    })
}
