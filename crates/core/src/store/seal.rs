//! Tells files that this user's program wrote from files that came with an archive or a copy: those belong to the user
//! as well. A seal is a hash with a key that never leaves the user's state folder; deleting the key revokes every seal.

use super::lock::no_link;
use super::user_folder::user_folder;
use rustix::process::getuid;
use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file's name in the user's state folder.
const FILE: &str = "seal.key";
const BYTES: usize = blake3::KEY_LEN;

/// The key of this user's seals.
pub struct SealKey([u8; BYTES]);

impl SealKey {
    /// Reads the key; none if no seal was ever made here, or others could have read it.
    #[must_use]
    pub fn of_user() -> Option<Self> {
        Self::read(&place()?).ok()
    }

    /// Reads the key, and makes it first if there is none.
    ///
    /// # Errors
    /// Returns an error when it cannot be kept, or others could have read it.
    pub fn of_user_or_new() -> io::Result<Self> {
        let place = place().ok_or_else(|| io::Error::other("neither XDG_STATE_HOME nor HOME is set"))?;
        Self::read_or_create(&place)
    }

    /// Returns the seal of a content.
    #[must_use]
    pub fn seal(&self, content: &[u8]) -> String {
        blake3::keyed_hash(&self.0, content).to_hex().to_string()
    }

    /// Returns the key in a file of a test.
    #[cfg(test)]
    pub fn for_test(place: &Path) -> Self {
        Self::read_or_create(place).unwrap()
    }

    fn read_or_create(place: &Path) -> io::Result<Self> {
        match Self::read(place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => return read,
        }
        let folder = place.parent().ok_or(io::ErrorKind::InvalidInput)?;
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let draft = folder.join(format!(".{FILE}.{:016x}", RandomState::new().hash_one(std::process::id())));
        let written = write_key(&draft);
        // Another process may have been faster: then its key counts. Some file systems have no links.
        let placed = written.and_then(|()| match fs::hard_link(&draft, place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => fs::rename(&draft, place),
            _ => Ok(()),
        });
        fs::remove_file(&draft).ok();
        placed.and_then(|()| Self::read(place))
    }

    fn read(place: &Path) -> io::Result<Self> {
        let mut file = File::options().read(true).custom_flags(no_link()).open(place)?;
        let about = file.metadata()?;
        if !about.is_file() || about.uid() != getuid().as_raw() || about.mode() & 0o077 != 0 {
            return Err(io::Error::other(format!(
                "{} must be a file that you own and others cannot read; delete it",
                place.display()
            )));
        }
        let mut key = [0; BYTES];
        file.read_exact(&mut key)?;
        Ok(Self(key))
    }
}

fn place() -> Option<PathBuf> {
    Some(user_folder("XDG_STATE_HOME", ".local/state")?.join(FILE))
}

fn write_key(draft: &Path) -> io::Result<()> {
    let mut key = [0; BYTES];
    File::options().read(true).open("/dev/urandom")?.read_exact(&mut key)?;
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(draft)?;
    file.write_all(&key)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::SealKey;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_key_is_made_once_and_refused_once_others_could_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("state/downshift/seal.key");
        assert!(SealKey::read(&place).is_err());
        let seal = SealKey::read_or_create(&place).unwrap().seal(b"content");
        assert_eq!(SealKey::read_or_create(&place).unwrap().seal(b"content"), seal);
        assert_ne!(SealKey::read(&place).unwrap().seal(b"other content"), seal);
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(place.parent().unwrap()).unwrap().count(), 1, "no draft is left");
        fs::set_permissions(&place, Permissions::from_mode(0o640)).unwrap();
        assert!(SealKey::read(&place).is_err() && SealKey::read_or_create(&place).is_err());
        fs::set_permissions(&place, Permissions::from_mode(0o600)).unwrap();
        let link = folder.path().join("link");
        symlink(&place, &link).unwrap();
        assert!(SealKey::read(&link).is_err());
        let other = SealKey::read_or_create(&folder.path().join("other.key")).unwrap();
        assert_ne!(other.seal(b"content"), seal, "another user has another key");
    }
}
