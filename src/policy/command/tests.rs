use super::super::Policy;
use super::super::event::{Effect, Event, Limits, Signal};
use super::super::ledger::Ledger;
use super::super::lifecycle::{Lifecycle, Outcome};
use super::super::tests::{KILLED, failed, hello_from, limits, saved, seconds, starts, step};
use super::StartedBy;
use crate::outlook::continuation::{Commands, NewRun};
use crate::outlook::request::Refusal;
use crate::protocol::blank::companion;
use crate::protocol::cause::Cause;
use crate::protocol::companion::{CompanionNews, Grade};
use crate::protocol::control::{Request, Target};
use crate::protocol::exit::Exit;
use crate::protocol::worker::{CommandNews, Event as WorkerEvent, FailureClass, Order, Phase, Skipped};
pub(in crate::policy) use script::{AGAIN, PLAIN, RESUMES, SAVES, Script};

mod counts;
mod exceptions;
mod interrupts;
mod plan;
mod script;
mod silence;
mod unmatched;
mod updates;

/// Returns the policy of a command that trains.
fn trains(command: Script) -> Policy {
    let mut policy = begun(command);
    policy.decide(step(1), seconds(1));
    policy
}

/// Returns the policy of a command that has taken no step.
fn begun(command: Script) -> Policy {
    let again = "downshift run -- python x.py".to_owned();
    let again = NewRun { command: again, init: Some("downshift init -- python x.py".to_owned()) };
    let of_command = command.limits();
    let commands = Commands { again: Some(again), capability: of_command.capability, ..limits().commands };
    let mut policy = Policy::new(Limits { commands, ..of_command }, 0, Ledger::default(), None);
    policy.note_start(command.started_by);
    policy.decide(Event::Begin, seconds(0));
    policy.decide(hello_from("cpu", None), seconds(0));
    policy.decide(Event::Worker(WorkerEvent::Phase { phase: Phase::Training }), seconds(1));
    policy
}

fn active() -> Event {
    Event::Worker(WorkerEvent::Command { news: CommandNews::Active })
}

#[test]
fn a_killed_command_is_never_started_again_unless_it_can_resume_or_may_start_over() {
    let mut plain = trains(PLAIN);
    let effects = plain.decide(KILLED, seconds(2));
    let why = effects.iter().find_map(|effect| match effect {
        Effect::Finish(Outcome::NeedsPerson(why)) => Some(why.to_string()),
        _ => None,
    });
    let why = why.unwrap_or_else(|| panic!("{effects:?}"));
    assert_eq!(
        why,
        "killed; nothing resumes the command, and a start from the beginning might overwrite its outputs, so \
         the keeper does not start it again; `downshift init -- python x.py` writes a run file that says how the script can continue"
    );
    assert_eq!(starts(&trains(RESUMES).decide(KILLED, seconds(2))), [0]);
    assert_eq!(starts(&trains(AGAIN).decide(KILLED, seconds(2))), [0]);
}

#[test]
fn out_of_memory_goes_to_the_next_rung_that_relieves_it() {
    for class in [FailureClass::DeviceOutOfMemory, FailureClass::HostOutOfMemory] {
        let mut policy = trains(RESUMES);
        policy.decide(failed(class), seconds(2));
        assert_eq!(starts(&policy.decide(super::super::tests::ended_with(class), seconds(2))), [3], "{class}");
    }
}

#[test]
fn the_answer_to_a_shift_says_whether_the_command_saves_and_where_it_starts_again() {
    let answer =
        |mut policy: Policy| match &policy.decide(Event::Request(Request::Shift { to: Target::Down }), seconds(3))[0] {
            Effect::Reply(Ok(message)) => message.clone(),
            other => panic!("{other:?}"),
        };
    assert_eq!(answer(trains(SAVES)), "will shift to plain at the next step boundary");
    assert_eq!(answer(trains(AGAIN)), "will end the command and start it on plain, from its beginning");
    let mut resumes = trains(RESUMES);
    resumes.decide(saved(40), seconds(2));
    assert_eq!(answer(resumes), "will end the command and start it on plain, from its checkpoint at step 40");
}

