//! The digits shipped with downshift; `assets/README.md` states their origin.

use crate::task::DataError;
use crate::tasks::files;
use crate::tasks::vision::images::{Images, numbered_classes};
use std::path::Path;

static PACKED: &[u8] = include_bytes!("../../../../assets/digits.csv.gz");

/// Pixels of one image, 8 rows of 8 columns.
const PIXELS: usize = 64;

/// Reads 1 797 images of 8×8 pixels from 0 to 16, in ten classes.
pub(super) fn read_digits() -> Result<Images, DataError> {
    let file = Path::new(super::DIGITS);
    let text = files::decompress(file, PACKED)?;
    let mut images = Images {
        shape: [1, 8, 8],
        pixels: Vec::new(),
        labels: Vec::new(),
        classes: numbered_classes(10),
        names: Vec::new(),
    };
    let mut offset = 0;
    for line in text.split(|byte| *byte == b'\n') {
        if !line.is_empty() {
            let (pixels, label) = parse_row(line)
                .ok_or_else(|| files::data_error_at(file, offset, "this row is damaged; rebuild downshift"))?;
            images.pixels.extend_from_slice(&pixels);
            images.labels.push(u32::from(label));
        }
        offset += line.len() + 1;
    }
    Ok(images)
}

/// Parses one row: 64 pixels and the digit, separated by commas.
fn parse_row(line: &[u8]) -> Option<([u8; PIXELS], u8)> {
    let mut numbers = std::str::from_utf8(line).ok()?.trim_end().split(',').map(str::parse::<u8>);
    let mut pixels = [0; PIXELS];
    for pixel in &mut pixels {
        *pixel = numbers.next()?.ok().filter(|value| *value <= 16)?;
    }
    let label = numbers.next()?.ok().filter(|value| *value < 10)?;
    numbers.next().is_none().then_some((pixels, label))
}

#[cfg(test)]
mod tests {
    use super::{parse_row, read_digits};

    #[test]
    fn all_digits_are_present() {
        let images = read_digits().unwrap();
        assert_eq!(images.labels.len(), 1797);
        assert_eq!(images.pixels.len(), 1797 * 64);
        let mut count = [0; 10];
        for label in &images.labels {
            count[*label as usize] += 1;
        }
        assert_eq!(count, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        // The first row of the file, a zero.
        assert_eq!(images.image(0)[..8], [0, 0, 5, 13, 9, 1, 0, 0]);
        assert_eq!(images.labels[0], 0);
    }

    #[test]
    fn a_row_of_another_form_is_refused() {
        let good = format!("{}7", "1,".repeat(64));
        assert_eq!(parse_row(good.as_bytes()), Some(([1; 64], 7)));
        for bad in [good.replace('7', "10"), good.replace("1,1,", "17,1,"), format!("{good},1"), good[2..].to_owned()] {
            assert_eq!(parse_row(bad.as_bytes()), None, "{bad}");
        }
    }
}
