//! The weights alone, as one safetensors file.

use super::CheckpointsArgs;
use crate::cli::{Failure, Outcome};
use crate::keeper::sentences::{bytes, grouped};
use crate::store::checkpoint::MODEL;
use crate::store::run_dir::{RunDir, write_whole};

/// Writes the file whole or not at all. Its bytes depend on the weights alone.
pub fn export(run: &RunDir, args: &CheckpointsArgs) -> Outcome {
    let out = args
        .out
        .as_deref()
        .ok_or_else(|| Failure::new(2, "export needs to know where to: --out weights.safetensors"))?;
    let loaded = super::chosen(run, args.step)?;
    let weights = loaded.files.get(MODEL);
    let weights = weights.ok_or_else(|| Failure::new(14, format!("{} holds no {MODEL}", loaded.path.display())))?;
    write_whole(out, weights).map_err(|error| Failure::new(1, format!("{}: {error}", out.display())))?;
    let (step, size) = (grouped(loaded.manifest.step), bytes(weights.len() as u64));
    println!("wrote the weights of step {step} to {}, {size}", out.display());
    Ok(0)
}
