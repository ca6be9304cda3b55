//! The steps of the lines of one stream. A line whose step lies far from those before it may come from another counter, so
//! it is believed only when the next lines go on from there.
//!
//! ```text
//! 100  101  123456789  102  103            far ahead: held back, and dropped once the count goes on where it was
//! 100  101  500000  500001  500002         held back until two more steps go on from there, then all three count
//! 100  101  150  102  103                  a little ahead: believed at once, until the count goes on where it was
//! ```

mod pass_clock;

use super::clock::{Counting, Placed, Position};
use pass_clock::PassClock;

/// A line this many times farther ahead than any line before it was held back.
const FAR: u64 = 1000;
/// Steps from a doubted one on after which it is believed; fewer if no more steps came before it.
const CONFIRMED: u64 = 3;

/// The step of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineStep {
    /// The line belongs to this step. Lines that were held back are dropped.
    At(Placed),
    /// The line is held back: it belongs to this step if the next lines go on from there.
    Doubtful(Placed),
    /// The line belongs to this step, and the lines that were held back to theirs.
    Confirmed(Placed),
    /// It belongs to another loop, or to a step that was read before.
    Elsewhere,
    /// The count started over, and how many steps came before is not certain.
    Uncertain,
}

/// The steps of the lines of one stream.
#[derive(Debug, Default)]
pub struct LineClock {
    /// The steps before the doubted line.
    course: Course,
    doubt: Option<Doubt>,
    /// How the lines count, as far as it was taken note of.
    learnt: Option<Counting>,
    /// The step of the newest evaluation that was too far ahead to be believed.
    far_evaluation: Option<u64>,
}

/// Steps that went far ahead of those before them.
#[derive(Debug)]
struct Doubt {
    course: Course,
    lines: u64,
    is_held: bool,
}

/// The steps of a sequence of lines.
#[derive(Debug, Clone, Default)]
struct Course {
    passes: PassClock,
    newest: Option<u64>,
    /// The widest advance from one step to the next.
    widest: u64,
    /// The number of steps.
    steps: u64,
}

impl Course {
    fn place(&mut self, position: &Position, announced: Option<u64>) -> LineStep {
        let place = self.passes.place(position, announced);
        if let LineStep::At(Placed { step, .. }) = place
            && self.newest != Some(step)
        {
            self.widest = self.widest.max(self.newest.map_or(0, |newest| step.saturating_sub(newest)));
            self.newest = Some(step);
            self.steps = self.steps.saturating_add(1);
        }
        place
    }

    /// Returns how far a step is ahead of the newest one.
    fn lead(&self, step: u64) -> Option<u64> {
        step.checked_sub(self.newest?)
    }

    /// Returns the advance that the next step is expected to stay within.
    fn usual(&self) -> u64 {
        let first = self.newest.filter(|_| self.steps == 1).unwrap_or(0);
        self.widest.max(first).max(1)
    }

    fn is_next(&self, step: u64) -> bool {
        self.lead(step).is_some_and(|lead| lead <= self.usual())
    }

    fn is_ahead(&self, step: u64) -> bool {
        self.lead(step).is_some_and(|lead| lead > self.usual())
    }

    fn is_far(&self, step: u64) -> bool {
        self.lead(step).is_some_and(|lead| lead > self.usual().saturating_mul(FAR))
    }
}

impl LineClock {
    /// Notes that the stream begins within the training, after this step: unnamed epochs came before.
    pub fn resume(&mut self, from: u64) {
        self.believed_mut().passes.resume(from);
    }

    /// Notes how the lines of the same script counted before.
    pub fn recall(&mut self, learnt: Counting) {
        self.learnt = Some(learnt);
        self.believed_mut().passes.recall(learnt);
    }

    /// Returns how the lines count, once an epoch that ended has shown it anew.
    pub fn counting_news(&mut self) -> Option<Counting> {
        let learnt = self.believed().passes.counting().filter(|counting| self.learnt != Some(*counting))?;
        self.learnt = Some(learnt);
        self.learnt
    }

