//! The one bar that counts training steps. A program draws many bars (downloads, evaluations, tokenising); a bar is
//! chosen only when it shows a loss of training itself, is called `steps` or `train`, or is redrawn around a line
//! that reports one, as the Hugging Face Trainer does.

use super::bar::{Bar, Maker};
use super::clock::{Clock, Epoch, Extent, Placed, Position};
use super::line::Line;
use super::names;

/// Descriptions of bars that count training steps.
const STEP_BARS: [&str; 3] = ["step", "steps", "global_steps"];
const TRAINING_BARS: [&str; 3] = ["train", "training", "train_epoch"];
/// Descriptions of bars around them.
const EPOCH_BARS: [&str; 2] = ["epoch", "epochs"];

/// Words of bars that count what comes before the training: `train: Scanning labels… 24/24`.
const PREPARATIONS: [&str; 8] =
    ["scanning", "caching", "loading", "downloading", "tokenizing", "mapping", "encoding", "filtering"];

/// Words of bars that count samples of the data set before it is used: `Adding EOS to train dataset: 100%`.
const DATA_SETS: [&str; 2] = ["dataset", "datasets"];

/// Bars that are remembered before one is chosen.
const MAX_CANDIDATES: usize = 8;

/// Metrics by name.
pub type Values = Vec<(String, f64)>;

/// The identity of a bar across its redraws.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    maker: Maker,
    words: Vec<String>,
    names_epoch: bool,
    out_of: u64,
}

/// How a bar came to be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// It shows a loss, or says that it counts training.
    Own,
    /// It counts all steps of the training: redrawn around a line of metrics, or called `steps`.
    Whole,
}

/// A bar that may turn out to count training steps.
#[derive(Debug)]
struct Candidate {
    identity: Identity,
    /// The counts at which the current pass began, and of the last redraw.
    first: u64,
    last: u64,
}

#[derive(Debug)]
struct Chosen {
    identity: Identity,
    reason: Reason,
    clock: Clock,
    /// The counts at which the current pass began, and of the last redraw.
    first: u64,
    last: Option<u64>,
    /// The loop iterates over the bar and sets its values within a step. Then the count lags behind the values
    /// until the bar itself draws it.
    is_iterated: bool,
    /// The values last drawn.
    shown: Values,
    /// How often its count advanced, and how often its values changed, while none was NaN.
    advances: u64,
    changes: u64,
    /// Values that await the step they belong to.
    waiting: Values,
    /// The epoch of the current pass, within a bar that counts epochs.
    nested_epoch: u64,
}

/// The bars of one stream.
#[derive(Debug, Default)]
pub struct ProgressBars {
    /// The step that the training resumed from, if the stream begins within it.
    resumed_from: Option<u64>,
    chosen: Option<Chosen>,
    /// The bars drawn before one was chosen, newest last.
    candidates: Vec<Candidate>,
    /// The epoch announced by a line, such as Keras' `Epoch 2/3`.
    epoch: Option<Epoch>,
    /// A bar around the others that counts epochs: its count and its end.
    outer: Option<(u64, u64)>,
}

/// A redraw of the chosen bar.
#[derive(Debug)]
pub struct Redraw {
    pub placed: Option<Placed>,
    pub epoch: Option<Epoch>,
    /// The new values beside the bar.
    pub values: Values,
    /// Earlier values whose step the bar did not show.
    pub unplaced: Values,
}

impl ProgressBars {
    /// Notes that the stream begins within the training, after this step.
    pub fn resume(&mut self, from: u64) {
        self.resumed_from = Some(from);
    }

    /// Reports whether the chosen bar knows its step.
    pub fn is_chosen(&self) -> bool {
        self.chosen.is_some()
    }

    /// Takes an epoch that a line of its own announces.
    pub fn announce_epoch(&mut self, epoch: Epoch) {
        self.epoch = Some(epoch);
    }

