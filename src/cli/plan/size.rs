//! Parses a memory size on the command line: `16GiB`, `24 GB`, `512M`.

use crate::cli::bad_value::BadValue;
use crate::keeper::sentences;
use std::fmt;
use std::str::FromStr;

/// Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let wrong = || BadValue::MemorySize(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let number: f64 = trimmed[..split].parse().map_err(|_| wrong())?;
        let unit = match trimmed[split..].trim().to_ascii_lowercase().as_str() {
            "gib" | "g" => 1u64 << 30,
            "gb" => 1_000_000_000,
            "mib" | "m" => 1 << 20,
            "mb" => 1_000_000,
            "tib" | "t" => 1 << 40,
            "tb" => 1_000_000_000_000,
            _ => return Err(wrong()),
        };
        let bytes = number * unit as f64;
        (bytes >= 1.0 && bytes < 2f64.powi(60)).then_some(Self(bytes as u64)).ok_or_else(wrong)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&sentences::bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn sizes_are_read_with_their_unit() {
        for (text, bytes) in [
            ("16GiB", 16 << 30),
            ("16 gib", 16 << 30),
            ("24GB", 24_000_000_000),
            ("1.5G", 3 << 29),
            ("512MiB", 512 << 20),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "16", "GiB", "-1GiB", "0GiB", "16KiB", "1.2.3G", "16 GiBs", "inf G", "99999999TB"] {
            let refusal = text.parse::<Size>().unwrap_err().to_string();
            assert!(refusal.contains("16GiB") && refusal.contains(text), "{refusal}");
        }
    }
}
