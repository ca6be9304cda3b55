//! One text for one kernel: CubeCL writes vector types, shared arrays and functions in an order that differs between processes.

use super::pattern;
use regex::{Captures, Regex};
use std::fmt::Write;
use std::sync::LazyLock;

static VECTORS: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?:struct __align__\(\d+\) \w+ \{[^{}]*\};\s*)+"));
/// The functions around `mma`, `ldmatrix` and `stmatrix`. Their bodies hold braces, and end with a line of one brace.
static FUNCTION: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?s)inline __device__ void\s+__(?:mma|ldmatrix|stmatrix)_\w+\(.*?\n\s*\}\s*"));
static FUNCTIONS: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("(?:{})+", FUNCTION.as_str())));
static SHARED: LazyLock<Regex> = LazyLock::new(|| {
    let place = r"([^\n]*\bshared_memory_(\d+) = [^\n]*dynamic_shared_mem\[)\d+(\][^\n]*)\n\s*";
    pattern(&format!(r"(// Shared (?:array size: \d+, |value size: )(\d+) bytes\n){place}"))
});
static ALL_SHARED: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("(?:{})+", SHARED.as_str())));
static LOCALS: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?m)(?:^[\w:<>, ]+ l_mut_\d+;\n)+"));

/// Where an array or a value may start: the largest alignment that CubeCL asks for, that of swizzled tiles.
const ALIGNMENT: usize = 1024;
/// The most shared memory of a block on any card, which each block of the soft card has.
pub const SHARED_BYTES: usize = 232 << 10;

/// Returns the same text for the same kernel, whatever the order of its parts.
pub fn in_order(source: &str) -> String {
    let source = VECTORS.replace_all(source, |found: &Captures| sort_types(&found[0]));
    let source = FUNCTIONS.replace_all(&source, |found: &Captures| sort_functions(&found[0]));
    let source = LOCALS.replace_all(&source, |found: &Captures| sort_lines(&found[0]));
    ALL_SHARED.replace(&source, |found: &Captures| place_shared(&found[0])).into_owned()
}

fn sort_types(definitions: &str) -> String {
    let mut definitions: Vec<&str> = definitions.split_inclusive("};").map(str::trim).collect();
    definitions.sort_unstable();
    definitions.join("\n") + "\n"
}

fn sort_functions(definitions: &str) -> String {
    let mut definitions: Vec<&str> = FUNCTION.find_iter(definitions).map(|found| found.as_str().trim()).collect();
    definitions.sort_unstable();
    definitions.join("\n") + "\n"
}

fn sort_lines(lines: &str) -> String {
    let mut lines: Vec<&str> = lines.split_inclusive('\n').collect();
    lines.sort_unstable();
    lines.concat()
}

/// Places arrays and values by their numbers, one after the other. CubeCL gives the same memory to those that are not used at
/// the same time, and the choice differs between processes as well.
fn place_shared(declarations: &str) -> String {
    let part = |found: &Captures, group: usize| found.get(group).map_or("", |part| part.as_str()).to_owned();
    let number = |found: &Captures, group: usize| found[group].parse::<usize>().unwrap_or(SHARED_BYTES);
    let mut shared: Vec<Captures> = SHARED.captures_iter(declarations).collect();
    shared.sort_unstable_by_key(|found| number(found, 4));
    let (mut text, mut offset) = (String::new(), 0_usize);
    for found in &shared {
        let [size, before, behind] = [1, 3, 5].map(|group| part(found, group));
        let _ = writeln!(text, "{size}{before}{offset}{behind}");
        offset += number(found, 2).next_multiple_of(ALIGNMENT);
    }
    if offset > SHARED_BYTES { declarations.to_owned() } else { text }
}
