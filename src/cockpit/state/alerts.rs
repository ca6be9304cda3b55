//! The alerts that hold, each with the time since which it does.

use std::collections::BTreeMap;

/// Subject of an alert, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AlertKind {
    /// The run failed or needs attention.
    Broken,
    /// No keeper answers.
    KeeperLost,
    /// The keeper is connected, but silent.
    KeeperSilent,
    /// The run directory is missing.
    RunDirMissing,
    /// The next start has to wait.
    Waiting,
    /// Checkpoints cannot be saved.
    NotSaved,
    /// No step for longer than usual.
    Stalled,
    /// The keeper asks for a decision.
    Proposal,
    /// Many steps are not finite.
    Skipping,
    /// The GPU is too hot.
    Hot,
    /// GPU memory is almost full.
    VramFull,
    /// GPU memory will be full soon.
    VramFilling,
    /// The script does not train on from its checkpoint.
    OtherResume,
    /// The script ignores knobs of the rung.
    IgnoredKnobs,
    /// Steps take much longer than usual.
    Slow,
    /// The evaluations no longer get better.
    NotLearning,
}

impl AlertKind {
    /// Reports whether the cockpit judges it without the keeper's data.
    #[must_use]
    pub fn holds_without_keeper(self) -> bool {
        matches!(self, Self::Broken | Self::KeeperLost | Self::KeeperSilent | Self::RunDirMissing)
    }
}

/// Alerts that hold, with the time since which each does, Unix milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActiveAlerts {
    since: BTreeMap<AlertKind, i64>,
}

impl ActiveAlerts {
    /// Returns the alerts after an observation of kinds, each with the time when its trouble began, if that is known.
    /// Of the others, new ones begin now, and those that hold keep their age. All of them stay while the data is
    /// `stale`, since nothing says that they ended.
    #[must_use]
    pub fn observe(&self, found: impl Iterator<Item = (AlertKind, Option<i64>)>, stale: bool, now_ms: i64) -> Self {
        let mut since = if stale { self.since.clone() } else { BTreeMap::new() };
        since.extend(found.map(|(kind, began_ms)| (kind, began_ms.or(self.since_ms(kind)).unwrap_or(now_ms))));
        Self { since }
    }

    /// Returns the time since which an alert holds, Unix milliseconds.
    #[must_use]
    pub fn since_ms(&self, kind: AlertKind) -> Option<i64> {
        self.since.get(&kind).copied()
    }

    /// Reports whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.since.is_empty()
    }
}

/// A threshold with hysteresis: an alert that holds ends only below a lower value, so that a value which hovers
/// around the threshold gives one alert.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// The alert begins above this value.
    pub begins: f64,
    /// The alert ends at this value.
    pub ends: f64,
}

impl Threshold {
    /// Reports whether the alert holds at a value; `active` if it held before.
    #[must_use]
    pub fn holds(self, value: f64, active: bool) -> bool {
        value > if active { self.ends } else { self.begins }
    }
}

#[cfg(test)]
mod tests {
    use super::{ActiveAlerts, AlertKind, Threshold};

    #[test]
    fn a_value_that_crosses_the_threshold_every_few_steps_gives_one_alert() {
        let threshold = Threshold { begins: 1.5, ends: 1.2 };
        let changes = |values: &[f64]| {
            let mut held = vec![false];
            for value in values {
                held.push(threshold.holds(*value, held[held.len() - 1]));
            }
            held.windows(2).filter(|pair| pair[0] != pair[1]).count()
        };
        let hovering: Vec<f64> = (0..100).map(|step| if step % 3 == 0 { 1.6 } else { 1.4 }).collect();
        assert_eq!(changes(&hovering), 1, "it begins once and stays");
        let passing: Vec<f64> = (0..100).map(|step| 1.0 + f64::from(step % 50) / 50.0).collect();
        assert_eq!(changes(&passing), 3, "it ends once the value has clearly come back");
        assert_eq!(changes(&[f64::NAN; 9]), 0);
    }

    #[test]
    fn an_alert_keeps_its_age_until_it_ends() {
        let alerts = ActiveAlerts::default().observe([(AlertKind::Slow, None)].into_iter(), false, 100);
        let alerts = alerts.observe([(AlertKind::Slow, None), (AlertKind::Hot, None)].into_iter(), false, 200);
        assert_eq!((alerts.since_ms(AlertKind::Slow), alerts.since_ms(AlertKind::Hot)), (Some(100), Some(200)));
        let silent = alerts.observe([(AlertKind::KeeperSilent, None)].into_iter(), true, 250);
        assert_eq!(
            (silent.since_ms(AlertKind::Slow), silent.since_ms(AlertKind::KeeperSilent)),
            (Some(100), Some(250))
        );
        let alerts = silent.observe([(AlertKind::Hot, None)].into_iter(), false, 300);
        assert_eq!((alerts.since_ms(AlertKind::Slow), alerts.since_ms(AlertKind::KeeperSilent)), (None, None));
        let again = alerts.observe([(AlertKind::Slow, None)].into_iter(), false, 400);
        assert_eq!((again.since_ms(AlertKind::Slow), again.since_ms(AlertKind::Hot)), (Some(400), None));
        assert!(again.observe(std::iter::empty(), false, 500).is_empty());
    }
}
