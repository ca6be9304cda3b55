//! The end of a run that is followed: its exit code, from the keeper, from run.db, or from the keeper's parent.

use super::{Follower, print_now};
use crate::keeper::lifeline::BoundKeeper;
use crate::protocol::control::RunState;
use crate::protocol::exit_code::{NEEDS_PERSON, STOPPED};
use crate::store::owners;
use crate::store::reader::Reader;

impl Follower<'_> {
    /// Reports whether another start of this job has continued the run since: its keeper is not this one's.
    pub(super) fn is_taken_over(&self) -> bool {
        let bound = self.bound.as_ref().map(BoundKeeper::id);
        bound.is_some_and(|id| owners::parent_record(self.dir).is_some_and(|parent| parent.owner.pid != id))
    }

    /// Returns how this start of a job ended, by the last status of its own keeper: another start may have continued the run
    /// before this one could look.
    pub(super) fn own_end(&self) -> Option<u8> {
        self.bound.as_ref()?;
        let last = self.status.as_ref().filter(|last| last.state.is_over()).and_then(|last| last.exit_code);
        last.or_else(|| self.is_taken_over().then_some(STOPPED))
    }

    /// Returns the exit code of a run whose end is recorded, or was reported by the keeper when a full
    /// disk could not store it.
    pub(super) fn exit_code(&self) -> Option<u8> {
        if owners::keeper(self.dir).is_some() || owners::keeper_elsewhere(self.dir).is_some() {
            return None;
        }
        if let Some(code) = self.status.as_ref().filter(|last| last.state.is_over()).and_then(|last| last.exit_code) {
            return Some(code);
        }
        let Some((reader, status)) = Reader::open(self.dir).ok().and_then(|reader| {
            let status = reader.status()?;
            Some((reader, status))
        }) else {
            // The directory was deleted.
            let left = self.status.as_ref().is_some_and(|last| last.state == RunState::NeedsPerson);
            return left.then_some(NEEDS_PERSON);
        };
        // An earlier end of the run, left by a keeper that died before its first write.
        if owners::parent_record(self.dir).is_some_and(|parent| parent.recovery.is_some()) {
            return None;
        }
        status.state.is_over().then(|| reader.fact::<u8>("exit_code"))?
    }

    /// Prints the end of a run that its keeper's parent could not write to run.db. Returns the exit code.
    pub(super) fn unwritten_end(&self) -> Option<u8> {
        if owners::is_kept(self.dir) {
            return None;
        }
        let ending = owners::unwritten_end(self.dir)?;
        print_now(&format!("warning: {}; run.db could not be written", ending.why));
        Some(ending.code)
    }
}
