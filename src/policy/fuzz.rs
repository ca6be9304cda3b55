//! Fuzz test: runs through random faults on a virtual clock, from start to end. The
//! simulated world answers as worker, GPU, disk and user would. One seed determines a whole run; it is
//! printed on failure.

mod plan;
mod rungs;
mod trouble;
mod worker;

use super::command::CommandTimes;
use super::event::{Effect, Event, Evidence, Limits, Signal};
use super::ledger::Ledger;
use super::lifecycle::{Lifecycle, Outcome, Then};
use super::machine::Policy;
use super::tests::class_of;
use crate::config::climb::Stage;
use crate::config::knobs::{Relief, Watch};
use crate::config::units::Every;
use crate::faults::plausible_relief;
use crate::outlook::continuation::Commands;
use crate::protocol::capability::Capability;
use crate::protocol::cause::Cause;
use crate::protocol::control::{Request, Target};
use crate::protocol::exit::Exit;
use crate::protocol::worker::{
    DoneReason, Event as WorkerEvent, Failed, FailureClass, Hello, Order, Phase, Saved, Skipped, Step,
};
use crate::recipe::batch::Position;
use crate::recipe::seed::Stream;
use std::collections::BTreeMap;
use std::time::Duration;

/// Runs, unless DOWNSHIFT_FUZZ_RUNS asks for more.
const RUNS: u64 = 2_000;
/// Steps of a run.
const STEPS: u64 = 600;
/// Longest allowed wait: the longest limit plus a margin.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// One simulated worker.
struct Worker {
    step: u64,
    stopping: Option<bool>,
    asked_to_save: bool,
    /// It neither steps nor listens.
    hung: bool,
    /// SIGKILL does not reach it.
    unkillable: bool,
}

/// Evidence that a stage of the climb plan must show.
#[derive(Debug, Default)]
struct Calm {
    /// Step of the newest disturbance.
    disturbed: u64,
    /// Newest proven checkpoint.
    proven: u64,
    /// The worker has reported its failure.
    failed: bool,
}

struct World {
    seed: u64,
    dice: Stream,
    policy: Policy,
    now: Duration,
    worker: Option<Worker>,
    checkpoints: Vec<u64>,
    gpu: bool,
    autopilot: bool,
    plan: Vec<Stage>,
    calm: Calm,
    /// The rungs that fail.
    rungs: rungs::Rungs,
    /// Probability that a step goes wrong, in thousandths.
    malice: u64,
    starts: u64,
    since_durable: u32,
    most_durable: Option<u64>,
    fault_starts: Vec<Duration>,
    expects_fault_start: bool,
    outcome: Option<Outcome>,
}

