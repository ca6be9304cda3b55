//! Measures the rungs of a run: `downshift plan --measure` on a separate run directory.

use downshift::config::run::{Run, Source};
use downshift::protocol::plan::Plan;
use downshift::store::run_dir::RunDir;
use downshift::train::registry::Registry;
use std::process::Command;

/// A result of a benchmark; any error ends it.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The measurements of a rung.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    /// Units of the run's clock per second, without the first step.
    pub units_per_s: f64,
    /// Peak device memory above the level before the model was loaded, in bytes.
    pub memory: u64,
    /// Number of model parameters.
    pub parameters: u64,
}

/// Parses a run from the text of a run file.
pub fn read(file: &str, text: &str, overrides: &[(String, String)]) -> Outcome<Run> {
    let base = std::env::current_dir()?;
    let source = Source { file, text, base: &base, overrides };
    Ok(Run::read(&source, &Registry::with_builtin()).map_err(|refusal| refusal.to_string())?)
}

/// Trains `steps` steps on every rung, each in its own process.
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
        let parameters = rung.estimate.as_ref().map_or(0, |estimate| estimate.parameters);
        Some(Took { units_per_s: seen.units_per_s?, memory: seen.peak_bytes?, parameters })
    });
    Ok(took.collect::<Option<_>>().ok_or("a rung was not measured to its end")?)
}
