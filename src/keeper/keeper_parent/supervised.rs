//! The keeper that a parent waits for, shared with the signal thread: a signal that arrives between
//! two keepers must end the run as well.

use crate::keeper::author::Author;
use crate::keeper::lifeline::Lifetime;
use crate::store::lock::{Ending, Lock, Recovery};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use std::io;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum age of a signal that can explain a keeper's end.
const TOLD: Duration = Duration::from_mins(1);

/// A signal that told the run to end.
#[derive(Debug, Clone)]
pub struct EndSignal {
    /// The signal and its sender, in words.
    pub by: String,
    /// The user asked for it; other signals may come from a machine shutdown.
    pub wish: bool,
}

/// The keeper that a parent waits for.
#[derive(Debug, Clone)]
pub struct Supervised(Arc<(Mutex<Supervision>, Condvar)>);

/// State shared by both threads.
#[derive(Debug)]
pub struct Supervision {
    child: Option<Pid>,
    /// When the run was last told to end, and by whom.
    told: Option<(Instant, EndSignal)>,
    /// The parent's own lock.
    pub lock: Lock,
}

impl Supervision {
    fn told_lately(&self) -> Option<EndSignal> {
        self.told.as_ref().filter(|(at, _)| at.elapsed() < TOLD).map(|(_, told)| told.clone())
    }
}

impl Supervised {
    pub fn new(lock: Lock) -> Self {
        Self(Arc::new((Mutex::new(Supervision { child: None, told: None, lock }), Condvar::new())))
    }

    pub fn lock(&self) -> MutexGuard<'_, Supervision> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the keeper, unless the run has just been told to end; then returns the author.
    pub fn start_keeper(&self, command: &mut Command) -> io::Result<Result<Child, EndSignal>> {
        // A signal is either passed on or seen here: none is lost between the start and its record.
        let mut charge = self.lock();
        if let Some(by) = charge.told_lately() {
            return Ok(Err(by));
        }
        charge.told = None;
        let child = command.spawn()?;
        charge.child = Pid::from_raw(child.id().cast_signed());
        Ok(Ok(child))
    }

    /// Records that the keeper is gone. Returns who told it to end, if anyone did.
    pub fn keeper_exited(&self) -> Option<EndSignal> {
        let mut charge = self.lock();
        charge.child = None;
        charge.told_lately()
    }

    /// Writes down why there is no keeper, for `status`. The keeper works without it.
    pub fn record_recovery(&self, recovery: &Recovery) {
        let recovery = Some(recovery.clone());
        let _ = self.lock().lock.update(|record| record.recovery = recovery);
    }

    /// Records the end of the run while run.db does not hold it.
    pub fn record_ending(&self, ending: Option<Ending>) {
        let _ = self.lock().lock.update(|record| record.ending = ending);
    }

    /// Waits for `pause`, or until the run is told to end; then returns the author.
    pub fn wait(&self, pause: Duration) -> Option<EndSignal> {
        let untold = |charge: &mut Supervision| charge.told_lately().is_none();
        let (charge, _) =
            self.0.1.wait_timeout_while(self.lock(), pause, untold).unwrap_or_else(PoisonError::into_inner);
        charge.told_lately()
    }

    /// Passes signals on to the keeper: a signal to the parent is meant for the run.
    pub fn pass_on_signals(&self) -> io::Result<()> {
        let mut signals = SignalsInfo::<WithOrigin>::new([SIGTERM, SIGINT])?;
        let ward = self.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for origin in &mut signals {
                ward.handle_signal(&Author::of_signal(&origin));
            }
        })?;
        Ok(())
    }

    /// Restarts no keeper once the process that the run lives for is gone. The keeper sees that end itself.
    pub fn end_with(&self, lifetime: Lifetime) -> io::Result<()> {
        let ward = self.clone();
        lifetime.watch(move || {
            ward.lock().told = Some((Instant::now(), EndSignal { by: Author::EndOfJob.to_string(), wish: false }));
            ward.0.1.notify_all();
        })
    }

    fn handle_signal(&self, author: &Author) {
        let told = EndSignal { by: author.to_string(), wish: author.is_wish() };
        let signal = if told.wish { Signal::INT } else { Signal::TERM };
        let mut charge = self.lock();
        // The keeper sees only its parent as the sender; the lock file names the real one.
        let told_by = Some(told.by.clone());
        let _ = charge.lock.update(|record| record.told_by = told_by);
        charge.told = Some((Instant::now(), told));
        if let Some(child) = charge.child {
            let _ = kill_process(child, signal);
        }
        drop(charge);
        self.0.1.notify_all();
    }
}
