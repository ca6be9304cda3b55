//! Lanes that exchange values through shared memory without a barrier.
//!
//! A warp of a GPU executes one instruction for all of its lanes, so kernels write to shared memory and read what other
//! lanes of their warp wrote, with nothing in between. Here a lane runs until it has to wait; so it waits where such a
//! read follows a write, or a write a read. Lanes at the earliest such place go on first: those that took no part in a
//! branch wait behind it for those that did.

use regex::Regex;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::LazyLock;

static POINTER: LazyLock<Regex> =
    LazyLock::new(|| super::pattern(r"[*&]\s*(?:const\s+)?(\w+)\s*=\s*reinterpret_cast<[^>]*>\(&?(\w+)"));
static BARRIER: LazyLock<Regex> = LazyLock::new(|| super::pattern(r"__syncthreads|__syncwarp"));
static WORD: LazyLock<Regex> = LazyLock::new(|| super::pattern(r"\w+"));

/// A use of shared memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Keeps lanes in step between such lines; `shared` are the names of the block's shared memory. It reads the text from
/// top to bottom: what the end of a loop leaves for its beginning is not seen.
pub fn keep_step(source: &str, shared: impl Iterator<Item = String>) -> String {
    let mut names: BTreeSet<String> = shared.collect();
    let mut text = String::with_capacity(source.len());
    let (mut last, mut place) = (None, 0);
    for line in source.split_inclusive('\n') {
        let pointer = POINTER.captures(line).filter(|found| names.contains(&found[2]));
        if let Some(found) = pointer {
            names.insert(found[1].to_owned());
        } else if BARRIER.is_match(line) {
            last = None;
        } else {
            let accesses = accesses_of(line, &names);
            if last.zip(accesses.first().copied()).is_some_and(|(last, first)| last != first) {
                place += 1;
                let _ = writeln!(text, "soft_card::services->keep_step({place});");
            }
            last = accesses.last().copied().or(last);
        }
        text.push_str(line);
    }
    text
}

/// Returns a line's uses of these arrays, in order.
fn accesses_of(line: &str, names: &BTreeSet<String>) -> Vec<Access> {
    let is_shared = |text: &str| WORD.find_iter(text).any(|word| names.contains(word.as_str()));
    if line.contains("store_matrix_sync") && is_shared(line) {
        return vec![Access::Write];
    }
    let (target, value) = line.split_once(" = ").unwrap_or(("", line));
    let (array, index) = target.trim_start().split_once('[').unwrap_or(("", target));
    let mut accesses = Vec::new();
    if is_shared(value) || is_shared(index) {
        accesses.push(Access::Read);
    }
    if names.contains(array) {
        accesses.push(Access::Write);
    }
    accesses
}
