//! Memory figures in a log, in line order and in one unit.
//!
//! Training programs divide by 1024 whatever unit they print, so `GB` and `GiB` are both 2^30 bytes.

use super::line::{next_line, strip_terminal};
use regex::{Captures, Regex};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::sync::LazyLock;

/// Maximum lines kept with their figures; beyond it every second one is dropped.
const KEPT: usize = 1000;
/// A petabyte in MiB: no machine has it, but a difference below zero is printed as more.
const IMPOSSIBLE: f64 = (1_u64 << 30) as f64;
/// Length of the prefix searched for a line's time and device.
const START: usize = 64;

/// The quantity a figure reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Device memory in use, by all processes or by this one.
    Used,
    /// Tensors of the framework.
    Allocated,
    /// The peak of `Allocated`.
    MaxAllocated,
    /// Memory the framework's allocator holds, including tensors.
    Reserved,
    /// The peak of `Reserved`.
    MaxReserved,
    /// Memory the framework's allocator holds beyond its tensors.
    Unallocated,
    /// Free device memory.
    Free,
    /// A requested allocation.
    Requested,
    /// Host memory.
    Host,
}

impl Figure {
    /// Names of the regex groups in the forms below; also the names in JSON.
    const NAMES: [(Self, &'static str); 9] = [
        (Self::Used, "used"),
        (Self::Allocated, "allocated"),
        (Self::MaxAllocated, "max_allocated"),
        (Self::Reserved, "reserved"),
        (Self::MaxReserved, "max_reserved"),
        (Self::Unallocated, "unallocated"),
        (Self::Free, "free"),
        (Self::Requested, "requested"),
        (Self::Host, "host"),
    ];

    /// Returns the name in tables and JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::NAMES.iter().find(|(figure, _)| *figure == self).map_or("", |(_, word)| word)
    }
}

/// One figure of one line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reading {
    /// The line number, from 1.
    pub line: u64,
    /// The time as written in the line.
    pub time: Option<String>,
    /// The device or rank, if the line names one.
    pub device: Option<String>,
    /// The quantity.
    pub figure: Figure,
    /// Its value in MiB.
    pub mib: f64,
    /// The total it is a part of, in MiB.
    pub of_mib: Option<f64>,
}

/// The memory figures of a log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// The figures of every line, or of evenly spaced lines if there are too many.
    pub readings: Vec<Reading>,
    /// The largest reading of each figure and device; for `free`, the smallest.
    pub peaks: Vec<Reading>,
    /// Total number of lines.
    pub lines: u64,
    /// Lines with figures that `readings` leaves out.
    pub left_out: u64,
}

/// A number with its unit, a number whose unit may be missing, and a bare number.
const AMOUNT: &str = r"[\d,]*\.?\d+ ?(?:[KMGTkmgt]i?[Bb]?|[Bb]ytes|B)\b";
const MAYBE: &str = r"[\d,]*\.?\d+(?: ?(?:[KMGTkmgt]i?[Bb]?|[Bb]ytes|B)\b)?";
const NUMBER: &str = r"[\d,]*\.?\d+";

