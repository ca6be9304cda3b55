//! `bundle`: creates one archive for a bug report: the run file, the journal, the ends of the logs, the
//! manifests, the doctor's report, versions. Contains no weights and no data; secrets and the paths of
//! the user's home are removed from every file.

mod redact;

use super::{Outcome, Which, command_line, doctor, find_run, line, watch};
use crate::config::integrations::Notify;
use crate::notify;
use crate::protocol::probe::Metric;
use crate::store::checkpoint;
use crate::store::lock::no_link;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::triage::catalogue::Catalogue;
use crate::triage::scan::scan;
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use redact::Redactor;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes at the end of a log to include.
const TAIL: u64 = 1 << 20;
/// Journal lines and probe readings to include.
const ROWS: usize = 5000;
const READINGS: usize = 300;

/// Arguments of `bundle`.
#[derive(Debug, Args)]
pub struct BundleArgs {
    #[command(flatten)]
    which: Which,
    /// The archive [default: RUN-bundle.tar.gz here]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub fn bundle(args: &BundleArgs, runs: &Path) -> Outcome {
    let run = find_run(runs, args.which.run.as_deref())?;
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{}-bundle.tar.gz", run.name())));
    let redactor = redactor(&run);
    let parts = parts(&run, runs);
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (name, text) in &parts {
        let clean = redactor.clean(text);
        let mut header = tar::Header::new_gnu();
        header.set_size(clean.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(jiff::Timestamp::now().as_second().unsigned_abs());
        header.set_cksum();
        archive.append_data(&mut header, format!("{}-bundle/{name}", run.name()), clean.as_bytes())?;
        line!("{:>9}  {name}", clean.len());
    }
    let bytes = archive.into_inner()?.finish()?;
    let written = File::create(&out).and_then(|mut file| file.write_all(&bytes));
    written.map_err(|error| super::Failure::new(1, format!("{}: {error}", out.display())))?;
    line!("\n{}: {} bytes. Look through it before you give it away.", out.display(), bytes.len());
    Ok(0)
}

/// Builds a redactor for the secrets in the run's and the user's notification settings.
fn redactor(run: &RunDir) -> Redactor {
    let own = run.run().ok().and_then(|run| run.notify);
    let texts =
        [own_text(run, &run.file("run.yaml")), notify::user_file().and_then(|path| fs::read_to_string(path).ok())];
    let settings: Vec<Notify> = own.into_iter().chain(notify::read_settings(None)).collect();
    Redactor::new(&settings, &texts.into_iter().flatten().collect::<Vec<_>>())
}

/// Returns the archive's files, as far as they exist.
fn parts(run: &RunDir, runs: &Path) -> Vec<(String, String)> {
    let mut parts = vec![("versions.txt".to_owned(), versions(runs)), ("doctor.txt".to_owned(), doctor::report(runs))];
    let mut add = |name: &str, text: Option<String>| {
        if let Some(text) = text {
            parts.push((name.to_owned(), text));
        }
    };
    for name in ["run.yaml", "failure.json", command_line::FILE] {
        add(name, own_text(run, &run.file(name)));
    }
    for name in ["keeper.log", "worker.log"] {
        add(name, own_text(run, &run.file(name)));
    }
    add("triage.txt", own_file(run, &run.file("worker.log")).ok().and_then(triage));
    add("status.json", live_status(run).and_then(|status| serde_json::to_string_pretty(&status).ok()));
    if let (Ok(_), Ok(reader)) = (own_file(run, &run.file("run.db")), Reader::open(run)) {
        add("launch.json", reader.fact::<serde_json::Value>("launch").map(|launch| launch.to_string()));
        add("journal.txt", journal(&reader).ok());
        add("attempts.txt", reader.attempts().ok().map(|lines| lines.join("\n")));
        add("causes.json", serde_json::to_string_pretty(&reader.causes()).ok());
        let readings = reader.samples(READINGS).unwrap_or_default();
        let lines = readings.iter().filter_map(|row| serde_json::to_string(row).ok());
        add("readings.jsonl", Some(lines.collect::<Vec<_>>().join("\n")));
    }
    for entry in checkpoint::list(run.path()) {
        for name in ["manifest.json", "state.json"] {
            let folder = entry.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            add(&format!("checkpoints/{folder}/{name}"), own_text(run, &entry.path.join(name)));
        }
    }
    parts
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
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
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
    let gpu = match watch::read_once(place, 0).and_then(|reading| reading.gpu) {
        Ok(gpu) => gpu,
        Err(why) => return format!("unknown: {why}"),
    };
    let known = |metric: &Metric<String>| metric.last().cloned().unwrap_or_else(|| "unknown".to_owned());
    format!("{}, CUDA {}, {}", known(&gpu.driver), known(&gpu.more.cuda), gpu.name)
}

/// Opens a regular file of the run directory. Rejects links, also in the path: they may lead outside the run.
fn own_file(run: &RunDir, path: &Path) -> io::Result<File> {
    if path.canonicalize()? != path || !path.starts_with(run.path()) {
        return Err(io::Error::other("this is a symbolic link"));
    }
    let file = File::options().read(true).custom_flags(no_link()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("this is no file")) }
}

/// Returns the end of such a file.
fn own_text(run: &RunDir, path: &Path) -> Option<String> {
    own_file(run, path).and_then(tail).ok()
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

fn triage(log: File) -> Option<String> {
    let catalogue = Catalogue::load().or_else(|_| Catalogue::with(None)).ok()?;
    let mut log = io::BufReader::new(log);
    let found = scan(&mut log, &catalogue).ok()?;
    let lines = found.findings.iter().map(|finding| {
        format!("line {}: {}: {} ({})", finding.line, finding.class.word(), finding.text, finding.meaning)
    });
    Some(lines.collect::<Vec<_>>().join("\n"))
}
