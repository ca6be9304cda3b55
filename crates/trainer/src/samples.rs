//! Samples of a task's work: what [`Train::samples`](super::task::Train::samples) returns, and how it is stored.

use downshift_core::protocol::metrics::{CLASS_ACCURACY, Metrics};
use downshift_core::protocol::samples::{Confusion, Sample, SampleSet};
use downshift_core::store::samples::{self, NumberedPicture};
use image::{ExtendedColorType, ImageEncoder, codecs::png::PngEncoder};
use std::{io, path::Path};

/// The most answers kept for being wrong.
const MAX_WORST: usize = 16;
/// The most classes in a confusion matrix; a larger one could not be read.
const MAX_CLASSES: usize = 100;

/// Number of bins of the calibration error.
const BINS: usize = 15;
/// The most classes whose accuracies have names of their own: a run has few names for metrics.
const MAX_NAMED: usize = 32;

/// The samples of an evaluation.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// The samples, the most telling first.
    pub list: Vec<TaskSample>,
    /// How often each class was taken for which; see [`Answers::confusion`].
    pub confusion: Option<Confusion>,
}

/// A sample and its picture.
#[derive(Debug, Clone, Default)]
pub struct TaskSample {
    /// The sample; its `image` is set when it is stored.
    pub sample: Sample,
    /// The picture.
    pub picture: Option<Picture>,
}

/// A picture of 8-bit grey or RGB pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    width: u32,
    height: u32,
    color: ExtendedColorType,
    /// `[row, column, channel]`
    pixels: Vec<u8>,
}

impl Picture {
    /// Returns the picture of `pixels`, `[channel, row, column]` with one or three channels; none for any other
    /// shape. `white` is the brightest value, which is shown as white.
    #[must_use]
    pub fn new([channels, height, width]: [usize; 3], pixels: &[u8], white: u8) -> Option<Self> {
        let color = match channels {
            1 => ExtendedColorType::L8,
            3 => ExtendedColorType::Rgb8,
            _ => return None,
        };
        let area = height * width;
        if area == 0 || pixels.len() != channels * area {
            return None;
        }
        let scale = |value: u8| (u32::from(value) * 255 / u32::from(white.max(1))).min(255) as u8;
        let at = |place: usize| (0..channels).map(move |channel| scale(pixels[channel * area + place]));
        let pixels = (0..area).flat_map(at).collect();
        Some(Self { width: u32::try_from(width).ok()?, height: u32::try_from(height).ok()?, color, pixels })
    }

    fn to_png(&self) -> io::Result<Vec<u8>> {
        let mut png = Vec::new();
        let encoder = PngEncoder::new(&mut png);
        encoder.write_image(&self.pixels, self.width, self.height, self.color).map_err(io::Error::other)?;
        Ok(png)
    }
}

/// A classifier's answer to one sample of the validation set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    /// The sample's number in the validation set.
    pub sample: u32,
    /// The right class.
    pub label: usize,
    /// The class with the highest score.
    pub answer: usize,
    /// The probability of that class.
    pub confidence: f32,
    /// The cross-entropy.
    pub loss: f64,
}

/// The answers of a classifier: counts, and the worst ones. Takes the same memory for any number of answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answers {
    classes: usize,
    /// `[truth, answer]`; empty if there are too many classes.
    counts: Vec<u64>,
    /// Right answers and all answers, by the right class.
    by_class: Vec<[u64; 2]>,
    bins: [Bin; BINS],
    /// By falling loss.
    worst: Vec<Answer>,
}

/// The answers of similar confidence.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Bin {
    count: u64,
    right: u64,
    confidence_sum: f64,
}

