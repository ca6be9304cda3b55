//! Pictures in folders: one folder per class, in the order of their names.
//!
//! ```text
//! cats/1.png cats/2.jpg dogs/1.png           or, with a separate test part,
//! train/cats/… train/dogs/… test/cats/… test/dogs/…
//! ```
//! Pictures have three color channels, or one if every picture is gray.

mod decoded;
mod pictures;

use crate::task::DataError;
use crate::tasks::files;
use crate::tasks::vision::images::ImageSet;
use std::path::{Path, PathBuf};

/// The folder beside `train` that becomes the validation set: the first of these that there is.
const HELD_OUT: [&str; 3] = ["val", "validation", "test"];
const ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];

/// Reads the set in a folder with these entries, if it is one.
pub(super) fn read_class_folders(entries: &[PathBuf], size: Option<usize>) -> Result<Option<ImageSet>, DataError> {
    let folders: Vec<PathBuf> = entries.iter().filter(|path| path.is_dir()).cloned().collect();
    let folder_of = |wanted: &str| folders.iter().find(|path| files::file_name(path) == wanted);
    let mut list = PictureList::default();
    let mut held_out = HELD_OUT.iter().filter_map(|name| folder_of(name));
    let (classes, test) = match folder_of("train").zip(held_out.next()) {
        Some((train, test)) => {
            let unused = held_out.map(|folder| format!("the folder `{}` is not used", files::file_name(folder)));
            list.notes.extend(unused);
            (subfolders(train)?, subfolders(test)?)
        }
        None => (folders.clone(), Vec::new()),
    };
    for folder in &classes {
        list.add_class(folder)?;
    }
    if list.files.is_empty() {
        return Ok(None);
    }
    let stray: Vec<PathBuf> = entries.iter().filter(|path| path.is_file() && is_picture(path)).cloned().collect();
    if !stray.is_empty() {
        let found = files::describe_entries(&stray);
        list.notes.push(format!("pictures outside the folders of the classes are not read ({found})"));
    }
    let training = list.files.len();
    for folder in &test {
        list.add_test(folder)?;
    }
    Ok(Some(decoded::decode_once(&list.files, size)?.into_set(training, list)))
}

fn subfolders(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    Ok(files::list_folder(folder)?.into_iter().filter(|path| path.is_dir()).collect())
}

/// The pictures of a set, found by name.
#[derive(Default)]
struct PictureList {
    /// The pictures with their classes.
    files: Vec<(PathBuf, u32)>,
    classes: Vec<String>,
    /// Notes for the user about files that are not read.
    notes: Vec<String>,
}

impl PictureList {
    /// Adds a folder with training pictures, which is a class if there are any.
    fn add_class(&mut self, folder: &Path) -> Result<(), DataError> {
        let name = files::file_name(folder);
        let (pictures, others) = pictures_in(folder)?;
        if pictures.is_empty() {
            let found = files::describe_entries(&others);
            self.notes.push(format!("`{name}` holds no png or jpeg and is not a class ({found})"));
            return Ok(());
        }
        if !others.is_empty() {
            let found = files::describe_entries(&others);
            self.notes.push(format!("in `{name}`, only png and jpeg files are read ({found})"));
        }
        let label = self.classes.len() as u32;
        self.classes.push(name);
        self.files.extend(pictures.into_iter().map(|file| (file, label)));
        Ok(())
    }

    /// Adds a folder with test pictures of a class.
    fn add_test(&mut self, folder: &Path) -> Result<(), DataError> {
        let name = files::file_name(folder);
        let pictures = pictures_in(folder)?.0;
        let Some(label) = self.classes.iter().position(|class| *class == name) else {
            if pictures.is_empty() {
                return Ok(());
            }
            let message = format!("is a class that the training images lack ({})", self.classes.join(", "));
            return Err(files::data_error(folder, message));
        };
        self.files.extend(pictures.into_iter().map(|file| (file, label as u32)));
        Ok(())
    }
}

/// Returns the pictures in a folder, and the other entries.
fn pictures_in(folder: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), DataError> {
    Ok(files::list_folder(folder)?.into_iter().partition(|file| is_picture(file)))
}

pub(super) fn is_picture(file: &Path) -> bool {
    file.extension().is_some_and(|end| ENDINGS.iter().any(|known| end.eq_ignore_ascii_case(known)))
}

