//! Client of the keeper: one request, one answer.

use super::Failure;
use crate::protocol::control::{Request, RunState, Status, Update};
use crate::protocol::line;
use crate::store::continuation::continuation;
use crate::store::identity::Identity;
use crate::store::owners;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::store::shared_folder::asking::{Asked, Reply};
use crate::untrusted::poll::{poll, poll_within};
use crate::untrusted::{file, peer, text};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, ErrorKind, Lines, Read, Take, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A new keeper has to listen within this time.
const STARTING: Duration = Duration::from_secs(10);
/// Interval between two checks for a keeper.
const INTERVAL: Duration = Duration::from_millis(10);

/// Timeout for an answer; a healthy keeper answers at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// Timeout for the status, which the store also holds.
const STATUS_PATIENCE: Duration = Duration::from_millis(500);

/// Returns the current status of a run: from its keeper, since run.db may lag behind, or from the store if
/// no keeper answers.
pub fn current_status(run: &RunDir) -> Option<Status> {
    status_from_keeper(run).or_else(|| live_status(run))
}

/// Asks the keeper for its status. Returns none if no keeper answers in time.
fn status_from_keeper(run: &RunDir) -> Option<Status> {
    let record = owners::keeper_record(run).filter(|record| !record.opening)?;
    let socket = run.socket();
    let mut stream = UnixStream::connect(&socket).ok()?;
    peer::check_listener(&stream, &socket).ok()?;
    stream.set_read_timeout(Some(STATUS_PATIENCE)).ok()?;
    stream.set_write_timeout(Some(STATUS_PATIENCE)).ok()?;
    stream.write_all(line::encode(&Request::Subscribe).ok()?.as_bytes()).ok()?;
    let updates = BufReader::new(stream.take(peer::MAX_LINE)).lines().map_while(Result::ok);
    let mut status = updates.filter_map(|text| line::decode(&text)).find_map(|update| match update {
        Update::Status(status) => Some(*status),
        _ => None,
    })?;
    if let Some(waiting) = record.waiting {
        (status.state, status.why) = (RunState::Recovering, Some(waiting));
    }
    Some(status)
}

/// The keeper's answer to a request.
pub enum Answer {
    /// The keeper accepts, with this message.
    Accepted(String),
    /// The keeper refuses, for this reason.
    Refused(String),
}

impl From<Reply> for Answer {
    fn from(Reply { accepted, message }: Reply) -> Self {
        if accepted { Self::Accepted(message) } else { Self::Refused(message) }
    }
}

impl Answer {
    /// Returns the message if the keeper accepts.
    fn accepted(self) -> Result<String, Failure> {
        match self {
            Self::Accepted(message) => Ok(message),
            Self::Refused(message) => Err(Failure::new(1, message)),
        }
    }
}

/// Sends a request to a run's keeper. Returns its answer if it accepts.
///
/// # Errors
/// Returns an error when there is no living keeper, or it refuses.
pub fn send_request(run: &RunDir, request: &Request) -> Result<String, Failure> {
    ask_keeper(run, request)?.accepted()
}

/// Sends a request to a run's keeper, and returns its answer.
///
/// # Errors
/// Returns an error when no living keeper answers.
pub fn ask_keeper(run: &RunDir, request: &Request) -> Result<Answer, Failure> {
    match Connection::open(run, request)? {
        Connection::Keeper(stream) => read_reply(run, &mut replies(stream)),
        Connection::Elsewhere(mut asked) => Ok(asked.first_reply()?.into()),
        Connection::Parent(answer) => Ok(Answer::Accepted(answer)),
    }
}

/// Asks a run's keeper to end the run, and waits until it has ended. Passes the keeper's first answer to `heard`, and
/// returns how the run ended.
///
/// # Errors
/// Returns an error when there is no living keeper, or it refuses, or the worker cannot save its last step.
pub fn stop(run: &RunDir, heard: impl FnOnce(&str)) -> Result<String, Failure> {
    let stream = match Connection::open(run, &Request::Stop)? {
        Connection::Keeper(stream) => stream,
        Connection::Elsewhere(mut asked) => {
            heard(&Answer::from(asked.first_reply()?).accepted()?);
            return Answer::from(asked.outcome()?).accepted();
        }
        Connection::Parent(answer) => return Ok(answer),
    };
    let mut lines = replies(stream.try_clone()?);
    heard(&read_reply(run, &mut lines)?.accepted()?);
    // The worker finishes its step, saves and ends; the keeper's deadlines bound how long that takes.
    stream.set_read_timeout(None)?;
    let end = read_reply(run, &mut lines)?.accepted()?;
    // The next command of a script may be one that refuses a living run.
    poll_within(STARTING, INTERVAL, || (!owners::is_kept(run)).then_some(()));
    Ok(end)
}