    /// Returns values that await a redraw which may never come.
    pub fn take_waiting(&mut self) -> Values {
        self.chosen.as_mut().map(Chosen::take_waiting).unwrap_or_default()
    }

    /// Takes a redraw. `is_below` says that it was drawn below another bar, and `frames_loss` that a line with a
    /// loss of training was just written above it.
    pub fn draw(&mut self, bar: &Bar<'_>, is_below: bool, frames_loss: bool) -> Option<Redraw> {
        let description = Line::read(bar.description);
        let words = &description.other_words;
        let is_preparation = words.iter().take(2).any(|word| PREPARATIONS.contains(&word.as_str()))
            || words.iter().any(|word| DATA_SETS.contains(&word.as_str()));
        let is_called_evaluation = words.iter().any(|word| names::is_evaluation(word));
        let line = if is_called_evaluation { Line::read(bar.postfix) } else { bar.line() };
        // Only a training has a learning rate: a job may be called `test`.
        let trains = line.has_training_loss() && line.values.iter().any(|(name, _)| name == "lr");
        if is_preparation || (is_called_evaluation && !trains) {
            return None;
        }
        if matches!(&words[..], [word] if EPOCH_BARS.contains(&word.as_str())) && !line.has_training_loss() {
            self.outer = Some((bar.count, bar.out_of));
            return None;
        }
        let identity = Identity {
            maker: bar.maker,
            words: description.other_words,
            names_epoch: description.epoch.is_some(),
            out_of: bar.out_of,
        };
        if self.chosen.is_none() {
            let first = self.note_candidate(&identity, bar.count);
            let reason = choose(&identity, &line, is_below, frames_loss)?;
            let reason = if self.outer.is_some() { Reason::Own } else { reason };
            let identity = identity.clone();
            self.candidates.clear();
            self.chosen = Some(Chosen {
                identity,
                reason,
                clock: Clock::new(self.resumed_from),
                first,
                last: None,
                is_iterated: false,
                shown: Vec::new(),
                advances: 0,
                changes: 0,
                waiting: Vec::new(),
                nested_epoch: self.outer.map_or(0, |(epoch, _)| epoch),
            });
        }
        let announced = self.epoch.filter(|_| bar.maker == Maker::Keras);
        let chosen = self.chosen.as_mut().filter(|chosen| chosen.identity == identity)?;
        Some(chosen.redraw(bar, line, announced, self.outer))
    }

    /// Returns the count at which the pass of a bar began.
    fn note_candidate(&mut self, identity: &Identity, count: u64) -> u64 {
        let known = self.candidates.iter().position(|known| known.identity == *identity);
        let known = known.map(|place| self.candidates.remove(place)).filter(|known| known.last <= count);
        let first = known.map_or(count, |known| known.first);
        if self.candidates.len() >= MAX_CANDIDATES {
            self.candidates.remove(0);
        }
        self.candidates.push(Candidate { identity: identity.clone(), first, last: count });
        first
    }
}

fn choose(identity: &Identity, line: &Line, is_below: bool, frames_loss: bool) -> Option<Reason> {
    let called = |names: &[&str]| identity.words.iter().any(|word| names.contains(&word.as_str()));
    if called(&STEP_BARS) {
        return Some(Reason::Whole);
    }
    if line.has_training_loss() || called(&TRAINING_BARS) {
        return Some(Reason::Own);
    }
    (frames_loss && !is_below && identity.words.is_empty() && !identity.names_epoch).then_some(Reason::Whole)
}

