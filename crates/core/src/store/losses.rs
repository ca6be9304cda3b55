//! The losses with which the first loss of a resumed attempt is compared.

use super::database::open_reader;
use super::run_dir::RunDir;
use crate::protocol::resumed::LossesBefore;
use rusqlite::{Connection, OptionalExtension};

/// Most losses up to the checkpoint.
const MOST: i64 = 20;
/// Steps before the checkpoint in which they are looked for.
const REACH: i64 = 10_000;

/// Returns the first loss of a run, and the last ones up to a step.
///
/// # Errors
/// Returns an error when `SQLite` fails.
pub fn losses_before(run: &RunDir, step: u64) -> rusqlite::Result<LossesBefore> {
    let connection = open_reader(&run.file("run.db"))?;
    let first = "SELECT loss FROM steps WHERE loss IS NOT NULL AND attempt =
                 (SELECT MIN(id) FROM attempts WHERE from_step IS NULL) ORDER BY step LIMIT 1";
    let first = connection.query_row(first, [], |row| row.get(0)).optional()?;
    let newest = newest_rows(&connection, i64::try_from(step).unwrap_or(i64::MAX))?;
    let gaps = newest.windows(2).map(|pair| pair[0].0.abs_diff(pair[1].0));
    let interval = gaps.max().unwrap_or(1);
    Ok(LossesBefore { first, last: newest.into_iter().map(|(_, loss)| loss).collect(), interval })
}

/// Returns step and loss of the newest rows up to a step, of the newest attempt that has any.
fn newest_rows(connection: &Connection, step: i64) -> rusqlite::Result<Vec<(i64, f64)>> {
    let mut attempts = connection.prepare("SELECT id FROM attempts ORDER BY id DESC")?;
    let mut rows = connection.prepare(
        "SELECT step, loss FROM steps WHERE attempt = ?1 AND step <= ?2 AND step > ?2 - ?3 AND loss IS NOT NULL
         ORDER BY step DESC LIMIT ?4",
    )?;
    let attempts: Vec<i64> = attempts.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for attempt in attempts {
        let found = rows.query_map([attempt, step, REACH, MOST], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let found: Vec<(i64, f64)> = found.collect::<rusqlite::Result<_>>()?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::losses_before;
    use crate::protocol::resumed::LossesBefore;
    use crate::protocol::rows::StepRow;
    use crate::store::batch::{AttemptRow, Batch};
    use crate::store::run_dir::RunDir;
    use crate::store::writer::Writer;

    #[test]
    fn the_losses_are_those_up_to_the_checkpoint_of_the_attempt_that_went_there_last() {
        let dir = tempfile::TempDir::new().unwrap();
        std::fs::write(dir.path().join("run.yaml"), "").unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        let mut batch = Batch::default();
        let mut add = |attempt: u64, from_step: Option<u64>, losses: &[(u64, Option<f64>)]| {
            batch.attempts.insert(attempt, AttemptRow { id: attempt, from_step, ..AttemptRow::default() });
            let row =
                |(step, loss): &(u64, Option<f64>)| StepRow { attempt, step: *step, loss: *loss, ..StepRow::default() };
            batch.steps.extend(losses.iter().map(row));
        };
        add(1, None, &[(1, None), (10, Some(4.0)), (20, Some(3.0)), (30, Some(2.0))]);
        add(2, Some(20), &[(30, Some(2.5)), (35, None), (50, Some(1.5)), (60, Some(1.0))]);
        add(3, Some(50), &[]);
        Writer::open(&run.file("run.db")).unwrap().append(&batch).unwrap();
        let wanted = |last: &[f64], interval| LossesBefore { first: Some(4.0), last: last.to_vec(), interval };
        assert_eq!(losses_before(&run, 50).unwrap(), wanted(&[1.5, 2.5], 20));
        assert_eq!(losses_before(&run, 20).unwrap(), wanted(&[3.0, 4.0], 10));
        assert_eq!(losses_before(&run, 5).unwrap(), wanted(&[], 1));
    }
}
