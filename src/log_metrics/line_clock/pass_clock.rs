//! Turns the counts that lines print into optimizer steps. Unlike a bar, a line shows few of the counts, and may name
//! neither the epoch nor the number of steps in it.
//!
//! ```text
//! Epoch 2/10, Step 20/100, Loss: 0.5     the epoch and its size: step 120
//! [2, 20] loss: 0.5                      certain if every step of epoch 1 was printed
//! Step 20/100, Loss: 0.5                 a pass that came to its end, and a new one
//! step 20 loss 0.5                       certain once two passes printed every step, equally many
//! ```
//! A count that goes back may also belong to another loop, such as a validation. So nothing else is added up.

use super::LineStep;
use crate::log_metrics::clock::{Counting, Epoch, Mode, Placed, Position};

/// The steps of the lines of one stream, each of which is believed.
#[derive(Debug, Clone, Default)]
pub struct PassClock {
    mode: Mode,
    /// The step that the training resumed from, if this stream did not show the steps before.
    resumed_from: Option<u64>,
    /// How the lines before the resume counted.
    learnt: Option<Counting>,
    /// The number of the first epoch of the training.
    base: Option<u64>,
    /// Steps of the passes that are over.
    before: u64,
    /// The steps in each pass so far; none if they differ.
    size: Option<u64>,
    pass: Option<Pass>,
    /// The pass before, while it is unknown whether the count started over or another loop counts.
    earlier: Option<Pass>,
    /// The step of the newest line.
    newest: Option<Placed>,
}

/// One pass of a count from its beginning.
#[derive(Debug, Clone, Copy)]
struct Pass {
    first: u64,
    last: u64,
    /// The widest gap between two counts; 0 after one line.
    gap: u64,
    out_of: Option<u64>,
    epoch: Option<u64>,
}

impl Pass {
    fn begin(position: &Position, epoch: Option<u64>) -> Self {
        let count = position.count;
        Self { first: count, last: count, gap: 0, out_of: position.out_of, epoch }
    }

    fn advance(&mut self, position: &Position, epoch: Option<u64>) {
        self.gap = self.gap.max(position.count - self.last);
        self.last = position.count;
        self.out_of = position.out_of.or(self.out_of);
        self.epoch = epoch.or(self.epoch);
    }

    /// Returns the number of steps in this pass, now that the next one begins with the count `first`.
    fn size(&self, first: u64) -> Option<u64> {
        let printed_all = self.gap == 1 && first <= 1;
        self.out_of.or_else(|| if printed_all { self.last.checked_add(1 - first) } else { None })
    }

    /// Reports whether no further line of the pass was due before it ended.
    fn is_complete(&self, next: u64) -> bool {
        let counts_from_zero = u64::from(self.first == 0 || next == 0);
        let end = self.last.saturating_add(counts_from_zero);
        self.out_of.is_some_and(|total| end >= total || end.saturating_add(self.gap) > total)
    }

    /// Reports whether a count is one that a pass begins with.
    fn is_beginning(&self, count: u64) -> bool {
        count <= self.gap.max(self.first).max(1)
    }

    /// Reports whether a count follows in this pass, no further than `gap` ahead.
    fn continues(&self, count: u64, gap: u64) -> bool {
        count.checked_sub(self.last).is_some_and(|ahead| ahead > 0 && ahead <= gap)
    }
}

impl PassClock {
    /// Notes that the stream begins within the training, after this step: unnamed epochs came before.
    pub fn resume(&mut self, from: u64) {
        self.resumed_from = Some(from);
    }

    /// Notes how the lines of the same script counted before.
    pub fn recall(&mut self, learnt: Counting) {
        self.learnt = Some(learnt);
    }

    /// Returns how the lines count, once an epoch that ended has shown it.
    pub fn counting(&self) -> Option<Counting> {
        match self.mode {
            Mode::Whole => Some(Counting::Whole),
            Mode::Within => Some(Counting::Within { first_epoch: self.base?, size: self.size_of_all() }),
            Mode::Unknown | Mode::Lost => None,
        }
    }

    /// Returns the size of every epoch, before the resume too; none if they differ.
    fn size_of_all(&self) -> Option<u64> {
        let differed = matches!(self.learnt, Some(Counting::Within { size: None, .. }));
        let newest = self.pass.and_then(|pass| pass.out_of);
        self.size.filter(|size| !differed && newest.is_none_or(|newest| newest == *size))
    }

    /// Notes that the count of the newest line is the step of the training: something else counted the same.
    pub fn confirm_count(&mut self) {
        if self.mode == Mode::Unknown {
            self.mode = Mode::Whole;
        }
    }

    /// Reports whether no line has named a step yet.
    pub fn is_new(&self) -> bool {
        self.pass.is_none()
    }

    /// Returns the place of a line of the training. `announced` is the epoch that a line of its own named last.
    pub fn place(&mut self, position: &Position, announced: Option<u64>) -> LineStep {
        let named = position.epoch.and_then(Epoch::index);
        self.learn_base(position, named.or(announced));
        let place = self.find(position, named, announced);
        if let LineStep::At(placed) = place {
            self.newest = Some(placed);
        }
        place
    }

