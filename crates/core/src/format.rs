//! Formats values for display: always with a unit, `–` for unknown ones, thousands separated.

use serde_json::Value;

/// Placeholder for an unknown value.
pub const UNKNOWN: &str = "–";

/// Formats a count: `1 204`.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a loss or a norm with at most four digits: `0.312`, `12.41`, `3.1e-5`.
#[must_use]
pub fn figure(value: f64) -> String {
    if !value.is_finite() {
        return UNKNOWN.to_owned();
    }
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 0.001 => format!("{value:.1e}"),
        size if size < 9.9995 => format!("{value:.3}"),
        size if size < 99.995 => format!("{value:.2}"),
        size if size < 9_999.5 => format!("{value:.0}"),
        size if size < 99_999.5 && value > 0.0 => count(value.round() as u64),
        _ => format!("{value:.1e}"),
    }
}

/// Formats a learning rate with at most three digits: `0.002`, `0.00137`, `5e-4`.
#[must_use]
pub fn learning_rate(value: f64) -> String {
    if !value.is_finite() {
        return UNKNOWN.to_owned();
    }
    let rounded: f64 = format!("{value:.2e}").parse().unwrap_or(value);
    if rounded == 0.0 || rounded.abs() >= 0.001 { format!("{rounded}") } else { format!("{rounded:e}") }
}

/// Formats two values with enough digits to tell them apart, at most six.
#[must_use]
pub fn apart(before: f64, after: f64) -> (String, String) {
    let (short, other) = (figure(before), figure(after));
    if short != other || !before.is_finite() || (before - after).abs() < f64::EPSILON {
        return (short, other);
    }
    // Leading zeros do not count: decimals start at the first significant digit, after two zeros in 0.0012.
    let lead = (-before.abs().max(f64::MIN_POSITIVE).log10()).ceil().clamp(0.0, 9.0) as usize;
    let written = |places: usize| (format!("{before:.places$}"), format!("{after:.places$}"));
    (lead + 2..=lead + 6).map(written).find(|(one, other)| one != other).unwrap_or((short, other))
}

/// Formats a rate in events per second: `0.42`, `55.8`, `1 204`.
#[must_use]
pub fn rate(value: f64) -> String {
    if !value.is_finite() || value < 0.0 {
        return UNKNOWN.to_owned();
    }
    match value {
        slow if slow < 9.995 => format!("{slow:.2}"),
        medium if medium < 999.95 => format!("{medium:.1}"),
        fast if fast < 1e15 => count(fast.round() as u64),
        _ => format!("{value:.1e}"),
    }
}

/// Formats a fraction of 0 to 1 as a percentage: `0.5 %`, `5 %`, `24 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    if !share.is_finite() {
        return UNKNOWN.to_owned();
    }
    let percent = share * 100.0;
    let text = match percent.abs() {
        // 99.7 % would round to 100 %, which looks complete.
        99.5..100.0 => "99".to_owned(),
        9.95.. => format!("{percent:.0}"),
        _ => format!("{percent:.1}"),
    };
    format!("{} %", text.trim_end_matches(".0"))
}

/// Formats bytes: `18.2 GiB`, `31 MiB`, `812 B`.
#[must_use]
pub fn bytes(value: u64) -> String {
    let (number, unit) = scaled(value);
    format!("{number} {unit}")
}

/// Formats bytes used of bytes available, with one unit if both share it: `18.2 / 24.0 GiB`.
#[must_use]
pub fn bytes_of(part: u64, whole: u64) -> String {
    let ((part_number, part_unit), (number, unit)) = (scaled(part), scaled(whole));
    if part_unit == unit {
        format!("{part_number} / {number} {unit}")
    } else {
        format!("{part_number} {part_unit} / {number} {unit}")
    }
}

fn scaled(value: u64) -> (String, &'static str) {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut number = value as f64;
    let mut unit = 0;
    while number >= 999.5 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    let text = if unit == 0 || number >= 99.95 { format!("{number:.0}") } else { format!("{number:.1}") };
    (text, UNITS[unit])
}

/// Formats a duration to read at a glance: `14 s`, `3 min`, `1 h 52 min`, `2 d 3 h`.
#[must_use]
pub fn age(milliseconds: i64) -> String {
    let seconds = milliseconds.max(0) / 1000;
    match (seconds, seconds / 60, seconds / 3600, seconds / 86_400) {
        (s, 0, ..) => format!("{s} s"),
        (_, m, 0, _) if m >= 10 => format!("{m} min"),
        (s, m, 0, _) => format!("{m} min {:02} s", s % 60),
        (_, m, h, 0) => format!("{h} h {:02} min", m % 60),
        (_, _, h, d) => format!("{d} d {} h", h % 24),
    }
}

/// Formats a duration where tenths matter: `0.9 s`, `41.0 s`, `3 min 02 s`.
#[must_use]
pub fn took(milliseconds: u64) -> String {
    match milliseconds {
        short if short < 100 => format!("{:.2} s", short as f64 / 1e3),
        medium if medium < 60_000 => format!("{:.1} s", medium as f64 / 1e3),
        long => age(i64::try_from(long).unwrap_or(i64::MAX)),
    }
}

