//! The limits of this process's cgroup, versions 1 and 2: OOM kills so far, and memory that is left.

use std::fs;
use std::path::{Path, PathBuf};

/// The memory controller of a group.
enum Group {
    V1(PathBuf),
    V2(PathBuf),
}

/// Returns the OOM kills so far, or none if no counter can be read. A worker is in its keeper's cgroup,
/// and the counter includes the groups below.
#[must_use]
pub fn oom_kills() -> Option<u64> {
    oom_kills_below(Path::new(ROOT), &own_groups()?)
}

/// Memory of a group with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes that it may still use.
    pub free: u64,
    /// Its limit.
    pub limit: u64,
}

/// Returns the bytes that this process's group and those above it may still use; none where nothing limits them.
#[must_use]
pub fn free_memory() -> Option<u64> {
    room().map(|room| room.free)
}

/// Returns the room of the tightest group among this process's and those above it; none where nothing limits them.
#[must_use]
pub fn room() -> Option<Room> {
    room_below(Path::new(ROOT), &own_groups()?)
}

const ROOT: &str = "/sys/fs/cgroup";

fn own_groups() -> Option<String> {
    fs::read_to_string("/proc/self/cgroup").ok()
}

/// Returns the OOM kills so far in the hierarchy mounted at `root`; `own` is the text of /proc/self/cgroup.
#[must_use]
pub fn oom_kills_below(root: &Path, own: &str) -> Option<u64> {
    let counter = |group: &Group| match group {
        Group::V1(folder) => folder.join("memory.oom_control"),
        Group::V2(folder) => folder.join("memory.events"),
    };
    // Inside a container the path is missing, and the root visible to this process is its own group.
    groups_of(root, own).iter().find_map(|group| parse_counter(&fs::read_to_string(counter(group)).ok()?, "oom_kill"))
}

fn room_below(root: &Path, own: &str) -> Option<Room> {
    let free = |group: &Group| {
        let (folder, limit, usage, cache) = match group {
            Group::V1(folder) => (folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            Group::V2(folder) => (folder, "memory.max", "memory.current", "inactive_file"),
        };
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        // A group without a limit says "max".
        let limit: u64 = read(limit)?.trim().parse().ok()?;
        let usage: u64 = read(usage)?.trim().parse().ok()?;
        // The kernel gives up cached files before it ends a process.
        let cache = read("memory.stat").and_then(|text| parse_counter(&text, cache)).unwrap_or(0);
        Some(Room { free: limit.saturating_sub(usage.saturating_sub(cache)), limit })
    };
    groups_of(root, own).iter().filter_map(free).min_by_key(|room| room.free)
}

/// Returns the groups of this process from its own to the root of each hierarchy that may count its memory.
fn groups_of(root: &Path, own: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let path = Path::new(path.trim_start_matches('/'));
        let path = if path.iter().any(|part| part == "..") { Path::new("") } else { path };
        match controllers {
            "" => groups.extend(path.ancestors().map(|path| Group::V2(root.join(path)))),
            memory if memory.split(',').any(|controller| controller == "memory") => {
                groups.extend(path.ancestors().map(|path| Group::V1(root.join("memory").join(path))));
            }
            _ => {}
        }
    }
    groups
}

/// Returns a counter of a file with a name and a number in each line.
fn parse_counter(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).and_then(|count| count.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{Room, oom_kills_below, room_below};
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

    #[test]
    fn the_tightest_group_limits_the_memory() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let write = |group: &str, limit: &str, usage: &str| {
            fs::create_dir_all(root.join(group)).unwrap();
            fs::write(root.join(group).join("memory.max"), limit).unwrap();
            fs::write(root.join(group).join("memory.current"), usage).unwrap();
        };
        write("", "max\n", "900\n");
        write("job/step", "max\n", "500\n");
        let free = |own: &str| room_below(root, own).map(|room: Room| room.free);
        assert_eq!(free("0::/job/step\n"), None, "no limit");
        write("job", "1000\n", "800\n");
        assert_eq!(free("0::/job/step\n"), Some(200));
        fs::write(root.join("job/memory.stat"), "anon 500\ninactive_file 300\n").unwrap();
        assert_eq!(free("0::/job/step\n"), Some(500), "cached files can go");
        fs::create_dir_all(root.join("memory/a")).unwrap();
        fs::write(root.join("memory/a/memory.limit_in_bytes"), "100\n").unwrap();
        fs::write(root.join("memory/a/memory.usage_in_bytes"), "130\n").unwrap();
        assert_eq!(free("4:memory:/a/b\n"), Some(0));
    }
}
