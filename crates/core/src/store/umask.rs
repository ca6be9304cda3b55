//! The umask of the user. Nothing that this program writes may be changed by other users, whatever the umask; the command
//! gets the user's own one back, since its files are the user's business.

use rustix::fs::Mode;
use rustix::process::umask;
use std::env;
use std::sync::OnceLock;

/// The variable by which the processes of this program learn the user's umask.
pub const VARIABLE: &str = "DOWNSHIFT_UMASK";
/// Permissions that are taken from others: a user who wants more privacy keeps it.
const CLOSED: Mode = Mode::WGRP.union(Mode::WOTH);

static OF_USER: OnceLock<Mode> = OnceLock::new();

/// Takes the right to write from the group and from others, for all that this process creates. Called once, before the
/// process has other threads.
pub fn narrow() {
    let found = umask(CLOSED);
    umask(found | CLOSED);
    let passed = env::var(VARIABLE).ok().and_then(|text| parse(&text));
    OF_USER.get_or_init(|| passed.unwrap_or(found));
}

/// Returns the variable for a process of this program that may start the command.
#[must_use]
pub fn for_child() -> Option<(&'static str, String)> {
    OF_USER.get().map(|mask| (VARIABLE, format!("{:04o}", mask.as_raw_mode())))
}

/// Sets the user's umask: this process becomes the command, or starts it and writes nothing else.
pub fn restore() {
    if let Some(mask) = OF_USER.get() {
        umask(*mask);
    }
}

fn parse(text: &str) -> Option<Mode> {
    let bits = u32::from_str_radix(text, 8).ok()?;
    Some(Mode::from_raw_mode(bits)).filter(|mask| Mode::from_raw_mode(0o777).contains(*mask))
}

#[cfg(test)]
mod tests {
    use super::parse;
    use rustix::fs::Mode;

    #[test]
    fn only_permission_bits_are_taken_from_the_variable() {
        assert_eq!(parse("0002").map(Mode::as_raw_mode), Some(0o002));
        assert_eq!(parse("077").map(Mode::as_raw_mode), Some(0o077));
        for text in ["", "8", "-2", "1777", "99999999999"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
