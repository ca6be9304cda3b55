//! Detects a GPU that idles during training, and its reason. An idle GPU ends no worker: only a worker
//! that takes no steps hangs, which [`super::hang`] handles.

use crate::config::watch;
use crate::format::counted;
use crate::protocol::worker::{Phase, Step};
use std::fmt;
use std::time::Duration;

/// Watches the GPU's utilisation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct IdleWatch {
    /// Start of the current idle stretch.
    since: Option<Duration>,
    /// Since when the worker has been in another phase than training, which stops the clock.
    paused: Option<Duration>,
    /// The idle GPU was reported.
    told: bool,
    steps: u64,
    waited_ms: f64,
    computed_ms: f64,
}

/// A change in utilisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum News {
    /// The GPU has been idle for too long, for this reason.
    Idle(Reason),
    /// The GPU works again.
    Busy,
}

/// Why the GPU idles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    /// No step was taken.
    NoSteps,
    /// Share of the step time spent waiting for data.
    DataWait(f64),
    /// The host is the bottleneck.
    HostBound(Steps),
}

/// Steps during which the GPU idled, without a long wait for data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Their number.
    pub count: u64,
    /// Whether anything measures how long they wait for data: the output of a command does not tell.
    pub waits_are_known: bool,
}

impl fmt::Display for Steps {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = if self.waits_are_known { "none waiting for data" } else { "whose wait for data is not known" };
        write!(formatter, "{}, {waits}", counted(self.count, "step"))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSteps => formatter.write_str("no steps, a suspected hang"),
            Self::DataWait(share) => write!(
                formatter,
                "steps wait for data {:.0} % of the time; raise training.loader.threads, or move the data to a faster disk",
                share * 100.0
            ),
            Self::HostBound(steps) if steps.waits_are_known => write!(
                formatter,
                "{steps}, so the host is the bottleneck; raise training.micro_batch, or check what else uses the CPU"
            ),
            Self::HostBound(steps) => write!(
                formatter,
                "{steps}, so the data or the host is the bottleneck; give the loader more processes, raise \
                 training.micro_batch, or check what else uses the CPU"
            ),
        }
    }
}

/// Fused kernels that are off, as the reason why a GPU without a wait for data idles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unfused<'a> {
    /// The steps taken.
    pub steps: Steps,
    /// The knob that turns them off.
    pub knob: &'a str,
    /// The nearest faster rung that has them.
    pub faster: Option<&'a str>,
}

impl fmt::Display for Unfused<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}, and fused kernels are off ({}), so the GPU waits for the launch of each operation; ",
            self.steps, self.knob
        )?;
        match self.faster {
            Some(rung) => write!(formatter, "rung {rung} has them, if what they caused is solved"),
            None => formatter.write_str("turn them on, if nothing speaks against it, or raise training.micro_batch"),
        }
    }
}

impl IdleWatch {
    /// Takes in a step.
    pub fn step(&mut self, step: &Step) {
        self.steps += 1;
        self.waited_ms += step.data_wait_ms;
        self.computed_ms += step.compute_ms;
    }

    /// Takes in the GPU's busy share of the time; an unknown share changes nothing.
    pub fn measured(&mut self, share: Option<f64>, knobs: watch::Utilisation, now: Duration) -> Option<News> {
        let share = share.filter(|share| share.is_finite())?;
        if share >= knobs.below {
            let was_told = self.told;
            *self = Self::default();
            return was_told.then_some(News::Busy);
        }
        let since = *self.since.get_or_insert_with(|| {
            (self.steps, self.waited_ms, self.computed_ms) = (0, 0.0, 0.0);
            now
        });
        if self.told || now.saturating_sub(since) < knobs.after.duration() {
            return None;
        }
        self.told = true;
        Some(News::Idle(self.reason()))
    }

    /// Stops the clock while the worker is in another phase than training.
    pub fn phase(&mut self, phase: Phase, now: Duration) {
        if phase != Phase::Training {
            self.paused.get_or_insert(now);
        } else if let Some(paused) = self.paused.take() {
            self.exclude(now.saturating_sub(paused), now);
        }
    }

