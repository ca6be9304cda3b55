//! The environment that a run began in: `environment.json` in the run directory. A later start restores it.
//!
//! Whoever writes it decides what runs inside a training (`PATH`, `LD_PRELOAD`, `PYTHONPATH`). So it counts only as a file of
//! this user's own, closed to others, with the [seal](super::seal) of this user.

use super::file_system::FileSystem;
use super::lock::no_link;
use super::run_dir::{RunDir, write_private};
use super::seal::SealKey;
use crate::protocol::environment::Unusable;
use rustix::process::getuid;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The file's name in a run directory.
pub const FILE: &str = "environment.json";
/// Version of this format.
const VERSION: u32 = 1;
/// Most bytes of the file that are read.
const LONGEST: u64 = 1 << 20;

/// The environment of a start, without secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptEnvironment {
    /// The variables and their values.
    pub variables: BTreeMap<String, String>,
    /// Variables that held a secret: their values are not kept.
    pub secrets: BTreeSet<String>,
    /// Variables that are too long, or no text.
    pub left_out: BTreeSet<String>,
}

#[derive(Serialize, Deserialize)]
struct Sealed {
    version: u32,
    seal: String,
    #[serde(flatten)]
    environment: KeptEnvironment,
}

impl KeptEnvironment {
    /// Reads the environment of a run.
    ///
    /// # Errors
    /// Returns why it cannot be used.
    pub fn of_run(run: &RunDir) -> Result<Self, Unusable> {
        let modes_count = FileSystem::of(run.path()).keeps_permissions();
        Self::read(&run.file(FILE), modes_count, SealKey::of_user().as_ref())
    }

    /// Writes the environment into the directory of its run.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn record(&self, run: &RunDir) -> io::Result<()> {
        write_private(&run.file(FILE), &self.sealed(&SealKey::of_user_or_new()?)?)
    }

    fn sealed(&self, key: &SealKey) -> io::Result<Vec<u8>> {
        let seal = key.seal(&serde_json::to_vec(self)?);
        Ok(serde_json::to_vec_pretty(&Sealed { version: VERSION, seal, environment: self.clone() })?)
    }

    fn read(path: &Path, modes_count: bool, key: Option<&SealKey>) -> Result<Self, Unusable> {
        let unreadable = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Unusable::Missing,
            _ => Unusable::Unreadable(error.to_string()),
        };
        let file = File::options().read(true).custom_flags(no_link()).open(path).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        if !about.is_file() {
            return Err(Unusable::Damaged);
        }
        if modes_count && about.uid() != getuid().as_raw() {
            return Err(Unusable::Foreign(about.uid()));
        }
        if modes_count && about.mode() & 0o077 != 0 {
            return Err(Unusable::Open(about.mode() & 0o7777));
        }
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text).map_err(unreadable)?;
        let sealed: Sealed = serde_json::from_slice(&text).map_err(|_| Unusable::Damaged)?;
        let content = serde_json::to_vec(&sealed.environment).map_err(|_| Unusable::Damaged)?;
        if key.is_none_or(|key| key.seal(&content) != sealed.seal) {
            return Err(Unusable::Unsealed);
        }
        // A later version may mean something else by it.
        if sealed.version == VERSION { Ok(sealed.environment) } else { Err(Unusable::Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::{KeptEnvironment, Unusable, write_private};
    use crate::store::seal::SealKey;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::Path;

    fn kept() -> KeptEnvironment {
        let variables = [("HF_HOME", "/data/hf"), ("LD_PRELOAD", "/lib/\"a\"\n.so")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        KeptEnvironment { variables, secrets: ["HF_TOKEN".to_owned()].into(), ..KeptEnvironment::default() }
    }

    fn key(folder: &Path, name: &str) -> SealKey {
        SealKey::for_test(&folder.join(name))
    }

    #[test]
    fn only_a_file_of_ones_own_counts_that_is_closed_and_sealed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("environment.json");
        let key = key(folder.path(), "key");
        let read = || KeptEnvironment::read(&path, true, Some(&key));
        assert_eq!(read(), Err(Unusable::Missing));
        write_private(&path, &kept().sealed(&key).unwrap()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read(), Ok(kept()));
        for mode in [0o640, 0o602, 0o644] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert!(matches!(read(), Err(Unusable::Open(found)) if found == mode), "{mode:o}");
        }
        assert!(KeptEnvironment::read(&path, false, Some(&key)).is_ok(), "a drive of Windows shows one mode for all");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(matches!(KeptEnvironment::read(&link, true, Some(&key)), Err(Unusable::Unreadable(_))));
        // Only root may give a file away.
        if chown(&path, Some(12_345), None).is_ok() {
            assert_eq!(read(), Err(Unusable::Foreign(12_345)));
        }
    }

    #[test]
    fn a_file_from_elsewhere_or_an_edited_one_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("environment.json");
        let (mine, other) = (key(folder.path(), "mine"), key(folder.path(), "other"));
        let text = String::from_utf8(kept().sealed(&mine).unwrap()).unwrap();
        let read = |text: &str, key: Option<&SealKey>| {
            write_private(&path, text.as_bytes()).unwrap();
            KeptEnvironment::read(&path, true, key)
        };
        assert_eq!(read(&text, Some(&mine)), Ok(kept()));
        assert_eq!(read(&text, Some(&other)), Err(Unusable::Unsealed));
        assert_eq!(read(&text, None), Err(Unusable::Unsealed));
        assert_eq!(read(&text.replace("/data/hf", "/tmp/hf"), Some(&mine)), Err(Unusable::Unsealed));
        assert_eq!(read(&text[..text.len() / 2], Some(&mine)), Err(Unusable::Damaged));
        assert_eq!(read("", Some(&mine)), Err(Unusable::Damaged));
    }
}
