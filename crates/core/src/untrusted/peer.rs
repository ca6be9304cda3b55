//! The process behind a socket. A run directory may come from elsewhere, and its lock file names the socket:
//! clients talk to the user's own processes and to root's alone.

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsFd;
use std::path::Path;

/// Maximum length of a line that a client reads.
pub const MAX_LINE: u64 = 16 << 20;

/// Refuses a socket on which another user's process listens.
///
/// # Errors
/// Returns an error when the listener belongs to another user, or the system does not name its user.
pub fn check_listener(stream: &impl AsFd, socket: &Path) -> Result<()> {
    let user = socket_peercred(stream)?.uid.as_raw();
    if is_trusted(user, geteuid().as_raw()) {
        return Ok(());
    }
    let text = format!("user {user} listens on {}, and is neither you nor root; nothing was sent", socket.display());
    Err(Error::new(ErrorKind::PermissionDenied, text))
}

fn is_trusted(user: u32, own: u32) -> bool {
    user == own || user == 0
}

#[cfg(test)]
mod tests {
    use super::{check_listener, is_trusted};
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn only_the_user_and_root_are_trusted() {
        assert!(is_trusted(1000, 1000) && is_trusted(0, 1000) && is_trusted(0, 0));
        assert!(!is_trusted(1001, 1000) && !is_trusted(1000, 0));
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("own.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        check_listener(&UnixStream::connect(&socket).unwrap(), &socket).unwrap();
    }
}
