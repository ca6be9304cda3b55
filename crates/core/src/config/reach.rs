//! Which rungs a run can reach: a shift cannot cross a change of the model's shape, unless one of the two
//! rungs reinitializes the weights that do not fit.

use super::ladder::Resolved;
use super::problem::Problem;
use super::run::Run;
use crate::recipe::class::{Change, Class, carries_over, compare_presets};

/// A change of the model's shape that the weights cannot follow.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "rung {rung} changes the model's shape ({}), so the weights do not fit; with `warm_start: true` on the rung, \
     weights that fit are loaded and the rest are reinitialized", describe_changes(.changes)
)]
pub struct ShapeBarrier {
    /// The name of the rung to shift to.
    pub rung: String,
    /// The knobs that change the shape.
    pub changes: Vec<Change>,
}

impl Run {
    /// Returns the barrier that keeps the run from shifting between two rungs: the model's shape differs,
    /// and neither rung sets `warm_start: true`.
    #[must_use]
    pub fn barrier(&self, from: usize, to: usize) -> Option<ShapeBarrier> {
        let changes = self.misfits(from, to);
        (!changes.is_empty()).then(|| ShapeBarrier { rung: self.rungs[to].name.clone(), changes })
    }

    /// Returns the differing knobs that make the weights of one rung unusable on another.
    fn misfits(&self, from: usize, to: usize) -> Vec<Change> {
        if self.rungs[from].warm_start || self.rungs[to].warm_start {
            return Vec::new();
        }
        let mut changes = compare_presets(&self.preset_tree(from), &self.preset_tree(to));
        changes.retain(|change| change.class == Class::C && !carries_over(&change.path));
        changes
    }

    /// Returns the rungs that no sequence of shifts reaches from `full`.
    fn cut_off(&self) -> Vec<usize> {
        let mut reached = vec![false; self.rungs.len()];
        let mut border = vec![0];
        while let Some(here) = border.pop() {
            if !std::mem::replace(&mut reached[here], true) {
                border.extend((0..reached.len()).filter(|to| !reached[*to] && self.misfits(here, *to).is_empty()));
            }
        }
        (0..reached.len()).filter(|rung| !reached[*rung]).collect()
    }

    /// Reports rungs that can never be used, at the knobs responsible.
    pub(super) fn unusable(&self, resolved: &[Resolved]) -> Vec<Problem> {
        let mut problems = Vec::new();
        for rung in self.cut_off() {
            let Some(place) = resolved.get(rung) else { continue };
            for change in self.misfits(0, rung).into_iter().filter(|change| place.sets_itself(&change.path)) {
                let wrong = format!(
                    "no shift reaches rung `{}`, because it changes the model's shape ({}) and the weights do not fit",
                    self.rungs[rung].name,
                    describe_changes(std::slice::from_ref(&change))
                );
                let fix = "remove the knob from the rung, make the size a variant, or write `warm_start: true` on the \
                           rung (weights that fit are loaded, the rest are reinitialized)";
                problems.push(place.blame(Problem::at(&change.path, wrong, fix)));
            }
        }
        problems
    }

    /// Reports stages of the climb plan that cannot follow the previous stage.
    pub(super) fn broken_stages(&self) -> Vec<Problem> {
        let pairs = self.plan.windows(2).enumerate();
        let broken = pairs.filter_map(|(index, pair)| Some((index + 1, self.barrier(pair[0].rung, pair[1].rung)?)));
        broken
            .map(|(index, barrier)| {
                let fix = "name a rung with the same model shape";
                Problem::at(format!("climb.plan[{index}].rung"), barrier.to_string(), fix)
            })
            .collect()
    }
}

fn describe_changes(changes: &[Change]) -> String {
    let shapes = changes.iter().map(|change| format!("{} {} → {}", change.path, change.from, change.to));
    shapes.collect::<Vec<_>>().join(", ")
}
