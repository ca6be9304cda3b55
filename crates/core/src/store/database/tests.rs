use super::{WITHOUT_LOG, check_foreign, is_damage, open_reader, open_writer, open_writer_in};
use crate::protocol::control::StepRow;
use crate::protocol::metrics::{ACCURACY, Metrics};
use crate::store::lock::Lock;
use crate::store::reader::Reader;
use crate::store::writer::{Batch, Writer};
use rusqlite::{Connection, ErrorCode};
use std::path::Path;
use std::time::Duration;

/// The schema of the first version, as it was released.
const FIRST: &str = include_str!("../../../../../tests/data/schema_1.sql");

fn first_store(path: &Path) -> Connection {
    let old = Connection::open(path).unwrap();
    old.execute_batch(FIRST).unwrap();
    let rows = "INSERT INTO steps VALUES (1, 1, 0, 32, 0, 0.5, 0.001, 1.0, 0, 0.1, 9.0, 1000);
                INSERT INTO checkpoints VALUES (1, 32, 'checkpoints/step-000000001', 9, 1000, 1.0, 2.0, 0.25, 1, 1);
                INSERT INTO evals VALUES (1, 1, 1000, '{\"step\":1,\"samples\":32,\"loss\":0.25,\"accuracy\":0.5}');";
    old.execute_batch(rows).unwrap();
    old
}

#[test]
fn a_store_of_the_first_version_is_read_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.db");
    drop(first_store(&path));
    let before = std::fs::read(&path).unwrap();
    let reader = Reader { connection: open_reader(&path).unwrap() };
    let checkpoints = reader.checkpoints().unwrap();
    assert_eq!((checkpoints.len(), checkpoints[0].eval_loss, checkpoints[0].proven), (1, Some(0.25), false));
    let mut rows = Vec::new();
    reader.each_step(|row| rows.push(row)).unwrap();
    assert_eq!((rows.len(), rows[0].loss, rows[0].lr), (1, Some(0.5), Some(0.001)));
    let mut pieces = 0;
    reader.curve(|_, _| pieces += 1).unwrap();
    let eval = reader.evals().unwrap().remove(0).eval;
    assert_eq!((pieces, eval.loss, eval.value(ACCURACY)), (1, Some(0.25), Some(0.5)));
    assert!(reader.metric_names().unwrap().is_empty());
    assert!(reader.layers(None).unwrap().is_empty() && reader.first_non_finite().is_none());
    drop(reader);
    assert_eq!(std::fs::read(&path).unwrap(), before, "a reader changed the store");
}

#[test]
fn a_store_of_the_first_version_takes_rows_of_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.db");
    // Another process that still has the store open.
    let other = first_store(&path);
    let mut writer = Writer::open(&path).unwrap();
    let metrics = Metrics::from([("tokens_per_s".to_owned(), 1e6)]);
    let row = StepRow { attempt: 1, step: 2, loss: Some(0.4), metrics: metrics.clone(), ..StepRow::default() };
    writer.append(&Batch { steps: vec![row.clone()], ..Batch::default() }).unwrap();
    drop(writer);
    // The second time, there is nothing to bring up to date.
    drop(Writer::open(&path).unwrap());
    let reader = Reader { connection: open_reader(&path).unwrap() };
    let mut rows = Vec::new();
    reader.each_step(|row| rows.push(row)).unwrap();
    assert_eq!((rows.len(), rows[0].lr, &rows[1]), (2, Some(0.001), &row), "no rate, and a metric");
    assert_eq!(reader.checkpoints().unwrap()[0].metrics, Metrics::new());
    let lr: Option<f64> = other.query_row("SELECT lr FROM steps WHERE step = 2", [], |row| row.get(0)).unwrap();
    assert_eq!(lr, None);
    let verdict: String = other.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
}

fn journals(connection: &Connection) -> i64 {
    try_journals(connection).unwrap()
}

fn try_journals(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("SELECT count(*) FROM journal", [], |row| row.get(0))
}

/// A slow disk may exhaust any patience; nothing else may go wrong.
fn is_busy(error: &rusqlite::Error) {
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy), "{error}");
}

