//! Detects the kind of image set at a path, and reads it.
//!
//! ```text
//! embedded:digits                      the digits shipped with downshift
//! folder with *train-images-idx3-ubyte MNIST and its relatives, plain or .gz        idx
//! folder with data_batch_1.bin         CIFAR-10, binary version                     cifar
//! folder with train.bin                CIFAR-100, binary version                    cifar
//! folder with one folder per class     png and jpeg files                           folder
//! ```

mod cifar;
mod digits;
mod folder;
mod idx;

use super::images::ImageSet;
use crate::task::DataError;
use crate::tasks::files;
use downshift_core::config::typed::nearest;
use std::path::Path;

/// The prefix of a `data.source` shipped with downshift.
pub const EMBEDDED: &str = "embedded:";
/// The image set shipped with downshift.
pub const DIGITS: &str = "embedded:digits";

const SUPPORTED: &str = "a folder with one folder of png or jpeg files per class, with MNIST-style files \
     (train-images-idx3-ubyte and train-labels-idx1-ubyte, plain or .gz), or with the binary version of CIFAR-10 \
     (data_batch_1.bin) or CIFAR-100 (train.bin); or embedded:digits, which needs no files";

/// Reads the set at `source`. Pictures in folders are resized to `size` × `size` pixels if `size` is given.
///
/// # Errors
/// Returns an error that names the file, the byte if there is one, and the remedy.
pub fn read_image_set(source: &str, size: Option<usize>) -> Result<ImageSet, DataError> {
    if source == DIGITS {
        return Ok(ImageSet { training: digits::read_digits()?, test: None, notes: Vec::new() });
    }
    let root = Path::new(source);
    if !root.exists() {
        let fix = name_neighbour(root).unwrap_or_else(|| format!("set data.source to {SUPPORTED}"));
        return Err(files::data_error(root, format!("does not exist; {fix}")));
    }
    if !root.is_dir() {
        return Err(files::data_error(root, format!("is a file; set data.source to {SUPPORTED}")));
    }
    let entries = files::list_folder(root)?;
    if let Some(set) = idx::read_idx(root, &entries)? {
        return Ok(set);
    }
    if let Some(set) = cifar::read_cifar(root, &entries)? {
        return Ok(set);
    }
    if let Some(set) = folder::read_class_folders(&entries, size)? {
        return Ok(set);
    }
    if entries.iter().any(|path| folder::is_picture(path)) {
        let above = root.parent().unwrap_or(root).display();
        let fix =
            format!("each class needs a folder of its own, and data.source names the one above them, such as {above}");
        return Err(files::data_error(root, format!("holds pictures and no folders of classes; {fix}")));
    }
    let found = files::describe_entries(&entries);
    Err(files::data_error(root, format!("contains no known image set ({found}); set data.source to {SUPPORTED}")))
}

/// Names the folder that was probably meant.
fn name_neighbour(missing: &Path) -> Option<String> {
    if missing.components().any(|part| part.as_os_str() == "~") {
        return Some("write the home folder in full, since `~` is not replaced in a run file".to_owned());
    }
    let there = files::list_folder(missing.parent()?).ok()?;
    let names: Vec<String> = there.iter().filter(|path| path.is_dir()).map(|path| files::file_name(path)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let meant = nearest(&files::file_name(missing), &names)?;
    Some(format!("did you mean `{}`?", missing.with_file_name(meant).display()))
}

#[cfg(test)]
mod tests {
    use super::read_image_set;

    #[test]
    fn other_sources_are_refused_with_the_supported_kinds() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir(root.join("empty")).unwrap();
        std::fs::write(root.join("notes.txt"), "words").unwrap();
        for (source, wanted) in [
            (root.join("missing"), "does not exist"),
            (root.join("notes.txt"), "is a file"),
            (root.join("empty"), "the folder is empty"),
            (root.to_path_buf(), "found empty, notes.txt"),
        ] {
            let error = read_image_set(source.to_str().unwrap(), None).unwrap_err();
            assert_eq!(error.file, source.display().to_string());
            assert!(error.message.contains(wanted), "{error}");
            assert!(error.message.contains("embedded:digits"), "{error}");
        }
        std::fs::write(root.join("empty/1.png"), "").unwrap();
        let error = read_image_set(root.join("empty").to_str().unwrap(), None).unwrap_err();
        assert!(error.message.ends_with(&format!("such as {}", root.display())), "{error}");
        for (source, wanted) in [
            ("emtpy", format!("did you mean `{}`?", root.join("empty").display())),
            ("~/pictures", "in full".to_owned()),
        ] {
            let error = read_image_set(root.join(source).to_str().unwrap(), None).unwrap_err();
            assert!(error.message.contains(&wanted), "{error}");
        }
    }
}
