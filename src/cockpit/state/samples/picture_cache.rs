//! Pictures of samples in memory: those on the screen, and recent ones within a budget of bytes.

use crate::cockpit::pictures::{PictureBox, PictureError, PictureOrder};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of pictures, those on the screen included. If the screen alone needs more, it gets more.
const BUDGET: usize = 24 << 20;
/// Pictures, those on the screen not included.
const PICTURES: usize = 96;
/// Pictures decoded at once. A decoder may use hundreds of megabytes.
const DECODERS: usize = 2;

/// Pictures by order.
#[derive(Debug, Clone, Default)]
pub struct PictureCache {
    known: BTreeMap<PictureOrder, Known>,
    /// The orders being read.
    reading: BTreeSet<PictureOrder>,
    /// Counts the screens that wanted pictures.
    screens: u64,
}

/// A picture that was read, or why it is not shown.
#[derive(Debug, Clone)]
struct Known {
    picture: Result<PictureBox, PictureError>,
    /// The last screen that wanted it.
    screen: u64,
    /// Whether to read it again.
    stale: bool,
}

impl Known {
    fn bytes(&self) -> usize {
        self.picture.as_ref().map_or(0, |picture| picture.0.bytes())
    }
}

impl PictureCache {
    /// Returns those of the pictures on the screen that must be read now, and marks them. Forgets others that do not
    /// fit. The rest is returned by later calls, when a decoder is free.
    pub fn take_missing(&mut self, on_screen: &[PictureOrder]) -> Vec<PictureOrder> {
        self.screens += 1;
        for order in on_screen {
            if let Some(known) = self.known.get_mut(order) {
                known.screen = self.screens;
            }
        }
        self.forget_oldest();
        let mut missing = Vec::new();
        for order in on_screen {
            let is_known = self.known.get(order).is_some_and(|known| !known.stale);
            if !is_known && self.reading.len() < DECODERS && self.reading.insert(order.clone()) {
                missing.push(order.clone());
            }
        }
        missing
    }

    /// Forgets pictures that are not on the screen, those unseen for longest first, until the others fit.
    fn forget_oldest(&mut self) {
        let unseen = self.known.iter().filter(|(_, known)| known.screen < self.screens);
        let mut unseen: Vec<(u64, usize, PictureOrder)> =
            unseen.map(|(order, known)| (known.screen, known.bytes(), order.clone())).collect();
        unseen.sort_unstable();
        let mut bytes: usize = self.known.values().map(Known::bytes).sum();
        let many = unseen.len().saturating_sub(PICTURES);
        for (place, (_, freed, order)) in unseen.into_iter().enumerate() {
            if place >= many && bytes <= BUDGET {
                break;
            }
            bytes -= freed;
            self.known.remove(&order);
        }
    }

    /// Stores a picture that was read.
    pub fn store(&mut self, order: PictureOrder, picture: Result<PictureBox, PictureError>) {
        self.reading.remove(&order);
        self.known.insert(order, Known { picture, screen: self.screens, stale: false });
    }

    /// Returns a picture, or why it is not shown; `None` while it is being read.
    #[must_use]
    pub fn get(&self, order: &PictureOrder) -> Option<&Result<PictureBox, PictureError>> {
        self.known.get(order).map(|known| &known.picture)
    }

    /// Marks pictures whose files could not be read: they may be readable by now.
    pub fn retry_unread(&mut self) {
        for known in self.known.values_mut() {
            known.stale |= matches!(known.picture, Err(PictureError::Unread(_)));
        }
    }

    /// Forgets all pictures.
    pub fn clear(&mut self) {
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{BUDGET, DECODERS, PICTURES, PictureCache};
    use crate::cockpit::pictures::{Picture, PictureBox, PictureError, PictureKind, PictureOrder, PictureSupport};
    use image::RgbImage;
    use std::path::PathBuf;
    use std::sync::Arc;

    fn order(number: usize) -> PictureOrder {
        let support = PictureSupport::of_cells(PictureKind::HalfBlocks);
        PictureOrder { path: PathBuf::from(format!("{number:03}.png")), time_ms: 0, room: (12, 6), support }
    }

    /// Returns a picture of a mebibyte.
    fn large() -> PictureBox {
        let picture =
            Picture { source: (1, 1), pixels: RgbImage::new(1024, 1), encoded: None, encoded_bytes: (1 << 20) - 3072 };
        PictureBox(Arc::new(picture))
    }

    fn small() -> PictureBox {
        PictureBox(Arc::new(Picture { source: (1, 1), pixels: RgbImage::new(1, 1), encoded: None, encoded_bytes: 0 }))
    }

    /// Reads all pictures of a screen.
    fn show(cache: &mut PictureCache, numbers: &[usize], picture: fn() -> PictureBox) -> usize {
        let on_screen: Vec<PictureOrder> = numbers.iter().copied().map(order).collect();
        let mut read = 0;
        loop {
            let missing = cache.take_missing(&on_screen);
            if missing.is_empty() {
                return read;
            }
            assert!(missing.len() <= DECODERS);
            read += missing.len();
            for order in missing {
                cache.store(order, Ok(picture()));
            }
        }
    }

    #[test]
    fn few_pictures_are_decoded_at_once_and_each_one_once() {
        let mut cache = PictureCache::default();
        let on_screen: Vec<PictureOrder> = [0, 0, 1, 2].map(order).to_vec();
        assert_eq!(cache.take_missing(&on_screen), [order(0), order(1)]);
        assert_eq!(cache.take_missing(&on_screen), []);
        cache.store(order(0), Ok(small()));
        assert_eq!(cache.take_missing(&on_screen), [order(2)]);
        cache.clear();
        cache.store(order(1), Ok(small()));
        assert_eq!(cache.take_missing(&on_screen), [order(0)]);
    }

    #[test]
    fn memory_is_bounded_in_bytes_and_the_screen_is_never_forgotten() {
        let mut cache = PictureCache::default();
        let fits = BUDGET >> 20;
        for number in 0..2 * fits {
            show(&mut cache, &[number], large);
        }
        let known = |cache: &PictureCache, number| cache.get(&order(number)).is_some();
        assert!(known(&cache, 2 * fits - 1) && known(&cache, fits) && !known(&cache, fits - 1));
        // A screen larger than the budget is read once, and displaces all others.
        let screen: Vec<usize> = (100..102 + fits).collect();
        assert_eq!(show(&mut cache, &screen, large), screen.len());
        assert!(screen.iter().all(|number| known(&cache, *number)) && !known(&cache, 2 * fits - 1));
    }

    #[test]
    fn small_pictures_are_bounded_in_number() {
        let mut cache = PictureCache::default();
        for number in 0..PICTURES + 10 {
            show(&mut cache, &[number], small);
        }
        assert!(cache.get(&order(0)).is_none() && cache.get(&order(20)).is_some());
        assert_eq!(cache.known.len(), PICTURES + 1);
    }

    #[test]
    fn a_file_that_could_not_be_read_is_read_again_and_a_damaged_one_is_not() {
        let mut cache = PictureCache::default();
        let errors = [PictureError::Unread("not yet".to_owned()), PictureError::Undecodable("no".to_owned())];
        for (number, error) in errors.into_iter().enumerate() {
            cache.take_missing(&[order(number)]);
            cache.store(order(number), Err(error));
        }
        let on_screen = [order(0), order(1)];
        assert_eq!(cache.take_missing(&on_screen), []);
        cache.retry_unread();
        assert_eq!(cache.take_missing(&on_screen), [order(0)]);
        assert!(cache.get(&order(0)).is_some(), "the error stays until the file was read again");
    }
}
