//! The named metrics of a step as bytes, in the column `steps.metrics`: for each a `u8` id of the table
//! `metric_names` and a little-endian `f64`.

use super::summary::{MetricId, MetricNames};
use crate::protocol::metrics::Metrics;
use rusqlite::{Connection, params};

/// Bytes of one metric.
const ONE: usize = 1 + size_of::<f64>();

/// Encodes metrics, and adds new names; `None` without any, which takes no room in the store.
#[must_use]
pub fn encode(metrics: &Metrics, names: &mut MetricNames) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(metrics.len() * ONE);
    for (name, value) in metrics {
        if let Some(MetricId(id)) = names.find_or_add(name) {
            bytes.push(id);
            bytes.extend(value.to_le_bytes());
        }
    }
    (!bytes.is_empty()).then_some(bytes)
}

/// Decodes metrics; leaves out those without a name.
#[must_use]
pub fn decode(bytes: &[u8], names: &MetricNames) -> Metrics {
    let one =
        |(id, value): (u8, f64)| Some((names.name(MetricId(id))?.to_owned(), value)).filter(|_| value.is_finite());
    values(bytes).filter_map(one).collect()
}

/// Reports whether every metric has one of the first `names` ids.
#[must_use]
pub fn are_named(bytes: &[u8], names: usize) -> bool {
    values(bytes).all(|(id, _)| usize::from(id) < names)
}

fn values(bytes: &[u8]) -> impl Iterator<Item = (u8, f64)> {
    bytes.chunks_exact(ONE).filter_map(|chunk| {
        let (id, value) = chunk.split_first()?;
        Some((*id, f64::from_le_bytes(value.try_into().ok()?)))
    })
}

/// Reads the names of a run's metrics. Ids count up from 0; a name after a gap is left out.
///
/// # Errors
/// Returns an error when `SQLite` fails.
pub fn read_names(connection: &Connection) -> rusqlite::Result<MetricNames> {
    let mut query = connection.prepare("SELECT id, name FROM metric_names ORDER BY id")?;
    let mut rows = query.query([])?;
    let mut names = Vec::new();
    while let Some(row) = rows.next()? {
        if usize::try_from(row.get::<_, i64>(0)?) != Ok(names.len()) {
            break;
        }
        names.push(row.get(1)?);
    }
    Ok(MetricNames::from_list(names))
}

/// Writes the names beyond the first `known`.
///
/// # Errors
/// Returns an error when `SQLite` fails.
pub fn write_names(connection: &Connection, names: &MetricNames, known: usize) -> rusqlite::Result<()> {
    for (MetricId(id), name) in names.iter().skip(known) {
        connection.execute("INSERT INTO metric_names VALUES (?1, ?2)", params![id, name])?;
    }
    Ok(())
}
