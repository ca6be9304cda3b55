//! Lanes that exchange values through shared memory without a barrier.
//!
//! A warp of a GPU executes one instruction for all of its lanes, so kernels write to shared memory and read what other
//! lanes of their warp wrote, with nothing in between. Here a lane runs until it has to wait; so it gives way where
//! such a read follows a write, or a write a read.

use regex::Regex;
use std::collections::BTreeSet;
use std::sync::LazyLock;

static POINTER: LazyLock<Regex> =
    LazyLock::new(|| super::pattern(r"[*&]\s*(?:const\s+)?(\w+)\s*=\s*reinterpret_cast<[^>]*>\(&?(\w+)"));
static BARRIER: LazyLock<Regex> = LazyLock::new(|| super::pattern(r"__syncthreads|__syncwarp"));
static WORD: LazyLock<Regex> = LazyLock::new(|| super::pattern(r"\w+"));

/// What the lines since the last barrier did with shared memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Nothing,
    Read,
    Write,
}

/// Makes lanes give way between such lines; `shared` are the names of the block's shared memory.
pub fn give_way(source: &str, shared: impl Iterator<Item = String>) -> String {
    let mut names: BTreeSet<String> = shared.collect();
    let mut text = String::with_capacity(source.len());
    let mut last = Access::Nothing;
    for line in source.split_inclusive('\n') {
        let pointer = POINTER.captures(line).filter(|found| names.contains(&found[2]));
        if let Some(found) = pointer {
            names.insert(found[1].to_owned());
        } else if BARRIER.is_match(line) {
            last = Access::Nothing;
        } else {
            let access = access_of(line, &names);
            if access != Access::Nothing {
                if last != Access::Nothing && last != access {
                    text.push_str("soft_card::services->yield();\n");
                }
                last = access;
            }
        }
        text.push_str(line);
    }
    text
}

/// Returns what a line does first with one of these arrays.
fn access_of(line: &str, names: &BTreeSet<String>) -> Access {
    if !WORD.find_iter(line).any(|word| names.contains(word.as_str())) {
        return Access::Nothing;
    }
    let target = line.split_once(" = ").map(|(target, _)| target.trim_start()).filter(|target| target.ends_with(']'));
    let written = target.and_then(|target| target.split('[').next()).is_some_and(|name| names.contains(name));
    if written || line.contains("store_matrix_sync") { Access::Write } else { Access::Read }
}
