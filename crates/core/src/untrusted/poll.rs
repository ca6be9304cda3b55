//! Polls the locks, sockets and stores of other processes, which announce no change.

use std::thread;
use std::time::{Duration, Instant};

/// Checks the condition at this interval until it returns a value.
pub fn poll<T>(interval: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(value) = condition() {
            return value;
        }
        thread::sleep(interval);
    }
}

/// Checks the condition at this interval until it returns a value. Returns none once the limit has passed.
pub fn poll_within<T>(limit: Duration, interval: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    poll(interval, || {
        let value = condition();
        (value.is_some() || began.elapsed() >= limit).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::poll_within;
    use std::time::Duration;

    #[test]
    fn a_value_ends_the_wait_and_so_does_the_limit() {
        let mut checks = 0;
        let third = poll_within(Duration::from_mins(1), Duration::ZERO, || {
            checks += 1;
            (checks == 3).then_some(checks)
        });
        assert_eq!(third, Some(3));
        assert_eq!(poll_within(Duration::ZERO, Duration::from_mins(1), || None::<u32>), None, "without a pause");
    }
}
