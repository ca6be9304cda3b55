//! A small dedicated disk, on systems that allow mounting one.

use crate::Failing;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A mounted tmpfs; unmounted when dropped.
pub struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mounts a tmpfs of this size below `parent`; returns None if not permitted.
    pub fn mount(parent: &Path, mib: u64) -> Failing<Option<Self>> {
        let path = parent.join(format!("campaign-disk-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"]).arg(&path);
        if mount.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            return Ok(Some(Self(path)));
        }
        fs::remove_dir(&path)?;
        Ok(None)
    }

    /// Returns its mount point.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazy unmount, since a process that is just ending may still have a file open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}
