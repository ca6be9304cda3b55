//! Names of the signals that may ask a script to save.

use crate::config::typed::suggest;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Every signal that a script can handle and a person would choose, by the name without `SIG`.
const SIGNALS: [(&str, Signal); 8] = [
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("TERM", Signal::TERM),
    ("QUIT", Signal::QUIT),
    ("ALARM", Signal::ALARM),
    ("WINCH", Signal::WINCH),
];

/// A signal that a script handles, such as USR1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SignalName(Signal);

impl SignalName {
    /// Returns the signal to send.
    #[must_use]
    pub fn signal(self) -> Signal {
        self.0
    }

    fn name(self) -> &'static str {
        SIGNALS.iter().find(|(_, signal)| *signal == self.0).map_or("USR1", |(name, _)| name)
    }
}

/// A name that is not such a signal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignalError {
    /// No script can handle it.
    #[error("no program can handle {0}; write a signal on which the script saves, such as USR1")]
    Uncatchable(String),
    /// There is no such signal.
    #[error("unknown signal `{name}`; {suggestion}")]
    Unknown {
        /// The name.
        name: String,
        /// The nearest name, or all of them.
        suggestion: String,
    },
}

fn bare(name: &str) -> String {
    let upper = name.trim().to_ascii_uppercase();
    upper.strip_prefix("SIG").map_or(upper.clone(), str::to_owned)
}

impl TryFrom<String> for SignalName {
    type Error = SignalError;

    fn try_from(text: String) -> Result<Self, SignalError> {
        let name = bare(&text);
        if matches!(name.as_str(), "KILL" | "STOP") {
            return Err(SignalError::Uncatchable(name));
        }
        let alias = if name == "ALRM" { "ALARM" } else { &name };
        let found = SIGNALS.iter().find(|(known, _)| *known == alias);
        found.map(|(_, signal)| Self(*signal)).ok_or_else(|| {
            let suggestion = suggest(&name, &SIGNALS.map(|(name, _)| name));
            SignalError::Unknown { name: text, suggestion }
        })
    }
}

impl From<SignalName> for String {
    fn from(signal: SignalName) -> Self {
        signal.name().to_owned()
    }
}

impl fmt::Display for SignalName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SIG{}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::SignalName;
    use rustix::process::Signal;

    #[test]
    fn signals_are_known_by_their_names() {
        for (text, signal) in [("USR1", Signal::USR1), ("SIGUSR2", Signal::USR2), ("term", Signal::TERM)] {
            assert_eq!(SignalName::try_from(text.to_owned()).unwrap().signal(), signal, "{text}");
        }
        let written = String::from(SignalName::try_from("SIGUSR1".to_owned()).unwrap());
        assert_eq!(written, "USR1");
        for (text, message) in [
            ("USR3", "unknown signal `USR3`; did you mean `USR1`?"),
            ("KILL", "no program can handle KILL; write a signal on which the script saves, such as USR1"),
        ] {
            assert_eq!(SignalName::try_from(text.to_owned()).unwrap_err().to_string(), message);
        }
    }
}
