//! Lists the user has approved: one line each in `$XDG_STATE_HOME/downshift/trusted`. Deleting a line, or
//! the file, revokes an approval.

use crate::store::lock::no_link;
use crate::store::user_folder::{self, user_folder};
use crate::untrusted::text;
use rustix::process::getuid;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// Maximum size of the file; room for some ten thousand approvals.
const LONGEST: u64 = 1 << 20;

/// Errors of reading or storing approvals.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalsError {
    #[error("approvals cannot be kept: neither XDG_STATE_HOME nor HOME is set")]
    Nowhere,
    #[error("{0} is ignored: it must be a regular file that you own and others cannot write; delete it")]
    NotYours(String),
    #[error("{file}: {source}")]
    Io { file: String, source: io::Error },
}

/// The approvals file.
pub struct Approvals {
    file: Option<PathBuf>,
}

impl Approvals {
    /// Returns the user's approvals.
    pub fn of_user() -> Self {
        Self { file: user_folder("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("trusted")) }
    }

    /// Reports whether the list with this digest was approved.
    pub fn contains(&self, digest: &str) -> Result<bool, ApprovalsError> {
        let mut text = String::new();
        match self.open(File::options().read(true)) {
            Err(ApprovalsError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(ApprovalsError::Nowhere) => return Ok(false),
            file => file?.take(LONGEST).read_to_string(&mut text).map_err(|source| self.failed(source))?,
        };
        Ok(text.lines().any(|line| line.split_whitespace().next() == Some(digest)))
    }

    /// Stores an approval, unless it is there already.
    pub fn add_once(&self, digest: &str, name: &str) -> Result<(), ApprovalsError> {
        if self.contains(digest)? { Ok(()) } else { self.add(digest, name) }
    }

    /// Stores an approval.
    pub fn add(&self, digest: &str, name: &str) -> Result<(), ApprovalsError> {
        let folder = self.file.as_ref().and_then(|file| file.parent()).ok_or(ApprovalsError::Nowhere)?;
        user_folder::create(folder).map_err(|source| self.failed(source))?;
        let mut file = self.open(File::options().append(true).create(true).mode(0o600))?;
        let line = format!("{digest} {} {name}\n", jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ"));
        file.write_all(line.as_bytes()).and_then(|()| file.sync_all()).map_err(|source| self.failed(source))
    }

    fn open(&self, options: &mut OpenOptions) -> Result<File, ApprovalsError> {
        let path = self.file.as_ref().ok_or(ApprovalsError::Nowhere)?;
        let file = options.custom_flags(no_link()).open(path).map_err(|source| self.failed(source))?;
        let about = file.metadata().map_err(|source| self.failed(source))?;
        if !about.is_file() || about.uid() != getuid().as_raw() || about.mode() & 0o022 != 0 {
            return Err(ApprovalsError::NotYours(text::path(path)));
        }
        Ok(file)
    }

    fn failed(&self, source: io::Error) -> ApprovalsError {
        let file = self.file.as_ref().map(|file| text::path(file)).unwrap_or_default();
        ApprovalsError::Io { file, source }
    }
}

#[cfg(test)]
mod tests {
    use super::{Approvals, ApprovalsError};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn approvals_are_kept_in_a_file_that_only_its_owner_can_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/downshift/trusted");
        let approvals = Approvals { file: Some(path.clone()) };
        assert!(!approvals.contains("abc").unwrap());
        approvals.add("abc", "digits").unwrap();
        approvals.add("def", "abcd").unwrap();
        assert!(approvals.contains("abc").unwrap() && approvals.contains("def").unwrap());
        assert!(!approvals.contains("abcd").unwrap() && !approvals.contains("ab").unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o622)).unwrap();
        assert!(matches!(approvals.contains("abc"), Err(ApprovalsError::NotYours(_))));
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(approvals.contains("abc").is_err() && approvals.add("abc", "digits").is_err());
        assert!(Approvals { file: None }.add("abc", "digits").is_err());
    }
}
