//! Decodes the pictures of a set, and puts them together.

use super::PictureList;
use crate::task::DataError;
use crate::tasks::files;
use crate::tasks::vision::images::{ImageSet, Images};
use image::{ImageReader, Limits, RgbImage, imageops::FilterType};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// The most pixels of a picture: 8 192 × 4 096.
const MOST_PIXELS: u64 = 1 << 25;
/// The most memory that decoding may take.
const MOST_BYTES: u64 = 256 << 20;
/// Pictures that are decoded at a time.
const AT_ONCE: usize = 32;

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
    /// Decodes the pictures on all processors, some at a time, since a photograph is large before it is resized. One error
    /// names all that cannot be read.
    pub(super) fn decode(list: &[(PathBuf, u32)], size: Option<usize>) -> Result<Self, DataError> {
        if size.is_none() {
            check_sizes(list)?;
        }
        let mut pictures = Self { dimensions: [0, 0], pixels: Vec::new(), grey: true };
        let mut broken = Vec::new();
        for chunk in list.chunks(AT_ONCE) {
            let decoded: Vec<Result<RgbImage, DataError>> =
                chunk.par_iter().map(|(file, _)| decode_picture(file, size)).collect();
            for picture in decoded {
                match picture {
                    Ok(picture) if broken.is_empty() => pictures.add(&picture),
                    Ok(_) => {}
                    Err(error) => broken.push(error),
                }
            }
        }
        if broken.is_empty() { Ok(pictures) } else { Err(name_all(&broken)) }
    }

    fn add(&mut self, picture: &RgbImage) {
        self.dimensions = [picture.width() as usize, picture.height() as usize];
        for channel in 0..3 {
            self.pixels.extend(picture.pixels().map(|pixel| pixel.0[channel]));
        }
        self.grey &= picture.pixels().all(|pixel| pixel.0[0] == pixel.0[1] && pixel.0[1] == pixel.0[2]);
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

/// Checks from their headers that all pictures have one size. One that cannot be read is left to the decoder.
fn check_sizes(list: &[(PathBuf, u32)]) -> Result<(), DataError> {
    let mut first: Option<(&Path, (u32, u32))> = None;
    for (file, _) in list {
        let Ok(found) = dimensions_of(file) else { continue };
        let (before, wanted) = *first.get_or_insert((file, found));
        if found != wanted {
            let message = format!(
                "is {}×{} pixels, but {} is {}×{}; set data.size to resize all pictures",
                found.0,
                found.1,
                before.display(),
                wanted.0,
                wanted.1
            );
            return Err(files::data_error(file, message));
        }
    }
    Ok(())
}

/// Returns one error for all pictures that cannot be read; there is at least one.
fn name_all(broken: &[DataError]) -> DataError {
    /// More would not fit on a screen.
    const MOST: usize = 20;
    let first = &broken[0];
    if broken.len() == 1 {
        return first.clone();
    }
    let others: Vec<&str> = broken.iter().skip(1).take(MOST).map(|error| error.file.as_str()).collect();
    let more = broken.len() - 1 - others.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    DataError { message: format!("{}; also {}{more}", first.message, others.join(", ")), ..first.clone() }
}

/// Returns the width and height of a picture from its header.
fn dimensions_of(file: &Path) -> Result<(u32, u32), DataError> {
    let found = open_picture(file)?.into_dimensions();
    let (width, height) = found.map_err(|error| unreadable(file, &error))?;
    if u64::from(width) * u64::from(height) > MOST_PIXELS {
        let message = format!("is {width}×{height} pixels; the limit is {MOST_PIXELS} pixels, so make it smaller");
        return Err(files::data_error(file, message));
    }
    Ok((width, height))
}

/// Decodes a picture, and resizes it to `size` × `size` pixels if that is given.
fn decode_picture(file: &Path, size: Option<usize>) -> Result<RgbImage, DataError> {
    // The header first, before there is memory for as many pixels as it claims.
    dimensions_of(file)?;
    let picture = open_picture(file)?.decode().map_err(|error| unreadable(file, &error))?.into_rgb8();
    Ok(match size {
        Some(edge) => image::imageops::resize(&picture, edge as u32, edge as u32, FilterType::Triangle),
        None => picture,
    })
}

fn open_picture(file: &Path) -> Result<ImageReader<BufReader<File>>, DataError> {
    let opened = BufReader::new(files::open_file(file)?);
    let mut reader = ImageReader::new(opened).with_guessed_format().map_err(|error| unreadable(file, &error))?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(MOST_BYTES);
    reader.limits(limits);
    Ok(reader)
}

fn unreadable(file: &Path, error: &dyn std::fmt::Display) -> DataError {
    // Some decoders break their lines.
    let why = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    files::data_error(file, format!("is not a readable png or jpeg ({why}); replace or remove it"))
}
