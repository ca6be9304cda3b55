//! NVIDIA's Xid errors, and their lines in the kernel's log.

use super::TABLE;
use super::response::Response;
use serde::Deserialize;

/// The number of a changed recovery action; the new one is in the text.
pub const ACTION: u32 = 154;

/// The row of an Xid error.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    /// Its number.
    pub number: u32,
    /// The keeper's response.
    pub response: Response,
    /// The meaning.
    pub meaning: String,
    /// Advice for the user.
    pub advice: String,
}

/// Returns all known numbers.
#[must_use]
pub fn all() -> &'static [Xid] {
    &TABLE.xids
}

/// Returns the row of a number.
#[must_use]
pub fn find(number: u32) -> Option<&'static Xid> {
    all().iter().find(|xid| xid.number == number)
}

/// Returns the meaning of a number.
#[must_use]
pub fn meaning(number: u32) -> &'static str {
    find(number).map_or("not in the table of Xid errors", |xid| &xid.meaning)
}

/// Returns the response to a number: an unknown one says nothing.
#[must_use]
pub fn respond(number: u32) -> Response {
    find(number).map_or(Response::Note, |xid| xid.response)
}

/// Returns the response to an Xid with its line in the kernel's log.
#[must_use]
pub fn respond_to_line(number: u32, text: &str) -> Response {
    if asks_for_nothing(number, text) { Response::Note } else { respond(number) }
}

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
    use super::{Response, action, all, asks_for_nothing, respond, respond_to_line};

    #[test]
    fn the_new_action_is_read_from_the_text() {
        let line =
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)";
        assert!(asks_for_nothing(154, line) && !asks_for_nothing(79, line));
        assert_eq!(respond_to_line(154, line), Response::Note);
        let worse = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)";
        assert_eq!(action(worse), Some("Node Reboot Required"));
        assert!(!asks_for_nothing(154, worse));
        assert_eq!(respond_to_line(154, worse), Response::Stop);
        let bare = "NVRM: Xid (PCI:0000:01:00): 154";
        assert_eq!((action(bare), asks_for_nothing(154, bare)), (None, false));
    }

    /// The actions of NVIDIA's own catalogue: its "reset GPU", "restart machine", "contact support" and workflows stop a run.
    #[test]
    fn every_number_of_nvidias_table_has_its_response() {
        for (numbers, wanted) in [
            (&[13, 31, 43, 69, 137][..], "Relieve(Kernels)"),
            (&[8, 109], "AgainThen(Kernels)"),
            (
                &[46, 48, 61, 62, 64, 74, 79, 95, 119, 120, 140, 143, 144, 145, 146, 147, 148, 149, 150, 154, 158],
                "Stop",
            ),
            (&[32, 68, 94], "Again"),
            (&[45, 63, 92, 0, 9999], "Note"),
        ] {
            for xid in numbers {
                assert_eq!(format!("{:?}", respond(*xid)), wanted, "{xid}");
            }
        }
        assert!(all().is_sorted_by(|one, next| one.number < next.number), "each number once, in order");
    }
}
