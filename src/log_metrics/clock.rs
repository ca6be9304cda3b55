//! Turns the count of a bar into the optimizer step: a count may cover the training, or start over with each epoch. A change
//! of the epoch shows which; until then both give the same step.

use super::names::parse_count;
use serde::{Deserialize, Serialize};

/// The epoch that a line or a bar names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Epoch {
    pub value: f64,
    /// The count it is out of.
    pub count: Option<u64>,
    /// The first epoch is certainly 0.
    pub zero_based: bool,
}

impl Epoch {
    /// Reads `2`, `0.5` or `2/5`.
    pub fn read(text: &str, out_of: Option<&str>) -> Option<Self> {
        let value = text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)?;
        Some(Self { value, count: out_of.and_then(parse_count), zero_based: false })
    }

    /// Returns the number of a whole epoch.
    pub fn index(self) -> Option<u64> {
        (self.value.fract() == 0.0 && self.value < 1e15).then_some(self.value as u64)
    }
}

/// A count, as it was printed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Position {
    /// Steps counted so far.
    pub count: u64,
    /// The number that the count ends at.
    pub out_of: Option<u64>,
    /// The epoch it belongs to.
    pub epoch: Option<Epoch>,
    /// The steps that the count covers.
    pub extent: Extent,
}

/// The steps that a count covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Extent {
    #[default]
    Unknown,
    Training,
    /// It starts over with each epoch.
    Epoch,
    /// The same, in a form whose scripts number the first epoch 0.
    EpochFromZero,
    /// The same, among as many epochs as their count says, wherever it begins.
    EpochOfAll,
}

impl Extent {
    /// Reports whether the count starts over with each epoch.
    pub fn is_epoch(self) -> bool {
        matches!(self, Self::Epoch | Self::EpochFromZero | Self::EpochOfAll)
    }
}

impl Position {
    /// Returns the number of the first epoch, if this one tells it. A training that resumed may be in its second epoch, and
    /// call it 1.
    pub fn first_epoch(&self, epoch: u64, resumed_from: Option<u64>) -> Option<u64> {
        let is_first = match (resumed_from, self.out_of) {
            (None, _) => true,
            (Some(from), Some(size)) => from < size,
            (Some(from), None) => self.count >= from,
        };
        let by_name = match (epoch, self.epoch) {
            (_, Some(named)) if named.zero_based => Some(0),
            (0 | 1, _) => Some(epoch).filter(|_| is_first),
            (_, Some(named)) if named.count.is_some() => Some(1),
            _ => Some(0).filter(|_| self.extent == Extent::EpochFromZero),
        };
        by_name.or_else(|| self.first_by_checkpoint(epoch, resumed_from?))
    }

    /// Returns the number of the first epoch, if the training resumed at the end of an epoch: this is the next one.
    fn first_by_checkpoint(&self, epoch: u64, from: u64) -> Option<u64> {
        let size = self.out_of.filter(|size| (1..=from).contains(size) && from.is_multiple_of(*size))?;
        epoch.checked_sub(from / size).filter(|first| *first <= 1 && self.extent != Extent::Training)
    }

    /// Reports whether this count is not that of the whole training, which resumed from this step: it is smaller, and ends
    /// before that step or names its epoch.
    pub fn counts_part(&self, resumed_from: Option<u64>) -> bool {
        let is_part = |from: u64| self.epoch.is_some() || self.out_of.is_some_and(|end| end <= from);
        resumed_from.is_some_and(|from| self.count < from && self.extent != Extent::Training && is_part(from))
    }
}

/// How the lines of a script count, as an epoch that ended has shown. It counts in the same way when it resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counting {
    /// Over all epochs.
    Whole,
    /// Anew in each epoch.
    Within {
        /// The number of the first epoch.
        first_epoch: u64,
        /// The steps of each; none if they differ.
        size: Option<u64>,
    },
}

/// How a count relates to the training's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mode {
    #[default]
    Unknown,
    /// The count starts over with each epoch.
    Within,
    /// The count goes on across epochs.
    Whole,
    /// No step is certain any more.
    Lost,
}

/// The steps of one count.
#[derive(Debug, Default)]
pub struct Clock {
    mode: Mode,
    /// The step that the training resumed from.
    resumed_from: Option<u64>,
    /// The number of the first epoch of the training.
    base: Option<u64>,
    last: Option<Last>,
    /// Steps of earlier passes, where no epoch is named.
    before: u64,
    /// The count started over and the epoch's name did not change yet.
    awaits_epoch: bool,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    count: u64,
    out_of: Option<u64>,
    epoch: Option<u64>,
}

/// A step, and the last step of the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    pub step: u64,
    pub total_steps: Option<u64>,
}

