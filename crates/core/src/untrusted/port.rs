//! The place where the ranks of a training meet: its name has an address, its machine answers, and its port is free where
//! rank 0 will listen. Each question has a time limit.

use crate::untrusted::text;
use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Longest time for the address of a name, and for the answer of a machine.
const LIMIT: Duration = Duration::from_secs(3);
/// The state of a listening socket in /proc/net/tcp.
const LISTENING: &str = "0A";

/// Returns a port that is free on this machine.
///
/// # Errors
/// Returns the system's error.
pub fn find_free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?.local_addr()?.port())
}

/// Why ranks cannot meet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoMeeting {
    /// The name has no address.
    #[error("rendezvous host {} does not resolve: {reason}", text::escape_line(host))]
    NoAddress {
        /// The name.
        host: String,
        /// The system's reason.
        reason: String,
        /// It will not appear later: rank 0 is started here, and the name servers have answered.
        is_final: bool,
    },
    /// Another process listens at the port.
    #[error("rendezvous port {port} is in use{}", by.as_ref().map_or_else(String::new, |by| format!(" by {by}")))]
    Taken {
        /// The port.
        port: u16,
        /// That process, where its files can be read.
        by: Option<Listener>,
    },
    /// The machine of rank 0 does not answer.
    #[error("rendezvous host {} cannot be reached: {reason}", text::escape_line(host))]
    Unreachable {
        /// The name.
        host: String,
        /// The system's reason.
        reason: String,
    },
    /// Rank 0 is started here, but the others look for it elsewhere.
    #[error("rank 0 is started here, but {} is no address of this machine", text::escape_line(.0))]
    Elsewhere(String),
}

/// A process that listens at a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Its name.
    pub name: String,
    /// Its number.
    pub pid: u32,
}

impl fmt::Display for Listener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (process {})", text::escape_line(&self.name), self.pid)
    }
}

impl NoMeeting {
    /// Returns the way out; `key` is where the user names another port.
    #[must_use]
    pub fn fix(&self, key: &str) -> String {
        match self {
            Self::NoAddress { .. } => "correct the host's name, or give its IP address".to_owned(),
            Self::Taken { .. } => format!(
                "end that process, give another port with {key}, or use --standalone on one machine, which finds a free one"
            ),
            Self::Unreachable { .. } => {
                "check that the machine is up, and that no firewall is between the machines".to_owned()
            }
            Self::Elsewhere(_) => {
                "give the name of the machine that starts rank 0; 127.0.0.1 for one machine".to_owned()
            }
        }
    }

    /// Reports whether every start must fail. A machine may answer later, a name may be known later (a service of
    /// Kubernetes), and a machine behind a router has other addresses.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        matches!(self, Self::NoAddress { is_final: true, .. } | Self::Taken { .. })
    }
}

/// Checks the place where ranks meet. `is_here`: rank 0, which listens there, is started on this machine.
///
/// # Errors
/// Returns why they cannot meet.
pub fn check_meeting(host: &str, port: u16, is_here: bool) -> Result<(), NoMeeting> {
    let addresses = resolve(host, port).map_err(|error| NoMeeting::NoAddress {
        host: host.to_owned(),
        reason: error.to_string(),
        is_final: is_here && error.kind() != io::ErrorKind::TimedOut,
    })?;
    let is_ours = addresses.iter().any(|address| is_of_this_machine(address.ip()));
    if is_here && !is_ours {
        return Err(NoMeeting::Elsewhere(host.to_owned()));
    }
    if is_here {
        return if is_taken(port) { Err(NoMeeting::Taken { port, by: listener_at(port) }) } else { Ok(()) };
    }
    // Rank 0 may start later than this one: a machine that refuses is there.
    let answers = |address: &SocketAddr| match TcpStream::connect_timeout(address, LIMIT) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => Err(error),
        _ => Ok(()),
    };
    let failures: Vec<io::Error> = addresses.iter().map_while(|address| answers(address).err()).collect();
    match failures.into_iter().enumerate().next_back() {
        Some((last, error)) if last + 1 == addresses.len() => {
            Err(NoMeeting::Unreachable { host: host.to_owned(), reason: error.to_string() })
        }
        _ => Ok(()),
    }
}

