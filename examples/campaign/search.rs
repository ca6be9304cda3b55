//! SIGKILL at random moments of an architecture search, whose steps update weights and architecture in turn. Both, the
//! moments of both optimizers and so the genotype must equal those of the uninterrupted run.

use crate::kills::{kill_runs, resume_to_end, train_unbroken};
use crate::place::{Place, kill, list_processes, wait_for};
use crate::report::{Row, Table};
use crate::verdict;
use crate::{Failing, Orders};
use downshift::store::checkpoint::{self, Contents, Loaded, STATE, state::TrainState};
use downshift::store::run_dir::RunDir;

/// Kills of the short form.
const QUICK: u64 = 10;

/// The run file: phases of one epoch of 11 steps after a warm-up of one.
fn run_file(epochs: u64) -> String {
    format!(
        "name: search\ntask: search\ndata: {{ source: 'embedded:digits', validation: 0.9, train_portion: 0.5 }}\n\
         model: {{ channels: 2, layers: 2, nodes: 1, search: {{ warmup_epochs: 1, weight_epochs: 1, arch_epochs: 1, \
         skip_epochs: {epochs} }} }}\n\
         training: {{ epochs: {epochs}, micro_batch: 4, accumulation: 2, seed: 7, loader: {{ threads: 1, prefetch: 8 }} }}\n\
         optimizer: {{ lr: 0.01, weight_decay: 0.1, max_norm: 0.5, architecture: {{ lr: 0.02 }} }}\n\
         evaluation: {{ every: {epochs} epochs }}\ncheckpoint: {{ every: 20 steps, keep_last: 3, keep_best: false }}\n\
         watch: {{ restarts_without_progress: 1000, restarts_in_window: 100000, spike: {{ sigma: 0 }} }}\n"
    )
}

/// Runs this part of the campaign.
pub fn run(orders: &Orders, table: &mut Table) -> Failing<()> {
    let kills = if orders.quick { orders.kills.min(QUICK) } else { orders.kills };
    let orders = Orders { kills, dir: orders.dir.clone(), ..*orders };
    let text = run_file(if orders.quick { 40 } else { 120 });
    let unbroken = train_unbroken(&orders, &text)?;
    kill_runs(&orders, &text, &unbroken, ", in a search", table)?;
    let mut control = Row::new("control: a forgotten count of architecture updates, differences found");
    let trace = forgetful_run(&orders, &text)?;
    let outcome = trace.check(&unbroken);
    control.add_outcome(outcome.err().map_or_else(|| Err("the part is blind".to_owned()), |_| Ok(())));
    table.add(control);
    Ok(())
}

/// Kills everything of a run within an architecture phase, makes its newest checkpoint forget all but one update of the
/// architecture, and resumes it to the end.
fn forgetful_run(orders: &Orders, text: &str) -> Failing<verdict::Trace> {
    let place = Place::new(&orders.dir)?;
    let (client, run) = place.start(text)?;
    wait_for("an update of the architecture", || newest(&run).filter(|(_, state)| state.architecture_time > 1))?;
    for (pid, _) in list_processes(run.path()).into_iter().rev() {
        kill(pid);
    }
    drop(client);
    wait_for("the end of all processes", || list_processes(run.path()).is_empty().then_some(()))?;
    let (loaded, state) = newest(&run).ok_or("no checkpoint verifies")?;
    let state = serde_json::to_vec(&TrainState { architecture_time: 1, ..state })?;
    let mut files = loaded.files;
    files.insert(STATE.to_owned(), state);
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let (step, samples) = (loaded.manifest.step, loaded.manifest.samples);
    checkpoint::write(run.path(), &Contents { step, samples, build: "campaign", files: &files })?;
    drop(place.resume(&run)?);
    resume_to_end(&place, &run)?;
    verdict::read_trace(&place, &run)
}

/// Returns the newest checkpoint that verifies, and its state.
fn newest(run: &RunDir) -> Option<(Loaded, TrainState)> {
    let loaded = checkpoint::newest_valid(run.path()).0?;
    let state = serde_json::from_slice(loaded.files.get(STATE)?).ok()?;
    Some((loaded, state))
}
