//! A run directory that other hosts use too: a home on NFS or Lustre, a scratch of a cluster.
//!
//! ```text
//! leases/7.json        the lease of the keeper: host, process, job; renewed every 10 s by that keeper alone
//! requests/ID.json     an order from another host, read twice a second      (0700: nobody else's)
//! requests/ID.answer   what the keeper replied, line by line, as on its socket
//! ```
//! `flock` and sockets end at the host. So here a lease says on which host the keeper is, and files carry the orders. On a disk
//! of this host nothing of it exists.

pub mod asking;
pub mod job;
pub mod lease;
pub mod orders;
pub mod takeover;

use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::SystemTime;

/// Makes this host forget what it remembers of a folder, and returns the time of the server. A client of NFS may list a
/// folder from memory for a minute, but every change of its own brings the folder's true state with it; setting the mode
/// that it already has is the smallest one.
///
/// # Errors
/// Returns the system's error; a symbolic link or a file is one, too.
fn refresh(folder: &Path) -> io::Result<SystemTime> {
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
    let opened = File::from(rustix::fs::open(folder, flags, rustix::fs::Mode::empty())?);
    match opened.set_permissions(fs::Permissions::from_mode(opened.metadata()?.permissions().mode())) {
        Err(error) if has_no_such_call(&error) => {}
        set => set?,
    }
    let about = rustix::fs::fstat(&opened)?;
    let (seconds, nanoseconds) = (about.st_ctime.cast_unsigned(), u32::try_from(about.st_ctime_nsec).unwrap_or(0));
    Ok(SystemTime::UNIX_EPOCH + std::time::Duration::new(seconds, nanoseconds))
}

/// Reports whether a file system does not support what was asked of it: links and modes, on some of FUSE and SMB.
fn has_no_such_call(error: &io::Error) -> bool {
    let missing = [Errno::PERM, Errno::OPNOTSUPP, Errno::NOSYS, Errno::MLINK];
    missing.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

/// Returns the name of this host.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
