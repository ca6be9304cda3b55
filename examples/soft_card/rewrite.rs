//! Turns CUDA C++ into C++ that g++ compiles against the headers in `include`.
//!
//! - A kernel gets its place in the grid as its first parameter, and an entry for the driver.
//! - `extern __shared__` arrays become pointers to the block's shared memory.
//! - What CubeCL writes in random order is sorted (`order.rs`): one kernel is one text, which is compiled once.
//! - `asm` statements become calls of the functions in `include/soft_card/ptx.h`.
//! - Lanes wait for each other where a GPU keeps them in step.

#[path = "lockstep.rs"]
mod lockstep;
#[path = "order.rs"]
pub mod order;

use order::in_order;
use regex::{Captures, Regex};
use std::fmt::Write;
use std::sync::LazyLock;

#[expect(clippy::unwrap_used, reason = "the patterns are constants")]
fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap()
}

static KERNEL: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"extern\s+"C"\s+__global__\s+void\s*((?:__\w+__\([^)]*\)\s*)*)(\w+)\s*\(\s*(\))?"#));
static SHARED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"extern\s+__shared__\s+(?:__align__\(\d+\)\s*)?([\w ]+?)\s+(\w+)\[\];"));
/// Calls after which a thread may have to wait for another one.
static WAITS: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"__syncthreads|__syncwarp|__\w+_sync\b|wmma::|__mma_|__ldmatrix_|cuda::barrier|cooperative_groups::")
});
static ASM: LazyLock<Regex> = LazyLock::new(|| pattern(r"\basm\s*(?:volatile\s*)?\("));

pub fn rewrite_kernel(source: &str) -> String {
    let waits = u8::from(WAITS.is_match(source));
    let mut names = Vec::new();
    let sorted = in_order(source);
    let kernels = KERNEL.replace_all(&sorted, |found: &Captures| {
        names.push(found[2].to_owned());
        let rest = if found.get(3).is_some() { ")" } else { ", " };
        format!(
            "static inline __attribute__((always_inline)) void {}(const soft_card::Place& soft_card_place{rest}",
            &found[2]
        )
    });
    let shared = "$1* const $2 = reinterpret_cast<$1*>(soft_card_place.shared);";
    let arrays = SHARED.captures_iter(&kernels).map(|found| found[2].to_owned()).collect::<Vec<String>>();
    let mut text = rewrite_asm(&SHARED.replace_all(&kernels, shared));
    if waits > 0 {
        text = lockstep::keep_step(&text, arrays.into_iter());
    }
    for name in names {
        let _ = write!(text, "\nSOFT_CARD_KERNEL({name}, {waits})");
    }
    text.push('\n');
    text
}

fn rewrite_asm(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(found) = ASM.find(rest) {
        let Some(statement) = parse_asm(&rest[found.end()..]) else { break };
        text.push_str(&rest[..found.start()]);
        text.push_str(&statement.call());
        rest = &rest[found.end() + statement.length..];
    }
    text.push_str(rest);
    text
}

struct Asm {
    /// `mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32`
    instruction: String,
    /// Outputs, then inputs.
    operands: Vec<String>,
    /// From behind the opening parenthesis to behind the closing one.
    length: usize,
}

/// Parses `"template" : "=f"(out), … : "r"(in), … : "memory")`.
fn parse_asm(text: &str) -> Option<Asm> {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    let (mut template, mut operand, mut operands) = (String::new(), String::new(), Vec::new());
    let mut sections = 0;
    for (at, character) in text.char_indices() {
        match character {
            '"' if !escaped => quoted = !quoted,
            '(' if !quoted => {
                depth += 1;
                if depth == 1 {
                    continue;
                }
            }
            ')' if !quoted && depth == 0 => {
                let instruction = template.split([' ', '\\', ';']).next()?.to_owned();
                return Some(Asm { instruction, operands, length: at + 1 });
            }
            ')' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    operands.push(std::mem::take(&mut operand));
                }
            }
            ':' if !quoted && depth == 0 => sections += 1,
            _ if quoted && sections == 0 => template.push(character),
            _ => {}
        }
        if depth > 0 {
            operand.push(character);
        }
        escaped = quoted && character == '\\' && !escaped;
    }
    None
}

impl Asm {
    /// An unknown instruction becomes a call of an unknown function, which the compiler reports by name.
    fn call(&self) -> String {
        let parts: Vec<&str> = self.instruction.split('.').collect();
        let function = match parts.as_slice() {
            ["mma", "sync", "aligned", shape, "row", "col", _, a, b, _] => {
                let depth = shape.trim_start_matches("m16n8k");
                format!("mma<{depth}, soft_card::ptx::{a}, soft_card::ptx::{b}>")
            }
            ["ldmatrix", "sync", "aligned", "m8n8", _, rest @ ..] => {
                format!("ldmatrix<{}>", rest.contains(&"trans"))
            }
            ["cp", "async", "mbarrier", ..] => "cp_async_mbarrier_arrive".to_owned(),
            ["cp", "async", "ca" | "cg", ..] => "cp_async".to_owned(),
            [operation @ ("add" | "sub"), "sat", "s32"] => format!("{operation}_sat"),
            parts => parts.join("_"),
        };
        format!("soft_card::ptx::{function}({})", self.operands.join(", "))
    }
}
