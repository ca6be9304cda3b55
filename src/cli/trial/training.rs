//! The trial of a command that nothing resumes: it trains for a while, and a checklist says what was seen.

use super::checklist::{self, Check, item, unknown};
use super::command::{self, FOLDERS, Options};
use super::figures::{LOSSES, evaluation_improves, is_steady, loss_falls};
use super::leg::{Leg, Limits, Over};
use crate::cli::measure::attempt::Start;
use crate::cli::measure::card::Card;
use crate::cli::measure::folder::TemporaryFolder;
use crate::cli::measure::interruption::Interruption;
use crate::cli::{Failure, Outcome, line};
use crate::config::command::CommandSpec;
use crate::config::run::Run;
use crate::format::{count, counted};
use crate::harness::find_output;
use crate::probe::host::resident_bytes;
use crate::protocol::claim::Devices;
use crate::protocol::worker::Eval;
use crate::store::run_dir::RunDir;
use crate::untrusted::text;
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Interval between two samples of the memory.
const SAMPLE: Duration = Duration::from_secs(1);

/// Trains for a while, and prints the checklist.
pub fn try_training(run: &Run, options: &Options<'_>, devices: &Devices, runs: &Path) -> Outcome {
    let Some(spec) = &run.command else { return Err(Failure::config("the run file has no command")) };
    let time = options.limit.unwrap_or(super::TIME);
    line!(
        "trial of {} for {} s: it can show whether the training starts, runs without a fault, keeps its memory steady, learns, \
         evaluates and saves",
        run.name,
        time.as_secs()
    );
    line!("it cannot prove a resume: {}", command::describe_missing(spec));
    fs::create_dir_all(runs)?;
    let mut folder = TemporaryFolder::create(runs, FOLDERS)?;
    if options.keep {
        folder.keep();
    }
    let tried = train(run, spec, options, (&folder.path, devices), time)?;
    let Some(seen) = tried else {
        drop(folder);
        line!("downshift resumes the script itself, so the trial goes on with its resume");
        return command::try_command(run, options, runs);
    };
    if options.keep {
        line!("kept in {}", text::path(&folder.path));
    }
    let checks = seen.checks();
    let failed = checklist::print(&checks);
    if let Err(failure) = &seen.ran {
        // The script's last lines; its log is gone.
        failure.message.lines().skip(1).for_each(|row| line!("  {}", row.trim_start()));
    }
    let unknown = checks.iter().filter(|check| check.holds.is_none()).count();
    line!("{} of {} checks passed, {failed} failed, {unknown} unknown", checks.len() - failed - unknown, checks.len());
    Ok(u8::from(failed > 0))
}

/// Trains until the time is over or the command ends. Returns none once a companion says that it resumes the script.
fn train(
    run: &Run,
    spec: &CommandSpec,
    options: &Options<'_>,
    (folder, devices): (&Path, &Devices),
    time: Duration,
) -> Result<Option<Seen>, Failure> {
    let dir = RunDir::create(folder, run)?;
    let limits = Limits { interruption: Interruption::listen()?, deadline: None };
    let memory = RefCell::new(Memory::watch(run, devices, &limits));
    let (began, since) = (Instant::now(), SystemTime::now());
    let start = Start { rung: run.first_rung(), number: 1, device: options.device, is_trial: true };
    let mut leg = Leg::start(&dir, &start)?;
    let ran = leg.run(&limits, |leg| {
        memory.borrow_mut().look(leg);
        began.elapsed() >= time || leg.has_resuming_companion()
    });
    limits.interruption.check()?;
    if matches!(ran, Ok(Over::Reached)) && leg.has_resuming_companion() {
        return Ok(None);
    }
    let (evals, saved) = (std::mem::take(&mut leg.evals), leg.saved);
    let losses: Vec<(u64, f64)> = leg.trace.losses().collect();
    let last = leg.end().last();
    let output = find_output(spec, &[dir.path(), &spec.directory], since);
    let used = memory.into_inner().used;
    Ok(Some(Seen { ran, took: began.elapsed(), last, losses, evals, used, saved, output }))
}

/// Samples the memory of the command once it trains: of the card that it uses most, or else of the host.
struct Memory {
    cards: Vec<Card>,
    used: Vec<u64>,
    next: Instant,
}

impl Memory {
    fn watch(run: &Run, devices: &Devices, limits: &Limits) -> Self {
        let cards = match devices {
            Devices::Cpu => Vec::new(),
            Devices::Cards(cards) => cards.iter().filter_map(|card| card.index).map(Card::watch).collect(),
        };
        let mut memory = Self { cards, used: Vec::new(), next: Instant::now() };
        for card in &mut memory.cards {
            card.clear(&run.watch.ending, || limits.interruption.is_asked());
        }
        memory
    }

    fn look(&mut self, leg: &Leg) {
        let now = Instant::now();
        if leg.trace.last() == 0 || now < self.next {
            return;
        }
        self.next = now + SAMPLE;
        let processes = leg.processes();
        for card in &mut self.cards {
            card.follow(processes.iter().copied());
            card.update_peak();
        }
        let of_cards = self.cards.iter().filter_map(Card::peak).map(|peak| peak.bytes).max();
        self.used.extend(of_cards.filter(|bytes| *bytes > 0).or_else(|| resident_bytes(&processes)));
    }
}

