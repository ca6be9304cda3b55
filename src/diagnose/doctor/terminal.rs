//! Checks tmux and the terminal.

use super::check::{Check, run_program};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(3);

/// Runs all terminal checks.
pub fn checks() -> Vec<Check> {
    let truecolor = std::env::var("COLORTERM").is_ok_and(|value| value == "truecolor" || value == "24bit");
    if std::env::var_os("TMUX").is_none() {
        let text = if truecolor { "24-bit colour" } else { "256 colours; COLORTERM=truecolor would give 24-bit ones" };
        return vec![Check::ok("terminal", format!("not inside tmux, {text}"))];
    }
    let version = run_program(Command::new("tmux").arg("-V"), LIMIT).map_or_else(String::new, |(_, text)| text);
    let ask = |scope: &str, name: &str| {
        run_program(Command::new("tmux").args(["show-options", scope, name]), LIMIT).map(|(_, text)| text)
    };
    let passthrough = ask("-gwv", "allow-passthrough").unwrap_or_default();
    let focus = ask("-gv", "focus-events").or_else(|| ask("-sv", "focus-events")).unwrap_or_default();
    let focus = if focus.is_empty() { ask("-sv", "focus-events").unwrap_or_default() } else { focus };
    let features = ask("-sv", "terminal-features").unwrap_or_default();
    let overrides = ask("-sv", "terminal-overrides").unwrap_or_default();
    let escape = ask("-sv", "escape-time").unwrap_or_default();
    let rgb = features.contains("RGB") || overrides.contains("Tc") || overrides.contains("RGB");
    judge(&Seen { version, passthrough, focus, rgb, truecolor, escape })
}

/// The settings that tmux reports.
struct Seen {
    version: String,
    passthrough: String,
    focus: String,
    rgb: bool,
    truecolor: bool,
    escape: String,
}

fn judge(seen: &Seen) -> Vec<Check> {
    let mut checks = vec![if seen.version.is_empty() {
        Check::warn("tmux", "tmux does not answer", "is `tmux` on the path?")
    } else {
        Check::ok("tmux", seen.version.clone())
    }];
    checks.push(if seen.rgb && seen.truecolor {
        Check::ok("tmux colours", "24-bit")
    } else {
        Check::warn(
            "tmux colours",
            "256 colours",
            "for 24-bit: `set -as terminal-features ',*:RGB'` in ~/.tmux.conf and COLORTERM=truecolor",
        )
    });
    checks.push(match seen.passthrough.as_str() {
        "on" | "all" => Check::ok("tmux passing", "allow-passthrough is on"),
        _ => Check::ok("tmux passing", "allow-passthrough is off (not needed: the bell passes anyway)"),
    });
    checks.push(if seen.focus == "on" {
        Check::ok("tmux focus", "focus-events is on")
    } else {
        Check::warn("tmux focus", "focus-events is off", "`set -g focus-events on` lets the cockpit pause while hidden")
    });
    if seen.escape.parse::<u32>().is_ok_and(|ms| ms > 50) {
        let text = format!("escape-time is {} ms", seen.escape);
        checks.push(Check::warn("tmux keys", text, "`set -sg escape-time 10` makes Esc respond at once"));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::{Seen, judge};
    use crate::diagnose::doctor::check::Severity;

    #[test]
    fn each_setting_has_its_line_and_its_fix() {
        let good = Seen {
            version: "tmux 3.5a".into(),
            passthrough: "on".into(),
            focus: "on".into(),
            rgb: true,
            truecolor: true,
            escape: "10".into(),
        };
        assert!(judge(&good).iter().all(|check| check.verdict == Severity::Ok));
        let poor = Seen { focus: "off".into(), rgb: false, escape: "500".into(), ..good };
        let warned: Vec<_> = judge(&poor).into_iter().filter(|check| check.verdict == Severity::Warn).collect();
        assert_eq!(
            warned.iter().map(|check| check.name).collect::<Vec<_>>(),
            ["tmux colours", "tmux focus", "tmux keys"]
        );
        assert!(warned.iter().all(|check| check.fix.contains("set -")));
    }
}
