//! The state machine against a random world on a virtual clock.

use super::{KILLED, exited, hello, policy, saved, seconds, step};
use crate::policy::Policy;
use crate::policy::event::{Effect, Event};
use crate::policy::lifecycle::Lifecycle;
use crate::protocol::control::{Request, Target};
use crate::protocol::worker::{Event as WorkerEvent, Phase};
use proptest::prelude::*;
use std::time::Duration;

/// A random world that answers as worker, GPU and user would.
#[derive(Debug, Clone)]
enum Move {
    Hear(u8),
    Die(u8),
    Ask(u8),
    Measure(u8),
    Wait(u16),
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        (0u8..6).prop_map(Move::Hear),
        (0u8..6).prop_map(Move::Die),
        (0u8..9).prop_map(Move::Ask),
        (0u8..4).prop_map(Move::Measure),
        (0u16..900).prop_map(Move::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn never_two_workers_never_an_endless_wait(moves in prop::collection::vec(any_move(), 1..120)) {
        let mut policy = policy();
        let (mut alive, mut now, mut durable) = (false, seconds(0), 0);
        let (mut starts_since_progress, mut person_started) = (0u32, 0u32);
        let mut run = |policy: &mut Policy, event: Event, now: Duration, alive: &mut bool| {
            for effect in policy.decide(event, now) {
                match effect {
                    Effect::Start(_) => {
                        assert!(!*alive, "a second worker");
                        *alive = true;
                        starts_since_progress += 1;
                    }
                    Effect::Signal(_) | Effect::Order(_) => assert!(*alive, "no worker to tell"),
                    Effect::Finish(_) => assert!(matches!(policy.life(), Lifecycle::Over(_))),
                    _ => {}
                }
            }
        };
        run(&mut policy, Event::Begin, now, &mut alive);
        for choice in moves {
            match choice {
                Move::Hear(0) if alive => { durable += 1; run(&mut policy, saved(durable), now, &mut alive); }
                Move::Hear(1) if alive => run(&mut policy, hello("cuda:0"), now, &mut alive),
                Move::Hear(2) if alive => run(&mut policy, Event::Worker(WorkerEvent::Phase { phase: Phase::Training }), now, &mut alive),
                Move::Hear(number) if alive => run(&mut policy, step(u64::from(number)), now, &mut alive),
                Move::Die(how) if alive => {
                    alive = false;
                    let event = match how { 0 => exited(0), 1 => exited(3), 2 => exited(10), 3 => exited(101), _ => KILLED };
                    run(&mut policy, event, now, &mut alive);
                }
                Move::Ask(what) => {
                    let request = match what {
                        0 => Request::Shift { to: Target::Down },
                        1 => Request::Shift { to: Target::Up },
                        3 => Request::Restart,
                        4 => Request::Pause,
                        5 => Request::Resume,
                        6 => Request::Autopilot { on: false },
                        7 => Request::Shift { to: Target::Rung("safe".to_owned()) },
                        _ => Request::Checkpoint,
                    };
                    person_started += 1;
                    run(&mut policy, Event::Request(request), now, &mut alive);
                }
                Move::Measure(level) => run(&mut policy, Event::Vram(Some(u64::from(level) << 30)), now, &mut alive),
                Move::Wait(tenths) => {
                    let until = now + Duration::from_millis(u64::from(tenths) * 100);
                    while let Some(due) = policy.next_wake().filter(|due| *due <= until) {
                        now = now.max(due);
                        run(&mut policy, Event::Tick, now, &mut alive);
                    }
                    now = until;
                }
                _ => {}
            }
            let waits = policy.next_wake().is_some();
            let rests = matches!(policy.life(), Lifecycle::Paused | Lifecycle::Over(_));
            prop_assert!(waits || rests, "{:?} has no end", policy.life());
        }
        // Each durable step resets the budget of 3, and each request of the user may: a resume does. Beyond the budget, each of
        // the two safer rungs is tried once.
        prop_assert!(u64::from(starts_since_progress) <= 1 + 6 * u64::from(person_started) + 5 * (durable + 1) + durable);
    }
}
