//! Where an attempt trains on, decided by what was seen of it.

use super::{ActualStart, Resumed};
use std::path::PathBuf;

/// Steps by which the first step in the output may be ahead of the checkpoint, where the interval of the output is not
/// known to be wider.
const LOG_INTERVAL: u64 = 100;

/// Evidence of where an attempt trains on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// The step that it was asked to resume from.
    pub asked: u64,
    /// The steps of the other checkpoints of the run.
    pub others: Vec<u64>,
    /// The step that a companion restored which resumes the training itself; 0 if it restored none.
    pub told: Option<u64>,
    /// The files that the process loaded, with the steps of the run's checkpoints.
    pub loads: Option<Loads>,
    /// The first step in the output.
    pub printed: Option<Printed>,
    /// The script counts from its beginning whatever it loads, so its steps show nothing.
    pub counts_anew: bool,
    /// Losses of the run before.
    pub before: LossesBefore,
    /// The first loss.
    pub loss: Option<f64>,
}

/// Files and states that a process loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loads {
    /// The files, the newest last.
    pub files: Vec<Load>,
    /// See [`Loaded::optimizer_steps`].
    pub optimizer_steps: Option<u64>,
    /// See [`Loaded::restored`].
    pub restored: bool,
}

/// A file that was loaded, and what it is to the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// Its path.
    pub file: PathBuf,
    /// The step of the run's checkpoint that it belongs to.
    pub checkpoint: Option<u64>,
    /// The step that it holds, if it says so.
    pub holds: Option<u64>,
}

/// The first step in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Printed {
    /// A step of the training.
    Step(u64),
    /// A count that may be that of an epoch.
    Uncertain(u64),
}

impl Printed {
    fn count(self) -> u64 {
        match self {
            Self::Step(count) | Self::Uncertain(count) => count,
        }
    }
}

/// Losses of the run before an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LossesBefore {
    /// The first one of the run.
    pub first: Option<f64>,
    /// The last ones up to the checkpoint.
    pub last: Vec<f64>,
    /// The widest gap between their steps.
    pub interval: u64,
}

/// The sign that the first loss gives.
#[derive(Debug, Clone, Copy, PartialEq)]
enum LossSign {
    /// It is where the training was.
    Continues,
    /// It is where the run began.
    Untrained {
        loss: f64,
        before: f64,
    },
    Unclear,
}

/// Decides where an attempt trains on.
#[must_use]
pub fn judge(evidence: &Evidence) -> Resumed {
    if let Some(step) = evidence.told {
        return evidence.place(step, None);
    }
    evidence.loads.as_ref().and_then(|loads| judge_loads(evidence, loads)).unwrap_or_else(|| judge_output(evidence))
}

/// Decides by what the process loaded; none if that says nothing.
fn judge_loads(evidence: &Evidence, loads: &Loads) -> Option<Resumed> {
    let newest = |is: &dyn Fn(&Load) -> bool| loads.files.iter().rev().find(|load| is(load));
    let counted = loads.optimizer_steps.filter(|steps| *steps > 0);
    let is_asked = |step: Option<u64>| step.is_some_and(|step| evidence.is_asked(step));
    // A script may read several checkpoints. Its optimizer shows which one it goes on from.
    let of_optimizer = newest(&|load| load.checkpoint.is_some() && load.checkpoint == counted && !is_asked(counted));
    let asked = || newest(&|load| is_asked(load.checkpoint) || load.checkpoint.is_none() && is_asked(load.holds));
    let other = || newest(&|load| load.checkpoint.is_some());
    // Any other file may be a pretrained model: its step counts only where something else shows the same.
    let confirmed = || {
        newest(&|load| {
            let shows = |step: u64| counted == Some(step) || evidence.prints_after(step);
            load.holds.is_some_and(|step| step > 0 && shows(step))
        })
    };
    let found = of_optimizer.or_else(asked).or_else(other).or_else(confirmed);
    if let Some(load) = found {
        let step = load.checkpoint.or(load.holds).unwrap_or(evidence.asked);
        return Some(evidence.place(step, Some(load.file.clone())));
    }
    let file = loads.files.last().map(|load| load.file.clone());
    match loads.optimizer_steps {
        Some(0) => Some(judge_fresh(evidence)),
        None if !loads.restored && loads.files.is_empty() => Some(judge_fresh(evidence)),
        Some(steps) if evidence.is_asked(steps) || evidence.is_asked_less_skips(steps) => {
            Some(evidence.place(evidence.asked, file))
        }
        Some(steps) if evidence.others.contains(&steps) || evidence.prints_after(steps) => {
            Some(evidence.place(steps, file))
        }
        // It may count updates where the script counts micro-batches.
        _ => None,
    }
}

/// Decides about a process whose optimizer is new, and that loaded no checkpoint of the run.
fn judge_fresh(evidence: &Evidence) -> Resumed {
    let shown = judge_output(evidence);
    match shown {
        // Something was loaded after all, by a way that nobody sees.
        Resumed::Verified { step: asked, .. } => Resumed::Unverified { asked, counts_from: None },
        Resumed::Unverified { asked, .. } if evidence.has_trained_weights() => {
            let begins_at = evidence.printed.map(Printed::count).filter(|count| *count <= asked);
            Resumed::Unverified { asked, counts_from: begins_at }
        }
        _ => evidence.place(0, None),
    }
}

