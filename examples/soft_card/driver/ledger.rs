//! The memory that processes use, shared through a folder (`SOFT_CARD_LEDGER`).
//!
//! A file per process and device, named by the process id, holds `BYTES 0 listed`. Files of ended processes do not
//! count, unless a test has replaced the 0, for memory that is not released. That is the format of `fake_nvml`'s `.held`
//! folder: with the folder `libfake_nvml.held` as the ledger, the gauges show the memory that the soft card counts, and
//! list the processes. Devices after the first have folders of their own in it: `device-1` and so on.

use crate::settings;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process;

pub struct Ledger {
    folder: Option<PathBuf>,
}

impl Ledger {
    pub fn of_device(device: usize) -> Self {
        let folder = settings::setting("LEDGER").map(PathBuf::from);
        let folder = folder.map(|folder| if device == 0 { folder } else { folder.join(format!("device-{device}")) });
        Self { folder: folder.filter(|folder| fs::create_dir_all(folder).is_ok()) }
    }

    /// Enters `own + more` bytes if these and what others use fit into the capacity.
    pub fn claim(&self, own: u64, more: u64, capacity: u64) -> bool {
        let Some(folder) = &self.folder else { return own + more <= capacity };
        let Some(_lock) = lock(folder) else { return false };
        let fits = own + more + used_by_others(folder) <= capacity;
        if fits {
            write_entry(folder, own + more);
        }
        fits
    }

    pub fn write(&self, own: u64) {
        let Some(folder) = &self.folder else { return };
        let _lock = lock(folder);
        write_entry(folder, own);
    }

    pub fn others(&self) -> u64 {
        self.folder.as_deref().map_or(0, used_by_others)
    }
}

fn lock(folder: &Path) -> Option<File> {
    let file = File::create(folder.join(".lock")).ok()?;
    file.lock().ok()?;
    Some(file)
}

fn write_entry(folder: &Path, bytes: u64) {
    let (partial, entry) = (folder.join(format!(".{}", process::id())), folder.join(process::id().to_string()));
    // A reader sees the old entry or the new one.
    if fs::write(&partial, format!("{bytes} 0 listed")).is_ok() {
        let _ = fs::rename(partial, entry);
    }
}

fn used_by_others(folder: &Path) -> u64 {
    let of_process = |entry: fs::DirEntry| {
        let pid: u32 = entry.file_name().into_string().ok()?.parse().ok()?;
        let text = fs::read_to_string(entry.path()).ok().filter(|_| pid != process::id())?;
        let mut words = text.split_whitespace();
        let bytes = words.next()?.parse::<u64>().ok()?;
        let is_held = words.next() != Some("0") || Path::new("/proc").join(pid.to_string()).exists();
        is_held.then_some(bytes)
    };
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(of_process).sum()
}
