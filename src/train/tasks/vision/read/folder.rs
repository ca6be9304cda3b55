//! Pictures in folders: one folder per class, in the order of their names.
//!
//! ```text
//! cats/1.png cats/2.jpg dogs/1.png           or, with a separate test part,
//! train/cats/… train/dogs/… test/cats/… test/dogs/…
//! ```
//! Pictures have three color channels, or one if every picture is gray.

use crate::train::task::DataError;
use crate::train::tasks::files;
use crate::train::tasks::vision::images::{ImageSet, Images};
use image::{ImageReader, Limits, RgbImage, imageops::FilterType};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

const TEST_NAMES: [&str; 3] = ["test", "val", "validation"];
const ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];
/// The most pixels of a picture: 8 192 × 4 096.
const MOST_PIXELS: u64 = 1 << 25;
/// The most memory that decoding may take.
const MOST_BYTES: u64 = 256 << 20;

/// Reads the set in a folder with these entries, if it is one.
pub(super) fn read_class_folders(entries: &[PathBuf], size: Option<usize>) -> Result<Option<ImageSet>, DataError> {
    let folders: Vec<PathBuf> = entries.iter().filter(|path| path.is_dir()).cloned().collect();
    let folder_of = |wanted: &[&str]| folders.iter().find(|path| wanted.contains(&files::file_name(path).as_str()));
    let (folders, test) = match (folder_of(&["train"]), folder_of(&TEST_NAMES)) {
        (Some(train), Some(test)) => (subfolders(train)?, subfolders(test)?),
        _ => (folders, Vec::new()),
    };
    let mut list = PictureList::default();
    for folder in &folders {
        list.add_class(folder)?;
    }
    if list.files.is_empty() {
        return Ok(None);
    }
    let training = list.files.len();
    for folder in &test {
        list.add_test(folder)?;
    }
    Ok(Some(Pictures::decode(&list.files, size)?.into_set(training, list)))
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
    /// What the user would miss otherwise.
    notes: Vec<String>,
}

