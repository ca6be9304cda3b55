//! The section `watch:`: the keeper's thresholds, and how far it acts without asking. The shipped run
//! files write out the same defaults.

use super::problem::{Findings, Problem};
use super::units::{Every, Time};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Lower bound for `checkpoint_age: auto`.
pub const AGE_AT_LEAST: Duration = Duration::from_mins(30);

/// The keeper's thresholds and responses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Watch {
    /// Whether the keeper shifts automatically; otherwise it proposes.
    pub autopilot: bool,
    /// GPU temperature above which to warn.
    pub temperature_c: f64,
    /// Share of GPU memory above which to warn.
    pub vram: f64,
    /// Share of host memory above which to warn: of the machine, or of the limit of the run's cgroup.
    pub ram: f64,
    /// Free disk space at the run directory below which to warn, in MiB; 0 = never.
    pub disk_free_mib: u64,
    /// Share of skipped steps among the last 200 that triggers a rung for numerics.
    pub skip_rate: f64,
    /// Skipped steps in a row that trigger a rung for numerics.
    pub skips_to_shift: u64,
    /// Skipped steps in a row that end the worker (exit code 12).
    pub skips_in_a_row: u64,
    /// Minimum step duration before the worker counts as hanging.
    pub hang_min: Time,
    /// Restarts without a new durable step before the run needs attention.
    pub restarts_without_progress: u32,
    /// Restarts of any cause within `restart_window` before the run needs attention.
    pub restarts_in_window: u32,
    /// The window of `restarts_in_window`.
    pub restart_window: Every,
    /// Maximum age of the newest checkpoint before a save is requested; see [`Watch::checkpoint_limit`].
    pub checkpoint_age: Every,
    /// Interval of planned restarts, against memory fragmentation.
    pub restart_every: Every,
    /// Whether to measure the layers at evaluations: norms of weights, gradients and updates, dead units.
    pub layers: bool,
    /// Interval between the progress lines of a run without a cockpit; steps name single steps.
    pub log_interval: Every,
    /// When low GPU utilisation is investigated.
    pub utilisation: Utilisation,
    /// Silence allowed in each phase of a worker.
    pub hang: Hang,
    /// Timeouts for ending a worker and waiting for the GPU to be free.
    pub ending: Ending,
    /// The response to an overheating GPU.
    pub heat: Heat,
    /// The response to a loss spike.
    pub spike: Spike,
    /// When slow steps count as memory that spilled to the host.
    pub spill: Spill,
    /// When the loss counts as diverging.
    pub divergence: Divergence,
    /// Evaluations without a better one before the run counts as no longer learning; 0 = never.
    pub patience: u64,
    /// The way back up the ladder.
    pub climb: Climb,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            autopilot: true,
            temperature_c: 85.0,
            vram: 0.95,
            ram: 0.92,
            disk_free_mib: 1024,
            skip_rate: 0.02,
            skips_to_shift: 5,
            skips_in_a_row: 50,
            hang_min: Time::seconds(10.0),
            restarts_without_progress: 3,
            restarts_in_window: 5,
            restart_window: Every::Seconds(1800.0),
            checkpoint_age: Every::Auto,
            restart_every: Every::Never,
            layers: true,
            log_interval: Every::Seconds(10.0),
            utilisation: Utilisation::default(),
            hang: Hang::default(),
            ending: Ending::default(),
            heat: Heat::default(),
            spike: Spike::default(),
            spill: Spill::default(),
            divergence: Divergence::default(),
            patience: 10,
            climb: Climb::default(),
        }
    }
}

impl Watch {
    /// Returns the maximum age of the newest checkpoint on a rung with this save interval. `auto` is
    /// twice the interval, and at least half an hour; a rung that never saves has no limit.
    #[must_use]
    pub fn checkpoint_limit(&self, save_every: Every) -> Option<Duration> {
        match (self.checkpoint_age, save_every) {
            (Every::Auto, Every::Never) => None,
            (Every::Auto, save_every) => Some(AGE_AT_LEAST.max(save_every.duration().unwrap_or_default() * 2)),
            (age, _) => age.duration(),
        }
    }

    /// Returns the shortest silence of a command that counts as a hang, however fast its steps are.
    #[must_use]
    pub fn shortest_silence(&self) -> Duration {
        self.hang.starting.duration().min(self.hang.first_steps.duration().max(self.hang_min.duration()))
    }
}

