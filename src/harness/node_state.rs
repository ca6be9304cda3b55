//! Where another node stands, and what follows from that. Pure.

use super::node_failure::START;
use crate::process_tree::Grace;
use crate::protocol::exit::Exit;
use std::time::{Duration, Instant};

/// Time without an answer after which a node is named.
pub const SILENT: Duration = Duration::from_secs(30);
/// Time for the commands of other nodes to end after that of the first one has ended as it should: each may still save.
pub const FOLLOW: Duration = Duration::from_mins(5);
/// Time for the report of an end to arrive.
const REPORT: Duration = Duration::from_secs(5);

/// The phase of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Its step starts, and ends what an earlier attempt left.
    Claiming,
    /// It waits for the other ones.
    Ready,
    /// It starts its command.
    Starting,
    /// Its command runs.
    Running,
    /// None of its processes is left, or nothing more can be known of it.
    Over,
}

/// Where a node stands.
#[derive(Debug)]
pub struct NodeState {
    pub phase: Phase,
    /// How its command ended on its own.
    pub exit: Option<Exit>,
    /// When it last said something.
    pub heard: Instant,
    /// Its silence was reported.
    is_silent: bool,
    /// It has not answered the last look.
    is_asked: bool,
}

/// An action that is due for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// It has to be asked where it stands.
    Look,
    /// Its silence is reported.
    Silence,
    /// It did not start in time.
    TooSlow,
}

impl NodeState {
    /// Returns the state of a node whose step starts.
    pub fn new(now: Instant) -> Self {
        Self { phase: Phase::Claiming, exit: None, heard: now, is_silent: false, is_asked: false }
    }

    /// Returns what is due. A node that has not answered is not asked again: orders would pile up.
    pub fn tick(&mut self, now: Instant) -> Option<Due> {
        let since = now.saturating_duration_since(self.heard);
        match self.phase {
            Phase::Starting if since >= START => Some(Due::TooSlow),
            Phase::Running if self.is_asked => {
                (since >= SILENT && !std::mem::replace(&mut self.is_silent, true)).then_some(Due::Silence)
            }
            Phase::Running => {
                self.is_asked = true;
                Some(Due::Look)
            }
            Phase::Claiming | Phase::Ready | Phase::Starting | Phase::Over => None,
        }
    }

    /// Records that it answered a look.
    pub fn answer(&mut self) {
        (self.is_silent, self.is_asked) = (false, false);
    }

    /// Reports whether it told how its command ended, or that nothing is left of it.
    pub fn has_reported(&self) -> bool {
        self.exit.is_some() || self.phase == Phase::Over
    }
}

/// Returns the end of the command: that of the node that failed first, that of the first one, or of another that failed.
pub fn end_of_command(failed_first: Option<Exit>, here: Exit, mut elsewhere: impl Iterator<Item = Exit>) -> Exit {
    let has_failed = |exit: &Exit| exit.code != Some(0);
    failed_first
        .or_else(|| Some(here).filter(has_failed))
        .or_else(|| elsewhere.find(|exit| has_failed(exit)))
        .unwrap_or(here)
}

/// Returns the longest time for a node to report its end, if its command has this time to end on its own.
pub fn end_limit(alone: Duration, grace: Grace) -> Duration {
    alone + grace.command + grace.others + grace.kill + REPORT
}

#[cfg(test)]
mod tests {
    use super::{Due, FOLLOW, NodeState, Phase, SILENT, START, end_limit, end_of_command};
    use crate::harness::ending::Reason;
    use crate::protocol::exit::Exit;
    use std::time::{Duration, Instant};

    #[test]
    fn a_node_has_a_limit_to_start_and_none_to_train() {
        let now = Instant::now();
        let mut node = NodeState::new(now);
        let late = now + START;
        assert_eq!(node.tick(late), None, "the claim has its own limit");
        node.phase = Phase::Starting;
        assert_eq!((node.tick(now), node.tick(late)), (None, Some(Due::TooSlow)));
        node.phase = Phase::Running;
        assert_eq!(node.tick(late), Some(Due::Look));
        assert_eq!(node.tick(late), Some(Due::Silence), "it is not asked twice, and named once");
        assert_eq!(node.tick(late + SILENT), None);
        node.heard = late + SILENT;
        node.answer();
        assert_eq!(node.tick(late + SILENT), Some(Due::Look));
        assert_eq!(node.tick(late + SILENT), None, "it may answer within the limit");
        node.phase = Phase::Over;
        assert_eq!(node.tick(late + START), None);
    }

    #[test]
    fn a_node_that_exited_or_is_over_has_reported() {
        let mut node = NodeState::new(Instant::now());
        node.phase = Phase::Running;
        assert!(!node.has_reported());
        node.exit = Some(Exit::with_code(1));
        assert!(node.has_reported());
        (node.exit, node.phase) = (None, Phase::Over);
        assert!(node.has_reported());
    }

    #[test]
    fn the_command_ends_as_the_first_node_of_it_that_failed() {
        let (fine, one, killed) = (Exit::with_code(0), Exit::with_code(1), Exit::by_signal(9));
        let end = |first, here, other| end_of_command(first, here, [fine, other].into_iter());
        assert_eq!(end(Some(killed), one, one), killed);
        assert_eq!(end(None, one, killed), one, "the others lost this one");
        assert_eq!(end(None, fine, killed), killed);
        assert_eq!(end(None, fine, fine), fine);
    }

    #[test]
    fn a_node_has_time_to_follow_and_to_kill() {
        let grace = Reason::Exited.grace();
        assert!(end_limit(FOLLOW, grace) > FOLLOW + grace.command + grace.others + grace.kill);
        assert!(end_limit(Duration::ZERO, grace) < FOLLOW);
    }
}
