//! Contents of the gauges: values with a ratio, a limit and a note, computed from the state. The panel
//! decides how to draw them.

use crate::cockpit::action::Action;
use crate::cockpit::ratio::Ratio;
use crate::cockpit::state::facts::SKIP_WINDOW;
use crate::cockpit::state::screen::View;
use crate::cockpit::state::{STALE_MS, State};
use crate::cockpit::verdict::Tone;
use crate::format::{age, bytes, bytes_of, count, percent, rate};
use crate::protocol::control::ReadingRow;
use crate::protocol::probe::{Gpu, Host, Throttle};
use unicode_width::UnicodeWidthStr;

/// Meaning of a segment of a bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// The run's own share, or the only one.
    Own,
    /// Other processes' share.
    Others,
}

/// Graphic below the value.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// Parts of a whole, and a limit.
    Bar(Vec<(Ratio, Fill)>, Option<Ratio>),
    /// The newest values.
    Spark(Vec<f64>),
    /// None: the value is unknown.
    Nothing,
}

/// One gauge.
#[derive(Debug, Clone, PartialEq)]
pub struct Meter {
    /// Name.
    pub label: &'static str,
    /// Value with its unit, if known.
    pub value: Option<String>,
    /// The value without its explanation, for a row of its own.
    pub short_value: Option<String>,
    /// Tone to draw it in.
    pub tone: Tone,
    /// Graphic.
    pub body: Body,
    /// Additional notes, most important first.
    pub notes: Vec<String>,
    /// Age of the value, if it is too old to be current.
    pub age: Option<String>,
}

/// Shown in place of an unknown value.
pub const NOT_KNOWN: &str = "n/a";
/// Width of the panel, in columns, on a screen of 80.
pub const NARROWEST: usize = 29;

/// Returns the gauges of a run that is not over, most important first.
#[must_use]
pub fn meters(state: &State) -> Vec<Meter> {
    let mut meters = vec![speed(state), skips(state)];
    let Some(newest) = state.facts.samples.back() else {
        meters.push(unknown("RAM", "no reading yet"));
        return meters;
    };
    let aged = |rows: Vec<Meter>, time_ms: i64| {
        let age = age_if_old(state, time_ms);
        rows.into_iter().map(move |row| Meter { age: age.clone(), ..row })
    };
    // A GPU that stops answering keeps its last reading, shown with its age.
    let of_gpu = state.facts.samples.iter().rev().find_map(|row| Some((row, row.reading.gpu.as_ref().ok()?)));
    let host = &newest.reading.host;
    match of_gpu {
        Some((row, gpu)) => {
            let of_card = [vram(state, gpu), temperature(state, gpu)].into_iter().chain(ecc(state, gpu)).collect();
            meters.extend(aged(of_card, row.time_ms));
            meters.extend(aged(vec![ram_meter(host), cpu(host)], newest.time_ms));
        }
        None => meters.extend(aged(vec![ram_meter(host), cpu(host), disk_meter(state, host)], newest.time_ms)),
    }
    meters
}

/// Returns the age of a value, if it is too old to be current.
fn age_if_old(state: &State, time_ms: i64) -> Option<String> {
    let age_ms = state.now_ms.saturating_sub(time_ms);
    (age_ms > STALE_MS).then(|| age(age_ms))
}

/// Explains why the probe's readings are old, if they are.
#[must_use]
pub fn why_stale(state: &State) -> Option<String> {
    let newest = state.facts.samples.back().filter(|_| !state.is_over())?;
    let age_ms = state.now_ms.saturating_sub(newest.time_ms);
    if state.is_recovering() {
        return Some("old: the keeper is restarting".to_owned());
    }
    if state.is_cut_off() {
        return Some("old: no keeper".to_owned());
    }
    if age_ms > STALE_MS {
        let who = if state.silence_ms().is_some() { "keeper" } else { "monitor" };
        return Some(format!("old: the {who} is silent"));
    }
    let had_gpu = state.facts.samples.iter().any(|row| row.reading.gpu.is_ok());
    let why = newest.reading.gpu.as_ref().err().filter(|_| had_gpu)?;
    Some(format!("GPU not responding: {why}"))
}

