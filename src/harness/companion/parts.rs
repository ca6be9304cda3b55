//! The parts of a checkpoint: each rank writes its own, and the checkpoint is whole once all have. A training of one
//! process is the case of one part. Pure.
//!
//! ```text
//! rank 0: written ──┐
//! rank 1: failed  ──┼─ every rank has answered ──▶ whole, or failed: the parts that were written are discarded
//! rank 2: gone    ──┘
//! ```
//! The ranks hear the outcome once, after the last answer. So all of them know alike whether to save the step again.

use crate::harness::companion_link::Member;
use crate::protocol::companion::Staged;
use std::collections::BTreeMap;
use std::fmt;

/// A checkpoint of which every part is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Whole {
    /// The part of rank 0.
    pub first: Staged,
    /// Those of the other ranks, in their order.
    pub others: Vec<Staged>,
}

impl Whole {
    /// Returns the parts of all ranks.
    pub fn parts(&self) -> impl Iterator<Item = &Staged> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Returns the folders of all parts.
    pub fn folders(&self) -> impl Iterator<Item = &str> {
        self.parts().map(|staged| staged.folder.as_str())
    }

    /// Returns the longest stop of a rank, in milliseconds.
    pub fn pause_ms(&self) -> f64 {
        self.others.iter().map(|staged| staged.pause_ms).fold(self.first.pause_ms, f64::max)
    }
}

/// Reason why a part was not written.
#[derive(Debug, Clone, PartialEq)]
pub struct NotWritten {
    /// The rank and its reason.
    pub message: String,
    /// The disk caused it.
    pub of_disk: bool,
}

/// Reason why a rank writes no parts.
#[derive(Debug, Clone, PartialEq)]
pub enum Absence {
    /// It has no companion: it was started elsewhere, or without the environment of the command.
    Unknown,
    /// Its companion is gone, with its process or without it.
    Gone,
    /// Its state cannot be saved.
    CannotSave(String),
}

impl fmt::Display for Absence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => {
                formatter.write_str("it has no helper of downshift; only ranks that downshift starts can be saved")
            }
            Self::Gone => formatter.write_str("its helper of downshift is gone"),
            Self::CannotSave(reason) => formatter.write_str(reason),
        }
    }
}

/// The outcome of a save.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// Every part is there.
    Whole(Whole),
    /// A part will not come.
    Failed {
        /// The step.
        step: u64,
        /// The parts that were written.
        parts: Vec<Staged>,
        /// Why one is missing.
        why: NotWritten,
    },
}

/// The answers of ranks to a save.
type Answers = BTreeMap<u32, Result<Staged, NotWritten>>;

/// The saves to which some ranks have answered.
#[derive(Debug, Default)]
pub struct Parts {
    world: u32,
    open: BTreeMap<u64, Answers>,
    /// The ranks that have introduced themselves, with their absence since then.
    ranks: BTreeMap<u32, Option<Absence>>,
}

impl Parts {
    /// Takes the answer of a rank to the save of a step: its part, or why there is none.
    pub fn answer(&mut self, member: Member, step: u64, answer: Result<Staged, NotWritten>) -> Vec<Outcome> {
        self.world = member.world;
        self.open.entry(step).or_default().insert(member.rank, answer);
        self.settle()
    }

    /// Expects no more parts of a rank, until it joins again.
    pub fn leave(&mut self, member: Member, absence: Absence) -> Vec<Outcome> {
        self.world = member.world;
        self.ranks.insert(member.rank, Some(absence));
        self.settle()
    }

    /// Expects parts of a rank.
    pub fn join(&mut self, member: Member) {
        self.world = member.world;
        self.ranks.insert(member.rank, None);
    }

    /// Returns why no checkpoint can be whole, if a rank has said so.
    pub fn obstacle(&self) -> Option<String> {
        self.ranks.range(..self.world).find_map(|(rank, absence)| match absence {
            Some(Absence::CannotSave(reason)) => Some(format!("rank {rank} of {}: {reason}", self.world)),
            _ => None,
        })
    }

    /// Gives up the saves to which a rank has not answered yet.
    pub fn give_up(&mut self) -> Vec<Outcome> {
        std::mem::take(&mut self.open).into_iter().map(|(step, answers)| self.conclude(step, answers)).collect()
    }

    /// Concludes the newest save to which every rank has answered, and those before it: ranks answer in the order of steps.
    fn settle(&mut self) -> Vec<Outcome> {
        let has_answered = |answers: &Answers, rank| answers.contains_key(&rank) || self.absence(rank).is_some();
        let is_settled = |answers: &Answers| (0..self.world).all(|rank| has_answered(answers, rank));
        let Some(newest) = self.open.iter().rev().find(|(_, answers)| is_settled(answers)).map(|(step, _)| *step)
        else {
            return Vec::new();
        };
        let later = self.open.split_off(&newest.saturating_add(1));
        let settled = std::mem::replace(&mut self.open, later);
        settled.into_iter().map(|(step, answers)| self.conclude(step, answers)).collect()
    }

    fn conclude(&self, step: u64, answers: Answers) -> Outcome {
        let failed = answers.values().find_map(|answer| answer.as_ref().err().cloned());
        let why = failed.or_else(|| (0..self.world).find_map(|rank| self.find_missing(&answers, rank)));
        let mut parts = answers.into_values().flatten();
        match (why, parts.next()) {
            (None, Some(first)) => Outcome::Whole(Whole { first, others: parts.collect() }),
            (why, first) => {
                let why =
                    why.unwrap_or(NotWritten { message: "no rank has written a part".to_owned(), of_disk: false });
                Outcome::Failed { step, parts: first.into_iter().chain(parts).collect(), why }
            }
        }
    }

    /// Returns why the part of a rank is missing. That of a rank that is gone went with it.
    fn find_missing(&self, answers: &Answers, rank: u32) -> Option<NotWritten> {
        let reason = match self.absence(rank) {
            Some(absence) => absence.to_string(),
            None if answers.contains_key(&rank) => return None,
            None => "it has not written its part".to_owned(),
        };
        Some(NotWritten { message: format!("rank {rank} of {}: {reason}", self.world), of_disk: false })
    }

    fn absence(&self, rank: u32) -> Option<Absence> {
        self.ranks.get(&rank).map_or(Some(Absence::Unknown), Clone::clone)
    }
}

#[cfg(test)]
mod tests;