fn replies(stream: UnixStream) -> Lines<BufReader<Take<UnixStream>>> {
    BufReader::new(stream.take(peer::MAX_LINE)).lines()
}

/// Reads up to the keeper's next reply.
fn read_reply(run: &RunDir, lines: &mut Lines<BufReader<Take<UnixStream>>>) -> Result<Answer, Failure> {
    for text in lines {
        match line::decode::<Update>(&text.map_err(|error| Failure::new(1, silence(run, &error)))?) {
            Some(Update::Reply { accepted: true, message }) => return Ok(Answer::Accepted(message)),
            Some(Update::Reply { accepted: false, message }) => return Ok(Answer::Refused(message)),
            _ => {}
        }
    }
    let (name, status) = (run.name(), run.command("status"));
    Err(Failure::new(1, format!("the keeper of {name} ended before it answered; `{status}` shows the run")))
}

/// The receiver of a request.
enum Connection {
    /// The keeper; the request was sent to it.
    Keeper(UnixStream),
    /// A keeper on another host; the request lies in the run's folder.
    Elsewhere(Box<Asked>),
    /// The keeper's parent handled the request; this is its answer.
    Parent(String),
}

impl Connection {
    /// Connects to the keeper and sends the request.
    fn open(run: &RunDir, request: &Request) -> Result<Self, Failure> {
        let stuck = |error: std::io::Error| Failure::new(1, silence(run, &error));
        let mut connection = connect(run, request)?;
        if let Self::Keeper(stream) = &mut connection {
            stream.set_read_timeout(Some(PATIENCE)).map_err(stuck)?;
            stream.set_write_timeout(Some(PATIENCE)).map_err(stuck)?;
            stream.write_all(line::encode(request)?.as_bytes()).map_err(stuck)?;
        }
        Ok(connection)
    }
}

/// Connects to the keeper. Waits for a keeper that is being restarted; its parent can end the run without it.
fn connect(run: &RunDir, request: &Request) -> Result<Connection, Failure> {
    let deadline = Instant::now() + PATIENCE;
    poll(INTERVAL, || try_connect(run, request, deadline).transpose())
}

/// Returns none while the keeper is being restarted, up to the deadline.
fn try_connect(run: &RunDir, request: &Request, deadline: Instant) -> Result<Option<Connection>, Failure> {
    if let Some(lease) = owners::keeper_elsewhere(run) {
        return Ok(Some(Connection::Elsewhere(Box::new(Asked::new(run, lease, request)?))));
    }
    let socket = run.socket();
    if let Ok(stream) = UnixStream::connect(&socket) {
        peer::check_listener(&stream, &socket)?;
        return Ok(Some(Connection::Keeper(stream)));
    }
    let Some(parent) = owners::parent_record(run) else { return Err(absent(run)) };
    let recovery = parent.recovery.unwrap_or_default();
    if *request == Request::Stop && recovery.failure.is_some() && owners::keeper(run).is_none() {
        return Ok(Some(Connection::Parent(ask_parent(run, &parent.owner)?)));
    }
    if Instant::now() < deadline {
        return Ok(None);
    }
    let (name, why, stop) = (run.name(), recovery.sentence(), run.command("stop"));
    Err(Failure::new(1, format!("{name} is recovering: {why}; try again later, or end it with `{stop}`")))
}

/// Asks the keeper's parent to end the run. Returns once it has noted who asked: it looks this process up.
fn ask_parent(run: &RunDir, parent: &Identity) -> Result<String, Failure> {
    parent.signal(Signal::INT)?;
    let noted = || owners::parent_record(run).is_none_or(|record| record.told_by.is_some());
    let _ = poll_within(PATIENCE, INTERVAL, || noted().then_some(()));
    Ok(format!("ending without its keeper: asked the keeper's parent, process {}", parent.pid))
}

/// Ends a run whose keeper cannot run. SIGINT marks a request by the user: SIGTERM may
/// come from a shutdown. Returns false if there is a keeper, or no process at all.
pub fn stop_without_keeper(run: &RunDir) -> bool {
    let parent = owners::parent_record(run).filter(|_| owners::keeper(run).is_none());
    parent.is_some_and(|parent| parent.owner.signal(Signal::INT).is_ok())
}

/// Explains why a keeper that exists does not answer.
fn silence(run: &RunDir, error: &std::io::Error) -> String {
    let (name, waited) = (run.name(), PATIENCE.as_secs());
    if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        // It may have ended while it was asked.
        if owners::keeper(run).is_none() {
            return absent(run).message;
        }
        return format!("the keeper of {name} does not answer: {error}");
    }
    let pid = owners::keeper(run).map_or_else(|| "PID".to_owned(), |owner| owner.pid.to_string());
    format!(
        "the keeper of {name}, process {pid}, has not answered for {waited} s; if it is suspended (state T in `ps {pid}`), \
         `kill -CONT {pid}` wakes it"
    )
}

