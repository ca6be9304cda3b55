//! Injected faults: `nan@120,oom@150*,slow@10-20`.
//!
//! ```text
//! fault @ step [- last step] [*]      * = in every attempt that reaches it, else once per run
//! ```
//! When the keeper starts the next worker, it leaves out those that have fired.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// Kind of an injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The step's loss becomes NaN on the device.
    Nan,
    /// A device thread panics as it does when an allocation fails; the main thread continues.
    Oom,
    /// The main thread panics.
    Panic,
    /// The process ends with code 0, long before the run is over.
    Exit0,
    /// The process kills itself with SIGKILL.
    Kill,
    /// The main thread stops forever.
    Hang,
    /// Steps take ten times as long.
    Slow,
}

impl Fault {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Nan, "nan"),
        (Self::Oom, "oom"),
        (Self::Panic, "panic"),
        (Self::Exit0, "exit0"),
        (Self::Kill, "kill"),
        (Self::Hang, "hang"),
        (Self::Slow, "slow"),
    ];

    fn may_last(self) -> bool {
        matches!(self, Self::Nan | Self::Slow)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::ALL.iter().find(|(fault, _)| fault == self).map_or("", |(_, word)| word);
        formatter.write_str(word)
    }
}

/// A fault, the optimizer steps it affects, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inject {
    /// Kind of the fault.
    pub fault: Fault,
    /// First affected step.
    pub first: u64,
    /// Last affected step.
    pub last: u64,
    /// Whether it fires in every attempt that reaches it, rather than once per run.
    pub always: bool,
}

impl Inject {
    /// Reports whether the fault affects `step`.
    #[must_use]
    pub fn strikes(&self, step: u64) -> bool {
        (self.first..=self.last).contains(&step)
    }

    /// Parses a list: `nan@120,oom@150*`.
    ///
    /// # Errors
    /// Returns a sentence about the first fault that does not parse.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, InjectError> {
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::parse).collect()
    }
}

impl fmt::Display for Inject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}@{}", self.fault, self.first)?;
        if self.last != self.first {
            write!(formatter, "-{}", self.last)?;
        }
        if self.always { formatter.write_str("*") } else { Ok(()) }
    }
}

/// A fault that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InjectError {
    /// There is no `@`.
    #[error("`{0}` has no step; write fault@step: nan@120, oom@150*, slow@10-20")]
    NoStep(String),
    /// The word is not a fault.
    #[error("unknown fault `{word}` in `{text}`; known faults: {}", Fault::ALL.map(|(_, word)| word).join(", "))]
    UnknownFault {
        /// The word before the `@`.
        word: String,
        /// The whole text.
        text: String,
    },
    /// The step is not a number above 0.
    #[error("`{digits}` in `{text}` is not a step; steps count from 1")]
    BadStep {
        /// The text in place of a number.
        digits: String,
        /// The whole text.
        text: String,
    },
    /// The last step is before the first.
    #[error("`{text}` ends before it begins; write {word}@{last}-{first}")]
    Reversed {
        /// The whole text.
        text: String,
        /// The fault.
        word: String,
        /// The step before the dash.
        first: u64,
        /// The step after the dash.
        last: u64,
    },
    /// The fault affects one step only.
    #[error("`{text}` cannot last: {word} affects one step; write {word}@{first}")]
    CannotLast {
        /// The whole text.
        text: String,
        /// The fault.
        word: String,
        /// The step before the dash.
        first: u64,
    },
}

impl FromStr for Inject {
    type Err = InjectError;

    fn from_str(text: &str) -> Result<Self, InjectError> {
        let text = text.trim();
        let whole = || text.to_owned();
        let (body, always) = text.strip_suffix('*').map_or((text, false), |body| (body, true));
        let (word, at) = body.split_once('@').ok_or_else(|| InjectError::NoStep(whole()))?;
        let fault = Fault::ALL.iter().find(|(_, known)| *known == word).map(|(fault, _)| *fault);
        let word = word.to_owned();
        let Some(fault) = fault else { return Err(InjectError::UnknownFault { word, text: whole() }) };
        let number = |digits: &str| match digits.parse::<u64>() {
            Ok(step) if step > 0 => Ok(step),
            _ => Err(InjectError::BadStep { digits: digits.to_owned(), text: whole() }),
        };
        let (first, last) = match at.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(at)?, number(at)?),
        };
        if last < first {
            return Err(InjectError::Reversed { text: whole(), word, first, last });
        }
        if last > first && !fault.may_last() {
            return Err(InjectError::CannotLast { text: whole(), word, first });
        }
        Ok(Self { fault, first, last, always })
    }
}

impl Serialize for Inject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Inject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::{Fault, Inject};

    #[test]
    fn faults_are_read_and_written_back() {
        let text = "nan@120,oom@150*,panic@200,exit0@50,kill@90,hang@400,slow@10-20,nan@3-5*";
        let faults = Inject::parse_list(text).unwrap();
        assert_eq!(faults.iter().map(ToString::to_string).collect::<Vec<_>>().join(","), text);
        assert_eq!(faults[1], Inject { fault: Fault::Oom, first: 150, last: 150, always: true });
        assert!(faults[6].strikes(10) && faults[6].strikes(20) && !faults[6].strikes(21));
        assert_eq!(Inject::parse_list(" "), Ok(Vec::new()));
    }

    #[test]
    fn other_text_is_refused_with_the_fix() {
        for (text, part) in [
            ("oom", "has no step"),
            ("boom@3", "known faults: nan, oom"),
            ("nan@0", "count from 1"),
            ("nan@x", "is not a step"),
            ("nan@5-3", "write nan@3-5"),
            ("kill@5-7", "write kill@5"),
            ("nan@1,,oom@", "is not a step"),
        ] {
            let refusal = Inject::parse_list(text).unwrap_err().to_string();
            assert!(refusal.contains(part), "{text}: {refusal}");
        }
    }
}
