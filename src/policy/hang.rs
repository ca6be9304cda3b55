//! Decides when silence is a hang: one limit per phase, learned from earlier steps.

use crate::config::watch;
use crate::protocol::ranks::{Laggard, ProcessState, RankPhase, RankRow, find_laggard};
use crate::protocol::worker::Phase;
use std::collections::VecDeque;
use std::time::Duration;

/// First steps of a fresh worker that are not judged: caches fill and kernels are tuned.
const FREE_STEPS: u64 = 5;
/// Steps before the limit is learned.
const LEARNED_AFTER: usize = 16;
/// Steps in the learning window.
const WINDOW: usize = 64;
/// Least silence of an idle script that reports each step: it may read, write or upload files without saying so. A smaller `watch.hang.first_steps` lowers it.
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
    /// The rank that the others wait for.
    last_rank: Option<LastRank>,
    /// When the silence of a command that is left alone raised an alarm.
    alarmed: Duration,
}

/// The rank that stands at the lowest step and phase.
#[derive(Debug, Clone)]
struct LastRank {
    allowed: Allowed,
    /// When it last changed its phase or, where work counts as progress, used the processor.
    moved: Duration,
    /// Its description.
    text: String,
}

/// The silence that a phase of the last rank allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Allowed {
    /// That of a step: it was stopped, is idle within a step, or all wait in the gradient sync.
    Step,
    /// That of a step, and of an idle script at least: it reads, perhaps from a file system that stalls.
    Input,
    /// That of an announced phase.
    Phase(Phase),
    /// As without ranks: it works, or runs the script's own code.
    Usual,
}

impl LastRank {
    fn of(rows: &[RankRow], now: Duration) -> Option<Self> {
        let last = find_laggard(rows)?;
        let ago = |ms: u64| now.saturating_sub(Duration::from_millis(ms));
        let stood = ago(last.row.stands_ms);
        let waits = if may_read(&last) { Allowed::Input } else { Allowed::Step };
        // One that waits inside a pass stands where the one does that it waits for: while any of them works, none hangs.
        let idle_ms = last.together().map(|row| row.idle_ms).min().unwrap_or(0);
        let (allowed, moved) = match last.row.phase {
            _ if last.row.is_halted() => (Allowed::Step, stood),
            // One that waits for a device or the others may use the processor all the time.
            RankPhase::Reduction => (waits, stood),
            // One that works may compile, for longer than any step takes.
            RankPhase::Data | RankPhase::Compute if idle_ms > 0 => (waits, stood.max(ago(idle_ms))),
            RankPhase::Evaluating => (Allowed::Phase(Phase::Evaluating), stood),
            RankPhase::Saving => (Allowed::Phase(Phase::Checkpointing), stood),
            _ => (Allowed::Usual, stood),
        };
        Some(Self { allowed, moved, text: last.to_string() })
    }
}

