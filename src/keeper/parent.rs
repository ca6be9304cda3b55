//! The keeper's parent: starts the keeper, waits, and starts it again. It does nothing else, so that hardly
//! anything can end it.
//!
//! ```text
//!             ┌────────────────────────────┐
//!             ▼                            │ killed or panicked; failed, and may succeed later
//!  start ─▶ wait ─▶ how it ended ──────────┤
//!                                          ├─▶ the run's own end, or a signal to end it
//!                                          └─▶ only you can help: written down
//! ```
//! While no keeper runs, `parent.lock` says why; `status` reads it there, since the disk may be full.

mod ward;

use super::author::signal_name;
use super::caretaker::{self, Verdict};
use super::detach;
use super::failure::{Class, LastWord, may_pass};
use super::keep::Launch;
use crate::store::lock::{LockError, Recovery, Whereabouts};
use crate::store::owners;
use crate::store::run_dir::RunDir;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::Signal;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use ward::Ward;

/// A keeper that dies more often than this in [`WINDOW`] is not brought back.
const DEATHS: usize = 5;
const WINDOW: Duration = Duration::from_mins(10);
/// Between a death and the next keeper; after each failed start twice as long.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Whoever started the run waits 10 s for its first keeper, and is told then that it failed.
const FIRST_START: Duration = Duration::from_secs(9);
/// Whoever moved the run directory may move it back.
const PATIENCE: Duration = Duration::from_mins(1);
/// A keeper's last word is one line.
const LAST_WORD: u64 = 1 << 16;
/// The exit code of a run that needs you.
const NEEDS_PERSON: u8 = 4;

/// Starts the keeper, waits, and starts it again while the run is wanted. Returns the run's exit code.
///
/// # Errors
/// When there is another parent, or when an end that nobody asked for could not be written down.
pub fn bring_back(run: &RunDir, launch: Option<&Launch>, by_person: bool) -> io::Result<u8> {
    let file = run.file("parent.lock");
    let lock = owners::become_parent(run).map_err(|error| io::Error::other(format!("{}: {error}", file.display())))?;
    let ward = Ward::new(lock);
    ward.pass_on_signals()?;
    let mut parent = Parent {
        run,
        launch,
        by_person,
        ward,
        began: Instant::now(),
        deaths: VecDeque::new(),
        lived: false,
        recovery: Recovery::default(),
        failing: None,
        away: None,
    };
    loop {
        let end = parent.keep_once();
        if let Some(code) = parent.judge(end)? {
            return Ok(code);
        }
    }
}

/// How a keeper ended.
enum End {
    /// The run is over, with this exit code.
    Over(u8),
    /// Killed or panicked: how.
    Died(String),
    /// It could not keep.
    Failed(LastWord),
    /// Somebody wants the run to end, and no keeper lives that could see to it: by whom.
    Told(String),
}

struct Parent<'a> {
    run: &'a RunDir,
    launch: Option<&'a Launch>,
    by_person: bool,
    ward: Ward,
    began: Instant,
    deaths: VecDeque<Instant>,
    /// A keeper has lived.
    lived: bool,
    recovery: Recovery,
    /// When the first of the starts failed that failed in a row.
    failing: Option<Instant>,
    /// Since when the run directory is not where it was.
    away: Option<Instant>,
}

