//! MNIST and its relatives: one file of images and one of labels, for training and optionally for testing.
//!
//! ```text
//! byte 0    0 0 8 d     unsigned bytes, d dimensions
//! byte 4    d × u32     sizes, most significant byte first
//! then      the bytes, last dimension fastest
//! ```
//! The format is described at <http://yann.lecun.com/exdb/mnist/>.

use crate::task::DataError;
use crate::tasks::files;
use crate::tasks::vision::images::{ImageSet, Images, numbered_classes};
use std::path::{Path, PathBuf};

/// Reads the set in a folder, if it is one.
pub(super) fn read_idx(root: &Path, entries: &[PathBuf]) -> Result<Option<ImageSet>, DataError> {
    let Some(training) = read_part(root, entries, "train")? else { return Ok(None) };
    let test = match read_part(root, entries, "t10k")? {
        Some(test) => Some(test),
        None => read_part(root, entries, "test")?,
    };
    if let Some(test) = &test
        && test.shape != training.shape
    {
        let [_, height, width] = test.shape;
        return Err(files::data_error(
            root,
            format!(
                "its test images are {width}×{height} pixels, its training images differ; use files of the same set"
            ),
        ));
    }
    Ok(Some(ImageSet { training, test, notes: Vec::new() }))
}

/// Reads the images of one part with their labels.
fn read_part(root: &Path, entries: &[PathBuf], prefix: &str) -> Result<Option<Images>, DataError> {
    let Some(images) = find_file(entries, &format!("{prefix}-images-idx3-ubyte")) else { return Ok(None) };
    let wanted = format!("{prefix}-labels-idx1-ubyte");
    let labels = find_file(entries, &wanted).ok_or_else(|| {
        let name = files::file_name(images);
        files::data_error(
            root,
            format!("contains {name} but not {wanted}; download the labels of the same set (plain or .gz)"),
        )
    })?;
    join_files(images, labels).map(Some)
}

fn find_file<'a>(entries: &'a [PathBuf], wanted: &str) -> Option<&'a PathBuf> {
    entries.iter().find(|path| {
        let name = files::file_name(path).replace('.', "-");
        name.strip_suffix("-gz").unwrap_or(&name).ends_with(wanted)
    })
}

fn join_files(image_file: &Path, label_file: &Path) -> Result<Images, DataError> {
    let image_bytes = files::read_file(image_file)?;
    let ([count, height, width], pixels) = parse_idx::<3>(image_file, &image_bytes)?;
    let label_bytes = files::read_file(label_file)?;
    let ([label_count], labels) = parse_idx::<1>(label_file, &label_bytes)?;
    if count != label_count {
        let message = format!(
            "has {label_count} labels, but {} has {count} images; use files of the same set",
            files::file_name(image_file)
        );
        return Err(files::data_error_at(label_file, 4, message));
    }
    if count == 0 || height == 0 || width == 0 {
        let message = format!("has {count} images of {width}×{height} pixels; download a set that contains images");
        return Err(files::data_error_at(image_file, 4, message));
    }
    let labels: Vec<u32> = labels.iter().map(|label| u32::from(*label)).collect();
    let classes = numbered_classes(labels.iter().max().map_or(0, |last| *last as usize + 1));
    Ok(Images { shape: [1, height, width], pixels: pixels.to_vec(), labels, classes, names: Vec::new() })
}

