//! The companion: the Python package that runs inside the processes of a command. It is part of this program, and is
//! unpacked into the user's cache, where Python finds it through `PYTHONPATH`.
//!
//! Whoever can write there decides what runs inside a training. So the folder belongs to the user alone, has the hash of
//! its content in its name, and is compared with this program before each start.

use crate::format::quoted;
use crate::store::permissions::{Exposed, exposed_above};
use crate::store::socket_place::private_folder;
use crate::store::user_folder::{self, user_folder};
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use rustix::process::geteuid;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The variable with the folders that Python searches first.
pub const PATH_VARIABLE: &str = "PYTHONPATH";
/// Where Python keeps compiled modules, beside their sources.
const COMPILED: &str = "__pycache__";

/// Lists files below `python/companion` with their content.
macro_rules! files {
    ($($name:literal),+ $(,)?) => {
        [$(($name, include_str!(concat!("../python/companion/", $name)))),+]
    };
}

/// The files of the package, by their path.
const FILES: &[(&str, &str)] = &files![
    "downshift/__init__.py",
    "downshift_cockpit/__init__.py",
    "downshift_cockpit/accelerate.py",
    "downshift_cockpit/accelerate_kept.py",
    "downshift_cockpit/accelerate_passes.py",
    "downshift_cockpit/batch_content.py",
    "downshift_cockpit/batches.py",
    "downshift_cockpit/best.py",
    "downshift_cockpit/blame.py",
    "downshift_cockpit/border.py",
    "downshift_cockpit/constants.py",
    "downshift_cockpit/excepthook.py",
    "downshift_cockpit/fetch.py",
    "downshift_cockpit/flight.py",
    "downshift_cockpit/gradients.py",
    "downshift_cockpit/hf.py",
    "downshift_cockpit/hf_checkpoint.py",
    "downshift_cockpit/hf_training.py",
    "downshift_cockpit/imports.py",
    "downshift_cockpit/inject.py",
    "downshift_cockpit/introduction.py",
    "downshift_cockpit/knobs.py",
    "downshift_cockpit/lightning.py",
    "downshift_cockpit/lightning_checkpoint.py",
    "downshift_cockpit/lightning_epochs.py",
    "downshift_cockpit/lightning_training.py",
    "downshift_cockpit/loader_state.py",
    "downshift_cockpit/loads.py",
    "downshift_cockpit/loop.py",
    "downshift_cockpit/next_batch.py",
    "downshift_cockpit/optimizer_hook.py",
    "downshift_cockpit/order.py",
    "downshift_cockpit/position.py",
    "downshift_cockpit/random_state.py",
    "downshift_cockpit/rank_check.py",
    "downshift_cockpit/rank_file.py",
    "downshift_cockpit/ranks.py",
    "downshift_cockpit/rate_in_force.py",
    "downshift_cockpit/rates.py",
    "downshift_cockpit/report.py",
    "downshift_cockpit/rhythm.py",
    "downshift_cockpit/safetensors.py",
    "downshift_cockpit/sample.py",
    "downshift_cockpit/saver.py",
    "downshift_cockpit/scaler_hook.py",
    "downshift_cockpit/shield.py",
    "downshift_cockpit/snapshot.py",
    "downshift_cockpit/stacks.py",
    "downshift_cockpit/standby.py",
    "downshift_cockpit/trial_output.py",
    "downshift_cockpit/values.py",
    "downshift_cockpit/wire.py",
    "sitecustomize.py",
];

/// Reason why the companion is not available.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The user has no cache folder.
    #[error("neither XDG_CACHE_HOME nor HOME names a folder")]
    NoCache,
    /// Another user can change the folder.
    #[error("{} belongs to another user, or others can write to it; remove it", text::path(.0))]
    Foreign(PathBuf),
    /// Another user can exchange the folder.
    #[error(
        "{0}; take their right to write away (`chmod go-w {path}`), or set XDG_CACHE_HOME to a folder of yours",
        path = quoted(&text::path(&.0.path))
    )]
    Exposed(Exposed),
    /// The system refused.
    #[error("{}: {source}", text::path(.path))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl UnpackError {
    fn of(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

/// The state of the folder on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Whole,
    Missing,
    /// Something in it differs.
    Changed,
}

/// Returns the folder with the package, unpacked if it is not there or differs. If other users can exchange what is in the
/// cache, it is unpacked beside the user's sockets instead.
///
/// # Errors
/// Returns why there is none.
pub fn unpack() -> Result<PathBuf, UnpackError> {
    let cache = user_folder("XDG_CACHE_HOME", ".cache").ok_or(UnpackError::NoCache)?;
    unpack_into(&cache).or_else(|error| match error {
        UnpackError::Exposed(_) => private_folder().ok().map_or(Err(error), |private| unpack_into(&private)),
        _ => Err(error),
    })
}