impl Chosen {
    fn redraw(&mut self, bar: &Bar<'_>, line: Line, announced: Option<Epoch>, outer: Option<(u64, u64)>) -> Redraw {
        let starts_over = self.clock.starts_over(bar.count);
        if let Some((count, _)) = outer.filter(|_| starts_over) {
            self.nested_epoch = count.max(self.nested_epoch + 1);
        }
        let nested =
            outer.map(|(_, epochs)| Epoch { value: self.nested_epoch as f64, count: Some(epochs), zero_based: true });
        let epoch = line.epoch.or(announced).or(nested);
        let extent = match (self.reason, bar.maker) {
            (Reason::Whole, _) => Extent::Training,
            (Reason::Own, _) if epoch.is_some() && epoch == nested => Extent::EpochOfAll,
            (Reason::Own, Maker::Keras | Maker::Table | Maker::TqdmOfTable) if epoch.is_some() => Extent::Epoch,
            (Reason::Own, _) => Extent::Unknown,
        };
        let position = Position { count: bar.count, out_of: Some(bar.out_of), epoch, extent };
        if starts_over {
            (self.first, self.last) = (bar.count, None);
            self.is_iterated = false;
        }
        let placed = self.clock.place(&position);
        let (values, unplaced) = self.assign(bar, line.values);
        Redraw { placed, epoch, values, unplaced }
    }

    /// Returns the values that belong to the drawn count, and those whose step is unknown.
    fn assign(&mut self, bar: &Bar<'_>, values: Values) -> (Values, Values) {
        let has_advanced = self.last.replace(bar.count).is_some_and(|last| bar.count > last);
        let is_changed = !values.is_empty() && !same_values(&values, &self.shown);
        let has_nan = values.iter().any(|(_, value)| value.is_nan());
        let repeats_nan = has_nan && has_advanced && self.sets_values_each_step();
        if !has_nan {
            self.advances += u64::from(has_advanced);
            self.changes += u64::from(is_changed);
        }
        let is_new = is_changed || repeats_nan;
        // Values at the count where the pass begins: a step has them, and the count does not show it.
        let within = bar.count == self.first && bar.count < bar.out_of;
        self.is_iterated |= is_new && bar.maker.is_tqdm() && within && !has_advanced;
        let waiting = std::mem::take(&mut self.waiting);
        let fresh = if is_new { self.show(values) } else { Values::new() };
        // Rich draws from a thread of its own, count and values apart: they agree when they are drawn once more.
        let (is_due, must_wait) = match bar.maker {
            Maker::Rich => (!has_advanced && !is_new, true),
            Maker::Tqdm | Maker::TqdmOfTable if self.is_iterated => (has_advanced && !is_new, !has_advanced),
            Maker::Tqdm | Maker::TqdmOfTable | Maker::Keras | Maker::Table => (false, false),
        };
        match (is_new, must_wait) {
            (true, false) => (fresh, waiting),
            (true, true) => {
                self.waiting = fresh;
                (Values::new(), waiting)
            }
            (false, _) if is_due => (waiting, Values::new()),
            (false, _) if has_advanced => (Values::new(), waiting),
            (false, _) => {
                self.waiting = waiting;
                (Values::new(), Values::new())
            }
        }
    }

    /// Reports whether the loop sets the values at about each step: then the same NaN is the NaN of another step. A loop
    /// that sets them now and then leaves an old one on the bar.
    fn sets_values_each_step(&self) -> bool {
        2 * self.changes >= self.advances
    }

    /// Remembers what the bar shows; returns the values that are news. The result of an evaluation stays on the bar
    /// until the next one.
    fn show(&mut self, values: Values) -> Values {
        let is_stale = |value: &(String, f64)| {
            let shown = self.shown.iter().any(|known| known.0 == value.0 && known.1.to_bits() == value.1.to_bits());
            shown && names::is_of_evaluation(&value.0)
        };
        let fresh = values.iter().filter(|value| !is_stale(value)).cloned().collect();
        self.shown = values;
        fresh
    }

    fn take_waiting(&mut self) -> Values {
        std::mem::take(&mut self.waiting)
    }
}

fn same_values(left: &[(String, f64)], right: &[(String, f64)]) -> bool {
    let same =
        |(left, right): (&(String, f64), &(String, f64))| left.0 == right.0 && left.1.to_bits() == right.1.to_bits();
    left.len() == right.len() && left.iter().zip(right).all(same)
}
