//! The program `downshift`, with the built-in tasks.

use std::process::ExitCode;

fn main() -> ExitCode {
    downshift::main_without_training()
}
