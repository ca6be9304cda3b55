//! The time of steps that the output counts. Steps that arrive in one burst share the time since the last one: a script may
//! print every tenth step only, and its output may be held back on its way.

use std::time::Duration;

/// Time in which pieces of output are one burst: a terminal hands over at most 4 KiB at once, which are 40 redraws of a bar.
const BURST: Duration = Duration::from_millis(20);

/// Measures steps by the bursts in which they arrive.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepTimer {
    burst: Option<Burst>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Burst {
    /// The end of the burst before it.
    since: Option<Duration>,
    /// The step before it.
    after: u64,
    began: Duration,
    ended: Duration,
}

impl StepTimer {
    /// Takes the steps beyond `after`, up to `newest`, and returns the time of each of them; none for those of the first burst.
    pub fn measure(&mut self, after: u64, newest: u64, now: Duration) -> Option<Duration> {
        let same = self.burst.filter(|burst| now.saturating_sub(burst.began) < BURST);
        let since = self.burst.map(|before| before.ended);
        let burst = Burst { ended: now, ..same.unwrap_or(Burst { since, after, began: now, ended: now }) };
        self.burst = Some(burst);
        let steps = newest.saturating_sub(burst.after).max(1) as f64;
        Some(now.saturating_sub(burst.since?).div_f64(steps))
    }
}

#[cfg(test)]
mod tests {
    use super::StepTimer;
    use std::time::Duration;

    #[test]
    fn steps_of_a_burst_share_the_time_since_the_last_one_in_however_many_pieces_it_comes() {
        let (mut timer, mut last) = (StepTimer::default(), 0);
        let mut time = |newest: u64, now: u64| {
            let after = std::mem::replace(&mut last, newest);
            timer.measure(after, newest, Duration::from_millis(now)).map(|time| time.as_micros())
        };
        assert_eq!(
            [time(40, 4000), time(60, 4001)],
            [None; 2],
            "the time before the first report is not that of a step"
        );
        assert_eq!(time(64, 6001), Some(500_000), "nothing tells how many follow");
        assert_eq!(time(69, 6002), Some(222_333));
        assert_eq!(time(80, 6003), Some(100_100), "never the millisecond between two pieces");
        assert_eq!(time(81, 6053), Some(50_000));
        assert_eq!(time(82, 6073), Some(20_000), "a quick script");
    }
}