impl Clock {
    /// Creates the clock of a count in a training that resumed from this step, which may begin in any epoch.
    pub fn new(resumed_from: Option<u64>) -> Self {
        Self { resumed_from, ..Self::default() }
    }

    /// Reports whether this position starts over: a new pass over the data.
    pub fn starts_over(&self, count: u64) -> bool {
        self.last.is_some_and(|last| count < last.count)
    }

    /// Returns the step of a position; none when it is uncertain.
    pub fn place(&mut self, position: &Position) -> Option<Placed> {
        let epoch = position.epoch.and_then(Epoch::index);
        self.learn(position, epoch);
        let step = match (self.mode, epoch) {
            (Mode::Lost, _) => None,
            (Mode::Whole, _) => Some(position.count),
            (Mode::Within, Some(epoch)) => self.within(position, epoch),
            (Mode::Unknown, Some(epoch)) => (self.base == Some(epoch)).then_some(position.count),
            (Mode::Unknown | Mode::Within, None) => self.before.checked_add(position.count),
        };
        let step = step.filter(|_| !self.awaits_epoch);
        self.last = Some(Last { count: position.count, out_of: position.out_of, epoch });
        Some(Placed { step: step?, total_steps: self.total_steps(position) })
    }

    /// Decides from two positions in a row whether the count starts over with each epoch.
    fn learn(&mut self, position: &Position, epoch: Option<u64>) {
        if let (Some(epoch), None) = (epoch, self.base) {
            self.base = position.first_epoch(epoch, self.resumed_from);
        }
        let ends_before = position.out_of.zip(self.resumed_from).is_some_and(|(end, from)| end <= from);
        let is_part = ends_before && position.counts_part(self.resumed_from);
        if self.mode == Mode::Unknown && is_part && epoch.is_some() && self.base.is_some() {
            self.mode = Mode::Within;
        }
        // A count of a later epoch is none of the whole training anyway.
        let seems_whole = !position.extent.is_epoch() && epoch.is_none_or(|epoch| self.base == Some(epoch));
        if self.mode == Mode::Unknown && seems_whole && position.counts_part(self.resumed_from) {
            self.mode = Mode::Lost;
        }
        if self.mode == Mode::Unknown {
            self.mode = match position.extent {
                Extent::Unknown => Mode::Unknown,
                Extent::Training => Mode::Whole,
                Extent::Epoch | Extent::EpochFromZero | Extent::EpochOfAll => Mode::Within,
            };
        }
        let Some(last) = self.last else { return };
        let starts_over = self.starts_over(position.count);
        let same_size = last.out_of == position.out_of;
        self.awaits_epoch = epoch.is_some() && last.epoch == epoch && (starts_over || self.awaits_epoch);
        match self.mode {
            // A second training, or an evaluation that looks like one.
            Mode::Whole if starts_over => self.mode = Mode::Lost,
            Mode::Within if !same_size => self.mode = Mode::Lost,
            Mode::Unknown if self.awaits_epoch => self.mode = Mode::Within,
            Mode::Unknown if epoch.is_some() && last.epoch != epoch => {
                self.mode = if starts_over { Mode::Within } else { Mode::Whole };
            }
            Mode::Unknown | Mode::Within if starts_over && epoch.is_none() => {
                let complete = same_size && Some(last.count) == last.out_of;
                self.mode = if complete { Mode::Within } else { Mode::Lost };
                self.before = self.before.saturating_add(last.count);
            }
            _ => {}
        }
    }

    fn within(&self, position: &Position, epoch: u64) -> Option<u64> {
        epoch.checked_sub(self.base?)?.checked_mul(position.out_of?)?.checked_add(position.count)
    }

