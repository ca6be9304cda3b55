//! The alerts: every trouble that holds, most urgent first. The verdict shows the first; the box shows all.

use super::trouble::{
    filling, hot, ignored_knobs, not_learning, not_saved, other_resume, proposal, run_dir_missing, silent, skipping,
    slow, stalled, vram_full,
};
use super::{Tone, Verdict, cut_off, ended, waiting};
use crate::cockpit::state::State;
use crate::cockpit::state::alerts::AlertKind;
use crate::protocol::control::RunState;

/// A trouble that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// Its subject.
    pub kind: AlertKind,
    /// The reason, and the remedy if a key or a command helps.
    pub verdict: Verdict,
    /// When the trouble began, Unix milliseconds, if that is known. It may be long before this cockpit opened.
    pub began_ms: Option<i64>,
}

/// Returns the alerts, most urgent first.
#[must_use]
pub fn alerts(state: &State) -> Vec<Alert> {
    let Some(status) = state.status().filter(|_| state.moment.is_none()) else { return Vec::new() };
    let broken = matches!(status.state, RunState::Failed | RunState::NeedsPerson | RunState::Interrupted);
    let held_back = matches!(status.state, RunState::AwaitingCard | RunState::BackingOff);
    let found = if state.is_over() {
        vec![(AlertKind::Broken, ended(state, status).filter(|_| broken))]
    } else {
        vec![
            (AlertKind::KeeperLost, cut_off(state)),
            (AlertKind::KeeperSilent, silent(state)),
            (AlertKind::RunDirMissing, run_dir_missing(state, status)),
            (AlertKind::Waiting, waiting(state, status).filter(|_| held_back)),
            (AlertKind::NotSaved, not_saved(status).filter(|_| state.facts.run_dir_missing_ms.is_none())),
            (AlertKind::Stalled, stalled(state, status)),
            (AlertKind::Proposal, proposal(status)),
            (AlertKind::Skipping, skipping(state)),
            (AlertKind::Hot, hot(state)),
            (AlertKind::VramFull, vram_full(state)),
            (AlertKind::VramFilling, filling(state)),
            (AlertKind::OtherResume, other_resume(status)),
            (AlertKind::IgnoredKnobs, ignored_knobs(status)),
            (AlertKind::Slow, slow(state)),
            (AlertKind::NotLearning, not_learning(state)),
        ]
    };
    let is_stale = state.is_stale();
    let alert = |(kind, verdict): (AlertKind, Option<Verdict>)| {
        // Old data raises no alert; those that held before stay, since nothing says that they ended.
        let counts = !is_stale || kind.holds_without_keeper() || state.alerts.since_ms(kind).is_some();
        let verdict = verdict.filter(|_| counts)?;
        Some(Alert { kind, verdict, began_ms: began_ms(state, kind) })
    };
    found.into_iter().filter_map(alert).collect()
}

/// Returns when a trouble began, Unix milliseconds, if the state knows it.
fn began_ms(state: &State, kind: AlertKind) -> Option<i64> {
    match kind {
        AlertKind::Broken => state.ended_ms(),
        AlertKind::KeeperLost => state.link.lost_since_ms(),
        AlertKind::KeeperSilent => state.facts.heard_ms,
        AlertKind::RunDirMissing => state.facts.run_dir_missing_ms,
        AlertKind::Waiting => state.facts.state_since_ms,
        AlertKind::Stalled => state.last_progress_ms(),
        _ => None,
    }
}

impl Alert {
    /// Returns the remedy where neither a key nor a command is one.
    #[must_use]
    pub fn other_remedy(&self) -> &'static str {
        match self.kind {
            AlertKind::Broken => "fix the cause, then resume the run or start it anew",
            AlertKind::KeeperLost => "wait: the keeper restarts by itself",
            AlertKind::KeeperSilent => "wait; if it stays silent, see keeper.log in the run directory",
            AlertKind::RunDirMissing => "move the run directory back; to end the run without it, stop twice",
            AlertKind::NotSaved => {
                "free some space, or mend what keeps the files from being written; training continues"
            }
            AlertKind::Waiting => "wait: the run starts again by itself",
            AlertKind::Stalled => "wait: the keeper restarts a worker that hangs",
            AlertKind::Proposal => "accept or ignore it; it expires",
            AlertKind::Skipping => "lower the learning rate",
            AlertKind::Hot => "improve the cooling, or lower the power limit",
            AlertKind::VramFull | AlertKind::VramFilling => "lower the micro-batch, or end other GPU processes",
            AlertKind::OtherResume => {
                "look where the script writes and finds its checkpoints; a rung must not change that folder"
            }
            AlertKind::IgnoredKnobs => {
                "use the value that the rung sets; after loading an optimizer, set its rate again"
            }
            AlertKind::NotLearning => "compare the curves of training and evaluation: the run may overfit, or be done",
            AlertKind::Slow => "the charts of step time, data wait and GPU load show since when",
        }
    }

    /// Reports whether something broke.
    #[must_use]
    pub fn is_danger(&self) -> bool {
        self.verdict.tone == Tone::Danger
    }
}

