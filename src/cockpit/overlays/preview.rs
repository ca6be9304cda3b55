//! Preview of a shift: what changes, the consequences, the cost and when it takes effect.

mod command;

use self::command::Consequences;
use crate::cockpit::action::Action;
use crate::cockpit::state::{RungView, State};
use crate::cockpit::ui::{self, Popup, Stand};
use crate::cockpit::verdict::Tone;
use crate::config::knobs::list_troubles;
use crate::format::{bytes, count, in_words, rate};
use crate::protocol::control::{Request, RunState, RungRecord, Status, Target};
use crate::protocol::probe::Gpu;
use crate::recipe::class::{Change, Class, compare_presets, effective_batch, worst_class};
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

const WIDTH: u16 = 74;
const NOT_RUN: &str = "not run yet";

/// Content of the box.
pub struct Content {
    lines: Vec<Line<'static>>,
    title: String,
}

impl Content {
    /// Returns the columns and rows of the content.
    #[must_use]
    pub fn size(&self) -> (u16, u16) {
        (WIDTH, u16::try_from(self.lines.len()).unwrap_or(u16::MAX))
    }
}

/// Draws the box.
pub fn render(frame: &mut Frame<'_>, within: Rect, to: usize, state: &State, theme: &Theme) {
    if let Some(content) = box_content(within, to, state, Some(theme)) {
        let inner = Popup { title: &content.title, size: content.size(), tone: Tone::Busy, stand: Stand::Middle }
            .open(frame, within, theme);
        ui::render_lines(frame, inner, content.lines);
    }
}

/// Returns the lines of the box, styled with the theme, or unstyled to measure the box.
pub fn box_content(within: Rect, to: usize, state: &State, theme: Option<&Theme>) -> Option<Content> {
    let status = state.status()?;
    let (here, target) = (state.ladder.get(status.rung)?, state.ladder.get(to)?);
    let plain = Theme::plain();
    let theme = theme.unwrap_or(&plain);
    let width = usize::from(within.width.saturating_sub(8)).clamp(1, usize::from(WIDTH));
    let changes = compare_presets(&here.preset, &target.preset);
    let class = worst_class(&changes);
    let knobs = knob_lines(&changes, here, width, theme);
    let cost = cost_lines(state, status, to, width, theme);
    let keys = key_line(state).render(usize::from(within.width.saturating_sub(6)).min(usize::from(WIDTH)), theme);
    let room = usize::from(within.height.saturating_sub(2));
    let ends = Ends { here, target };
    let long = consequence_lines(state, status, ends, to, &changes, width, theme);
    let roomy = knobs.len() + cost.len() + long.len() + 4 <= room;
    // If space is short, the sentences are shortened first, then the list of knobs is cut. The cost of
    // the rung and the keys always stay.
    let (air, tail) = if roomy { (1, long) } else { (0, short_consequences(state, status, ends, to, class, width)) };
    let fixed = cost.len() + tail.len() + 1;
    let mut lines = lines_that_fit(knobs, if roomy { usize::MAX } else { room.saturating_sub(fixed) }, theme);
    let gap = || std::iter::repeat_n(Line::default(), air);
    lines.extend(gap().chain(cost).chain(gap()).chain(tail).chain(gap()));
    lines.push(keys);
    let direction = if to > status.rung { "down" } else { "up" };
    Some(Content { lines, title: format!("shift {direction}: {} → {}", here.name, target.name) })
}

/// Keeps the lines that fit; if some are left out, the last line says how many.
fn lines_that_fit(mut lines: Vec<Line<'static>>, room: usize, theme: &Theme) -> Vec<Line<'static>> {
    if lines.len() > room {
        let hidden = lines.len() - room.saturating_sub(1);
        lines.truncate(room.saturating_sub(1));
        lines.push(Line::styled(format!("… {hidden} more; enlarge the window to see them"), theme.dim));
    }
    lines
}

/// The two rungs of a shift.
#[derive(Clone, Copy)]
struct Ends<'a> {
    here: &'a RungView,
    target: &'a RungView,
}

