//! Follows a run without a cockpit: one line per event on stdout. This process is a client like any
//! other: an interrupt stops the run with a checkpoint, but the death of this process does not affect it.

mod ending;
mod several;
mod signals;

use super::{Failure, Outcome, client};
use crate::config::knobs::Watch;
use crate::config::units::Every;
use crate::format::{count, figure, learning_rate};
use crate::keeper::lifeline::BoundKeeper;
use crate::keeper::sentences::measured;
use crate::protocol::control::{EvalRow, JournalRow, Request, RunState, Status, StepRow, Update};
use crate::protocol::line;
use crate::protocol::metrics::is_quality;
use crate::protocol::worker::Level;
use crate::store::continuation::continuation;
use crate::store::owners;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::store::shared_folder::takeover::{STILL, Standstill};
use crate::untrusted::{peer, text};
use rustix::process;
pub use signals::JobSignals;
use signals::Signals;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines, Take};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, sleep};

/// A signal at least this long after the first one ends the run without waiting for the checkpoint.
const FORCE: Duration = Duration::from_secs(1);
/// Time to wait for a dead keeper to come back; it usually takes under a second.
const PATIENCE: Duration = Duration::from_secs(20);

/// Interval between two looks at a run whose keeper is on another host.
const ELSEWHERE: Duration = Duration::from_secs(1);

/// Silence after which the command reports that it is waiting.
const SILENCE: Duration = Duration::from_secs(2);

/// Follows a run to its end and prints events from `since_ms` on. Returns the run's exit code.
pub fn follow(dir: &RunDir, since_ms: i64) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { Follower::of(dir, since_ms, None).follow(&mut Signals::listen(false)?).await })
}

/// The end of a run in a job.
pub struct JobEnd {
    /// The run's exit code.
    pub code: u8,
    /// The scheduler announced the end of the job's time.
    pub noticed: bool,
}

/// Follows a run that ends with this process, and passes signals on to it. Returns once no process of the run is left.
pub fn follow_bound(
    dir: &RunDir,
    since_ms: i64,
    keeper: BoundKeeper,
    JobSignals { runtime, signals }: &mut JobSignals,
) -> Result<JobEnd, Failure> {
    let mut follower = Follower::of(dir, since_ms, Some(keeper));
    let code = runtime.block_on(follower.follow(signals))?;
    follower.bound.map_or(Ok(()), BoundKeeper::wait)?;
    Ok(JobEnd { code, noticed: follower.noticed })
}

/// Follows several runs to their ends, each once it has begun. Returns the exit code of the first one, in their order, that
/// did not finish; an interrupt ends them all.
pub fn follow_all(dirs: &[RunDir]) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(several::follow_all(dirs))
}

struct Follower<'a> {
    dir: &'a RunDir,
    /// Runs that wait behind it: an interrupt takes them out of the queue.
    behind: Vec<&'a RunDir>,
    /// Start of the events to print, Unix milliseconds; older journal lines are not news.
    since_ms: i64,
    /// The last journal line that was printed.
    printed: i64,
    progress: Instant,
    /// Interval between progress lines.
    interval: Every,
    /// When the run was last asked to stop.
    asked: Option<Instant>,
    status: Option<Status>,
    /// The keeper of a run that ends with this process.
    bound: Option<BoundKeeper>,
    /// A scheduler announced the end of the job's time.
    noticed: bool,
    /// The lease of a keeper on another host, and whether it was reported as still.
    standstill: Standstill,
    told_still: bool,
}

impl<'a> Follower<'a> {
    fn of(dir: &'a RunDir, since_ms: i64, bound: Option<BoundKeeper>) -> Self {
        print_now(&format!("run {} in {}", dir.name(), text::path(dir.path())));
        let (printed, progress) = (0, Instant::now());
        let interval = dir.run().map_or(Watch::default().log_interval, |run| run.watch.log_interval);
        let standstill = Standstill::default();
        let (asked, status, noticed, told_still) = (None, None, false, false);
        let behind = Vec::new();
        Self {
            dir,
            behind,
            since_ms,
            printed,
            progress,
            interval,
            asked,
            status,
            bound,
            noticed,
            standstill,
            told_still,
        }
    }