impl Parent<'_> {
    /// Starts a keeper and waits for its end.
    fn keep_once(&mut self) -> End {
        let mut command = detach::program("keeper", self.run, self.launch);
        if self.by_person {
            command.arg("--by-person");
        }
        command.process_group(0).stdout(Stdio::piped());
        let mut child = match self.ward.start(&mut command) {
            Ok(Ok(child)) => child,
            Ok(Err(by)) => return End::Told(by),
            Err(error) => {
                let class = if may_pass(&error) { Class::Transient } else { Class::Final };
                return End::Failed(LastWord { class, code: 1, why: format!("no process: {error}") });
            }
        };
        let status = child.wait();
        let told = self.ward.ended();
        let Ok(status) = status else { return End::Died("was lost".to_owned()) };
        match (child.stdout.take().and_then(last_word), told, status.signal()) {
            (Some(_), Some(by), _) | (None, Some(by), Some(_)) => End::Told(by),
            (Some(word), None, _) => End::Failed(word),
            // It came before the keeper could listen for it.
            (None, None, Some(signal)) if is_a_wish(signal) => End::Told(signal_name(signal)),
            (None, _, Some(signal)) => End::Died(format!("was ended by {}", signal_name(signal))),
            (None, _, None) if status.code() == Some(101) => End::Died("panicked".to_owned()),
            (None, _, None) => End::Over(exit_code(status)),
        }
    }

    /// The exit code, where the run is over.
    fn judge(&mut self, end: End) -> io::Result<Option<u8>> {
        match end {
            End::Over(code) => return Ok(Some(code)),
            End::Told(by) => return Ok(Some(self.stopped(&by))),
            End::Failed(word) => {
                self.failed(&word);
                let hopeless = !self.lived && self.began.elapsed() > FIRST_START;
                if word.class == Class::Final || hopeless {
                    let verdict = if word.code == 13 { Verdict::Config } else { Verdict::NeedsPerson };
                    return self.give_up(verdict, &format!("the keeper cannot run: {}", word.why)).map(Some);
                }
            }
            End::Died(how) => {
                (self.lived, self.by_person, self.failing) = (true, false, None);
                self.recovery = Recovery { death: Some(how), ..Recovery::default() };
                self.deaths.push_back(Instant::now());
                if self.deaths.len() > DEATHS && self.deaths.pop_front().is_some_and(|first| first.elapsed() < WINDOW) {
                    return self.give_up(Verdict::NeedsPerson, &self.too_many()).map(Some);
                }
            }
        }
        self.ward.recovering(&self.recovery);
        let pause = PAUSE.saturating_mul(1 << self.recovery.failures.min(10)).min(LONGEST_PAUSE);
        match self.ward.rest(pause) {
            Some(by) => Ok(Some(self.stopped(&by))),
            None => Ok(self.homeless()),
        }
    }

    fn failed(&mut self, word: &LastWord) {
        let since = *self.failing.get_or_insert_with(Instant::now);
        self.recovery.failures += 1;
        self.recovery.lasting_s = since.elapsed().as_secs();
        self.recovery.failure = Some(word.why.clone());
    }

    fn too_many(&self) -> String {
        format!(
            "the keeper died {} times within {} minutes and is not brought back; keeper.log says why, and `{}` starts \
             it again",
            DEATHS + 1,
            WINDOW.as_secs() / 60,
            self.run.command("resume")
        )
    }

    /// Writes down why the run ends, and waits for the disk where it has to.
    fn give_up(&self, verdict: Verdict, why: &str) -> io::Result<u8> {
        self.ward.recovering(&self.recovery);
        let mut pause = PAUSE;
        loop {
            let error = match caretaker::conclude(self.run, verdict, why) {
                Ok(()) => return Ok(verdict.exit_code()),
                Err(error) => error,
            };
            let hopeless = !self.lived || error.class() == Class::Final || !self.run.path().exists();
            if hopeless || self.ward.rest(pause).is_some() {
                return Err(io::Error::other(format!("{why}; and that could not be written down: {error}")));
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Writes down who ended the run. The run ends also where that cannot be written.
    fn stopped(&self, by: &str) -> u8 {
        let _ = caretaker::conclude(self.run, Verdict::Stopped, &format!("stopped by {by}, while no keeper ran"));
        Verdict::Stopped.exit_code()
    }

    /// The exit code where the run directory was deleted, or moved for good. One whose mount is missing may
    /// come back.
    fn homeless(&mut self) -> Option<u8> {
        let mut charge = self.ward.lock();
        if charge.lock.whereabouts() == Whereabouts::InPlace {
            self.away = None;
            return None;
        }
        if self.run.path().join("run.yaml").exists() {
            // Only the lock file was deleted. Another parent may have made its own.
            return matches!(charge.lock.restore(), Err(LockError::Held(_))).then_some(NEEDS_PERSON);
        }
        let since = *self.away.get_or_insert_with(Instant::now);
        let moved = charge.lock.is_elsewhere() && since.elapsed() > PATIENCE;
        (charge.lock.is_deleted() || moved).then_some(NEEDS_PERSON)
    }
}

/// What a keeper that is gone wrote as its last line.
fn last_word(mut stdout: ChildStdout) -> Option<LastWord> {
    // A process that the keeper left behind may hold the pipe open.
    fcntl_setfl(&stdout, OFlags::NONBLOCK).ok()?;
    let mut bytes = Vec::new();
    let _ = stdout.by_ref().take(LAST_WORD).read_to_end(&mut bytes);
    serde_json::from_slice(&bytes).ok()
}

/// A signal that asks a process to end, as against one that kills it.
fn is_a_wish(signal: i32) -> bool {
    [Signal::TERM, Signal::INT].iter().any(|wish| wish.as_raw() == signal)
}

fn exit_code(status: ExitStatus) -> u8 {
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