pub(super) fn absent(run: &RunDir) -> Failure {
    let name = run.name();
    if let Some(keeper) = owners::keeper(run) {
        let (pid, socket) = (keeper.pid, run.socket());
        let text = format!("the keeper of {name}, process {pid}, does not listen on {}", text::path(&socket));
        return Failure::new(1, format!("{text}; `kill {pid}` ends the run with a checkpoint"));
    }
    if let Some(worker) = owners::worker(run) {
        let resume = run.command("resume");
        let what = match (owners::command_process(run), owners::worker_record(run).and_then(|record| record.token)) {
            (Some(pid), _) => format!("its command, process {pid}, runs on"),
            (None, Some(_)) => "its command has ended since".to_owned(),
            (None, None) => format!("its worker, process {}, trains on", worker.pid),
        };
        let text = format!("the keeper of {name} is gone, and {what}");
        return Failure::new(1, format!("{text}; `{resume}` takes it over, then `{}` ends it", run.command("stop")));
    }
    let (status, shows) = (live_status(run), format!("`{}` shows how it ended", run.command("status")));
    let state = status.as_ref().map(|status| status.state);
    if state == Some(RunState::Finished) {
        return Failure::new(1, format!("{name} has finished; {shows}"));
    }
    let ended = state.filter(|state| state.is_over());
    let ended = ended.map_or_else(|| "has no keeper".to_owned(), |state| format!("has ended ({})", state.word()));
    Failure::new(1, format!("{name} {ended}; {}, {shows}", continuation(run, status.as_ref())))
}

/// Reports whether a keeper lives and listens.
pub fn keeper_listens(run: &RunDir) -> bool {
    owners::keeper(run).is_some() && keeper_answers(run)
}

/// Reports whether anything listens on the run's socket, regardless of the lock files.
pub fn keeper_answers(run: &RunDir) -> bool {
    UnixStream::connect(run.socket()).is_ok()
}

/// Waits until a keeper that was started at this time listens, or has ended its run already.
///
/// # Errors
/// Returns an error when it never listens; its log gives the reason.
pub fn wait_for_keeper(run: &RunDir, began_ms: i64) -> Result<(), Failure> {
    let is_there = || keeper_listens(run) || ended_since(run, began_ms);
    poll_within(STARTING, INTERVAL, || is_there().then_some(())).ok_or_else(|| did_not_start(run))
}

/// Reports whether a keeper that was started at this time has ended the run and is gone.
fn ended_since(run: &RunDir, began_ms: i64) -> bool {
    let is_newest =
        |reader: &Reader| reader.journal(1).is_ok_and(|rows| rows.last().is_some_and(|row| row.time_ms >= began_ms));
    let is_over = |reader: &Reader| reader.status().is_some_and(|status| status.state.is_over());
    !owners::is_kept(run) && Reader::open(run).is_ok_and(|reader| is_newest(&reader) && is_over(&reader))
}

/// Waits until neither the keeper of a run that is over nor its parent is left.
///
/// # Errors
/// Returns an error when they do not end in time.
pub fn wait_for_absence(run: &RunDir) -> Result<(), Failure> {
    poll_within(STARTING, INTERVAL, || (!owners::is_kept(run)).then_some(())).ok_or_else(|| {
        let (name, resume) = (run.name(), run.command("resume"));
        Failure::new(1, format!("the keeper of {name} is still ending; try `{resume}` again"))
    })
}

/// Reports whether a keeper answers. Waits for one that is being restarted, and for one that is ending.
///
/// # Errors
/// Returns an error when it neither answers nor ends; its log gives the reason.
pub fn is_watched(run: &RunDir) -> Result<bool, Failure> {
    // A keeper without its lock file still listens.
    let answers = || {
        let watched = owners::keeper_elsewhere(run).is_some() || keeper_answers(run);
        if watched { Some(true) } else { (!owners::is_kept(run)).then_some(false) }
    };
    let watched = poll_within(STARTING, INTERVAL, answers);
    watched.ok_or_else(|| did_not_start(run))
}

fn did_not_start(run: &RunDir) -> Failure {
    let log = file::tail(&run.file("keeper.log"), 1 << 16).unwrap_or_default();
    let last: Vec<&str> = log.lines().rev().take(5).collect();
    let mut said = last.into_iter().rev().collect::<Vec<_>>().join("\n  ");
    // On a full disk the log says nothing.
    if let Some(why) = owners::last_failure(run) {
        said = format!("{said}\n  {why}");
    }
    let log = run.file("keeper.log");
    Failure::new(1, format!("the keeper did not start; the end of {}:\n  {said}", text::path(&log)))
}
