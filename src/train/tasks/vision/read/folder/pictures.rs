//! Decodes the pictures of a set, and puts them together.

use super::PictureList;
use crate::train::task::DataError;
use crate::train::tasks::files;
use crate::train::tasks::vision::images::{ImageSet, Images};
use image::{ImageReader, Limits, RgbImage, imageops::FilterType};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

/// The most pixels of a picture: 8 192 × 4 096.
const MOST_PIXELS: u64 = 1 << 25;
/// The most memory that decoding may take.
const MOST_BYTES: u64 = 256 << 20;

/// Decoded pictures, all of one size.
pub(super) struct Pictures {
    /// `[width, height]`
    pub(super) dimensions: [usize; 2],
    /// `[picture, red | green | blue, row, column]`
    pub(super) pixels: Vec<u8>,
    /// Every picture is grey.
    pub(super) grey: bool,
}

impl Pictures {
    /// Decodes the pictures on all processors. One error names all that cannot be read.
    pub(super) fn decode(list: &[(PathBuf, u32)], size: Option<usize>) -> Result<Self, DataError> {
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
    pub(super) fn into_set(self, training: usize, list: PictureList) -> ImageSet {
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
