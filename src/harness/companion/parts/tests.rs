use super::{Absence, Member, NotWritten, Outcome, Parts};
use crate::harness::node_pid::{Node, NodePid};
use crate::protocol::companion::Staged;

/// Three ranks.
struct Ranks(Parts);

fn member(rank: u32) -> Member {
    Member { process: NodePid { node: Node::HERE, pid: 40 + rank }, rank, world: 3 }
}

fn part(step: u64, rank: u32) -> Staged {
    let folder = format!(".new-step-{step:09}.{}", 40 + rank);
    Staged { step, samples: step, folder, pause_ms: f64::from(rank) }
}

fn full_disk() -> NotWritten {
    NotWritten { message: "rank 1 of 3: no space".to_owned(), of_disk: true }
}

fn failed(step: u64, ranks: &[u32], message: &str) -> Outcome {
    let why = NotWritten { message: message.to_owned(), of_disk: message == full_disk().message };
    Outcome::Failed { step, parts: ranks.iter().map(|rank| part(step, *rank)).collect(), why }
}

impl Ranks {
    fn joined() -> Self {
        let mut parts = Parts::default();
        (0..3).for_each(|rank| parts.join(member(rank)));
        Self(parts)
    }

    fn write(&mut self, step: u64, rank: u32) -> Vec<Outcome> {
        self.0.answer(member(rank), step, Ok(part(step, rank)))
    }
}

#[test]
fn a_checkpoint_is_whole_once_every_rank_has_written_its_part() {
    let mut ranks = Ranks::joined();
    assert_eq!((ranks.write(5, 2), ranks.write(5, 0), ranks.write(6, 0)), (vec![], vec![], vec![]));
    let outcomes = ranks.write(5, 1);
    let [Outcome::Whole(whole)] = &outcomes[..] else { panic!("{outcomes:?}") };
    let folders: Vec<&str> = whole.folders().collect();
    assert_eq!(folders, [".new-step-000000005.40", ".new-step-000000005.41", ".new-step-000000005.42"]);
    assert!((whole.pause_ms() - 2.0).abs() < f64::EPSILON);
    assert_eq!(ranks.0.give_up(), [failed(6, &[0], "rank 1 of 3: it has not written its part")]);
    let outcomes = ranks.0.answer(Member { world: 1, ..member(0) }, 7, Ok(part(7, 0)));
    assert!(matches!(outcomes[..], [Outcome::Whole(_)]), "one process");
}

#[test]
fn a_save_that_failed_is_concluded_once_and_can_be_repeated() {
    let mut ranks = Ranks::joined();
    ranks.write(5, 0);
    assert!(ranks.0.answer(member(1), 5, Err(full_disk())).is_empty(), "rank 2 still writes");
    assert_eq!(ranks.write(5, 2), [failed(5, &[0, 2], "rank 1 of 3: no space")]);
    assert_eq!((ranks.write(5, 1), ranks.write(5, 0)), (vec![], vec![]));
    assert!(matches!(ranks.write(5, 2)[..], [Outcome::Whole(_)]));
}

#[test]
fn a_rank_that_is_gone_fails_the_open_saves_and_all_later_ones() {
    let mut ranks = Ranks::joined();
    ranks.write(5, 0);
    ranks.write(5, 1);
    assert!(ranks.0.leave(member(1), Absence::Gone).is_empty(), "rank 2 still writes");
    let gone = "rank 1 of 3: its helper of downshift is gone";
    assert_eq!(ranks.write(5, 2), [failed(5, &[0, 1, 2], gone)], "its part is no longer there");
    assert!(ranks.write(6, 0).is_empty());
    assert_eq!(ranks.write(6, 2), [failed(6, &[0, 2], gone)]);
    assert_eq!(ranks.0.obstacle(), None, "it may come back");
    ranks.0.join(member(1));
    assert_eq!((ranks.write(7, 0), ranks.write(7, 2)), (vec![], vec![]));
    assert!(matches!(ranks.write(7, 1)[..], [Outcome::Whole(_)]));
}

#[test]
fn a_rank_that_cannot_save_is_named_and_nobody_waits_for_it() {
    let mut ranks = Ranks::joined();
    ranks.0.leave(member(2), Absence::CannotSave("a lambda cannot be kept".to_owned()));
    assert_eq!(ranks.0.obstacle().as_deref(), Some("rank 2 of 3: a lambda cannot be kept"));
    ranks.write(5, 0);
    assert_eq!(ranks.write(5, 1), [failed(5, &[0, 1], "rank 2 of 3: a lambda cannot be kept")]);
    ranks.0.join(Member { world: 1, ..member(0) });
    assert_eq!(ranks.0.obstacle(), None, "the next training has one process");
}

#[test]
fn nobody_waits_for_a_rank_that_has_no_companion() {
    let mut parts = Parts::default();
    parts.join(member(0));
    parts.join(member(2));
    assert!(parts.answer(member(0), 5, Ok(part(5, 0))).is_empty());
    let outcomes = parts.answer(member(2), 5, Ok(part(5, 2)));
    let [Outcome::Failed { why, .. }] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(why.message.starts_with("rank 1 of 3: it has no helper of downshift"), "{}", why.message);
}

#[test]
fn a_part_that_the_others_passed_over_does_not_stay() {
    let mut ranks = Ranks::joined();
    ranks.write(5, 1);
    assert_eq!((ranks.write(6, 0), ranks.write(6, 1)), (vec![], vec![]));
    let outcomes = ranks.write(6, 2);
    let [first, Outcome::Whole(_)] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(*first, failed(5, &[1], "rank 0 of 3: it has not written its part"));
}
