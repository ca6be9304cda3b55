//! A disk that may lose power: the states a recorded trace of calls can leave behind.
//!
//! A call that changes a file or folder is durable once **that** file or folder was synced after it.
//! Until then it may be on disk or not, whatever came before or after it; a write may also have left
//! zeros, or half of itself. A change whose object is missing in such a state has no effect. Nothing
//! is assumed about order, journals, or other data a sync may flush.

use crate::Failing;
use crate::strace::Call;
use downshift::recipe::seed::Stream;
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// A file or folder, independent of its name; 0 is the root.
type Node = usize;

/// A name in a folder.
type Place = (Node, String);

/// A call that changes or syncs the disk.
#[derive(Debug, Clone)]
pub enum Op {
    /// A file or folder was created under its first name.
    Create { at: Place, node: Node, folder: bool },
    /// Bytes were appended.
    Write { node: Node, bytes: Vec<u8> },
    /// A file or folder was renamed.
    Rename { from: Place, to: Place, node: Node },
    /// Two names were exchanged atomically.
    Exchange { at: [Place; 2], nodes: [Node; 2] },
    /// A name was deleted.
    Remove { at: Place, node: Node },
    /// A file's content or a folder's names were synced.
    Sync { node: Node },
    /// The process reported something to the outside.
    Said(String),
}

/// The fate of a call that was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The change is on the disk.
    Kept,
    /// The change never reached the disk.
    Lost,
    /// The length reached the disk, the content is zeros.
    Zeros,
    /// Half of the content reached the disk.
    Half,
}

/// The contents of a disk.
#[derive(Debug, Default, Clone)]
pub struct Disk {
    folders: BTreeMap<Node, BTreeMap<String, Node>>,
    files: BTreeMap<Node, Vec<u8>>,
    nodes: Node,
}

impl Disk {
    /// Returns an empty disk: just the root.
    pub fn empty() -> Self {
        Self { folders: BTreeMap::from([(0, BTreeMap::new())]), files: BTreeMap::new(), nodes: 0 }
    }

    fn find(&self, path: &Path) -> Option<Node> {
        path.iter().try_fold(0, |node, name| self.folders.get(&node)?.get(name.to_str()?).copied())
    }

    fn place(&self, path: &Path) -> Option<Place> {
        Some((self.find(path.parent()?)?, path.file_name()?.to_str()?.to_owned()))
    }

    fn at(&self, (folder, name): &Place) -> Option<Node> {
        self.folders.get(folder)?.get(name).copied()
    }

    fn set(&mut self, (folder, name): &Place, node: Option<Node>) {
        let names = self.folders.entry(*folder).or_default();
        match node {
            Some(node) => drop(names.insert(name.clone(), node)),
            None => drop(names.remove(name)),
        }
    }

    /// Applies a call as far as its fate allows.
    pub fn apply(&mut self, op: &Op, fate: Fate) {
        match (op, fate) {
            (Op::Write { node, bytes }, fate) => {
                let file = self.files.entry(*node).or_default();
                match fate {
                    Fate::Kept => file.extend(bytes),
                    Fate::Zeros => file.resize(file.len() + bytes.len(), 0),
                    Fate::Half => file.extend(&bytes[..bytes.len() / 2]),
                    Fate::Lost => {}
                }
            }
            (_, Fate::Lost) | (Op::Sync { .. } | Op::Said(_), _) => {}
            (Op::Create { at, node, folder }, _) => {
                if *folder {
                    self.folders.entry(*node).or_default();
                }
                self.set(at, Some(*node));
            }
            (Op::Rename { from, to, node }, _) if self.at(from) == Some(*node) => {
                self.set(from, None);
                self.set(to, Some(*node));
            }
            (Op::Exchange { at, nodes }, _) if (0..2).all(|side| self.at(&at[side]) == Some(nodes[side])) => {
                self.set(&at[0], Some(nodes[1]));
                self.set(&at[1], Some(nodes[0]));
            }
            (Op::Remove { at, node }, _) if self.at(at) == Some(*node) => self.set(at, None),
            (Op::Rename { .. } | Op::Exchange { .. } | Op::Remove { .. }, _) => {}
        }
    }

    /// Returns a hash of everything reachable from the root.
    pub fn fingerprint(&self) -> u64 {
        fn walk(disk: &Disk, node: Node, hasher: &mut DefaultHasher) {
            match disk.folders.get(&node) {
                Some(names) => {
                    names.len().hash(hasher);
                    for (name, node) in names {
                        name.hash(hasher);
                        walk(disk, *node, hasher);
                    }
                }
                None => disk.files.get(&node).hash(hasher),
            }
        }
        let mut hasher = DefaultHasher::new();
        walk(self, 0, &mut hasher);
        hasher.finish()
    }

    /// Writes the contents into a real, empty folder.
    ///
    /// # Errors
    /// Returns the I/O error of the system.
    pub fn write_to(&self, folder: &Path) -> std::io::Result<()> {
        self.write_node(0, folder)
    }

    fn write_node(&self, node: Node, path: &Path) -> std::io::Result<()> {
        let Some(names) = self.folders.get(&node) else {
            return fs::write(path, self.files.get(&node).map_or(&[][..], Vec::as_slice));
        };
        fs::create_dir_all(path)?;
        names.iter().try_for_each(|(name, node)| self.write_node(*node, &path.join(name)))
    }
}

