//! Everything that a report says, read from the store once.

use super::Taken;
use crate::export::ExportError;
use crate::export::plot::{self, Loaded};
use crate::format::age;
use crate::protocol::cause::Cause;
use crate::protocol::control::{CheckpointRow, JournalRow, Status};
use crate::protocol::probe::Reading;
use crate::series::layers::LayerHistory;
use crate::store::batch::AttemptRow;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::untrusted::file::{self, Limit};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::collections::BTreeMap;
use std::fs;

/// Newest journal lines in a report.
pub const JOURNAL: usize = 5000;
/// Characters of the run file in a report.
const CONFIG: usize = 256 << 10;

/// The facts of a report.
pub struct Facts {
    /// The run's name.
    pub name: String,
    /// Its status.
    pub status: Option<Status>,
    /// Its curve and evaluations.
    pub loaded: Loaded,
    /// Its attempts, oldest first.
    pub attempts: Vec<AttemptRow>,
    /// Why attempts ended, by attempt.
    pub causes: BTreeMap<u64, Cause>,
    /// All checkpoints, oldest first.
    pub checkpoints: Vec<CheckpointRow>,
    /// The newest lines of the journal, oldest first.
    pub journal: Vec<JournalRow>,
    /// The model's layers at its evaluations.
    pub layers: LayerHistory,
    /// The newest reading of the machine.
    pub reading: Option<Reading>,
    /// The run file, as far as it can be read.
    pub config: Option<String>,
    /// How times are written.
    pub times: Times,
}

impl Facts {
    /// Reads the facts of a run.
    pub fn read(run: &RunDir, status: Option<Status>, taken: &Taken) -> Result<Self, ExportError> {
        // A run from elsewhere could show files of the reader.
        run.refuse_links()?;
        let loaded = plot::load(run)?;
        let reader = Reader::open_begun(run)?;
        let query_failed = |source| ExportError::query(run, source);
        Ok(Self {
            name: run.name(),
            status: status.or_else(|| live_status(run)),
            loaded,
            attempts: reader.attempts().map_err(query_failed)?,
            causes: reader.causes().into_iter().collect(),
            checkpoints: reader.checkpoints().map_err(query_failed)?,
            journal: reader.journal(JOURNAL).map_err(query_failed)?,
            layers: LayerHistory::new(reader.layers(None).map_err(query_failed)?, reader.first_non_finite()),
            reading: reader.samples(1).map_err(query_failed)?.pop().map(|row| row.reading),
            config: read_config(run).map(cut_config),
            times: Times { now_ms: taken.now_ms, zone: taken.zone.clone() },
        })
    }

    /// Returns the step of the best checkpoint.
    pub fn best_step(&self) -> Option<u64> {
        self.status.as_ref().and_then(|status| Some(status.best.as_ref()?.step))
    }

    /// Returns the name of a rung.
    pub fn rung_name(&self, rung: usize) -> String {
        let attempt = self.attempts.iter().find(|attempt| attempt.rung == rung);
        let named = self.loaded.rungs.get(rung).or_else(|| attempt.map(|attempt| &attempt.rung_name));
        named.map_or_else(|| format!("rung {rung}"), Clone::clone)
    }

    /// Reports whether the run is over.
    pub fn is_over(&self) -> bool {
        self.status.as_ref().is_none_or(|status| status.state.is_over())
    }

    /// Returns when the run began and when it ended, or now if it continues; Unix milliseconds.
    pub fn span_ms(&self) -> Option<(i64, i64)> {
        let first = self.attempts.first()?.started_ms;
        let last = self.attempts.iter().map(|attempt| self.end_ms(attempt)).max()?;
        Some((first, last.max(first)))
    }

    /// Returns how long the workers lived in all, in milliseconds.
    pub fn worked_ms(&self) -> i64 {
        self.attempts.iter().map(|attempt| self.end_ms(attempt) - attempt.started_ms).sum()
    }

    /// Reports whether an attempt still runs.
    pub fn is_alive(&self, attempt: &AttemptRow) -> bool {
        attempt.ended_ms.is_none() && !self.is_over()
    }

    /// Returns when an attempt ended, or the last sign of it.
    pub fn end_ms(&self, attempt: &AttemptRow) -> i64 {
        let last_sign = || {
            let said = self.journal.last().map(|row| row.time_ms);
            let stepped = self.loaded.series.last().map(|spot| spot.time_ms);
            said.max(stepped).unwrap_or(attempt.started_ms)
        };
        let open = || if self.is_alive(attempt) { self.times.now_ms } else { last_sign() };
        attempt.ended_ms.unwrap_or_else(open).max(attempt.started_ms)
    }

    /// Returns how long an attempt lived.
    pub fn lived(&self, attempt: &AttemptRow) -> String {
        age(self.end_ms(attempt) - attempt.started_ms)
    }
}

/// Reads the run file, unless it is a link.
fn read_config(run: &RunDir) -> Option<String> {
    let path = run.file("run.yaml");
    let is_own = fs::symlink_metadata(&path).is_ok_and(|about| about.is_file());
    is_own.then(|| file::read_text(&path, Limit::Record).ok())?
}

/// Cuts a run file that is too long.
fn cut_config(text: String) -> String {
    match text.char_indices().nth(CONFIG) {
        Some((end, _)) => format!("{}\n… the rest is not shown", &text[..end]),
        None => text,
    }
}

/// Writes times in one time zone.
pub struct Times {
    /// The time of the report, Unix milliseconds.
    pub now_ms: i64,
    pub(super) zone: TimeZone,
}

impl Times {
    /// Returns date and time: `22 Nov 2026, 14:02`.
    pub fn moment(&self, unix_ms: i64) -> String {
        self.write(unix_ms, "%-d %b %Y, %H:%M")
    }

    /// Returns day and time: `22 Nov 14:02:11`.
    pub fn second(&self, unix_ms: i64) -> String {
        self.write(unix_ms, "%-d %b %H:%M:%S")
    }

    /// Returns the offset of these times from UTC: `+01:00`.
    pub fn offset(&self) -> String {
        self.write(self.now_ms, "%:z")
    }

    fn write(&self, unix_ms: i64, form: &str) -> String {
        let time = Timestamp::from_millisecond(unix_ms);
        time.map_or_else(|_| String::new(), |time| time.to_zoned(self.zone.clone()).strftime(form).to_string())
    }
}
