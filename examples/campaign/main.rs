//! The campaign: faults of every kind against the real program, and a table of what survived.
//!
//! ```text
//! cargo run --release --no-default-features --features train --example campaign -- --kills 1000 --seed 7
//!
//! kills       SIGKILL of worker, keeper, its parent, in any combination, at random moments
//! syscalls    SIGKILL at every system call of a save          ┐ injected by strace into a
//! errors      ENOSPC and EIO at every call of a save          ┘ small process that only saves
//! corruption  flipped bits, truncations, missing, swapped and foreign files
//! powercut    every disk state a power cut may leave, from a recorded trace of saves
//! store       run.db full, failing, locked, lost, damaged; lock files deleted
//! search      SIGKILL as in kills, of an architecture search
//! mixed       SIGKILL and SIGSTOP of worker and keeper in turn for ten minutes, to the end
//! ```
//! This program is its own subject: called with a downshift command (`run`, `worker`, `keeper` …) it is
//! downshift with one tiny task. It exits with 1 if anything was lost.

mod corruption;
mod damage;
mod disk;
mod errors;
mod kills;
mod mixed;
mod place;
mod powercut;
mod report;
mod saver;
mod search;
mod store;
mod strace;
mod syscalls;
#[path = "../../tests/training/train/tiny.rs"]
mod tiny;
mod tmpfs;
mod verdict;

use clap::{Parser, ValueEnum};
use report::Table;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// An error of the campaign itself.
type Failing<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Injects faults of every kind into the real program and prints what survived
#[derive(Debug, Parser)]
#[command(name = "campaign")]
struct Options {
    /// Number of kills at random moments, spread over as many runs as needed
    #[arg(long, default_value_t = 1000)]
    kills: u64,
    /// Seed of everything random; drawn and printed by default
    #[arg(long)]
    seed: Option<u64>,
    /// Run only these parts
    #[arg(long, value_delimiter = ',', value_name = "PART,…")]
    only: Vec<Part>,
    /// Run a short form of each part, about a minute
    #[arg(long)]
    quick: bool,
    /// Working folder, on the disk to be tested
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// A part of the campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Kills,
    Syscalls,
    Errors,
    Corruption,
    Powercut,
    Store,
    Search,
    Mixed,
}

/// The options every part receives.
struct Orders {
    seed: u64,
    kills: u64,
    quick: bool,
    dir: PathBuf,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    match words.get(1).map(String::as_str) {
        Some(saver::COMMAND) => saver::main(&words[2..]),
        Some(word) if !word.starts_with('-') => {
            let registry = downshift::train::registry::Registry::new().with::<tiny::Tiny>();
            let registry = registry.with::<downshift::train::tasks::search::Search>();
            downshift::main_with(&registry)
        }
        _ => campaign(Options::parse()),
    }
}

fn campaign(options: Options) -> ExitCode {
    let drawn = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs() % 1_000_000);
    let seed = options.seed.unwrap_or_else(drawn);
    let kills = if options.quick { options.kills.min(12) } else { options.kills };
    let dir = options.dir.unwrap_or_else(std::env::temp_dir);
    // strace prints paths with links resolved.
    let dir = dir.canonicalize().unwrap_or(dir);
    let orders = Orders { seed, kills, quick: options.quick, dir };
    println!("seed {seed}, in {}", orders.dir.display());
    let mut table = Table::default();
    let parts = if options.only.is_empty() { Part::value_variants() } else { &options.only[..] };
    for part in parts {
        let begun = Instant::now();
        let done = match part {
            Part::Kills => kills::run(&orders, &mut table),
            Part::Syscalls => syscalls::run(&orders, &mut table),
            Part::Errors => errors::run(&orders, &mut table),
            Part::Corruption => corruption::run(&orders, &mut table),
            Part::Powercut => powercut::run(&orders, &mut table),
            Part::Store => store::run(&orders, &mut table),
            Part::Search => search::run(&orders, &mut table),
            Part::Mixed => mixed::run(&orders, &mut table),
        };
        if let Err(error) = done {
            table.add_broken_part(&format!("{part:?}"), &error.to_string());
        }
        println!("{part:?}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    table.print(seed);
    if table.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