    async fn follow(&mut self, signals: &mut Signals) -> Outcome {
        let (mut lost, mut told) = (None::<Instant>, false);
        loop {
            let socket = self.dir.socket();
            // A keeper that dies closes its connection. The run goes on, so keep following it.
            let stream = UnixStream::connect(&socket).await;
            let own = |stream: &UnixStream| peer::check_listener(stream, &socket).is_ok() && !self.is_taken_over();
            if let Some(stream) = stream.ok().filter(own) {
                (lost, told) = (None, false);
                let (read, write) = stream.into_split();
                self.listen(BufReader::new(read.take(peer::MAX_LINE)).lines(), write, signals).await;
            }
            self.catch_up();
            let since = lost.get_or_insert_with(Instant::now).elapsed();
            // A parent writes down the end before it goes, so whether there is one is read first.
            let recovering = self.recovering();
            if let Some(code) = self.unwritten_end().or_else(|| self.own_end()).or_else(|| self.exit_code()) {
                return Ok(code);
            }
            if self.follow_elsewhere()? {
                (lost, told) = (None, false);
                tokio::select! {
                    () = sleep(ELSEWHERE) => {}
                    _ = signals.next() => self.stop_elsewhere(),
                }
                continue;
            }
            if since > SILENCE && !told {
                told = true;
                let left_alone = |status: &Status| matches!(status.state, RunState::Unattended | RunState::Interrupted);
                let unattended = live_status(self.dir).filter(left_alone);
                let why = recovering.clone().or_else(|| unattended?.why);
                let why = why.unwrap_or_else(|| "waiting for its restart".to_owned());
                print_now(&format!("the keeper does not answer; {why}"));
            }
            if since > PATIENCE && recovering.is_none() {
                let (name, status) = (self.dir.name(), live_status(self.dir).or_else(|| self.status.clone()));
                return Err(Failure::new(
                    1,
                    format!("the keeper of {name} is gone; {}", continuation(self.dir, status.as_ref())),
                ));
            }
            tokio::select! {
                // The files of a restarted keeper announce no change.
                () = sleep(Duration::from_millis(100)) => {}
                signal = signals.next() => self.stop_without_keeper(signal),
            }
        }
    }

    /// Reads the status of a run whose keeper is on another host. Returns false for any other run.
    ///
    /// # Errors
    /// Returns an error when the lease of that keeper no longer moves.
    fn follow_elsewhere(&mut self) -> Result<bool, Failure> {
        let Some(lease) = owners::keeper_elsewhere(self.dir) else { return Ok(false) };
        if let Some(status) = live_status(self.dir).filter(|status| status.host.is_some()) {
            self.status = Some(status);
            self.show_progress();
        }
        let still = self.standstill.observe(&lease, std::time::Instant::now());
        let says = || format!("the lease of {}, has not moved for {} s", lease.holder(), still.as_secs());
        if still >= STILL + PATIENCE {
            let (name, take_over) = (self.dir.name(), self.dir.command("resume --take-over"));
            let way_out = format!("if that process is surely gone, `{take_over}` continues {name} here");
            return Err(Failure::new(1, format!("{}; {way_out}", says())));
        }
        if still >= STILL && !std::mem::replace(&mut self.told_still, true) {
            print_now(&format!("{}; its host may be down or cut off", says()));
        }
        self.told_still &= still >= STILL;
        Ok(true)
    }

    /// Asks a keeper on another host to end the run.
    fn stop_elsewhere(&self) {
        match client::send_request(self.dir, &Request::Stop) {
            Ok(answer) => print_now(&answer),
            Err(failure) => print_now(&failure.message),
        }
    }

    /// Explains why there is no keeper while one is being restarted.
    fn recovering(&self) -> Option<String> {
        Some(owners::parent_record(self.dir)?.recovery.unwrap_or_default().sentence())
    }

    /// Ends the run on a signal that arrives while no keeper listens.
    fn stop_without_keeper(&mut self, signal: process::Signal) {
        self.noticed |= signal == process::Signal::USR1;
        self.asked = Some(Instant::now());
        let asked = match self.bound {
            Some(_) => self.pass_on(signal),
            None => client::stop_without_keeper(self.dir),
        };
        if asked {
            print_now("asked the keeper's parent to end the run");
        }
    }

    /// Listens until the keeper closes the connection.
    async fn listen(
        &mut self,
        mut lines: Lines<BufReader<Take<OwnedReadHalf>>>,
        mut write: OwnedWriteHalf,
        signals: &mut Signals,
    ) {
        if send(&mut write, &Request::Subscribe).await.is_err() {
            return;
        }
        loop {
            tokio::select! {
                text = lines.next_line() => match text {
                    Ok(Some(text)) => {
                        lines.get_mut().get_mut().set_limit(peer::MAX_LINE);
                        if let Some(update) = line::decode(&text) {
                            self.handle_update(update);
                        }
                    }
                    _ => return,
                },
                signal = signals.next() => self.request_stop(signal, &mut write).await,
            }
        }
    }

    /// Turns a signal into a stop request. A second signal forces the end, unless it follows at once:
    /// `timeout` and some shells send it twice.
    async fn request_stop(&mut self, signal: process::Signal, write: &mut OwnedWriteHalf) {
        self.noticed |= signal == process::Signal::USR1;
        if self.asked.is_none_or(|asked| asked.elapsed() > FORCE) {
            if self.asked.is_some() && self.bound.is_some() && signal == process::Signal::TERM {
                print_now("a further SIGTERM does not end the run sooner; SIGINT or a request to stop does");
            }
            self.asked = Some(Instant::now());
            several::remove(&std::mem::take(&mut self.behind));
            if self.bound.is_some() {
                // A request to stop would be yours, and may reach the keeper of another start.
                self.pass_on(signal);
            } else {
                let _ = send(write, &Request::Stop).await;
            }
        }
    }

