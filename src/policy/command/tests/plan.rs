//! The climb plan of a command: rungs 1 and 0 of the ladder, in epochs.

use super::{PLAIN, RESUMES, Script, seconds};
use crate::config::climb::{Length, Stage};
use crate::policy::Policy;
use crate::policy::event::{Effect, Event, Limits};
use crate::policy::ledger::Ledger;
use crate::policy::tests::{hello_from, saved, step};
use crate::protocol::blank::companion;
use crate::protocol::companion::{CompanionNews, Grade};
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{CommandNews, Event as WorkerEvent, Order, Phase};

/// Returns the policy of a command on the first stage of its plan, before its first step.
fn begun(command: Script, stage: Length) -> Policy {
    let plan = vec![Stage { rung: 1, length: Some(stage) }, Stage { rung: 0, length: None }];
    let limits = Limits { plan: plan.clone(), ..command.limits() };
    let mut policy = Policy::new(limits, 1, Ledger::begin(1, &plan), None);
    policy.decide(Event::Begin, seconds(0));
    let mut hello = hello_from("cpu", None);
    if let Event::Worker(WorkerEvent::Hello(hello)) = &mut hello {
        // A command does not say it.
        hello.epoch_units = 0;
    }
    policy.decide(hello, seconds(0));
    policy.decide(Event::Worker(WorkerEvent::Phase { phase: Phase::Training }), seconds(1));
    policy
}

fn news(news: CommandNews) -> Event {
    Event::Worker(WorkerEvent::Command { news })
}

/// Takes steps, each with the epoch that is reported before it, and saves every tenth one. Returns the step of the first move,
/// the descriptions of the plan and the journal lines about it.
fn train(
    policy: &mut Policy,
    steps: u64,
    epoch: impl Fn(u64) -> Option<u64>,
) -> (Option<u64>, Vec<String>, Vec<String>) {
    let (mut started, mut described, mut told) = (None, Vec::new(), Vec::new());
    for number in 1..=steps {
        let mut effects = Vec::new();
        if let Some(epoch) = epoch(number) {
            effects.extend(policy.decide(news(CommandNews::Epoch { epoch }), seconds(number)));
        }
        effects.extend(policy.decide(step(number), seconds(number)));
        if number % 10 == 0 {
            effects.extend(policy.decide(saved(number), seconds(number)));
            effects.extend(policy.decide(Event::Proven(number), seconds(number)));
        }
        let is_move = |effect: &Effect| {
            matches!(effect, Effect::Signal(_) | Effect::Start(_) | Effect::Order(Order::Stop { .. }))
        };
        started = started.or(effects.iter().any(is_move).then_some(number));
        told.extend(effects.into_iter().filter_map(|effect| match effect {
            Effect::Journal(_, JournalKind::Shift, text) if text.contains("plan") => Some(text),
            _ => None,
        }));
        let words = policy.describe_climb().unwrap_or_default();
        if described.last() != Some(&words) {
            described.push(words);
        }
        if started.is_some() {
            break;
        }
    }
    (started, described, told)
}

#[test]
fn a_stage_in_epochs_ends_after_those_that_the_script_reports() {
    let mut policy = begun(RESUMES, Length::Epochs(2));
    // It counts from 1, and an epoch has 400 steps.
    let (started, described, told) = train(&mut policy, 3000, |step| Some((step - 1) / 400 + 1));
    let started = started.unwrap_or_else(|| panic!("{described:?} {told:?}"));
    assert!((801..=1100).contains(&started), "{started}: {described:?}");
    assert_eq!(described[..2], ["stage 1 of 2, full in 2 epochs", "stage 1 of 2, full in 1 epoch"], "{described:?}");
    assert_eq!(told, ["climb plan: plain → full, stage 2 of 2: 2 epochs done and proven"]);
}

#[test]
fn a_stage_in_epochs_ends_by_the_clock_where_the_companion_knows_the_length_of_an_epoch() {
    let mut policy = begun(PLAIN, Length::Epochs(2));
    // A step has one sample.
    let known = CompanionNews { epoch_units: Some(400), ..companion(Grade::Exact, true) };
    policy.decide(news(CommandNews::Companion(Box::new(known))), seconds(1));
    let (started, described, _) = train(&mut policy, 3000, |_| None);
    assert!(started.is_some_and(|step| (800..=1100).contains(&step)), "{started:?}: {described:?}");
}

#[test]
fn epochs_that_are_never_reported_are_missed_once() {
    let mut policy = begun(RESUMES, Length::Epochs(2));
    let (started, described, told) = train(&mut policy, 3000, |_| None);
    assert_eq!((started, described), (None, vec!["stage 1 of 2, full once epochs are reported".to_owned()]));
    let [text] = &told[..] else { panic!("{told:?}") };
    assert!(text.contains("counts epochs, and the script has named none in 1000 steps, so plain lasts"), "{text}");
}

#[test]
fn a_plan_that_would_start_the_command_over_is_not_followed_and_not_shown() {
    for command in [PLAIN, Script { from_start: true, save_within: Some(seconds(60)), ..PLAIN }] {
        let mut policy = begun(command, Length::Steps(100));
        let (started, described, told) = train(&mut policy, 3000, Some);
        assert_eq!((started, described), (None, vec![String::new()]));
        assert_eq!(policy.plan_status().unwrap().stage, None);
        let [text] = &told[..] else { panic!("{told:?}") };
        assert!(text.starts_with("the climb plan is not followed: nothing resumes the command"), "{text}");
    }
}
