//! Probe readings over the whole run, thinned like the curve. A missing reading is a gap.

use crate::protocol::probe::{Gpu, Reading};
use crate::series::pyramid::{Pyramid, Row};
use crate::series::{Axis, Column, Extent, Series};
use crate::store::summary::Spot;
use std::ops::Range;

/// A metric of the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gauge {
    /// Device memory used by all processes, GiB.
    Vram,
    /// Device memory used by the worker, GiB.
    WorkerVram,
    /// GPU temperature, °C.
    Temperature,
    /// Percent of the time with a kernel running.
    Utilisation,
    /// GPU power, W.
    Power,
    /// Host memory used by all processes, GiB.
    Ram,
    /// Host memory used by the worker, GiB.
    WorkerRam,
    /// CPU use, percent of all cores.
    Cpu,
}

const GAUGES: usize = 8;
/// Bytes in a GiB.
pub const GIB: f64 = (1u64 << 30) as f64;

/// All readings, the newest in full.
#[derive(Debug, Clone, Default)]
pub struct Readings {
    rows: Pyramid<GAUGES>,
    /// Metrics that any reading had.
    reported: [bool; GAUGES],
}

impl Readings {
    /// Adds a reading.
    pub fn push(&mut self, reading: &Reading, spot: Spot) {
        let values = gauge_values(reading);
        for (reported, value) in self.reported.iter_mut().zip(values) {
            *reported |= value.is_finite();
        }
        self.rows.push(Row { spot, values, skipped: false });
    }

    /// Returns the position of a time on a curve; never before the newest one added.
    #[must_use]
    pub fn spot(&self, series: &Series, time_ms: i64) -> Spot {
        let near = series.at(Axis::Time, time_ms as f64).map(|at| at.spot()).unwrap_or_default();
        let last = self.rows.last().unwrap_or_default();
        Spot { step: near.step.max(last.step), samples: near.samples.max(last.samples), time_ms }
    }

    /// Returns a window of an axis in `width` columns.
    #[must_use]
    pub fn columns(&self, gauge: Gauge, axis: Axis, window: Range<f64>, width: usize) -> Vec<Column> {
        self.rows.columns(gauge as usize, axis, window, width)
    }

    /// Returns the value nearest to a position.
    #[must_use]
    pub fn at(&self, gauge: Gauge, axis: Axis, place: f64) -> Option<Extent> {
        self.rows.at(axis, place)?.extent(gauge as usize)
    }

    /// Reports whether any reading had the metric.
    #[must_use]
    pub fn has(&self, gauge: Gauge) -> bool {
        self.reported[gauge as usize]
    }

    /// Returns time and value of the newest readings that had the metric, newest first.
    pub fn newest(&self, gauge: Gauge) -> impl Iterator<Item = (i64, f64)> + '_ {
        let known = move |row: &Row<GAUGES>| (row.spot.time_ms, f64::from(row.values[gauge as usize]));
        self.rows.newest().map(known).filter(|(_, value)| value.is_finite())
    }
}

fn gauge_values(reading: &Reading) -> [f32; GAUGES] {
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