/// Formats in which programs print memory, with the default unit of numbers that lack one. `{A}`, `{M}`
/// and `{N}` stand for the three amounts above. A figure comes from the first form that finds it in a
/// line.
const FORMS: [(&str, &str); 23] = [
    // nvidia-smi: the table, and --query-gpu=memory.used,memory.total --format=csv
    (r"(?P<used>{N} ?MiB) ?/ ?(?P<of>{N} ?MiB)", "MiB"),
    (r"(?P<used>{N} MiB), (?P<of>{N} MiB)", "MiB"),
    // PyTorch, c10/cuda/CUDACachingAllocator.cpp, now and before 2.1
    (r"[Tt]r(?:ied|ying) to allocate (?P<requested>{A})", "B"),
    (r"total capacity of (?P<of>{A}) of which (?P<free>{A}) is free", "B"),
    (r"this process has (?P<used>{A}) memory in use", "B"),
    (r"(?P<allocated>{A}) is allocated by PyTorch", "B"),
    (r"(?P<unallocated>{A}) is reserved by PyTorch but unallocated", "B"),
    (r"(?P<of>{A}) total capacity; (?P<allocated>{A}) already allocated; (?P<free>{A}) free", "B"),
    (r"(?P<reserved>{A}) reserved in total by PyTorch", "B"),
    // DeepSpeed, deepspeed/runtime/utils.py: see_memory_usage
    (
        r"\bMA (?P<allocated>{A})\s+Max_MA (?P<max_allocated>{A})\s+CA (?P<reserved>{A})\s+Max_CA (?P<max_reserved>{A})",
        "GB",
    ),
    (r"CPU Virtual Memory:\s+used = (?P<host>{A})", "GB"),
    // Megatron-LM, megatron/training/utils.py: report_memory
    (
        r"\| allocated: (?P<allocated>{N}) \| max allocated: (?P<max_allocated>{N}) \| reserved: (?P<reserved>{N}) \| max reserved: (?P<max_reserved>{N})",
        "MB",
    ),
    // Names of torch.cuda's functions, and prose after them
    (r"(?i)\bmax_memory_allocated\b\D{0,12}?(?P<max_allocated>{M})", "B"),
    (r"(?i)\bmax_memory_reserved\b\D{0,12}?(?P<max_reserved>{M})", "B"),
    (r"(?i)\bmemory_allocated\b\D{0,12}?(?P<allocated>{M})", "B"),
    (r"(?i)\bmemory_reserved\b\D{0,12}?(?P<reserved>{M})", "B"),
    (
        r"(?i)\b(?:max|peak)[ _](?:cuda |gpu |vram )?mem(?:ory)?(?:[ _](?:allocated|usage|used))?\b\D{0,6}?(?P<max_allocated>{M})",
        "MB",
    ),
    // JAX: Device.memory_stats(), and TPUs
    (r#"\bbytes_in_use\b['"]?: ?(?P<used>\d+)(?:.*\bbytes_limit\b['"]?: ?(?P<of>\d+))?"#, "B"),
    (r"\bUsed (?P<used>{A}) of (?P<of>{A}) hbm", "B"),
    // Progress bars and custom lines: VRAM 11.2/24.0 GB, GPU memory: 11.2 GB
    (r"(?i)\b(?:vram|(?:gpu|cuda)[ _]?mem(?:ory)?)\b[^\d/]{0,16}?(?P<used>{M})(?: ?(?:/|of|out of) ?(?P<of>{A}))?", ""),
    // A name that holds the unit, as in tables and CSV: `Mem (GB): 20.00`, `gpu_mem_gb=11.2`
    (
        r"(?i)(?:^|[^a-z\s_]\s*)(?:gpu[ _]|cuda[ _])?(?:mem(?:ory)?|vram)(?:[ _](?:used|usage|alloc(?:ated)?))? ?[(\[_](?P<unit>[kmgt]i?b)\b[)\]]? ?[:=|] ?(?P<used>{N})",
        "",
    ),
    // The host: the kernel, /proc, psutil
    (r"(?i)\b(?:anon-rss|vmrss|rss)\b\D{0,8}?(?P<host>{A})", "B"),
    (
        r"(?i)\b(?:host|system|cpu)[ _](?:ram|mem(?:ory)?)\b[^\d/]{0,16}?(?P<host>{M})(?: ?(?:/|of|out of) ?(?P<of>{A}))?",
        "",
    ),
];

struct Forms {
    /// Prefilter: a line that does not match it contains no figure.
    any: regex::bytes::Regex,
    printed: Vec<(Regex, &'static str)>,
    time: Regex,
    device: Regex,
}

// None only if a pattern in this file is broken, which a test would catch.
static KNOWN: LazyLock<Option<Forms>> = LazyLock::new(|| Forms::build().ok());

impl Forms {
    fn build() -> Result<Self, regex::Error> {
        let form = |(pattern, unit): &(&str, &'static str)| {
            let full = pattern.replace("{A}", AMOUNT).replace("{M}", MAYBE).replace("{N}", NUMBER);
            Ok((Regex::new(&full)?, *unit))
        };
        Ok(Self {
            any: regex::bytes::Regex::new(r"(?i-u)mem|alloc|vram|rss|[0-9] ?MiB|\bMA |bytes|hbm")?,
            printed: FORMS.iter().map(form).collect::<Result<_, regex::Error>>()?,
            time: Regex::new(
                r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|^\[ *\d+\.\d+\]|\b\d\d:\d\d:\d\d(?:\.\d+)?\b",
            )?,
            device: Regex::new(r"\b(?:GPU|gpu)[ :#]?(?P<gpu>\d+)\b|\bcuda:(?P<cuda>\d+)|\b[Rr]ank ?(?P<rank>\d+)\b")?,
        })
    }
}

impl Forms {
    /// Returns the last device that a text names.
    fn device_before(&self, text: &str) -> Option<String> {
        self.device.captures_iter(text).last().and_then(|found| device_name(&found))
    }
}

/// Reads the memory figures of a log.
///
/// # Errors
/// Returns an error when the log cannot be read.
pub fn trace_memory(log: &mut impl BufRead) -> io::Result<Trace> {
    let mut trace = Trace::default();
    let mut kept: Vec<Vec<Reading>> = Vec::new();
    let mut peaks: BTreeMap<(Figure, Option<String>), Reading> = BTreeMap::new();
    let (mut seen, mut stride) = (0_u64, 1_u64);
    let mut line = Vec::new();
    while next_line(log, &mut line)? {
        trace.lines += 1;
        let readings = read_line(&line, trace.lines);
        if readings.is_empty() {
            continue;
        }
        for reading in &readings {
            raise_peak(&mut peaks, reading);
        }
        if seen.is_multiple_of(stride) {
            kept.push(readings);
        }
        seen += 1;
        if kept.len() > KEPT {
            let mut index = 0;
            kept.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            stride *= 2;
        }
    }
    trace.left_out = seen - kept.len() as u64;
    trace.readings = kept.into_iter().flatten().collect();
    trace.peaks = peaks.into_values().collect();
    Ok(trace)
}

fn raise_peak(peaks: &mut BTreeMap<(Figure, Option<String>), Reading>, reading: &Reading) {
    let key = (reading.figure, reading.device.clone());
    let beats = peaks.get(&key).is_none_or(|peak| match reading.figure {
        Figure::Free => reading.mib < peak.mib,
        _ => reading.mib > peak.mib,
    });
    if beats {
        peaks.insert(key, reading.clone());
    }
}

/// Returns the memory figures of one line.
#[must_use]
pub fn read_line(line: &[u8], number: u64) -> Vec<Reading> {
    let Some(known) = KNOWN.as_ref().filter(|known| known.any.is_match(line)) else { return Vec::new() };
    let plain = strip_terminal(line);
    // A progress bar redraws itself within one line: its last drawing counts.
    let last = plain.rsplit(|byte| *byte == b'\r').find(|part| !part.is_empty()).unwrap_or_default();
    let text = String::from_utf8_lossy(last);
    let mut readings: Vec<Reading> = Vec::new();
    for (form, unit) in &known.printed {
        let known_before: Vec<Figure> = readings.iter().map(|reading| reading.figure).collect();
        let all: Vec<Captures<'_>> = form.captures_iter(&text).collect();
        for found in &all {
            let amount = |name: &str, unit: &str| found.name(name).and_then(|amount| parse_mib(amount.as_str(), unit));
            let of_mib = amount("of", unit);
            let named = || found.name("unit").map(|unit| unit.as_str());
            let unit = unit_of_total(found).or_else(named).unwrap_or(unit);
            // A line with a figure for each device names the device before its figure.
            let end = found.get(0).map_or(0, |whole| whole.end());
            let device = (all.len() > 1).then(|| known.device_before(&text[..end])).flatten();
            for (figure, word) in Figure::NAMES {
                // Host memory is one, however many parts of it a line lists: `anon-rss:9kB, file-rss:0kB`.
                let repeats = figure == Figure::Host && readings.iter().any(|reading| reading.figure == figure);
                if known_before.contains(&figure) || repeats {
                    continue;
                }
                let Some(mib) = amount(word, unit) else { continue };
                let device = device.clone();
                readings.push(Reading { line: number, time: None, device, figure, mib, of_mib });
            }
        }
    }
    if !readings.is_empty() {
        let start = text.char_indices().nth(START).map_or(&*text, |(end, _)| &text[..end]);
        let time = known.time.find(start).map(|time| time.as_str().trim_matches(['[', ']', ' ']).to_owned());
        let device = known.device.captures(&text).and_then(|found| device_name(&found));
        for reading in &mut readings {
            reading.time.clone_from(&time);
            reading.device = reading.device.take().or_else(|| device.clone());
        }
    }
    readings
}

/// Returns the unit of the total, which `11.2/24.0 GB` writes only once.
fn unit_of_total<'a>(found: &Captures<'a>) -> Option<&'a str> {
    let whole = found.name("of")?.as_str();
    let unit = whole.trim_start_matches(|sign: char| !sign.is_ascii_alphabetic());
    (!unit.is_empty()).then_some(unit)
}

fn device_name(found: &Captures<'_>) -> Option<String> {
    let gpu = found.name("gpu").or_else(|| found.name("cuda")).map(|gpu| format!("gpu {}", gpu.as_str()));
    gpu.or_else(|| found.name("rank").map(|rank| format!("rank {}", rank.as_str())))
}

/// Converts an amount such as `1,234.5 MiB` to MiB; returns none if no unit is given or known, or
/// the amount is impossible.
fn parse_mib(amount: &str, unit: &str) -> Option<f64> {
    let digits = amount.find(|sign: char| sign.is_ascii_alphabetic()).unwrap_or(amount.len());
    let (number, own) = amount.split_at(digits);
    let number: f64 = number.replace(',', "").trim().parse().ok()?;
    let unit = if own.is_empty() { unit } else { own };
    let factor = match unit.bytes().next()?.to_ascii_uppercase() {
        b'B' => 1.0 / 1_048_576.0,
        b'K' => 1.0 / 1024.0,
        b'M' => 1.0,
        b'G' => 1024.0,
        b'T' => 1_048_576.0,
        _ => return None,
    };
    Some(number * factor).filter(|mib| *mib < IMPOSSIBLE)
}

#[cfg(test)]
#[path = "memory/tests.rs"]
mod tests;
