//! Small random augmentations of the training images: a pure function of (seed, epoch, sample).

use downshift_core::recipe::seed::{Purpose, Stream};
use serde::{Deserialize, Serialize};

/// The augmentations of training images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Augment {
    /// Maximum shift in pixels along each axis; pixels from outside are 0.
    pub shift: usize,
    /// Whether to mirror images left to right, with probability one half.
    pub flip: bool,
}

/// One drawn augmentation: the source of each target pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transform {
    /// Shift in rows, downwards.
    pub down: isize,
    /// Shift in columns, to the right.
    pub right: isize,
    /// Whether the image is mirrored.
    pub flipped: bool,
}

impl Augment {
    /// Draws the augmentation of one sample in one epoch.
    #[must_use]
    pub fn draw(self, seed: u64, epoch: u64, sample: u32) -> Transform {
        let mut stream = Stream::for_purpose(seed, Purpose::Augmentation, [epoch, u64::from(sample), 0]);
        let span = 2 * self.shift as u64 + 1;
        let mut offset = || stream.below(span).cast_signed() as isize - self.shift.cast_signed();
        let (down, right) = (offset(), offset());
        Transform { down, right, flipped: self.flip && stream.below(2) == 1 }
    }
}

impl Transform {
    /// No augmentation, for the validation set.
    pub const NONE: Self = Self { down: 0, right: 0, flipped: false };

    /// Returns the position in the original of the pixel at (row, column) of the augmented image; `None` = outside.
    #[must_use]
    pub fn source_pixel(self, [height, width]: [usize; 2], row: usize, column: usize) -> Option<(usize, usize)> {
        let column = if self.flipped { width - 1 - column } else { column };
        let row = row.checked_add_signed(-self.down).filter(|row| *row < height)?;
        let column = column.checked_add_signed(-self.right).filter(|column| *column < width)?;
        Some((row, column))
    }
}

#[cfg(test)]
mod tests {
    use super::{Augment, Transform};
    use std::collections::BTreeSet;

    #[test]
    fn a_draw_depends_on_seed_epoch_and_sample_alone_and_reaches_every_offset() {
        let augment = Augment { shift: 1, flip: true };
        assert_eq!(augment.draw(7, 3, 5), augment.draw(7, 3, 5));
        let draws = |epoch| (0..400).map(|sample| augment.draw(7, epoch, sample)).collect::<Vec<_>>();
        assert_ne!(draws(0), draws(1));
        let seen: BTreeSet<_> = draws(0).iter().map(|change| (change.down, change.right, change.flipped)).collect();
        assert_eq!(seen.len(), 3 * 3 * 2);
        assert_eq!(Augment::default().draw(7, 0, 1), Transform::NONE);
    }

    #[test]
    fn pixels_come_from_where_they_should() {
        let size = [2, 3];
        assert_eq!(Transform::NONE.source_pixel(size, 1, 2), Some((1, 2)));
        let right = Transform { right: 1, ..Transform::NONE };
        assert_eq!(right.source_pixel(size, 0, 1), Some((0, 0)));
        assert_eq!(right.source_pixel(size, 0, 0), None);
        let up = Transform { down: -1, ..Transform::NONE };
        assert_eq!(up.source_pixel(size, 0, 0), Some((1, 0)));
        assert_eq!(up.source_pixel(size, 1, 0), None);
        let mirrored = Transform { flipped: true, ..Transform::NONE };
        assert_eq!(mirrored.source_pixel(size, 0, 0), Some((0, 2)));
    }
}
