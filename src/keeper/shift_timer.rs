//! Times the transition from one worker to the next, part by part.

use crate::protocol::control::{Passage, Stage, StageName};
use std::time::Duration;

/// A running transition.
#[derive(Debug, Clone)]
pub struct ShiftTimer {
    shown: Passage,
    since: Duration,
    crossed: bool,
}

impl ShiftTimer {
    /// Begins a transition with its first part.
    pub fn begin(from: &str, to: &str, first: StageName, now: Duration) -> Self {
        let stages = vec![Stage { name: first, took_ms: None }];
        let shown =
            Passage { from: from.to_owned(), to: to.to_owned(), stages, before: None, resumed_from: None, after: None };
        Self { shown, since: now, crossed: false }
    }

    /// Ends the current part and begins the next; a repeated call for the same part has no effect.
    pub fn next(&mut self, name: StageName, now: Duration) {
        if self.shown.stages.last().is_some_and(|stage| stage.name == name) {
            return;
        }
        self.close(now);
        self.shown.stages.push(Stage { name, took_ms: None });
    }

    /// Records the start of the next worker on this rung; `before` is the last step of the previous worker.
    pub fn cross(&mut self, to: &str, before: Option<(u64, f64)>, now: Duration) {
        self.redirect(to);
        self.shown.before = before;
        self.crossed = true;
        self.next(StageName::Load, now);
    }

    /// Records the step of the checkpoint that the next worker continues from.
    pub fn resume_from(&mut self, step: Option<u64>) {
        if self.crossed && !self.arrived() {
            self.shown.resumed_from = step;
        }
    }

    /// Records that the next process of a command runs: from here on its own start is timed, which the start of its
    /// harness belongs to.
    pub fn start_command(&mut self) {
        self.rename(StageName::Load, StageName::Start);
    }

    /// Records that the companion of a command reports the training: its next sign is the first step.
    pub fn finish_start(&mut self, now: Duration) {
        if self.shown.stages.last().is_some_and(|stage| stage.name == StageName::Start) {
            self.next(StageName::FirstStep, now);
        }
    }

    fn rename(&mut self, from: StageName, to: StageName) {
        if let Some(stage) = self.shown.stages.last_mut().filter(|stage| stage.name == from) {
            stage.name = to;
        }
    }

    /// Records a step: the next worker's first step ends the transition. Returns true if it did.
    pub fn arrive(&mut self, after: (u64, f64), now: Duration) -> bool {
        let arrives = self.crossed && self.shown.after.is_none();
        if arrives {
            self.rename(StageName::Start, StageName::StartAndStep);
            self.close(now);
            self.shown.after = Some(after);
        }
        arrives
    }

    /// Changes the target rung.
    pub fn redirect(&mut self, to: &str) {
        to.clone_into(&mut self.shown.to);
    }

    /// Returns the transition for display.
    pub fn passage(&self) -> &Passage {
        &self.shown
    }

    /// Reports whether the first step was taken.
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
    use super::ShiftTimer;
    use crate::protocol::control::StageName;
    use std::time::Duration;

    #[test]
    fn parts_are_timed_and_add_up() {
        let at = Duration::from_millis;
        let mut clock = ShiftTimer::begin("full", "safe", StageName::Save, at(100));
        assert!(!clock.arrive((9, 0.6), at(120)), "the old worker still steps");
        clock.next(StageName::Stop, at(150));
        clock.next(StageName::Stop, at(160));
        clock.cross("safe", Some((10, 0.5)), at(180));
        assert_eq!(clock.passage().stages.last().unwrap().took_ms, None);
        assert!(clock.arrive((11, 0.4), at(600)));
        let took: Vec<_> = clock.passage().stages.iter().map(|stage| stage.took_ms.unwrap()).collect();
        assert_eq!(took, [50, 30, 420]);
        assert_eq!(clock.passage().total_ms(), 500);
        assert!(clock.arrived());
    }
    #[test]
    fn the_start_of_a_command_is_told_from_its_first_step_where_a_companion_reports() {
        let at = Duration::from_millis;
        let shift = |companion_at: Option<u64>| {
            let mut clock = ShiftTimer::begin("full", "safe", StageName::Stop, at(0));
            clock.cross("safe", Some((10, 0.5)), at(100));
            clock.start_command();
            if let Some(ms) = companion_at {
                clock.finish_start(at(ms));
                // Its introduction changes: nothing new begins.
                clock.finish_start(at(ms + 50));
            }
            assert!(clock.arrive((11, 0.4), at(4500)));
            clock
        };
        let parts = |clock: &ShiftTimer| -> Vec<(StageName, Option<u64>)> {
            clock.passage().stages.iter().map(|stage| (stage.name, stage.took_ms)).collect()
        };
        let told = shift(Some(4200));
        assert_eq!(
            parts(&told),
            [(StageName::Stop, Some(100)), (StageName::Start, Some(4100)), (StageName::FirstStep, Some(300))]
        );
        assert_eq!(told.passage().start_and_step_ms(), Some((4100, 300)));
        let silent = shift(None);
        assert_eq!(parts(&silent), [(StageName::Stop, Some(100)), (StageName::StartAndStep, Some(4400))]);
        assert_eq!(silent.passage().start_and_step_ms(), None);
    }
}
