//! Times the way from one worker to the next, part by part.

use crate::protocol::control::{Passage, Stage};
use std::time::Duration;

/// A passage under way.
#[derive(Debug, Clone)]
pub struct PassageClock {
    shown: Passage,
    since: Duration,
}

impl PassageClock {
    /// A passage that begins now with its first part.
    pub fn begin(from: &str, to: &str, before: Option<(u64, f64)>, first: &str, now: Duration) -> Self {
        let stages = vec![Stage { name: first.to_owned(), took_ms: None }];
        let shown = Passage { from: from.to_owned(), to: to.to_owned(), stages, before, after: None };
        Self { shown, since: now }
    }

    /// The part under way is done, and the next one begins. Says it twice, counts it once.
    pub fn next(&mut self, name: &str, now: Duration) {
        if self.shown.stages.last().is_some_and(|stage| stage.name == name) {
            return;
        }
        self.close(now);
        self.shown.stages.push(Stage { name: name.to_owned(), took_ms: None });
    }

    /// The first step after it was taken.
    pub fn arrive(&mut self, after: (u64, f64), now: Duration) {
        self.close(now);
        self.shown.after = Some(after);
    }

    /// It goes somewhere else than was thought.
    pub fn redirect(&mut self, to: &str) {
        to.clone_into(&mut self.shown.to);
    }

    /// As it is shown.
    pub fn shown(&self) -> &Passage {
        &self.shown
    }

    /// Whether the first step was taken.
    pub fn arrived(&self) -> bool {
        self.shown.after.is_some()
    }

    fn close(&mut self, now: Duration) {
        if let Some(stage) = self.shown.stages.last_mut().filter(|stage| stage.took_ms.is_none()) {
            stage.took_ms = Some(now.saturating_sub(self.since).as_millis() as u64);
        }
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::PassageClock;
    use std::time::Duration;

    #[test]
    fn parts_are_timed_and_add_up() {
        let at = Duration::from_millis;
        let mut clock = PassageClock::begin("full", "safe", Some((10, 0.5)), "save", at(100));
        clock.next("stop", at(150));
        clock.next("stop", at(160));
        clock.next("start and load", at(180));
        assert_eq!(clock.shown().stages.last().unwrap().took_ms, None);
        clock.arrive((11, 0.4), at(600));
        let took: Vec<_> = clock.shown().stages.iter().map(|stage| stage.took_ms.unwrap()).collect();
        assert_eq!(took, [50, 30, 420]);
        assert_eq!(clock.shown().total_ms(), 500);
        assert!(clock.arrived());
    }
}