/// Puts the package's folder in front of the folders that Python searches already. None of them is empty: Python would
/// take that for the current folder.
#[must_use]
pub fn search_path(package: &Path, existing: Option<&OsStr>) -> OsString {
    let mut path = package.as_os_str().to_owned();
    if let Some(existing) = existing.filter(|existing| !existing.is_empty()) {
        path.push(":");
        path.push(existing);
    }
    path
}

fn unpack_into(cache: &Path) -> Result<PathBuf, UnpackError> {
    prepare_cache(cache)?;
    if let Some(exposed) = exposed_above(cache).map_err(UnpackError::of(cache))? {
        return Err(UnpackError::Exposed(exposed));
    }
    // Python finds the package by the path that was checked, not by a link that leads there now.
    let cache = &cache.canonicalize().map_err(UnpackError::of(cache))?;
    let folder = cache.join(format!("companion-{}", &content_hash().to_hex()[..16]));
    if look_at(&folder)? == Found::Whole {
        return Ok(folder);
    }
    let draft = create_draft(cache)?;
    let placed = write_files(&draft).and_then(|()| place(&draft, &folder));
    if placed.is_err() {
        let _ = fs::remove_dir_all(&draft);
    }
    placed.map(|()| folder)
}

/// Creates a new folder for a draft. Nobody can know its name before, and it is never an existing one.
fn create_draft(cache: &Path) -> Result<PathBuf, UnpackError> {
    // Its keys are random.
    let number = RandomState::new().hash_one(std::process::id());
    let draft = cache.join(format!(".companion-{number:016x}"));
    DirBuilder::new().mode(0o700).create(&draft).map_err(UnpackError::of(&draft))?;
    Ok(draft)
}

/// Creates the folder in the user's cache, or closes the one that is there to others: whoever can write to it can exchange
/// what is in it.
fn prepare_cache(cache: &Path) -> Result<(), UnpackError> {
    if let Some(parent) = cache.parent() {
        user_folder::create(parent).map_err(UnpackError::of(parent))?;
    }
    match DirBuilder::new().mode(0o700).create(cache) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(UnpackError::of(cache)(error)),
        _ => {}
    }
    // The folder itself may be a link of the user's own, to another disk.
    let about = fs::metadata(cache).map_err(UnpackError::of(cache))?;
    if !about.is_dir() || about.uid() != geteuid().as_raw() {
        return Err(UnpackError::Foreign(cache.to_owned()));
    }
    if about.mode() & 0o022 != 0 {
        // With umask 002, other programs create it so. What is in it is compared before each start.
        let closed = Permissions::from_mode(about.mode() & 0o7755);
        fs::set_permissions(cache, closed).map_err(UnpackError::of(cache))?;
    }
    Ok(())
}

fn content_hash() -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for (name, content) in FILES {
        for part in [name, content] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
    }
    hasher.finalize()
}

/// Compares the folder with the package.
fn look_at(folder: &Path) -> Result<Found, UnpackError> {
    let about = match fs::symlink_metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Missing),
        about => about.map_err(UnpackError::of(folder))?,
    };
    if !about.is_dir() || about.uid() != geteuid().as_raw() || about.mode() & 0o077 != 0 {
        return Err(UnpackError::Foreign(folder.to_owned()));
    }
    let expected: BTreeSet<&str> = FILES.iter().map(|(name, _)| *name).collect();
    let is_same = |(name, content): &(&str, &str)| {
        let path = folder.join(name);
        let is_plain = fs::symlink_metadata(&path).is_ok_and(|about| about.is_file());
        is_plain && file::read(&path, Limit::Handwritten).is_ok_and(|found| found == content.as_bytes())
    };
    let whole =
        FILES.iter().all(is_same) && names_below(folder, "").iter().all(|name| expected.contains(name.as_str()));
    Ok(if whole { Found::Whole } else { Found::Changed })
}

/// Returns the paths of all files in a folder, except those that Python compiled.
fn names_below(folder: &Path, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(folder.join(prefix)).into_iter().flatten().flatten();
    let below = entries.filter(|entry| entry.file_name() != COMPILED).flat_map(|entry| {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => names_below(folder, &format!("{name}/")),
            _ => vec![name],
        }
    });
    below.collect()
}

fn write_files(draft: &Path) -> Result<(), UnpackError> {
    let create = |folder: &Path| DirBuilder::new().mode(0o700).recursive(true).create(folder);
    for (name, content) in FILES {
        let path = draft.join(name);
        let written = path.parent().map_or(Ok(()), create).and_then(|()| {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(content.as_bytes())
        });
        written.map_err(UnpackError::of(&path))?;
    }
    Ok(())
}

/// Gives the draft its name. Another process may have been faster, and a changed folder is replaced.
fn place(draft: &Path, folder: &Path) -> Result<(), UnpackError> {
    match look_at(folder)? {
        Found::Whole => return fs::remove_dir_all(draft).map_err(UnpackError::of(draft)),
        Found::Changed => fs::remove_dir_all(folder).map_err(UnpackError::of(folder))?,
        Found::Missing => {}
    }
    match fs::rename(draft, folder) {
        Err(_) if look_at(folder)? == Found::Whole => fs::remove_dir_all(draft).map_err(UnpackError::of(draft)),
        renamed => renamed.map_err(UnpackError::of(folder)),
    }
}