const LINE: &str =
    "INSERT INTO journal (time_ms, level, kind, text) VALUES (1, '\"info\"', '\"note\"', hex(randomblob(400)))";

#[test]
fn a_store_gives_its_log_up_in_a_shared_folder_and_gets_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.db");
    let soon = Duration::from_millis(20);
    let (local, logged) = open_writer_in(&path, soon, false).unwrap();
    local.execute(LINE, []).unwrap();
    assert!(logged && dir.path().join("run.db-wal").exists());
    // Another process of this host reads: its place in the log must not vanish.
    let busy = open_writer_in(&path, soon, true).unwrap_err();
    assert_eq!(busy.sqlite_error_code(), Some(ErrorCode::DatabaseBusy), "{busy}");
    drop(local);
    for (shared, lines) in [(true, 1), (true, 2), (false, 3), (true, 4)] {
        let (writer, logged) = open_writer_in(&path, soon, shared).unwrap();
        assert_eq!((logged, journals(&writer)), (!shared, lines));
        writer.execute(LINE, []).unwrap();
        assert_eq!(dir.path().join("run.db-wal").exists(), !shared);
        assert_eq!(journals(&open_reader(&path).unwrap()), lines + 1);
    }
}

#[test]
fn readers_and_the_writer_of_a_rollback_journal_wait_for_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.db");
    // The keeper's own patience; it keeps its rows when that is over, and tries again, as here.
    let (writer, _) = open_writer_in(&path, WITHOUT_LOG, true).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let read = || {
            let mut seen = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let Ok(now) = open_reader(&path).and_then(|reader| try_journals(&reader)).inspect_err(is_busy) else {
                    continue;
                };
                assert!(now % 3 == 0 && now >= seen, "half a transaction: {now} after {seen}");
                seen = now;
            }
        };
        let readers = [scope.spawn(read), scope.spawn(read)];
        for _ in 0..60 {
            while let Err(error) = writer.execute_batch(&format!("BEGIN IMMEDIATE; {LINE}; {LINE}; {LINE}; COMMIT")) {
                is_busy(&error);
                if !writer.is_autocommit() {
                    writer.execute_batch("ROLLBACK").unwrap();
                }
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    });
    assert_eq!(journals(&open_reader(&path).unwrap()), 180);
}

#[test]
fn a_reader_takes_back_what_a_killed_writer_left_half_written() {
    let (dir, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path().join("run.db");
    let (writer, _) = open_writer_in(&path, Duration::ZERO, true).unwrap();
    writer.execute(LINE, []).unwrap();
    writer.execute_batch(&format!("PRAGMA cache_size = 2; BEGIN; {}", format!("{LINE};").repeat(300))).unwrap();
    // The files as a kill at this moment leaves them; the copy has no lock.
    for name in ["run.db", "run.db-journal"] {
        std::fs::copy(dir.path().join(name), killed.path().join(name)).unwrap();
    }
    let copy = killed.path().join("run.db");
    assert!(std::fs::metadata(&copy).unwrap().len() > 50_000, "nothing was written");
    let files = || ["run.db", "run.db-journal"].map(|name| std::fs::read(killed.path().join(name)).unwrap());
    let before = files();
    // Where locks end at the mount, a living keeper's transaction looks the same.
    let keeper = Lock::take(&killed.path().join("keeper.lock")).unwrap();
    is_busy(&open_reader(&copy).unwrap_err());
    assert!(files() == before, "a reader wrote");
    keeper.release();
    let reader = open_reader(&copy).unwrap();
    assert_eq!(journals(&reader), 1);
    assert!(reader.execute(LINE, []).is_err(), "it still only reads");
}

#[test]
fn the_schema_of_a_store_from_elsewhere_runs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.db");
    let planted = "DROP TABLE journal; CREATE VIEW journal AS
         WITH RECURSIVE endless(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM endless) SELECT id FROM endless;
         CREATE TABLE marks (mark TEXT);
         CREATE TRIGGER on_fact AFTER INSERT ON facts BEGIN INSERT INTO marks VALUES ('ran'); END;";
    drop(open_writer(&path, Duration::ZERO).unwrap());
    Connection::open(&path).unwrap().execute_batch(planted).unwrap();
    let refused = open_reader(&path).unwrap_err().to_string();
    assert!(refused.contains("`journal`, which is no plain table"), "{refused}");
    Connection::open(&path).unwrap().execute_batch("DROP VIEW journal").unwrap();
    let (writer, _) = open_writer(&path, Duration::ZERO).unwrap();
    writer.execute("INSERT INTO facts VALUES ('a', '1')", []).unwrap();
    let marks: i64 = writer.query_row("SELECT count(*) FROM marks", [], |row| row.get(0)).unwrap();
    assert_eq!(marks, 0, "the trigger ran");
}

