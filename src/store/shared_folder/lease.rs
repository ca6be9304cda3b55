//! The lease of a keeper. Each holder makes a file with the next number, which can succeed once only; from then on it alone
//! writes that file. The file with the highest number counts, and stays: a number never means two holders.
//!
//! ```text
//!  none, or given back ───────────▶ free
//!  of this boot ──────────────────▶ the locks of this host decide
//!  of another boot, unless it ended ▶ elsewhere: refused (takeover.rs)
//! ```
//! Clocks of two hosts are never compared: a lease lives while its beat is seen to change.

use super::job::Job;
use super::{host_name, refresh};
use crate::store::identity::{Identity, boot_id};
use crate::store::run_dir::{write_unsynced, write_whole};
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Interval between two beats of a lease.
pub const BEAT: Duration = Duration::from_secs(10);

/// Name of the folder.
const FOLDER: &str = "leases";
/// Attempts to read a lease that is just being replaced.
const READS: u32 = 20;

/// The host that this process runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// A hash of its machine id; empty if it has none.
    pub machine: String,
}

/// A keeper's lease of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Number of the lease among those of the run, from 1.
    pub number: u64,
    /// The keeper. Its boot tells hosts apart.
    #[serde(flatten)]
    pub owner: Identity,
    /// Its host.
    pub host: Host,
    /// Its job, if Slurm started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    /// When it began, by the clock of its host, Unix milliseconds; for people.
    pub since_ms: i64,
    /// Number of renewals.
    pub beat: u64,
    /// Why it no longer holds; none while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<String>,
}

impl Host {
    /// Returns this host.
    #[must_use]
    pub fn own() -> Self {
        let id = fs::read_to_string("/etc/machine-id").or_else(|_| fs::read_to_string("/proc/sys/kernel/machine-id"));
        let hash = |id: String| blake3::hash(id.trim().as_bytes()).to_hex()[..16].to_owned();
        Self { name: host_name(), machine: id.ok().filter(|id| !id.trim().is_empty()).map(hash).unwrap_or_default() }
    }

    /// Reports whether this is the same machine as another: by name and id, as clusters may boot many from one image.
    #[must_use]
    pub fn is_machine_of(&self, other: &Self) -> bool {
        !self.machine.is_empty() && self == other
    }
}

impl Lease {
    /// Returns a lease of this process with a number.
    fn own(number: u64) -> Self {
        Self {
            number,
            owner: Identity::own(),
            host: Host::own(),
            job: Job::own(|name| std::env::var(name).ok()),
            since_ms: jiff::Timestamp::now().as_millisecond(),
            beat: 0,
            end: None,
        }
    }

    /// Reports whether it holds the run for a process of another boot, which this host cannot see.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.end.is_none() && self.owner.boot != boot_id()
    }

    /// Names the holder: host, process, job and since when.
    #[must_use]
    pub fn holder(&self) -> String {
        let since = jiff::Timestamp::from_millisecond(self.since_ms).unwrap_or_default();
        let since = since.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S");
        let job = self.job.as_ref().map(|job| format!(" in Slurm job {}", job.id)).unwrap_or_default();
        let text = format!("process {} on host {}{job}, since {since} by its clock", self.owner.pid, self.host.name);
        text::escape_line(&text).into_owned()
    }
}

/// Returns the lease that counts; none if there never was one.
///
/// # Errors
/// Returns an error when it cannot be read: then nobody knows who holds the run.
pub fn newest(run: &Path) -> io::Result<Option<Lease>> {
    let folder = run.join(FOLDER);
    match refresh(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // A folder on a read-only mount is listed as it is.
        Err(error) if error.raw_os_error() == Some(Errno::ROFS.raw_os_error()) => {}
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        refreshed => drop(refreshed?),
    }
    let mut wrong = None;
    for _ in 0..READS {
        let Some(number) = numbers(&folder)?.into_iter().max() else { return Ok(None) };
        match read(&folder, number) {
            Ok(lease) => return Ok(Some(lease)),
            // Its holder replaces it at this moment, or a later one has removed it.
            Err(error) => wrong = Some(error),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(wrong.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// Returns the lease of a keeper that this host cannot see; none also when it cannot be read.
#[must_use]
pub fn elsewhere(run: &Path) -> Option<Lease> {
    newest(run).ok().flatten().filter(Lease::is_elsewhere)
}

fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let names = fs::read_dir(folder)?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect())
}

fn place(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number}.json"))
}

fn read(folder: &Path, number: u64) -> io::Result<Lease> {
    let path = place(folder, number);
    let unreadable = |why: String| io::Error::other(format!("{}: {why}", text::path(&path)));
    let content = file::read_text(&path, Limit::Handwritten).map_err(|error| unreadable(error.to_string()))?;
    // Written in place on a full disk, it may be followed by the end of a longer one.
    let first = serde_json::Deserializer::from_str(&content).into_iter::<Lease>().next();
    let lease = first.and_then(Result::ok).filter(|lease| lease.number == number);
    lease.ok_or_else(|| unreadable("not a lease".to_owned()))
}

/// Makes the file of a lease, unless another process was first.
fn create(folder: &Path, lease: &Lease) -> io::Result<bool> {
    let draft = folder.join(format!(".{}.{}.{}", lease.number, lease.owner.boot, lease.owner.pid));
    let path = place(folder, lease.number);
    fs::remove_file(&draft).ok();
    write_whole(&draft, &serde_json::to_vec(lease)?)?;
    // A link either makes the name or fails, on every version of NFS.
    let linked = fs::hard_link(&draft, &path);
    let made = match linked {
        Ok(()) => true,
        // The server may have made the link although its answer was lost.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            read(folder, lease.number).is_ok_and(|it| it == *lease)
        }
        Err(error) => {
            fs::remove_file(&draft).ok();
            return Err(error);
        }
    };
    fs::remove_file(&draft).ok();
    // A slow process may have made a number that others have passed and removed.
    if made && numbers(folder)?.into_iter().any(|number| number > lease.number) {
        fs::remove_file(&path).ok();
        return Ok(false);
    }
    Ok(made)
}

