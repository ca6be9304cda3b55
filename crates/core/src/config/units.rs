//! Values with a unit: `30 s`, `10 min`, `500 steps`, `1 epoch`; and times, where nothing else makes sense.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, marker::PhantomData, str::FromStr, time::Duration};

/// An interval in wall-clock time or in training progress.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Every {
    /// Wall-clock seconds.
    Seconds(f64),
    /// Optimizer steps.
    Steps(u64),
    /// Epochs of training data.
    Epochs(u64),
    /// The optimal interval from measured cost and failure rate; for checkpoints.
    Auto,
    /// Never.
    Never,
}

impl Every {
    /// Returns the interval as a duration, if it is one.
    #[must_use]
    pub fn duration(self) -> Option<Duration> {
        match self {
            Self::Seconds(seconds) => Duration::try_from_secs_f64(seconds).ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Seconds(seconds) => write!(formatter, "{seconds} s"),
            Self::Steps(1) => formatter.write_str("1 step"),
            Self::Steps(steps) => write!(formatter, "{steps} steps"),
            Self::Epochs(1) => formatter.write_str("1 epoch"),
            Self::Epochs(epochs) => write!(formatter, "{epochs} epochs"),
            Self::Auto => formatter.write_str("auto"),
            Self::Never => formatter.write_str("never"),
        }
    }
}

/// A text that is not an interval.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an interval; write {EXAMPLES}")]
pub struct ParseEveryError {
    /// The text.
    pub text: String,
}

const EXAMPLES: &str = "a number and a unit: 30 s, 10 min, 2 h, 500 steps, 1 epoch, or never";

impl FromStr for Every {
    type Err = ParseEveryError;

    fn from_str(text: &str) -> Result<Self, ParseEveryError> {
        let wrong = || ParseEveryError { text: text.to_owned() };
        let text = text.trim();
        match text {
            "never" => return Ok(Self::Never),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(wrong)?;
        let (number, unit) = (text[..split].trim(), text[split..].trim());
        let seconds = |factor: f64| match number.parse::<f64>() {
            Ok(value) if value > 0.0 && value < 1e9 => Ok(Self::Seconds(value * factor)),
            _ => Err(wrong()),
        };
        let count = || match number.parse::<u64>() {
            Ok(value) if value > 0 => Ok(value),
            _ => Err(wrong()),
        };
        match unit {
            "ms" => seconds(0.001),
            "s" => seconds(1.0),
            "min" => seconds(60.0),
            "h" => seconds(3600.0),
            "step" | "steps" => count().map(Self::Steps),
            "epoch" | "epochs" => count().map(Self::Epochs),
            _ => Err(wrong()),
        }
    }
}

impl Serialize for Every {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Every {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text(EXAMPLES, PhantomData))
    }
}

/// A wall-clock time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Time {
    seconds: f64,
}

impl Time {
    /// Creates a time from its seconds.
    #[must_use]
    pub const fn seconds(seconds: f64) -> Self {
        Self { seconds }
    }

    /// Returns the time as a duration.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::try_from_secs_f64(self.seconds).unwrap_or_default()
    }
}

impl fmt::Display for Time {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Every::Seconds(self.seconds).fmt(formatter)
    }
}

/// A text that is not a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a time; write {TIMES}")]
pub struct ParseTimeError {
    /// The text.
    pub text: String,
}

const TIMES: &str = "a number and a unit: 500 ms, 30 s, 10 min or 2 h";

impl FromStr for Time {
    type Err = ParseTimeError;

    fn from_str(text: &str) -> Result<Self, ParseTimeError> {
        match text.parse() {
            Ok(Every::Seconds(seconds)) => Ok(Self { seconds }),
            _ => Err(ParseTimeError { text: text.to_owned() }),
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text(TIMES, PhantomData))
    }
}

/// Reads a value from a text; other types are refused with what is expected.
struct Text<T>(&'static str, PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> de::Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::{Every, TIMES, Time};

    #[test]
    fn intervals_are_read_and_written_back() {
        for (text, every) in [
            ("30 s", Every::Seconds(30.0)),
            ("1.5 s", Every::Seconds(1.5)),
            ("500 steps", Every::Steps(500)),
            ("1 step", Every::Steps(1)),
            ("1 epoch", Every::Epochs(1)),
            ("auto", Every::Auto),
            ("never", Every::Never),
        ] {
            assert_eq!(text.parse(), Ok(every));
            assert_eq!(every.to_string(), text);
        }
        assert_eq!("2 min".parse(), Ok(Every::Seconds(120.0)));
        assert_eq!("2h".parse(), Ok(Every::Seconds(7200.0)));
    }

    #[test]
    fn other_text_is_refused_with_examples() {
        for text in ["", "30", "s", "-3 s", "0 s", "1.5 epochs", "0 steps", "3 weeks", "nan s"] {
            let error = text.parse::<Every>().unwrap_err();
            assert_eq!(error.text, text);
            assert!(error.to_string().contains("10 min"), "{error}");
        }
    }
    #[test]
    fn a_time_is_nothing_but_a_time() {
        assert_eq!("2 min".parse(), Ok(Time::seconds(120.0)));
        assert_eq!(Time::seconds(120.0).to_string(), "120 s");
        for text in ["30", "500 steps", "1 epoch", "never", "auto", "soon"] {
            let error = text.parse::<Time>().unwrap_err().to_string();
            assert_eq!(error, format!("`{text}` is not a time; write {TIMES}"));
        }
    }
}
