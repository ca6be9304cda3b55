//! `prepare`: runs training steps and an evaluation of every rung on the device `run` would use, so that
//! kernels are compiled and tuned in advance and a shift takes seconds.
//!
//! Compiled kernels go to the user's cache automatically. Tuning decisions are stored next to them, and a
//! new run begins with a copy, which it then owns.

use super::devices::devices_of_start;
use super::measure::Unmeasured;
use super::measure::isolated_worker::IsolatedWorker;
use super::occupied::refuse_measurement;
use super::run::{self, Overrides};
use super::trust::{self, Trust};
use super::{Failure, Outcome, line, say};
use crate::config::knobs::Autotune;
use crate::config::run::Run;
use crate::format::counted;
use crate::store::kernels::{self, KernelSet};
use crate::trainer::Trainer;
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Steps per rung: the second one reuses what the first one compiled and tuned.
const STEPS: u64 = 2;

/// Arguments of `prepare`.
#[derive(Debug, Args)]
pub struct PrepareArgs {
    /// A run file, or one that ships inside
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// Prepare even if a run is on the same device
    #[arg(long)]
    another: bool,
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    trust: Trust,
}

pub fn prepare(args: &PrepareArgs, trainer: &dyn Trainer) -> Outcome {
    let Overrides { set, device } = &args.overrides;
    let mut run = run::load_run_file(Some(&args.config), set, device, trainer)?;
    if run.command.is_some() {
        line!("Nothing to prepare: a command compiles its own kernels when it starts.");
        return Ok(0);
    }
    trust::require_approval(&run, args.trust)?;
    let prospect = trainer.look_ahead(&run, device).map_err(Failure::of)?;
    let gpu = super::plan::card_index(&prospect.device);
    if gpu.is_none() {
        line!("Nothing to prepare on {}: only GPUs compile kernels.", prospect.device);
        return Ok(0);
    }
    refuse_measurement(&devices_of_start(&run, device, &prospect.device), args.another)?;
    let decisions = kernels::decisions(&prospect.fingerprint)
        .ok_or_else(|| Failure::new(1, "cannot keep kernels: neither XDG_CACHE_HOME nor HOME is set"))?;
    for rung in &mut run.rungs {
        let autotune = &mut rung.preset.training.autotune;
        *autotune = if *autotune == Autotune::Later { Autotune::Balanced } else { *autotune };
    }
    let (count, begun, mut failures) = (run.rungs.len(), Instant::now(), Vec::new());
    let mut workers = IsolatedWorker::new(device, gpu, STEPS).with_evaluation();
    for (rung, spec) in run.rungs.iter().enumerate() {
        line!("rung {} ({} of {count}) ...", spec.name, rung + 1);
        match prepare_rung(&mut workers, &run, rung, &decisions) {
            Ok(words) => line!("rung {}: {words}", spec.name),
            // Lower rungs exist because this one may fail, so continue.
            Err(why) => {
                let failure = Failure::from(why);
                say(&failure.message);
                failures.push(failure.code);
            }
        }
    }
    line!(
        "{} of {} prepared in {:.0} s; runs will start with these kernels.",
        count - failures.len(),
        counted(count as u64, "rung"),
        begun.elapsed().as_secs_f64()
    );
    Ok(failures.first().copied().unwrap_or(0))
}

/// Runs the steps of a rung and describes the result.
fn prepare_rung(
    workers: &mut IsolatedWorker<'_>,
    run: &Run,
    rung: usize,
    decisions: &Path,
) -> Result<String, Unmeasured> {
    let before = |dir: &Path| drop(kernels::copy(decisions, &kernels::decisions_of(dir)));
    let mut kept = Ok(0);
    let seen =
        workers.measure_with(run, rung, before, |dir| kept = kernels::copy(&kernels::decisions_of(dir), decisions))?;
    let (seen, kept) = (seen.figures, kept?);
    KernelSet::of(&run.rungs[rung].preset).mark_tuned_in(decisions)?;
    let took = seen.first_step_s.unwrap_or(0.0);
    let step = seen.step_ms.map_or_else(String::new, |ms| format!(", then {ms:.0} ms per step"));
    Ok(format!("first step after {took:.1} s{step}, {} of tuning decisions", counted(kept, "file")))
}

/// Copies existing tuning decisions for this device into a new run.
pub fn hand_over(fingerprint: &str, run_dir: &Path) {
    if !fingerprint.is_empty()
        && let Some(decisions) = kernels::decisions(fingerprint)
    {
        // Without them the run tunes its own.
        let _ = kernels::copy(&decisions, &kernels::decisions_of(run_dir));
    }
}
