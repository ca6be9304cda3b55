//! The same alarm is raised again only after a while, or once its cause has ended.

use std::collections::BTreeMap;
use std::time::Duration;

/// What was raised, and when.
#[derive(Debug, Clone)]
pub struct Limit {
    again: Duration,
    raised: BTreeMap<String, Duration>,
}

impl Limit {
    /// A limit with this time between two alarms of the same key.
    #[must_use]
    pub fn new(again: Duration) -> Self {
        Self { again, raised: BTreeMap::new() }
    }

    /// Whether an alarm of this key may be raised now; then it counts as raised.
    pub fn raise(&mut self, key: &str, now: Duration) -> bool {
        let may = self.raised.get(key).is_none_or(|at| now.saturating_sub(*at) >= self.again);
        if may {
            self.raised.insert(key.to_owned(), now);
        }
        may
    }

    /// The cause has ended: when it comes back it is told at once. True where it had been told.
    pub fn end(&mut self, key: &str) -> bool {
        self.raised.remove(key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::Limit;
    use std::time::Duration;

    #[test]
    fn once_an_hour_for_each_key_and_at_once_after_its_end() {
        let at = Duration::from_mins;
        let mut limit = Limit::new(at(60));
        assert!(limit.raise("heat", at(0)));
        assert!(!limit.raise("heat", at(59)));
        assert!(limit.raise("disk", at(59)), "another key");
        assert!(limit.raise("heat", at(60)));
        assert!(limit.end("heat") && !limit.end("heat"));
        assert!(limit.raise("heat", at(61)), "a second time after its end");
        assert!(!limit.raise("heat", at(30)), "a clock that goes back raises nothing");
    }
}
