//! Installed packages, by the metadata that installers leave.

use crate::untrusted::file::{Limit, read_text};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum entries of a folder that are read.
const ENTRIES: usize = 20_000;
/// Maximum characters of a name or version.
const LONGEST: usize = 200;

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name, as it writes it.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// How PyTorch was built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TorchBuild {
    /// Its version.
    pub version: String,
    /// The CUDA version it was built for.
    pub cuda: Option<String>,
    /// The ROCm version it was built for.
    pub hip: Option<String>,
}

impl fmt::Display for TorchBuild {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.cuda, &self.hip) {
            (Some(cuda), _) => write!(formatter, "{}, CUDA {cuda}", self.version),
            (None, Some(hip)) => write!(formatter, "{}, ROCm {hip}", self.version),
            (None, None) => write!(formatter, "{}, built for the CPU alone", self.version),
        }
    }
}

/// Returns the packages in these folders; the first folder wins, as on Python's path.
pub fn installed(folders: &[PathBuf]) -> BTreeMap<String, Package> {
    let mut found = BTreeMap::new();
    for folder in folders {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES) {
            if let Some(package) = read_package(&entry.path()) {
                found.entry(normalise(&package.name)).or_insert(package);
            }
        }
    }
    found
}

/// Reads a `*.dist-info` folder: its metadata, or else its name.
fn read_package(folder: &Path) -> Option<Package> {
    let named = folder.file_name()?.to_str()?.strip_suffix(".dist-info")?;
    let (name, version) = named.split_once('-')?;
    let metadata = read_text(&folder.join("METADATA"), Limit::Handwritten).unwrap_or_default();
    let header = |key: &str| {
        let mut lines = metadata.lines().take_while(|line| !line.is_empty());
        lines
            .find_map(|line| line.strip_prefix(key))
            .map(|value| value.trim().chars().take(LONGEST).collect::<String>())
    };
    let name = header("Name:").unwrap_or_else(|| name.to_owned());
    Some(Package { name, version: header("Version:").unwrap_or_else(|| version.to_owned()) })
}

/// Normalises a name as pip does: `Hugging_Face.Hub` is `hugging-face-hub`.
fn normalise(name: &str) -> String {
    let parts: Vec<&str> = name.split(['-', '_', '.']).filter(|part| !part.is_empty()).collect();
    parts.join("-").to_lowercase()
}

/// Reads how PyTorch in this folder was built.
pub fn torch_build(folder: &Path) -> Option<TorchBuild> {
    let text = read_text(&folder.join("torch/version.py"), Limit::Handwritten).ok()?;
    let value = |name: &str| {
        let assigned = text.lines().filter_map(|line| line.split_once('='));
        let mut named = assigned.filter(|(left, _)| left.split(':').next().is_some_and(|left| left.trim() == name));
        let quoted = named.next()?.1.trim().trim_matches(['\'', '"']).chars().take(LONGEST).collect::<String>();
        Some(quoted).filter(|value| value != "None")
    };
    Some(TorchBuild { version: value("__version__")?, cuda: value("cuda"), hip: value("hip") })
}
