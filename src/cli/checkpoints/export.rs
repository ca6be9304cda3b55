//! Exports the weights alone, as one safetensors file or in another program's format.

use super::CheckpointsArgs;
use crate::cli::{Failure, Outcome, line, refuse_existing};
use crate::format::{bytes, count};
use crate::store::checkpoint::{Loaded, MODEL, state::TrainState};
use crate::store::run_dir::{RunDir, write_whole};
use crate::trainer::Trainer;
use crate::untrusted::text;
use serde_json::{Map, Value};
use std::path::Path;

/// Writes the file atomically. Its bytes depend on the weights and their classes alone.
pub fn export(run: &RunDir, args: &CheckpointsArgs, trainer: &dyn Trainer) -> Outcome {
    let out =
        args.out.as_deref().ok_or_else(|| Failure::new(2, "export needs an output file: --out weights.safetensors"))?;
    if args.format.is_none() {
        refuse_existing(out, "--out")?;
    }
    let best = if args.best { super::best_step(run)? } else { None };
    if args.best && best.is_none() {
        let text = format!("no checkpoint of {} was evaluated; leave --best out for the newest", run.name());
        return Err(Failure::checkpoint(text));
    }
    let loaded = super::load_chosen(run, args.step.or(best))?;
    let weights = loaded.files.get(MODEL);
    let weights = weights.ok_or_else(|| Failure::checkpoint(format!("{} has no {MODEL}", text::path(&loaded.path))))?;
    if let Some(format) = &args.format {
        return convert(run, &loaded, format, out, trainer);
    }
    let classes = TrainState::in_files(&loaded.files).and_then(|state| state.classes);
    let weights =
        classes.and_then(|classes| add_entries(weights, &classes.entries())).unwrap_or_else(|| weights.clone());
    write_whole(out, &weights).map_err(|error| Failure::new(1, format!("{}: {error}", text::path(out))))?;
    let (step, size) = (count(loaded.manifest.step), bytes(weights.len() as u64));
    line!("wrote the weights of step {step} of {} to {}, {size}", run.name(), text::path(out));
    Ok(0)
}

/// Adds entries to the header of a safetensors file: eight bytes of length, JSON, tensors. Returns none if it has no
/// such header.
fn add_entries(file: &[u8], entries: &[(&str, String)]) -> Option<Vec<u8>> {
    let (length, rest) = file.split_first_chunk::<8>()?;
    let (header, tensors) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let mut header: Map<String, Value> = serde_json::from_slice(header).ok()?;
    let known = header.entry("__metadata__").or_insert_with(|| Value::Object(Map::new())).as_object_mut()?;
    known.extend(entries.iter().map(|(name, text)| ((*name).to_owned(), Value::from(text.as_str()))));
    let mut header = serde_json::to_vec(&header).ok()?;
    // Readers map the tensors, which have to be aligned.
    header.resize(header.len().next_multiple_of(8), b' ');
    Some([&(header.len() as u64).to_le_bytes(), &header[..], tensors].concat())
}

/// Writes the files that the task converts the weights to, into a folder.
fn convert(run: &RunDir, loaded: &Loaded, format: &str, out: &Path, trainer: &dyn Trainer) -> Outcome {
    let config = run.run()?;
    // The rung that wrote it determines its model's shape.
    let rung = TrainState::in_files(&loaded.files).map_or(0, |state| state.rung).min(config.rungs.len() - 1);
    let weights = loaded.files.get(MODEL).map_or(&[][..], Vec::as_slice);
    let files = trainer.export(&config, rung, weights, format).map_err(Failure::of)?;
    let wrong = |error: std::io::Error| Failure::new(1, format!("{}: {error}", text::path(out)));
    files.iter().try_for_each(|(name, _)| refuse_existing(&out.join(name), "--out"))?;
    std::fs::create_dir_all(out).map_err(wrong)?;
    for (name, content) in &files {
        write_whole(&out.join(name), content).map_err(wrong)?;
    }
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let step = count(loaded.manifest.step);
    line!("wrote the weights of step {step} of {} to {}: {}", run.name(), text::path(out), names.join(", "));
    Ok(0)
}
