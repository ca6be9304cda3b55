use super::{Follower, format_line, step_line};
use crate::cockpit::fixture;
use crate::config::run::{AsWritten, Run, Source};
use crate::protocol::control::{RunState, StepRow};
use crate::store::lock::Recovery;
use crate::store::owners;
use crate::store::reader::live_status;
use crate::store::run_dir::RunDir;
use crate::store::writer::Writer;
use std::path::Path;

#[test]
fn an_end_in_the_store_gives_way_to_a_recovery() {
    let folder = tempfile::tempdir().unwrap();
    let text = "name: x\ntask: t\ntraining: { steps: 4, micro_batch: 8 }\noptimizer: { lr: 0.1 }\n";
    let source = Source { file: "x.yaml", text, base: Path::new("/"), overrides: &[] };
    let run = Run::read(&source, &AsWritten).unwrap();
    let dir = RunDir::create(folder.path(), &run).unwrap();
    let store = |state: RunState| {
        let status = fixture::status(state, 5);
        let mut store = Writer::open(&dir.file("run.db")).unwrap();
        store.put_fact("status", &status).unwrap();
        store.put_fact("exit_code", &3).unwrap();
    };
    let seen = || {
        let follower = Follower::of(&dir, 0, None);
        (live_status(&dir).unwrap().state, follower.exit_code())
    };
    store(RunState::Stopped);
    assert_eq!(seen(), (RunState::Stopped, Some(3)));
    let mut parent = owners::become_parent(&dir).unwrap();
    parent.update(|record| record.recovery = Some(Recovery::default())).unwrap();
    assert_eq!(seen(), (RunState::Recovering, None), "the end that an earlier keeper wrote");
    parent.release();
    store(RunState::Training);
    assert_eq!(seen(), (RunState::Interrupted, None), "neither keeper nor parent is left");
}

#[test]
fn a_note_cannot_reach_the_terminal_or_another_line() {
    let note = "done\u{1b}]52;c;aGk=\u{7}\n12:00:00  the run failed \u{202e}";
    let wanted = "12:00:01  done\\u001b]52;c;aGk=\\u0007\\n12:00:00  the run failed \\u202e";
    assert_eq!(format_line("12:00:01", note), wanted);
}

#[test]
fn a_step_is_one_line_with_what_is_known_of_it() {
    let row = StepRow { step: 1200, loss: Some(0.25), lr: Some(5e-4), grad_norm: Some(1.5), ..StepRow::default() };
    assert_eq!(step_line(&row), "step 1 200  loss 0.250  lr 5e-4  grad norm 1.500");
    let skipped = StepRow { step: 7, lr: Some(0.002), skipped: true, ..StepRow::default() };
    assert_eq!(step_line(&skipped), "step 7  not finite  lr 0.002");
    assert_eq!(step_line(&StepRow { step: 7, ..StepRow::default() }), "step 7", "a script may report nothing else");
}
