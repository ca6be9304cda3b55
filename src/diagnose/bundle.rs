//! One archive for a bug report: the run file, the journal, the ends of the logs, the manifests, the
//! doctor's report, versions. Contains no weights and no data; secrets and the paths of the user's home are
//! removed from every file.

use super::doctor;
use super::python::PythonEnvironment;
use super::readings::read_once;
use crate::config::run::Run;
use crate::protocol::control::Status;
use crate::protocol::probe::Metric;
use crate::redact::Redactor;
use crate::store::lock::no_link;
use crate::store::reader::Reader;
use crate::store::run_dir::RunDir;
use crate::store::worker_log::{NAME, OLDER};
use crate::store::writer::AttemptRow;
use crate::store::{checkpoint, command_line};
use crate::triage::catalogue::Catalogue;
use crate::triage::scan::scan;
use crate::untrusted::file::{self, Limit};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes at the end of a log to include.
const TAIL: u64 = 1 << 20;
/// Journal lines and probe readings to include.
const ROWS: usize = 5000;
const READINGS: usize = 300;
/// Files with stacks to include.
const STACKS: usize = 64;

/// A bundle, before it is written to a file.
pub struct Bundle {
    /// The compressed archive.
    pub archive: Vec<u8>,
    /// The files in it: names and sizes in bytes.
    pub files: Vec<(String, usize)>,
    /// Files that exist and are not included, with the reason.
    pub left_out: Vec<(String, LeftOut)>,
}

/// Packs a run, with its current status.
///
/// # Errors
/// Returns an error when the archive cannot be built.
pub fn pack(run: &RunDir, runs: &Path, status: Option<&Status>) -> io::Result<Bundle> {
    let redactor = Redactor::of_run(run);
    let Parts { files, left_out } = Parts::of(run, runs, status);
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let mut sizes = Vec::new();
    for (name, text) in files {
        let clean = redactor.clean(&text);
        let mut header = tar::Header::new_gnu();
        header.set_size(clean.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(jiff::Timestamp::now().as_second().unsigned_abs());
        header.set_cksum();
        archive.append_data(&mut header, format!("{}-bundle/{name}", run.name()), clean.as_bytes())?;
        sizes.push((name, clean.len()));
    }
    Ok(Bundle { archive: archive.into_inner()?.finish()?, files: sizes, left_out })
}

/// The contents of the archive.
#[derive(Default)]
struct Parts {
    /// Names and texts, as far as the files exist.
    files: Vec<(String, String)>,
    /// Files that exist and are not included, with the reason.
    left_out: Vec<(String, LeftOut)>,
}

impl Parts {
    fn of(run: &RunDir, runs: &Path, status: Option<&Status>) -> Self {
        let mut parts = Self::default();
        parts.add("versions.txt", Some(versions(runs)));
        let settings = run.run().ok();
        parts.add("doctor.txt", Some(doctor::report(runs, settings.as_ref())));
        parts.add("python.txt", settings.as_ref().and_then(python));
        for name in ["run.yaml", "failure.json", "companion.json", command_line::FILE, "keeper.log", OLDER, NAME] {
            parts.add_file(run, name, &run.file(name));
        }
        parts.add("triage.txt", triage(run));
        parts.add("status.json", status.and_then(|status| serde_json::to_string_pretty(status).ok()));
        parts.add_store(run);
        for (attempt, name) in stack_files(run) {
            let place = format!("attempts/{attempt}/{name}");
            parts.add_file(run, &place, &run.file(&place));
        }
        for entry in checkpoint::list(run.path()) {
            for name in ["manifest.json", "state.json"] {
                let folder = entry.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                parts.add_file(run, &format!("checkpoints/{folder}/{name}"), &entry.path.join(name));
            }
        }
        let left_out: Vec<String> = parts.left_out.iter().map(|(name, why)| format!("{name}: {why}")).collect();
        parts.add("left-out.txt", Some(left_out.join("\n")).filter(|list| !list.is_empty()));
        parts
    }

    fn add(&mut self, name: &str, text: Option<String>) {
        self.files.extend(text.map(|text| (name.to_owned(), text)));
    }

    /// Adds the end of a file, or the reason why it is left out. Skips a file that does not exist.
    fn add_file(&mut self, run: &RunDir, name: &str, path: &Path) {
        match own_file(run, path).and_then(|file| Ok(tail(file)?)) {
            Ok(text) => self.add(name, Some(text)),
            Err(LeftOut::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(why) => self.left_out.push((name.to_owned(), why)),
        }
    }

    fn add_store(&mut self, run: &RunDir) {
        match own_file(run, &run.file("run.db")) {
            Ok(_) => {}
            Err(LeftOut::Io(error)) if error.kind() == io::ErrorKind::NotFound => return,
            Err(why) => return self.left_out.push(("run.db".to_owned(), why)),
        }
        let reader = match Reader::open_foreign(run) {
            Ok(reader) => reader,
            Err(error) => return self.left_out.push(("run.db".to_owned(), LeftOut::Io(io::Error::other(error)))),
        };
        self.add("launch.json", reader.fact::<serde_json::Value>("launch").map(|launch| launch.to_string()));
        self.add("journal.txt", journal(&reader).ok());
        self.add("attempts.txt", reader.attempts().ok().map(|rows| describe_attempts(&rows)));
        self.add("causes.json", serde_json::to_string_pretty(&reader.causes()).ok());
        let readings = reader.samples(READINGS).unwrap_or_default();
        let lines = readings.iter().filter_map(|row| serde_json::to_string(row).ok());
        self.add("readings.jsonl", Some(lines.collect::<Vec<_>>().join("\n")));
    }
}

/// Returns the attempts and names of the files with the stacks of hung processes, newest attempt first.
fn stack_files(run: &RunDir) -> Vec<(u64, String)> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let attempts = entries(&run.file("attempts"));
    let mut attempts: Vec<u64> = attempts.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    attempts.sort_unstable_by(|one, other| other.cmp(one));
    let names = |attempt: u64| {
        let files = entries(&run.file("attempts").join(attempt.to_string()));
        // Each process has a file from its start on, which is empty unless it hung.
        let written = files.filter(|entry| entry.metadata().is_ok_and(|about| about.len() > 0));
        let names = written.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.starts_with("stacks-")).map(move |name| (attempt, name))
    };
    attempts.into_iter().flat_map(names).take(STACKS).collect()
}

