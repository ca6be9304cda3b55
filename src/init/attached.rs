//! The batches of a plain loop that `downshift.attach` keeps: `run.batches(dataset, epochs=3, batch_size=32)`.

use super::program::Program;
use super::python::Literal;

/// The names of the package: its own, and the short one that only processes under downshift have.
const PACKAGES: [&str; 2] = ["downshift_cockpit", "downshift"];

/// The batches that a script asks its companion for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// The micro-batch, if the source names it.
    pub micro_batch: Option<i64>,
    /// The micro-batches in a step, if the source names them; 1 unless it says otherwise.
    pub accumulation: Option<i64>,
}

impl Attached {
    /// Finds them; none in a script that does not call `downshift.attach`.
    #[must_use]
    pub fn find(program: &Program) -> Option<Self> {
        if !is_attached(program) {
            return None;
        }
        let Some((place, call)) = program.calls("batches").next() else {
            return Some(Self { micro_batch: None, accumulation: None });
        };
        let number = |name: &str| {
            call.keyword(name).map(|expr| match program.value(place, expr) {
                Some(Literal::Int(number)) if number > 0 => Some(number),
                _ => None,
            })
        };
        Some(Self {
            micro_batch: number("batch_size").flatten(),
            accumulation: number("accumulation").unwrap_or(Some(1)),
        })
    }
}

/// Reports whether a script calls `downshift.attach`.
#[must_use]
pub fn is_attached(program: &Program) -> bool {
    PACKAGES.iter().any(|name| program.mentions(name)) && program.mentions("attach")
}

#[cfg(test)]
mod tests {
    use super::Attached;
    use crate::init::program::Program;

    #[test]
    fn the_batches_of_a_kept_loop_are_read() {
        let of = |call: &str| {
            let text = format!(
                "import downshift\nSIZE = 64\nrun = downshift.attach(model)\nfor batch in run.{call}:\n    pass\n"
            );
            Attached::find(&Program::of(&text)).map(|found| (found.micro_batch, found.accumulation))
        };
        assert_eq!(of("batches(data, epochs=3, batch_size=32)"), Some((Some(32), Some(1))));
        assert_eq!(of("batches(data, epochs=3, batch_size=SIZE, accumulation=4)"), Some((Some(64), Some(4))));
        assert_eq!(of("batches(data, batch_size=options.batch, accumulation=options.n)"), Some((None, None)));
        assert_eq!(of("batches(loader)"), Some((None, Some(1))));
        let together = "import downshift\nEPOCHS, (SIZE, N) = 40, (16, 2)\nBATCH, RATE = 16, 1e-3\nrun = downshift.attach(model)\n\
                        for batch in run.batches(data, epochs=EPOCHS, batch_size=BATCH):\n    pass\n";
        let found = Attached::find(&Program::of(together)).unwrap();
        assert_eq!(found.micro_batch, Some(16), "constants that are assigned together");
        assert_eq!(Attached::find(&Program::of("for batch in run.batches(data, batch_size=32):\n    pass\n")), None);
    }
}
