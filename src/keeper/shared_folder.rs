//! The keeper's part in a [shared](crate::store::shared_folder) run directory: a thread renews the lease and reads orders, since
//! a file server may let it wait. To the loop an order is a request of a client like any other.

use super::Input;
use super::author::Author;
use super::keeper_state::Keeper;
use super::standby::Standby;
use crate::protocol::control::{JournalKind, Request, Update};
use crate::protocol::worker::Level;
use crate::store::run_dir::RunDir;
use crate::store::shared_folder::lease::{BEAT, Lease, Renewal};
use crate::store::shared_folder::orders::{FoundOrder, Inbox, Order, Refused};
use crate::untrusted::text;
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Interval between two looks at the orders.
const POLL: Duration = Duration::from_millis(500);
/// How long the thread waits for the reply to an order that it has just handed over, and between two looks.
const REPLY: Duration = Duration::from_millis(400);
const LOOK: Duration = Duration::from_millis(10);
/// How long an order may wait for its second reply, such as the end of a run that saves.
const LONGEST: Duration = Duration::from_mins(30);
/// Longest wait for the thread when the keeper ends.
const LAST: Duration = Duration::from_secs(2);
/// Queued replies of one order.
const REPLIES: usize = 16;
/// The first client number of an order; those of the socket count from 1.
const FIRST: u64 = 1 << 32;
/// Number of obeyed orders that are remembered.
const REMEMBERED: usize = 64;
/// Name of the fact that lists them.
pub(super) const OBEYED: &str = "obeyed_orders";

/// News from the thread.
#[derive(Debug)]
pub(super) enum News {
    /// An order arrived, or a file that is none, for this client.
    Order(u64, String, Result<Order, Refused>),
    /// The lease cannot be renewed, or orders cannot be read; none once both work again.
    Trouble(Option<String>),
    /// Another host has taken the run over.
    Lost(Box<Lease>),
}

/// A word to the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// The run has begun: read orders.
    Read,
    /// The keeper ends: write the last replies.
    End,
}

/// The thread.
#[derive(Debug)]
pub(super) struct FolderThread {
    words: Sender<Word>,
    done: Receiver<()>,
}

impl FolderThread {
    /// Starts the thread of a run whose lease this process holds.
    pub(super) fn start(run: &RunDir, renewal: Renewal, inputs: mpsc::Sender<Input>) -> io::Result<Self> {
        let ((words, heard), (ended, done)) = (channel(), channel());
        let (run, waiting) = (run.path().to_owned(), Vec::new());
        let mut desk = Desk { run, renewal, inputs, inbox: None, waiting, next: FIRST, trouble: None };
        let work = move || {
            desk.work(&heard);
            let _ = ended.send(());
        };
        thread::Builder::new().name("shared folder".to_owned()).spawn(work)?;
        Ok(Self { words, done })
    }

    /// Lets the thread read orders: the policy refuses them before the run has begun.
    pub(super) fn read_orders(&self) {
        let _ = self.words.send(Word::Read);
    }

    /// Lets the thread write the last replies.
    pub(super) fn finish(self) {
        let _ = self.words.send(Word::End);
        let _ = self.done.recv_timeout(LAST);
    }
}

/// An order whose replies are awaited.
#[derive(Debug)]
struct Waiting {
    id: String,
    client: u64,
    heard: mpsc::Receiver<String>,
    /// All replies so far, and those that the answer holds.
    said: String,
    written: usize,
    since: Instant,
}

struct Desk {
    run: PathBuf,
    renewal: Renewal,
    inputs: mpsc::Sender<Input>,
    inbox: Option<Inbox>,
    waiting: Vec<Waiting>,
    next: u64,
    trouble: Option<String>,
}

