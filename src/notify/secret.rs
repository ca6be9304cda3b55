//! Secrets: read from the environment, or from a file that only its owner may read.

use crate::config::around::Text;
use crate::untrusted::file::{self, Limit};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns the secret text.
///
/// # Errors
/// Returns an error when the secret cannot be read; it names the location, never the text.
pub fn resolve(text: &Text) -> Result<String, String> {
    match text {
        Text::Plain(text) => Ok(text.clone()),
        Text::Env(name) => std::env::var(name)
            .map(|value| value.trim().to_owned())
            .ok()
            .filter(|value| !value.is_empty())
            .ok_or_else(|| format!("the environment variable {name} is not set")),
        Text::File(path) => from_file(&expand_home(path)),
    }
}

fn from_file(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let about = fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?;
    if about.mode() & 0o077 != 0 {
        return Err(format!("{shown} can be read by others: `chmod 600 {shown}`"));
    }
    let text = file::read_text(path, Limit::Handwritten).map_err(|error| format!("{shown}: {error}"))?;
    let text = text.trim();
    if text.is_empty() || text.lines().count() > 1 {
        return Err(format!("{shown} must hold one line, the secret"));
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
    use super::resolve;
    use crate::config::around::Text;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_files_of_ones_own_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, "s3cret\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let refused = resolve(&Text::File(path.clone())).unwrap_err();
        assert!(refused.contains("chmod 600") && !refused.contains("s3cret"));
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(resolve(&Text::File(path.clone())), Ok("s3cret".to_owned()));
        fs::write(&path, "\n").unwrap();
        assert!(resolve(&Text::File(path)).is_err());
        assert!(resolve(&Text::Env("DOWNSHIFT_NO_SUCH_VARIABLE".to_owned())).unwrap_err().contains("is not set"));
    }
}