/// Reason why a file of the run directory is left out.
#[derive(Debug, thiserror::Error)]
pub enum LeftOut {
    /// It leads out of the run directory, or may.
    #[error("it is a symbolic link")]
    Link,
    /// A directory, a pipe or a device.
    #[error("it is not a regular file")]
    NotAFile,
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Describes each attempt on a line.
fn describe_attempts(rows: &[AttemptRow]) -> String {
    let line = |row: &AttemptRow| {
        let from = row.from_step.map_or_else(|| "the beginning".to_owned(), |step| format!("step {step}"));
        let lived = row.ended_ms.map(|ended| ended.saturating_sub(row.started_ms) as f64 / 1000.0);
        let lived = lived.map_or_else(|| "alive".to_owned(), |seconds| format!("{seconds:.1} s"));
        let outcome = row.outcome.as_deref().unwrap_or_default();
        format!("{}\t{}\tfrom {from}\t{lived}\t{}\t{outcome}", row.id, row.rung_name, row.reason)
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn journal(reader: &Reader) -> rusqlite::Result<String> {
    let mut text = String::new();
    for row in reader.journal(ROWS)? {
        let time = jiff::Timestamp::from_millisecond(row.time_ms).map(|time| time.to_string()).unwrap_or_default();
        let step = row.step.map_or_else(String::new, |step| format!(" step {step}"));
        let _ = writeln!(text, "{time} {:?} {:?}{step}: {}", row.level, row.kind, row.text);
    }
    Ok(text)
}

fn versions(runs: &Path) -> String {
    let read = |path: &str| file::read_text(Path::new(path), Limit::Handwritten).unwrap_or_default();
    let mut text = format!("downshift {}\n", env!("CARGO_PKG_VERSION"));
    let features = [("train", cfg!(feature = "train")), ("cuda", cfg!(feature = "cuda"))];
    for (name, on) in features {
        let _ = writeln!(text, "feature {name}: {}", if on { "yes" } else { "no" });
    }
    let _ = writeln!(text, "command line: {}", std::env::args().collect::<Vec<_>>().join(" "));
    let _ = writeln!(text, "kernel: {}", read("/proc/version").trim());
    for line in read("/etc/os-release").lines().filter(|line| line.starts_with("PRETTY_NAME")) {
        let _ = writeln!(text, "system: {}", line.trim_start_matches("PRETTY_NAME=").trim_matches('"'));
    }
    let _ = writeln!(text, "driver: {}", driver(runs));
    let module = read("/proc/driver/nvidia/version");
    let _ = writeln!(text, "kernel module: {}", module.lines().next().unwrap_or("none"));
    for name in ["TERM", "COLORTERM", "TMUX", "CUDA_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"] {
        if let Ok(value) = std::env::var(name) {
            let _ = writeln!(text, "{name}={value}");
        }
    }
    text
}

/// Returns the driver's version and the newest CUDA it supports, from NVML: WSL2 has no kernel module to query.
fn driver(runs: &Path) -> String {
    let place = if runs.is_dir() { runs } else { Path::new(".") };
    let reading = read_once(place, 0).map_err(|error| error.to_string());
    let gpu = match reading.and_then(|reading| reading.gpu.map_err(|error| error.to_string())) {
        Ok(gpu) => gpu,
        Err(why) => return format!("unknown: {why}"),
    };
    let known = |metric: &Metric<String>| metric.last().cloned().unwrap_or_else(|| "unknown".to_owned());
    format!("{}, CUDA {}, {}", known(&gpu.driver), known(&gpu.more.cuda), gpu.name)
}

/// Opens a regular file of the run directory. Rejects links, also in the path: they may lead outside the run.
fn own_file(run: &RunDir, path: &Path) -> Result<File, LeftOut> {
    // A link whose target does not exist is a link too.
    if fs::symlink_metadata(path)?.is_symlink() || path.canonicalize()? != path || !path.starts_with(run.path()) {
        return Err(LeftOut::Link);
    }
    let file = File::options().read(true).custom_flags(no_link()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(LeftOut::NotAFile) }
}

/// Returns the end of a file, starting at a line.
fn tail(mut file: File) -> io::Result<String> {
    let from = file.metadata()?.len().saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(match text.split_once('\n') {
        Some((_, rest)) if from > 0 => format!("… {from} bytes before\n{rest}"),
        _ => text,
    })
}

/// Describes the Python environment of a run that starts a command.
fn python(run: &Run) -> Option<String> {
    let found = PythonEnvironment::of_run(run)?;
    Some(found.map_or_else(|error| error.to_string(), |found| found.describe()))
}

fn triage(run: &RunDir) -> Option<String> {
    let catalogue = Catalogue::load().or_else(|_| Catalogue::build(None)).ok()?;
    let newer = own_file(run, &run.file(NAME)).ok()?;
    let older: Box<dyn Read> = match own_file(run, &run.file(OLDER)) {
        Ok(older) => Box::new(older),
        Err(_) => Box::new(io::empty()),
    };
    let mut log = io::BufReader::new(older.chain(newer));
    let found = scan(&mut log, &catalogue).ok()?;
    let lines = found.findings.iter().map(|finding| {
        format!("line {}: {}: {} ({})", finding.line, finding.class.word(), finding.text, finding.meaning)
    });
    let own = found.own_frame.as_ref().map(|frame| format!("your code: {frame}"));
    Some(lines.chain(own).collect::<Vec<_>>().join("\n"))
}
