//! The binary format of leaves: little-endian, fixed size:
//!
//! ```text
//! u8  METRICS      with other metrics, steps are read instead
//! per leaf:
//!   first, last    u64 step, u64 samples, i64 time        each
//!   u32 ×5         steps, skipped, lead, trail, longest
//!   u64            the first skipped step, or all ones
//!   per metric     f32 min, f32 max, f32 mean, u32 count  count 0: no step has it
//! ```

use super::{Bucket, Extent, METRICS, Spot};

/// Encodes leaves.
#[must_use]
pub fn encode(leaves: &[Bucket]) -> Vec<u8> {
    let mut bytes = vec![METRICS as u8];
    for leaf in leaves {
        for spot in [leaf.first, leaf.last] {
            bytes.extend(spot.step.to_le_bytes());
            bytes.extend(spot.samples.to_le_bytes());
            bytes.extend(spot.time_ms.to_le_bytes());
        }
        for count in [leaf.steps, leaf.skipped, leaf.lead, leaf.trail, leaf.longest] {
            bytes.extend(count.to_le_bytes());
        }
        bytes.extend(leaf.skipped_at.unwrap_or(u64::MAX).to_le_bytes());
        for extent in leaf.extents {
            let Extent { min, max, mean, count } = extent.unwrap_or(Extent { min: 0.0, max: 0.0, mean: 0.0, count: 0 });
            for value in [min, max, mean] {
                bytes.extend(value.to_le_bytes());
            }
            bytes.extend(count.to_le_bytes());
        }
    }
    bytes
}

/// Decodes leaves; none when the bytes have another format.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Vec<Bucket>> {
    let (count, mut rest) = bytes.split_first()?;
    let mut leaves = Vec::new();
    while usize::from(*count) == METRICS && !rest.is_empty() {
        leaves.push(leaf(&mut rest)?);
    }
    (usize::from(*count) == METRICS).then_some(leaves)
}

fn leaf(rest: &mut &[u8]) -> Option<Bucket> {
    let (first, last) = (spot(rest)?, spot(rest)?);
    let (steps, skipped, lead) = (u32_of(rest)?, u32_of(rest)?, u32_of(rest)?);
    let (trail, longest) = (u32_of(rest)?, u32_of(rest)?);
    let skipped_at = Some(u64_of(rest)?).filter(|step| *step != u64::MAX);
    let mut extents = [None; METRICS];
    for extent in &mut extents {
        let mut float = || take_bytes(rest).map(f32::from_le_bytes);
        let (min, max, mean) = (float()?, float()?, float()?);
        let count = u32_of(rest)?;
        *extent = (count > 0).then_some(Extent { min, max, mean, count });
    }
    Some(Bucket { first, last, steps, skipped, lead, trail, longest, skipped_at, extents })
}

fn spot(rest: &mut &[u8]) -> Option<Spot> {
    Some(Spot { step: u64_of(rest)?, samples: u64_of(rest)?, time_ms: take_bytes(rest).map(i64::from_le_bytes)? })
}

fn u64_of(rest: &mut &[u8]) -> Option<u64> {
    take_bytes(rest).map(u64::from_le_bytes)
}

fn u32_of(rest: &mut &[u8]) -> Option<u32> {
    take_bytes(rest).map(u32::from_le_bytes)
}

fn take_bytes<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*taken)
}