    /// Excludes the time that the keeper itself stalled, when nothing was measured.
    pub fn forgive(&mut self, delay: Duration, now: Duration) {
        if self.paused.is_none() {
            self.exclude(delay, now);
        }
    }

    fn exclude(&mut self, span: Duration, now: Duration) {
        self.since = self.since.map(|since| (since + span).min(now));
    }

    /// Discards the time until now, for another worker.
    pub fn reset(&mut self) {
        *self = Self { told: self.told, ..Self::default() };
    }

    fn reason(&self) -> Reason {
        let waiting = self.waited_ms / (self.waited_ms + self.computed_ms).max(f64::MIN_POSITIVE);
        match self.steps {
            0 => Reason::NoSteps,
            _ if waiting >= 0.5 => Reason::DataWait(waiting),
            count => Reason::HostBound(Steps { count, waits_are_known: self.waited_ms > 0.0 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{IdleWatch, News, Reason, Steps};
    use crate::config::watch::Utilisation;
    use crate::protocol::worker::{Phase, Step};
    use std::time::Duration;

    fn step(data_wait_ms: f64, compute_ms: f64) -> Step {
        Step { step: 1, samples: 1, loss: Some(1.0), data_wait_ms, compute_ms, ..Step::default() }
    }

    /// Feeds one reading per second, with a step before each if given; returns the news with their seconds.
    fn news(readings: &[(Option<f64>, u64)], each: Option<&Step>) -> Vec<(u64, News)> {
        let (mut watch, mut told, mut second) = (IdleWatch::default(), Vec::new(), 0);
        for (share, seconds) in readings {
            for _ in 0..*seconds {
                if let Some(step) = each {
                    watch.step(step);
                }
                let seen = watch.measured(*share, Utilisation::default(), Duration::from_secs(second));
                told.extend(seen.map(|news| (second, news)));
                second += 1;
            }
        }
        told
    }

    #[test]
    fn a_minute_of_idling_is_reported_once_with_its_reason() {
        let idle = [(Some(0.9), 5), (Some(0.02), 200)];
        for (each, reason) in [
            (None, Reason::NoSteps),
            (Some(step(30.0, 10.0)), Reason::DataWait(0.75)),
            (Some(step(1.0, 500.0)), Reason::HostBound(Steps { count: 60, waits_are_known: true })),
            (Some(step(0.0, 500.0)), Reason::HostBound(Steps { count: 60, waits_are_known: false })),
        ] {
            assert_eq!(news(&idle, each.as_ref()), [(65, News::Idle(reason))]);
        }
    }

    #[test]
    fn saves_and_delays_stop_the_clock_and_do_not_reset_it() {
        let (mut watch, mut told) = (IdleWatch::default(), Vec::new());
        // Half of each 20 seconds goes to a save, and the keeper misses 5 more of them.
        for second in 0..400 {
            let now = Duration::from_secs(second);
            match second % 20 {
                0 => watch.phase(Phase::Training, now),
                5 => watch.forgive(Duration::from_secs(5), now),
                10 => watch.phase(Phase::Checkpointing, now),
                _ => {}
            }
            if second % 20 == 0 || (5..10).contains(&(second % 20)) {
                told.extend(watch.measured(Some(0.0), Utilisation::default(), now).map(|_| second));
            }
        }
        assert_eq!(told, [240], "a minute of training that was watched, in four");
    }

    #[test]
    fn short_breaks_unknown_shares_and_a_busy_gpu_are_ignored() {
        assert_eq!(news(&[(Some(0.0), 50), (Some(0.5), 1), (Some(0.0), 50)], None), []);
        assert_eq!(news(&[(None, 500), (Some(f64::NAN), 100), (Some(0.05), 500)], None), []);
        let with_holes = [(Some(0.0), 30), (None, 20), (Some(0.0), 30)];
        assert_eq!(news(&with_holes, None).len(), 1, "unknown is neither idle nor busy");
        let again = news(&[(Some(0.0), 70), (Some(0.8), 3), (Some(0.0), 70)], None);
        assert_eq!(again.iter().map(|(second, _)| *second).collect::<Vec<_>>(), [60, 70, 133]);
    }
}