/// Rewrites the file of a lease that this process made.
fn rewrite(folder: &Path, lease: &Lease) -> io::Result<()> {
    let (path, content) = (place(folder, lease.number), serde_json::to_vec(lease)?);
    match write_unsynced(&path, &content) {
        Err(error)
            if [Errno::NOSPC, Errno::DQUOT].iter().any(|full| error.raw_os_error() == Some(full.raw_os_error())) =>
        {
            // A full disk has no room for another file.
            let file = fs::OpenOptions::new().write(true).open(&path)?;
            file.write_all_at(&content, 0)?;
            file.set_len(content.len() as u64)
        }
        written => written,
    }
}

/// A lease that this process holds. Given back when it is dropped.
#[derive(Debug)]
pub struct HeldLease(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    lease: Mutex<Lease>,
}

impl Shared {
    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Renews a lease, in another thread than the one that holds it.
#[derive(Debug, Clone)]
pub struct Renewal(Arc<Shared>);

/// Takes the lease of a run. The caller has made sure that no process of this host holds it.
///
/// # Errors
/// Returns the lease of another host, or one that was made at this moment, or the system's error.
pub fn take(run: &Path) -> io::Result<Result<HeldLease, Box<Lease>>> {
    let folder = run.join(FOLDER);
    match DirBuilder::new().mode(0o755).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for _ in 0..READS {
        let last = newest(run)?;
        if let Some(other) = last.as_ref().filter(|last| last.is_elsewhere()) {
            return Ok(Err(Box::new(other.clone())));
        }
        let lease = Lease::own(last.map_or(0, |last| last.number) + 1);
        if create(&folder, &lease)? {
            for passed in numbers(&folder)?.into_iter().filter(|number| *number < lease.number) {
                fs::remove_file(place(&folder, passed)).ok();
            }
            return Ok(Ok(HeldLease(Arc::new(Shared { folder, lease: Mutex::new(lease) }))));
        }
    }
    Err(io::Error::other(format!("{}: other processes keep taking the lease", text::path(&folder))))
}

/// Ends the lease of a keeper that is known to be gone. Returns false if the lease has changed hands meanwhile.
///
/// # Errors
/// Returns the system's error.
pub fn supersede(run: &Path, gone: &Lease, why: &str) -> io::Result<bool> {
    let lease = Lease { end: Some(why.to_owned()), ..Lease::own(gone.number + 1) };
    create(&run.join(FOLDER), &lease)
}

impl HeldLease {
    /// Returns what renews it.
    #[must_use]
    pub fn renewal(&self) -> Renewal {
        Renewal(Arc::clone(&self.0))
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        let mut lease = self.0.lease();
        lease.end = Some("given back".to_owned());
        // What deletes the run holds its lease: then the folder is gone.
        let _ = rewrite(&self.0.folder, &lease);
    }
}

impl Renewal {
    /// Renews the lease. Returns the lease of another process, if one has taken the run over.
    ///
    /// # Errors
    /// Returns the system's error; the lease stands still then.
    pub fn renew(&self) -> io::Result<Result<(), Box<Lease>>> {
        let mut lease = self.0.lease();
        if lease.end.is_some() {
            return Ok(Ok(()));
        }
        refresh(&self.0.folder)?;
        if let Some(later) = numbers(&self.0.folder)?.into_iter().filter(|number| *number > lease.number).max() {
            return Ok(Err(Box::new(read(&self.0.folder, later)?)));
        }
        let next = Lease { beat: lease.beat + 1, ..lease.clone() };
        rewrite(&self.0.folder, &next)?;
        *lease = next;
        Ok(Ok(()))
    }
}

#[cfg(test)]
pub(super) mod tests;
