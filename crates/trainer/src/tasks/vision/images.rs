//! Labelled images in memory, as bytes.

/// Images of one size, each with a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// `[channels, height, width]` of every image.
    pub shape: [usize; 3],
    /// `[image, channel, row, column]`, flattened.
    pub pixels: Vec<u8>,
    /// The class of each image, below `classes`.
    pub labels: Vec<u32>,
    /// The names of the classes.
    pub classes: Vec<String>,
    /// The file of each image, in the folder of its class; empty if one file holds many.
    pub names: Vec<String>,
}

impl Images {
    /// Returns the bytes per image.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the bytes of image `index`, `[channel, row, column]`.
    #[must_use]
    pub fn image(&self, index: usize) -> &[u8] {
        let stride = self.stride();
        &self.pixels[index * stride..(index + 1) * stride]
    }

    /// Describes the classes of pictures in folders: their names and sizes.
    #[must_use]
    pub fn describe_classes(&self) -> Option<String> {
        /// Most classes that are named.
        const MOST: usize = 12;
        if self.names.is_empty() {
            return None;
        }
        let count = |class: usize| self.labels.iter().filter(|label| **label as usize == class).count();
        let counts: Vec<usize> = (0..self.classes.len()).map(count).collect();
        let named = self.classes.iter().zip(&counts).take(MOST).map(|(name, count)| format!("{name} {count}"));
        let named = named.collect::<Vec<_>>().join(", ");
        let more = if counts.len() > MOST { ", …" } else { "" };
        let (least, most) = (counts.iter().min()?, counts.iter().max()?);
        let rare = match least {
            0..5 => "; a class with few pictures is learnt badly, and may be missing from the validation set",
            _ if most / least >= 5 => "; a class with few pictures is learnt badly",
            _ => "",
        };
        Some(format!("{} classes: {named}{more}{rare}", counts.len()))
    }

    /// Adds the images of `other`, which must have the same shape.
    pub fn append(&mut self, mut other: Self) {
        self.pixels.append(&mut other.pixels);
        self.labels.append(&mut other.labels);
        self.names.append(&mut other.names);
        if other.classes.len() > self.classes.len() {
            self.classes = other.classes;
        }
    }
}

/// The result of a reader: training images, and the data set's own held-out images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSet {
    /// The training images.
    pub training: Images,
    /// The data set's own test part, of the same shape.
    pub test: Option<Images>,
    /// Notes for the user about files that were not read.
    pub notes: Vec<String>,
}

/// Returns the names of classes that are only numbered.
#[must_use]
pub fn numbered_classes(count: usize) -> Vec<String> {
    (0..count).map(|class| class.to_string()).collect()
}

/// Returns the mean and 1 / standard deviation of each channel over the given images, in bytes.
#[must_use]
pub fn channel_statistics(images: &Images, indices: &[u32]) -> Vec<[f32; 2]> {
    let [channels, height, width] = images.shape;
    let area = height * width;
    (0..channels)
        .map(|channel| {
            let (mut sum, mut squares) = (0u64, 0u64);
            for index in indices {
                for byte in &images.image(*index as usize)[channel * area..(channel + 1) * area] {
                    sum += u64::from(*byte);
                    squares += u64::from(*byte) * u64::from(*byte);
                }
            }
            let count = (indices.len() * area).max(1) as f64;
            let mean = sum as f64 / count;
            let variance = (squares as f64 / count - mean * mean).max(0.0);
            let scale = if variance > 0.0 { 1.0 / variance.sqrt() } else { 1.0 };
            [mean as f32, scale as f32]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Images, channel_statistics, numbered_classes};

    #[test]
    fn statistics_are_per_channel_and_survive_a_flat_one() {
        let (pixels, classes) = (vec![0, 2, 7, 7, 4, 2, 7, 7], numbered_classes(2));
        let images = Images { shape: [2, 1, 2], pixels, labels: vec![0, 1], classes, names: Vec::new() };
        let [first, second] = channel_statistics(&images, &[0, 1])[..] else { panic!("two channels") };
        assert!((first[0] - 2.0).abs() < 1e-6 && (first[1] - 1.0 / 2f32.sqrt()).abs() < 1e-6, "{first:?}");
        assert!((second[0] - 7.0).abs() + (second[1] - 1.0).abs() < 1e-6, "{second:?}");
    }
}
