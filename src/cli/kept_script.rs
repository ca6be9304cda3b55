//! The script of a command, if its source says that the companion keeps it.

use crate::config::command::CommandSpec;
use crate::config::command::invocation::{Target, find_script};
use crate::init::kept::Kept;
use crate::init::program::Program;
use std::path::Path;

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
        let invocation = find_script(&command.command)?;
        let name = match &invocation.target {
            Target::Script(script) => script.clone(),
            Target::Module(module) => format!("{}.py", module.replace('.', "/")),
            Target::Program(_) => return None,
        };
        let file = command.directory.join(&name);
        let folder = file.parent().map(Path::to_owned)?;
        let program = Program::read(&file, &[folder, command.directory.clone()]).ok()?;
        let kept = Kept::find(&program, &invocation, &command.command)?;
        Some(Self { name, program, kept })
    }
}