impl Answers {
    /// Returns no answers, of a classifier with this number of classes.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        let size = if classes <= MAX_CLASSES { classes * classes } else { 0 };
        Self { classes, counts: vec![0; size], by_class: vec![[0; 2]; classes], ..Self::default() }
    }

    /// Records an answer.
    pub fn record(&mut self, answer: Answer) {
        if answer.label.max(answer.answer) < self.classes
            && let Some(count) = self.counts.get_mut(answer.label * self.classes + answer.answer)
        {
            *count += 1;
        }
        let right = u64::from(answer.answer == answer.label);
        if let Some([right_ones, all]) = self.by_class.get_mut(answer.label) {
            (*right_ones, *all) = (*right_ones + right, *all + 1);
        }
        if answer.confidence.is_finite() {
            let confidence = f64::from(answer.confidence);
            // Bins are open below and closed above.
            let place = ((confidence * BINS as f64).ceil() as usize).clamp(1, BINS) - 1;
            let bin = &mut self.bins[place];
            (bin.count, bin.right) = (bin.count + 1, bin.right + right);
            bin.confidence_sum += confidence;
        }
        self.keep_if_worst(answer);
    }

    /// Adds the answers of another micro-batch.
    pub fn merge(&mut self, other: &Self) {
        if self.classes == 0 {
            self.classes = other.classes;
            self.counts = vec![0; other.counts.len()];
            self.by_class = vec![[0; 2]; other.by_class.len()];
        }
        for ([right, all], [more_right, more]) in self.by_class.iter_mut().zip(&other.by_class) {
            (*right, *all) = (*right + more_right, *all + more);
        }
        for (bin, more) in self.bins.iter_mut().zip(&other.bins) {
            (bin.count, bin.right) = (bin.count + more.count, bin.right + more.right);
            bin.confidence_sum += more.confidence_sum;
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        for answer in &other.worst {
            self.keep_if_worst(*answer);
        }
    }

    /// Returns the share of right answers in each class, unless there are too many, with the mean and the lowest of all
    /// classes. A class without a sample has none.
    #[must_use]
    pub fn accuracy_by_class(&self, names: &[String]) -> Metrics {
        let shares = self.by_class.iter().zip(names).filter(|([_, all], _)| *all > 0);
        let shares: Vec<(&String, f64)> =
            shares.map(|([right, all], name)| (name, *right as f64 / *all as f64)).collect();
        let Some(worst) = shares.iter().map(|(_, share)| *share).reduce(f64::min) else { return Metrics::new() };
        let mean = shares.iter().map(|(_, share)| share).sum::<f64>() / shares.len() as f64;
        let whole = [("balanced_accuracy".to_owned(), mean), ("worst_class_accuracy".to_owned(), worst)];
        let parts = shares.iter().filter(|_| shares.len() <= MAX_NAMED);
        let parts = parts.map(|(name, share)| (format!("{CLASS_ACCURACY}{name}"), *share));
        whole.into_iter().chain(parts).collect()
    }

    /// Returns the expected calibration error: the mean distance between confidence and accuracy in bins of equal width
    /// (Guo et al., 2017); none without answers.
    #[must_use]
    pub fn calibration_error(&self) -> Option<f64> {
        let count: u64 = self.bins.iter().map(|bin| bin.count).sum();
        // |accuracy − confidence| of a bin, weighted by its share of all answers.
        let distance: f64 = self.bins.iter().map(|bin| (bin.right as f64 - bin.confidence_sum).abs()).sum();
        (count > 0).then(|| distance / count as f64)
    }

    /// Returns the answers with the largest losses, the worst first.
    #[must_use]
    pub fn worst(&self) -> &[Answer] {
        &self.worst
    }

    /// Returns how often each class was taken for which; none if there are too many classes or no answers.
    #[must_use]
    pub fn confusion(&self, names: &[String]) -> Option<Confusion> {
        let counts: Vec<Vec<u64>> = self.counts.chunks(self.classes.max(1)).map(<[u64]>::to_vec).collect();
        (!counts.is_empty() && names.len() == counts.len()).then(|| Confusion { classes: names.to_vec(), counts })
    }

    fn keep_if_worst(&mut self, answer: Answer) {
        let place = self.worst.partition_point(|worse| worse.loss.total_cmp(&answer.loss).is_ge());
        if place < MAX_WORST {
            self.worst.insert(place, answer);
            self.worst.truncate(MAX_WORST);
        }
    }
}

