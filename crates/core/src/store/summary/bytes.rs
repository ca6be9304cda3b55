//! The binary format of leaves: little-endian, fixed size:
//!
//! ```text
//! u8  METRICS      with other metrics, steps are read instead; METRICS | NAMED if named metrics follow:
//! u8  count, u8 id of each
//! per leaf:
//!   first, last    u64 step, u64 samples, i64 time        each
//!   u32 ×5         steps, skipped, lead, trail, longest
//!   u64            the first skipped step, or all ones
//!   per metric     f32 min, f32 max, f32 mean, u32 count  count 0: no step has it; named ones last
//! ```

use super::{Bucket, Extent, METRICS, MetricId, NamedExtents, Spot};
use std::collections::BTreeSet;

/// Marks leaves with named metrics; a block without any is written as before there were names.
const NAMED: u8 = 0x80;

/// Encodes leaves.
#[must_use]
pub fn encode(leaves: &[Bucket]) -> Vec<u8> {
    let ids: BTreeSet<MetricId> = leaves.iter().flat_map(|leaf| leaf.named.iter().map(|(id, _)| id)).collect();
    let mut bytes = vec![METRICS as u8];
    if !ids.is_empty() {
        bytes = vec![METRICS as u8 | NAMED, ids.len() as u8];
        bytes.extend(ids.iter().map(|id| id.0));
    }
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
        let named = ids.iter().map(|id| leaf.named.get(*id));
        for extent in leaf.extents.into_iter().chain(named) {
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
    let (kind, mut rest) = bytes.split_first()?;
    if usize::from(kind & !NAMED) != METRICS {
        return None;
    }
    let ids = if kind & NAMED == 0 { &[] } else { named_ids(&mut rest)? };
    let mut leaves = Vec::new();
    while !rest.is_empty() {
        leaves.push(leaf(&mut rest, ids)?);
    }
    Some(leaves)
}

fn named_ids<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (count, after) = rest.split_first()?;
    let (ids, after) = after.split_at_checked(usize::from(*count))?;
    *rest = after;
    Some(ids)
}

fn leaf(rest: &mut &[u8], ids: &[u8]) -> Option<Bucket> {
    let (first, last) = (spot(rest)?, spot(rest)?);
    let (steps, skipped, lead) = (u32_of(rest)?, u32_of(rest)?, u32_of(rest)?);
    let (trail, longest) = (u32_of(rest)?, u32_of(rest)?);
    let skipped_at = Some(u64_of(rest)?).filter(|step| *step != u64::MAX);
    let mut extents = [None; METRICS];
    for place in &mut extents {
        *place = Some(extent(rest)?).filter(is_known);
    }
    let mut named = NamedExtents::default();
    for id in ids {
        let extent = extent(rest)?;
        if is_known(&extent) {
            named.add(MetricId(*id), extent);
        }
    }
    Some(Bucket { first, last, steps, skipped, lead, trail, longest, skipped_at, extents, named })
}

/// Reports whether any step of a leaf has the metric.
fn is_known(extent: &Extent) -> bool {
    extent.count > 0
}

/// Reads an extent; its count is 0 where no step of the leaf has the metric.
fn extent(rest: &mut &[u8]) -> Option<Extent> {
    let mut float = || take_bytes(rest).map(f32::from_le_bytes);
    let (min, max, mean) = (float()?, float()?, float()?);
    Some(Extent { min, max, mean, count: u32_of(rest)? })
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