#[test]
fn what_would_lose_everything_is_refused() {
    let shift = || Event::Request(Request::Shift { to: Target::Down });
    for request in [shift(), Event::Request(Request::Pause), Event::Request(Request::Restart)] {
        let effects = trains(PLAIN).decide(request, seconds(2));
        let advice =
            "; `downshift init -- python x.py` writes a run file that says how the script can continue".to_owned();
        assert_eq!(effects, [Effect::Reply(Err(Refusal::LosesEverything { steps: 1, advice }))]);
    }
    let mut resumes = trains(RESUMES);
    assert_eq!(resumes.decide(shift(), seconds(2)), [Effect::Reply(Err(Refusal::NothingSaved { steps: 1 }))]);
    resumes.decide(saved(1), seconds(2));
    assert!(matches!(resumes.decide(shift(), seconds(2))[0], Effect::Reply(Ok(_))));
    assert!(matches!(trains(AGAIN).decide(shift(), seconds(2))[0], Effect::Reply(Ok(_))));
    let effects = trains(RESUMES).decide(Event::Request(Request::Checkpoint), seconds(2));
    assert_eq!(effects, [Effect::Reply(Err(Refusal::CannotAskToSave))]);
    let effects = trains(SAVES).decide(Event::Request(Request::Checkpoint), seconds(2));
    assert!(effects.contains(&Effect::Order(Order::Checkpoint)), "{effects:?}");
    let effects = trains(PLAIN).decide(Event::Request(Request::Stop), seconds(2));
    assert!(effects.contains(&Effect::Order(Order::Stop { checkpoint: true })), "a stop is always possible");
}

#[test]
fn a_stop_leaves_a_command_the_time_to_save() {
    for (command, wait) in [(PLAIN, 10), (SAVES, 70)] {
        let mut policy = trains(command);
        policy.decide(Event::Request(Request::Stop), seconds(2));
        assert_eq!(policy.next_wake(), Some(seconds(2 + wait)));
        let effects = policy.decide(Event::Tick, seconds(2 + wait));
        assert!(effects.contains(&Effect::Signal(Signal::Terminate)), "{effects:?}");
    }
}

#[test]
fn the_keeper_ends_no_command_whose_work_is_not_saved() {
    let hot = || Event::Temperature { celsius: Some(99.0), slowdown_c: None };
    let heat_up = |policy: &mut Policy| {
        policy.decide(hot(), seconds(2));
        policy.decide(hot(), seconds(200))
    };
    let mut unsaved = trains(RESUMES);
    let effects = heat_up(&mut unsaved);
    assert!(matches!(unsaved.life(), Lifecycle::Running(_)), "{effects:?}");
    assert!(
        effects.iter().any(|effect| matches!(effect, Effect::Journal(_, _, text) if text.contains("lose its work")))
    );
    let mut resumable = trains(RESUMES);
    resumable.decide(saved(1), seconds(2));
    heat_up(&mut resumable);
    assert!(matches!(resumable.life(), Lifecycle::Stopping { .. }));
}

#[test]
fn a_silent_command_that_cannot_resume_raises_an_alarm_and_lives() {
    let mut policy = trains(PLAIN);
    let mut due = policy.next_wake().unwrap();
    policy.decide(active(), due.saturating_sub(seconds(1)));
    assert!(policy.decide(Event::Tick, due).is_empty(), "it printed something");
    due = policy.next_wake().unwrap();
    let effects = policy.decide(Event::Tick, due);
    assert!(matches!(&effects[..], [Effect::Alarm { .. }]), "{effects:?}");
    let next = policy.next_wake().unwrap();
    assert!(policy.decide(Event::Tick, next).is_empty(), "once is enough");
    assert!(matches!(policy.life(), Lifecycle::Running(_)));
    assert!(matches!(&policy.decide(active(), next)[..], [Effect::AlarmOver(_)]));
}