impl Desk {
    fn work(&mut self, words: &Receiver<Word>) {
        let (mut beaten, mut reads) = (None::<Instant>, false);
        loop {
            let mut trouble = None;
            if beaten.is_none_or(|at| at.elapsed() >= BEAT) {
                match self.renewal.renew() {
                    Ok(Ok(())) => beaten = Some(Instant::now()),
                    Ok(Err(other)) => return self.tell(News::Lost(other)),
                    Err(error) => trouble = Some(format!("the lease of this run cannot be renewed: {error}")),
                }
            }
            if reads && let Err(error) = self.read_orders() {
                trouble = trouble.or_else(|| Some(format!("orders from other hosts cannot be read: {error}")));
            }
            if let Err(error) = self.answer_soon() {
                trouble = trouble.or_else(|| Some(format!("an order from another host cannot be answered: {error}")));
            }
            // A beat is not due in each round; what failed then still does.
            let beats = beaten.is_some_and(|at| at.elapsed() < BEAT);
            if trouble != self.trouble && (trouble.is_some() || beats) {
                self.trouble.clone_from(&trouble);
                self.tell(News::Trouble(trouble));
            }
            match words.recv_timeout(POLL) {
                Ok(Word::Read) => reads = true,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Word::End) | Err(RecvTimeoutError::Disconnected) => return drop(self.answer()),
            }
        }
    }

    fn tell(&self, news: News) {
        let _ = self.inputs.blocking_send(Input::Folder(news));
    }

    fn read_orders(&mut self) -> io::Result<()> {
        let mut inbox = match self.inbox.take() {
            Some(inbox) => inbox,
            None => Inbox::open(&self.run)?,
        };
        let found = inbox.read();
        self.inbox = Some(inbox);
        for FoundOrder { id, order } in found? {
            let (sender, heard) = mpsc::channel(REPLIES);
            let (client, since) = (self.next, Instant::now());
            self.next += 1;
            let by = order.as_ref().map(|order| text::escape_line(&order.by).into_owned()).unwrap_or_default();
            let _ = self.inputs.blocking_send(Input::Connected(client, sender, Author::Elsewhere(by)));
            self.waiting.push(Waiting { id: id.clone(), client, heard, said: String::new(), written: 0, since });
            self.tell(News::Order(client, id, order));
        }
        Ok(())
    }

    /// Writes the replies to new orders as they come, for a moment.
    fn answer_soon(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + REPLY;
        loop {
            self.answer()?;
            let is_awaited = self.waiting.iter().any(|order| order.written == 0);
            if !is_awaited || Instant::now() >= deadline {
                return Ok(());
            }
            thread::sleep(LOOK);
        }
    }

    /// Writes the replies that have come.
    fn answer(&mut self) -> io::Result<()> {
        let Some(inbox) = &self.inbox else { return Ok(()) };
        let (mut written, mut left) = (Ok(()), Vec::new());
        for order in &mut self.waiting {
            let mut is_open = true;
            loop {
                match order.heard.try_recv() {
                    Ok(line) => order.said.push_str(&line),
                    Err(mpsc::error::TryRecvError::Empty) => break,
                    Err(mpsc::error::TryRecvError::Disconnected) => {
                        is_open = false;
                        break;
                    }
                }
            }
            if order.written > 0 && inbox.has_left(&order.id) {
                left.push(order.client);
                continue;
            }
            if order.said.len() > order.written {
                match inbox.answer(&order.id, &order.said) {
                    Ok(()) => order.written = order.said.len(),
                    Err(error) => written = Err(error),
                }
            }
            let is_answered = order.said.lines().count() >= 2 || (!is_open && order.written == order.said.len());
            if is_answered || order.since.elapsed() > LONGEST {
                left.push(order.client);
            }
        }
        self.waiting.retain(|order| !left.contains(&order.client));
        for client in left {
            // At the end of the run nobody may read the queue any more.
            let _ = self.inputs.try_send(Input::Left(client));
        }
        written
    }
}

impl Keeper {
    pub(super) fn handle_folder_news(&mut self, news: News) {
        match news {
            News::Order(client, id, order) => self.handle_order(client, id, order),
            News::Trouble(Some(why)) => self.recorder.note(Level::Error, JournalKind::Health, why),
            News::Trouble(None) => {
                let text = "the lease is renewed, and orders from other hosts are read again".to_owned();
                self.recorder.note(Level::Info, JournalKind::Health, text);
            }
            News::Lost(lease) => {
                // Two workers would train at once, and one that is asked to end would save into the run of another host.
                for worker in self.worker.process.iter().chain(self.worker.standby.as_ref().map(Standby::worker)) {
                    worker.kill_with_command();
                }
                self.files.lost_to = Some(lease);
            }
        }
    }

    /// Obeys an order once: what it changes and that it was obeyed are stored in one step.
    fn handle_order(&mut self, client: u64, id: String, order: Result<Order, Refused>) {
        if self.obeyed.contains(&id) {
            let message =
                "the keeper before this one handled the order, and died before it could answer; the journal says how"
                    .to_owned();
            return self.clients.send(client, &Update::Reply { accepted: true, message });
        }
        match order {
            Ok(Order { request: Request::Subscribe | Request::StandBy { .. }, .. }) => {
                self.clients.answer(client, Err("this request needs the keeper's socket"));
            }
            // To stop or to pause twice is the same as once; anything else must be remembered.
            Ok(order) if !matches!(order.request, Request::Stop | Request::Pause) && !self.recorder.is_writable() => {
                let why =
                    "run.db cannot be written, so the order would be obeyed twice if the keeper died; ask again later";
                self.clients.answer(client, Err(why));
            }
            Ok(order) => {
                self.obeyed.push_back(id);
                self.obeyed.drain(..self.obeyed.len().saturating_sub(REMEMBERED));
                self.recorder.put_fact(OBEYED, &self.obeyed);
                self.handle_input(Input::Asked(client, order.request));
                self.recorder.flush();
            }
            Err(refused) => {
                self.recorder.note(Level::Warn, JournalKind::Request, refused.to_string());
                self.clients.answer(client, Err(refused));
            }
        }
    }
}

/// The orders that the keepers of this run have obeyed, oldest first.
pub(super) type Obeyed = VecDeque<String>;
