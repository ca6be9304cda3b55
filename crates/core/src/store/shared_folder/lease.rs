//! The lease of a keeper. Each holder makes a file with the next number, which can succeed once only; from then on it alone
//! writes that file. The file with the highest number counts, and stays: a number never means two holders.
//!
//! ```text
//!  none, or given back ───────────▶ free
//!  of this boot ──────────────────▶ the locks of this host decide
//!  of another boot, unless it ended ▶ elsewhere: refused (takeover.rs)
//! ```
//! Clocks of two hosts are never compared: a lease lives while its beat is seen to change.

mod host;

pub use host::Host;

use super::job::Job;
use super::{has_no_such_call, refresh};
use crate::store::identity::{Identity, boot_id};
use crate::store::owners;
use crate::store::run_dir::{write_synced, write_whole};
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Interval between two beats of a lease.
pub const BEAT: Duration = Duration::from_secs(10);

/// Name of the folder.
const FOLDER: &str = "leases";
/// Attempts to read a lease that is just being replaced.
const READS: u32 = 20;

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
    /// Why its file cannot be read; then nothing else but the number is known.
    #[serde(skip)]
    pub unreadable: Option<Unreadable>,
}

/// A lease file that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// The file, and the problem.
    why: String,
    /// A hash of its bytes: it shows whether the file changes.
    hash: Option<blake3::Hash>,
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
            unreadable: None,
        }
    }

    /// Returns the lease of an unknown holder, whose file cannot be read.
    fn unknown(number: u64, why: String, hash: Option<blake3::Hash>) -> Self {
        Self {
            number,
            owner: Identity { pid: 0, boot: String::new(), started: 0 },
            host: Host { name: "unknown".to_owned(), machine: String::new() },
            job: None,
            since_ms: 0,
            beat: 0,
            end: None,
            unreadable: Some(Unreadable { why, hash }),
        }
    }

    /// Reports whether it holds the run for a process of another boot, which this host cannot see.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.end.is_none() && (self.unreadable.is_some() || self.owner.boot != boot_id())
    }

    /// Reports whether its holder is another process of this host that is alive. Its locks may not show that, on a mount
    /// without locks.
    fn has_living_owner(&self) -> bool {
        self.end.is_none() && self.owner != Identity::own() && self.owner.is_alive()
    }

    /// Names the holder: host, process, job and since when.
    #[must_use]
    pub fn holder(&self) -> String {
        if let Some(Unreadable { why, .. }) = &self.unreadable {
            return format!("an unknown process, since its lease cannot be read ({})", text::escape_line(why));
        }
        let since = jiff::Timestamp::from_millisecond(self.since_ms).unwrap_or_default();
        let since = since.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S");
        let job = self.job.as_ref().map(|job| format!(" in Slurm job {}", job.id)).unwrap_or_default();
        let text = format!("process {} on host {}{job}, since {since} by its clock", self.owner.pid, self.host.name);
        text::escape_line(&text).into_owned()
    }
}

