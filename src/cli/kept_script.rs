//! The script of a command, if its source says that the companion keeps it.

use super::init::script;
use crate::config::command::CommandSpec;
use crate::init::kept::Kept;
use crate::init::program::Program;
use crate::untrusted::text;

/// A script that the companion keeps.
pub struct KeptScript {
    /// Its file, as the command names it.
    pub name: String,
    /// Its source.
    pub program: Program,
    /// The code that is kept.
    pub kept: Kept,
}

impl KeptScript {
    /// Reads the script of a command; none if the companion only watches it, or if it cannot be read.
    pub fn of(command: &CommandSpec) -> Option<Self> {
        let found = script::find(&command.command, &command.directory).ok()?;
        let program = found.program?;
        let kept = Kept::find(&program, &found.invocation)?;
        Some(Self { name: text::path(&found.script), program, kept })
    }
}