    /// Returns the step of a line that reports an evaluation; none if it has a count of its own.
    pub fn place_evaluation(&self, position: &Position) -> Option<Placed> {
        let named = position.epoch.and_then(Epoch::index);
        let whole = Placed { step: position.count, total_steps: None };
        let Some(pass) = self.pass else { return named.is_none().then_some(whole) };
        let is_same = |own: Option<u64>, known: Option<u64>| own.is_none() || own == known;
        if !is_same(named, pass.epoch) || !is_same(position.out_of, pass.out_of) {
            return None;
        }
        let counts_all = matches!(self.mode, Mode::Unknown | Mode::Whole) && self.earlier.is_none();
        match position.count {
            count if count == pass.last => self.newest,
            count if count > pass.last && counts_all => Some(whole),
            _ => None,
        }
    }

    fn learn_base(&mut self, position: &Position, epoch: Option<u64>) {
        if let (Some(epoch), None) = (epoch, self.base) {
            self.base = position.first_epoch(epoch, self.resumed_from);
        }
    }

    fn find(&mut self, position: &Position, named: Option<u64>, announced: Option<u64>) -> LineStep {
        let epoch = named.or(announced);
        let Some(pass) = self.pass.filter(|_| self.mode != Mode::Lost) else {
            if self.mode == Mode::Lost {
                return LineStep::Uncertain;
            }
            return self.begin(position, named, epoch);
        };
        match (epoch, pass.epoch) {
            (Some(epoch), Some(before)) if before.checked_add(1) == Some(epoch) => {
                self.turn(position, named, announced)
            }
            (Some(epoch), Some(before)) if epoch != before => self.jump(position, named),
            _ if pass.out_of != position.out_of && !self.counts_on(position) => LineStep::Elsewhere,
            _ if position.count >= pass.last => self.advance(position, named, epoch),
            (Some(_), Some(_)) => LineStep::Elsewhere,
            _ if pass.out_of.is_some() => self.start_over(position),
            _ => self.go_back(position),
        }
    }

    /// Takes the first line. What was learnt before the resume holds unless the line contradicts it.
    fn begin(&mut self, position: &Position, named: Option<u64>, epoch: Option<u64>) -> LineStep {
        self.pass = Some(Pass::begin(position, epoch));
        let counts_epoch = position.extent.is_epoch() && position.out_of.is_some();
        match self.learnt.filter(|_| named.is_some()) {
            Some(Counting::Whole) if !counts_epoch && self.resumed_from.is_none_or(|from| position.count > from) => {
                self.mode = Mode::Whole;
            }
            Some(Counting::Within { first_epoch, size: Some(size) }) if position.out_of == Some(size) => {
                (self.mode, self.base, self.size) = (Mode::Within, Some(first_epoch), Some(size));
                return self.before_by_name(position, named);
            }
            _ if counts_epoch => {
                (self.mode, self.size) = (Mode::Within, position.out_of);
                return self.before_by_name(position, named);
            }
            _ => {}
        }
        let is_part = position.epoch.is_none() && position.counts_part(self.resumed_from);
        match epoch.filter(|_| self.base.is_some() && position.out_of.is_some()) {
            Some(epoch) if is_part => {
                (self.mode, self.size) = (Mode::Within, position.out_of);
                self.before_by_name(position, Some(epoch))
            }
            _ if is_part => self.lose(),
            _ => self.at(position, named),
        }
    }

    /// Reports whether a line with another total still belongs to the count: a total that appears or grows.
    fn counts_on(&self, position: &Position) -> bool {
        let is_ahead = |pass: Pass| {
            let tells_size = pass.out_of.is_none() && position.out_of == self.size;
            position.count > pass.last && (self.mode != Mode::Within || tells_size)
        };
        self.pass.is_some_and(is_ahead)
    }

    fn advance(&mut self, position: &Position, named: Option<u64>, epoch: Option<u64>) -> LineStep {
        if let (Some(earlier), Some(pass)) = (self.earlier, self.pass) {
            let goes_on = pass.continues(position.count, pass.gap.max(earlier.gap));
            if goes_on || !earlier.continues(position.count, earlier.gap) {
                self.extend(position, epoch);
                return LineStep::Uncertain;
            }
            // The lines in between were those of another loop.
            (self.pass, self.earlier) = (Some(earlier), None);
        }
        self.extend(position, epoch);
        self.at(position, named)
    }

    fn extend(&mut self, position: &Position, epoch: Option<u64>) {
        if let Some(pass) = &mut self.pass {
            pass.advance(position, epoch);
        }
    }