/// Returns the sizes and the bytes of an IDX file with `D` dimensions.
fn parse_idx<'a, const D: usize>(file: &Path, bytes: &'a [u8]) -> Result<([usize; D], &'a [u8]), DataError> {
    let header = 4 + 4 * D;
    if bytes.len() < header {
        let message = format!("the file ends inside its header of {header} bytes; download it again");
        return Err(files::data_error_at(file, bytes.len(), message));
    }
    if bytes[..3] != [0, 0, 8] || usize::from(bytes[3]) != D {
        let message = format!(
            "starts with {:?}; an IDX file of bytes with {D} dimensions starts with [0, 0, 8, {D}]; check that the file matches its name",
            &bytes[..4]
        );
        return Err(files::data_error_at(file, 0, message));
    }
    let mut sizes = [0; D];
    for (size, big_endian) in sizes.iter_mut().zip(bytes[4..header].chunks_exact(4)) {
        *size = big_endian.iter().fold(0, |value, byte| value << 8 | usize::from(*byte));
    }
    let wanted = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    let rest = bytes.len() - header;
    match wanted {
        Some(wanted) if wanted == rest => Ok((sizes, &bytes[header..])),
        Some(wanted) if wanted < rest => {
            let message =
                format!("{} bytes too many after the {wanted} in the header; download it again", rest - wanted);
            Err(files::data_error_at(file, header + wanted, message))
        }
        _ => {
            let message =
                format!("the file ends after {rest} of the bytes in its header ({sizes:?}); download it again");
            Err(files::data_error_at(file, bytes.len(), message))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tasks::vision::read::read_image_set;
    use flate2::{Compression, write::GzEncoder};
    use std::{fs, io::Write, path::Path};

    const IMAGES: &str = "train-images-idx3-ubyte";
    const LABELS: &str = "train-labels-idx1-ubyte";

    /// Case, bytes of the images, bytes of the labels, file at fault, offset, reason.
    type Case = (&'static str, Vec<u8>, Vec<u8>, &'static str, Option<u64>, &'static str);

    fn images(count: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 2, 0, 0, 0, 3];
        bytes.extend((0..count * 6).collect::<Vec<_>>());
        bytes
    }

    fn labels(count: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, 1, 0, 0, 0, count];
        bytes.extend((0..count).map(|index| index % 2));
        bytes
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        folder
    }

    fn open(root: &Path) -> Result<crate::tasks::vision::images::ImageSet, crate::task::DataError> {
        read_image_set(root.to_str().unwrap(), None)
    }

    #[test]
    fn plain_packed_and_renamed_files_are_read_with_their_own_test_part() {
        let plain = folder(&[(IMAGES, images(4)), (LABELS, labels(4))]);
        let set = open(plain.path()).unwrap();
        assert_eq!((set.training.shape, set.training.classes.len(), set.test), ([1, 2, 3], 2, None));
        assert_eq!(set.training.labels, [0, 1, 0, 1]);
        assert_eq!(set.training.image(1), [6, 7, 8, 9, 10, 11]);

        let packed = folder(&[
            ("emnist-train-images-idx3-ubyte.gz", gzip(&images(4))),
            ("emnist-train-labels.idx1-ubyte.gz", gzip(&labels(4))),
            ("t10k-images.idx3-ubyte", images(2)),
            ("t10k-labels-idx1-ubyte", labels(2)),
        ]);
        let again = open(packed.path()).unwrap();
        assert_eq!(again.training, set.training);
        assert_eq!(again.test.unwrap().labels, [0, 1]);
    }

    #[test]
    fn broken_files_are_named_with_the_byte() {
        let cut = |mut bytes: Vec<u8>, length| {
            bytes.truncate(length);
            bytes
        };
        let packed = gzip(&images(4));
        let half = packed.len() / 2;
        let table: Vec<Case> = vec![
            ("empty images", vec![], labels(4), IMAGES, Some(0), "empty"),
            ("short header", cut(images(4), 9), labels(4), IMAGES, Some(9), "inside its header"),
            ("wrong magic", labels(20), labels(4), IMAGES, Some(0), "[0, 0, 8, 3]"),
            ("truncated", cut(images(4), 30), labels(4), IMAGES, Some(30), "ends after 14"),
            ("too long", [images(4), vec![1, 2]].concat(), labels(4), IMAGES, Some(40), "2 bytes too many"),
            (
                "absurd sizes",
                [vec![0, 0, 8, 3], vec![255; 12], vec![1]].concat(),
                labels(4),
                IMAGES,
                Some(17),
                "ends after",
            ),
            ("cut gzip", cut(packed, half), labels(4), IMAGES, None, "gzip"),
            ("no images", images(0), labels(0), IMAGES, Some(4), "0 images"),
            ("fewer labels", images(4), labels(3), LABELS, Some(4), "3 labels"),
            ("empty labels", images(4), vec![], LABELS, Some(0), "empty"),
            ("truncated labels", images(4), cut(labels(4), 10), LABELS, Some(10), "ends after 2"),
        ];
        for (case, image_bytes, label_bytes, file, offset, wanted) in table {
            let folder = folder(&[(IMAGES, image_bytes), (LABELS, label_bytes)]);
            let error = open(folder.path()).unwrap_err();
            assert_eq!(error.file, folder.path().join(file).display().to_string(), "{case}");
            if offset.is_some() {
                assert_eq!(error.offset, offset, "{case}: {error}");
            }
            assert!(error.offset.is_some() && error.message.contains(wanted), "{case}: {error}");
        }
    }

    #[test]
    fn a_missing_partner_and_unequal_parts_are_named() {
        let lonely = folder(&[(IMAGES, images(4))]);
        assert!(open(lonely.path()).unwrap_err().message.contains(LABELS));
        let mut other = images(2);
        (other[11], other[15]) = (3, 2);
        let mixed = folder(&[
            (IMAGES, images(4)),
            (LABELS, labels(4)),
            ("t10k-images-idx3-ubyte", other),
            ("t10k-labels-idx1-ubyte", labels(2)),
        ]);
        assert!(open(mixed.path()).unwrap_err().message.contains("2×3"));
    }
}