impl PictureList {
    /// Adds a folder with training pictures, which is a class if there are any.
    fn add_class(&mut self, folder: &Path) -> Result<(), DataError> {
        let name = files::file_name(folder);
        let (pictures, others) = pictures_in(folder)?;
        if pictures.is_empty() {
            let found = files::describe_entries(&others);
            self.notes.push(format!("`{name}` holds no png or jpeg, so it is no class ({found})"));
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

/// Decoded pictures, all of one size.
struct Pictures {
    /// `[width, height]`
    dimensions: [usize; 2],
    /// `[picture, red | green | blue, row, column]`
    pixels: Vec<u8>,
    grey: bool,
}

impl Pictures {
    /// Decodes the pictures on all processors. One error names all that cannot be read.
    fn decode(list: &[(PathBuf, u32)], size: Option<usize>) -> Result<Self, DataError> {
        let decoded: Vec<Result<RgbImage, DataError>> =
            list.par_iter().map(|(file, _)| decode_picture(file, size)).collect();
        let broken: Vec<&DataError> = decoded.iter().filter_map(|picture| picture.as_ref().err()).collect();
        if let Some(first) = broken.first() {
            return Err(name_all(first, &broken));
        }
        let mut pictures = Self { dimensions: [0, 0], pixels: Vec::new(), grey: true };
        for (picture, (file, _)) in decoded.into_iter().flatten().zip(list) {
            let dimensions = [picture.width() as usize, picture.height() as usize];
            if pictures.pixels.is_empty() {
                pictures.dimensions = dimensions;
            }
            let wanted = pictures.dimensions;
            if dimensions != wanted {
                let message = format!(
                    "is {}×{} pixels, but {} is {}×{}; set data.size to resize all pictures",
                    dimensions[0],
                    dimensions[1],
                    list[0].0.display(),
                    wanted[0],
                    wanted[1]
                );
                return Err(files::data_error(file, message));
            }
            for channel in 0..3 {
                pictures.pixels.extend(picture.pixels().map(|pixel| pixel.0[channel]));
            }
            pictures.grey &= picture.pixels().all(|pixel| pixel.0[0] == pixel.0[1] && pixel.0[1] == pixel.0[2]);
        }
        Ok(pictures)
    }

    /// Splits the set: the first `training` pictures for training, the others for testing.
    fn into_set(self, training: usize, list: PictureList) -> ImageSet {
        let [width, height] = self.dimensions;
        let area = width * height;
        let channels = if self.grey { 1 } else { 3 };
        let shape = [channels, height, width];
        let mut pixels = self.pixels;
        if self.grey {
            pixels = pixels.chunks(3 * area).flat_map(|picture| &picture[..area]).copied().collect();
        }
        let test_pixels = pixels.split_off(training * channels * area);
        let mut labels: Vec<u32> = list.files.iter().map(|(_, label)| *label).collect();
        let test_labels = labels.split_off(training);
        let mut names: Vec<String> = list
            .files
            .iter()
            .map(|(file, label)| format!("{}/{}", list.classes[*label as usize], files::file_name(file)))
            .collect();
        let test_names = names.split_off(training);
        let classes = list.classes;
        let test = (!test_labels.is_empty()).then(|| Images {
            shape,
            pixels: test_pixels,
            labels: test_labels,
            classes: classes.clone(),
            names: test_names,
        });
        ImageSet { training: Images { shape, pixels, labels, classes, names }, test, notes: list.notes }
    }
}

/// Returns one error for all pictures that cannot be read.
fn name_all(first: &DataError, broken: &[&DataError]) -> DataError {
    /// More would not fit on a screen.
    const MOST: usize = 20;
    if broken.len() == 1 {
        return first.clone();
    }
    let others: Vec<&str> = broken.iter().skip(1).take(MOST).map(|error| error.file.as_str()).collect();
    let more = broken.len() - 1 - others.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    DataError { message: format!("{}; also {}{more}", first.message, others.join(", ")), ..first.clone() }
}

fn is_picture(file: &Path) -> bool {
    file.extension().is_some_and(|end| ENDINGS.iter().any(|known| end.eq_ignore_ascii_case(known)))
}

/// Decodes a picture, and resizes it to `size` × `size` pixels if that is given.
fn decode_picture(file: &Path, size: Option<usize>) -> Result<RgbImage, DataError> {
    let unreadable = |error: &dyn std::fmt::Display| {
        // Some decoders break their lines.
        let why = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        files::data_error(file, format!("is not a readable png or jpeg ({why}); replace or remove it"))
    };
    let reader = |opened: File| {
        let mut reader = ImageReader::new(BufReader::new(opened)).with_guessed_format()?;
        let mut limits = Limits::default();
        limits.max_alloc = Some(MOST_BYTES);
        reader.limits(limits);
        Ok::<_, io::Error>(reader)
    };
    // Read only the header first, before allocating memory for as many pixels as it claims.
    let sizes = reader(files::open_file(file)?).map_err(|error| unreadable(&error))?.into_dimensions();
    let (width, height) = sizes.map_err(|error| unreadable(&error))?;
    if u64::from(width) * u64::from(height) > MOST_PIXELS {
        let message = format!("is {width}×{height} pixels; the limit is {MOST_PIXELS} pixels, so make it smaller");
        return Err(files::data_error(file, message));
    }
    let reader = reader(files::open_file(file)?).map_err(|error| unreadable(&error))?;
    let picture = reader.decode().map_err(|error| unreadable(&error))?.into_rgb8();
    Ok(match size {
        Some(edge) => image::imageops::resize(&picture, edge as u32, edge as u32, FilterType::Triangle),
        None => picture,
    })
}

#[cfg(test)]
mod tests {
    use crate::train::tasks::vision::{images::ImageSet, read::read_image_set};
    use image::{Rgb, RgbImage};
    use std::{fs, path::Path};

    fn save(root: &Path, name: &str, [width, height]: [u32; 2], colour: [u8; 3]) {
        let file = root.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        RgbImage::from_pixel(width, height, Rgb(colour)).save(file).unwrap();
    }

    fn open(root: &Path, size: Option<usize>) -> Result<ImageSet, crate::train::task::DataError> {
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
        let set = open(folder.path(), None).unwrap();
        assert_eq!((set.training.classes, set.training.labels), (vec!["a".to_owned(), "c".to_owned()], vec![0, 1]));
        let wanted = [
            "`b` holds no png or jpeg, so it is no class (the folder is empty)",
            "in `c`, only png and jpeg files are read (found notes.txt)",
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
