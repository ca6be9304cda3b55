//! One table of all rooms' answers about a run: what it is, how it continues, and how its end is reported. Rows with the
//! same answers are one. A row with `!` has answers that contradict each other.
//! A change of an answer shows here: `INSTA_UPDATE=always cargo test --lib cli::tests`, then read the diff.

use super::interrupted::find_state;
use super::{client, resume, status, wait};
use crate::cockpit::action::Action;
use crate::cockpit::fixture;
use crate::cockpit::state::State;
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::update::{Msg, update};
use crate::config::run::{AsWritten, Run, Source};
use crate::outlook::continuation::How;
use crate::protocol::blank;
use crate::protocol::control::{RunState, Status, Update};
use crate::store::command_line::record_command_line;
use crate::store::continuation;
use crate::store::lock::{Ending, Lock};
use crate::store::owners;
use crate::store::reader::live_status;
use crate::store::run_dir::RunDir;
use crate::store::writer::Writer;
use insta::assert_snapshot;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// The processes of a run that are alive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Lives {
    Keeper,
    Parent,
    Worker,
    Nobody,
}

const LIVES: [Lives; 4] = [Lives::Keeper, Lives::Parent, Lives::Worker, Lives::Nobody];

/// The states that a keeper writes. A worker and a keeper's parent outlive only some of them.
const STATES: [RunState; 6] = [
    RunState::Training,
    RunState::Paused,
    RunState::Finished,
    RunState::Failed,
    RunState::NeedsPerson,
    RunState::Stopped,
];

/// The worker of a run: its name, the lines of its run file, and the level of its command.
const WORKERS: [(&str, &str, Option<u8>); 5] = [
    ("built-in", "task: t\ntraining: { steps: 4, micro_batch: 8 }\noptimizer: { lr: 0.1 }\n", None),
    ("plain", "task: command\ncommand: [train]\n", Some(0)),
    ("from-start", "task: command\ncommand: [train]\nrestart: from_start\n", Some(0)),
    (
        "files",
        "task: command\ncommand: [train]\ncheckpoints: { match: \"out/*\", complete: state }\nresume: { arguments: [\"{checkpoint}\"] }\n",
        Some(1),
    ),
    ("companion", "task: command\ncommand: [train]\n", Some(2)),
];

/// The run directory of a case, with the locks that make its processes alive.
struct Case {
    dir: RunDir,
    run: Run,
    locks: Vec<Lock>,
    _folder: tempfile::TempDir,
}

