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
    let (classes, test) = match (folder_of(&["train"]), folder_of(&TEST_NAMES)) {
        (Some(train), Some(test)) => (subfolders(train)?, subfolders(test)?),
        _ => (folders, Vec::new()),
    };
    let names: Vec<String> = classes.iter().map(|folder| files::file_name(folder)).collect();
    let mut pictures = PictureCollector { size, first: None, pixels: Vec::new(), labels: Vec::new(), grey: true };
    if !classes.iter().map(|folder| pictures.add_folder(folder, &names)).collect::<Result<Vec<_>, _>>()?.contains(&true)
    {
        return Ok(None);
    }
    let training = pictures.labels.len();
    for folder in &test {
        pictures.add_folder(folder, &names)?;
    }
    Ok(Some(pictures.into_set(training, names)))
}

fn subfolders(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    Ok(files::list_folder(folder)?.into_iter().filter(|path| path.is_dir()).collect())
}

/// Pictures read so far, all of one size.
struct PictureCollector {
    size: Option<usize>,
    first: Option<(PathBuf, [u32; 2])>,
    /// `[picture, red | green | blue, row, column]`
    pixels: Vec<u8>,
    labels: Vec<u32>,
    grey: bool,
}

impl PictureCollector {
    /// Adds the pictures of a class; reports whether there were any.
    fn add_folder(&mut self, folder: &Path, classes: &[String]) -> Result<bool, DataError> {
        let name = files::file_name(folder);
        let Some(label) = classes.iter().position(|class| *class == name) else {
            let message = format!("is a class that the training images lack ({})", classes.join(", "));
            return Err(files::data_error(folder, message));
        };
        let before = self.labels.len();
        for file in files::list_folder(folder)?.iter().filter(|file| is_picture(file)) {
            self.add_picture(file)?;
            self.labels.push(label as u32);
        }
        Ok(self.labels.len() > before)
    }

    fn add_picture(&mut self, file: &Path) -> Result<(), DataError> {
        let mut picture = decode_picture(file)?;
        if let Some(side) = self.size {
            picture = image::imageops::resize(&picture, side as u32, side as u32, FilterType::Triangle);
        }
        let dimensions = [picture.width(), picture.height()];
        let (first, wanted) = self.first.get_or_insert_with(|| (file.to_path_buf(), dimensions));
        if dimensions != *wanted {
            let message = format!(
                "is {}×{} pixels, but {} is {}×{}; set data.size to resize all pictures",
                dimensions[0],
                dimensions[1],
                first.display(),
                wanted[0],
                wanted[1]
            );
            return Err(files::data_error(file, message));
        }
        for channel in 0..3 {
            self.pixels.extend(picture.pixels().map(|pixel| pixel.0[channel]));
        }
        self.grey &= picture.pixels().all(|pixel| pixel.0[0] == pixel.0[1] && pixel.0[1] == pixel.0[2]);
        Ok(())
    }

    /// Splits the set: the first `training` pictures for training, the others for testing.
    fn into_set(mut self, training: usize, classes: Vec<String>) -> ImageSet {
        let [width, height] = self.first.map_or([0, 0], |(_, [width, height])| [width as usize, height as usize]);
        let area = width * height;
        let channels = if self.grey { 1 } else { 3 };
        if self.grey {
            self.pixels = self.pixels.chunks(3 * area).flat_map(|picture| &picture[..area]).copied().collect();
        }
        let shape = [channels, height, width];
        let test_pixels = self.pixels.split_off(training * channels * area);
        let test_labels = self.labels.split_off(training);
        let test = (!test_labels.is_empty()).then(|| Images {
            shape,
            pixels: test_pixels,
            labels: test_labels,
            classes: classes.clone(),
        });
        ImageSet { training: Images { shape, pixels: self.pixels, labels: self.labels, classes }, test }
    }
}

fn is_picture(file: &Path) -> bool {
    file.extension().is_some_and(|end| ENDINGS.iter().any(|known| end.eq_ignore_ascii_case(known)))
}

fn decode_picture(file: &Path) -> Result<RgbImage, DataError> {
    let unreadable = |error: &dyn std::fmt::Display| {
        files::data_error(file, format!("is not a readable png or jpeg ({error}); replace or remove it"))
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
    Ok(reader.decode().map_err(|error| unreadable(&error))?.into_rgb8())
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
    fn damaged_pictures_are_named() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), "a/1.png", [3, 2], [5, 6, 7]);
        let whole = fs::read(folder.path().join("a/1.png")).unwrap();
        for (case, bytes) in [("empty", vec![]), ("cut", whole[..40].to_vec()), ("text", b"hello".to_vec())] {
            fs::write(folder.path().join("a/2.png"), bytes).unwrap();
            let error = open(folder.path(), None).unwrap_err();
            assert!(error.file.ends_with("a/2.png") && error.message.contains("replace"), "{case}: {error}");
        }
    }
}
