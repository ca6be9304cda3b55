//! Secrets: read from the environment, or from a file that only its owner may read.

use super::NotifyError;
use crate::config::integrations::Text;
use crate::untrusted::file::{self, Limit};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns the secret text.
///
/// # Errors
/// Returns an error when the secret cannot be read; it names the location, never the text.
pub fn resolve_secret(text: &Text) -> Result<String, NotifyError> {
    match text {
        Text::Plain(text) => Ok(text.clone()),
        Text::Env(name) => std::env::var(name)
            .map(|value| value.trim().to_owned())
            .ok()
            .filter(|value| !value.is_empty())
            .ok_or_else(|| NotifyError::VariableMissing(name.clone())),
        Text::File(path) => read_secret_file(&expand_home(path)),
    }
}

fn read_secret_file(path: &Path) -> Result<String, NotifyError> {
    let about = fs::metadata(path).map_err(|error| NotifyError::from_file(path, &error))?;
    if about.mode() & 0o077 != 0 {
        return Err(NotifyError::SecretReadable(path.to_owned()));
    }
    let text = file::read_text(path, Limit::Handwritten).map_err(|error| NotifyError::from_file(path, &error))?;
    let text = text.trim();
    if text.is_empty() || text.lines().count() > 1 {
        return Err(NotifyError::SecretFormat(path.to_owned()));
    }
    Ok(text.to_owned())
}

/// Expands `~/x` to a path in the home folder.
pub fn expand_home(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::var_os("HOME")) {
        (Ok(below), Some(home)) => PathBuf::from(home).join(below),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{NotifyError, resolve_secret};
    use crate::config::integrations::Text;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_users_own_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, "s3cret\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let refused = resolve_secret(&Text::File(path.clone())).unwrap_err();
        assert_eq!(refused, NotifyError::SecretReadable(path.clone()));
        assert!(refused.to_string().contains("chmod 600") && !refused.to_string().contains("s3cret"));
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(resolve_secret(&Text::File(path.clone())), Ok("s3cret".to_owned()));
        fs::write(&path, "\n").unwrap();
        assert_eq!(resolve_secret(&Text::File(path.clone())), Err(NotifyError::SecretFormat(path)));
        let missing = "DOWNSHIFT_NO_SUCH_VARIABLE".to_owned();
        let refused = resolve_secret(&Text::Env(missing.clone()));
        assert_eq!(refused, Err(NotifyError::VariableMissing(missing)));
    }
}
