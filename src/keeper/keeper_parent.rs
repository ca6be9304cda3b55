//! The keeper's parent: starts the keeper, waits, and restarts it. It does nothing else, so that
//! hardly anything can kill it.
//!
//! ```text
//!             ┌────────────────────────────┐
//!             ▼                            │ killed or panicked; failed, and may succeed later
//!  start ─▶ wait ─▶ how it ended ──────────┤
//!                                          ├─▶ the run's own end, or a signal to end it
//!                                          └─▶ only you can help: written down
//! ```
//! While no keeper runs, `parent.lock` says why; `status` reads it from there, since the disk may be full.

mod supervised;

use super::detach::{self, Asked};
use super::failure::{Class, LastWord, may_pass};
use super::lifeline::Lifetime;
use super::offline::{self, OfflineEnd};
use super::run_loop::Launch;
use crate::protocol::exit::signal_name;
use crate::protocol::exit_code::{CONFIG, NEEDS_PERSON};
use crate::store::lock::{Ending, LockError, Recovery, Whereabouts};
use crate::store::owners;
use crate::store::run_dir::RunDir;
use crate::store::run_dir_watch::{Presence, RunDirWatch};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions, getpid, set_child_subreaper, wait};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use supervised::{EndSignal, Supervised};

/// A keeper that dies more often than this within [`WINDOW`] is not restarted.
const DEATHS: usize = 5;
const WINDOW: Duration = Duration::from_mins(10);
/// Pause between a death and the next keeper; doubles after each failed start.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Time limit for retries of the first start: the command that started the run waits 10 s for its
/// first keeper, and must learn of a failure.
const FIRST_START: Duration = Duration::from_secs(9);
/// Size limit of a keeper's last line.
const LAST_WORD: u64 = 1 << 16;

/// Starts the keeper, waits, and restarts it while the run is wanted. Returns the run's exit code.
///
/// # Errors
/// Returns an error when there is another parent, or when an unexpected end could not be written down.
pub fn bring_back(run: &RunDir, launch: Option<&Launch>, asked: Option<&Asked>, lifetime: Lifetime) -> io::Result<u8> {
    let file = run.file("parent.lock");
    let lock = owners::become_parent(run).map_err(|error| io::Error::other(format!("{}: {error}", file.display())))?;
    let ward = Supervised::new(lock);
    ward.pass_on_signals()?;
    ward.end_with(lifetime)?;
    // Orphans of a dead harness come here, where the keeper finds it. A system that refuses this only
    // makes it harder to find.
    let _ = set_child_subreaper(Some(getpid()));
    let mut parent = Parent {
        run,
        launch,
        asked,
        lifetime,
        ward,
        began: Instant::now(),
        deaths: VecDeque::new(),
        lived: false,
        recovery: Recovery::default(),
        failing: None,
        place: RunDirWatch::new(run.path()),
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
    /// The keeper was killed or panicked; says how.
    Died(String),
    /// The keeper reported a failure.
    Failed(LastWord),
    /// The run was told to end while no keeper could handle it; says by whom.
    Told(EndSignal),
}

struct Parent<'a> {
    run: &'a RunDir,
    launch: Option<&'a Launch>,
    /// Who asked for the next keeper, if it is not a restart after a death.
    asked: Option<&'a Asked>,
    lifetime: Lifetime,
    ward: Supervised,
    began: Instant,
    deaths: VecDeque<Instant>,
    /// A keeper has come up before.
    lived: bool,
    recovery: Recovery,
    /// Time of the first in the current series of failed starts.
    failing: Option<Instant>,
    place: RunDirWatch,
}

