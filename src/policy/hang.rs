//! Decides when silence is a hang: one limit per phase, learned from earlier steps.

use crate::config::watch::{self, span};
use crate::protocol::worker::Phase;
use std::collections::VecDeque;
use std::time::Duration;

/// First steps of a fresh worker that are not judged: caches fill and kernels are tuned.
const FREE_STEPS: u64 = 5;
/// Steps before the limit is learned.
const LEARNED_AFTER: usize = 16;
/// Steps in the learning window.
const WINDOW: usize = 64;
/// Least silence of an idle script that reports each step: it may write or upload files between two steps without
/// saying so. A smaller `watch.hang.first_steps` lowers it.
const UNANNOUNCED: Duration = Duration::from_mins(1);

/// Watches one worker's progress.
#[derive(Debug, Clone)]
pub struct HangWatch {
    least: Duration,
    limits: watch::Hang,
    phase: Phase,
    since: Duration,
    steps: u64,
    took: VecDeque<Duration>,
    longest_eval: Option<Duration>,
    /// How a command is watched.
    command: Option<OfCommand>,
}

/// A command announces no evaluation and no save, so other signs of life count too.
#[derive(Debug, Clone, Copy)]
struct OfCommand {
    /// Silence ends it; otherwise it only raises an alarm.
    is_ended: bool,
    /// A companion reports each step and phase.
    reports_steps: bool,
    /// When it last printed or used the processor.
    active: Duration,
}

impl HangWatch {
    /// Creates the watch of a worker that starts now.
    #[must_use]
    pub fn new(knobs: &watch::Watch, now: Duration) -> Self {
        let (least, limits) = (span(knobs.hang_min), knobs.hang);
        Self {
            least,
            limits,
            phase: Phase::Starting,
            since: now,
            steps: 0,
            took: VecDeque::new(),
            longest_eval: None,
            command: None,
        }
    }

    /// Watches a command; `is_ended` if it is ended when it hangs.
    pub fn watch_command(&mut self, is_ended: bool) {
        self.command = Some(OfCommand { is_ended, reports_steps: false, active: self.since });
    }

    /// Watches a command whose companion reports each step.
    pub fn watch_companion(&mut self, is_ended: bool) {
        if let Some(command) = &mut self.command {
            (command.is_ended, command.reports_steps) = (is_ended, true);
        }
    }

    /// Records that a command does something.
    pub fn active(&mut self, now: Duration) {
        if let Some(command) = &mut self.command {
            command.active = now;
        }
    }

    /// Records that the worker entered another phase.
    pub fn phase(&mut self, phase: Phase, now: Duration) {
        if self.phase == Phase::Evaluating && phase != Phase::Evaluating {
            let took = now.saturating_sub(self.since);
            self.longest_eval = self.longest_eval.max(Some(took));
        }
        self.phase = phase;
        self.since = now;
    }

    /// Records an attempted step: the only sign of progress while training.
    pub fn step(&mut self, now: Duration) {
        self.steps += 1;
        if self.steps > FREE_STEPS && self.phase == Phase::Training {
            self.took.push_back(now.saturating_sub(self.since));
            if self.took.len() > WINDOW {
                self.took.pop_front();
            }
        }
        self.since = now;
    }

    /// Excludes the time that the keeper itself stalled: it is not the worker's silence.
    pub fn forgive(&mut self, delay: Duration, now: Duration) {
        self.since = (self.since + delay).min(now);
        if let Some(command) = &mut self.command {
            command.active = (command.active + delay).min(now);
        }
    }