#[cfg(test)]
mod tests {
    use super::{FILES, UnpackError, names_below, search_path, unpack_into};
    use std::ffi::OsStr;
    use std::fs::{self, Permissions};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;
    use tempfile::TempDir;

    #[test]
    fn every_file_of_the_package_is_part_of_the_program() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/companion");
        let mut there = names_below(&sources, "");
        there.retain(|name| Path::new(name).extension().is_some_and(|ending| ending == "py"));
        there.sort();
        let listed: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(listed, there, "src/companion.rs lists the files of python/companion, sorted");
    }

    #[test]
    fn the_package_is_unpacked_once_and_again_when_it_differs() {
        let cache = TempDir::new().unwrap();
        let folder = unpack_into(&cache.path().join("new/downshift")).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        for (name, content) in FILES {
            assert_eq!(fs::read_to_string(folder.join(name)).unwrap(), *content);
        }
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let before = inode(&folder);
        fs::create_dir_all(folder.join("downshift_cockpit/__pycache__")).unwrap();
        fs::write(folder.join("downshift_cockpit/__pycache__/wire.pyc"), "compiled").unwrap();
        let again = || unpack_into(&cache.path().join("new/downshift")).unwrap();
        assert_eq!(inode(&again()), before, "whole: left alone");
        let (first, last) = (folder.join(FILES[0].0), folder.join("torch.py"));
        fs::write(&first, "changed").unwrap();
        assert_ne!(inode(&again()), before);
        fs::write(&last, "more").unwrap();
        again();
        assert!(!last.exists(), "a file of no one is removed");
        fs::remove_file(&first).unwrap();
        symlink("/etc/passwd", &first).unwrap();
        again();
        assert_eq!(fs::read_to_string(&first).unwrap(), FILES[0].1);
        assert_eq!(fs::read_dir(cache.path().join("new/downshift")).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        let cache = TempDir::new().unwrap();
        let folder = unpack_into(cache.path()).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(unpack_into(cache.path()), Err(UnpackError::Foreign(path)) if path == folder));
        fs::remove_dir_all(&folder).unwrap();
        symlink("/tmp", &folder).unwrap();
        assert!(matches!(unpack_into(cache.path()), Err(UnpackError::Foreign(_))));
        fs::remove_file(&folder).unwrap();
        for mode in [0o720, 0o702] {
            fs::set_permissions(cache.path(), Permissions::from_mode(mode)).unwrap();
            assert!(unpack_into(cache.path()).is_ok());
            let closed = fs::metadata(cache.path()).unwrap().permissions().mode();
            assert_eq!(closed & 0o777, 0o700, "{mode:o}: the user's own cache is closed to others");
        }
        fs::set_permissions(cache.path(), Permissions::from_mode(0o755)).unwrap();
        assert!(unpack_into(cache.path()).is_ok(), "others may read the cache");
    }

    #[test]
    fn a_cache_that_others_can_exchange_is_not_used() {
        let home = TempDir::new().unwrap();
        let cache = home.path().join("cache");
        assert!(unpack_into(&cache.join("downshift")).is_ok());
        assert_eq!(fs::metadata(&cache).unwrap().mode() & 0o777, 0o700, "closed, as the folders of XDG are");
        fs::set_permissions(&cache, Permissions::from_mode(0o777)).unwrap();
        let refused = unpack_into(&cache.join("downshift")).unwrap_err().to_string();
        assert!(refused.contains("cache (owner") && refused.contains("`chmod go-w "), "{refused}");
        fs::set_permissions(&cache, Permissions::from_mode(0o1777)).unwrap();
        assert!(unpack_into(&cache.join("downshift")).is_ok(), "as in /tmp");
        fs::set_permissions(&cache, Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(home.path(), Permissions::from_mode(0o757)).unwrap();
        assert!(matches!(unpack_into(&cache.join("downshift")), Err(UnpackError::Exposed(_))), "any folder above");
    }

    #[test]
    fn a_folder_prepared_under_the_name_of_a_draft_is_not_used() {
        let cache = TempDir::new().unwrap();
        let elsewhere = TempDir::new().unwrap();
        let trap = cache.path().join(format!(".companion-{}", std::process::id()));
        symlink(elsewhere.path(), &trap).unwrap();
        unpack_into(cache.path()).unwrap();
        assert!(fs::symlink_metadata(&trap).unwrap().is_symlink(), "left alone");
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_search_path_has_no_empty_part() {
        let path = |existing: Option<&[u8]>| search_path(Path::new("/c"), existing.map(OsStr::from_bytes));
        assert_eq!(path(None), "/c");
        assert_eq!(path(Some(b"")), "/c");
        assert_eq!(path(Some(b"/a:/b")), "/c:/a:/b");
        assert_eq!(path(Some(b"/caf\xe9")).as_bytes(), b"/c:/caf\xe9", "a folder that is not UTF-8");
    }
}
