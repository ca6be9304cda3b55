//! One start of the command that is tried: followed by its harness until a goal is reached, then killed or ended.

use super::trace::Trace;
use crate::cli::Failure;
use crate::cli::measure::attempt::{Attempt, Heard, Start};
use crate::cli::measure::folder::end_of_log;
use crate::cli::measure::interruption::Interruption;
use crate::keeper::witness::{Ending, Witness};
use crate::protocol::companion::{CompanionNews, Grade, IgnoredKnob};
use crate::protocol::exit::Exit;
use crate::protocol::worker::{CommandNews, Eval, Event, Failed, FailureClass, Hello, Order};
use crate::store::run_dir::RunDir;
use std::io;
use std::time::{Duration, Instant};

/// Interval at which signals and limits are checked.
const LOOK: Duration = Duration::from_millis(200);
/// Time without any sign of life after which a command is given up.
const SILENCE: Duration = Duration::from_mins(15);

/// The limits of a trial.
pub struct Limits {
    pub interruption: Interruption,
    /// When the whole trial has to be over.
    pub deadline: Option<Instant>,
}

/// Why a start is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// It reached its goal, and still runs.
    Reached,
    /// It ended on its own, without an error.
    Finished,
}

/// A start of the command.
pub struct Leg {
    attempt: Attempt,
    log: Witness,
    dir: RunDir,
    /// The steps that it showed.
    pub trace: Trace,
    /// The newest checkpoint that it completed.
    pub saved: Option<u64>,
    /// Its evaluations.
    pub evals: Vec<Eval>,
    /// The step of the checkpoint that it resumed from.
    pub resumed_from: Option<u64>,
    /// The companion in the command.
    companion: Option<Box<CompanionNews>>,
    exit: Option<(u32, Exit)>,
    failed: Option<Failed>,
}

impl Leg {
    /// Starts the command.
    pub fn start(dir: &RunDir, start: &Start<'_>) -> io::Result<Self> {
        let mut log = Witness::new(dir.file("worker.log"));
        log.begin_attempt();
        Ok(Self {
            attempt: Attempt::start(dir, start)?,
            log,
            dir: dir.clone(),
            trace: Trace::default(),
            saved: None,
            evals: Vec::new(),
            resumed_from: None,
            companion: None,
            exit: None,
            failed: None,
        })
    }

    /// Runs until the goal is reached, or the command has ended. It is an error if the command fails.
    pub fn run(&mut self, limits: &Limits, is_reached: impl Fn(&Self) -> bool) -> Result<Over, Failure> {
        let mut last_sign = Instant::now();
        loop {
            match self.attempt.hear(LOOK) {
                Heard::Event(event) => {
                    self.take(event);
                    last_sign = Instant::now();
                }
                Heard::Silence => {}
                Heard::End => return self.judge(),
            }
            if self.exit.is_none() && is_reached(self) {
                return Ok(Over::Reached);
            }
            limits.interruption.check()?;
            let step = self.trace.last();
            if limits.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Failure::new(1, format!("the time of --for is over at step {step}; raise it")));
            }
            if last_sign.elapsed() >= SILENCE {
                let minutes = SILENCE.as_secs() / 60;
                return Err(Failure::new(1, format!("the command has been silent for {minutes} min at step {step}")));
            }
        }
    }

    fn take(&mut self, event: Event) {
        self.trace.take(&event);
        match event {
            Event::Hello(Hello { resumed_from, .. }) => self.resumed_from = resumed_from,
            Event::Saved(saved) => self.saved = self.saved.max(Some(saved.step)),
            Event::Eval(eval) => self.evals.push(eval),
            Event::Failed(failed) => self.failed = Some(failed),
            Event::Command { news: CommandNews::Companion(news) } => self.companion = Some(news),
            Event::Command { news: CommandNews::Ended { pid, code, signal, .. } } => {
                self.exit = Some((pid, Exit::of_command(code, signal)));
            }
            _ => {}
        }
    }

    /// Reports whether a companion saves the training and resumes it.
    pub fn has_resuming_companion(&self) -> bool {
        self.companion.as_ref().is_some_and(|companion| companion.saves && companion.grade != Grade::None)
    }

    /// Returns the knobs that the script does not follow, as far as a companion sees them.
    pub fn ignored_knobs(&self) -> Vec<IgnoredKnob> {
        self.companion.as_ref().map_or_else(Vec::new, |companion| companion.ignored.clone())
    }

    /// Returns the living processes of the command.
    pub fn processes(&self) -> Vec<u32> {
        self.attempt.processes()
    }

    /// Asks the command to save.
    pub fn ask_to_save(&mut self) {
        self.attempt.send(&Order::Checkpoint);
    }

    /// Kills every process of the command, without a signal that it could handle.
    pub fn kill(self) -> Trace {
        self.attempt.kill_command();
        self.end()
    }

    /// Ends the command. Returns the steps that it showed until now.
    pub fn end(mut self) -> Trace {
        self.attempt.end();
        self.trace
    }

    /// Judges a command that has ended on its own.
    fn judge(&mut self) -> Result<Over, Failure> {
        let log = end_of_log(&self.dir.file("worker.log"));
        let Some((pid, exit)) = self.exit else {
            return Err(Failure::new(
                1,
                format!("the command was not started, or the process around it was killed{log}"),
            ));
        };
        if exit.code == Some(0) && self.failed.is_none() {
            return Ok(Over::Finished);
        }
        let ending = Ending { exit, pid: Some(pid), failed: self.failed.as_ref(), ended_for: None, log_end: None };
        let class = self.log.judge(&ending).class;
        let named = if class == FailureClass::Unknown { String::new() } else { format!(" ({class})") };
        let step = self.trace.last();
        Err(Failure::new(class.exit_code(), format!("the command failed after step {step}: {exit}{named}{log}")))
    }
}