/// Returns the addresses of a name. The system's own search has no limit.
fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let (found, answer) = mpsc::channel();
    let name = host.to_owned();
    thread::spawn(move || {
        let _ = found.send((name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>));
    });
    let late = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer from the name server"));
    let addresses = answer.recv_timeout(LIMIT).unwrap_or_else(late)?;
    if addresses.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(addresses) }
}

fn is_of_this_machine(address: IpAddr) -> bool {
    TcpListener::bind((address, 0)).is_ok()
}

/// Reports whether a process listens at this port, at any address of this machine: rank 0 listens at all of them.
fn is_taken(port: u16) -> bool {
    let in_use = |address: IpAddr| {
        TcpListener::bind((address, port)).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    in_use(Ipv6Addr::UNSPECIFIED.into()) || in_use(Ipv4Addr::UNSPECIFIED.into())
}

/// Returns the process that listens at a port, if this user may see it.
fn listener_at(port: u16) -> Option<Listener> {
    let sockets: HashSet<String> =
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().flat_map(|table| inodes(table, port)).collect();
    let pids =
        fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut holders = pids.filter(|pid| holds_one(&Path::new("/proc").join(pid.to_string()).join("fd"), &sockets));
    let pid = holders.next()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_owned();
    Some(Listener { name, pid })
}

/// Returns the inodes of the sockets that listen at a port, as links in /proc name them.
fn inodes(table: &str, port: u16) -> Vec<String> {
    let lines = File::open(table).map(|file| BufReader::new(file).lines().map_while(Result::ok)).into_iter().flatten();
    let of_port = format!(":{port:04X}");
    let inode = |line: String| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let listens =
            columns.get(3) == Some(&LISTENING) && columns.get(1).is_some_and(|local| local.ends_with(&of_port));
        listens.then(|| columns.get(9).map(|inode| format!("socket:[{inode}]"))).flatten()
    };
    lines.filter_map(inode).collect()
}

fn holds_one(descriptors: &Path, sockets: &HashSet<String>) -> bool {
    let mut links = fs::read_dir(descriptors).into_iter().flatten().flatten();
    links.any(|link| {
        fs::read_link(link.path()).is_ok_and(|to| to.to_str().is_some_and(|socket| sockets.contains(socket)))
    })
}

#[cfg(test)]
mod tests {
    use super::{Listener, NoMeeting, check_meeting};
    use std::net::TcpListener;

    #[test]
    fn a_taken_port_names_the_process_that_listens_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let refused = check_meeting("localhost", port, true).unwrap_err();
        let NoMeeting::Taken { by: Some(Listener { pid, .. }), .. } = &refused else { panic!("{refused}") };
        assert_eq!(*pid, std::process::id());
        assert!(refused.is_certain() && refused.fix("--master-port").contains("another port with --master-port"));
        assert_eq!(check_meeting("127.0.0.1", port, false), Ok(()), "another rank joins the one that listens");
        drop(listener);
        assert_eq!(check_meeting("127.0.0.1", port, true), Ok(()));
        assert_eq!(check_meeting("127.0.0.1", port, false), Ok(()), "rank 0 may start later");
    }

    #[test]
    fn a_host_without_an_address_or_without_an_answer_is_named() {
        let refused = |is_here| check_meeting("no-such-host.invalid", 29_500, is_here).unwrap_err();
        assert!(refused(false).to_string().starts_with("rendezvous host no-such-host.invalid does not resolve: "));
        assert!(!refused(false).is_certain(), "the machine of rank 0 may be known later");
        // No machine has an address of this prefix, which is for documents.
        let refused = check_meeting("2001:db8::1", 29_500, false).unwrap_err();
        assert!(matches!(&refused, NoMeeting::Unreachable { host, .. } if host == "2001:db8::1"), "{refused}");
        assert!(!refused.is_certain());
        assert_eq!(check_meeting("2001:db8::1", 29_500, true), Err(NoMeeting::Elsewhere("2001:db8::1".to_owned())));
    }
}
