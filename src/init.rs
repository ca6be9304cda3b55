//! Proposes a run file for a training script. The script's source is parsed; nothing is executed.
//!
//! ```text
//! command ─ invocation, shell ─▶ script ─ program ─▶ syntax trees of it and its own modules
//!                                              │ argparse, click, dataclasses, settings
//!                                              ▼
//!             --help (asked for) ─ help_text ─▶ flags ─ roles ─▶ proposal ─ run_file ─▶ YAML
//!                                   profile of the trainer ─┴────────┘
//! ```

mod argparse;
pub mod attached;
mod click;
pub mod constants;
mod dataclasses;
pub mod flag;
pub mod given;
pub mod help_text;
pub mod hugging_face;
pub mod kept;
mod knobs;
pub mod profile;
pub mod program;
pub mod proposal;
pub mod python;
pub mod roles;
pub mod run_file;
pub mod saves;
pub mod settings;
pub mod shell;
pub mod user_settings;
pub mod writes;

use crate::config::yaml;
use flag::Declared;
use hugging_face::Classes;
pub use knobs::Words;
use program::Program;

/// Finds the arguments that a script accepts.
///
/// # Errors
/// Returns an error when a table inside the program is damaged.
pub fn declared_arguments(program: &Program) -> Result<Declared, yaml::ReadError> {
    let classes = Classes::load()?;
    let mut declared = Declared::default();
    argparse::collect(program, &mut declared);
    click::collect(program, &mut declared);
    dataclasses::collect_hugging_face(program, &classes, &mut declared);
    dataclasses::collect_tyro(program, &classes, &mut declared);
    settings::collect(program, &mut declared);
    Ok(declared)
}