impl Case {
    fn new((_, text, _): (&str, &str, Option<u8>)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("name: x\n{text}");
        let source = Source { file: "x.yaml", text: &text, base: Path::new("/"), overrides: &[] };
        let run = Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}"));
        let dir = RunDir::create_named(folder.path(), "x", &run).unwrap();
        record_command_line(&dir);
        Self { dir, run, locks: Vec::new(), _folder: folder }
    }

    /// Writes this state, and makes its processes alive.
    fn become_case(&mut self, lives: Lives, state: RunState, level: Option<u8>, durable: Option<u64>) {
        self.locks.drain(..).for_each(Lock::release);
        let mut status = blank::status();
        (status.run, status.state, status.level, status.durable_step) = (self.dir.name(), state, level, durable);
        status.step = 700;
        status.pid_worker = (lives == Lives::Worker).then(std::process::id);
        Writer::open(&self.dir.file("run.db")).unwrap().put_fact("status", &status).unwrap();
        self.locks.extend(match lives {
            Lives::Keeper => Some(owners::become_keeper(&self.dir).unwrap()),
            Lives::Parent => Some(owners::become_parent(&self.dir).unwrap()),
            Lives::Worker => Some(owners::become_worker(self.dir.path()).unwrap()),
            Lives::Nobody => None,
        });
    }

    /// Returns the cockpit as it shows this status.
    fn cockpit(&self, lives: Lives, status: &Status) -> State {
        let mut state = fixture::connected((120, 40));
        if lives == Lives::Keeper {
            update(&mut state, Msg::Keeper(Update::Status(Box::new(status.clone()))));
        } else {
            update(&mut state, Msg::KeeperLost("connection refused".to_owned()));
            update(&mut state, Msg::StoredStatus(Some(Box::new(status.clone()))));
        }
        state.command.clone_from(&self.run.command);
        state.commands = Some(continuation::commands(&self.dir, state.command.as_ref()));
        state
    }

    /// Returns the row of this case, with a mark if its answers contradict each other.
    fn answers(&self, lives: Lives) -> String {
        let status = live_status(&self.dir).unwrap();
        let cockpit = self.cockpit(lives, &status);
        let word = |debug: String| debug.split(['(', ' ', '{']).next().unwrap_or_default().to_owned();
        let refusal = cockpit.request_refusal().map_or("-".to_owned(), |refusal| match refusal {
            Refusal::OfRun(why) => word(format!("{why:?}")),
            other => word(format!("{other:?}")),
        });
        let shown = cockpit.continuation();
        let stored = continuation::continuation(&self.dir, Some(&status));
        let line = status::continuation_line(&self.dir, &status);
        let is_other = line.as_ref().is_some_and(|line| *line != stored.to_string());
        let line = line.map_or("-", |_| if is_other { "other" } else { "same" });
        let args = resume::ResumeArgs::default();
        let resumes =
            resume::refuse_finished(&self.dir, &args, &AsWritten).and_then(|()| resume::refuse_lost_command(&self.dir));
        let resumes = resumes.map_or_else(|failure| failure.code.to_string(), |()| "starts".to_owned());
        let after_boot = word(format!("{:?}", find_state(&self.dir)));
        let asks = match lives {
            Lives::Keeper | Lives::Parent => "asks".to_owned(),
            _ => client::absent(&self.dir).message.split("; ").next().unwrap_or_default().replace("process ", ""),
        };
        let asks = asks.replace(&std::process::id().to_string(), "N");
        let waits = match wait::end(&self.dir) {
            None => "waits".to_owned(),
            Some(Ok(last)) => wait::exit_code(&self.dir, &last).to_string(),
            Some(Err(failure)) => format!("failure {}", failure.code),
        };
        let (shown_way, stored_way) = (word(format!("{:?}", shown.how)), word(format!("{:?}", stored.how)));
        let is_at_rest = status.state.is_over() || status.state == RunState::Paused;
        let is_resumed = matches!(stored.how, How::Resume(_) | How::StartOver | How::TakeOver);
        let differs = shown != stored || is_resumed != (resumes == "starts");
        let mark = if is_at_rest && (differs || is_other) { "!" } else { " " };
        let d = if cockpit.is_possible(Action::Restart) { "possible" } else { "dim" };
        format!(
            "{mark}{:<15} │ {refusal:<16} {d:<8} {shown_way:<10} │ {stored_way:<10} {line:<5} │ {resumes:<6} {after_boot:<11} │ {waits:<5} │ {asks}",
            status.state.word()
        )
    }
}

#[test]
fn every_room_answers_the_same_about_a_run() {
    let mut table = String::new();
    let head = "is shown";
    let _ = writeln!(
        table,
        " {head:<15} │ {:<36} │ {:<16} │ {:<18} │ wait  │ stop",
        "cockpit: requests, restart, way", "way, status line", "resume, after boot"
    );
    let mut cases = WORKERS.map(|worker| (worker, Case::new(worker)));
    for (lives, state) in LIVES.into_iter().flat_map(|lives| STATES.map(|state| (lives, state))) {
        let outlives = matches!(state, RunState::Training | RunState::Paused);
        if matches!(lives, Lives::Parent | Lives::Worker) && !outlives {
            continue;
        }
        let mut rows: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for ((name, _, level), case) in &mut cases {
            for (durable, mark) in [(None, ""), (Some(600), "+")] {
                case.become_case(lives, state, *level, durable);
                rows.entry(case.answers(lives)).or_default().push(format!("{name}{mark}"));
            }
        }
        let _ = writeln!(table, "{lives:?}, {state:?}");
        for (answers, workers) in rows {
            let _ = writeln!(table, "{answers}  [{}]", workers.join(" "));
        }
    }
    assert_snapshot!("answers", table);
}

#[test]
fn an_end_that_only_the_parent_knows_is_reported_alike() {
    let mut table = String::new();
    for code in [1, 3, 4, 13, 14] {
        let mut case = Case::new(WORKERS[0]);
        case.become_case(Lives::Nobody, RunState::Training, None, Some(600));
        let mut parent = owners::become_parent(&case.dir).unwrap();
        let ending = Ending { why: "no space left".to_owned(), code, wish: false };
        let dead = i32::MAX.unsigned_abs();
        parent.update(|record| (record.ending, record.owner.pid) = (Some(ending), dead)).unwrap();
        drop(parent);
        let last = live_status(&case.dir).unwrap();
        let waited = wait::exit_code(&case.dir, &last);
        let mark = if waited == code { " " } else { "!" };
        let _ = writeln!(table, "{mark}the parent ends with {code}: {}, `wait` {waited}", last.state.word());
    }
    assert_snapshot!("ends", table);
}
