//! The sentences of all reasons.

use super::{Exhausted, NoEffect, Reason, Unrelieved, Unsaved};
use crate::config::knobs::Relief;
use crate::outlook::continuation::NewRun;
use crate::policy::fault::Fault;
use crate::policy::room::Holder;
use crate::policy::shift::Answered;
use crate::protocol::companion::IgnoredKnob;
use crate::protocol::worker::FailureClass;
use insta::assert_snapshot;
use serde_json::json;
use std::time::Duration;

fn reasons_of_worker() -> Vec<Reason> {
    let fault = |class| Fault::new(class, "exit code 1");
    let crash = || fault(FailureClass::Crash);
    let rung = || "safe".to_owned();
    let init = Some("downshift init -- ./train".to_owned());
    let again = |init| Some(NewRun { command: "downshift run -- ./train".to_owned(), init });
    let ignored = || vec![IgnoredKnob { name: "training.micro_batch".to_owned(), rung: json!(2), in_force: json!(8) }];
    let unrelieved = |why, is_script, again| {
        Box::new(Unrelieved { rung: "full".to_owned(), relief: Relief::Memory, why, is_script, again })
    };
    let spent = [Exhausted::Off, Exhausted::WithoutProgress(3), Exhausted::TooMany(5, Some(Duration::from_mins(30)))];
    let no_effects = [
        None,
        Some(NoEffect::Ignored(ignored())),
        Some(NoEffect::NoGpu(rung())),
        Some(NoEffect::CannotStart { rung: rung(), fault: "exit code 2".to_owned() }),
    ];
    let unfinished = no_effects.map(|why| Reason::NoFiniteLoss {
        fault: fault(FailureClass::NonFinite),
        unrelieved: unrelieved(why, false, None),
    });
    let exhausted = spent.map(|spent| Reason::NoProgress {
        spent,
        fault: crash(),
        proposed: (spent == Exhausted::Off).then(|| "would shift down to safe".to_owned()),
        unrelieved: (spent != Exhausted::Off).then(|| unrelieved(None, true, again(init.clone()))),
        puts_back: spent == Exhausted::WithoutProgress(3),
    });
    let answers = Answered { relief: Relief::Memory, text: "out of device memory".to_owned() };
    let single = [
        Reason::Fault(crash()),
        Reason::NoRestartHelps {
            fault: fault(FailureClass::DiskFull),
            unsaved: Some(Unsaved { steps: 1204, since: Some(9000) }),
        },
        Reason::NoRestartHelps { fault: fault(FailureClass::GpuLost), unsaved: None },
        Reason::HostMemory(fault(FailureClass::HostOutOfMemory)),
        Reason::SameException { fault: crash(), step: 0 },
        Reason::SameException { fault: crash(), step: 1204 },
        Reason::CannotLoad { fault: crash(), step: 1200 },
        Reason::UnmatchedOutputs { fault: crash(), pattern: "out/*.pt".to_owned() },
        Reason::UnknownStart(crash()),
        Reason::NothingResumes { fault: crash(), saves: true, again: again(None) },
        Reason::NothingResumes { fault: crash(), saves: false, again: again(init) },
        Reason::IgnoredKnobs { fault: crash(), ignored: ignored(), relief: Relief::Memory },
        Reason::RungCannotStart { answers, rung: rung(), fault: crash() },
    ];
    single.into_iter().chain(unfinished).chain(exhausted).collect()
}

fn reasons_of_machine() -> Vec<Reason> {
    let holders = vec![Holder { pid: 77, name: Some("blender".to_owned()), bytes: 14 << 30 }];
    vec![
        Reason::Unkillable(None),
        Reason::Unkillable(Some(77)),
        Reason::StaysHot { celsius: 91.0, resume_c: 75.0, waited: Duration::from_mins(30) },
        Reason::NoRoom { rung: "safe".to_owned(), needed: 6 << 30, free: 4 << 30, holders },
        Reason::NotReleased(1 << 30),
        Reason::MemoryInUse { used: 9 << 30, before: 2 << 30 },
        Reason::Moved("runs/x".to_owned()),
        Reason::Unmounted("runs/x".to_owned()),
        Reason::InvalidRunFile("unknown key".to_owned()),
        Reason::Unapproved,
        Reason::Unwritten { step: 8000, error: "disk full".to_owned() },
    ]
}

#[test]
fn each_reason_says_what_happened_and_leaves_the_way_on_to_the_continuation() {
    let said: Vec<String> = reasons_of_worker().iter().chain(&reasons_of_machine()).map(ToString::to_string).collect();
    assert!(said.iter().all(|text| !text.contains("downshift resume") && !text.contains("`downshift run --")));
    assert_snapshot!("reasons", said.join("\n"));
}
