//! What the rungs of a run take: `downshift plan --measure` on a run directory of its own.

use downshift::config::run::{Run, Source};
use downshift::protocol::plan::Plan;
use downshift::store::run_dir::RunDir;
use downshift::train::registry::Registry;
use std::process::Command;

/// What went wrong; benchmarks end with it.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What a rung took.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    /// Units of the run's clock a second, the first step left out.
    pub units_per_s: f64,
    /// The most memory of the device that it held, over what there was before the model, bytes.
    pub memory: u64,
    /// Parameters of the model.
    pub parameters: u64,
}

/// A run from the text of a run file.
pub fn read(file: &str, text: &str, overrides: &[(String, String)]) -> Outcome<Run> {
    let base = std::env::current_dir()?;
    let source = Source { file, text, base: &base, overrides };
    Ok(Run::read(&source, &Registry::with_builtin()).map_err(|refusal| refusal.to_string())?)
}

/// Trains for so many steps on every rung, each in a process of its own.
pub fn measure(run: &Run, device: &str, steps: u64) -> Outcome<Vec<Took>> {
    let place = tempfile::tempdir()?;
    let dir = RunDir::create(place.path(), run)?;
    let out = Command::new(env!("CARGO_BIN_EXE_downshift"))
        .args(["plan", &dir.name(), "--device", device, "--format", "json", "--measure", &steps.to_string()])
        .arg("--runs-dir")
        .arg(place.path())
        .output()?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned().into());
    }
    let plan: Plan = serde_json::from_slice(&out.stdout)?;
    let took = plan.rungs.iter().map(|rung| {
        let seen = rung.measured.as_ref()?;
        let parameters = rung.foreseen.as_ref().map_or(0, |foreseen| foreseen.parameters);
        Some(Took { units_per_s: seen.units_per_s?, memory: seen.peak_bytes?, parameters })
    });
    Ok(took.collect::<Option<_>>().ok_or("a rung was not measured to its end")?)
}
