//! Responses to the driver's Xid errors. Numbers and meanings follow NVIDIA's Xid catalogue.

use super::response::Advice;

/// Response to an Xid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Record it and continue.
    Note,
    /// Restart unchanged, and report it.
    Again,
    /// Use fewer kernels of our own.
    Kernels,
    /// Restart unchanged once, then use fewer kernels of our own.
    Hang,
    /// No rung helps: stop, keep everything, and give this advice.
    Stop(Advice),
}

/// Returns the response to an Xid number.
#[must_use]
pub fn answer_xid(xid: u32) -> Answer {
    match xid {
        13 | 31 | 43 | 69 => Answer::Kernels,
        8 | 109 => Answer::Hang,
        79 => Answer::Stop(Advice::OffTheBus),
        48 | 64 | 95 | 140 | 143 | 158 => Answer::Stop(Advice::GpuMemory),
        46 | 62 | 119 | 120 | 154 => Answer::Stop(Advice::ResetGpu),
        94 => Answer::Again,
        _ => Answer::Note,
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, answer_xid};

    #[test]
    fn every_number_of_the_table_has_its_answer() {
        for (numbers, wanted) in [
            (&[13, 31, 43, 69][..], "Kernels"),
            (&[8, 109], "Hang"),
            (&[46, 48, 62, 64, 79, 95, 119, 120, 140, 143, 154, 158], "Stop"),
            (&[94], "Again"),
            (&[45, 63, 92, 0, 9999], "Note"),
        ] {
            for xid in numbers {
                let found = format!("{:?}", answer_xid(*xid));
                assert!(found.starts_with(wanted), "{xid}: {found}");
                if let Answer::Stop(advice) = answer_xid(*xid) {
                    let advice = advice.sentence("downshift resume");
                    assert!(advice.contains("restart"), "{xid}: {advice}");
                }
            }
        }
    }
}