impl Parent<'_> {
    /// Starts a keeper and waits for its end.
    fn keep_once(&mut self) -> End {
        let mut command = detach::keeper_command("keeper", self.run, self.launch);
        command.args(self.asked.iter().flat_map(|asked| asked.arguments())).args(self.lifetime.argument());
        command.process_group(0).stdout(Stdio::piped());
        let mut child = match self.ward.start_keeper(&mut command) {
            Ok(Ok(child)) => child,
            Ok(Err(by)) => return End::Told(by),
            Err(error) => {
                let class = if may_pass(&error) { Class::Transient } else { Class::Final };
                return End::Failed(LastWord { class, code: 1, why: format!("the process failed to start: {error}") });
            }
        };
        let status = wait_reaping(&child);
        let told = self.ward.keeper_exited();
        let Ok(status) = status else { return End::Died("was lost".to_owned()) };
        match (child.stdout.take().and_then(last_word), told, status.signal()) {
            (Some(_), Some(by), _) | (None, Some(by), Some(_)) => End::Told(by),
            (Some(word), None, _) => End::Failed(word),
            // The signal arrived before the keeper could listen for it.
            (None, None, Some(signal)) if asks_to_end(signal) => {
                End::Told(EndSignal { by: signal_name(signal).into_owned(), wish: signal == Signal::INT.as_raw() })
            }
            (None, _, Some(signal)) => End::Died(format!("was killed by {}", signal_name(signal))),
            (None, _, None) if status.code() == Some(101) => End::Died("panicked".to_owned()),
            (None, _, None) => End::Over(exit_code(status)),
        }
    }

    /// Returns the exit code, if the run is over.
    fn judge(&mut self, end: End) -> io::Result<Option<u8>> {
        match end {
            End::Over(code) => return Ok(Some(code)),
            End::Told(by) => return Ok(Some(self.stopped(&by))),
            End::Failed(word) if word.class == Class::Unwritten => return Ok(Some(self.over_unwritten(&word))),
            End::Failed(word) => {
                self.failed(&word);
                let why = format!("the keeper cannot run: {}", word.why);
                if word.class == Class::Lost {
                    return Err(io::Error::other(why));
                }
                if word.class == Class::Final {
                    let verdict = if word.code == CONFIG { OfflineEnd::Config } else { OfflineEnd::NeedsPerson };
                    return self.give_up(verdict, &why).map(Some);
                }
                if !self.lived && self.began.elapsed() > FIRST_START {
                    // The run stays as it was: the failure may pass, and a later resume succeed.
                    self.ward.record_recovery(&self.recovery);
                    return Err(io::Error::other(why));
                }
            }
            End::Died(how) => {
                (self.lived, self.asked, self.failing) = (true, None, None);
                self.recovery = Recovery { death: Some(how.clone()), ..Recovery::default() };
                self.deaths.push_back(Instant::now());
                if self.deaths.len() > DEATHS && self.deaths.pop_front().is_some_and(|first| first.elapsed() < WINDOW) {
                    return self.give_up(OfflineEnd::NeedsPerson, &self.too_many(&how)).map(Some);
                }
            }
        }
        self.ward.record_recovery(&self.recovery);
        let pause = PAUSE.saturating_mul(1 << self.recovery.failures.min(10)).min(LONGEST_PAUSE);
        match self.ward.wait(pause) {
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

    /// Says how the keeper died last, and how to continue.
    fn too_many(&self, how: &str) -> String {
        let time = jiff::Zoned::now().strftime("%H:%M:%S").to_string();
        let log = self.run.file("keeper.log");
        let output = std::fs::metadata(&log).is_ok_and(|log| log.len() > 0);
        let output = if output { format!("; its output is in {}", log.display()) } else { String::new() };
        format!(
            "the keeper died {} times within {} minutes, and {DEATHS} restarts are the limit; the last time it {how} \
             at {time}{output}; `{}` starts it again",
            DEATHS + 1,
            WINDOW.as_secs() / 60,
            self.run.command("resume")
        )
    }

    /// Writes down why the run ends; waits for the disk if necessary.
    fn give_up(&self, verdict: OfflineEnd, why: &str) -> io::Result<u8> {
        self.ward.record_recovery(&self.recovery);
        let mut pause = PAUSE;
        loop {
            let error = match offline::conclude_run(self.run, verdict, why) {
                Ok(()) => return Ok(verdict.exit_code()),
                Err(error) => error,
            };
            let hopeless = !self.lived || error.class() != Class::Transient || !self.run.path().exists();
            if hopeless || self.ward.wait(pause).is_some() {
                return Err(io::Error::other(format!("{why}; recording this failed: {error}")));
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Records who ended the run. The lock file says so until run.db does: run.db may be locked, or the disk full.
    fn stopped(&self, told: &EndSignal) -> u8 {
        let verdict = if told.wish { OfflineEnd::Stopped } else { OfflineEnd::Signalled(self.lifetime) };
        let (why, code) = (format!("stopped by {}, while no keeper ran", told.by), verdict.exit_code());
        self.ward.record_ending(Some(Ending { why: why.clone(), code, wish: told.wish }));
        if let (Lifetime::Bound, Some(worker)) = (self.lifetime, owners::worker(self.run)) {
            // The harness of a command would wait for another keeper.
            let _ = worker.signal(Signal::TERM);
        }
        if offline::conclude_run(self.run, verdict, &why).is_ok() {
            self.ward.record_ending(None);
        }
        code
    }

    /// Keeps the end of a run that its keeper could not store, for `status`. The next start takes it away.
    fn over_unwritten(&self, word: &LastWord) -> u8 {
        self.ward.record_ending(Some(Ending { why: word.why.clone(), code: word.code, wish: false }));
        word.code
    }

    /// Returns the exit code if the run directory is lost.
    fn homeless(&mut self) -> Option<u8> {
        if let Presence::Lost(_) = self.place.check(Instant::now()) {
            return Some(NEEDS_PERSON);
        }
        let mut charge = self.ward.lock();
        if charge.lock.whereabouts() == Whereabouts::InPlace || !self.run.path().join("run.yaml").exists() {
            return None;
        }
        // Only the lock file was deleted. Another parent may have created its own.
        matches!(charge.lock.restore(), Err(LockError::Held(_))).then_some(NEEDS_PERSON)
    }
}

/// Waits for the keeper, and reaps the orphans that end meanwhile.
fn wait_reaping(keeper: &Child) -> io::Result<ExitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get().unsigned_abs() == keeper.id() => {
                return Ok(ExitStatus::from_raw(status.as_raw()));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads the last line of a keeper that has exited.
fn last_word(mut stdout: ChildStdout) -> Option<LastWord> {
    // A process left behind by the keeper may hold the pipe open.
    fcntl_setfl(&stdout, OFlags::NONBLOCK).ok()?;
    let mut bytes = Vec::new();
    let _ = stdout.by_ref().take(LAST_WORD).read_to_end(&mut bytes);
    serde_json::from_slice(&bytes).ok()
}

/// Reports whether a signal asks a process to end, as opposed to killing it.
fn asks_to_end(signal: i32) -> bool {
    [Signal::TERM, Signal::INT].iter().any(|wish| wish.as_raw() == signal)
}

fn exit_code(status: ExitStatus) -> u8 {
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
