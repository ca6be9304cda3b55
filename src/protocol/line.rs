//! One JSON object a line, both ways.

use serde::{Serialize, de::DeserializeOwned};

/// The line for a message, newline included.
///
/// # Errors
/// When the message cannot be written as JSON, which no message of this crate is.
pub fn encode<T: Serialize>(message: &T) -> Result<String, serde_json::Error> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    Ok(line)
}

/// The message a line holds, or none where it holds something else: a log line.
#[must_use]
pub fn decode<T: DeserializeOwned>(line: &str) -> Option<T> {
    let line = line.trim();
    if !line.starts_with('{') {
        return None;
    }
    serde_json::from_str(line).ok()
}