#[test]
fn a_hung_command_that_can_resume_is_started_again() {
    let mut policy = trains(RESUMES);
    for number in 2..=30 {
        policy.decide(step(number), seconds(number));
    }
    let due = policy.next_wake().unwrap();
    assert_eq!(due, seconds(30 + 180), "no less than `first_steps`, since evaluations are not announced");
    policy.decide(active(), seconds(200));
    assert_eq!(policy.next_wake(), Some(seconds(200 + 180)), "it may be evaluating, and was idle since then");
    policy.decide(active(), seconds(500));
    assert_eq!(policy.next_wake(), Some(seconds(30 + 600)), "no evaluation takes that long");
    let effects = policy.decide(Event::Tick, seconds(30 + 600));
    assert!(effects.contains(&Effect::Signal(Signal::Terminate)), "{effects:?}");
}

#[test]
fn an_adopted_training_is_not_ended_without_permission() {
    let adopted = Script { started_by: StartedBy::User { may_end: false }, from_start: true, ..PLAIN };
    let effects = trains(adopted).decide(Event::Request(Request::Pause), seconds(2));
    assert_eq!(effects, [Effect::Reply(Err(Refusal::NotOurs))]);
    let mut policy = trains(adopted);
    let due = policy.next_wake().unwrap();
    assert!(matches!(&policy.decide(Event::Tick, due)[..], [Effect::Alarm { .. }]));
    assert_eq!(starts(&policy.decide(KILLED, due)), [0], "but it is started again once it is dead");
}

#[test]
fn a_command_that_stops_saving_raises_one_alarm_until_it_saves_again() {
    let watched = Script { old_after: Some(seconds(300)), from_start: true, ..PLAIN };
    let mut policy = trains(watched);
    let mut age_alarms = Vec::new();
    for second in (10..=9000).step_by(10) {
        let mut effects = policy.decide(step(second), seconds(second));
        // It saves every 1000 s, and forgets to after the third time.
        if [1000, 2000, 3000, 8000].contains(&second) {
            effects.extend(policy.decide(saved(second), seconds(second)));
        }
        effects.extend(policy.decide(Event::Tick, seconds(second)));
        age_alarms.extend(effects.into_iter().filter_map(|effect| match effect {
            Effect::Alarm { text, .. } => Some((second, text)),
            Effect::AlarmOver(_) => Some((second, "over".to_owned())),
            _ => None,
        }));
    }
    let [(raised, text), (over, _)] = &age_alarms[..] else { panic!("{age_alarms:?}") };
    assert_eq!((*raised, *over), (5000, 8000), "twice the usual time after the last one");
    assert!(text.starts_with("the newest checkpoint is 3 000, saved 33 min ago"), "{text}");
    assert!(matches!(policy.life(), Lifecycle::Running(_)), "nothing is ended for it");

    let mut often = trains(watched);
    often.decide(saved(1), seconds(20));
    often.decide(saved(2), seconds(40));
    often.decide(step(2), seconds(330));
    assert_eq!(often.decide(Event::Tick, seconds(335)), [], "younger than the least age");
    assert!(matches!(&often.decide(Event::Tick, seconds(340))[..], [Effect::Alarm { .. }]));
    let mut never = trains(watched);
    never.decide(step(2), seconds(100_000));
    assert_eq!(never.decide(Event::Tick, seconds(100_001)), [], "how often it saves is unknown");
}

pub(in crate::policy) fn introduces(companion: CompanionNews) -> Event {
    Event::Worker(WorkerEvent::Command { news: CommandNews::Companion(Box::new(companion)) })
}

/// Returns a command that can do nothing by itself, with a companion that saves.
fn trains_with_companion() -> Policy {
    let mut policy = trains(PLAIN);
    policy.decide(introduces(companion(Grade::Exact, true)), seconds(1));
    policy
}