/// Everything that a training showed.
struct Seen {
    /// How it went, or why it failed.
    ran: Result<Over, Failure>,
    took: Duration,
    /// The last step.
    last: u64,
    losses: Vec<(u64, f64)>,
    evals: Vec<Eval>,
    used: Vec<u64>,
    /// The step of the newest declared checkpoint.
    saved: Option<u64>,
    /// An output that may be a checkpoint.
    output: Option<PathBuf>,
}

impl Seen {
    fn checks(&self) -> Vec<Check> {
        let evals = counted(self.evals.len() as u64, "evaluation");
        vec![
            self.started(),
            self.no_fault(),
            is_steady("memory stable", &self.used)
                .unwrap_or_else(|| unknown("memory stable", self.why_memory_is_unknown())),
            loss_falls(&self.losses)
                .unwrap_or_else(|| unknown("loss falls", format!("{} of {LOSSES} losses seen", self.losses.len()))),
            evaluation_improves("evaluation improves", &self.evals).unwrap_or_else(|| {
                unknown("evaluation improves", format!("{evals} seen; two with a loss or an accuracy are needed"))
            }),
            self.full_cycle(),
        ]
    }

    fn why_memory_is_unknown(&self) -> &'static str {
        match self.last {
            0 => "it named no step, so nothing tells loading from training",
            _ => "too few samples while it took steps",
        }
    }

    fn started(&self) -> Check {
        const WHAT: &str = "started";
        match (&self.ran, self.last) {
            (Err(_), 0) => item(WHAT, false, "it failed before its first step"),
            (Ok(_), 0) => unknown(WHAT, format!("it ran for {} s and named no step", self.took.as_secs())),
            (_, last) => item(WHAT, true, format!("step {} after {} s", count(last), self.took.as_secs())),
        }
    }

    fn no_fault(&self) -> Check {
        const WHAT: &str = "no fault";
        let long = self.took.as_secs();
        match &self.ran {
            Ok(Over::Reached) => item(WHAT, true, format!("it ran for {long} s")),
            Ok(Over::Finished) => item(WHAT, true, format!("it ended with exit code 0 after {long} s")),
            Err(failure) => item(WHAT, false, failure.message.lines().next().unwrap_or_default()),
        }
    }

    /// Reports whether it trained, evaluated and saved. A longer trial may show more.
    fn full_cycle(&self) -> Check {
        const WHAT: &str = "full cycle seen";
        let saved = self.saved.map(|step| format!("saved step {}", count(step)));
        let saved = saved.or_else(|| self.output.as_ref().map(|path| format!("wrote {}", text::path(path))));
        let steps = (self.last > 0).then(|| format!("trained to step {}", count(self.last)));
        let evaluated = self.evals.last().map(|eval| format!("evaluated at step {}", count(eval.step)));
        let parts = [(steps, "a step"), (evaluated, "an evaluation"), (saved, "a save")];
        let missing: Vec<&str> = parts.iter().filter(|(seen, _)| seen.is_none()).map(|(_, what)| *what).collect();
        let seen: Vec<&str> = parts.iter().filter_map(|(seen, _)| seen.as_deref()).collect();
        let seen = seen.join(", ");
        if missing.is_empty() {
            return item(WHAT, true, seen);
        }
        let but = if seen.is_empty() { String::new() } else { format!("; {seen}") };
        unknown(WHAT, format!("not seen: {}{but}", missing.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, Over, Seen};
    use crate::protocol::worker::Eval;
    use std::time::Duration;

    fn silent() -> Seen {
        let (losses, evals, used) = (Vec::new(), Vec::new(), Vec::new());
        let ran = Ok(Over::Reached);
        Seen { ran, took: Duration::from_mins(5), last: 0, losses, evals, used, saved: None, output: None }
    }

    fn holds(seen: &Seen) -> [Option<bool>; 6] {
        let holds: Vec<Option<bool>> = seen.checks().iter().map(|check| check.holds).collect();
        holds.try_into().unwrap()
    }

    #[test]
    fn nothing_is_claimed_of_what_was_not_seen() {
        assert_eq!(holds(&silent()), [None, Some(true), None, None, None, None]);
        let failed = Seen { ran: Err(Failure::new(1, "the command failed after step 0: exit code 7")), ..silent() };
        assert_eq!(holds(&failed), [Some(false), Some(false), None, None, None, None]);
        let eval = |loss: f64| Eval { step: 10, loss: Some(loss), ..Eval::default() };
        let whole = Seen {
            last: 20,
            losses: (1..=20).map(|step| (step, 1.0 / step as f64)).collect(),
            evals: vec![eval(2.0), eval(1.0)],
            used: vec![100, 100],
            output: Some("out/model.pt".into()),
            ..silent()
        };
        assert_eq!(holds(&whole), [Some(true); 6]);
        assert_eq!(whole.checks()[5].seen, "trained to step 20, evaluated at step 10, wrote out/model.pt");
        assert_eq!(holds(&Seen { output: None, ..whole })[5], None, "a longer trial may see a save");
    }

    #[test]
    fn the_memory_of_a_script_that_names_no_step_is_unknown_for_that_reason() {
        let why = |last: u64| Seen { last, ..silent() }.checks()[2].seen.clone();
        assert!(why(0).contains("named no step"), "{}", why(0));
        assert!(why(1).contains("too few samples"), "{}", why(1));
    }
}