impl Ends<'_> {
    /// Returns the rung that says `warm_start: true`, if one of the two does.
    fn warm_start(self) -> Option<&'static str> {
        match (self.target.warm_start, self.here.warm_start) {
            (true, _) => Some("the new rung"),
            (false, true) => Some("this rung"),
            (false, false) => None,
        }
    }
}

/// Summarizes the effect of the shift in two lines.
fn short_consequences(
    state: &State,
    status: &Status,
    ends: Ends<'_>,
    to: usize,
    class: Class,
    width: usize,
) -> Vec<Line<'static>> {
    let relieves = list_troubles(&ends.target.relieves);
    let relieves = if relieves.is_empty() { relieves } else { format!("; helps against {relieves}") };
    let warm = ends.warm_start().filter(|_| class == Class::C).map_or("", |_| "; warm_start: what fits is loaded");
    let meaning = format!("{}{warm}{relieves}", class.meaning());
    let when = match (status.state, &state.command) {
        (_, Some(_)) => command::short_sentence(state, status, to),
        (RunState::Paused, _) => "takes effect on resume".to_owned(),
        (RunState::BackingOff | RunState::AwaitingCard | RunState::AwaitingVram, _) => {
            "takes effect at the next start".to_owned()
        }
        (RunState::Starting | RunState::Compiling, _) => "takes effect after the first step".to_owned(),
        _ => format!("takes effect at step {}", count(status.step.saturating_add(1))),
    };
    [meaning, when].into_iter().map(|text| Line::from(ui::cut(&text, width))).collect()
}

fn knob_lines(changes: &[Change], here: &RungView, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    if changes.is_empty() {
        return vec![Line::styled("No change: both rungs have the same knobs.", theme.dim)];
    }
    let path_width = changes.iter().map(|change| change.path.chars().count()).max().unwrap_or(0).min(36);
    let values = |change: &Change| format!("{} → {}", in_words(&change.from), in_words(&change.to));
    let room = width.saturating_sub(path_width + "    A".len());
    let sizes = changes.iter().map(|change| values(change).chars().count()).filter(|size| *size <= room);
    let value_width = sizes.max().unwrap_or(0);
    let batch = effective_batch(&here.preset);
    let line = |change: &Change, value: String| {
        let meaning = match (change.path.as_str(), change.class, batch) {
            ("training.accumulation", Class::A, Some(batch)) => format!("effective batch stays {batch}"),
            (_, class, _) => class.meaning().to_owned(),
        };
        let meaning = Some(meaning).filter(|text| path_width + value_width + 7 + text.chars().count() <= width);
        Line::from(vec![
            Span::raw(ui::pad(&change.path, path_width)),
            Span::raw("  "),
            Span::styled(ui::pad(&value, value_width), theme.strong),
            Span::raw("  "),
            Span::styled(change.class.to_string(), class_style(change.class, theme)),
            Span::styled(format!("  {}", meaning.unwrap_or_default()), theme.dim),
        ])
    };
    let lines = changes.iter().flat_map(|change| {
        let value = values(change);
        if value.chars().count() <= room {
            return vec![line(change, value)];
        }
        // Values too wide for their column go below, in full.
        let below = ui::wrap(&value, width.saturating_sub(4));
        let below = below.into_iter().map(|part| Line::styled(format!("    {part}"), theme.strong));
        std::iter::once(line(change, String::new())).chain(below).collect()
    });
    lines.collect()
}

fn class_style(class: Class, theme: &Theme) -> ratatui::style::Style {
    match class {
        Class::A => theme.good,
        Class::B => theme.accent,
        Class::C => theme.warn,
    }
}