/// Extracts the calls that change or sync anything below `root` from a recorded trace.
///
/// # Errors
/// Returns an error for a call that changes something but is unknown.
pub fn parse_calls(calls: &[Call], root: &Path) -> Failing<Vec<Op>> {
    let (mut disk, mut ops) = (Disk::empty(), Vec::new());
    for call in calls.iter().filter(|call| !call.result.starts_with("-1")) {
        let op = match call.said() {
            Some(line) => Some(Op::Said(line)),
            None => parse_call(&disk, call, root)?,
        };
        if let Some(op) = op {
            if let Op::Create { node, folder, .. } = &op {
                disk.nodes = *node;
                if !folder {
                    disk.files.insert(*node, Vec::new());
                }
            }
            disk.apply(&op, Fate::Kept);
            ops.push(op);
        }
    }
    Ok(ops)
}

fn parse_call(disk: &Disk, call: &Call, root: &Path) -> Failing<Option<Op>> {
    let below = |path: Option<PathBuf>| path.and_then(|path| path.strip_prefix(root).map(Path::to_owned).ok());
    let lost = || format!("{}({}): unknown call", call.name, call.arguments.join(", "));
    let place = |path: &Path| disk.place(path).ok_or_else(lost);
    let node = |path: &Path| disk.find(path).ok_or_else(lost);
    let fresh = disk.nodes + 1;
    Ok(match call.name.as_str() {
        "openat" => {
            let Some(path) = below(call.path(1)) else { return Ok(None) };
            let creates = call.arguments.get(2).is_some_and(|flags| flags.contains("O_CREAT"));
            let new = creates && disk.find(&path).is_none();
            if new { Some(Op::Create { at: place(&path)?, node: fresh, folder: false }) } else { None }
        }
        "mkdir" => {
            let Some(path) = below(call.path(0)) else { return Ok(None) };
            Some(Op::Create { at: place(&path)?, node: fresh, folder: true })
        }
        "write" => {
            let Some(path) = below(call.path_of_fd(0)) else { return Ok(None) };
            Some(Op::Write { node: node(&path)?, bytes: call.bytes(1).ok_or_else(lost)? })
        }
        "fsync" | "fdatasync" => {
            let Some(path) = below(call.path_of_fd(0)) else { return Ok(None) };
            Some(Op::Sync { node: node(&path)? })
        }
        "rename" | "renameat2" => {
            let second = if call.name == "rename" { 1 } else { 3 };
            let (Some(from), Some(to)) = (below(call.path(second / 2)), below(call.path(second))) else {
                return Ok(None);
            };
            let (node_from, at) = (node(&from)?, [place(&from)?, place(&to)?]);
            if call.arguments.last().is_some_and(|flags| flags.contains("RENAME_EXCHANGE")) {
                Some(Op::Exchange { nodes: [node_from, node(&to)?], at })
            } else {
                let [from, to] = at;
                Some(Op::Rename { from, to, node: node_from })
            }
        }
        "unlinkat" | "unlink" | "rmdir" => {
            let Some(path) = below(call.path(usize::from(call.name == "unlinkat"))) else { return Ok(None) };
            Some(Op::Remove { node: node(&path)?, at: place(&path)? })
        }
        other
            if ["pwrite64", "writev", "ftruncate", "link", "linkat", "symlink", "copy_file_range"].contains(&other) =>
        {
            return Err(lost().into());
        }
        _ => None,
    })
}

/// Returns the calls before `cut` that may or may not be on the disk.
fn unsynced_calls(ops: &[Op], cut: usize) -> Vec<usize> {
    let synced = |at: usize, node: Node| {
        ops[at + 1..cut].iter().any(|op| matches!(op, Op::Sync { node: synced } if *synced == node))
    };
    let open = |at: &usize| match &ops[*at] {
        Op::Write { node, .. } => !synced(*at, *node),
        Op::Create { at: place, .. } | Op::Remove { at: place, .. } => !synced(*at, place.0),
        Op::Rename { from, to, .. } => !(synced(*at, from.0) && synced(*at, to.0)),
        Op::Exchange { at: places, .. } => !places.iter().all(|place| synced(*at, place.0)),
        Op::Sync { .. } | Op::Said(_) => false,
    };
    (0..cut).filter(open).collect()
}

/// Calls `visit` with the states a power cut before call number `cut` may leave: all of them if there
/// are at most `most`; otherwise those in which at most one call has a different fate from the rest, plus random ones.
pub fn visit_states(ops: &[Op], cut: usize, most: u64, stream: &mut Stream, mut visit: impl FnMut(Disk)) {
    let open = unsynced_calls(ops, cut);
    let choices = |at: usize| -> &[Fate] {
        if matches!(ops[at], Op::Write { .. }) {
            &[Fate::Kept, Fate::Lost, Fate::Zeros, Fate::Half]
        } else {
            &[Fate::Kept, Fate::Lost]
        }
    };
    let mut build = |fates: &[Fate]| {
        let mut disk = Disk::empty();
        for (at, op) in ops[..cut].iter().enumerate() {
            let fate = open.binary_search(&at).map_or(Fate::Kept, |index| fates[index]);
            disk.apply(op, fate);
        }
        visit(disk);
    };
    let all: u64 = open.iter().fold(1, |all, at| all.saturating_mul(choices(*at).len() as u64));
    if all <= most {
        for mut number in 0..all {
            let fates: Vec<Fate> = open
                .iter()
                .map(|at| {
                    let these = choices(*at);
                    let fate = these[number as usize % these.len()];
                    number /= these.len() as u64;
                    fate
                })
                .collect();
            build(&fates);
        }
        return;
    }
    for rest in [Fate::Kept, Fate::Lost] {
        build(&vec![rest; open.len()]);
        for (index, at) in open.iter().enumerate() {
            for fate in choices(*at) {
                let mut fates = vec![rest; open.len()];
                fates[index] = *fate;
                build(&fates);
            }
        }
    }
    for _ in 0..most {
        let fates: Vec<Fate> =
            open.iter().map(|at| choices(*at)[stream.below(choices(*at).len() as u64) as usize]).collect();
        build(&fates);
    }
}
