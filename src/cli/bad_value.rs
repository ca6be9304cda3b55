//! Values of options that do not parse. clap names the option; the message says what to write.

/// A value that does not parse.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BadValue {
    /// Not a number of this range.
    #[error("write a number from {least} to {most}")]
    Number {
        /// The smallest allowed number.
        least: f64,
        /// The largest allowed number.
        most: f64,
    },
    /// Not a factor.
    #[error("a factor is a number above 0, such as 0.1")]
    Factor,
    /// Not a duration.
    #[error("`{0}` is not a duration; write 90s, 2m or 1h")]
    Duration(String),
    /// Not a memory size.
    #[error("`{0}` is not a memory size; write a number and a unit, such as 16GiB or 24GB")]
    MemorySize(String),
    /// Not the size of a picture.
    #[error("write WIDTHxHEIGHT, each from 200 to 10000, such as 1200x700")]
    PictureSize,
    /// Not a range of steps.
    #[error("write FROM..TO, FROM.. or ..TO, the lower step first, such as 1000..5000")]
    StepRange,
    /// Not a knob and its value.
    #[error("write PATH=VALUE, such as training.epochs=2")]
    Override,
}

/// Parses a number of this range.
pub fn parse_number(text: &str, least: f64, most: f64) -> Result<f64, BadValue> {
    let number = text.parse::<f64>().ok().filter(|number| (least..=most).contains(number));
    number.ok_or(BadValue::Number { least, most })
}

/// Parses a knob and its value.
pub fn parse_override(text: &str) -> Result<(String, String), BadValue> {
    let (path, value) = text.split_once('=').ok_or(BadValue::Override)?;
    Ok((path.trim().to_owned(), value.trim().to_owned()))
}