    fn total_steps(&self, position: &Position) -> Option<u64> {
        match self.mode {
            Mode::Whole if position.extent == Extent::Training => position.out_of,
            // Epochs that count from 1 end at their count; from 0, both habits exist.
            Mode::Within if self.base == Some(1) || position.extent == Extent::EpochOfAll => {
                position.out_of?.checked_mul(position.epoch?.count?)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Clock, Epoch, Extent, Position};

    /// An epoch and how many of them there are, a count, and its end.
    type Drawn = (Option<(f64, Option<u64>)>, u64, u64);

    fn steps(positions: &[Drawn]) -> Vec<Option<u64>> {
        let mut clock = Clock::default();
        let place = |&(epoch, count, out_of): &Drawn| {
            let epoch = epoch.map(|(value, count)| Epoch { value, count, zero_based: false });
            let position = Position { count, out_of: Some(out_of), epoch, ..Position::default() };
            clock.place(&position).map(|placed| placed.step)
        };
        positions.iter().map(place).collect()
    }

    #[test]
    fn a_count_that_starts_over_continues_the_steps() {
        let of = |epoch: f64| Some((epoch, Some(3)));
        assert_eq!(steps(&[(of(1.0), 8, 8), (of(2.0), 1, 8), (of(3.0), 8, 8)]), [Some(8), Some(9), Some(24)]);
        let of = |epoch: f64| Some((epoch, None));
        assert_eq!(steps(&[(of(0.0), 7, 8), (of(1.0), 0, 8), (of(1.0), 3, 8)]), [Some(7), Some(8), Some(11)]);
        assert_eq!(steps(&[(None, 8, 8), (None, 0, 8), (None, 3, 8)]), [Some(8), Some(8), Some(11)]);
    }

    #[test]
    fn a_count_may_start_over_before_the_epoch_is_renamed() {
        let of = |epoch: f64| Some((epoch, None));
        let found = steps(&[(of(0.0), 8, 8), (of(0.0), 0, 8), (of(0.0), 1, 8), (of(1.0), 0, 8), (of(1.0), 1, 8)]);
        assert_eq!(found, [Some(8), None, None, Some(8), Some(9)]);
    }

    #[test]
    fn a_count_that_goes_on_is_the_step() {
        let of = |epoch: f64| Some((epoch, Some(3)));
        assert_eq!(steps(&[(of(1.0), 8, 24), (of(2.0), 9, 24), (of(3.0), 20, 24)]), [Some(8), Some(9), Some(20)]);
    }

    #[test]
    fn uncertain_steps_are_not_declared() {
        // The pass before was left early, or had another size.
        assert_eq!(steps(&[(None, 5, 8), (None, 1, 8), (None, 2, 8)]), [Some(5), None, None]);
        assert_eq!(steps(&[(None, 8, 8), (None, 1, 9)]), [Some(8), None]);
        // A resumed training: whether epochs count from 0 or 1 is unknown.
        assert_eq!(steps(&[(Some((4.0, None)), 1, 8), (Some((4.0, None)), 2, 8)]), [None, None]);
    }

    #[test]
    fn the_epoch_and_the_count_of_a_resumed_training_are_those_of_the_whole_only_where_that_is_certain() {
        let resumed = |from: u64, position: Position| {
            Clock::new(Some(from)).place(&position).map(|placed| (placed.step, placed.total_steps))
        };
        let of = |epoch: Option<f64>, count: u64, out_of: u64| {
            let epoch = epoch.map(|value| Epoch { value, count: None, zero_based: false });
            Position { count, out_of: Some(out_of), epoch, ..Position::default() }
        };
        // Epoch 1 is the second one, or the first one; within it, the bar may have begun again.
        assert_eq!(resumed(50, of(Some(1.0), 2, 40)), None);
        assert_eq!(resumed(25, of(Some(1.0), 26, 40)), Some((26, None)));
        assert_eq!(resumed(25, of(Some(1.0), 1, 40)), None);
        assert_eq!(resumed(25, of(Some(0.0), 1, 15)), None);
        // The number of epochs says that they count from 1.
        let named = |value: f64, count: u64, extent: Extent| {
            let epoch = Some(Epoch { value, count: Some(10), zero_based: false });
            Position { count, out_of: Some(49), epoch, extent }
        };
        assert_eq!(resumed(100, named(3.0, 12, Extent::Epoch)), Some((110, Some(490))), "as Keras counts");
        let mut clock = Clock::new(Some(100));
        let mut step =
            |epoch: f64, count: u64| clock.place(&named(epoch, count, Extent::Unknown)).map(|placed| placed.step);
        assert_eq!([step(3.0, 12), step(4.0, 1)], [Some(110), Some(148)]);
        // The checkpoint was saved at the end of an epoch: this is the next one, whether the first was 0 or 1.
        assert_eq!(resumed(80, of(Some(3.0), 2, 40)), Some((82, None)));
        assert_eq!(resumed(80, of(Some(2.0), 2, 40)), Some((82, None)));
        assert_eq!(resumed(80, of(Some(5.0), 2, 40)), None, "another number of epochs");
        // Without an epoch, a count that ends before the checkpoint is that of an epoch.
        assert_eq!(resumed(100, of(None, 2, 49)), None);
        assert_eq!(resumed(100, of(None, 80, 300)), Some((80, None)), "it takes steps again");
        assert_eq!(resumed(100, Position { extent: Extent::Training, ..of(None, 1, 50) }), Some((1, Some(50))));
    }

    #[test]
    fn enormous_counts_do_not_overflow() {
        let of = |epoch: f64| Some((epoch, Some(u64::MAX)));
        let most = u64::MAX;
        assert_eq!(steps(&[(of(1.0), most, most), (of(3.0), 1, most)]), [Some(most), None]);
        assert_eq!(steps(&[(None, most, most), (None, 0, most), (None, 5, most)]), [Some(most), Some(most), None]);
    }
}
