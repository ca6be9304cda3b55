//! The files that the worker writes: checkpoints, tuning decisions, the memory it holds on the fake GPU.

use crate::trouble::Moment;
use crate::{Failing, Script, send_event};
use downshift::protocol::worker::{Event, Phase, Saved};
use downshift::store::checkpoint::state::Row;
use downshift::store::checkpoint::{self, CheckpointError, Contents};
use downshift::store::kernels;
use std::path::PathBuf;
use std::time::Instant;

impl Script {
    /// Returns why the scenario lets a save at this step fail, and whether the disk is to blame.
    pub fn refused_save(&self) -> Option<(&'static str, bool)> {
        let fails = |from: &str, to: &str| {
            let span = self.scenario[from].as_u64().zip(self.scenario[to].as_u64());
            span.is_some_and(|(from, to)| (from..to).contains(&self.state.step))
        };
        if fails("disk_full_from", "disk_full_to") {
            return Some(("No space left on device (os error 28)", true));
        }
        fails("save_fails_from", "save_fails_to").then_some(("the weights cannot be copied to the host", false))
    }

    /// Saves a checkpoint; returns the reason if that fails.
    pub fn save(&mut self) -> Failing<Option<String>> {
        let began = Instant::now();
        self.inject_faults(Moment::Save)?;
        if self.scenario["save_phase_ms"].is_number() {
            send_event(&Event::Phase { phase: Phase::Checkpointing })?;
            self.sleep_for("save_phase_ms");
            send_event(&Event::Phase { phase: Phase::Training })?;
        }
        if let Some((message, of_disk)) = self.refused_save() {
            send_event(&Event::SaveFailed { step: self.state.step, message: message.to_owned(), of_disk })?;
            return Ok(Some(message.to_owned()));
        }
        self.sleep_for("save_ms");
        self.state.rung = self.rung;
        self.state.attempt = self.attempt;
        let (step, samples) = (self.state.step, self.state.position.samples);
        let (state, mut rows) = (serde_json::to_vec(&self.state)?, Row::write_all(&self.rows));
        if self.saved.0 == step {
            // This checkpoint replaces one of the same step, and its rows with it.
            rows.insert_str(0, &self.saved.1);
        }
        let files: [(&str, &[u8]); 3] =
            [("model.safetensors", b"no weights"), ("state.json", &state), ("steps.jsonl", rows.as_bytes())];
        let contents = Contents { step, samples, build: "scripted", files: &files };
        let written = match checkpoint::write(self.run_dir.path(), &contents) {
            Ok(written) => written,
            Err(error) => {
                let (message, of_disk) = (error.to_string(), matches!(error, CheckpointError::Io { .. }));
                send_event(&Event::SaveFailed { step, message: message.clone(), of_disk })?;
                return Ok(Some(message));
            }
        };
        self.rows.clear();
        self.saved = (step, rows);
        let total_ms = began.elapsed().as_secs_f64() * 1000.0;
        send_event(&Event::Saved(Saved {
            path: written.path,
            step,
            samples,
            bytes: written.bytes,
            pause_ms: total_ms,
            total_ms,
            ..Saved::default()
        }))?;
        Ok(None)
    }

    /// Records the GPU memory this process holds, see fake_nvml.rs.
    pub fn hold_vram(&self, step: u64) -> Failing<()> {
        let vram = &self.scenario["vram"];
        let Some(bytes) = vram["bytes"].as_u64().filter(|_| vram["from_step"].as_u64() == Some(step)) else {
            return Ok(());
        };
        let library = std::env::var_os("DOWNSHIFT_NVML_PATH").ok_or("DOWNSHIFT_NVML_PATH is not set")?;
        let folder = PathBuf::from(library).with_extension("held");
        std::fs::create_dir_all(&folder)?;
        let (lingers, new) = (vram["lingers"].as_u64().unwrap_or(0), folder.with_extension("new"));
        std::fs::write(&new, format!("{bytes} {lingers}"))?;
        Ok(std::fs::rename(new, folder.join(std::process::id().to_string()))?)
    }

    /// Writes a tuning decision if the scenario asks for one.
    pub fn write_tuning(&self, of: &str) -> Failing<()> {
        let Some(decision) = self.scenario["tunes"].as_str() else { return Ok(()) };
        let decisions = kernels::decisions_of(self.run_dir.path());
        std::fs::create_dir_all(&decisions)?;
        Ok(std::fs::write(decisions.join(of), decision)?)
    }
}