/// Reports whether one of the ranks at the lowest place waits for a file or a device.
fn may_read(last: &Laggard<'_>) -> bool {
    last.together().any(|row| row.phase == RankPhase::Data || row.process == Some(ProcessState::Uninterruptible))
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
        let (least, limits) = (knobs.hang_min.duration(), knobs.hang);
        Self {
            least,
            limits,
            phase: Phase::Starting,
            since: now,
            steps: 0,
            took: VecDeque::new(),
            longest_eval: None,
            command: None,
            last_rank: None,
            alarmed: now,
        }
    }

    /// Records where the ranks stand.
    pub fn ranks(&mut self, rows: &[RankRow], now: Duration) {
        self.last_rank = LastRank::of(rows, now);
    }

    /// Describes the rank that left the others first, if there are several.
    #[must_use]
    pub fn describe_last_rank(&self) -> Option<&str> {
        self.last_rank.as_ref().map(|last| last.text.as_str())
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

    /// Records an alarm about a command that is left alone: the next one takes as long.
    pub fn alarmed(&mut self, now: Duration) {
        self.alarmed = now;
        self.active(now);
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
        if let Some(last) = &mut self.last_rank {
            last.moved = (last.moved + delay).min(now);
        }
    }

    /// Returns the moment when silence becomes a hang.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        let limit = self.limit();
        let Some(command) = self.command else { return self.since + limit };
        let active = self.since.max(command.active);
        if let Some(last) = self.last_rank_of_training().filter(|last| last.allowed != Allowed::Usual) {
            return self.since.max(last.moved).max(self.alarmed) + limit;
        }
        match self.phase {
            _ if !command.is_ended => active + limit,
            Phase::Starting => active + limit,
            // It may evaluate without saying so, for as long as it works.
            Phase::Training => (active + limit).min(self.since + limit.max(self.limits.evaluating.duration())),
            // Only steps prove that training goes on.
            _ => self.since + limit,
        }
    }

    /// Returns how long the worker will have taken no step at the deadline.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.deadline().saturating_sub(self.since)
    }

    /// Returns how long the worker may be silent now.
    #[must_use]
    pub fn limit(&self) -> Duration {
        let first_steps = self.limits.first_steps.duration();
        match self.last_rank_of_training().map(|last| last.allowed) {
            Some(Allowed::Step) => return self.limit_of(Phase::Training),
            Some(Allowed::Input) => return self.limit_of(Phase::Training).max(UNANNOUNCED.min(first_steps)),
            Some(Allowed::Phase(phase)) => return self.limit_of(phase),
            Some(Allowed::Usual) | None => {}
        }
        if let (Some(command), Phase::Training) = (self.command, self.phase) {
            if command.reports_steps && self.took.len() >= LEARNED_AFTER {
                return self.learned(self.longest_step()).max(UNANNOUNCED.min(first_steps));
            }
            return self.learned(self.longest_step()).max(first_steps);
        }
        self.limit_of(self.phase)
    }

    /// Returns the limit of a phase of any worker.
    fn limit_of(&self, phase: Phase) -> Duration {
        match phase {
            Phase::Starting => self.limits.starting.duration(),
            Phase::Compiling => self.limits.compiling.duration(),
            Phase::Checkpointing => self.limits.checkpointing.duration(),
            Phase::Evaluating => {
                self.longest_eval.map_or(self.limits.evaluating.duration(), |longest| self.learned(longest))
            }
            Phase::Training if self.took.len() >= LEARNED_AFTER => self.learned(self.longest_step()),
            Phase::Training => self.limits.first_steps.duration().max(self.least),
        }
    }

    fn learned(&self, longest: Duration) -> Duration {
        longest.mul_f64(self.limits.factor).max(self.least)
    }

    /// Returns the rank that the others wait for, while the command trains under a companion that reports each step.
    fn last_rank_of_training(&self) -> Option<&LastRank> {
        let counts = self.phase == Phase::Training && self.command.is_some_and(|command| command.reports_steps);
        self.last_rank.as_ref().filter(|_| counts)
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
    use crate::protocol::blank::rank as row;
    use crate::protocol::ranks::{ProcessState, RankPhase, RankRow};
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
    fn a_rank_that_stands_within_a_step_hangs_after_the_limit_of_a_step() {
        use RankPhase::{Compute, Data, Evaluating, Reduction, Saving, Script};
        let stands = |phase, idle_ms, process| {
            let last = RankRow { stands_ms: 4000, idle_ms, process: Some(process), ..row(1, 30, phase) };
            let mut watch = with_companion(true);
            // The script prints or works elsewhere all the time.
            watch.active(seconds(40));
            watch.ranks(&[row(0, 30, Reduction), last], seconds(40));
            watch.deadline()
        };
        let asleep = ProcessState::Sleeping;
        let usual = seconds(40 + 60);
        assert_eq!(stands(Compute, 3000, asleep), seconds(37 + 10), "idle since 37 s");
        assert_eq!(stands(Data, 4000, asleep), seconds(36 + 60), "a file system may stall");
        assert_eq!(stands(Compute, 4000, ProcessState::Uninterruptible), seconds(36 + 60));
        assert_eq!(stands(Data, 4000, ProcessState::Stopped), seconds(36 + 10));
        assert_eq!(stands(Reduction, 0, asleep), seconds(36 + 10), "all of them wait");
        assert_eq!(stands(Compute, 0, asleep), usual, "it works");
        assert_eq!(stands(Compute, 0, ProcessState::Stopped), seconds(36 + 10));
        assert_eq!(stands(Script, 4000, ProcessState::Stopped), seconds(36 + 10));
        assert_eq!(stands(Script, 4000, asleep), usual, "it may write files");
        assert_eq!(stands(Evaluating, 4000, asleep), seconds(36 + 600));
        assert_eq!(stands(Saving, 4000, asleep), seconds(36 + 420));
        let mut watch = with_companion(true);
        watch.ranks(&[row(0, 30, Reduction), row(1, 30, Compute)], seconds(40));
        assert!(watch.describe_last_rank().is_some_and(|text| text.starts_with("rank 1 of 2 left first")));
        watch.phase(Phase::Checkpointing, seconds(41));
        assert_eq!(watch.deadline(), seconds(41 + 420), "an announced save has its own limit");
    }

    #[test]
    fn a_rank_that_waits_for_one_that_works_does_not_hang() {
        let deadline = |busy: RankRow, waits: RankRow| {
            let mut watch = with_companion(true);
            watch.active(seconds(50));
            watch.ranks(&[busy, waits], seconds(50));
            watch.deadline()
        };
        let busy = RankRow { stands_ms: 15_000, ..row(0, 30, RankPhase::Compute) };
        let waits = RankRow { stands_ms: 16_000, idle_ms: 14_000, ..row(1, 30, RankPhase::Compute) };
        assert_eq!(deadline(busy.clone(), waits.clone()), seconds(50 + 60));
        let paused = RankRow { idle_ms: 500, ..busy.clone() };
        assert_eq!(deadline(paused, waits.clone()), Duration::from_millis(49_500) + seconds(10), "it has just worked");
        let behind = RankRow { step: 29, ..waits.clone() };
        assert_eq!(deadline(busy, behind), seconds(36 + 10), "a step behind: nobody holds it up");
        let idle = RankRow { idle_ms: 13_000, ..waits.clone() };
        assert_eq!(deadline(idle, waits), seconds(37 + 10), "both are idle");
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