fn limits(plan: &[Stage]) -> Limits {
    let names = ["full", "accumulate", "frugal", "plain", "cool", "safe"];
    let relieves = vec![
        vec![],
        vec![Relief::Memory],
        vec![Relief::Memory],
        vec![Relief::Kernels],
        vec![Relief::Heat],
        vec![Relief::Memory, Relief::Kernels, Relief::Numerics],
    ];
    let mut watch = Watch::default();
    watch.climb.after = 80;
    watch.spike.back = 20;
    (watch.checkpoint_age, watch.restart_every) = (Every::Seconds(90.0), Every::Seconds(45.0));
    let (rungs, save_every) = (names.map(str::to_owned).to_vec(), vec![Every::Steps(10); names.len()]);
    let commands = Commands::built_in("downshift resume");
    Limits {
        commands,
        rungs,
        relieves,
        barriers: BTreeMap::new(),
        watch,
        release_time: Duration::from_secs(2),
        plan: plan.to_vec(),
        save_every,
        capability: Capability::BUILT_IN,
        times: CommandTimes::default(),
        knobs: Vec::new(),
        unfused: Vec::new(),
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Stream::new(seed);
        let (gpu, autopilot) = (dice.below(2) == 0, dice.below(4) != 0);
        let malice = [0, 1, 5, 20, 200][dice.below(5) as usize];
        let plan = plan::draw_plan(&mut dice);
        let first = plan.first().map_or(0, |stage| stage.rung);
        let rungs = rungs::Rungs::draw(&mut dice, first);
        let ledger = Ledger::begin(first, &plan);
        let mut policy = Policy::new(limits(&plan), first, ledger, gpu.then_some(1 << 30));
        policy.ledger.autopilot = Some(autopilot);
        Self {
            seed,
            dice,
            policy,
            now: Duration::ZERO,
            worker: None,
            checkpoints: Vec::new(),
            gpu,
            autopilot,
            plan,
            calm: Calm::default(),
            rungs,
            malice,
            starts: 0,
            since_durable: 0,
            most_durable: None,
            fault_starts: Vec::new(),
            expects_fault_start: false,
            outcome: None,
        }
    }

    /// Runs until the run is over; returns the outcome.
    fn live(mut self) -> Outcome {
        self.decide(Event::Begin);
        let mut turns = 0;
        while self.outcome.is_none() {
            turns += 1;
            assert!(turns < 100_000, "seed {}: no end, {:?}", self.seed, self.policy.life());
            self.turn();
            if turns % 97 == 0 && self.dice.below(40) == 0 {
                self.lose_keeper();
            }
        }
        assert!(
            self.worker.is_none() || self.worker.as_ref().is_some_and(|worker| worker.unkillable),
            "seed {}",
            self.seed
        );
        self.outcome.unwrap()
    }

    fn turn(&mut self) {
        let wait = self.policy.next_wake();
        let rests = matches!(self.policy.life(), Lifecycle::Paused);
        assert!(wait.is_some() || rests, "seed {}: {:?} waits for nothing", self.seed, self.policy.life());
        if let Some(due) = wait {
            assert!(due <= self.now + LONGEST_WAIT, "seed {}: {:?} waits too long", self.seed, self.policy.life());
        }
        if rests {
            // The user resumes the run, with a fresh budget.
            (self.since_durable, self.expects_fault_start) = (0, false);
            self.fault_starts.clear();
            self.rungs.refresh();
            return self.decide(Event::Request(Request::Resume));
        }
        match &self.worker {
            Some(worker) if !worker.hung => self.work(),
            _ => {
                self.now += Duration::from_secs(1 + self.dice.below(20));
                self.measure();
                self.decide(Event::Tick);
            }
        }
    }

    /// Takes one step of a healthy worker, or injects a fault.
    fn work(&mut self) {
        self.now += Duration::from_millis(100 + self.dice.below(100));
        let Some(worker) = &mut self.worker else { return };
        if let Some(save) = worker.stopping {
            let step = worker.step;
            if save && self.dice.below(20) != 0 {
                self.save(step);
            }
            return self.die(Exit::with_code(3));
        }
        if std::mem::take(&mut worker.asked_to_save) {
            let step = worker.step;
            if self.dice.below(10) != 0 {
                return self.save(step);
            }
            return self.say(WorkerEvent::SaveFailed { step, message: "x".to_owned(), of_disk: false });
        }
        worker.step += 1;
        let step = worker.step;
        if self.rungs.crashes_at(step) {
            return self.die(Exit::by_signal(11));
        }
        if self.dice.below(1000) < self.malice {
            return self.mischief(step);
        }
        if self.dice.below(200) == 0 {
            self.say(WorkerEvent::KernelsTuned);
        }
        let loss = Some(1.0 / (step as f64).sqrt() * (1.0 + 0.01 * f64::from(self.dice.unit())));
        let step_event = Step { step, samples: step * 32, loss, compute_ms: 100.0, ..Step::default() };
        self.say(WorkerEvent::Step(step_event));
        if step.is_multiple_of(10) && self.worker.as_ref().is_some_and(|worker| worker.step == step) {
            self.save(step);
        }
        if step.is_multiple_of(25) {
            self.measure();
        }
        if step >= STEPS && self.worker.as_ref().is_some_and(|worker| worker.stopping.is_none()) {
            self.save(step);
            self.say(WorkerEvent::Done { reason: DoneReason::Finished, step });
            self.die(Exit::with_code(0));
        }
    }

    fn decide(&mut self, event: Event) {
        let (before, asked) = (self.policy.ledger.climb.plan.stage(), matches!(event, Event::Request(_)));
        if let Event::Worker(WorkerEvent::Skipped(skipped)) = &event {
            self.calm.disturbed = skipped.step;
        }
        let effects = self.policy.decide(event, self.now);
        self.judge_shift(asked);
        // A stage whose rung cannot start is left again.
        self.judge_plan(before, asked || self.rungs.died_on_trial());
        for effect in effects {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        let seed = self.seed;
        match effect {
            Effect::Start(start) => self.start(start.rung),
            Effect::Order(order) => {
                let worker = self.worker.as_mut().unwrap_or_else(|| panic!("seed {seed}: an order without a worker"));
                match order {
                    Order::Stop { checkpoint } => worker.stopping = Some(checkpoint),
                    // A hung worker does not save; any other may fail to.
                    Order::Checkpoint if worker.hung => {}
                    Order::Checkpoint => worker.asked_to_save = true,
                    Order::Adopt { .. } => panic!("seed {seed}: no keeper died"),
                    Order::Stacks => panic!("seed {seed}: only a command has stacks"),
                    Order::Begin => panic!("seed {seed}: the keeper sends this itself"),
                }
            }
            Effect::Signal(signal) => {
                let worker = self.worker.as_ref().unwrap_or_else(|| panic!("seed {seed}: a signal without a worker"));
                let dies = signal == Signal::Kill || !worker.hung;
                if dies && !worker.unkillable {
                    self.expect();
                    let number = if signal == Signal::Kill { 9 } else { 15 };
                    self.worker = None;
                    self.decide(Event::Exited(Exit::by_signal(number), Cause::new(FailureClass::Killed, Vec::new())));
                }
            }
            Effect::GoBack(step) => {
                if let Some(older) = self.checkpoints.iter().copied().filter(|known| *known < step).max() {
                    self.checkpoints.retain(|known| *known <= older);
                    self.policy.set_durable_step(Some(older));
                }
            }
            Effect::PutBack(steps) => self.checkpoints.extend(steps),
            Effect::RollBack(back) => {
                let old =
                    self.checkpoints.iter().copied().filter(|step| *step <= back.before.saturating_sub(back.steps));
                if let Some(step) = old.max() {
                    self.checkpoints.retain(|known| *known <= step);
                    self.policy.set_durable_step(Some(step));
                }
            }
            Effect::Finish(outcome) => {
                assert!(self.outcome.is_none(), "seed {seed}: ended twice");
                self.judge_end(&outcome);
                self.outcome = Some(outcome);
            }
            Effect::LeaveOut { .. }
            | Effect::Trouble(..)
            | Effect::UncountShift
            | Effect::Asked(..)
            | Effect::Journal(..)
            | Effect::Alarm { .. }
            | Effect::AlarmOver(_)
            | Effect::Cancel(_)
            | Effect::Reply(_) => {}
        }
    }
}

#[test]
fn runs_through_random_faults_all_come_to_an_end() {
    let runs = std::env::var("DOWNSHIFT_FUZZ_RUNS").ok().map_or(RUNS, |runs| runs.parse().unwrap());
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..runs {
        let word = match World::new(seed).live() {
            Outcome::Finished => "finished",
            Outcome::Stopped => "stopped",
            Outcome::Refused(_) => "refused",
            Outcome::Failed(..) => "failed",
            Outcome::NeedsPerson(_) => "needs attention",
        };
        *ends.entry(word).or_default() += 1;
    }
    // All four outcomes occur; otherwise the world is too kind or too cruel for the test to mean anything.
    assert_eq!(ends.len(), 4, "{ends:?}");
    assert!(ends["finished"] > runs / 10, "{ends:?}");
}
