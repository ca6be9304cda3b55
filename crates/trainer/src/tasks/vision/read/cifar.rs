//! The binary versions of CIFAR-10 and CIFAR-100: records of labels and a 32×32 picture, stored as all reds,
//! then all greens, then all blues.
//!
//! ```text
//! CIFAR-10    label         3 072 bytes      data_batch_1.bin ... data_batch_5.bin, test_batch.bin
//! CIFAR-100   coarse fine   3 072 bytes      train.bin, test.bin; the fine label is used
//! ```
//! The format is described at <https://www.cs.toronto.edu/~kriz/cifar.html>.

use crate::task::DataError;
use crate::tasks::files;
use crate::tasks::vision::images::{ImageSet, Images, numbered_classes};
use std::path::{Path, PathBuf};

/// Bytes of one picture.
const PICTURE: usize = 3 * 32 * 32;

/// The record format of a set.
#[derive(Clone, Copy)]
struct RecordFormat {
    name: &'static str,
    /// Bytes before the picture; the last of them is the label.
    labels: usize,
    classes: usize,
    test: &'static str,
}

const CIFAR_10: RecordFormat = RecordFormat { name: "CIFAR-10", labels: 1, classes: 10, test: "test_batch.bin" };
const CIFAR_100: RecordFormat = RecordFormat { name: "CIFAR-100", labels: 2, classes: 100, test: "test.bin" };

/// The classes of CIFAR-10, in the order of their numbers.
const CIFAR_10_CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

impl RecordFormat {
    fn class_names(self) -> Vec<String> {
        if self.classes == CIFAR_10_CLASSES.len() {
            return CIFAR_10_CLASSES.map(str::to_owned).to_vec();
        }
        numbered_classes(self.classes)
    }
}

/// Reads the set in a folder, if it is a CIFAR set.
pub(super) fn read_cifar(root: &Path, entries: &[PathBuf]) -> Result<Option<ImageSet>, DataError> {
    let named = |wanted: &dyn Fn(&str) -> bool| -> Vec<&PathBuf> {
        entries.iter().filter(|path| wanted(&files::file_name(path))).collect()
    };
    let batches =
        named(&|name| name.starts_with("data_batch_") && Path::new(name).extension().is_some_and(|end| end == "bin"));
    let single = named(&|name| name == "train.bin");
    let (format, training) = match (batches.is_empty(), single.is_empty()) {
        (false, _) => (CIFAR_10, batches),
        (true, false) => (CIFAR_100, single),
        (true, true) => return refuse_python_version(root, entries),
    };
    let mut parts = training.into_iter().map(|file| read_records(file, format));
    let Some(mut all) = parts.next().transpose()? else { return Ok(None) };
    for part in parts {
        all.append(part?);
    }
    let test = named(&|name| name == format.test).first().map(|file| read_records(file, format)).transpose()?;
    Ok(Some(ImageSet { training: all, test, notes: Vec::new() }))
}

/// Detects the pickled version, whose files have almost the same names, to name it in the error instead of
/// reporting an unknown format.
fn refuse_python_version(root: &Path, entries: &[PathBuf]) -> Result<Option<ImageSet>, DataError> {
    if entries.iter().any(|path| files::file_name(path) == "data_batch_1") {
        let message = "is the Python version of CIFAR-10, which is not supported; download the binary version (cifar-10-binary.tar.gz)";
        return Err(files::data_error(root, message));
    }
    Ok(None)
}

fn read_records(file: &Path, format: RecordFormat) -> Result<Images, DataError> {
    let bytes = files::read_file(file)?;
    let record = format.labels + PICTURE;
    let rest = bytes.len() % record;
    if rest != 0 {
        let message = format!(
            "the file ends {rest} bytes into a {} record of {record} bytes: truncated or another format; download it again",
            format.name
        );
        return Err(files::data_error_at(file, bytes.len() - rest, message));
    }
    let count = bytes.len() / record;
    let mut images = Images {
        shape: [3, 32, 32],
        pixels: Vec::with_capacity(count * PICTURE),
        labels: Vec::with_capacity(count),
        classes: format.class_names(),
        names: Vec::new(),
    };
    for (index, bytes) in bytes.chunks_exact(record).enumerate() {
        let label = bytes[format.labels - 1];
        if usize::from(label) >= format.classes {
            let message = format!(
                "label {label} is out of range for {} (0 to {}): damaged or another format; download it again",
                format.name,
                format.classes - 1
            );
            return Err(files::data_error_at(file, index * record + format.labels - 1, message));
        }
        images.labels.push(u32::from(label));
        images.pixels.extend_from_slice(&bytes[format.labels..]);
    }
    Ok(images)
}

#[cfg(test)]
mod tests {
    use crate::tasks::vision::read::read_image_set;
    use std::fs;

    fn record(labels: &[u8], first_pixel: u8) -> Vec<u8> {
        let mut bytes = labels.to_vec();
        bytes.push(first_pixel);
        bytes.resize(labels.len() + 3072, 0);
        bytes
    }

    fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        folder
    }

    #[test]
    fn both_forms_are_read_with_their_test_part() {
        let ten = folder(&[
            ("data_batch_1.bin", [record(&[3], 11), record(&[9], 12)].concat()),
            ("data_batch_2.bin", record(&[0], 13)),
            ("test_batch.bin", record(&[1], 14)),
            ("batches.meta.txt", b"airplane".to_vec()),
        ]);
        let set = read_image_set(ten.path().to_str().unwrap(), None).unwrap();
        assert_eq!((set.training.shape, set.training.classes.len()), ([3, 32, 32], 10));
        assert_eq!(set.training.labels, [3, 9, 0]);
        assert_eq!(set.training.image(2)[0], 13);
        assert_eq!(set.test.unwrap().labels, [1]);

        let hundred = folder(&[("train.bin", record(&[4, 99], 1)), ("test.bin", record(&[4, 7], 1))]);
        let set = read_image_set(hundred.path().to_str().unwrap(), None).unwrap();
        assert_eq!((set.training.labels, set.training.classes.len()), (vec![99], 100));
        assert_eq!(set.test.unwrap().labels, [7]);
    }

    #[test]
    fn broken_files_are_named_with_the_byte() {
        let good = record(&[3], 1);
        for (case, name, bytes, offset, wanted) in [
            (
                "truncated",
                "data_batch_2.bin",
                [good.clone(), good[..100].to_vec()].concat(),
                3073,
                "ends 100 bytes into",
            ),
            ("empty", "data_batch_2.bin", vec![], 0, "empty"),
            ("wild label", "data_batch_2.bin", [good.clone(), record(&[10], 1)].concat(), 3073, "label 10"),
            ("truncated test", "test_batch.bin", good[..3000].to_vec(), 0, "ends 3000 bytes into"),
        ] {
            let folder = folder(&[("data_batch_1.bin", good.clone()), (name, bytes)]);
            let error = read_image_set(folder.path().to_str().unwrap(), None).unwrap_err();
            assert_eq!(error.file, folder.path().join(name).display().to_string(), "{case}");
            assert_eq!(error.offset, Some(offset), "{case}");
            assert!(error.message.contains(wanted), "{case}: {error}");
        }
        let pickled = folder(&[("data_batch_1", vec![1])]);
        let error = read_image_set(pickled.path().to_str().unwrap(), None).unwrap_err();
        assert!(error.message.contains("cifar-10-binary"), "{error}");
    }
}
