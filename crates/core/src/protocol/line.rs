//! Encodes messages as lines: one JSON object per line, in both directions.

use serde::{Serialize, de::DeserializeOwned};

/// Encodes a message as a line, newline included.
///
/// # Errors
/// Returns an error when the message cannot be written as JSON; every message of this crate can.
pub fn encode<T: Serialize>(message: &T) -> Result<String, serde_json::Error> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    Ok(line)
}

/// Decodes the message in a line; none when the line holds anything else, such as a log line.
#[must_use]
pub fn decode<T: DeserializeOwned>(line: &str) -> Option<T> {
    let line = line.trim();
    if !line.starts_with('{') {
        return None;
    }
    serde_json::from_str(line).ok()
}
