//! `show`: prints the files that ship inside, with their comments, to be copied.

use super::{Failure, Outcome, line, print_raw};
use crate::shipped::{self, Kind};
use crate::untrusted::text;
use clap::Args;
use std::path::PathBuf;

/// Arguments of `show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A run file, theme or keymap that ships inside; without one, lists them
    #[arg(value_name = "SHIPPED")]
    name: Option<PathBuf>,
}

/// The kinds in the order of the list, each with a heading and the use of a copy.
const KINDS: [(Kind, &str, &str); 3] = [
    (Kind::RunFile, "run files", "downshift run NAME; to edit one: downshift init NAME"),
    (Kind::Theme, "themes", "the key t; to add one: downshift show dark > ~/.config/downshift/themes/NAME.yaml"),
    (Kind::Keymap, "keymaps", "to use one: downshift show hjkl > ~/.config/downshift/keymap.yaml"),
];

/// Prints a shipped file, or their list.
pub fn show(args: &ShowArgs) -> Outcome {
    let Some(name) = &args.name else {
        for (kind, heading, usage) in KINDS {
            line!("{heading}  ({usage})");
            for file in shipped::of_kind(kind) {
                line!("  {:<14}{}", file.name, file.summary());
            }
        }
        return Ok(0);
    };
    let unknown = || {
        let fix = shipped::suggest_name(&name.to_string_lossy());
        Failure::new(2, format!("no file `{}` ships inside; {fix}", text::path(name)))
    };
    print_raw(shipped::find(name).ok_or_else(unknown)?.text);
    Ok(0)
}