#[test]
fn a_companion_that_saves_makes_any_command_resumable() {
    assert_eq!(starts(&trains_with_companion().decide(KILLED, seconds(2))), [0]);
    let ask = |request| trains_with_companion().decide(Event::Request(request), seconds(2));
    assert!(ask(Request::Checkpoint).contains(&Effect::Order(Order::Checkpoint)));
    let stop = Effect::Order(Order::Stop { checkpoint: true });
    for request in [Request::Shift { to: Target::Down }, Request::Pause, Request::Restart, Request::Stop] {
        let effects = ask(request);
        assert!(effects.contains(&stop) && matches!(&effects[0], Effect::Reply(Ok(_))), "{effects:?}");
    }
    let mut policy = trains_with_companion();
    policy.decide(Event::Request(Request::Stop), seconds(2));
    assert_eq!(policy.next_wake(), Some(seconds(2 + 70)), "the time of a save, and of the end");

    for (grade, saves) in [(Grade::Exact, false), (Grade::None, true)] {
        let mut policy = trains(PLAIN);
        policy.decide(introduces(companion(grade, saves)), seconds(1));
        let effects = policy.decide(KILLED, seconds(2));
        assert!(matches!(effects.last(), Some(Effect::Finish(Outcome::NeedsPerson(_)))), "{grade}: {effects:?}");
    }
}

#[test]
fn steps_that_another_process_of_the_command_repeats_are_not_counted_twice() {
    let mut policy = trains_with_companion();
    for number in 2..=30 {
        policy.decide(step(number), seconds(number));
    }
    policy.decide(saved(20), seconds(30));
    let back = CommandNews::WentBack { step: 20, samples: 20 };
    assert!(policy.decide(Event::Worker(WorkerEvent::Command { news: back }), seconds(31)).is_empty());
    assert_eq!(policy.current_step(), 20);
}

#[test]
fn another_keeper_knows_that_the_companion_saves() {
    let mut policy = Policy::new(PLAIN.limits(), 0, Ledger::default(), None);
    assert!(policy.end_of_lost_command().is_some());
    policy.restore_companion(&companion(Grade::Script, true));
    assert_eq!(policy.end_of_lost_command(), None);
    policy.set_durable_step(Some(40));
    let effects = policy.decide(Event::Begin, seconds(0));
    assert!(matches!(&effects[..], [Effect::Start(start)] if start.reason.contains("step 40")), "{effects:?}");
}

#[test]
fn a_companion_that_is_gone_in_a_later_attempt_counts_no_longer() {
    let mut policy = trains_with_companion();
    for number in 2..=100 {
        policy.decide(step(number), seconds(number));
    }
    assert!(!policy.misses_companion());
    policy.decide(KILLED, seconds(101));
    policy.decide(hello_from("cpu", None), seconds(102));
    let missing = |number| {
        policy.decide(step(number), seconds(102 + number));
        policy.misses_companion()
    };
    let missed: Vec<bool> = (1..=20).map(missing).collect();
    assert_eq!(missed.iter().filter(|missing| **missing).count(), 1, "at the twentieth step");
    policy.forget_companion();
    assert!(!policy.misses_companion());
    let effects = policy.decide(KILLED, seconds(200));
    assert!(matches!(effects.last(), Some(Effect::Finish(Outcome::NeedsPerson(_)))), "{effects:?}");
}