    /// Passes a signal on to the keeper of a run in a job, so that the run is known to be interrupted, not stopped by you.
    fn pass_on(&mut self, signal: process::Signal) -> bool {
        let Some(keeper) = &mut self.bound else { return false };
        let wish = signal == process::Signal::INT;
        let passed = keeper.signal(if wish { signal } else { process::Signal::TERM });
        if passed && signal == process::Signal::USR1 {
            print_now("the job's time is almost over: saving and ending");
        }
        passed
    }

    fn handle_update(&mut self, update: Update) {
        match update {
            Update::Status(status) => {
                if self.status.is_none() {
                    self.catch_up();
                }
                self.status = Some(*status);
                self.show_progress();
            }
            Update::Journal(row) => self.print_journal_row(&row),
            Update::Eval(row) => Self::show_eval(&row),
            Update::Reply { message, .. } => print_now(&message),
            Update::Steps { rows } => self.show_steps(&rows),
            Update::WentBack { .. }
            | Update::Samples { .. }
            | Update::Layers(_)
            | Update::Reading(_)
            | Update::Checkpoint(_) => {}
        }
    }

    /// Prints journal lines that were not received live.
    fn catch_up(&mut self) {
        let journal = Reader::open(self.dir).and_then(|reader| reader.journal(1000)).unwrap_or_default();
        let old = journal.partition_point(|row| row.time_ms < self.since_ms);
        if self.printed == 0 && old > 0 {
            print_now(&format!("skipped {old} older journal lines"));
            self.printed = journal[old - 1].id;
        }
        for row in journal {
            self.print_journal_row(&row);
        }
    }

    fn print_journal_row(&mut self, row: &JournalRow) {
        if row.id <= self.printed {
            return;
        }
        self.printed = row.id;
        let mark = match row.level {
            Level::Info => "",
            Level::Warn => "warning: ",
            Level::Error => "ERROR: ",
        };
        print_at(row.time_ms, &format!("{mark}{}", row.text));
    }

    fn show_eval(row: &EvalRow) {
        // The journal has a line about quality.
        if row.eval.loss.is_none() && row.eval.metrics.keys().all(|name| is_quality(name)) {
            return;
        }
        let text = format!("evaluation at step {}: {}", count(row.eval.step), measured(&row.eval));
        print_at(row.time_ms, &text);
    }

    /// Prints the steps that are due, if the interval counts steps.
    fn show_steps(&self, rows: &[StepRow]) {
        let Every::Steps(interval) = self.interval else { return };
        for row in rows.iter().filter(|row| row.step.is_multiple_of(interval.max(1))) {
            print_at(row.time_ms, &step_line(row));
        }
    }

    fn show_progress(&mut self) {
        let Every::Seconds(interval) = self.interval else { return };
        let due = self.progress.elapsed().as_secs_f64() >= interval;
        let Some(status) = self.status.as_ref().filter(|_| due) else { return };
        self.progress = Instant::now();
        let text = super::status::status_line(status);
        print_now(&text);
    }
}

/// Formats one step.
fn step_line(row: &StepRow) -> String {
    let mut line = format!("step {}", count(row.step));
    if row.skipped {
        line.push_str("  not finite");
    }
    let named =
        [("loss", row.loss.map(figure)), ("lr", row.lr.map(learning_rate)), ("grad norm", row.grad_norm.map(figure))];
    for (name, value) in named {
        line.extend(value.map(|value| format!("  {name} {value}")));
    }
    line
}

fn print_now(text: &str) {
    print_at(jiff::Timestamp::now().as_millisecond(), text);
}

/// Prints a line with its time. A closed stdout is not a reason to exit: the exit code is still useful.
fn print_at(time_ms: i64, message: &str) {
    let time = jiff::Timestamp::from_millisecond(time_ms).unwrap_or_default();
    let mut out = io::stdout().lock();
    // A log is read days later, and merged with others.
    let form = if out.is_terminal() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    let time = time.to_zoned(jiff::tz::TimeZone::system()).strftime(form).to_string();
    let _ = writeln!(out, "{}", format_line(&time, message)).and_then(|()| out.flush());
}

/// Formats one line, even if a worker's note or a name contains line breaks.
fn format_line(time: &str, message: &str) -> String {
    format!("{time}  {}", text::escape_line(message))
}

async fn send(write: &mut OwnedWriteHalf, request: &Request) -> io::Result<()> {
    write.write_all(line::encode(request)?.as_bytes()).await
}

#[cfg(test)]
mod tests;
