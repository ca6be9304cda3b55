//! The time until the end of the training, as trainers print it: `eta: 1 day, 0:10:20`, `ETA: 5m 3s`, `remaining: 2.1s`.

use std::time::Duration;

/// Words before it.
const NAMES: [&str; 5] = ["eta", "remaining", "remaining time", "remaining_time", "time left"];
/// Units by their first letters, the longest first, in seconds.
const UNITS: [(&str, f64); 5] = [("ms", 0.001), ("d", 86_400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
/// Longest time that is believed.
const LONGEST: f64 = 3.2e8;

/// Reads it in a line.
pub fn read(line: &str) -> Option<Duration> {
    let behind = |name: &str| {
        let at = line.as_bytes().windows(name.len()).position(|part| part.eq_ignore_ascii_case(name.as_bytes()))?;
        let is_word = !line[..at].ends_with(|letter: char| letter.is_alphanumeric());
        let rest = line.get(at + name.len()..).filter(|_| is_word)?;
        // The sign, and quotes of JSON.
        Some(rest.trim_start_matches(['"', '\'', ' ', ':', '=', '['])).filter(|value| value.len() < rest.len())
    };
    let seconds = NAMES.iter().filter_map(|name| behind(name)).find_map(seconds)?;
    Some(seconds).filter(|seconds| *seconds <= LONGEST).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

/// Returns the seconds of `1 day, 0:10:20`, `10:20`, `1h 2m 3.5s` or `3.5 min`.
fn seconds(text: &str) -> Option<f64> {
    let (mut sum, mut any, mut rest) = (0.0, false, text);
    loop {
        let length = rest.bytes().take_while(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b':')).count();
        let (number, behind) = rest.split_at(length);
        if number.contains(':') {
            let parts: Vec<f64> =
                number.trim_end_matches(':').split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
            return (parts.len() > 1).then(|| sum + parts.iter().fold(0.0, |sum, part| sum * 60.0 + part));
        }
        let unit = behind.trim_start();
        let found = UNITS.iter().find(|(name, _)| unit.starts_with(name));
        let Some((number, (_, scale))) = number.parse::<f64>().ok().zip(found) else { return any.then_some(sum) };
        (sum, any) = (sum + number * scale, true);
        rest = unit.trim_start_matches(|letter: char| letter.is_ascii_alphabetic()).trim_start_matches([',', ' ']);
    }
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn the_forms_of_trainers() {
        for (line, wanted) in [
            ("Epoch: [0]  [1/6]  eta: 0:00:11  lr: 0.002  loss: 7.5 (7.9)", Some(11.0)),
            ("Iter(train) [50/100]  lr: 1e-4  eta: 1 day, 0:10:20  time: 0.5", Some(87_020.0)),
            ("eta: 2 days, 1:00:00 loss 2", Some(176_400.0)),
            ("step 5 loss 2.5 ETA: 05:03", Some(303.0)),
            ("step 5 loss 2.5 | ETA 1h 2m 3s | lr 0.1", Some(3723.0)),
            ("step 5 loss 2.5, remaining: 3.5 min", Some(210.0)),
            ("10:  learn: 0.5  total: 12ms  remaining: 250ms", Some(0.25)),
            ("{\"loss\": 2.5, \"remaining_time\": \"0:10:20\"}", Some(620.0)),
            ("step 5 loss 2.5 time left 90s", Some(90.0)),
            ("beta: 5 loss 2 zeta: 3s", None),
            ("eta: N/A  iter: 19  total_loss: 5.9", None),
            ("eta: 0.1, lambda: 3", None),
            ("remaining: 12 files", None),
            ("eta: 99999999999h", None),
        ] {
            assert_eq!(read(line).map(|left| left.as_secs_f64()), wanted, "{line}");
        }
    }
}