#[test]
fn a_store_from_elsewhere_is_read_within_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.db");
    let again = |planted: &str| {
        drop(open_writer(&path, Duration::ZERO).unwrap());
        Connection::open(&path).unwrap().execute_batch(planted).unwrap();
    };
    again("ALTER TABLE journal ADD COLUMN more TEXT AS (printf('%.*c', 1000000000, 'x')) VIRTUAL");
    let refused = open_reader(&path).unwrap_err();
    assert!(is_damage(&refused) && refused.to_string().contains("`journal.more` is computed"), "{refused}");
    again(
        "ALTER TABLE journal DROP COLUMN more;
           INSERT INTO journal VALUES (1, 0, NULL, '', '', printf('%.*c', 100000000, 'x'))",
    );
    let reader = Reader { connection: open_reader(&path).unwrap() };
    let refused = reader.journal(1).unwrap_err();
    assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::TooBig), "{refused}");
    // Many texts below the limit of one.
    again(
        "DELETE FROM journal;
           WITH RECURSIVE ids(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < 40)
           INSERT INTO journal SELECT id, 0, NULL, '', '', printf('%.*c', 8000000, 'x') FROM ids",
    );
    let refused = Reader { connection: open_reader(&path).unwrap() }.journal(100).unwrap_err();
    assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::TooBig), "{refused}");
}

#[test]
fn pages_that_are_used_twice_do_not_make_rows_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.db");
    let (writer, _) = open_writer_in(&path, Duration::ZERO, true).unwrap();
    let rows = "WITH RECURSIVE ids(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < 5000)
                INSERT INTO steps SELECT 1, id, 0, id, 0, 0.5, 0.1, 1.0, 0, 1.0, 1.0, 0, NULL FROM ids";
    writer.execute_batch(rows).unwrap();
    let query = "SELECT rootpage FROM sqlite_schema WHERE name = 'steps'";
    let root: u32 = writer.query_row(query, [], |row| row.get(0)).unwrap();
    drop(writer);
    let (mut bytes, page) = (std::fs::read(&path).unwrap(), (root as usize - 1) * 4096);
    assert_eq!(bytes[page], 2, "an interior page of an index");
    let cell = |bytes: &[u8], place: usize| {
        let at = page + 12 + 2 * place;
        page + usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
    };
    let (first, second) = (cell(&bytes, 0), cell(&bytes, 1));
    bytes.copy_within(first..first + 4, second);
    std::fs::write(&path, bytes).unwrap();
    let connection = open_reader(&path).unwrap();
    assert!(is_damage(&check_foreign(&path, &connection).unwrap_err()));
    let refused = Reader { connection }.each_step(|_| {}).unwrap_err();
    assert!(refused.to_string().contains("not in order"), "{refused}");
}

#[test]
fn clean_steps_count_those_without_a_row_and_none_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(&dir.path().join("run.db")).unwrap();
    let mut add = |attempt, step, skipped| {
        let row = StepRow { attempt, step, skipped, ..StepRow::default() };
        writer.append(&Batch { steps: vec![row], ..Batch::default() }).unwrap();
    };
    // Every twentieth step is printed. That of 80 is NaN; a later attempt takes that of 100 again.
    (20..=100).step_by(20).for_each(|step| add(1, step, step == 80));
    (100..=140).step_by(20).for_each(|step| add(2, step, false));
    assert_eq!(writer.clean_steps(30, 140).unwrap(), 90, "10 and 20 up to step 60, three times 20 from step 80 on");
    assert_eq!(writer.clean_steps(140, 140).unwrap(), 0);
    assert_eq!(writer.clean_steps(0, 50).unwrap(), 40);
}