impl Meter {
    /// Joins the notes that fit into `width` columns.
    #[must_use]
    pub fn note(&self, width: usize) -> String {
        let mut text = String::new();
        for note in self.age.iter().map(|age| format!("{age} old")).chain(self.notes.iter().cloned()) {
            let joined = if text.is_empty() { note } else { format!("{text} · {note}") };
            if joined.width() > width {
                break;
            }
            text = joined;
        }
        text
    }
}

/// Returns the reason why there are no GPU gauges, if there are none.
pub fn why_no_gpu(state: &State) -> Option<String> {
    let none = state.facts.samples.iter().all(|row| row.reading.gpu.is_err());
    let newest = state.facts.samples.back().filter(|_| none && !state.is_over())?;
    newest.reading.gpu.as_ref().err().map(ToString::to_string)
}

/// Reports in one line that there are no GPU gauges, and the key of the view that shows why.
#[must_use]
pub fn gpu_hint(state: &State) -> Option<String> {
    why_no_gpu(state)?;
    let what = if state.uses_card() { "GPU unknown" } else { "no GPU" };
    Some(format!("{what}; {} shows why", state.keys.key_of(Action::View(View::Health))))
}

fn unknown(label: &'static str, note: &str) -> Meter {
    Meter {
        label,
        value: None,
        short_value: None,
        tone: Tone::Plain,
        body: Body::Nothing,
        notes: vec![note.to_owned()],
        age: None,
    }
}

fn speed(state: &State) -> Meter {
    let unit = state.status().map_or("samples", |status| status.unit.as_str());
    if !state.is_moving() {
        return unknown("speed", "no steps right now");
    }
    let Some(pace) = state.facts.pace() else { return unknown("speed", "measuring") };
    // A speed describes steps that were taken; without new steps it is not current.
    let quiet = state.stalled_ms().or(state.silence_ms()).is_some() || state.is_cut_off();
    let age = state.facts.recent.back().filter(|_| quiet).and_then(|row| age_if_old(state, row.time_ms));
    let mut notes = vec![format!("{} {unit}/s", count(pace.units_per_s.max(0.0).round() as u64))];
    notes.extend(pace.waiting.map(|share| format!("{} waiting for data", percent(share))));
    Meter {
        label: "speed",
        value: Some(format!("{} steps/s", rate(pace.steps_per_s))),
        short_value: None,
        tone: Tone::Plain,
        body: Body::Spark(state.facts.pace_over_time(64)),
        notes,
        age,
    }
}

/// Returns the gauge of steps that were not finite: skipped by a guard, or taken by a script that has none.
#[must_use]
pub fn skips(state: &State) -> Meter {
    let series = &state.facts.series;
    let ((near, near_of), (far, far_of)) = (series.skipped_among(SKIP_WINDOW, 0), series.skipped_among(2000, 0));
    let unguarded = state.status().map_or(0, |status| status.unguarded);
    let label = if unguarded > 0 { "NaN" } else { "skips" };
    if state.status().is_some_and(|status| status.skipped.is_none()) && far == 0 && near_of > 0 && unguarded == 0 {
        return unknown(label, "unknown: nothing reports them");
    }
    // A command's own counts, which has fewer rows than updates.
    let counted = state.status().and_then(|status| status.updates.as_ref()).filter(|_| unguarded == 0);
    let (near, near_of) = counted.map_or((near, near_of), |updates| (updates.recent.skipped, updates.recent.of));
    // Skips that no row holds are counted anew in each attempt.
    let elsewhere =
        state.status().and_then(|status| status.skipped).is_some_and(|all| all > 0 && series.skips().first.is_none());
    if counted.is_none() && unguarded == 0 && elsewhere {
        return unknown(label, "no steps of this attempt yet");
    }
    let Some(share) = Ratio::of(near, near_of) else { return unknown(label, "no steps yet") };
    let limit = state.watch.skip_rate;
    // The bar ends at twice the limit, which puts the limit in its middle.
    let scale = if limit > 0.0 { 2.0 * limit } else { 1.0 };
    let all = state.status().map_or(far, |status| (status.skipped.unwrap_or(0) + unguarded).max(far));
    let steps = state.status().map_or(far_of, |status| status.step.max(far_of));
    // First, since it explains the mark on the bar.
    let mut notes = vec![format!("┼ limit {}", percent(limit)), format!("{} of {} in all", count(all), count(steps))];
    // A window that covers the whole run would repeat the total.
    if steps > far_of && counted.is_none() {
        notes.push(format!("{} of the last {}", percent(far as f64 / far_of.max(1) as f64), count(far_of)));
    }
    let known = series.skips();
    let run = if known.streak > 1 { Some(("in a row now", known.streak)) } else { None };
    let run = run.or((known.longest > 1).then_some(("in a row at most", known.longest)));
    notes.extend(run.map(|(words, many)| format!("{} {words}", count(many))));
    notes.extend(known.first.map(|first| format!("first at {}", count(first))));
    let tone = if share.get() > limit && near_of >= 20 { Tone::Warn } else { Tone::Plain };
    Meter {
        label,
        value: Some(format!("{} of the last {}", percent(share.get()), count(near_of))),
        short_value: Some(percent(share.get())),
        tone,
        body: Body::Bar(
            Ratio::new(share.get() / scale).map(|ratio| (ratio, Fill::Own)).into_iter().collect(),
            Ratio::new(limit / scale),
        ),
        notes,
        age: None,
    }
}

