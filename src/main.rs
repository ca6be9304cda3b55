//! The program `downshift`, with the built-in tasks.

use std::process::ExitCode;

#[cfg(feature = "train")]
fn main() -> ExitCode {
    downshift::main_with(&downshift::Registry::with_builtin())
}

#[cfg(not(feature = "train"))]
fn main() -> ExitCode {
    downshift::main_without_training()
}
