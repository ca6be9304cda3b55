//! Accuracies as shares of 0 to 1: many scripts report percentages. Other metrics stay as they were reported, since most may
//! exceed 1: a perplexity, a word error rate.

use super::names;
use std::collections::BTreeMap;

/// Largest share, with the rounding of a mean.
const MOST: f64 = 1.0 + 1e-6;

/// The accuracies of one source. Once one was a percentage, a value of at most 1 may be either, and one of a bit more than 1 may
/// always be neither: it is what lies nearer to the value before it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shares {
    known: BTreeMap<String, Known>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Known {
    newest: f64,
    was_percentage: bool,
}

impl Shares {
    /// Turns the percentages among some values into shares. Values above 100 % are left out: they are not accuracies.
    pub fn normalise(&mut self, values: &mut Vec<(String, f64)>) {
        values.retain_mut(|(name, value)| match self.share(name, *value) {
            Some(share) => {
                *value = share;
                true
            }
            None => false,
        });
    }

    /// Notes shares that were printed as such, or with a percent sign; leaves out those above 100 %.
    pub fn note(&mut self, values: &mut Vec<(String, f64)>) {
        values.retain(|(name, value)| !names::is_accuracy(name) || value.is_nan() || (0.0..=MOST).contains(value));
        for (name, value) in values.iter().filter(|(name, value)| names::is_accuracy(name) && !value.is_nan()) {
            self.known.entry(name.clone()).or_default().newest = *value;
        }
    }

    /// Returns a value as it is kept: that of an accuracy is a share; none if it cannot be one.
    pub fn share(&mut self, name: &str, value: f64) -> Option<f64> {
        if !names::is_accuracy(name) || value.is_nan() {
            return Some(value);
        }
        let of_hundred = value / 100.0;
        let known = self.known.get(name).copied();
        let may_be_percentage = value > MOST || known.is_some_and(|known| known.was_percentage);
        let is_nearer = known.is_none_or(|known| (known.newest - of_hundred).abs() < (known.newest - value).abs());
        let is_percentage = may_be_percentage && is_nearer;
        let share = if is_percentage { of_hundred } else { value };
        let newest = Some(share).filter(|share| (0.0..=MOST).contains(share))?;
        let was_percentage = is_percentage || known.is_some_and(|known| known.was_percentage);
        self.known.insert(name.to_owned(), Known { newest, was_percentage });
        Some(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::Shares;
    use crate::log_metrics::OutputReader;

    #[test]
    fn a_percentage_in_the_output_is_a_share_and_a_test_set_is_not_the_validation() {
        let read = |text: &str, name: &str| -> Vec<f64> {
            let (mut reader, mut readings) = (OutputReader::new(&[]), Vec::new());
            reader.push(text.as_bytes(), &mut readings);
            reader.finish(&mut readings);
            readings.iter().filter_map(|reading| reading.value(name)).collect()
        };
        let printed = "step 10 loss 0.5\nVal Acc: 81.25%\nstep 20 loss 0.4\nVal Acc: 0.5%\n";
        assert_eq!(read(printed, "eval_accuracy"), [0.8125, 0.005]);
        assert_eq!(read("step 10 loss 0.5\nval_acc: 81.25\n", "eval_accuracy"), [0.8125]);
        let both = "step 10 loss 0.5\nval_loss 0.25\ntest_loss 0.75\n";
        assert_eq!((read(both, "eval_loss"), read(both, "eval_test_loss")), (vec![0.25], vec![0.75]));
        assert_eq!(read("step 10 loss 0.5\ntest_loss 0.75\n", "eval_loss"), [0.75]);
        let last = "step 10 loss 0.5\nTest: loss 0.25\nFinal test: loss 0.75\n";
        assert_eq!((read(last, "eval_loss"), read(last, "eval_test_loss")), (vec![0.25], vec![0.75]));
    }

    #[test]
    fn a_percentage_becomes_a_share_and_what_may_exceed_one_stays() {
        let mut shares = Shares::default();
        for (name, reported, kept) in [
            ("eval_accuracy", 0.8125, Some(0.8125)),
            ("eval_accuracy", 81.25, Some(0.8125)),
            // Another line prints the share.
            ("eval_accuracy", 0.8, Some(0.8)),
            ("eval_accuracy", 100.0, Some(1.0)),
            ("eval_accuracy", 1.0, Some(1.0)),
            // Neither: a mean of rounded numbers, a bonus.
            ("eval_accuracy", 1.125, None),
            ("eval_accuracy", 0.875, Some(0.875)),
            // No percentage was seen.
            ("val_accuracy", 0.01, Some(0.01)),
            ("val_accuracy", 0.5, Some(0.5)),
            ("train_accuracy", 1.5, Some(0.015)),
            ("train_accuracy", 0.75, Some(0.0075)),
            ("train_accuracy", 3.0, Some(0.03)),
            ("train_accuracy", 40.0, Some(0.4)),
            ("accuracy", 1.0, Some(1.0)),
            ("accuracy", 0.5, Some(0.5)),
            // Answers that were right, not their share.
            ("accuracy", 9911.0, None),
            ("accuracy", 0.75, Some(0.75)),
            ("eval_perplexity", 31.5, Some(31.5)),
            ("eval_wer", 1.25, Some(1.25)),
            ("acc_norm", 0.31, Some(0.31)),
            ("acc_norm", 31.0, Some(31.0)),
        ] {
            assert_eq!(shares.share(name, reported), kept, "{name} {reported}");
        }
        assert!(shares.share("accuracy", f64::NAN).is_some_and(f64::is_nan));
    }
}
