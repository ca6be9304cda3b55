//! Tests that triage promises what the policy does: each class, each Xid number and each message of the catalogue goes
//! through the real verdict into a real policy, twice; what it then does is compared with the response that triage names.

use crate::config::knobs::{Relief, Watch};
use crate::config::units::Every;
use crate::faults::response::Response;
use crate::faults::{self, xid};
use crate::outlook::continuation::Commands;
use crate::policy::Policy;
use crate::policy::command::CommandTimes;
use crate::policy::event::{self, Effect, Event, Limits};
use crate::policy::ledger::Ledger;
use crate::policy::lifecycle::{Lifecycle, Outcome, Then};
use crate::policy::reason::Reason;
use crate::protocol::capability::{Capability, Resumption};
use crate::protocol::cause::Cause;
use crate::protocol::class::FailureClass;
use crate::protocol::exit::Exit;
use crate::protocol::worker::{Event as WorkerEvent, Failed};
use crate::triage::catalogue::Catalogue;
use crate::triage::classify::{Evidence, classify};
use crate::triage::scan::{Finding, scan_line};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::build(None).unwrap());
/// The reliefs of the rungs below the first.
const RELIEFS: [Relief; 4] = [Relief::Memory, Relief::Kernels, Relief::Numerics, Relief::Heat];
/// Far beyond every limit of a hang.
const LONG: Duration = Duration::from_secs(1_000_000);

/// The policy's answer to the end of a worker, as seen from outside.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    StartsSame,
    StartsOn(Relief),
    Asks(Reason),
    Fails,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    BuiltIn,
    Command,
}

fn policy(kind: Kind) -> Policy {
    let command = Capability { resumes: Resumption::Checkpoints, ..Capability::BUILT_IN };
    let times = CommandTimes { companion_within: Some(LONG), ..CommandTimes::default() };
    let limits = Limits {
        commands: Commands::built_in("downshift resume"),
        rungs: ["full", "memory", "kernels", "numerics", "heat"].map(str::to_owned).to_vec(),
        relieves: std::iter::once(Vec::new()).chain(RELIEFS.map(|relief| vec![relief])).collect(),
        barriers: BTreeMap::new(),
        watch: Watch::default(),
        release_time: Duration::ZERO,
        plan: Vec::new(),
        save_every: vec![Every::Seconds(30.0); 5],
        capability: if kind == Kind::Command { command } else { Capability::BUILT_IN },
        times: if kind == Kind::Command { times } else { CommandTimes::default() },
        knobs: Vec::new(),
        unfused: Vec::new(),
    };
    let mut policy = Policy::new(limits, 0, Ledger::default(), None);
    policy.decide(Event::Begin, Duration::ZERO);
    policy
}

/// Lets the same fault happen twice. Returns what the policy does, up to the first answer that is not a restart unchanged.
fn drive(kind: Kind, evidence: &Evidence, cause: &Cause) -> Vec<Seen> {
    let (mut policy, mut now, mut seen) = (policy(kind), Duration::ZERO, Vec::new());
    while seen.len() < 2 && seen.last().is_none_or(|seen| *seen == Seen::StartsSame) {
        if evidence.ended_for.is_some() {
            now += LONG;
            policy.decide(Event::Tick, now);
            assert!(matches!(policy.life(), Lifecycle::Stopping { then: Then::Recover(_), .. }), "{:?}", policy.life());
        }
        if let Some(failed) = &evidence.failed {
            policy.decide(Event::Worker(WorkerEvent::Failed(failed.clone())), now);
        }
        let mut effects = policy.decide(Event::Exited(evidence.exit, cause.clone()), now);
        // The second start comes after a wait.
        now += Duration::from_secs(5);
        effects.extend(policy.decide(Event::Tick, now));
        let rung = effects.iter().find_map(|effect| match effect {
            Effect::Start(start) => Some(start.rung),
            _ => None,
        });
        seen.push(match (rung, policy.life()) {
            (Some(0), _) => Seen::StartsSame,
            (Some(rung), _) => Seen::StartsOn(RELIEFS[rung - 1]),
            (None, Lifecycle::Over(Outcome::NeedsPerson(why))) => Seen::Asks(why.clone()),
            (None, Lifecycle::Over(Outcome::Failed(..))) => Seen::Fails,
            (None, life) => panic!("{life:?} after {effects:?}"),
        });
    }
    seen
}

/// Reports whether these answers are those of a response: all but a restart unchanged end the list.
fn is_kept(response: Response, may_pass: bool, kind: Kind, seen: &[Seen]) -> bool {
    let response = if kind == Kind::Command { response.of_command() } else { response };
    let (last, restarts) = match seen.split_last() {
        Some((last, before)) => (last, before.len()),
        None => return false,
    };
    match response {
        Response::Note | Response::Again => *last == Seen::StartsSame,
        Response::UnlessSame | Response::Lean => matches!(last, Seen::Asks(_)) && restarts == 1,
        Response::Relieve(relief) => *last == Seen::StartsOn(relief) && restarts == 0,
        Response::AgainThen(relief) => *last == Seen::StartsOn(relief) && restarts == 1,
        Response::Fail => *last == Seen::Fails && restarts == usize::from(may_pass),
        Response::Stop => matches!(last, Seen::Asks(_)) && restarts == usize::from(may_pass),
    }
}

