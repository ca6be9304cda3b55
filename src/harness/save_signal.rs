//! Asks the command to save, by the signal that the run file names.

use crate::process_tree::Process;
use rustix::process::Signal;
use std::collections::HashSet;
use std::fs;

/// Signals every process that handles the signal, and returns their number. A process without a handler would die: a
/// launcher, or one that is still starting. A process whose parent is signalled is a helper, such as a data loader, and
/// has only inherited the handler.
pub fn ask_to_save(members: &[&Process], signal: Signal) -> usize {
    let catching: Vec<&Process> = members.iter().filter(|process| catches(process.pid, signal)).copied().collect();
    let asked = topmost(&catching);
    asked.iter().filter(|process| process.signal(signal)).count()
}

fn topmost<'a>(catching: &[&'a Process]) -> Vec<&'a Process> {
    let numbers: HashSet<u32> = catching.iter().map(|process| process.pid).collect();
    catching.iter().filter(|process| !numbers.contains(&process.parent)).copied().collect()
}

pub(super) fn catches(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    caught_signals(&status).is_some_and(|caught| caught >> (signal.as_raw() - 1) & 1 == 1)
}

fn caught_signals(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::{caught_signals, topmost};
    use crate::process_tree::Process;

    #[test]
    fn a_launcher_is_not_asked_and_neither_are_helpers_of_a_rank() {
        let process = |pid, parent| Process { pid, parent, started: 0, cpu_ticks: 0, token: None };
        let (first, second, helper) = (process(11, 10), process(12, 10), process(13, 12));
        let asked: Vec<u32> = topmost(&[&first, &second, &helper]).into_iter().map(|process| process.pid).collect();
        assert_eq!(asked, [11, 12]);
        assert_eq!(caught_signals("Name:\tx\nSigCgt:\t0000000000000202\n"), Some(0x202));
        assert_eq!(caught_signals("Name:\tx\n"), None);
    }
}
