//! Exports a run as TensorBoard event files, one folder per run: scalars of every step on the curve, of
//! evaluations and of the probe's readings; the run file and the journal as text.
//!
//! ```text
//! DIR/RUN/events.out.tfevents.<time>.<host>     TFRecords: length, CRC, Event, CRC
//! ```
//! A repeated step appears once, as on the curve. A skipped step has no loss; it appears as `skipped` = 1.

mod event;
mod record;

use super::ExportError;
use crate::protocol::control::{JournalRow, StepRow};
use crate::store::reader::Reader;
use crate::store::run_dir::RunDir;
use crate::untrusted::file::{self, Limit};
use event::{Event, Value};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes a run into a folder of its name below `out`. Returns the path of the event file.
///
/// # Errors
/// Returns an error when the store cannot be read, or the file cannot be written.
pub fn export(dir: &RunDir, out: &Path) -> Result<PathBuf, ExportError> {
    let query_failed = |source| ExportError::query(dir, source);
    let reader = Reader::open_begun(dir)?;
    let folder = out.join(dir.name());
    let wrong = |source: io::Error| ExportError::Io { path: folder.clone(), source };
    let has_events = |folder: &Path| {
        fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .any(|e| e.file_name().to_string_lossy().contains("tfevents"))
    };
    if has_events(&folder) {
        return Err(ExportError::HasEvents(folder));
    }
    fs::create_dir_all(&folder).map_err(wrong)?;
    let first = reader.stretches().map_err(query_failed)?;
    let mut times = Times::default();
    let mut draft = Draft::begin(&folder, jiff::Timestamp::now().as_second()).map_err(wrong)?;
    let yaml = file::read_text(&dir.file("run.yaml"), Limit::Record).unwrap_or_default();
    let begun = reader.journal(usize::MAX >> 1).map_err(query_failed)?;
    let from_ms = begun.first().map_or(0, |row| row.time_ms);
    draft.write_event(&Event::version(from_ms)).map_err(wrong)?;
    draft.write_text(from_ms, 0, "run.yaml", &format!("```yaml\n{yaml}\n```")).map_err(wrong)?;
    let mut written = Ok(());
    for stretch in &first {
        reader
            .each_row(stretch, |row| {
                times.0.push((row.time_ms, row.step));
                if written.is_ok() {
                    written = draft.write_event(&step(row));
                }
            })
            .map_err(query_failed)?;
    }
    written.map_err(wrong)?;
    for row in
        reader.evals().map_err(query_failed)?.iter().filter(|row| is_on_curve(&first, row.attempt, row.eval.step))
    {
        let loss = row.eval.loss.map(|loss| scalar("eval/loss", loss));
        let named = row.eval.metrics.iter().map(|(name, value)| scalar(&format!("eval/{name}"), *value));
        let values = loss.into_iter().chain(named).collect();
        draft.write_event(&event(row.time_ms, row.eval.step, values)).map_err(wrong)?;
    }
    for row in reader.samples(usize::MAX >> 1).map_err(query_failed)? {
        let values = readings(&row.reading);
        if !values.is_empty() {
            draft.write_event(&event(row.time_ms, times.step_at(row.time_ms), values)).map_err(wrong)?;
        }
    }
    journal(&mut draft, &begun).map_err(wrong)?;
    draft.finish(&folder).map_err(wrong)
}

/// Reports whether an evaluation lies on the curve: its attempt is the one that took that step.
fn is_on_curve(stretches: &[crate::store::curve::Stretch], attempt: u64, step: u64) -> bool {
    stretches.iter().any(|stretch| stretch.attempt == attempt && stretch.steps.contains(&step))
}

/// The times of the steps, in order.
#[derive(Default)]
struct Times(Vec<(i64, u64)>);

impl Times {
    fn step_at(&self, time_ms: i64) -> u64 {
        let after = self.0.partition_point(|(time, _)| *time <= time_ms);
        after.checked_sub(1).map_or(0, |place| self.0[place].1)
    }
}