/// Returns the mistakes in triage's verdict on this evidence, and the verdict.
fn compare(name: &str, evidence: &Evidence) -> (Vec<String>, Cause) {
    let cause = classify(evidence, &CATALOGUE);
    let named = faults::response(cause.class, cause.xid, cause.damage);
    let mut wrong = Vec::new();
    for kind in [Kind::BuiltIn, Kind::Command] {
        let seen = drive(kind, evidence, &cause);
        if !is_kept(named, cause.may_pass, kind, &seen) {
            wrong.push(format!("{name}, {kind:?}: the verdict names {named:?}, the policy does {seen:?}"));
        }
        let ends = matches!(seen.last(), Some(Seen::Asks(_) | Seen::Fails));
        let may_help = cause.may_pass || !ends || named == Response::Lean;
        if cause.restart_helps != may_help {
            wrong.push(format!("{name}, {kind:?}: restart_helps is {}, the policy does {seen:?}", cause.restart_helps));
        }
        if let Some(Seen::Asks(why)) = seen.last()
            && named == Response::Stop
            && !matches!(why, Reason::NoRestartHelps { fault, .. } if fault.advice == cause.advice)
        {
            wrong.push(format!("{name}, {kind:?}: triage advises `{}`, the policy: `{why}`", cause.advice));
        }
    }
    (wrong, cause)
}

fn reported(class: FailureClass) -> Evidence {
    let failed = Failed { class, message: "x".to_owned(), step: None, thread: None, injected: false };
    Evidence { exit: Exit::with_code(i32::from(class.exit_code())), failed: Some(failed), ..Evidence::default() }
}

fn xid_line(number: u32) -> Finding {
    scan_line(format!("NVRM: Xid (PCI:0000:01:00): {number}, pid=7, name=python").as_bytes(), 1, &CATALOGUE).unwrap()
}

#[test]
fn triage_and_policy_agree_on_every_class() {
    let wrong: Vec<String> =
        FailureClass::ALL.iter().flat_map(|class| compare(class.word(), &reported(*class)).0).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each number alone, and beside every other sign of a failure.
#[test]
fn triage_and_policy_agree_on_every_xid() {
    let hang = Some((FailureClass::Hang, "no step for 50 s".to_owned()));
    let ends = [
        Evidence { exit: Exit::by_signal(9), ..Evidence::default() },
        Evidence { exit: Exit::by_signal(11), ..Evidence::default() },
        Evidence { exit: Exit::with_code(11), ..Evidence::default() },
        Evidence { exit: Exit::by_signal(9), ended_for: hang, ..Evidence::default() },
    ];
    let ends: Vec<Evidence> = ends.into_iter().chain(FailureClass::ALL.map(reported)).collect();
    let (mut wrong, mut stops) = (Vec::new(), 0);
    for number in 0..1000 {
        let finding = xid_line(number);
        let is_stop = finding.response == Response::Stop;
        stops += u32::from(is_stop);
        for (index, end) in ends.iter().enumerate() {
            let line = format!("kernel: NVRM: Xid (PCI:0000:01:00): {number}, pid=7, name=python");
            let kernel = crate::triage::kernel::read_line(&line).into_iter().collect();
            let evidence = Evidence { kernel, ..end.clone() };
            let (mistakes, cause) = compare(&format!("Xid {number} beside {index}"), &evidence);
            wrong.extend(mistakes);
            let is_xid = cause.xid == Some(number);
            let is_alone = index < 3;
            if is_stop && !is_xid || is_alone && is_xid != (finding.response != Response::Note) {
                wrong.push(format!("Xid {number} beside {index}: {cause:?}"));
            }
            if is_xid && cause.advice != finding.advice {
                wrong
                    .push(format!("Xid {number}: triage advises `{}`, its verdict `{}`", finding.advice, cause.advice));
            }
        }
        wrong.extend(compare_while_alive(number, &finding));
    }
    assert!(wrong.is_empty(), "{} mistakes:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
    assert!(stops >= 14, "{stops}");
}

/// Returns the mistake if a number that comes while the worker lives is not answered as triage says.
fn compare_while_alive(number: u32, finding: &Finding) -> Option<String> {
    let mut alive = policy(Kind::BuiltIn);
    let (class, text) = (FailureClass::Xid, "seen".to_owned());
    alive.decide(Event::Evidence(event::Evidence { class, number: Some(number), text }), Duration::ZERO);
    let advice = match alive.life() {
        Lifecycle::Stopping { then: Then::Conclude(Reason::NoRestartHelps { fault, .. }), .. } => Some(&fault.advice),
        _ => None,
    };
    let wanted = (finding.response == Response::Stop).then_some(&finding.advice);
    (advice != wanted).then(|| format!("Xid {number} while alive: {advice:?}, not {wanted:?}"))
}

#[test]
fn triage_and_policy_agree_on_every_message() {
    let known = include_str!("../../tests/triage/known.txt").lines().filter_map(|row| Some(row.split_once(" | ")?.1));
    let causes = include_str!("../../tests/triage/causes.txt").lines().filter_map(|line| line.strip_prefix("says: "));
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for finding in known.chain(causes).filter_map(|message| scan_line(message.as_bytes(), 1, &CATALOGUE)) {
        for exit in [Exit::of_command(Some(1), None), Exit::with_code(101)] {
            let evidence = Evidence { exit, log: vec![finding.clone()], ..Evidence::default() };
            let (mistakes, cause) = compare(&format!("{}, {exit}", finding.name), &evidence);
            wrong.extend(mistakes);
            let named = (faults::response(cause.class, cause.xid, cause.damage), cause.may_pass);
            if cause.class == finding.class && named != (finding.response, finding.transient) {
                wrong.push(format!("{}: its line names {:?}, the verdict {named:?}", finding.name, finding.response));
            }
        }
        seen += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 300, "{seen}");
}

#[test]
fn a_number_that_ends_a_run_comes_with_a_way_out() {
    for known in xid::all().iter().filter(|known| known.response.ends_run()) {
        let asks = ["reset", "restart the machine"].iter().any(|words| known.advice.contains(words));
        assert!(asks, "{}: {}", known.number, known.advice);
    }
}
