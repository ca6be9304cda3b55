//! SIGKILL at random moments. A run is started, killed a few times, resumed when nothing is left to
//! continue it, and must end bit for bit like the uninterrupted run.

use crate::place::{self, Place, Role, kill, list_processes, wait_for};
use crate::report::{Row, Table};
use crate::verdict::{self, Trace};
use crate::{Failing, Orders};
use downshift::protocol::control::RunState;
use downshift::recipe::seed::Stream;
use downshift::store::checkpoint::FOLDER;
use downshift::store::run_dir::RunDir;
use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The processes a kill kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Target {
    name: &'static str,
    roles: &'static [Role],
    /// Its share of 20 kills.
    share: u64,
}

const TARGETS: [Target; 6] = [
    Target { name: "kill -9 worker", roles: &[Role::Worker], share: 8 },
    Target { name: "kill -9 keeper", roles: &[Role::Keeper], share: 4 },
    Target { name: "kill -9 keeper and worker", roles: &[Role::Keeper, Role::Worker], share: 3 },
    Target { name: "kill -9 parent and keeper, resume", roles: &[Role::Parent, Role::Keeper], share: 2 },
    Target { name: "kill -9 all three, resume", roles: &[Role::Parent, Role::Keeper, Role::Worker], share: 2 },
    Target { name: "kill -9 parent of the keeper", roles: &[Role::Parent], share: 1 },
];

/// The moment of the next kill.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// After this delay.
    After(Duration),
    /// This long after a save has begun.
    Saving(Duration),
}

/// A planned kill.
#[derive(Debug, Clone, Copy)]
struct PlannedKill {
    target: usize,
    moment: Moment,
}

/// Plans the kills on one run from the seed alone.
fn plan_kills(seed: u64, run: u64, most: u64) -> Vec<PlannedKill> {
    let mut stream = Stream::new(seed ^ run.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let count = (6 + stream.below(7)).min(most);
    let mut planned = || {
        let mut left = stream.below(20);
        let target = TARGETS.iter().position(|target| {
            let hit = left < target.share;
            left = left.saturating_sub(target.share);
            hit
        });
        let micros = |stream: &mut Stream, most: u64| Duration::from_micros(stream.below(most));
        let moment = match stream.below(10) {
            0..=1 => Moment::After(micros(&mut stream, 40_000)),
            2..=4 => Moment::Saving(micros(&mut stream, 12_000)),
            _ => Moment::After(micros(&mut stream, 500_000)),
        };
        PlannedKill { target: target.unwrap_or(0), moment }
    };
    (0..count).map(|_| planned()).collect()
}

/// The run file: enables everything a resume could get wrong, with a high restart budget.
pub fn run_file(epochs: u64, save_every: u64) -> String {
    format!(
        "name: tiny\ntask: tiny\ndata: {{ samples: 997 }}\nmodel: {{ hidden: 24, dropout: 0.3 }}\n\
         training: {{ epochs: {epochs}, micro_batch: 4, accumulation: 2, seed: 7, loader: {{ threads: 2, prefetch: 8 }} }}\n\
         optimizer: {{ lr: 0.01, weight_decay: 0.1, max_norm: 0.5, \
         schedule: {{ kind: cosine, warmup: 0.1, final: 0.1 }} }}\n\
         evaluation: {{ every: 3 epochs }}\ncheckpoint: {{ every: {save_every} steps, keep_last: 3 }}\n\
         watch: {{ restarts_without_progress: 1000, restarts_in_window: 100000, spike: {{ sigma: 0 }} }}\n"
    )
}

/// Trains the uninterrupted run.
pub fn train_unbroken(orders: &Orders, text: &str) -> Failing<Trace> {
    let place = Place::new(&orders.dir)?;
    let begun = Instant::now();
    let (mut client, run) = place.start(text)?;
    wait_for_end(&run)?;
    let code = client.wait()?;
    if code != Some(0) {
        let dir = place.keep();
        return Err(format!("the uninterrupted run ended with {code:?}; see {}", dir.display()).into());
    }
    let trace = verdict::read_trace(&place, &run)?;
    println!("uninterrupted run: {} steps in {:.1} s", trace.steps(), begun.elapsed().as_secs_f64());
    Ok(trace)
}

/// Runs this part of the campaign.
pub fn run(orders: &Orders, table: &mut Table) -> Failing<()> {
    let text = run_file(if orders.quick { 40 } else { 120 }, 250);
    let unbroken = train_unbroken(orders, &text)?;
    kill_runs(orders, &text, &unbroken, "", table)
}

/// Kills as many runs of a file as the orders ask for; `ending` ends the names of the rows.
pub fn kill_runs(orders: &Orders, text: &str, unbroken: &Trace, ending: &str, table: &mut Table) -> Failing<()> {
    let mut rows: Vec<Row> = TARGETS.iter().map(|target| Row::new(format!("{}{ending}", target.name))).collect();
    let (begun, mut done, mut number) = (Instant::now(), 0, 0);
    while done < orders.kills {
        let planned_kills = plan_kills(orders.seed, number, orders.kills - done);
        let place = Place::new(&orders.dir)?;
        let mut killed_run = KilledRun { place: &place, hits: Vec::new(), newest: None };
        let outcome = killed_run.run_to_end(text, &planned_kills, unbroken);
        let hits = std::mem::take(&mut killed_run.hits);
        let outcome = outcome.map_err(|error| error.to_string());
        let (minutes, count) = (begun.elapsed().as_secs_f64() / 60.0, hits.len() as u64);
        done += count;
        let verdict = outcome.as_ref().map_or_else(|loss| format!("LOST: {loss}"), |_| "identical".to_owned());
        println!("run {number}: {count} kills, {verdict}; {done} kills, {:.0} a minute", done as f64 / minutes);
        let outcome = outcome.map_err(|loss| format!("run {number}: {loss}; see {}", place.keep().display()));
        count_run(&mut rows, &hits, outcome);
        number += 1;
    }
    rows.into_iter().filter(|row| row.tried > 0).for_each(|row| table.add(row));
    Ok(())
}

/// Adds one run to the table: a loss counts against every kill on it.
fn count_run(rows: &mut [Row], hits: &[(usize, i64)], outcome: Result<Vec<verdict::Attempt>, String>) {
    for (target, _) in hits {
        rows[*target].count_shared(outcome.is_ok());
    }
    match outcome {
        Ok(attempts) => {
            for attempt in attempts {
                // A start belongs to the last kill before it.
                if let Some((target, _)) = hits.iter().rev().find(|(_, at)| *at <= attempt.started_ms) {
                    rows[*target].redone.push(attempt.before.saturating_sub(attempt.from));
                }
            }
        }
        Err(loss) => rows[hits.first().map_or(0, |(target, _)| *target)].add_loss(loss),
    }
}

/// One run and the kills on it.
struct KilledRun<'a> {
    place: &'a Place,
    /// The targets hit and when, in Unix milliseconds.
    hits: Vec<(usize, i64)>,
    /// The newest step ever acknowledged.
    newest: Option<u64>,
}

