//! The section `watch:`: what the keeper looks out for, and how far it goes alone. The defaults here
//! are those that the shipped run files write out.

use super::problem::Problem;
use super::units::Every;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `checkpoint_age: auto` is not less.
const AGE_AT_LEAST: Duration = Duration::from_mins(30);

/// When the keeper worries, and what it does about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Watch {
    /// Whether the keeper shifts alone; else it proposes.
    pub autopilot: bool,
    /// Warn above this GPU temperature.
    pub temperature_c: f64,
    /// Warn above this share of the card's memory.
    pub vram: f64,
    /// Warn below so much free space where the run is, in MiB; 0 = never.
    pub disk_free_mib: u64,
    /// Above this share of skipped steps among the last 200: a rung that relieves numerics.
    pub skip_rate: f64,
    /// The same after so many skipped steps in a row.
    pub skips_to_shift: u64,
    /// So many skipped steps in a row end the worker (exit code 12).
    pub skips_in_a_row: u64,
    /// A step may take at least this long before the worker counts as hanging.
    pub hang_min: Every,
    /// So many restarts without a new durable step, then a person is needed.
    pub restarts_without_progress: u32,
    /// So many restarts of any cause within `restart_window`, then a person is needed.
    pub restarts_in_window: u32,
    /// The window of `restarts_in_window`.
    pub restart_window: Every,
    /// How old the newest checkpoint may be before one is asked for; see [`Watch::checkpoint_limit`].
    pub checkpoint_age: Every,
    /// A planned restart, against memory that fragments.
    pub restart_every: Every,
    /// When an idle card is looked into.
    pub utilisation: Utilisation,
    /// How long each phase of a worker may be silent.
    pub hang: Hang,
    /// How a worker is ended and the card waited for.
    pub ending: Ending,
    /// What is done about a hot card.
    pub heat: Heat,
    /// What is done when the loss jumps.
    pub spike: Spike,
    /// When the loss counts as having left its course.
    pub divergence: Divergence,
    /// The way back up the ladder.
    pub climb: Climb,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            autopilot: true,
            temperature_c: 85.0,
            vram: 0.95,
            disk_free_mib: 1024,
            skip_rate: 0.02,
            skips_to_shift: 5,
            skips_in_a_row: 50,
            hang_min: Every::Seconds(10.0),
            restarts_without_progress: 3,
            restarts_in_window: 5,
            restart_window: minutes(30),
            checkpoint_age: Every::Auto,
            restart_every: Every::Never,
            utilisation: Utilisation::default(),
            hang: Hang::default(),
            ending: Ending::default(),
            heat: Heat::default(),
            spike: Spike::default(),
            divergence: Divergence::default(),
            climb: Climb::default(),
        }
    }
}

impl Watch {
    /// How old the newest checkpoint may be on a rung that saves in this rhythm. `auto` is twice the
    /// rhythm, and half an hour at least; a rung that never saves is left alone.
    #[must_use]
    pub fn checkpoint_limit(&self, rhythm: Every) -> Option<Duration> {
        match (self.checkpoint_age, rhythm) {
            (Every::Auto, Every::Never) => None,
            (Every::Auto, rhythm) => Some(AGE_AT_LEAST.max(rhythm.duration().unwrap_or_default() * 2)),
            (age, _) => age.duration(),
        }
    }
}

/// When an idle card is looked into. That alone restarts nothing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Utilisation {
    /// Idle is below this share of the time with a kernel running; 0 = never.
    pub below: f64,
    /// Idle for so long while training.
    pub after: Every,
}

impl Default for Utilisation {
    fn default() -> Self {
        Self { below: 0.05, after: minutes(1) }
    }
}

/// How long each phase of a worker may be silent. While training, the limit is learned from steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hang {
    /// A step may take so many times as long as the longest of the last 64.
    pub factor: f64,
    /// Loading.
    pub starting: Every,
    /// Compiling and tuning kernels.
    pub compiling: Every,
    /// A step, before there are enough to learn from.
    pub first_steps: Every,
    /// The first evaluation; later ones are judged by the longest before.
    pub evaluating: Every,
    /// Copying state to the host.
    pub checkpointing: Every,
}

