//! The trend of the GPU's memory errors while `watch` runs.

use crate::protocol::probe::{Ecc, Gpu};

/// The counts at the first reading.
#[derive(Debug, Default)]
pub struct EccTrend {
    first: Option<Ecc>,
}

impl EccTrend {
    /// Records a reading of the GPU.
    pub fn record(&mut self, gpu: &Gpu) {
        self.first = self.first.or(gpu.more.ecc.get());
    }

    /// Formats the counts, with the increase since the first reading.
    pub fn describe(&self, now: &Ecc) -> String {
        let first = self.first.unwrap_or(*now);
        let part = |now: u64, first: u64| match now.saturating_sub(first) {
            0 => now.to_string(),
            more => format!("{now} (+{more})"),
        };
        let (corrected, not) = (part(now.corrected, first.corrected), part(now.uncorrected, first.uncorrected));
        format!("{corrected} corrected, {not} not")
    }
}

#[cfg(test)]
mod tests {
    use super::EccTrend;
    use crate::protocol::probe::Ecc;

    #[test]
    fn errors_since_the_first_reading_are_reported() {
        let ecc = |corrected, uncorrected| Ecc { corrected, uncorrected };
        let trend = EccTrend { first: Some(ecc(5, 0)) };
        assert_eq!(trend.describe(&ecc(5, 0)), "5 corrected, 0 not");
        assert_eq!(trend.describe(&ecc(9, 2)), "9 (+4) corrected, 2 (+2) not");
        assert_eq!(trend.describe(&ecc(0, 0)), "0 corrected, 0 not", "the driver was reloaded");
    }
}
