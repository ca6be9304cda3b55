//! A cache of decoded pictures. Photographs take a quarter of a second each, and every start, shift and measurement
//! reads all of them.
//!
//! ```text
//! ~/.cache/downshift/pictures/KEY     magic | width | height | grey | pixels | BLAKE3 of all before
//! ```
//! The key is a hash of the size and of every file's path, length and time. A file that is damaged, foreign or cannot
//! be written costs the time of decoding again.

use super::pictures::Pictures;
use crate::task::DataError;
use downshift_core::store::disk::free_bytes;
use downshift_core::store::kernels::in_cache;
use downshift_core::store::run_dir::write_unsynced;
use downshift_core::untrusted::file::{self, Limit};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

const MAGIC: &[u8; 8] = b"pictures";
const HASH: usize = 32;
/// Pictures that decode faster are not cached.
const WORTH: Duration = Duration::from_millis(500);
/// Sets that are kept: the last ones that were used.
const KEPT: usize = 8;
/// A set takes at most this share of the free space.
const MOST_OF_DISK: u64 = 10;

/// Decodes the pictures, unless they were decoded before and are unchanged.
pub(super) fn decode_once(list: &[(PathBuf, u32)], size: Option<usize>) -> Result<Pictures, DataError> {
    match in_cache("pictures") {
        Some(folder) => decode_into(&folder, list, size, WORTH),
        None => Pictures::decode(list, size),
    }
}

fn decode_into(
    folder: &Path,
    list: &[(PathBuf, u32)],
    size: Option<usize>,
    worth: Duration,
) -> Result<Pictures, DataError> {
    let file = key_of(list, size).map(|key| folder.join(key));
    if let Some(known) = file.as_deref().and_then(|file| read(file, list.len())) {
        return Ok(known);
    }
    let began = Instant::now();
    let pictures = Pictures::decode(list, size)?;
    if let Some(file) = file.filter(|_| began.elapsed() >= worth) {
        keep(&file, &pictures);
    }
    Ok(pictures)
}

/// Returns the name of the cached file; none if a picture is gone.
fn key_of(list: &[(PathBuf, u32)], size: Option<usize>) -> Option<String> {
    let mut hash = blake3::Hasher::new();
    hash.update(env!("CARGO_PKG_VERSION").as_bytes());
    hash.update(&size.unwrap_or(0).to_le_bytes());
    for (path, _) in list {
        let found = fs::metadata(path).ok()?;
        let path = fs::canonicalize(path).ok()?;
        hash.update(path.as_os_str().as_bytes());
        hash.update(b"\0");
        for number in [found.len().cast_signed(), found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()]
        {
            hash.update(&number.to_le_bytes());
        }
    }
    Some(hash.finalize().to_string())
}

/// Reads a cached file, and marks it as used.
fn read(path: &Path, count: usize) -> Option<Pictures> {
    let mut bytes = file::read(path, Limit::Memory).ok()?;
    let hash = bytes.split_off(bytes.len().checked_sub(HASH)?);
    if blake3::hash(&bytes).as_bytes()[..] != hash[..] {
        return None;
    }
    let rest = bytes.strip_prefix(MAGIC)?;
    let (width, rest) = rest.split_first_chunk::<4>()?;
    let (height, rest) = rest.split_first_chunk::<4>()?;
    let (grey, _) = rest.split_first()?;
    let dimensions = [*width, *height].map(|side| u32::from_le_bytes(side) as usize);
    let grey = *grey != 0;
    let pixels = bytes.split_off(MAGIC.len() + 9);
    if pixels.len() != count * 3 * dimensions[0] * dimensions[1] {
        return None;
    }
    file::open(path).ok().and_then(|file| file.set_modified(SystemTime::now()).ok());
    Some(Pictures { dimensions, pixels, grey })
}

/// Writes a cached file, if there is room for it, and deletes those that were not used for the longest time.
fn keep(path: &Path, pictures: &Pictures) {
    // They may be private.
    let create = |folder: &&Path| DirBuilder::new().recursive(true).mode(0o700).create(folder).is_ok();
    let Some(folder) = path.parent().filter(create) else { return };
    let mut bytes = Vec::with_capacity(MAGIC.len() + 9 + pictures.pixels.len() + HASH);
    bytes.extend(MAGIC);
    for side in pictures.dimensions {
        bytes.extend((side as u32).to_le_bytes());
    }
    bytes.push(u8::from(pictures.grey));
    bytes.extend(&pictures.pixels);
    bytes.extend(blake3::hash(&bytes).as_bytes());
    if free_bytes(folder).is_ok_and(|free| bytes.len() as u64 <= free / MOST_OF_DISK) {
        // Without it, the next start decodes again.
        write_unsynced(path, &bytes).ok();
    }
    let used = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    // The drafts of killed writers begin with a dot, and are the first to go.
    let is_ours = |path: &Path| path.file_name().map(OsStr::len) >= Some(2 * HASH);
    let is_set = |path: &Path| path.file_name().map(OsStr::len) == Some(2 * HASH);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut sets: Vec<(bool, Option<SystemTime>, PathBuf)> =
        entries.filter(|path| is_ours(path)).map(|path| (is_set(&path), used(&path), path)).collect();
    sets.sort();
    let old = sets.len().saturating_sub(KEPT);
    sets[..old].iter().for_each(|(_, _, path)| drop(fs::remove_file(path)));
}

#[cfg(test)]
mod tests {
    use super::{KEPT, decode_into};
    use image::{Rgb, RgbImage};
    use std::fs;
    use std::path::PathBuf;
    use std::time::Duration;

    #[test]
    fn unchanged_pictures_are_read_from_the_cache_and_nothing_else_is() {
        let place = tempfile::tempdir().unwrap();
        let cache = place.path().join("cache");
        let save = |name: &str, colour: [u8; 3]| {
            let path = place.path().join(name);
            RgbImage::from_pixel(4, 4, Rgb(colour)).save(&path).unwrap();
            (path, 0)
        };
        let list = vec![save("a.png", [1, 2, 3]), save("b.png", [4, 5, 6])];
        let decode = |list: &[(PathBuf, u32)], size| decode_into(&cache, list, size, Duration::ZERO).unwrap();
        let cached = || -> Vec<PathBuf> { fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path()).collect() };
        let first = decode(&list, Some(2));
        let file = cached().remove(0);
        let whole = fs::read(&file).unwrap();
        // Only the cache knows these pixels.
        let mut other = whole[..whole.len() - 32].to_vec();
        *other.last_mut().unwrap() = 77;
        other.extend(blake3::hash(&other).as_bytes());
        fs::write(&file, &other).unwrap();
        assert_eq!(decode(&list, Some(2)).pixels.last(), Some(&77));
        for damaged in [&whole[..whole.len() - 1], &whole[1..], b"", b"pictures"] {
            fs::write(&file, damaged).unwrap();
            assert_eq!(decode(&list, Some(2)).pixels, first.pixels, "{damaged:?}");
        }
        let file_count = cached().len();
        assert_eq!(decode(&list, Some(3)).dimensions, [3, 3], "another size");
        save("b.png", [7, 8, 9]);
        assert_eq!(decode(&list, Some(2)).pixels.last(), Some(&9), "another picture of this name");
        assert_eq!(cached().len(), file_count + 2);
        for size in 10..30 {
            decode(&list, Some(size));
        }
        assert_eq!(cached().len(), KEPT);
    }
}