/// When low GPU utilisation is investigated. Never causes a restart on its own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Utilisation {
    /// Utilisation (share of time with a kernel running) below which the GPU counts as idle; 0 = never.
    pub below: f64,
    /// Idle time during training before it is investigated.
    pub after: Time,
}

impl Default for Utilisation {
    fn default() -> Self {
        Self { below: 0.05, after: minutes(1) }
    }
}

/// Silence allowed in each phase of a worker. During training, the limit is learned from step times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hang {
    /// Multiple of the longest of the last 64 steps that a step may take.
    pub factor: f64,
    /// Loading data and model.
    pub starting: Time,
    /// Compiling and autotuning kernels.
    pub compiling: Time,
    /// A step, before there are enough steps to learn from.
    pub first_steps: Time,
    /// The first evaluation; later ones are compared with the longest so far.
    pub evaluating: Time,
    /// Copying state to the host.
    pub checkpointing: Time,
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

/// Timeouts for ending a worker and waiting for the GPU to be free.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ending {
    /// Time from SIGTERM to SIGKILL.
    pub grace: Time,
    /// Time after SIGKILL before the worker counts as unkillable.
    pub kill: Time,
    /// Time allowed for the GPU to release the previous worker's memory.
    pub vram_wait: Time,
    /// Memory above the level before the run at which the GPU still counts as free, in MiB.
    pub vram_slack_mib: u64,
}

impl Default for Ending {
    fn default() -> Self {
        Self {
            grace: Time::seconds(5.0),
            kill: Time::seconds(10.0),
            vram_wait: Time::seconds(50.0),
            vram_slack_mib: 64,
        }
    }
}

/// The response to an overheating GPU: pause, resume when cooler, and after several pauses shift to a
/// rung that helps against heat.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Heat {
    /// Degrees below the GPU's own slowdown limit that also count as hot.
    pub below_slowdown_c: f64,
    /// Time above the limit before pausing.
    pub act_after: Time,
    /// Degrees below the limit at which training resumes.
    pub cool_by_c: f64,
    /// Pauses before a shift to a rung that helps against heat.
    pub pauses: u32,
    /// Length of a pause after which a still hot GPU needs attention.
    pub give_up: Time,
}

impl Default for Heat {
    fn default() -> Self {
        Self { below_slowdown_c: 5.0, act_after: minutes(1), cool_by_c: 10.0, pauses: 3, give_up: minutes(30) }
    }
}

/// The response to a loss spike: roll back to a checkpoint before it and skip the data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spike {
    /// Standard deviations above the mean of the last 128 losses that make a spike, if it is also a fifth of that mean and a
    /// tenth of what the loss fell since the start; 0 = never.
    pub sigma: f64,
    /// Consecutive steps above that limit.
    pub in_a_row: u64,
    /// Least age of the checkpoint to go back to, in steps before the jump.
    pub back: u64,
    /// Number of batches to leave out, half of them before the jump.
    pub skip: u64,
}

impl Default for Spike {
    fn default() -> Self {
        Self { sigma: 6.0, in_a_row: 3, back: 100, skip: 200 }
    }
}

/// When slow steps count as GPU memory that spilled to the host, under WSL2: a shift to a rung that helps against lack of memory
/// follows, or of a command a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spill {
    /// Multiple of a step's usual compute time from which it counts as slow; 0 = never.
    pub factor: f64,
    /// Share of GPU memory in use from which it may have spilled.
    pub memory: f64,
    /// How long steps must be slow.
    pub after: Time,
}

impl Default for Spill {
    fn default() -> Self {
        Self { factor: 3.0, memory: 0.97, after: Time::seconds(20.0) }
    }
}

/// When the loss counts as diverging. Leads only to a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Divergence {
    /// The smoothed loss exceeds this multiple of its best …
    pub factor: f64,
    /// … for this number of steps; 0 = never.
    pub steps: u64,
    /// Or it has been rising for this number of steps; 0 = never.
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
    /// Clean steps before shifting up one rung; doubles with each failed climb; 0 = never.
    pub after: u64,
    /// Failed climbs after which the run stays on its rung.
    pub failures: u32,
}

impl Default for Climb {
    fn default() -> Self {
        Self { after: 2000, failures: 3 }
    }
}

fn minutes(minutes: u32) -> Time {
    Time::seconds(f64::from(minutes) * 60.0)
}