impl Default for Hang {
    fn default() -> Self {
        Self {
            factor: 5.0,
            starting: minutes(10),
            compiling: minutes(15),
            first_steps: minutes(3),
            evaluating: minutes(10),
            checkpointing: minutes(7),
        }
    }
}

/// How a worker is ended and the card waited for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ending {
    /// From SIGTERM to SIGKILL.
    pub grace: Every,
    /// A worker that survives SIGKILL for so long cannot be killed.
    pub kill: Every,
    /// So long the card may take to be free of the worker before.
    pub vram_wait: Every,
    /// The card is free at what it held before the run, and so much more, in MiB.
    pub vram_slack_mib: u64,
}

impl Default for Ending {
    fn default() -> Self {
        Self {
            grace: Every::Seconds(5.0),
            kill: Every::Seconds(10.0),
            vram_wait: Every::Seconds(50.0),
            vram_slack_mib: 64,
        }
    }
}

/// What is done about a hot card: pause, go on cooler, after some pauses a rung that relieves heat.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Heat {
    /// Hot is also so many degrees below the card's own slowdown limit.
    pub below_slowdown_c: f64,
    /// Hot for so long: pause.
    pub act_after: Every,
    /// Go on so many degrees lower.
    pub cool_by_c: f64,
    /// After so many pauses: a rung that relieves heat.
    pub pauses: u32,
    /// Still hot after so long a pause: a person is needed.
    pub give_up: Every,
}

impl Default for Heat {
    fn default() -> Self {
        Self { below_slowdown_c: 5.0, act_after: minutes(1), cool_by_c: 10.0, pauses: 3, give_up: minutes(30) }
    }
}

/// What is done when the loss jumps: back to a checkpoint before the jump, and other data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spike {
    /// A jump is so many standard deviations above the mean of the last 128 losses; 0 = never.
    pub sigma: f64,
    /// So many steps in a row.
    pub in_a_row: u64,
    /// Go back about so many steps.
    pub back: u64,
    /// Leave out so many batches from there on.
    pub skip: u64,
}

impl Default for Spike {
    fn default() -> Self {
        Self { sigma: 6.0, in_a_row: 3, back: 100, skip: 200 }
    }
}

/// When the loss counts as having left its course. Only ever a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Divergence {
    /// The smoothed loss is above so many times its best …
    pub factor: f64,
    /// … for so many steps; 0 = never.
    pub steps: u64,
    /// Or it has been rising for so many steps; 0 = never.
    pub rising: u64,
}

impl Default for Divergence {
    fn default() -> Self {
        Self { factor: 2.0, steps: 500, rising: 2000 }
    }
}

/// The way back up the ladder.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Climb {
    /// One shift back up after so many clean steps; doubled by each climb that failed; 0 = never.
    pub after: u64,
    /// After so many failed climbs the run stays where it is.
    pub failures: u32,
}

impl Default for Climb {
    fn default() -> Self {
        Self { after: 2000, failures: 3 }
    }
}

fn minutes(minutes: u32) -> Every {
    Every::Seconds(f64::from(minutes) * 60.0)
}

/// A span on the wall clock; [`check`] has refused any other rhythm.
#[must_use]
pub fn span(every: Every) -> Duration {
    every.duration().unwrap_or_default()
}

