//! The PTX of the soft card: CUDA C++ behind a line with what it was compiled for.

use super::settings;

const FORMAT: &str = "// PTX of the soft card";

pub struct Ptx<'a> {
    /// Version of the compiler.
    pub version: (i32, i32),
    /// Compute capability.
    pub target: (i32, i32),
    pub source: &'a str,
}

impl<'a> Ptx<'a> {
    pub fn new(source: &'a str, target: (i32, i32)) -> Self {
        Self { version: settings::version("NVRTC", (12, 9)), target, source }
    }

    pub fn text(&self) -> String {
        let ((major, minor), target) = (self.version, self.target.0 * 10 + self.target.1);
        format!("{FORMAT} {major}.{minor} {target}\n{}", self.source)
    }

    pub fn parse(text: &'a str) -> Option<Self> {
        let (head, source) = text.strip_prefix(FORMAT)?.split_once('\n')?;
        let (version, target) = head.trim().split_once(' ')?;
        let (major, minor) = version.split_once('.')?;
        let target: i32 = target.parse().ok()?;
        Some(Self { version: (major.parse().ok()?, minor.parse().ok()?), target: (target / 10, target % 10), source })
    }
}