/// Decides by the output alone.
fn judge_output(evidence: &Evidence) -> Resumed {
    let asked = evidence.asked;
    let sign = evidence.compare_losses();
    let unverified = |counts_from| Resumed::Unverified { asked, counts_from };
    let step = match evidence.printed {
        None if evidence.counts_anew => {
            return match sign {
                LossSign::Untrained { .. } => evidence.place(0, None),
                // The loss does not tell one checkpoint from another.
                LossSign::Continues | LossSign::Unclear => unverified(None),
            };
        }
        None => return unverified(None),
        Some(Printed::Uncertain(count)) => Err(count),
        Some(Printed::Step(step)) => Ok(step),
    };
    // Where the output names every tenth step, 10 may follow step 5 as well as the beginning.
    let may_begin = step.is_err() || step.is_ok_and(|step| step <= evidence.before.interval.max(1));
    let goes_on = step.is_ok_and(|step| evidence.goes_on_at(step));
    match (sign, step) {
        (LossSign::Untrained { .. }, _) if may_begin => evidence.place(0, None),
        (LossSign::Untrained { loss, before }, _) if goes_on => {
            Resumed::Contradicted { asked, found: ActualStart::UntrainedLoss { loss, before } }
        }
        (LossSign::Continues, Ok(step)) if evidence.restarts_at(step) => unverified(None),
        _ if goes_on && (!may_begin || sign == LossSign::Continues) => evidence.place(asked, None),
        (_, Ok(step)) if !may_begin => {
            let other = evidence.others.iter().copied().filter(|other| evidence.follows(*other, step)).max();
            other.map_or_else(
                || unverified(Some(step).filter(|step| *step <= asked)),
                |other| evidence.place(other, None),
            )
        }
        _ => unverified(evidence.printed.map(Printed::count).filter(|count| *count <= asked)),
    }
}

impl Evidence {
    /// Returns the judgement on an attempt that trains on from a step; 0 is the beginning.
    fn place(&self, step: u64, file: Option<PathBuf>) -> Resumed {
        let asked = self.asked;
        match step {
            0 if asked > 0 => Resumed::Contradicted { asked, found: ActualStart::Beginning },
            step if self.is_asked(step) => Resumed::Verified { step: asked, file },
            step => Resumed::Contradicted { asked, found: ActualStart::Checkpoint { step, file } },
        }
    }

    /// Reports whether a step is that of the checkpoint asked for. A script may count from 0 in its files.
    fn is_asked(&self, step: u64) -> bool {
        step == self.asked || step > 0 && step.abs_diff(self.asked) == 1 && !self.others.contains(&step)
    }

    /// Reports whether an optimizer that left out some updates may still have reached this count at the checkpoint.
    fn is_asked_less_skips(&self, steps: u64) -> bool {
        let fewer = self.asked.checked_sub(steps);
        fewer.is_some_and(|fewer| fewer <= self.asked / 50) && !self.others.contains(&steps)
    }

    /// Reports whether the first step in the output follows this one.
    fn prints_after(&self, step: u64) -> bool {
        matches!(self.printed, Some(Printed::Step(first)) if self.follows(step, first))
    }

    fn follows(&self, step: u64, first: u64) -> bool {
        first >= step && first - step <= self.before.interval.max(1)
    }

    /// Reports whether a first step in the output is that of a training that goes on from the checkpoint. A script that
    /// counts from 0 names the step of the checkpoint again.
    fn goes_on_at(&self, first: u64) -> bool {
        let least = self.others.iter().any(|other| *other > self.asked && *other < first);
        let reach = if least { self.before.interval.max(1) } else { self.before.interval.max(LOG_INTERVAL) };
        first >= self.asked && first - self.asked <= reach
    }

    /// Reports whether the first loss is where the training was.
    #[must_use]
    pub fn has_trained_weights(&self) -> bool {
        self.compare_losses() == LossSign::Continues
    }

    /// Reports whether a script that trains on from the checkpoint, and names this step first, counts from its beginning again.
    #[must_use]
    pub fn restarts_at(&self, first: u64) -> bool {
        first <= self.before.interval.max(1) && first < self.asked && !self.goes_on_at(first)
    }

    /// Compares the first loss with those before. They say something only if the run has come far from its first loss.
    fn compare_losses(&self) -> LossSign {
        let (Some(loss), Some(first)) = (self.loss, self.before.first) else { return LossSign::Unclear };
        let mut last = self.before.last.clone();
        last.sort_by(f64::total_cmp);
        let (Some(before), Some(highest)) = (last.get(last.len() / 2).copied(), last.last().copied()) else {
            return LossSign::Unclear;
        };
        let fallen = first - before;
        if fallen <= 0.0 || highest > before + 0.25 * fallen {
            return LossSign::Unclear;
        }
        match (loss - before) / fallen {
            share if share >= 0.6 => LossSign::Untrained { loss, before },
            share if share <= 0.3 => LossSign::Continues,
            _ => LossSign::Unclear,
        }
    }
}
