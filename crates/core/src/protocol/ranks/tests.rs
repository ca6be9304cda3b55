//! Where the ranks stand, and which one left first.

use super::{ProcessState, RankPhase, RankRow, find_laggard, find_spread};
use crate::protocol::blank::rank as row;

fn named(rows: &[RankRow]) -> String {
    find_laggard(rows).unwrap().to_string()
}

#[test]
fn the_rank_at_the_lowest_step_and_phase_left_first() {
    use RankPhase::{Compute, Data, Evaluating, Reduction, Script};
    let mut rows: Vec<RankRow> = (0..4).map(|rank| row(rank, 12, Reduction)).collect();
    assert!(named(&rows).starts_with("all ranks wait in the gradient sync of step 13"));
    rows[2].phase = Compute;
    let text = "rank 2 of 4 left first: computing in step 13, asleep; 3 ranks wait in gradient sync";
    assert_eq!(named(&rows), text);
    rows[1].phase = Data;
    assert_eq!(find_laggard(&rows).unwrap().row.rank, 1);
    rows[3] = row(3, 12, Script);
    assert!(named(&rows).contains("rank 3 of 4 left first: in the script's own code after step 12"));
    rows[0] = row(0, 11, Reduction);
    assert_eq!(find_laggard(&rows).unwrap().row.rank, 0, "the step comes first");
    rows[0] = row(0, 11, RankPhase::Ended);
    rows[1] = row(1, 12, Evaluating);
    rows[1].stands_ms = 5;
    let text = "ranks 1 and 3 of 4 left first: evaluating after step 12, asleep; 1 rank waits in gradient sync";
    rows[2].phase = Reduction;
    assert_eq!(named(&rows), text);
}

#[test]
fn no_rank_is_named_alone_where_several_stand_and_nobody_waits_for_them() {
    let mut rows: Vec<RankRow> = (0..2).map(|rank| row(rank, 12, RankPhase::Compute)).collect();
    rows[1].stands_ms = 40;
    assert_eq!(named(&rows), "ranks 0 and 1 of 2 stand in step 13, computing");
    rows[1].phase = RankPhase::Data;
    assert_eq!(named(&rows), "rank 1 of 2 left first: waiting for data in step 13, asleep");
    let many: Vec<RankRow> = (0..64).map(|rank| row(rank, 12, RankPhase::Compute)).collect();
    assert!(named(&many).starts_with("ranks 0, 1, 2, 3 and 60 more of 64 stand"), "{}", named(&many));
    rows[0].process = Some(ProcessState::Stopped);
    assert!(named(&rows).starts_with("rank 0 of 2 left first"), "{}", named(&rows));
}

#[test]
fn a_stopped_rank_is_the_cause_wherever_it_stands() {
    let mut rows = [row(0, 12, RankPhase::Compute), row(1, 12, RankPhase::Reduction)];
    rows[1].process = Some(ProcessState::Stopped);
    let text = "rank 1 of 2 left first: waiting in gradient sync in step 13, stopped by a signal (T)";
    assert_eq!(named(&rows), text);
    assert!(find_laggard(&rows[..1]).is_none(), "one rank waits for nobody");
}

#[test]
fn the_spread_is_of_own_times() {
    let mut rows: Vec<RankRow> = (0..4).map(|rank| row(rank, 1, RankPhase::Data)).collect();
    assert_eq!(find_spread(&rows), None);
    for (row, ms) in rows.iter_mut().zip([10.0, 30.0, 12.0, 14.0]) {
        row.own_ms = Some(ms);
    }
    let spread = find_spread(&rows).unwrap();
    assert_eq!((spread.least_ms, spread.median_ms, spread.most_ms), (10.0, 13.0, 30.0));
}
