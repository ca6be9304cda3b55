//! Rate limit for alarms: the same alarm repeats only after a while, or once its cause has ended.

use std::collections::BTreeMap;
use std::time::Duration;

/// The alarms raised, and when.
#[derive(Debug, Clone)]
pub struct Limit {
    again: Duration,
    raised: BTreeMap<String, Duration>,
}

impl Limit {
    /// Creates a limit with this interval between two alarms of the same key, and continues with the alarms that an earlier
    /// keeper raised. Those after `now` are of another start of the machine.
    #[must_use]
    pub fn new(again: Duration, raised: BTreeMap<String, Duration>, now: Duration) -> Self {
        Self { again, raised: raised.into_iter().filter(|(_, at)| *at <= now).collect() }
    }

    /// Returns the alarms raised, and when.
    #[must_use]
    pub fn raised(&self) -> &BTreeMap<String, Duration> {
        &self.raised
    }

    /// Reports whether an alarm of this key may be raised now, and if so records it.
    pub fn raise(&mut self, key: &str, now: Duration) -> bool {
        let may = self.raised.get(key).is_none_or(|at| now.saturating_sub(*at) >= self.again);
        if may {
            self.raised.insert(key.to_owned(), now);
        }
        may
    }

    /// Resets a key whose cause has ended, so that its next alarm is sent at once. Returns true if it had
    /// been raised.
    pub fn end(&mut self, key: &str) -> bool {
        self.raised.remove(key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::Limit;
    use std::collections::BTreeMap;
    use std::time::Duration;

    #[test]
    fn once_an_hour_for_each_key_and_at_once_after_its_end() {
        let at = Duration::from_mins;
        let mut limit = Limit::new(at(60), BTreeMap::new(), at(0));
        assert!(limit.raise("heat", at(0)));
        assert!(!limit.raise("heat", at(59)));
        assert!(limit.raise("disk", at(59)), "another key");
        assert!(limit.raise("heat", at(60)));
        assert!(limit.end("heat") && !limit.end("heat"));
        assert!(limit.raise("heat", at(61)), "a second time after its end");
        assert!(!limit.raise("heat", at(30)), "a clock that goes back raises nothing");
        let mut next = Limit::new(at(60), limit.raised().clone(), at(70));
        assert!(!next.raise("heat", at(70)), "an earlier keeper raised it");
        assert!(Limit::new(at(60), limit.raised().clone(), at(5)).raise("heat", at(5)), "another start of the machine");
    }
}