fn vram(state: &State, gpu: &Gpu) -> Meter {
    let (Some(used), Some(total)) = (gpu.vram_used_bytes.get(), gpu.vram_total_bytes.get()) else {
        return unknown("VRAM", gpu.vram_used_bytes.why().unwrap_or("unknown"));
    };
    let worker = gpu.vram_worker_bytes.get().map(|worker| worker.min(used));
    let limit = Ratio::new(state.watch.vram);
    let over = Ratio::of(used, total).is_some_and(|share| share.get() > state.watch.vram);
    let forecast = state.facts.vram_forecast(total);
    let ends = forecast.and_then(|forecast| forecast.minutes_to_full);
    let soon = ends.is_some_and(|minutes| minutes < 30.0);
    let tone = if state.uses_card() && (over || soon) { Tone::Warn } else { Tone::Plain };
    let mut notes: Vec<String> =
        ends.map(|minutes| format!("full in {}", age((minutes * 60e3) as i64))).into_iter().collect();
    notes.extend(memory_notes(worker, used, total));
    notes.extend(forecast.map(|forecast| {
        let sign = if forecast.bytes_per_min < 0.0 { "-" } else { "+" };
        format!("{sign}{}/min", bytes(forecast.bytes_per_min.abs() as u64))
    }));
    let body = Body::Bar(shares(worker, used, total), limit);
    Meter { label: "VRAM", value: Some(bytes_of(used, total)), short_value: None, tone, body, notes, age: None }
}

fn memory_notes(worker: Option<u64>, used: u64, total: u64) -> Vec<String> {
    let mut notes = vec![format!("worker {}", worker.map_or_else(|| NOT_KNOWN.to_owned(), bytes))];
    notes.extend(worker.map(|worker| format!("others {}", bytes(used.saturating_sub(worker)))));
    notes.push(format!("free {}", bytes(total.saturating_sub(used))));
    notes
}

fn shares(worker: Option<u64>, used: u64, total: u64) -> Vec<(Ratio, Fill)> {
    let own = worker.map_or(0, |worker| worker.min(used));
    let part = |bytes: u64, fill: Fill| Ratio::of(bytes, total).map(|ratio| (ratio, fill));
    [part(own, Fill::Own), part(used - own, Fill::Others)].into_iter().flatten().collect()
}

fn temperature(state: &State, gpu: &Gpu) -> Meter {
    let Some(celsius) = gpu.temperature_c.get() else {
        return unknown("heat", gpu.temperature_c.why().unwrap_or("unknown"));
    };
    let top = gpu.slowdown_c.get().filter(|slowdown| *slowdown > 0.0);
    let scale = top.unwrap_or(100.0).max(state.watch.temperature_c);
    let to_slowdown = top.map(|top| format!("{:.0}° to slowdown", top - celsius));
    let load = gpu.utilisation.get().map(|share| format!("load {}", percent(share)));
    let power = match (gpu.power_w.get(), gpu.power_limit_w.get()) {
        (Some(watts), Some(limit)) => Some(format!("{watts:.0} of {limit:.0} W")),
        (Some(watts), None) => Some(format!("{watts:.0} W")),
        _ => None,
    };
    let slowed = gpu.throttle.get().and_then(throttle_word);
    let notes = [slowed, to_slowdown, load, power].into_iter().flatten().collect();
    Meter {
        label: "heat",
        value: Some(format!("{celsius:.0} °C")),
        short_value: None,
        tone: if state.uses_card() && celsius > state.watch.temperature_c { Tone::Warn } else { Tone::Plain },
        body: Body::Bar(
            Ratio::new(celsius / scale).map(|ratio| (ratio, Fill::Own)).into_iter().collect(),
            Ratio::new(state.watch.temperature_c / scale),
        ),
        notes,
        age: None,
    }
}

