//! Reversible ways to damage a checkpoint.

use crate::Failing;
use downshift::recipe::seed::Stream;
use downshift::store::checkpoint::manifest::Manifest;
use downshift::store::checkpoint::{self, MANIFEST, MODEL, OPTIMIZER};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A checkpoint and its files, manifest included.
pub struct Checkpoint {
    /// Its step.
    pub step: u64,
    /// Its directory.
    pub path: PathBuf,
    /// Its files by name.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Checkpoint {
    /// Reads every checkpoint of a run, newest first.
    pub fn read_all(run: &Path) -> Failing<Vec<Self>> {
        let read = |entry: checkpoint::CheckpointFolder| {
            let mut files = checkpoint::load(&entry.path)?.files;
            files.insert(MANIFEST.to_owned(), fs::read(entry.path.join(MANIFEST))?);
            Ok(Self { step: entry.step, path: entry.path, files })
        };
        checkpoint::list(run).into_iter().map(read).collect()
    }

    /// Returns every region of every file: headers, individual tensors, and the small files whole.
    pub fn regions(&self) -> Failing<Vec<(String, String, Range<usize>)>> {
        let mut regions = Vec::new();
        for (name, bytes) in &self.files {
            if name != MODEL && name != OPTIMIZER {
                regions.push((name.clone(), format!("{name} whole"), 0..bytes.len()));
                continue;
            }
            let (length, header) = SafeTensors::read_metadata(bytes)?;
            regions.push((name.clone(), format!("{name} length"), 0..8));
            regions.push((name.clone(), format!("{name} header"), 8..8 + length));
            for (tensor, info) in header.tensors() {
                let (start, end) = info.data_offsets;
                let start = 8 + length + start;
                regions.push((name.clone(), format!("{name} {tensor}"), start..8 + length + end));
            }
        }
        regions.retain(|(.., range)| !range.is_empty());
        Ok(regions)
    }
}

/// Changes to files: new bytes, or deletion.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The description in the report.
    pub what: String,
    changes: Vec<(PathBuf, Option<Vec<u8>>)>,
}

impl Damage {
    fn of_file(what: String, file: PathBuf, content: Option<Vec<u8>>) -> Self {
        Self { what, changes: vec![(file, content)] }
    }

    /// Applies the damage; returns the damage that undoes it.
    pub fn apply(&self) -> io::Result<Self> {
        let mut undo = Self { what: self.what.clone(), changes: Vec::new() };
        for (file, content) in &self.changes {
            undo.changes.push((file.clone(), fs::read(file).ok()));
            match content {
                Some(bytes) => fs::write(file, bytes)?,
                None => fs::remove_file(file)?,
            }
        }
        Ok(undo)
    }

    /// Combines two damages.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.what = format!("{} and {}", self.what, other.what);
        self.changes.extend(other.changes);
        self
    }
}

/// Flips one bit in region number `index`, cycling through the regions.
pub fn flip_bit(victim: &Checkpoint, index: u64, stream: &mut Stream) -> Failing<Damage> {
    let regions = victim.regions()?;
    let (name, region, range) = &regions[index as usize % regions.len()];
    let mut bytes = victim.files[name].clone();
    let bit = stream.below(range.len() as u64 * 8) as usize;
    bytes[range.start + bit / 8] ^= 1 << (bit % 8);
    Ok(Damage::of_file(format!("bit {bit} of {region} flipped"), victim.path.join(name), Some(bytes)))
}

/// Truncates files at many lengths, and extends them by one byte.
pub fn truncations(victim: &Checkpoint, each: u64, stream: &mut Stream) -> Vec<Damage> {
    let mut found = Vec::new();
    for (name, bytes) in &victim.files {
        let length = bytes.len() as u64;
        let mut lengths: Vec<u64> = if length <= each { (0..length).collect() } else { vec![0, 1, 7, 8, length - 1] };
        if length > each {
            lengths.extend((0..each).map(|_| stream.below(length)));
        }
        for length in lengths {
            let cut = bytes[..length as usize].to_vec();
            found.push(Damage::of_file(format!("{name} cut to {length} bytes"), victim.path.join(name), Some(cut)));
        }
        let longer = [bytes.as_slice(), b"\0"].concat();
        found.push(Damage::of_file(format!("{name} one byte longer"), victim.path.join(name), Some(longer)));
    }
    found
}

/// Zeroes blocks of 512 bytes, a disk's sector size.
pub fn zeroed(victim: &Checkpoint) -> Vec<Damage> {
    let mut found = Vec::new();
    for (name, bytes) in &victim.files {
        for start in (0..bytes.len()).step_by(512) {
            let mut bytes = bytes.clone();
            let end = bytes.len().min(start + 512);
            if bytes[start..end].iter().any(|byte| *byte != 0) {
                bytes[start..end].fill(0);
                found.push(Damage::of_file(format!("{name} zeroed from {start}"), victim.path.join(name), Some(bytes)));
            }
        }
    }
    found
}

/// Deletes each file.
pub fn missing(victim: &Checkpoint) -> Vec<Damage> {
    victim.files.keys().map(|name| Damage::of_file(format!("{name} missing"), victim.path.join(name), None)).collect()
}

/// Replaces each file with that of another checkpoint, and swaps two files within one checkpoint.
pub fn foreign_content(victim: &Checkpoint, other: &Checkpoint) -> Vec<Damage> {
    let from =
        |what: String, name: &str, bytes: &[u8]| Damage::of_file(what, victim.path.join(name), Some(bytes.to_vec()));
    let mut found = Vec::new();
    for (name, bytes) in &victim.files {
        if other.files.get(name).is_some_and(|theirs| theirs != bytes) {
            found.push(from(format!("{name} that of step {}", other.step), name, &other.files[name]));
        }
    }
    let names: Vec<&String> = victim.files.keys().collect();
    for (index, a) in names.iter().enumerate() {
        for b in &names[index + 1..] {
            let what = format!("{a} and {b} in each other's place");
            let (first, second) = (&victim.files[*b], &victim.files[*a]);
            found.push(from(what, a, first).and(from(String::new(), b, second)));
        }
    }
    found
}

/// Swaps the same file between two checkpoints: both are damaged.
pub fn swapped(one: &Checkpoint, two: &Checkpoint) -> Vec<Damage> {
    let mut found = Vec::new();
    for name in one.files.keys().filter(|name| one.files[*name] != two.files[*name]) {
        let there = Damage::of_file(
            format!("{name} of two steps exchanged"),
            one.path.join(name),
            two.files.get(name).cloned(),
        );
        found.push(there.and(Damage::of_file(String::new(), two.path.join(name), one.files.get(name).cloned())));
    }
    found
}

/// Makes the manifest name another step: with its old hash, and with a matching one.
pub fn wrong_step(victim: &Checkpoint) -> Failing<Vec<Damage>> {
    let file = victim.path.join(MANIFEST);
    let mut manifest: Manifest = serde_json::from_slice(&victim.files[MANIFEST])?;
    let write = |manifest: &Manifest| -> Failing<Vec<u8>> {
        Ok([serde_json::to_vec_pretty(manifest)?.as_slice(), b"\n"].concat())
    };
    manifest.step += 1;
    let stale = write(&manifest)?;
    manifest.blake3 = String::new();
    manifest.blake3 = blake3::hash(&write(&manifest)?).to_hex().to_string();
    let forged = write(&manifest)?;
    Ok(vec![
        Damage::of_file("manifest of another step".to_owned(), file.clone(), Some(stale)),
        Damage::of_file("manifest of another step, hash and all".to_owned(), file, Some(forged)),
    ])
}