    /// Takes the first line of the next epoch.
    fn turn(&mut self, position: &Position, named: Option<u64>, announced: Option<u64>) -> LineStep {
        let Some(pass) = self.pass else { return LineStep::Uncertain };
        let epoch = named.or(announced);
        let goes_on = position.count > pass.last || (self.mode == Mode::Whole && position.count == pass.last);
        if goes_on && self.mode != Mode::Within {
            self.mode = Mode::Whole;
            self.extend(position, epoch);
            return self.at(position, named);
        }
        let began_at_first = self.mode == Mode::Within || pass.epoch == self.base;
        let size = pass.size(position.count).filter(|_| self.mode != Mode::Whole);
        match size {
            Some(size) if began_at_first => self.add_pass(size, position, epoch),
            Some(_) if named.is_some() && self.base.is_some() && position.out_of.is_some() => {
                (self.mode, self.size) = (Mode::Within, position.out_of);
                self.before_by_name(position, named)
            }
            _ => self.lose(),
        }
    }

    /// Takes a line whose epoch does not follow that of the line before.
    fn jump(&mut self, position: &Position, named: Option<u64>) -> LineStep {
        let Some(pass) = self.pass else { return LineStep::Uncertain };
        let goes_on = position.count > pass.last && named > pass.epoch;
        match self.mode {
            // An announcement alone says little.
            _ if named.is_none() => LineStep::Elsewhere,
            Mode::Unknown | Mode::Whole if goes_on => {
                self.mode = Mode::Whole;
                self.extend(position, named);
                self.at(position, named)
            }
            Mode::Unknown if position.out_of.is_some() && position.out_of == pass.out_of => {
                (self.mode, self.size) = (Mode::Within, position.out_of);
                self.before_by_name(position, named)
            }
            Mode::Within if position.out_of.is_some() && position.out_of == self.size => {
                self.before_by_name(position, named)
            }
            _ => self.lose(),
        }
    }

    /// Finds the steps before an epoch from its number: all epochs have the same size.
    fn before_by_name(&mut self, position: &Position, named: Option<u64>) -> LineStep {
        let passes = named.zip(self.base).and_then(|(epoch, base)| epoch.checked_sub(base));
        let Some(before) = passes.zip(position.out_of).and_then(|(passes, size)| passes.checked_mul(size)) else {
            return self.lose();
        };
        self.before = before;
        self.pass = Some(Pass::begin(position, named));
        self.at(position, named)
    }

    /// Takes a count with a total that went back, in a line that names no epoch.
    fn start_over(&mut self, position: &Position) -> LineStep {
        let Some(pass) = self.pass else { return LineStep::Uncertain };
        match pass.out_of {
            Some(size) if pass.is_complete(position.count) && pass.is_beginning(position.count) => {
                self.add_pass(size, position, None)
            }
            // The pass was left early, or the script began again.
            _ if pass.is_beginning(position.count) => self.lose(),
            _ => LineStep::Elsewhere,
        }
    }

    /// Takes a count without a total that went back, in a line that names no epoch.
    fn go_back(&mut self, position: &Position) -> LineStep {
        let Some(pass) = self.pass else { return LineStep::Uncertain };
        if self.mode == Mode::Whole {
            return LineStep::Elsewhere;
        }
        let size = pass.size(position.count);
        if self.mode == Mode::Within {
            return match size {
                Some(size) if self.size == Some(size) => self.add_pass(size, position, None),
                _ => self.lose(),
            };
        }
        match (self.earlier.take(), size) {
            // Two passes of the same size: the count starts over.
            (Some(earlier), Some(size)) if earlier.size(pass.first) == Some(size) => {
                self.before = size;
                self.add_pass(size, position, None)
            }
            (Some(_), _) => self.lose(),
            (None, _) => {
                self.earlier = Some(pass);
                self.pass = Some(Pass::begin(position, None));
                LineStep::Uncertain
            }
        }
    }

    /// Begins a pass after one of `size` steps.
    fn add_pass(&mut self, size: u64, position: &Position, epoch: Option<u64>) -> LineStep {
        let Some(before) = self.before.checked_add(size).filter(|_| self.resumed_from.is_none() || self.base.is_some())
        else {
            return self.lose();
        };
        self.size = if self.mode == Mode::Within && self.size != Some(size) { None } else { Some(size) };
        (self.mode, self.before) = (Mode::Within, before);
        self.pass = Some(Pass::begin(position, epoch));
        self.at(position, position.epoch.and_then(Epoch::index))
    }

    fn lose(&mut self) -> LineStep {
        self.mode = Mode::Lost;
        LineStep::Uncertain
    }

    fn at(&mut self, position: &Position, named: Option<u64>) -> LineStep {
        // Whether the epochs before counted is unknown.
        if self.mode == Mode::Unknown && named.is_some() && named != self.base {
            return LineStep::Uncertain;
        }
        match self.before.checked_add(position.count) {
            Some(step) => LineStep::At(Placed { step, total_steps: self.total_steps(position) }),
            None => self.lose(),
        }
    }

    fn total_steps(&self, position: &Position) -> Option<u64> {
        match (self.mode, position.epoch) {
            (Mode::Unknown, None) => position.out_of,
            // Epochs that count from 1 end at their count; from 0, both habits exist.
            (Mode::Within, Some(epoch)) if self.base == Some(1) && self.size == position.out_of => {
                position.out_of?.checked_mul(epoch.count?)
            }
            _ => None,
        }
    }
}