/// Returns the GPU's memory errors and their growth over the retained readings, for GPUs that count
/// them.
fn ecc(state: &State, gpu: &Gpu) -> Option<Meter> {
    let now = gpu.more.ecc.last()?;
    let of_row = |row: &ReadingRow| Some((row.time_ms, row.reading.gpu.as_ref().ok()?.more.ecc.get()?));
    let first = state.facts.samples.iter().find_map(of_row);
    let newest_ms = state.facts.samples.back().map_or(0, |row| row.time_ms);
    let (since, before) = first.unwrap_or((newest_ms, *now));
    let (corrected, uncorrected) =
        (now.corrected.saturating_sub(before.corrected), now.uncorrected.saturating_sub(before.uncorrected));
    let over = age(newest_ms.saturating_sub(since));
    let notes = vec![match (corrected, uncorrected) {
        (0, 0) => format!("no new errors in {over}"),
        _ => format!("+{} and +{} in {over}", count(corrected), count(uncorrected)),
    }];
    Some(Meter {
        label: "ECC",
        value: Some(format!("{} corrected, {} not", count(now.corrected), count(now.uncorrected))),
        short_value: None,
        tone: if uncorrected > 0 { Tone::Danger } else { Tone::Plain },
        body: Body::Nothing,
        notes,
        age: None,
    })
}

fn throttle_word(throttle: Throttle) -> Option<String> {
    let words = [(throttle.thermal, "heat"), (throttle.power, "power"), (throttle.hardware, "hardware")];
    let held: Vec<_> = words.into_iter().filter(|(held, _)| *held).map(|(_, word)| word).collect();
    (!held.is_empty()).then(|| format!("slowed by {}", held.join(" and ")))
}

fn ram_meter(host: &Host) -> Meter {
    let (Some(used), Some(total)) = (host.ram_used_bytes.get(), host.ram_total_bytes.get()) else {
        return unknown("RAM", host.ram_used_bytes.why().unwrap_or("unknown"));
    };
    let worker = host.ram_worker_bytes.get();
    let over = Ratio::of(used, total).is_some_and(|share| share.get() > 0.95);
    let tone = if over { Tone::Warn } else { Tone::Plain };
    let notes = memory_notes(worker, used, total);
    let body = Body::Bar(shares(worker, used, total), None);
    Meter { label: "RAM", value: Some(bytes_of(used, total)), short_value: None, tone, body, notes, age: None }
}

fn cpu(host: &Host) -> Meter {
    let Some(share) = host.cpu.get().and_then(Ratio::new) else {
        return unknown("CPU", host.cpu.why().unwrap_or("unknown"));
    };
    let body = Body::Bar(vec![(share, Fill::Own)], None);
    Meter {
        label: "CPU",
        value: Some(percent(share.get())),
        short_value: None,
        tone: Tone::Plain,
        body,
        notes: vec!["of all cores".to_owned()],
        age: None,
    }
}

fn disk_meter(state: &State, host: &Host) -> Meter {
    let Some(free) = host.disk_free_bytes.get() else {
        return unknown("disk", host.disk_free_bytes.why().unwrap_or("unknown"));
    };
    let tone = if free < state.watch.disk_free_mib << 20 { Tone::Warn } else { Tone::Plain };
    Meter {
        label: "disk",
        value: Some(format!("{} free", bytes(free))),
        short_value: None,
        tone,
        body: Body::Nothing,
        notes: Vec::new(),
        age: None,
    }
}

#[cfg(test)]
mod tests;
