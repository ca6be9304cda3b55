//! The list that a trial prints at its end.

use crate::cli::line;

/// One item of the checklist.
pub struct Check {
    pub what: &'static str,
    /// Whether it passed; `None` if it could not be measured, or proves nothing.
    pub holds: Option<bool>,
    /// Whether it was measured.
    pub is_measured: bool,
    pub seen: String,
}

/// Creates an item that was measured.
pub fn item(what: &'static str, holds: bool, seen: impl Into<String>) -> Check {
    Check { what, holds: Some(holds), is_measured: true, seen: seen.into() }
}

/// Creates an item that could not be measured.
pub fn unknown(what: &'static str, why: impl Into<String>) -> Check {
    Check { what, holds: None, is_measured: false, seen: why.into() }
}

/// Creates an item that was measured and proves nothing: a remark.
pub fn remark(what: &'static str, seen: impl Into<String>) -> Check {
    Check { what, holds: None, is_measured: true, seen: seen.into() }
}

/// Prints the items; returns how many failed.
pub fn print(checks: &[Check]) -> usize {
    for check in checks {
        let mark = match check.holds {
            Some(true) => "✓",
            Some(false) => "✗",
            None if check.is_measured => "!",
            None => "–",
        };
        line!("{mark} {:<24} {}", check.what, check.seen);
    }
    checks.iter().filter(|check| check.holds == Some(false)).count()
}