    /// Returns the moment when silence becomes a hang.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        let limit = self.limit();
        let Some(command) = self.command else { return self.since + limit };
        let active = self.since.max(command.active);
        match self.phase {
            _ if !command.is_ended => active + limit,
            Phase::Starting => active + limit,
            // It may evaluate without saying so, for as long as it works.
            Phase::Training if command.reports_steps => {
                (active + limit).min(self.since + limit.max(span(self.limits.evaluating)))
            }
            // Only steps prove that training goes on.
            _ => self.since + limit,
        }
    }

    /// Returns how long the worker may be silent now.
    #[must_use]
    pub fn limit(&self) -> Duration {
        let learned = |longest: Duration| longest.mul_f64(self.limits.factor).max(self.least);
        let first_steps = span(self.limits.first_steps);
        if let (Some(command), Phase::Training) = (self.command, self.phase) {
            if command.reports_steps && self.took.len() >= LEARNED_AFTER {
                return learned(self.longest_step()).max(UNANNOUNCED.min(first_steps));
            }
            let limit = learned(self.longest_step()).max(first_steps);
            if command.reports_steps {
                return limit;
            }
            let may_evaluate = command.is_ended && command.active > self.since;
            return if may_evaluate { limit.max(span(self.limits.evaluating)) } else { limit };
        }
        match self.phase {
            Phase::Starting => span(self.limits.starting),
            Phase::Compiling => span(self.limits.compiling),
            Phase::Checkpointing => span(self.limits.checkpointing),
            Phase::Evaluating => self.longest_eval.map_or(span(self.limits.evaluating), learned),
            Phase::Training if self.took.len() >= LEARNED_AFTER => learned(self.longest_step()),
            Phase::Training => first_steps.max(self.least),
        }
    }

    /// Returns the longest step in the window.
    #[must_use]
    pub fn longest_step(&self) -> Duration {
        self.took.iter().max().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::HangWatch;
    use crate::config::watch::Watch;
    use crate::protocol::worker::Phase;
    use std::time::Duration;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_limit_is_learned_from_steps_and_never_below_the_least() {
        let mut watch = HangWatch::new(&Watch::default(), seconds(0));
        watch.phase(Phase::Training, seconds(1));
        let mut now = seconds(1);
        for _ in 0..21 {
            now += seconds(4);
            watch.step(now);
        }
        assert_eq!(watch.limit(), seconds(20));
        for _ in 0..64 {
            now += Duration::from_millis(5);
            watch.step(now);
        }
        assert_eq!(watch.limit(), seconds(10));
        assert_eq!(watch.deadline(), now + seconds(10));
    }

    /// Returns the watch of a command that took 30 steps of a second, the last one at 31 s.
    fn with_companion(is_ended: bool) -> HangWatch {
        let mut watch = HangWatch::new(&Watch::default(), seconds(0));
        watch.watch_command(false);
        watch.watch_companion(is_ended);
        watch.phase(Phase::Training, seconds(1));
        for second in 2..=31 {
            watch.step(seconds(second));
        }
        watch
    }

    #[test]
    fn with_a_companion_an_idle_script_hangs_soon_and_a_busy_one_may_evaluate() {
        let mut watch = with_companion(true);
        assert_eq!(watch.deadline(), seconds(31 + 60));
        watch.active(seconds(80));
        assert_eq!(watch.deadline(), seconds(80 + 60), "it worked until then");
        watch.active(seconds(600));
        assert_eq!(watch.deadline(), seconds(31 + 600), "no evaluation takes that long");
        watch.phase(Phase::Checkpointing, seconds(32));
        assert!(watch.deadline() >= seconds(32 + 420), "an announced save has its own limit");
        let mut slow = with_companion(true);
        slow.step(seconds(31 + 40));
        assert_eq!(slow.limit(), seconds(200), "five times the longest step");
        let mut unsaved = with_companion(false);
        unsaved.active(seconds(5000));
        assert_eq!(unsaved.deadline(), seconds(5000 + 60), "an alarm about silence, however long");
    }

    #[test]
    fn slow_first_steps_and_long_phases_are_not_hangs() {
        let mut watch = HangWatch::new(&Watch::default(), seconds(0));
        assert!(watch.limit() >= seconds(600));
        watch.phase(Phase::Compiling, seconds(5));
        assert!(watch.limit() >= seconds(900));
        watch.phase(Phase::Training, seconds(300));
        assert!(watch.limit() >= seconds(180));
        watch.phase(Phase::Checkpointing, seconds(400));
        assert!(watch.limit() >= seconds(420));
    }
}