/// Writes samples into the run directory; reports whether there were any.
///
/// # Errors
/// Returns the system's error.
pub fn store(run: &Path, step: u64, samples: Samples) -> io::Result<bool> {
    let Samples { list, confusion } = samples;
    if list.is_empty() && confusion.is_none() {
        return Ok(false);
    }
    let pictures = list.iter().enumerate().filter_map(|(number, sample)| Some((number, sample.picture.as_ref()?)));
    let pictures = pictures.map(|(number, picture)| Ok((number, picture.to_png()?)));
    let pictures = pictures.collect::<io::Result<Vec<NumberedPicture>>>()?;
    let samples = list.into_iter().map(|sample| sample.sample).collect();
    samples::write(run, SampleSet { step, samples, confusion }, &pictures)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::{Answer, Answers, MAX_CLASSES, MAX_WORST, Picture};

    fn answer(sample: u32, label: usize, answer: usize, loss: f64) -> Answer {
        Answer { sample, label, answer, confidence: 0.5, loss }
    }

    #[test]
    fn micro_batches_add_up_to_the_whole() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let all: Vec<Answer> =
            (0..60).map(|n| answer(n, n as usize % 3, n as usize % 2, f64::from(n * 7 % 61))).collect();
        let mut whole = Answers::new(3);
        for answer in &all {
            whole.record(*answer);
        }
        let mut total = Answers::default();
        for part in all.chunks(7) {
            let mut answers = Answers::new(3);
            for answer in part {
                answers.record(*answer);
            }
            total.merge(&answers);
        }
        assert_eq!(total, whole);
        let confusion = total.confusion(&names).unwrap();
        assert_eq!(confusion.counts, [[10, 10, 0], [10, 10, 0], [10, 10, 0]]);
        let mut losses: Vec<f64> = all.iter().map(|answer| answer.loss).collect();
        losses.sort_by(|a, b| b.total_cmp(a));
        let worst: Vec<f64> = total.worst().iter().map(|answer| answer.loss).collect();
        assert_eq!(worst, losses[..MAX_WORST]);
    }

    #[test]
    fn the_accuracy_of_each_class_is_the_share_of_its_own_samples() {
        let mut answers = Answers::new(3);
        // Class 0: two of three right; class 1: one of two; class 2 has no sample.
        for (label, given) in [(0, 0), (0, 0), (0, 2), (1, 1), (1, 0)] {
            answers.record(answer(0, label, given, 1.0));
        }
        let found = answers.accuracy_by_class(&["zero", "one", "two"].map(str::to_owned));
        let found: Vec<(&str, f64)> = found.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let (zero, one) = (2.0 / 3.0, 0.5);
        let mean = 0.583_333_333_333_333_3;
        let expected = [
            ("accuracy.one", one),
            ("accuracy.zero", zero),
            ("balanced_accuracy", mean),
            ("worst_class_accuracy", one),
        ];
        assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), expected.map(|(name, _)| name));
        assert!(found.iter().zip(expected).all(|((_, a), (_, b))| (a - b).abs() < 1e-12), "{found:?}");
        let mut many = Answers::new(40);
        (0..40).for_each(|label| many.record(answer(0, label, 0, 1.0)));
        let names: Vec<String> = (0..40).map(|class: u32| class.to_string()).collect();
        let found = many.accuracy_by_class(&names);
        assert_eq!((found.len(), found["balanced_accuracy"], found["worst_class_accuracy"]), (2, 0.025, 0.0));
        assert!(Answers::default().accuracy_by_class(&names).is_empty());
    }

    #[test]
    fn the_calibration_error_is_the_mean_distance_of_confidence_and_accuracy() {
        let mut parts = [Answers::new(2), Answers::new(2)];
        let given = |confidence, right: bool| Answer { confidence, ..answer(0, 0, usize::from(!right), 1.0) };
        // (0.6, 2/3]: 0.625 and 0.65 with one right, |1/2 − 0.6375| of two; (14/15, 1]: 0.95 and 1.0, both right,
        // |1 − 0.975| of two; 0.59 is in the bin below: wrong, |0 − 0.59| of one.
        for (part, confidence, right) in
            [(0, 0.625, true), (1, 0.65, false), (0, 0.95, true), (1, 1.0, true), (0, 0.59, false), (1, f32::NAN, true)]
        {
            parts[part].record(given(confidence, right));
        }
        let mut total = Answers::default();
        for part in &parts {
            total.merge(part);
        }
        let expected = (2.0 * 0.1375 + 2.0 * 0.025 + 0.59) / 5.0;
        let found = total.calibration_error().unwrap();
        assert!((found - expected).abs() < 1e-6, "{found} and {expected}");
        assert_eq!(Answers::new(2).calibration_error(), None);
    }

    #[test]
    fn a_matrix_that_nobody_could_read_is_not_kept() {
        let mut answers = Answers::new(MAX_CLASSES + 1);
        answers.record(answer(0, 100, 3, 1.0));
        let names: Vec<String> = (0..=MAX_CLASSES).map(|class| class.to_string()).collect();
        assert_eq!((answers.confusion(&names), answers.worst().len()), (None, 1));
        assert_eq!(Answers::default().confusion(&[]), None);
    }

    #[test]
    fn a_picture_is_a_png_of_its_pixels() {
        let colored = Picture::new([3, 1, 2], &[0, 16, 8, 0, 4, 2], 16).unwrap();
        let read = image::load_from_memory(&colored.to_png().unwrap()).unwrap().into_rgb8();
        assert_eq!((read.dimensions(), read.as_raw().as_slice()), ((2, 1), &[0, 127, 63, 255, 0, 31][..]));
        let grey = Picture::new([1, 2, 1], &[7, 255], 255).unwrap();
        let read = image::load_from_memory(&grey.to_png().unwrap()).unwrap().into_luma8();
        assert_eq!((read.dimensions(), read.as_raw().as_slice()), ((1, 2), &[7, 255][..]));
        for (shape, pixels) in [([2, 1, 1], 2), ([1, 0, 4], 0), ([1, 2, 2], 3)] {
            assert_eq!(Picture::new(shape, &vec![0; pixels], 255), None, "{shape:?}");
        }
    }
}
