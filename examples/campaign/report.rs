//! The report: one table row per fault.

use std::fmt::Write as _;

/// Loss messages printed per row.
const MAX_LOSSES: usize = 8;

/// One kind of fault and its outcomes.
#[derive(Debug, Default)]
pub struct Row {
    fault: String,
    /// Number of times it was injected.
    pub tried: u64,
    /// Number of times every invariant held.
    pub survived: u64,
    /// Optimizer steps redone at each restart of training.
    pub redone: Vec<u64>,
    /// Whether curve and weights matched the uninterrupted run; None if nothing is trained.
    pub identical: Option<bool>,
    losses: Vec<String>,
}

impl Row {
    /// Creates a row with no attempts yet.
    pub fn new(fault: impl Into<String>) -> Self {
        Self { fault: fault.into(), ..Self::default() }
    }

    /// Counts one attempt; the error says what was lost.
    pub fn add_outcome(&mut self, outcome: Result<(), String>) {
        self.tried += 1;
        match outcome {
            Ok(()) => self.survived += 1,
            Err(loss) => self.losses.push(loss),
        }
    }

    /// Counts one attempt of several on the same run, which all share its outcome.
    pub fn count_shared(&mut self, survived: bool) {
        self.tried += 1;
        self.survived += u64::from(survived);
        self.identical = Some(self.identical.unwrap_or(true) && survived);
    }

    /// Records a loss that belongs to no single fault.
    pub fn add_loss(&mut self, loss: impl Into<String>) {
        self.losses.push(loss.into());
    }

    fn redone_text(&self) -> String {
        let (Some(most), count) = (self.redone.iter().max(), self.redone.len() as f64) else { return "–".to_owned() };
        format!("{:.0} on average, {most} at most", self.redone.iter().sum::<u64>() as f64 / count)
    }
}

/// The rows of the report.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Adds a row.
    pub fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Records that a part could not run, which counts as a loss.
    pub fn add_broken_part(&mut self, part: &str, why: &str) {
        let mut row = Row::new(part);
        row.add_loss(format!("could not run: {why}"));
        self.rows.push(row);
    }

    /// Reports whether nothing was lost.
    pub fn is_clean(&self) -> bool {
        self.rows.iter().all(|row| row.losses.is_empty() && row.survived == row.tried && row.identical != Some(false))
    }

    /// Prints the table as Markdown, then the losses.
    pub fn print(&self, seed: u64) {
        let mut text =
            String::from("\n| fault | tried | survived | steps redone | identical |\n|---|---:|---:|---|---|\n");
        for row in &self.rows {
            let identical = row.identical.map_or("–", |identical| if identical { "yes" } else { "NO" });
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {identical} |",
                row.fault,
                row.tried,
                row.survived,
                row.redone_text()
            );
        }
        for row in &self.rows {
            for loss in row.losses.iter().take(MAX_LOSSES) {
                let _ = writeln!(text, "\nLOST ({}): {loss}", row.fault);
            }
            if row.losses.len() > MAX_LOSSES {
                let _ = writeln!(text, "\n… and {} more under {}", row.losses.len() - MAX_LOSSES, row.fault);
            }
        }
        let verdict = if self.is_clean() { "nothing was lost" } else { "SOMETHING WAS LOST" };
        println!("{text}\n{verdict}; seed {seed}");
    }
}