/// Returns every invalid value in the section.
#[must_use]
pub fn check_watch(watch: &Watch) -> Vec<Problem> {
    let mut found = Findings::below("watch");
    check_intervals(watch, &mut found);
    let share = |value: f64| value > 0.0 && value <= 1.0;
    let a_share = "write a number above 0, up to 1";
    found.unless(share(watch.vram), "vram", "must be a share of GPU memory", a_share);
    found.unless(share(watch.ram), "ram", "must be a share of host memory", a_share);
    found.unless(share(watch.skip_rate), "skip_rate", "must be a share of the steps", a_share);
    let sane = (30.0..=120.0).contains(&watch.temperature_c);
    found.unless(sane, "temperature_c", "no GPU runs at this temperature", "write 30 to 120 degrees Celsius");
    let ends = "0 would end the run before it starts";
    found.unless(watch.skips_in_a_row >= 1, "skips_in_a_row", ends, "write 1 or more");
    found.unless(watch.skips_to_shift >= 1, "skips_to_shift", "0 would shift at once", "write 1 or more");
    let factor = watch.hang.factor;
    found.unless(factor >= 1.0, "hang.factor", "below 1, every step would count as a hang", "write 5");
    let degrees = |value: f64| (0.0..=60.0).contains(&value);
    found.unless(degrees(watch.heat.below_slowdown_c), "heat.below_slowdown_c", "must be 0 to 60 degrees", "write 5");
    found.unless(degrees(watch.heat.cool_by_c), "heat.cool_by_c", "must be 0 to 60 degrees", "write 10");
    found.unless(
        watch.spike.sigma >= 0.0,
        "spike.sigma",
        "must be at least 0 standard deviations",
        "write 6, or 0 for never",
    );
    found.unless(watch.spike.in_a_row >= 1, "spike.in_a_row", "a spike needs at least one step", "write 3");
    found.unless(
        watch.divergence.factor >= 1.0,
        "divergence.factor",
        "below 1, every loss would count as diverging",
        "write 2",
    );
    let factor = watch.spill.factor;
    found.unless(factor == 0.0 || factor > 1.0, "spill.factor", "must be above 1", "write 3, or 0 for never");
    found.unless(share(watch.spill.memory), "spill.memory", "must be a share of GPU memory", a_share);
    check_waits(watch, &mut found);
    found.into_problems()
}

/// Checks the times that must not be too short or too long.
fn check_waits(watch: &Watch, found: &mut Findings) {
    let silences = [
        ("hang_min", watch.hang_min),
        ("hang.starting", watch.hang.starting),
        ("hang.compiling", watch.hang.compiling),
        ("hang.first_steps", watch.hang.first_steps),
        ("hang.evaluating", watch.hang.evaluating),
        ("hang.checkpointing", watch.hang.checkpointing),
    ];
    for (key, time) in silences {
        let long = time.duration() >= Duration::from_millis(100);
        found.unless(long, key, "too short to detect a hang", "write 100 ms or more, such as 10 s");
    }
    let ending = watch.ending;
    let waits = [("ending.grace", ending.grace), ("ending.kill", ending.kill), ("ending.vram_wait", ending.vram_wait)];
    for (key, time) in waits {
        let bounded = time.duration() <= Duration::from_hours(1);
        found.unless(bounded, key, "too long, the run would stall", "write up to 1 h, such as 10 s");
    }
}

/// Checks the fields that accept a time or `never`, and their combinations.
fn check_intervals(watch: &Watch, found: &mut Findings) {
    let a_second = |every: Every| every.duration().is_some_and(|time| time >= Duration::from_secs(1));
    let aged = matches!(watch.checkpoint_age, Every::Auto | Every::Never) || a_second(watch.checkpoint_age);
    let restarts = watch.restart_every == Every::Never || a_second(watch.restart_every);
    let window = watch.restart_window == Every::Never || a_second(watch.restart_window);
    let idle = (0.0..1.0).contains(&watch.utilisation.below);
    let clock = "must be a wall-clock time";
    found.unless(aged, "checkpoint_age", clock, "write 1 s or more, such as 30 min, or auto or never");
    found.unless(restarts, "restart_every", clock, "write 1 s or more, such as 6 h, or never");
    found.unless(window, "restart_window", clock, "write 1 s or more, such as 30 min, or never");
    let logs = matches!(watch.log_interval, Every::Steps(1..) | Every::Never) || a_second(watch.log_interval);
    found.unless(logs, "log_interval", "must be a time or a number of steps", "write 10 s, 100 steps or never");
    found.unless(idle, "utilisation.below", "must be a share of the time", "write 0.05, or 0 for never");
}
