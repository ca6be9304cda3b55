//! Counts OOM kills in this process's cgroup, versions 1 and 2.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the OOM kills so far, or none if no counter can be read. A worker is in its keeper's cgroup,
/// and the counter includes the groups below.
#[must_use]
pub fn oom_kills() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    oom_kills_below(Path::new("/sys/fs/cgroup"), &own)
}

/// Returns the OOM kills so far in the hierarchy mounted at `root`; `own` is the text of /proc/self/cgroup.
#[must_use]
pub fn oom_kills_below(root: &Path, own: &str) -> Option<u64> {
    counter_files(root, own).iter().find_map(|file| parse_oom_kills(&fs::read_to_string(file).ok()?))
}

/// Returns the files that may hold the counter: in the group itself, then in the root visible to this
/// process, which is its own group inside a container.
fn counter_files(root: &Path, own: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let path = path.trim_start_matches('/');
        let path = if path.split('/').any(|part| part == "..") { "" } else { path };
        match controllers {
            "" => files.extend([root.join(path).join("memory.events"), root.join("memory.events")]),
            memory if memory.split(',').any(|controller| controller == "memory") => {
                let root = root.join("memory");
                files.extend([root.join(path).join("memory.oom_control"), root.join("memory.oom_control")]);
            }
            _ => {}
        }
    }
    files
}

/// Returns the counter in `memory.events` or `memory.oom_control`.
fn parse_oom_kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")).and_then(|count| count.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::oom_kills_below;
    use std::fs;

    #[test]
    fn both_versions_are_read_and_what_is_missing_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(oom_kills_below(root, "0::/a/b\n"), None);
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/memory.events"), "low 0\noom 2\noom_kill 3\noom_group_kill 0\n").unwrap();
        assert_eq!(oom_kills_below(root, "0::/a/b\n"), Some(3));
        assert_eq!(oom_kills_below(root, "0::/gone\n"), None, "no file at the root yet");
        fs::write(root.join("memory.events"), "oom_kill 7\n").unwrap();
        assert_eq!(oom_kills_below(root, "0::/../../x\n"), Some(7), "inside a container");
        fs::create_dir_all(root.join("memory/job")).unwrap();
        fs::write(root.join("memory/job/memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n").unwrap();
        assert_eq!(oom_kills_below(root, "9:cpu,memory:/job\n3:cpuset:/\n"), Some(1));
        assert_eq!(oom_kills_below(root, "rubbish\n"), None);
    }
}
