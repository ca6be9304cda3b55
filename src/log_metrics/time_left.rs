//! The time until the end of the training, as trainers print it: `eta: 1 day, 0:10:20`, `ETA: 5m 3s`, `remaining: 2.1s`.

use std::time::Duration;

/// Words before it.
const NAMES: [&str; 5] = ["eta", "remaining", "remaining time", "remaining_time", "time left"];
/// Words for a unit, and its seconds.
const UNITS: [(&[&str], f64); 6] = [
    (&["ms", "millisecond", "milliseconds"], 0.001),
    (&["s", "sec", "secs", "second", "seconds"], 1.0),
    (&["m", "min", "mins", "minute", "minutes"], 60.0),
    (&["h", "hr", "hrs", "hour", "hours"], 3600.0),
    (&["d", "day", "days"], 86_400.0),
    (&["w", "week", "weeks"], 604_800.0),
];
/// Longest time that is believed.
const LONGEST: f64 = 3.2e8;

/// Reads it in a line.
pub fn read(line: &str) -> Option<Duration> {
    let found = NAMES.iter().find_map(|name| behind(line, name).find_map(seconds))?;
    Some(found).filter(|seconds| *seconds <= LONGEST).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

/// Returns the texts behind a name and its sign.
fn behind<'a>(line: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let parts = line.as_bytes().windows(name.len()).enumerate();
    let places = parts.filter(move |(_, part)| part.eq_ignore_ascii_case(name.as_bytes())).map(|(at, _)| at);
    places.filter(move |at| !line[..*at].ends_with(char::is_alphanumeric)).filter_map(move |at| {
        let rest = line.get(at + name.len()..)?;
        // The sign, and quotes of JSON.
        Some(rest.trim_start_matches(['"', '\'', ' ', ':', '=', '['])).filter(|value| value.len() < rest.len())
    })
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
        let Some((scale, after)) = unit(behind.trim_start()) else { return any.then_some(sum) };
        let Ok(number) = number.parse::<f64>() else { return any.then_some(sum) };
        (sum, any) = (sum + number * scale, true);
        rest = after.trim_start_matches([',', ' ']);
    }
}

/// Returns the seconds of the unit that a text begins with, and the text behind it. `s/it` and `m_t` are no units.
fn unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|letter: char| !letter.is_alphabetic()).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let (_, scale) = UNITS.iter().find(|(words, _)| words.iter().any(|known| word.eq_ignore_ascii_case(known)))?;
    (!rest.starts_with(['/', '_'])).then_some((*scale, rest))
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
            ("step 5 loss 2 remaining: 9500 steps", None),
            ("step 5 loss 2 remaining: 9500 samples", None),
            ("step 5 loss 2 remaining 12 days", Some(1_036_800.0)),
            ("step 5 loss 2 ETA 2 Hours 5 mins", Some(7500.0)),
            ("eta 0.3 max_depth 6", None),
            ("eta 0.3 m_decay 6", None),
            ("eta 0.3 s/it", None),
            ("eta 0.3 h\u{e9} 6", None),
            ("step 5 eta 300", None),
            ("beta 0.9 eta: 0:10:00", Some(600.0)),
            ("eta 0.1 loss 2 eta: 5m", Some(300.0)),
        ] {
            assert_eq!(read(line).map(|left| left.as_secs_f64()), wanted, "{line}");
        }
    }
}
