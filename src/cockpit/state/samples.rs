//! Samples of the model's work, as far as the screen needs them: which sets there are, those that were read, and
//! their pictures.

mod picture_cache;

use super::State;
use crate::cockpit::pictures::{PictureKind, PictureOrder, PictureSupport};
use crate::cockpit::read_error::ReadError;
use crate::protocol::samples::{Confusion, Sample};
use picture_cache::PictureCache;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Names a set of samples. Sets are in order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    /// The samples of a step.
    Step(u64),
    /// The files that match the patterns of the run file.
    Files,
}

/// A sample, and the file of its picture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShownSample {
    /// The sample.
    pub sample: Sample,
    /// The file.
    pub picture: Option<PathBuf>,
    /// When it was written, Unix milliseconds.
    pub time_ms: i64,
}

/// The samples of a set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampleData {
    /// The samples.
    pub samples: Vec<ShownSample>,
    /// How often each class was taken for which.
    pub confusion: Option<Confusion>,
}

/// The knowledge of the samples view.
#[derive(Debug, Clone)]
pub struct Samples {
    /// How the terminal shows pictures.
    pub support: PictureSupport,
    /// The sets, oldest first; `None` until they are listed.
    pub sets: Option<Vec<SetId>>,
    /// Whether they are being listed for the first time.
    listing: bool,
    /// The sets that were read, or why they could not be.
    pub read: BTreeMap<SetId, Result<Arc<SampleData>, ReadError>>,
    /// The sets being read.
    reading: BTreeSet<SetId>,
    /// The sets that were written again since they were read.
    stale: BTreeSet<SetId>,
    /// The sets on the screen.
    wanted: Vec<SetId>,
    /// Their pictures.
    pub pictures: PictureCache,
}

/// Sets kept in memory.
const SETS: usize = 64;

impl Default for Samples {
    fn default() -> Self {
        Self {
            support: PictureSupport::of_cells(PictureKind::HalfBlocks),
            sets: None,
            listing: false,
            read: BTreeMap::new(),
            reading: BTreeSet::new(),
            stale: BTreeSet::new(),
            wanted: Vec::new(),
            pictures: PictureCache::default(),
        }
    }
}

impl Samples {
    /// Stores the list of sets.
    pub fn replace_list(&mut self, sets: Vec<SetId>) {
        self.read.retain(|id, _| sets.contains(id));
        // Files may change at any time, without a message.
        self.stale.extend(sets.contains(&SetId::Files).then_some(SetId::Files));
        // A file that could not be read may be readable by now.
        self.stale.extend(self.read.iter().filter(|(_, set)| set.is_err()).map(|(id, _)| *id));
        self.pictures.retry_unread();
        self.sets = Some(sets);
    }

    /// Reports whether the sets must be listed for the first time, and marks it.
    pub fn take_unlisted(&mut self) -> bool {
        self.sets.is_none() && !std::mem::replace(&mut self.listing, true)
    }

    /// Notes that the samples of a step were written.
    pub fn note_written(&mut self, step: u64) {
        self.stale.insert(SetId::Step(step));
        if let Some(sets) = &mut self.sets
            && let Err(place) = sets.binary_search(&SetId::Step(step))
        {
            sets.insert(place, SetId::Step(step));
        }
    }

    /// Returns those of the sets on the screen that must be read now, and marks them.
    pub fn take_missing(&mut self, wanted: Vec<SetId>) -> Vec<SetId> {
        let is_missing = |id: &&SetId| !self.read.contains_key(id) || self.stale.contains(id);
        let missing: Vec<SetId> =
            wanted.iter().filter(|id| !self.reading.contains(id)).filter(is_missing).copied().collect();
        self.reading.extend(&missing);
        for id in &missing {
            self.stale.remove(id);
        }
        self.wanted = wanted;
        missing
    }

    /// Stores a set that was read. Forgets another if there are many, but none on the screen.
    pub fn store_set(&mut self, id: SetId, set: Result<Arc<SampleData>, ReadError>) {
        self.reading.remove(&id);
        self.read.insert(id, set);
        let unseen = self.read.keys().find(|other| **other != id && !self.wanted.contains(other)).copied();
        if self.read.len() > SETS
            && let Some(unseen) = unseen
        {
            self.read.remove(&unseen);
        }
    }
}

/// A comparison beside the chosen set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// The first set of the run.
    First,
    /// The set of the best evaluation.
    Best,
}

/// Position in the samples view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleCursor {
    /// The chosen set; `None` follows the newest.
    pub set: Option<SetId>,
    /// The chosen sample.
    pub chosen: usize,
    /// Whether the chosen sample fills the view.
    pub alone: bool,
    /// Lines scrolled past in a text.
    pub text_from: usize,
    /// Whether the matrix takes the place of the samples where only one of them fits.
    pub matrix: bool,
    /// First visible row and column of the matrix.
    pub matrix_from: (usize, usize),
}

impl State {
    /// Returns the sets, oldest first; in a state of the past those of the steps by then.
    #[must_use]
    pub fn sample_sets(&self) -> Vec<SetId> {
        let newest = self.status().map(|status| status.step);
        let by_then = |id: &SetId| match (self.moment, id) {
            (Some(_), SetId::Step(step)) => newest.is_some_and(|newest| *step <= newest),
            _ => true,
        };
        self.samples.sets.iter().flatten().filter(|id| by_then(id)).copied().collect()
    }

    /// Returns the set on the screen: the chosen one, or the newest.
    #[must_use]
    pub fn chosen_set(&self) -> Option<SetId> {
        let sets = self.sample_sets();
        let chosen = self.screen.samples.set.filter(|id| sets.contains(id));
        chosen.or(sets.last().copied())
    }

    /// Returns the set to compare with, unless it is the one on the screen.
    #[must_use]
    pub fn set_beside(&self, beside: Beside) -> Option<SetId> {
        let sets = self.sample_sets();
        let id = match beside {
            Beside::First => sets.first().copied(),
            Beside::Best => {
                let best = self.status()?.best.as_ref()?.step;
                sets.contains(&SetId::Step(best)).then_some(SetId::Step(best))
            }
        };
        id.filter(|id| Some(*id) != self.chosen_set() && *id != SetId::Files)
    }

    /// Returns the samples of a set that was read; in a state of the past without files written later.
    #[must_use]
    pub fn samples_of(&self, id: SetId) -> Option<Vec<&ShownSample>> {
        let data = self.samples.read.get(&id)?.as_ref().ok()?;
        let by_then = |sample: &&ShownSample| match (self.moment, id) {
            (Some(moment), SetId::Files) => sample.time_ms <= moment,
            _ => true,
        };
        Some(data.samples.iter().filter(by_then).collect())
    }

    /// Returns the matrix of the set on the screen.
    #[must_use]
    pub fn confusion(&self) -> Option<&Confusion> {
        self.samples.read.get(&self.chosen_set()?)?.as_ref().ok()?.confusion.as_ref()
    }

    /// Returns the order for the picture of a sample in a room of columns and rows.
    #[must_use]
    pub fn picture_order(&self, sample: &ShownSample, room: (u16, u16)) -> Option<PictureOrder> {
        let path = sample.picture.clone()?;
        Some(PictureOrder { path, time_ms: sample.time_ms, room, support: self.samples.support })
    }
}

#[cfg(test)]
mod tests;
