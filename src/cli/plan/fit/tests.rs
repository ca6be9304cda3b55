use super::{Candidates, Protocol};
use crate::config::knobs::MICRO_BATCH;
use crate::config::run::{AsWritten, Run, Source, TaskSections};
use crate::trainer::{Evals, Prospect, Refusal, Trainer, WorkerArgs, batch_misfit};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A trainer with this number of samples.
struct Samples(u64);

impl Trainer for Samples {
    fn sections(&self) -> &dyn TaskSections {
        &AsWritten
    }

    fn work(&self, _: &WorkerArgs) -> Result<u8, Refusal> {
        Err(Refusal::new(1, "nothing is trained"))
    }

    fn look_ahead(&self, run: &Run, _: &str) -> Result<Prospect, Refusal> {
        let misfit = batch_misfit(&run.rungs[0].preset.training, self.0);
        misfit.map_or_else(|| Ok(Prospect::default()), |problem| Err(Refusal::new(13, problem.to_string())))
    }

    fn measure(&self, _: &Run, _: usize, _: &[PathBuf]) -> Result<Evals, Refusal> {
        Err(Refusal::new(1, "nothing is measured"))
    }
}

#[test]
fn a_value_is_refused_as_by_a_run() {
    let text = "name: a\ntask: text\ntraining: { steps: 4, micro_batch: 1 }\noptimizer: { lr: 0.1 }\n";
    let source = Source { file: "a.yaml", text, base: Path::new("/"), overrides: &[] };
    let run = Run::read(&source, &AsWritten).unwrap();
    let candidates = Candidates {
        run: &run,
        knob: MICRO_BATCH,
        device: "cpu",
        trainer: &Samples(100),
        protocol: Protocol { steps: 1, limit: Duration::ZERO, budget: None },
    };
    assert_eq!(candidates.with_value(100).unwrap().rungs[0].preset.training.micro_batch, 100);
    let refusal = candidates.with_value(101).unwrap_err();
    assert_eq!(refusal.code, 13);
    assert!(refusal.message.contains("only 100 to train on"), "{}", refusal.message);
    let refusal = candidates.with_value(1 << 30).unwrap_err();
    assert!(refusal.message.contains("exceeds 16777216 samples"), "{}", refusal.message);
}
