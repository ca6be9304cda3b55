//! Responses to the driver's Xid errors. Numbers and meanings follow NVIDIA's Xid catalogue.

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
    Stop(&'static str),
}

const RESET: &str = "the card needs a reset: end what uses it, then `nvidia-smi --gpu-reset`, or restart the machine \
                     (under WSL2: `wsl --shutdown`, or restart Windows)";
const MEMORY: &str = "the card's memory has errors that cannot be corrected: reset the card or restart the machine; \
                      if it comes back, have the card replaced";
const LOST: &str =
    "the card is gone from the bus: restart the machine; if it comes back, look at power, cooling and seat of the card";

/// Returns the response to an Xid number.
#[must_use]
pub fn answer(xid: u32) -> Answer {
    match xid {
        13 | 31 | 43 | 69 => Answer::Kernels,
        8 | 109 => Answer::Hang,
        79 => Answer::Stop(LOST),
        48 | 64 | 95 | 140 | 143 | 158 => Answer::Stop(MEMORY),
        46 | 62 | 119 | 120 | 154 => Answer::Stop(RESET),
        94 => Answer::Again,
        _ => Answer::Note,
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, answer};

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
                let found = format!("{:?}", answer(*xid));
                assert!(found.starts_with(wanted), "{xid}: {found}");
                if let Answer::Stop(advice) = answer(*xid) {
                    assert!(advice.contains("restart"), "{xid}: {advice}");
                }
            }
        }
    }
}