#[test]
fn a_hung_command_with_a_companion_shows_its_stacks_before_it_is_ended() {
    let mut policy = trains_with_companion();
    for number in 2..=30 {
        policy.decide(step(number), seconds(number));
    }
    let due = policy.next_wake().unwrap();
    assert_eq!(due, seconds(30 + 60), "it reports each step, so an idle minute is enough");
    let effects = policy.decide(Event::Tick, due);
    assert!(matches!(&effects[..], [Effect::Journal(..), Effect::Order(Order::Stacks)]), "{effects:?}");
    let soon = policy.next_wake().unwrap();
    assert!(soon > due + seconds(1) && soon <= due + seconds(2));
    let effects = policy.decide(Event::Tick, soon);
    assert_eq!(effects, [Effect::Signal(Signal::Terminate)]);
    let hang = Cause::new(FailureClass::Hang, Vec::new());
    assert_eq!(starts(&policy.decide(Event::Exited(Exit::by_signal(15), hang), soon)), [0]);

    // The next attempt's companion has not introduced itself yet: nothing can be asked for stacks.
    policy.decide(hello_from("cpu", None), soon);
    let due = policy.next_wake().unwrap();
    assert!(policy.decide(Event::Tick, due).contains(&Effect::Signal(Signal::Terminate)));
}

#[test]
fn a_silent_command_that_may_not_be_ended_shows_its_stacks_too() {
    let mut policy = trains(PLAIN);
    policy.decide(introduces(companion(Grade::None, false)), seconds(1));
    let due = policy.next_wake().unwrap();
    let effects = policy.decide(Event::Tick, due);
    assert!(matches!(&effects[..], [Effect::Alarm { .. }, Effect::Order(Order::Stacks)]), "{effects:?}");
    assert!(matches!(policy.life(), Lifecycle::Running(_)));
}

#[test]
fn out_of_memory_with_a_companion_goes_down_the_ladder_from_the_newest_checkpoint() {
    let mut policy = trains_with_companion();
    policy.decide(saved(1), seconds(2));
    policy.decide(failed(FailureClass::DeviceOutOfMemory), seconds(3));
    let ended = super::super::tests::ended_with(FailureClass::DeviceOutOfMemory);
    assert_eq!(starts(&policy.decide(ended, seconds(3))), [3]);
}

#[test]
fn steps_that_the_companion_drops_count_as_those_of_any_worker() {
    let mut policy = trains_with_companion();
    policy.decide(saved(1), seconds(2));
    let skipped = |step| {
        Event::Worker(WorkerEvent::Skipped(Skipped {
            step,
            samples: step,
            epoch: 0,
            lr: 0.1,
            what: "loss".to_owned(),
            place: "micro-batch 1".to_owned(),
            parameter: None,
            rescaled: false,
            applied: false,
        }))
    };
    let mut effects = Vec::new();
    for number in 2..40 {
        effects.extend(policy.decide(skipped(number), seconds(number)));
    }
    assert!(effects.contains(&Effect::Order(Order::Stop { checkpoint: true })), "{effects:?}");
    assert_eq!(policy.rung(), 3, "the rung that helps against NaN losses");
}

#[test]
fn a_companion_is_awaited_until_it_reports_or_the_first_step_or_for_some_minutes() {
    let starts = |command: Script| {
        let mut policy = Policy::new(command.limits(), 0, Ledger::default(), None);
        policy.decide(Event::Begin, seconds(0));
        policy.decide(hello_from("cpu", None), seconds(0));
        policy
    };
    let silent = starts(PLAIN);
    assert!(silent.awaits_companion(seconds(60)));
    assert!(!silent.awaits_companion(seconds(600)), "it imports for ten minutes, or there is none");
    assert!(!starts(Script { companion_within: None, ..PLAIN }).awaits_companion(seconds(1)), "adopted");
    assert!(!trains(PLAIN).awaits_companion(seconds(2)), "it steps without one");
    let no_command = Policy::new(limits(), 0, Ledger::default(), None);
    assert!(!no_command.awaits_companion(seconds(0)));
    let mut resumed = Policy::new(RESUMES.limits(), 0, Ledger::default(), None);
    resumed.set_durable_step(Some(12_345));
    let said = format!("{:?}", resumed.decide(Event::Begin, seconds(0)));
    assert!(said.contains("from the newest usable checkpoint (step 12 345)"), "{said}");
}
