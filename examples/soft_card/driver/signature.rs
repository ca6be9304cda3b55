//! The buffers of a kernel, read from its source: how many bytes a launch binds.
//!
//! CubeCL writes `(const float_4* __restrict__ buffer_0, float* buffer_1, const __grid_constant__ info_st info)`.
//! `info_st` ends with `static_meta`, which begins with the length of each buffer, in its elements. Below compute
//! capability 7.0 it lies in the device's memory, where a launch cannot read it.

use regex::{Captures, Regex};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::LazyLock;

#[expect(clippy::unwrap_used, reason = "the patterns are constants")]
fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap()
}

static KERNEL: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"extern\s+"C"\s+__global__\s+void\s*(?:__\w+__\([^)]*\)\s*)*(\w+)\s*\(([^)]*)\)"#));
static STRUCT: LazyLock<Regex> = LazyLock::new(|| pattern(r"struct\s+(?:__align__\((\d+)\)\s*)?(\w+)\s*\{([^{}]*)\}"));
static MEMBER: LazyLock<Regex> = LazyLock::new(|| pattern(r"(\w+)\s+(\w+)(?:\[(\d+)\])?;"));

const SCALARS: [(&str, usize); 21] = [
    ("bool", 1),
    ("char", 1),
    ("uint8", 1),
    ("int8", 1),
    ("__half", 2),
    ("half", 2),
    ("__nv_bfloat16", 2),
    ("uint16", 2),
    ("int16", 2),
    ("__half2", 4),
    ("half2", 4),
    ("__nv_bfloat162", 4),
    ("float", 4),
    ("int", 4),
    ("uint", 4),
    ("uint32", 4),
    ("int32", 4),
    ("double", 8),
    ("uint64", 8),
    ("int64", 8),
    ("size_t", 8),
];

/// The buffers of a kernel.
pub struct Signature {
    /// The bytes of an element of each buffer.
    elements: Vec<usize>,
    lengths: Lengths,
}

/// The place of the buffers' lengths in the arguments.
struct Lengths {
    parameter: usize,
    offset: usize,
    width: usize,
}

struct Layout {
    bytes: usize,
    align: usize,
    /// Offset and width of `static_meta`.
    lengths: Option<(usize, usize)>,
}

impl Signature {
    /// Reads the signature of a kernel, unless its arguments do not tell the lengths, or their types are not known here.
    pub fn parse(source: &str, kernel: &str) -> Option<Self> {
        let found = KERNEL.captures_iter(source).find(|found| &found[1] == kernel)?;
        let types = layouts(source);
        let (mut elements, mut lengths) = (Vec::new(), None);
        for (parameter, text) in found[2].split(',').enumerate() {
            let (kind, name) = text.trim().rsplit_once([' ', '*'])?;
            let mut words = kind.split([' ', '*']).filter(|word| !word.is_empty() && !word.starts_with("__restrict"));
            let layout = words.next_back().and_then(|word| types.get(word));
            if name.starts_with("buffer_") {
                elements.push(layout?.bytes);
            } else if let Some((offset, width)) = layout.and_then(|layout| layout.lengths)
                && !text.contains('*')
            {
                lengths = Some(Lengths { parameter, offset, width });
            }
        }
        Some(Self { elements, lengths: lengths? })
    }

    /// Returns the bytes of each buffer of a launch.
    ///
    /// # Safety
    /// `arguments` has a valid pointer for each parameter.
    pub unsafe fn buffer_bytes(&self, arguments: *const *const c_void) -> Vec<u64> {
        let lengths = &self.lengths;
        // SAFETY: this function's contract; `static_meta` is a part of the parameter and begins with a length for each
        // buffer.
        let length = |index: usize| unsafe {
            let at = (*arguments.add(lengths.parameter)).cast::<u8>().add(lengths.offset + index * lengths.width);
            if lengths.width == 8 {
                at.cast::<u64>().read_unaligned()
            } else {
                at.cast::<u32>().read_unaligned().into()
            }
        };
        self.elements.iter().enumerate().map(|(index, bytes)| length(index) * *bytes as u64).collect()
    }
}

/// Returns the sizes of all types: scalars, and the structs of the source, which hold scalars alone.
fn layouts(source: &str) -> BTreeMap<String, Layout> {
    let scalar = |(name, bytes): (&str, usize)| (name.to_owned(), Layout { bytes, align: bytes, lengths: None });
    let mut types: BTreeMap<String, Layout> = SCALARS.into_iter().map(scalar).collect();
    let structs: Vec<(String, Layout)> =
        STRUCT.captures_iter(source).filter_map(|found| Some((found[2].to_owned(), layout(&found, &types)?))).collect();
    types.extend(structs);
    types
}

fn layout(found: &Captures, types: &BTreeMap<String, Layout>) -> Option<Layout> {
    let declared = found.get(1).and_then(|bytes| bytes.as_str().parse().ok()).unwrap_or(1);
    let mut whole = Layout { bytes: 0, align: declared, lengths: None };
    for member in MEMBER.captures_iter(&found[3]) {
        let kind = types.get(&member[1])?;
        let count: usize = member.get(3).map_or(Some(1), |count| count.as_str().parse().ok())?;
        let offset = whole.bytes.next_multiple_of(kind.align);
        if &member[2] == "static_meta" {
            whole.lengths = Some((offset, kind.bytes));
        }
        whole.bytes = offset + kind.bytes * count;
        whole.align = whole.align.max(kind.align);
    }
    whole.bytes = whole.bytes.next_multiple_of(whole.align);
    Some(whole)
}