/// Formats a short span with three digits at most: `10 ms`, `2.1 s`.
#[must_use]
pub fn brief(milliseconds: f64) -> String {
    if milliseconds < 999.5 { format!("{milliseconds:.0} ms") } else { took(milliseconds.max(0.0).round() as u64) }
}

/// Formats the time of day: `14:02:11`.
#[must_use]
pub fn clock(unix_ms: i64, offset_s: i32) -> String {
    let second = (unix_ms.div_euclid(1000)).saturating_add(i64::from(offset_s)).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Formats the day: `20 Nov`.
#[must_use]
pub fn date(unix_ms: i64, offset_s: i32) -> String {
    let local_ms = unix_ms.saturating_add(i64::from(offset_s) * 1000);
    let time = jiff::Timestamp::from_millisecond(local_ms).unwrap_or_default();
    time.strftime("%-d %b").to_string()
}

/// Formats a count with its noun, singular or plural: `1 step`, `1 204 steps`.
#[must_use]
pub fn counted(value: u64, word: &str) -> String {
    if value == 1 { format!("1 {word}") } else { format!("{} {word}s", count(value)) }
}

/// Formats the value of a knob: `32`, `on`, `minimal`, `not set`.
#[must_use]
pub fn in_words(value: &Value) -> String {
    match value {
        Value::Null => "not set".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "on".to_owned(),
        Value::Bool(false) => "off".to_owned(),
        other => other.to_string(),
    }
}

/// Quotes a word for a shell.
#[must_use]
pub fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "_-./+,:@%=".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::{age, bytes, bytes_of, clock, count, counted, figure, learning_rate, percent, rate, took};
    use proptest::prelude::*;

    #[test]
    fn figures_read_well() {
        for (value, text) in [(0, "0"), (999, "999"), (1204, "1 204"), (1_000_000, "1 000 000")] {
            assert_eq!(count(value), text);
        }
        for (value, text) in [(0.312, "0.312"), (2.4, "2.400"), (12.414, "12.41"), (3.1e-5, "3.1e-5"), (0.0, "0")] {
            assert_eq!(figure(value), text);
        }
        for (value, text) in [(0.421, "0.42"), (55.83, "55.8"), (1204.4, "1 204"), (f64::NAN, "–"), (-1.0, "–")] {
            assert_eq!(rate(value), text);
        }
        for (value, text) in [
            (0.005, "0.5 %"),
            (0.24, "24 %"),
            (0.0, "0 %"),
            (0.05, "5 %"),
            (0.9987, "99 %"),
            (1.0, "100 %"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(percent(value), text);
        }
        for (value, text) in [(812, "812 B"), (19_541_051_146, "18.2 GiB"), (32_505_856, "31.0 MiB")] {
            assert_eq!(bytes(value), text);
        }
        assert_eq!(bytes_of(19_541_051_146, 25_769_803_776), "18.2 / 24.0 GiB");
        assert_eq!(bytes_of(1_048_576, 25_769_803_776), "1.0 MiB / 24.0 GiB");
        assert_eq!(counted(1, "step"), "1 step");
    }

    #[test]
    fn learning_rates_keep_three_digits() {
        let rates = [0.002, 0.001_371_9, 5e-4, 1.234_5e-5, 0.1 + 0.2, 1.0, 0.0].map(learning_rate);
        assert_eq!(rates, ["0.002", "0.00137", "5e-4", "1.23e-5", "0.3", "1", "0"]);
    }

    #[test]
    fn times_read_well() {
        for (ms, text) in [
            (14_000, "14 s"),
            (62_000, "1 min 02 s"),
            (1_800_000, "30 min"),
            (6_720_000, "1 h 52 min"),
            (183_600_000, "2 d 3 h"),
            (-5, "0 s"),
        ] {
            assert_eq!(age(ms), text);
        }
        assert_eq!(took(940), "0.9 s");
        assert_eq!(took(40), "0.04 s");
        assert_eq!(took(182_000), "3 min 02 s");
        assert_eq!(clock(50_531_000, 0), "14:02:11");
        assert_eq!(clock(50_531_000, -7200), "12:02:11");
    }

    proptest! {
        #[test]
        fn no_figure_panics(value: f64, whole: u64, time: i64, offset: i32) {
            let _ = (figure(value), rate(value), percent(value), count(whole), bytes(whole), age(time), took(whole));
            prop_assert_eq!(clock(time, offset).len(), 8);
        }
    }

    #[test]
    fn similar_losses_are_shown_with_more_digits() {
        let words = |before, after| super::apart(before, after);
        assert_eq!(words(0.312, 0.309), ("0.312".to_owned(), "0.309".to_owned()));
        assert_eq!(words(0.31201, 0.31204), ("0.31201".to_owned(), "0.31204".to_owned()));
        assert_eq!(words(0.5, 0.5), ("0.500".to_owned(), "0.500".to_owned()));
        assert_eq!(words(f64::NAN, 0.5).0, "–");
    }
}
