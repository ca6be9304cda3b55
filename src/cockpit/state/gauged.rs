//! What the probe measured over the whole run, thinned as the curve is. A reading that is missing
//! is a gap.

use crate::cockpit::series::pyramid::{Pyramid, Row};
use crate::cockpit::series::{Axis, Column, Extent, Series};
use crate::protocol::probe::{Gpu, Reading};
use crate::store::summary::Spot;
use std::ops::Range;

/// A figure of the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gauge {
    /// Device memory in use by whomever, GiB.
    Vram,
    /// Device memory in use by the worker, GiB.
    WorkerVram,
    /// °C.
    Temperature,
    /// Percent of the time with a kernel running.
    Utilisation,
    /// W.
    Power,
    /// Host memory in use by whomever, GiB.
    Ram,
    /// Host memory in use by the worker, GiB.
    WorkerRam,
    /// Percent of all cores.
    Cpu,
}

const GAUGES: usize = 8;
/// Bytes in a GiB.
pub const GIB: f64 = (1u64 << 30) as f64;

/// Every reading, newest in full.
#[derive(Debug, Clone, Default)]
pub struct Gauged {
    rows: Pyramid<GAUGES>,
}

impl Gauged {
    /// Takes a reading in.
    pub fn push(&mut self, reading: &Reading, spot: Spot) {
        self.rows.push(Row { spot, values: figures(reading), skipped: false });
    }

    /// Where on a curve a time lies; never before what is here already.
    #[must_use]
    pub fn spot(&self, series: &Series, time_ms: i64) -> Spot {
        let near = series.at(Axis::Time, time_ms as f64).map(|at| at.spot()).unwrap_or_default();
        let last = self.rows.last().unwrap_or_default();
        Spot { step: near.step.max(last.step), samples: near.samples.max(last.samples), time_ms }
    }

    /// A window of an axis in `width` columns.
    #[must_use]
    pub fn columns(&self, gauge: Gauge, axis: Axis, window: Range<f64>, width: usize) -> Vec<Column> {
        self.rows.columns(gauge as usize, axis, window, width)
    }

    /// The figure nearest to a place.
    #[must_use]
    pub fn at(&self, gauge: Gauge, axis: Axis, place: f64) -> Option<Extent> {
        self.rows.at(axis, place)?.extent(gauge as usize)
    }

    /// Whether the figure was ever known among the newest readings.
    #[must_use]
    pub fn has(&self, gauge: Gauge) -> bool {
        self.rows.newest().take(600).any(|row| row.values[gauge as usize].is_finite())
    }

    /// Time and value of the newest readings that had the figure, newest first.
    pub fn newest(&self, gauge: Gauge) -> impl Iterator<Item = (i64, f64)> + '_ {
        let known = move |row: &Row<GAUGES>| (row.spot.time_ms, f64::from(row.values[gauge as usize]));
        self.rows.newest().map(known).filter(|(_, value)| value.is_finite())
    }
}

fn figures(reading: &Reading) -> [f32; GAUGES] {
    let gpu = |value: fn(&Gpu) -> Option<f64>| reading.gpu.as_ref().ok().and_then(value);
    let gib = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / GIB);
    let host = &reading.host;
    [
        gpu(|gpu| gpu.vram_used_bytes.get().map(|bytes| bytes as f64 / GIB)),
        gpu(|gpu| gpu.vram_worker_bytes.get().map(|bytes| bytes as f64 / GIB)),
        gpu(|gpu| gpu.temperature_c.get()),
        gpu(|gpu| gpu.utilisation.get().map(|share| share * 100.0)),
        gpu(|gpu| gpu.power_w.get()),
        gib(host.ram_used_bytes.get()),
        gib(host.ram_worker_bytes.get()),
        host.cpu.get().map(|share| share * 100.0),
    ]
    .map(|value| value.map_or(f32::NAN, |value| value as f32))
}