fn step(row: &StepRow) -> Event {
    let mut values: Vec<Value> = row.lr.map(|lr| scalar("train/lr", lr)).into_iter().collect();
    values.push(scalar("train/skipped", f64::from(u8::from(row.skipped))));
    if !row.skipped {
        values.extend(row.loss.map(|loss| scalar("train/loss", loss)));
        values.extend(row.grad_norm.map(|norm| scalar("train/grad_norm", norm)));
        values.push(scalar("time/data_wait_ms", row.data_wait_ms));
        if row.compute_ms > 0.0 {
            values.push(scalar("time/compute_ms", row.compute_ms));
        }
    }
    // A folder of their own: no name of a run hides one of ours.
    values.extend(row.metrics.iter().map(|(name, value)| scalar(&format!("metrics/{name}"), *value)));
    values.push(scalar("run/rung", row.rung as f64));
    values.push(scalar("run/epoch", row.epoch as f64));
    event(row.time_ms, row.step, values)
}

fn readings(reading: &crate::protocol::probe::Reading) -> Vec<Value> {
    let mut values = Vec::new();
    let mut known = |name, value: Option<f64>| values.extend(value.map(|value| scalar(name, value)));
    if let Ok(gpu) = &reading.gpu {
        known("gpu/vram_used_gib", gpu.vram_used_bytes.get().map(gib));
        known("gpu/temperature_c", gpu.temperature_c.get());
        known("gpu/utilisation", gpu.utilisation.get());
        known("gpu/power_w", gpu.power_w.get());
    }
    known("host/ram_worker_gib", reading.host.ram_worker_bytes.get().map(gib));
    known("host/cpu", reading.host.cpu.get());
    values
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1u32 << 30)
}

fn scalar(tag: &str, value: f64) -> Value {
    Value::Scalar(tag.to_owned(), value as f32)
}

fn event(time_ms: i64, step: u64, values: Vec<Value>) -> Event {
    Event { time_ms, step, version: None, values }
}

/// Adds the journal as a Markdown table, at its last step.
fn journal(draft: &mut Draft, rows: &[JournalRow]) -> io::Result<()> {
    let Some(last) = rows.last() else { return Ok(()) };
    let mut table = String::from("| time | step | what |\n|---|---|---|\n");
    for row in rows {
        let time = jiff::Timestamp::from_millisecond(row.time_ms).unwrap_or_default();
        let step = row.step.map_or_else(String::new, |step| step.to_string());
        let text = row.text.replace('|', "\\|").replace('\n', " ");
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| {time:.0} | {step} | {text} |");
    }
    let step = rows.iter().filter_map(|row| row.step).max().unwrap_or(0);
    draft.write_text(last.time_ms, step, "journal", &table)
}

/// An event file being written, under a temporary name until it is complete.
struct Draft {
    out: BufWriter<File>,
    path: PathBuf,
    name: String,
}

impl Draft {
    fn begin(folder: &Path, now_s: i64) -> io::Result<Self> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let host: String = host.chars().map(|c| if c.is_alphanumeric() || c == '-' { c } else { '_' }).collect();
        let name = format!("events.out.tfevents.{now_s:010}.{host}.{}.downshift", std::process::id());
        let path = folder.join(format!(".{}.draft", std::process::id()));
        Ok(Self { out: BufWriter::new(File::create(&path)?), path, name })
    }

    fn write_event(&mut self, event: &Event) -> io::Result<()> {
        self.out.write_all(&record::framed(&event.encode()))
    }

    fn write_text(&mut self, time_ms: i64, step: u64, tag: &str, text: &str) -> io::Result<()> {
        let values = vec![Value::Text(tag.to_owned(), text.to_owned())];
        self.write_event(&Event { time_ms, step, version: None, values })
    }

    fn finish(mut self, folder: &Path) -> io::Result<PathBuf> {
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        let path = folder.join(&self.name);
        fs::rename(&self.path, &path)?;
        Ok(path)
    }
}