/// Everything impossible in the section.
#[must_use]
pub fn check(watch: &Watch) -> Vec<Problem> {
    let mut problems = check_rhythms(watch);
    let mut unless = |fine: bool, key: &str, wrong: &str, fix: &str| {
        if !fine {
            problems.push(Problem::at(format!("watch.{key}"), wrong, fix));
        }
    };
    let share = |value: f64| value > 0.0 && value <= 1.0;
    let a_share = "write a number above 0, up to 1";
    unless(share(watch.vram), "vram", "this is a share of the card's memory", a_share);
    unless(share(watch.skip_rate), "skip_rate", "this is a share of the steps", a_share);
    let sane = (30.0..=120.0).contains(&watch.temperature_c);
    unless(sane, "temperature_c", "no card runs at this temperature", "write degrees Celsius from 30 to 120");
    let ends = "0 would end the run before it starts";
    unless(watch.skips_in_a_row >= 1, "skips_in_a_row", ends, "write 1 or more");
    unless(watch.skips_to_shift >= 1, "skips_to_shift", "0 would shift at once", "write 1 or more");
    let factor = watch.hang.factor;
    unless(factor >= 1.0, "hang.factor", "below 1 every step would be a hang", "write 5");
    let degrees = |value: f64| (0.0..=60.0).contains(&value);
    unless(
        degrees(watch.heat.below_slowdown_c),
        "heat.below_slowdown_c",
        "these are degrees",
        "write 0 to 60, such as 5",
    );
    unless(degrees(watch.heat.cool_by_c), "heat.cool_by_c", "these are degrees", "write 0 to 60, such as 10");
    unless(watch.spike.sigma >= 0.0, "spike.sigma", "these are standard deviations", "write 6, or 0 for never");
    unless(watch.spike.in_a_row >= 1, "spike.in_a_row", "0 steps are no jump", "write 3");
    unless(watch.divergence.factor >= 1.0, "divergence.factor", "below 1 every loss would be too high", "write 2");
    let spans = [
        ("hang_min", watch.hang_min),
        ("restart_window", watch.restart_window),
        ("utilisation.after", watch.utilisation.after),
        ("hang.starting", watch.hang.starting),
        ("hang.compiling", watch.hang.compiling),
        ("hang.first_steps", watch.hang.first_steps),
        ("hang.evaluating", watch.hang.evaluating),
        ("hang.checkpointing", watch.hang.checkpointing),
        ("ending.grace", watch.ending.grace),
        ("ending.kill", watch.ending.kill),
        ("ending.vram_wait", watch.ending.vram_wait),
        ("heat.act_after", watch.heat.act_after),
        ("heat.give_up", watch.heat.give_up),
    ];
    for (key, every) in spans {
        let timed = every.duration().is_some();
        unless(timed, key, "this is measured on the clock on the wall", "write seconds or minutes: 10 s");
        let Some(time) = every.duration() else { continue };
        if key.starts_with("hang") {
            let long = time >= Duration::from_millis(100);
            unless(long, key, "so short a silence is no hang", "write 100 ms or more, such as 10 s");
        }
        if key.starts_with("ending.") {
            let bounded = time <= Duration::from_hours(1);
            unless(bounded, key, "a run would stand still for hours", "write up to 1 h, such as 10 s");
        }
    }
    problems
}

/// What may be a time or `never`, and what goes with it.
fn check_rhythms(watch: &Watch) -> Vec<Problem> {
    let a_second = |every: Every| every.duration().is_some_and(|time| time >= Duration::from_secs(1));
    let aged = matches!(watch.checkpoint_age, Every::Auto | Every::Never) || a_second(watch.checkpoint_age);
    let restarts = watch.restart_every == Every::Never || a_second(watch.restart_every);
    let idle = (0.0..1.0).contains(&watch.utilisation.below);
    let clock = "this is measured on the clock on the wall";
    [
        (aged, "checkpoint_age", clock, "write 1 s or more, such as 30 min; auto, or never"),
        (restarts, "restart_every", clock, "write 1 s or more, such as 6 h, or never"),
        (idle, "utilisation.below", "this is a share of the time", "write 0.05, or 0 for never"),
    ]
    .into_iter()
    .filter(|(fine, ..)| !fine)
    .map(|(_, key, wrong, fix)| Problem::at(format!("watch.{key}"), wrong, fix))
    .collect()
}