/// Returns the lease that counts; none if there never was one. A file that cannot be read is the lease of an unknown holder.
///
/// # Errors
/// Returns an error when the folder cannot be read: then nobody knows who holds the run.
pub fn newest(run: &Path) -> io::Result<Option<Lease>> {
    let folder = run.join(FOLDER);
    match refresh(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // A folder on a read-only mount is listed as it is.
        Err(error) if error.raw_os_error() == Some(Errno::ROFS.raw_os_error()) => {}
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        refreshed => drop(refreshed?),
    }
    let mut unknown = None;
    for _ in 0..READS {
        let Some(number) = numbers(&folder)?.into_iter().max() else { return Ok(None) };
        match read(&folder, number) {
            Ok(lease) => return Ok(Some(lease)),
            // Its holder replaces it at this moment, or a later one has removed it.
            Err(error) => unknown = Some(Lease::unknown(number, error.to_string(), hash(&folder, number))),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(unknown)
}

/// Returns the lease of a keeper that this host cannot see. One that cannot be read is such a lease.
#[must_use]
pub fn elsewhere(run: &Path) -> Option<Lease> {
    match newest(run) {
        Ok(lease) => lease.filter(Lease::is_elsewhere),
        Err(error) => Some(Lease::unknown(0, format!("{}: {error}", text::path(&run.join(FOLDER))), None)),
    }
}

/// Returns how long the file of the newest lease has not changed; none if the server does not say. Both times are the server's.
#[must_use]
pub fn age(run: &Path) -> Option<Duration> {
    let folder = run.join(FOLDER);
    let now = refresh(&folder).ok()?;
    let newest = numbers(&folder).ok()?.into_iter().max()?;
    now.duration_since(fs::metadata(place(&folder, newest)).ok()?.modified().ok()?).ok()
}

fn hash(folder: &Path, number: u64) -> Option<blake3::Hash> {
    file::read_text(&place(folder, number), Limit::Handwritten).ok().map(|content| blake3::hash(content.as_bytes()))
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
    let made = match fs::hard_link(&draft, &path) {
        Ok(()) => true,
        // Some file systems of FUSE and some Windows shares have no links.
        Err(error) if has_no_such_call(&error) => create_exclusively(&path, lease)?,
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

/// Makes the file of a lease where links are not supported. A reader may see half of it, and reads it again.
fn create_exclusively(path: &Path, lease: &Lease) -> io::Result<bool> {
    let mut options = fs::OpenOptions::new();
    let mut file = match options.write(true).create_new(true).mode(0o644).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        opened => opened?,
    };
    let written = file.write_all(&serde_json::to_vec(lease)?).and_then(|()| file.sync_all());
    written.inspect_err(|_| drop(fs::remove_file(path))).map(|()| true)
}

/// Rewrites the file of a lease that this process made. A network file system may report a full disk as late as at the
/// sync, so the new content replaces the old one only after that.
fn rewrite(folder: &Path, lease: &Lease) -> io::Result<()> {
    let (path, content) = (place(folder, lease.number), serde_json::to_vec(lease)?);
    match write_synced(&path, &content) {
        Err(error)
            if [Errno::NOSPC, Errno::DQUOT].iter().any(|full| error.raw_os_error() == Some(full.raw_os_error())) =>
        {
            // A full disk has no room for another file.
            let file = fs::OpenOptions::new().write(true).open(&path)?;
            file.write_all_at(&content, 0)?;
            file.set_len(content.len() as u64)?;
            file.sync_all()
        }
        written => written,
    }
}

/// A lease that this process holds. Given back when it is dropped, unless processes of the run are left on this host: then it
/// stands still.
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
    make_folder(&folder).map_err(|error| name_way_out(&folder, error))?;
    for _ in 0..READS {
        let last = newest(run)?;
        if let Some(other) = last.as_ref().filter(|last| last.is_elsewhere() || last.has_living_owner()) {
            return Ok(Err(Box::new(other.clone())));
        }
        let lease = Lease::own(last.map_or(0, |last| last.number) + 1);
        if create(&folder, &lease).map_err(|error| name_way_out(&folder, error))? {
            for passed in numbers(&folder)?.into_iter().filter(|number| *number < lease.number) {
                fs::remove_file(place(&folder, passed)).ok();
            }
            return Ok(Ok(HeldLease(Arc::new(Shared { folder, lease: Mutex::new(lease) }))));
        }
    }
    Err(io::Error::other(format!("{}: other processes keep taking the lease", text::path(&folder))))
}

fn make_folder(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Explains an error that no retry mends. Others keep their code, by which the keeper's parent decides to retry.
fn name_way_out(folder: &Path, error: io::Error) -> io::Error {
    if !has_no_such_call(&error) && error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    let place = text::path(folder);
    let text = format!(
        "{place}: the lease of the run cannot be written: {error}; if no other host uses this folder, set \
         DOWNSHIFT_SHARED_FOLDER=no"
    );
    io::Error::new(error.kind(), text)
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
        if lease.end.is_some() || self.0.folder.parent().is_some_and(owners::has_processes) {
            return;
        }
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
        let folder = &self.0.folder;
        match refresh(folder) {
            // Someone has deleted it; the run itself is still there.
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_folder(folder)?,
            refreshed => drop(refreshed?),
        }
        if let Some(later) = numbers(folder)?.into_iter().filter(|number| *number > lease.number).max() {
            lease.end = Some("lost".to_owned());
            let unknown = |error: io::Error| Lease::unknown(later, error.to_string(), None);
            return Ok(Err(Box::new(read(folder, later).unwrap_or_else(unknown))));
        }
        let next = Lease { beat: lease.beat + 1, ..lease.clone() };
        rewrite(folder, &next)?;
        *lease = next;
        Ok(Ok(()))
    }
}

#[cfg(test)]
pub(super) mod tests;
