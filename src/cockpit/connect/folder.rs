//! A keeper on another host: the store is read twice a second, and becomes the same updates that the keeper's socket would
//! send; requests go through the run's folder.

use super::Ended;
use crate::cockpit::update::Msg;
use crate::protocol::control::{Request, Status, Update};
use crate::store::owners;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::store::shared_folder::asking::{Asked, NoReply, Reply};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

/// Interval between two looks at the store.
const LOOK: Duration = Duration::from_millis(500);
/// Journal lines and readings that one look may find.
const ROWS: usize = 200;

/// Follows the run until its keeper is gone or the cockpit closes.
pub(super) async fn follow_run(run: RunDir, requests: &mut Receiver<Request>, inbox: &Sender<Msg>) -> Ended {
    if inbox.send(Msg::KeeperBack).await.is_err() {
        return Ended::CockpitClosed;
    }
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut feed = Feed::new(run.clone());
    loop {
        tokio::select! {
            _ = looks.tick() => {
                let (back, found) = match spawn_blocking(move || { let found = feed.read(); (feed, found) }).await {
                    Ok(done) => done,
                    Err(error) => return Ended::Lost(error.to_string()),
                };
                feed = back;
                let Some(updates) = found else { return Ended::Lost("its keeper is gone".to_owned()) };
                for update in updates {
                    if inbox.send(Msg::Keeper(update)).await.is_err() {
                        return Ended::CockpitClosed;
                    }
                }
            }
            request = requests.recv() => match request {
                // A preview is of use at once or never.
                Some(Request::StandBy { .. }) => {}
                Some(request) => drop(tokio::spawn(deliver(run.clone(), request, inbox.clone()))),
                None => return Ended::CockpitClosed,
            },
        }
    }
}

/// Leaves a request in the folder, and passes its reply on.
async fn deliver(run: RunDir, request: Request, inbox: Sender<Msg>) {
    let asked = spawn_blocking(move || ask(&run, &request)).await;
    let Ok(Some(reply)) = asked else { return };
    let Reply { accepted, message } = reply.unwrap_or_else(|why| Reply { accepted: false, message: why.to_string() });
    let _ = inbox.send(Msg::Keeper(Update::Reply { accepted, message })).await;
}

fn ask(run: &RunDir, request: &Request) -> Option<Result<Reply, NoReply>> {
    let lease = owners::keeper_elsewhere(run)?;
    Some(Asked::new(run, lease, request).and_then(|mut asked| asked.first_reply()))
}

/// The position in the store up to which the cockpit has everything.
struct Feed {
    run: RunDir,
    status: Option<Status>,
    journal: i64,
    samples_ms: i64,
    evals: usize,
}

impl Feed {
    fn new(run: RunDir) -> Self {
        Self { run, status: None, journal: 0, samples_ms: 0, evals: 0 }
    }

    /// Returns what is new since the last call; none once no keeper on another host holds the run. A store that cannot be
    /// read for a moment has nothing new.
    fn read(&mut self) -> Option<Vec<Update>> {
        owners::keeper_elsewhere(&self.run)?;
        let Some(status) = live_status(&self.run) else { return Some(Vec::new()) };
        status.host.as_ref()?;
        let mut updates = Vec::new();
        // The history, which the cockpit reads at the first status, holds everything from before.
        let first = self.status.is_none();
        let Ok(reader) = Reader::open(&self.run) else { return Some(updates) };
        let before = self.status.as_ref().map_or(status.step, |before| before.step);
        if self.status.as_ref().is_some_and(|before| before.attempts != status.attempts || before.step > status.step) {
            updates.push(Update::WentBack { step: status.step.min(before) });
        } else if status.step > before {
            let rows = reader.curve_rows(&(before + 1..u64::MAX)).unwrap_or_default();
            updates.push(Update::Steps { rows });
        }
        let evals = reader.evals().unwrap_or_default();
        let known = std::mem::replace(&mut self.evals, evals.len());
        updates.extend(evals.into_iter().skip(if first { usize::MAX } else { known }).map(Update::Eval));
        let (journal, since) = (reader.journal(ROWS).unwrap_or_default(), self.journal);
        self.journal = journal.last().map_or(since, |row| row.id);
        updates.extend(journal.into_iter().filter(|row| !first && row.id > since).map(Update::Journal));
        let (samples, since) = (reader.samples(ROWS).unwrap_or_default(), self.samples_ms);
        self.samples_ms = samples.last().map_or(since, |row| row.time_ms);
        let samples = samples.into_iter().filter(|row| !first && row.time_ms > since);
        updates.extend(samples.map(|row| Update::Reading(Box::new(row))));
        if self.status.as_ref().is_none_or(|before| before.durable_step != status.durable_step) && !first {
            updates.extend(reader.checkpoints().unwrap_or_default().into_iter().map(Update::Checkpoint));
        }
        // Silence is news, too: a status is sent only when something has changed.
        if self.status.as_ref() != Some(&status) || !updates.is_empty() {
            updates.insert(0, Update::Status(Box::new(status.clone())));
            self.status = Some(status);
        }
        Some(updates)
    }
}