impl KilledRun<'_> {
    /// Runs to the end under these kills; returns every worker start, or an error naming the loss.
    fn run_to_end(
        &mut self,
        text: &str,
        planned_kills: &[PlannedKill],
        unbroken: &Trace,
    ) -> Failing<Vec<verdict::Attempt>> {
        let (mut client, run) = self.place.start(text)?;
        for planned in planned_kills {
            Self::wait_until(&run, planned.moment);
            self.kill_target(&run, planned.target);
            self.check_acknowledged(&run)?;
            if is_abandoned(&run) && !is_over(&run) {
                drop(client);
                client = self.place.resume(&run)?;
            }
        }
        drop(client);
        resume_to_end(self.place, &run)?;
        verdict::check(&run)?;
        verdict::read_trace(self.place, &run)?.check(unbroken)?;
        verdict::attempts(&run)
    }

    fn wait_until(run: &RunDir, moment: Moment) {
        match moment {
            Moment::After(time) => std::thread::sleep(time),
            Moment::Saving(time) => {
                let deadline = Instant::now() + Duration::from_millis(400);
                while Instant::now() < deadline && !is_saving(run) {
                    std::thread::sleep(Duration::from_micros(200));
                }
                std::thread::sleep(time);
            }
        }
    }

    /// Kills the target's processes if all of them are alive.
    fn kill_target(&mut self, run: &RunDir, target: usize) {
        let found = list_processes(run.path());
        let roles = TARGETS[target].roles;
        let pid = |role: &Role| found.iter().find(|(_, its)| *its == Some(*role)).map(|(pid, _)| *pid);
        let Some(pids) = roles.iter().map(pid).collect::<Option<Vec<u32>>>() else { return };
        // Kill the parent first, or it would restart the keeper.
        let killed: Vec<bool> = pids.into_iter().map(kill).collect();
        if killed.into_iter().all(|killed| killed) {
            self.hits.push((target, unix_ms()));
        }
    }

    fn check_acknowledged(&mut self, run: &RunDir) -> Failing<()> {
        let newest = verdict::newest_acknowledged(run)?;
        if newest < self.newest {
            return Err(format!("step {:?} was acknowledged, and now {newest:?} is the newest", self.newest).into());
        }
        self.newest = newest;
        Ok(())
    }
}

/// How often a run is resumed at its end before it counts as lost.
const RESUMES: usize = 3;

/// Waits until the run is finished; resumes it if its parent gave up after too many keeper deaths.
pub fn resume_to_end(place: &Place, run: &RunDir) -> Failing<()> {
    wait_for_end(run)?;
    for _ in 0..RESUMES {
        if is_over(run) {
            break;
        }
        drop(place.resume(run)?);
        wait_for_end(run)?;
    }
    match place::status(run).map(|status| status.state) {
        Some(RunState::Finished) => Ok(()),
        state => Err(format!("the run is {}, not finished", state.map_or("unknown", RunState::word)).into()),
    }
}

/// Waits while the run makes progress.
fn wait_for_end(run: &RunDir) -> Failing<()> {
    let durable = || place::status(run).map(|status| status.durable_step);
    loop {
        let before = durable();
        match wait_for("the end of the run", || is_abandoned(run).then_some(())) {
            Err(_) if durable() > before => {}
            ended => return ended,
        }
    }
}

/// Reports whether no process is left to continue the run.
pub fn is_abandoned(run: &RunDir) -> bool {
    !list_processes(run.path()).iter().any(|(_, role)| matches!(role, Some(Role::Parent | Role::Keeper)))
}

/// Reports whether the run has an end that no `resume` continues. The parent of a keeper that dies more than
/// five times in ten minutes asks for you; the run file's restart budget leaves no other reason to.
pub fn is_over(run: &RunDir) -> bool {
    let resumable = [RunState::Stopped, RunState::Interrupted, RunState::NeedsPerson];
    place::status(run).is_some_and(|status| status.state.is_over() && !resumable.contains(&status.state))
}

fn is_saving(run: &RunDir) -> bool {
    let entries = fs::read_dir(run.file(FOLDER)).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(".new-"))
}

fn unix_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(0))
}