#[cfg(test)]
mod tests {
    use super::alerts;
    use crate::cockpit::action::Action;
    use crate::cockpit::fixture::{self, NOW};
    use crate::cockpit::state::State;
    use crate::cockpit::state::alerts::AlertKind;
    use crate::cockpit::update::{Msg, update};
    use crate::cockpit::verdict::verdict;
    use crate::protocol::control::{FailedSaves, JournalKind, JournalRow, Proposal, RunState, StepRow, Update};
    use crate::protocol::worker::Level;

    const SIZE: (u16, u16) = (120, 40);

    fn kinds(state: &State) -> Vec<AlertKind> {
        alerts(state).into_iter().map(|alert| alert.kind).collect()
    }

    #[test]
    fn every_trouble_is_listed_and_the_first_is_the_verdict() {
        assert_eq!(kinds(&fixture::training(SIZE)), []);
        let mut state = fixture::training(SIZE);
        let mut status = fixture::status(RunState::Training, 700);
        status.proposal = Some(Proposal { why: "a hang".to_owned(), does: "would shift down".to_owned() });
        fixture::apply_status(&mut state, status);
        let row = |step| StepRow { loss: None, grad_norm: None, skipped: true, ..fixture::step_row(2, step, NOW) };
        update(&mut state, Msg::Keeper(Update::Steps { rows: (701..=720).map(row).collect() }));
        update(&mut state, Msg::Tick(NOW + 1_000));
        assert_eq!(kinds(&state), [AlertKind::Proposal, AlertKind::Skipping]);
        assert_eq!(verdict(&state), alerts(&state)[0].verdict);
        update(&mut state, Msg::Tick(NOW + 9_000));
        let held = [AlertKind::KeeperSilent, AlertKind::Proposal, AlertKind::Skipping];
        assert_eq!(kinds(&state), held, "no new one is judged by old data");
        assert_eq!(state.alerts.since_ms(AlertKind::KeeperSilent), Some(NOW));
    }

    #[test]
    fn saves_that_fail_are_an_alert_until_one_succeeds() {
        let mut state = fixture::training(SIZE);
        let mut status = fixture::status(RunState::Training, 700);
        let why = "No space left on device".to_owned();
        status.failed_saves = Some(FailedSaves { step: 300, count: 4, why });
        fixture::apply_status(&mut state, status.clone());
        assert_eq!(kinds(&state), [AlertKind::NotSaved]);
        assert_eq!(verdict(&state).text, "saves have failed since step 300 (4 saves): No space left on device");
        status.failed_saves = None;
        fixture::apply_status(&mut state, status);
        assert_eq!(kinds(&state), []);
    }

    #[test]
    fn skips_before_a_shift_are_no_alert_after_it() {
        let mut state = fixture::training(SIZE);
        let skipped = |step| StepRow { loss: None, grad_norm: None, skipped: true, ..fixture::step_row(2, step, NOW) };
        update(&mut state, Msg::Keeper(Update::Steps { rows: (701..=720).map(skipped).collect() }));
        assert_eq!(kinds(&state), [AlertKind::Skipping]);
        let after = |step| StepRow { rung: 3, attempt: 3, ..fixture::step_row(3, step, NOW) };
        update(&mut state, Msg::Keeper(Update::Steps { rows: (721..=760).map(after).collect() }));
        assert_eq!(kinds(&state), []);
    }

