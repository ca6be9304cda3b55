//! `man`: writes a manual page for each command, with its examples.

use super::guide::{self, GROUPS};
use super::{Cli, Failure, Outcome, line};
use crate::protocol::exit_code;
use crate::untrusted::text;
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::path::PathBuf;
use std::{fs, io};

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The folder for the pages, such as ~/.local/share/man/man1; created if it is missing
    #[arg(value_name = "DIR")]
    out: PathBuf,
}

/// Sections of the first page alone: a heading, and terms with their meanings.
const SECTIONS: [(&str, &[(&str, &str)]); 2] = [
    (
        "ENVIRONMENT",
        &[
            ("DOWNSHIFT_RUNS_DIR", "the folder that contains all runs; --runs-dir overrides it"),
            ("DOWNSHIFT_NVML_PATH", "another NVML library"),
            ("DOWNSHIFT_KERNEL_LOG", "another kernel log"),
            ("DOWNSHIFT_WSL", "1 or 0: whether this counts as WSL2; found out otherwise"),
            ("DOWNSHIFT_LOG_LIMIT", "bytes after which worker.log moves to worker.log.1; 134217728 otherwise"),
            (
                "DOWNSHIFT_SHARED_FOLDER",
                "yes or no: whether other hosts use the folder of all runs; found out otherwise",
            ),
            ("DOWNSHIFT_ASCII", "1 draws the cockpit in ASCII, 0 never does"),
            ("DOWNSHIFT_PICTURES", "graphics of the terminal: auto, kitty, iterm2, sixel, halfblocks, shades"),
            ("NO_COLOR", "no colours"),
        ],
    ),
    (
        "FILES",
        &[
            ("runs/NAME-DATE-TIME/", "everything about a run: run.yaml, run.db, checkpoints, logs"),
            ("~/.config/downshift/notify.yaml", "notifications of all runs"),
            ("~/.config/downshift/keymap.yaml", "keys that differ from the default"),
            ("~/.config/downshift/themes/", "themes of your own"),
            ("~/.config/downshift/catalogue.yaml", "causes of your own"),
            ("~/.local/state/downshift/trusted", "approved commands, one hash per line"),
        ],
    ),
];

/// Writes the pages.
pub fn write_pages(args: &ManArgs) -> Outcome {
    let shown = text::path(&args.out);
    fs::create_dir_all(&args.out).map_err(|error| Failure::new(1, format!("{shown}: {error}")))?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = vec![command.clone()];
    pages.extend(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
    for page in &pages {
        let man = Man::new(page.clone());
        let path = args.out.join(man.get_filename());
        let written = write_page(&man, page).and_then(|page| fs::write(&path, page));
        written.map_err(|error| Failure::new(1, format!("{}: {error}", text::path(&path))))?;
    }
    line!("wrote {} pages to {shown}; read one: man -l {shown}/downshift-run.1", pages.len());
    Ok(0)
}

/// Writes a page: what clap knows, then examples, and on the first page the commands by purpose.
fn write_page(man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut roff = Roff::new();
    if let Some(notes) = command.get_after_help() {
        roff.control("SH", ["NOTES"]);
        for line in notes.to_string().lines() {
            roff.text([roman(line)]).control("br", []);
        }
    }
    if command.has_subcommands() && command.get_version().is_some() {
        list_commands(&mut roff, command);
        roff.control("SH", ["EXIT STATUS"]);
        for (code, meaning) in exit_code::MEANINGS {
            roff.control("TP", []).text([bold(code.to_string())]).text([roman(meaning)]);
        }
        for (heading, terms) in SECTIONS {
            roff.control("SH", [heading]);
            for (term, meaning) in terms {
                roff.control("TP", []).text([bold(*term)]).text([roman(*meaning)]);
            }
        }
    }
    let examples = guide::examples_of(command.get_name());
    if !examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
    }
    for (line, effect) in examples {
        roff.control("TP", []).text([bold(*line)]).text([roman(*effect)]);
    }
    roff.control("SH", ["SEE ALSO"]).text([bold("downshift"), roman("(1)")]);
    page.extend(roff.render().into_bytes());
    Ok(page)
}

/// Lists the commands by purpose.
fn list_commands(roff: &mut Roff, command: &Command) {
    roff.control("SH", ["COMMANDS"]);
    for group in GROUPS {
        roff.control("SS", [group.heading]);
        for entry in group.commands {
            let about = command.find_subcommand(entry.name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            roff.control("TP", []).text([bold(format!("downshift-{}", entry.name)), roman("(1)")]).text([roman(about)]);
        }
    }
}