/// Describes the cost of the rung (measured if it ran before, otherwise from the plan, otherwise
/// unknown) and the available memory.
fn cost_lines(state: &State, status: &Status, to: usize, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let (now, then) = (status.rungs.get(status.rung), status.rungs.get(to));
    let target = state.ladder.get(to).map_or("", |rung| rung.name.as_str());
    let row = |label: &'static str, present: Option<String>, what: &dyn Fn(&RungRecord) -> Option<String>| {
        let before = || now.and_then(what).map_or_else(|| "not measured".to_owned(), |text| format!("{text} so far"));
        let now = present.map_or_else(before, |text| format!("{text} now"));
        let then = then.and_then(what).map_or_else(|| NOT_RUN.to_owned(), |text| format!("{text} on {target}"));
        Line::from(vec![
            Span::styled(ui::pad(label, 8), theme.dim),
            Span::raw(ui::pad(&now, 26)),
            Span::styled(then, theme.dim),
        ])
    };
    let on_gpu = trains_on_gpu(state, status);
    // Current values as the gauges show them; none while no steps are taken.
    let live = state.is_moving() && state.stalled_ms().or(state.silence_ms()).is_none();
    let reading = state.facts.samples.back().map(|row| &row.reading).filter(|_| live);
    // In units of the run's clock: a step with another batch size is not comparable.
    let speed_of = |units_per_s: f64| format!("{} {}/s", rate(units_per_s), status.unit);
    let pace = state.facts.pace().filter(|_| live).map(|pace| speed_of(pace.units_per_s));
    let speed = row("speed", pace, &|record| record.units_per_s.map(speed_of));
    // Peaks on both sides: what the worker holds at this moment may be less than its next step needs.
    let (label, held, seen): (_, _, fn(&RungRecord) -> Option<u64>) = if on_gpu {
        let held = reading.and_then(|reading| reading.gpu.as_ref().ok()?.vram_worker_bytes.get());
        ("VRAM", held, |record| record.vram_bytes)
    } else {
        ("RAM", reading.and_then(|reading| reading.host.ram_worker_bytes.get()), |record| record.ram_bytes)
    };
    let planned = |record: Option<&RungRecord>| Some(format!("{} planned", bytes(record?.planned_bytes?)));
    let peak = held.max(now.and_then(seen)).map(|size| format!("{} peak", bytes(size))).or_else(|| planned(now));
    let known = then.and_then(seen).map(|size| format!("{} peak on {target}", bytes(size))).or_else(|| planned(then));
    let memory = Line::from(vec![
        Span::styled(ui::pad(label, 8), theme.dim),
        Span::raw(ui::pad(&peak.unwrap_or_else(|| "not measured".to_owned()), 26)),
        Span::styled(known.unwrap_or_else(|| NOT_RUN.to_owned()), theme.dim),
    ]);
    let mut rows = vec![speed, memory];
    if on_gpu {
        rows.extend(free_memory_line(state, then, width, theme));
    }
    let unusable = then.and_then(|record| record.unusable.as_ref()).map(|why| format!("it did not start here: {why}"));
    let fault = then.and_then(|record| record.fault.as_ref());
    let last = || fault.map(|(what, step)| format!("last fault there: {what}, at step {}", count(*step)));
    if let Some(text) = unusable.or_else(last).map(|text| format!("        {text}")) {
        rows.push(Line::styled(ui::cut(&text, width), theme.warn));
    }
    rows
}

/// Reports whether the run trains on a GPU. A GPU in the machine is irrelevant to a run on the CPU.
fn trains_on_gpu(state: &State, status: &Status) -> bool {
    match status.device.as_deref() {
        Some(device) => !device.starts_with("cpu"),
        None => newest_gpu(state).is_some() || status.rungs.iter().any(|record| record.vram_bytes.is_some()),
    }
}

/// Returns the latest GPU reading.
fn newest_gpu(state: &State) -> Option<&Gpu> {
    state.facts.samples.back()?.reading.gpu.as_ref().ok()
}

/// Describes the GPU memory available to the next worker once this one is gone, and whether the rung
/// fits, judged by its recorded usage or, without a record, by the plan.
fn free_memory_line(state: &State, then: Option<&RungRecord>, width: usize, theme: &Theme) -> Option<Line<'static>> {
    let gpu = newest_gpu(state)?;
    let (total, used) = (gpu.vram_total_bytes.get()?, gpu.vram_used_bytes.get()?);
    let own = gpu.vram_worker_bytes.get().unwrap_or(0).min(used);
    let free = total.saturating_sub(used - own);
    let needed = then.and_then(|record| record.vram_bytes.or(record.planned_bytes));
    let (fits, style) = match needed {
        Some(needed) if needed > free => ("not enough", theme.warn),
        Some(needed) if needed > free - free / 10 => ("a tight fit", theme.warn),
        Some(_) => ("should fit", theme.dim),
        None => ("memory need unknown", theme.dim),
    };
    let text = format!("        {} of {} free for it: {fits}", bytes(free), bytes(total));
    Some(Line::styled(ui::cut(&text, width), style))
}