    #[test]
    fn alerts_stay_while_the_keeper_is_silent_and_the_footer_agrees() {
        let mut state = fixture::training(SIZE);
        let row = |step| StepRow { loss: None, grad_norm: None, skipped: true, ..fixture::step_row(2, step, NOW) };
        update(&mut state, Msg::Keeper(Update::Steps { rows: (701..=720).map(row).collect() }));
        for tick in (1_000..=4_900).step_by(100).chain([5_100, 60_000]) {
            update(&mut state, Msg::Tick(NOW + tick));
            assert!(kinds(&state).contains(&AlertKind::Skipping), "{tick}");
            assert!(state.is_possible(Action::Alerts));
        }
        update(&mut state, Msg::Keeper(Update::Steps { rows: Vec::new() }));
        assert!(!kinds(&state).contains(&AlertKind::KeeperSilent));
    }

    #[test]
    fn the_age_of_an_alert_counts_from_its_cause() {
        let began = |state: &State| alerts(state).into_iter().map(|alert| (alert.kind, alert.began_ms)).next();
        let mut stalled = fixture::training(SIZE);
        for second in 1..=7 {
            stalled.facts.heard_ms = Some(NOW + second * 1000);
            update(&mut stalled, Msg::Tick(NOW + second * 1000));
        }
        assert_eq!(began(&stalled), Some((AlertKind::Stalled, Some(NOW))));
        let orphaned = fixture::orphaned(SIZE);
        assert_eq!(began(&orphaned), Some((AlertKind::KeeperLost, Some(NOW))));
        // A cockpit that attaches to a run that failed hours ago.
        let mut history = fixture::history(700, false);
        history.journal.push(JournalRow {
            id: 9,
            time_ms: NOW + 4_000,
            step: Some(700),
            level: Level::Error,
            kind: JournalKind::Run,
            text: "the run failed".to_owned(),
        });
        let mut failed = fixture::at(SIZE, fixture::status(RunState::Failed, 700), history);
        update(&mut failed, Msg::Tick(NOW + 3 * 3_600_000));
        assert_eq!(began(&failed), Some((AlertKind::Broken, Some(NOW + 4_000))));
    }

    #[test]
    fn a_slow_run_stays_slow_through_evaluations_and_saves() {
        let mut state = fixture::at(SIZE, fixture::status(RunState::Training, 5000), fixture::history(5000, false));
        for second in 1..=40i64 {
            let row = |step: i64| StepRow {
                compute_ms: 90.0,
                ..fixture::step_row(
                    2,
                    (4997 + second * 3 + step).cast_unsigned(),
                    NOW + (second - 1) * 1000 + step * 333,
                )
            };
            update(&mut state, Msg::Tick(NOW + second * 1000));
            update(&mut state, Msg::Keeper(Update::Steps { rows: (1..=3).map(row).collect() }));
        }
        let since = state.alerts.since_ms(AlertKind::Slow);
        assert!(since.is_some());
        for run in [RunState::Evaluating, RunState::Training, RunState::Checkpointing, RunState::Training] {
            fixture::apply_status(&mut state, fixture::status(run, 5117));
            assert_eq!(state.alerts.since_ms(AlertKind::Slow), since, "{run:?}");
        }
    }

    #[test]
    fn a_run_that_failed_has_one_alert_and_a_finished_one_none() {
        let mut state = fixture::on_gpu(SIZE);
        fixture::apply_status(&mut state, fixture::status(RunState::Failed, 700));
        assert_eq!(kinds(&state), [AlertKind::Broken]);
        fixture::apply_status(&mut state, fixture::status(RunState::Finished, 700));
        assert_eq!(kinds(&state), []);
    }

    #[test]
    fn a_speed_around_the_threshold_gives_one_alert() {
        let mut state = fixture::at(SIZE, fixture::status(RunState::Training, 5000), fixture::history(5000, false));
        let mut flips = 0;
        let mut was_slow = false;
        // Steps of 37 ms are usual. The mean of half a minute hovers between 1.6 and 1.9 times that.
        for second in 1..=240i64 {
            let compute_ms = if second / 40 % 2 == 0 { 70.0 } else { 58.0 };
            let row = |step: i64| StepRow {
                compute_ms,
                ..fixture::step_row(
                    2,
                    (4997 + second * 3 + step).cast_unsigned(),
                    NOW + (second - 1) * 1000 + step * 333,
                )
            };
            update(&mut state, Msg::Tick(NOW + second * 1000));
            update(&mut state, Msg::Keeper(Update::Steps { rows: (1..=3).map(row).collect() }));
            let is_slow = kinds(&state).contains(&AlertKind::Slow);
            flips += usize::from(is_slow != was_slow);
            was_slow = is_slow;
        }
        assert!(was_slow, "{:?}", state.facts.pace());
        assert_eq!(flips, 1, "it begins once");
    }
}
