//! Location of a keeper's control socket. Socket paths are limited to 107 bytes, so the socket has a
//! short name in a directory that belongs only to the user. Clients find it through the keeper's lock
//! file, because their environment (cron, sudo) may point to another directory.

use super::owners;
use super::run_dir::RunDir;
use crate::untrusted::text;
use rustix::process::getuid;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Maximum length of a socket path, in bytes.
const LONGEST: usize = 107;
/// Alternative directories among the temporary files, for when others have taken the first name.
const SPARE: u32 = 9;

/// Returns the socket of a run's keeper: the one in use, or else the first choice of the next keeper.
#[must_use]
pub fn socket_of(run: &RunDir) -> PathBuf {
    let listening = owners::keeper_record(run).and_then(|record| record.socket);
    listening.unwrap_or_else(|| {
        let places = places(run, "");
        places.iter().find(|path| usable(path).is_ok()).or(places.first()).cloned().unwrap_or_default()
    })
}

/// Creates the directory for a run's socket, in the first usable location. Returns the socket's path.
///
/// # Errors
/// Returns the error of the last location when none is usable.
pub fn prepare(run: &RunDir) -> io::Result<PathBuf> {
    prepare_first(&places(run, ""))
}

/// Creates the directory for the socket of a run's harness, where a later keeper finds it.
///
/// # Errors
/// Returns the error of the last location when none is usable.
pub fn prepare_harness(run: &RunDir) -> io::Result<PathBuf> {
    prepare_first(&places(run, "-command"))
}

/// Creates the directory for the socket of a run's harness, where the companions of its command find it.
///
/// # Errors
/// Returns the error of the last location when none is usable.
pub fn prepare_companion(run: &RunDir) -> io::Result<PathBuf> {
    prepare_first(&places(run, "-companion"))
}

/// Creates the directory for the socket of a node of the job, where the companions of that node find it.
///
/// # Errors
/// Returns the error of the last location when none is usable.
pub fn prepare_node(run: &RunDir, node: u32) -> io::Result<PathBuf> {
    prepare_first(&places(run, &format!("-node-{node}")))
}

/// Removes the sockets that a killed harness left behind.
pub fn remove_left(run: &RunDir) {
    let left = ["-command", "-companion"].into_iter().flat_map(|role| places(run, role));
    for path in left.filter(|path| fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())) {
        let _ = fs::remove_file(path);
    }
}

fn prepare_first(places: &[PathBuf]) -> io::Result<PathBuf> {
    let mut refused = io::Error::other("no folder for sockets");
    for path in places {
        match usable(path) {
            Ok(()) => return Ok(path.clone()),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Returns the possible locations of a socket, best first. The run directory is the last resort: not
/// every file system supports sockets, and its path may be too long.
fn places(run: &RunDir, role: &str) -> Vec<PathBuf> {
    let hash = blake3::hash(run.path().as_os_str().as_encoded_bytes());
    let name = format!("{}{role}.sock", &hash.to_hex()[..16]);
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    let folders = runtime.map(|folder| folder.join("downshift")).into_iter().chain(temporary_folders());
    let mut paths: Vec<PathBuf> = folders.map(|folder| folder.join(&name)).collect();
    paths.push(run.file(&format!("keeper{role}.sock")));
    paths.retain(|path| path.as_os_str().len() <= LONGEST);
    paths
}

/// Returns this user's own directories among the temporary files, best first.
fn temporary_folders() -> impl Iterator<Item = PathBuf> {
    let own = std::env::temp_dir().join(format!("downshift-{}", getuid().as_raw()));
    let spare = own.clone();
    std::iter::once(own).chain((1..=SPARE).map(move |number| {
        let mut name = spare.clone().into_os_string();
        name.push(format!("-{number}"));
        name.into()
    }))
}

/// Returns a directory among the temporary files that belongs only to the user, created if it is missing. It outlives a
/// login, unlike `XDG_RUNTIME_DIR`.
///
/// # Errors
/// Returns the error of the last location when none is usable.
pub fn private_folder() -> io::Result<PathBuf> {
    let places: Vec<PathBuf> = temporary_folders().map(|folder| folder.join("folder")).collect();
    let first = prepare_first(&places)?;
    first.parent().map(Path::to_owned).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Creates a missing socket directory (mode 0700), and refuses one that others can access.
fn usable(path: &Path) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    if let Err(error) = DirBuilder::new().mode(0o700).create(folder)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    let wrong = |what: &str| Err(io::Error::other(format!("{} {what}", text::path(folder))));
    let found = fs::symlink_metadata(folder)?;
    if !found.is_dir() {
        return wrong("is a symbolic link or not a folder");
    }
    if found.uid() != getuid().as_raw() {
        return wrong("belongs to another user");
    }
    // The run directory has the permissions its owner chose; the socket in it is closed to others.
    if found.mode() & 0o022 != 0 && !folder.join("run.yaml").exists() {
        fs::set_permissions(folder, Permissions::from_mode(found.mode() & 0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, places, usable};
    use crate::store::run_dir::RunDir;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_socket_folder_must_belong_to_the_user_and_not_be_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (own, link) = (dir.path().join("own"), dir.path().join("link"));
        usable(&own.join("a.sock")).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
        symlink(&own, &link).unwrap();
        assert!(usable(&link.join("a.sock")).unwrap_err().to_string().contains("is a symbolic link"));
        fs::set_permissions(&own, Permissions::from_mode(0o777)).unwrap();
        usable(&own.join("a.sock")).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(usable(&dir.path().join("file/a.sock")).is_err());
    }

    #[test]
    fn no_place_is_longer_than_the_system_takes() {
        let dir = tempfile::tempdir().unwrap();
        let run = |length: usize| {
            let path = dir.path().join("r".repeat(length));
            fs::create_dir(&path).unwrap();
            fs::write(path.join("run.yaml"), "").unwrap();
            places(&RunDir::open(&path).unwrap(), "")
        };
        assert!(run(10).iter().any(|path| path.ends_with("keeper.sock")));
        let long = run(200);
        assert!(!long.is_empty() && long.iter().all(|path| path.as_os_str().len() <= LONGEST), "{long:?}");
    }
}