#[cfg(test)]
mod tests {
    use crate::tasks::vision::{images::ImageSet, read::read_image_set};
    use image::{Rgb, RgbImage};
    use std::{fs, path::Path};

    fn save(root: &Path, name: &str, [width, height]: [u32; 2], colour: [u8; 3]) {
        let file = root.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        RgbImage::from_pixel(width, height, Rgb(colour)).save(file).unwrap();
    }

    fn open(root: &Path, size: Option<usize>) -> Result<ImageSet, crate::task::DataError> {
        read_image_set(root.to_str().unwrap(), size)
    }

    #[test]
    fn folders_are_classes_and_grey_pictures_have_one_channel() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), "b/1.png", [3, 2], [5, 5, 5]);
        save(folder.path(), "a/1.png", [3, 2], [9, 9, 9]);
        fs::write(folder.path().join("a/notes.txt"), "not a picture").unwrap();
        let set = open(folder.path(), None).unwrap();
        assert_eq!((set.training.shape, set.training.classes.len()), ([1, 2, 3], 2));
        assert_eq!(set.training.labels, [0, 1]);
        assert_eq!(set.training.pixels, [[9; 6], [5; 6]].concat());

        save(folder.path(), "b/2.png", [3, 2], [1, 2, 3]);
        let set = open(folder.path(), None).unwrap();
        assert_eq!(set.training.shape, [3, 2, 3]);
        assert_eq!(set.training.image(2), [[1; 6], [2; 6], [3; 6]].concat());
    }

    #[test]
    fn a_test_part_and_resizing_are_honoured() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), "train/a/1.png", [3, 2], [5, 6, 7]);
        save(folder.path(), "train/b/1.png", [4, 4], [5, 6, 7]);
        save(folder.path(), "val/b/1.png", [8, 2], [5, 6, 7]);
        let set = open(folder.path(), Some(4)).unwrap();
        assert_eq!(set.training.shape, [3, 4, 4]);
        let test = set.test.unwrap();
        assert_eq!((test.labels.as_slice(), test.pixels.len()), ([1].as_slice(), 48));
        let error = open(folder.path(), None).unwrap_err();
        assert!(error.file.ends_with("train/b/1.png") && error.message.contains("data.size"), "{error}");
        save(folder.path(), "val/c/1.png", [8, 2], [5, 6, 7]);
        assert!(open(folder.path(), Some(4)).unwrap_err().file.ends_with("val/c"));
    }

    #[test]
    fn folders_without_pictures_are_no_classes() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), "a/1.png", [3, 2], [5, 5, 5]);
        save(folder.path(), "c/1.png", [3, 2], [9, 9, 9]);
        fs::create_dir(folder.path().join("b")).unwrap();
        fs::write(folder.path().join("c/notes.txt"), "words").unwrap();
        save(folder.path(), "stray.png", [3, 2], [9, 9, 9]);
        let set = open(folder.path(), None).unwrap();
        assert_eq!((set.training.classes, set.training.labels), (vec!["a".to_owned(), "c".to_owned()], vec![0, 1]));
        let wanted = [
            "`b` holds no png or jpeg and is not a class (the folder is empty)",
            "in `c`, only png and jpeg files are read (found notes.txt)",
            "pictures outside the folders of the classes are not read (found stray.png)",
        ];
        assert_eq!(set.notes, wanted);
    }

    #[test]
    fn damaged_pictures_are_named() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), "a/1.png", [3, 2], [5, 6, 7]);
        let whole = fs::read(folder.path().join("a/1.png")).unwrap();
        for (case, bytes) in [("empty", vec![]), ("cut", whole[..40].to_vec()), ("text", b"hello".to_vec())] {
            fs::write(folder.path().join("a/2.png"), bytes).unwrap();
            let error = open(folder.path(), None).unwrap_err();
            assert!(error.file.ends_with("a/2.png") && error.message.contains("replace"), "{case}: {error}");
        }
        fs::write(folder.path().join("a/3.jpg"), "hello").unwrap();
        let error = open(folder.path(), None).unwrap_err();
        assert!(error.file.ends_with("a/2.png") && error.message.contains("a/3.jpg"), "both at once: {error}");
        assert!(!error.message.contains('\n'), "{error}");
    }
}
