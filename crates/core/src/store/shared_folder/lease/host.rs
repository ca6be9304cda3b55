//! The host of a lease: its name, and the id by which a reboot of the same machine is known.

use crate::store::shared_folder::host_name;
use crate::untrusted::file::{self, Limit};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The host that this process runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// A hash of its machine id; empty if it has none.
    pub machine: String,
}

impl Host {
    /// Returns this host.
    #[must_use]
    pub fn own() -> Self {
        let id = file::read_text(Path::new("/etc/machine-id"), Limit::Record).ok().filter(|_| !is_container());
        Self { name: host_name(), machine: id.and_then(|id| hash_machine_id(&id)).unwrap_or_default() }
    }

    /// Reports whether this is the same machine as another: by name and id, as clusters may boot many from one image.
    #[must_use]
    pub fn is_machine_of(&self, other: &Self) -> bool {
        !self.machine.is_empty() && self == other
    }
}

/// Returns a hash of a machine id; none of a placeholder such as `uninitialized`, which many machines share.
fn hash_machine_id(id: &str) -> Option<String> {
    let id = id.trim();
    let is_id =
        id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) && id.bytes().any(|byte| byte != b'0');
    is_id.then(|| blake3::hash(id.as_bytes()).to_hex()[..16].to_owned())
}

/// Reports whether this process runs in a container, whose machine id and host name may be those of its image.
fn is_container() -> bool {
    let files = ["/.dockerenv", "/run/.containerenv", "/.singularity.d"];
    let variables = ["KUBERNETES_SERVICE_HOST", "container", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"];
    files.iter().any(|file| Path::new(file).exists()) || variables.iter().any(|name| std::env::var_os(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::hash_machine_id;

    #[test]
    fn a_placeholder_is_no_machine_id() {
        assert!(hash_machine_id("0123456789abcdef0123456789abcdef\n").is_some());
        for id in ["", "uninitialized\n", "0123456789abcdef", "00000000000000000000000000000000"] {
            assert_eq!(hash_machine_id(id), None, "{id:?}");
        }
    }
}