    /// Notes that the count of the newest line is the step of the training: something else counted the same.
    pub fn confirm_count(&mut self) {
        self.believed_mut().passes.confirm_count();
    }

    /// Reports whether no line has named a step yet.
    pub fn is_new(&self) -> bool {
        self.believed().passes.is_new()
    }

    /// Returns the place of a line of the training. `announced` is the epoch that a line of its own named last.
    pub fn place(&mut self, position: &Position, announced: Option<u64>) -> LineStep {
        self.far_evaluation = None;
        let mut next = self.course.clone();
        let place = next.place(position, announced);
        let Some(doubt) = self.doubt.take() else { return self.advance(next, place) };
        let mut follow = doubt.course.clone();
        let followed = follow.place(position, announced);
        let continues = matches!(place, LineStep::At(placed) if self.course.is_next(placed.step));
        match followed {
            _ if continues && doubt.is_held => self.advance(next, place),
            LineStep::At(placed) if doubt.course.lead(placed.step).is_some() => self.go_on(doubt, follow, placed),
            _ if continues => self.advance(next, place),
            _ if !doubt.is_held => self.keep_doubt(&doubt, follow, followed),
            _ => {
                // Lines of another loop leave the doubt as it is.
                self.doubt = Some(doubt).filter(|_| !matches!(place, LineStep::At(_)));
                self.advance(next, place)
            }
        }
    }

    /// Returns the step of a line that reports an evaluation; none if it has a count of its own.
    pub fn place_evaluation(&mut self, position: &Position) -> Option<Placed> {
        let placed = self.believed().passes.place_evaluation(position)?;
        if !self.believed().is_far(placed.step) {
            return Some(placed);
        }
        let before = self.far_evaluation.replace(placed.step);
        before.is_some_and(|before| placed.step >= before).then_some(placed)
    }

    /// Takes a line that follows no doubted one.
    fn advance(&mut self, next: Course, place: LineStep) -> LineStep {
        match place {
            LineStep::At(placed) if self.doubt.is_none() && self.course.is_ahead(placed.step) => {
                let is_held = self.course.is_far(placed.step);
                self.doubt = Some(Doubt { course: next, lines: 1, is_held });
                if is_held { LineStep::Doubtful(placed) } else { place }
            }
            _ => {
                self.course = next;
                place
            }
        }
    }

    /// Takes a line that goes on from a doubted one.
    fn go_on(&mut self, doubt: Doubt, follow: Course, placed: Placed) -> LineStep {
        if !doubt.is_held {
            if !doubt.course.is_far(placed.step) {
                return self.keep_doubt(&doubt, follow, LineStep::At(placed));
            }
            self.course = doubt.course;
            return self.advance(follow, LineStep::At(placed));
        }
        let lines = doubt.lines + u64::from(doubt.course.newest != follow.newest);
        if lines >= CONFIRMED.min(self.course.steps + 1) {
            self.course = follow;
            return LineStep::Confirmed(placed);
        }
        self.doubt = Some(Doubt { course: follow, lines, is_held: true });
        LineStep::Doubtful(placed)
    }

    /// Takes a line after one that was a little ahead, which is believed unless the count goes on where it was before.
    fn keep_doubt(&mut self, doubt: &Doubt, follow: Course, place: LineStep) -> LineStep {
        let lines = doubt.lines + 1;
        if lines >= CONFIRMED {
            self.course = follow;
        } else {
            self.doubt = Some(Doubt { course: follow, lines, is_held: false });
        }
        place
    }

    fn believed(&self) -> &Course {
        self.doubt.as_ref().filter(|doubt| !doubt.is_held).map_or(&self.course, |doubt| &doubt.course)
    }

    fn believed_mut(&mut self) -> &mut Course {
        match &mut self.doubt {
            Some(Doubt { course, is_held: false, .. }) => course,
            _ => &mut self.course,
        }
    }
}

#[cfg(test)]
mod tests;
