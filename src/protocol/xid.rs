//! Xid 154: the driver changed its requested recovery action; the new one is in the text.

/// The Xid number.
pub const ACTION: u32 = 154;

/// Reports whether this kernel log line is an Xid that withdraws the requested action, so that nothing
/// needs to be done: `… changed from 0x1 (GPU Reset Required) to 0x0 (None)`.
#[must_use]
pub fn asks_for_nothing(number: u32, text: &str) -> bool {
    number == ACTION && action(text).is_some_and(|action| action.eq_ignore_ascii_case("none"))
}

/// Returns the driver's requested action: the text in the last brackets of the line.
#[must_use]
pub fn action(text: &str) -> Option<&str> {
    let (before, _) = text.rsplit_once(')')?;
    let (_, action) = before.rsplit_once('(')?;
    (!action.starts_with("PCI:")).then_some(action)
}

#[cfg(test)]
mod tests {
    use super::{action, asks_for_nothing};

    #[test]
    fn the_new_action_is_read_from_the_text() {
        let line =
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)";
        assert!(asks_for_nothing(154, line) && !asks_for_nothing(79, line));
        let worse = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)";
        assert_eq!(action(worse), Some("Node Reboot Required"));
        assert!(!asks_for_nothing(154, worse));
        let bare = "NVRM: Xid (PCI:0000:01:00): 154";
        assert_eq!((action(bare), asks_for_nothing(154, bare)), (None, false));
    }
}