fn consequence_lines(
    state: &State,
    status: &Status,
    ends: Ends<'_>,
    to: usize,
    changes: &[Change],
    width: usize,
    theme: &Theme,
) -> Vec<Line<'static>> {
    let class = worst_class(changes);
    let relieves = list_troubles(&ends.target.relieves);
    let mut lines = Vec::new();
    if !relieves.is_empty() {
        lines.push(Line::from(vec![Span::styled("helps against  ", theme.dim), Span::raw(relieves)]));
    }
    let (meaning, when, warns) = match &state.command {
        Some(_) => {
            let Consequences { meaning, cost, warns } = command::consequences(state, status, to, changes);
            (meaning, cost, warns)
        }
        None => (meaning_of(class, ends), start_of(status), class == Class::C),
    };
    let style = if warns { theme.warn } else { ratatui::style::Style::new() };
    lines.extend(ui::wrap(&meaning, width).into_iter().map(|row| Line::styled(row, style)));
    lines.extend(ui::wrap(&when, width).into_iter().map(Line::from));
    lines
}

/// Describes what the shift does to the experiment.
fn meaning_of(class: Class, ends: Ends<'_>) -> String {
    match (class, ends.warm_start()) {
        (Class::A, _) => "Same problem: the loss continues as before, up to rounding and dropout noise.".to_owned(),
        (Class::B, _) => {
            "Different trajectory: weights, moments and data position are kept; the loss curve may bend.".to_owned()
        }
        (Class::C, Some(rung)) => {
            format!("Different shapes, and {rung} sets warm_start: true: what fits is loaded, the rest starts fresh.")
        }
        (Class::C, None) => {
            "Different shapes: adapters adapt to the new rank; any other change is refused with a list \
                             of parameters, because neither rung sets warm_start: true."
                .to_owned()
        }
    }
}

/// Describes when the shift takes effect, and what happens until then.
fn start_of(status: &Status) -> String {
    let next = count(status.step.saturating_add(1));
    match status.state {
        RunState::Paused => format!("Takes effect on resume, at step {next}."),
        // No worker is alive to save: the next one loads the latest checkpoint on disk.
        RunState::BackingOff | RunState::AwaitingCard | RunState::AwaitingVram => match status.durable_step {
            Some(durable) => format!("Takes effect at the next start, from checkpoint {}.", count(durable)),
            None => "Takes effect at the next start, from the beginning: no checkpoint yet.".to_owned(),
        },
        RunState::Starting | RunState::Compiling => "Takes effect after the first step.".to_owned(),
        _ => format!(
            "Takes effect at the next step: save, stop the worker, wait for its memory, start, load, verify, continue \
             at step {next}. No step is repeated."
        ),
    }
}

/// Returns the keys of the box: that of the shift only where a shift is possible.
#[must_use]
pub fn key_line(state: &State) -> ui::KeyLine {
    let key = |action: Action| state.keys.key_of(action);
    let shift = |to: usize| Some(Request::Shift { to: Target::Rung(state.ladder.get(to)?.name.clone()) });
    let request = state.previewed_rung().and_then(shift);
    let is_possible = request.is_none_or(|request| state.check_request(&request).is_ok());
    let shift = is_possible.then(|| (key(Action::Confirm), "shift", Action::Confirm));
    let others = [
        (key(Action::ShiftDown), "safer rung", Action::ShiftDown),
        (key(Action::ShiftUp), "faster rung", Action::ShiftUp),
        (key(Action::Back), "back", Action::Back),
    ];
    ui::KeyLine(shift.into_iter().chain(others).collect())
}
