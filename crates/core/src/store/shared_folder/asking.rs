//! A client's request to a keeper on another host: an order, and the wait for its replies.

use super::host_name;
use super::lease::{self, Lease};
use super::orders::{self, Order, Placed};
use super::takeover::{STILL, Standstill};
use crate::protocol::control::{Request, Update};
use crate::protocol::line;
use crate::store::run_dir::RunDir;
use std::collections::VecDeque;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Timeout for the first reply; the keeper looks twice a second.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval between two looks for a reply.
const INTERVAL: Duration = Duration::from_millis(100);

/// Reason why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum NoReply {
    /// The folder takes no orders.
    #[error("{run} has a keeper, {holder}, and no order can be left for it in requests/: {source}")]
    NotPlaced {
        /// The run's name.
        run: String,
        /// The keeper.
        holder: String,
        /// The system's error.
        source: io::Error,
    },
    /// The keeper does not read.
    #[error(
        "the keeper of {run}, {holder}, has not answered in {} s, and the order was withdrawn; if that process is surely gone, \
         `{take_over}` continues the run here", PATIENCE.as_secs()
    )]
    Silent {
        /// The run's name.
        run: String,
        /// The keeper.
        holder: String,
        /// The command that takes the run over.
        take_over: String,
    },
    /// The keeper took the order, and has not replied.
    #[error(
        "the keeper of {run}, {holder}, has taken the order and will obey it; `{status}` shows when. It has not answered in {} s",
        2 * PATIENCE.as_secs()
    )]
    Taken {
        /// The run's name.
        run: String,
        /// The keeper.
        holder: String,
        /// The command that shows the run.
        status: String,
    },
    /// The keeper accepted the order, and its lease no longer moves.
    #[error(
        "{run} was asked to end, but the lease of its keeper, {holder}, has not moved for {} s: that host may be down or cut \
         off; if the process is surely gone, `{take_over}` continues the run here", STILL.as_secs()
    )]
    Still {
        /// The run's name.
        run: String,
        /// The keeper.
        holder: String,
        /// The command that takes the run over.
        take_over: String,
    },
    /// The keeper ended first.
    #[error("the keeper of {run} ended before it answered; `{status}` shows the run")]
    Ended {
        /// The run's name.
        run: String,
        /// The command that shows it.
        status: String,
    },
    /// The answer cannot be read.
    #[error("the answer in requests/ cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// A reply of the keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Whether the request is accepted.
    pub accepted: bool,
    /// The consequence, or why the request is refused.
    pub message: String,
}

/// A request on its way.
#[derive(Debug)]
pub struct Asked {
    run: RunDir,
    lease: Lease,
    placed: Placed,
    replies: VecDeque<Reply>,
}

impl Asked {
    /// Leaves a request for the keeper that holds this lease.
    ///
    /// # Errors
    /// Returns an error when the folder takes none.
    pub fn new(run: &RunDir, lease: Lease, request: &Request) -> Result<Self, NoReply> {
        let by = format!("downshift (process {} on host {})", std::process::id(), host_name());
        let order = Order { to: lease.owner.boot.clone(), by, request: request.clone() };
        match orders::place(run.path(), &order) {
            Ok(placed) => Ok(Self { run: run.clone(), lease, placed, replies: VecDeque::new() }),
            Err(source) => Err(NoReply::NotPlaced { run: run.name(), holder: lease.holder(), source }),
        }
    }

    /// Waits for the first reply. A request that the keeper has not read by then is withdrawn.
    ///
    /// # Errors
    /// Returns an error when there is none in time.
    pub fn first_reply(&mut self) -> Result<Reply, NoReply> {
        if let Some(reply) = self.reply_within(PATIENCE)? {
            return Ok(reply);
        }
        let (run, holder) = (self.run.name(), self.lease.holder());
        if self.placed.withdraw() {
            return Err(NoReply::Silent { run, holder, take_over: self.run.command("resume --take-over") });
        }
        let reply = self.reply_within(PATIENCE)?;
        reply.ok_or_else(|| NoReply::Taken { run, holder, status: self.run.command("status") })
    }

    /// Waits for the outcome of an accepted request, as long as the keeper renews its lease.
    ///
    /// # Errors
    /// Returns an error when the keeper ends without one, or its lease no longer moves.
    pub fn outcome(&mut self) -> Result<Reply, NoReply> {
        let mut standstill = Standstill::default();
        loop {
            // Its last reply is written before its lease ends.
            let lease = lease::elsewhere(self.run.path());
            if let Some(reply) = self.reply_within(Duration::ZERO)? {
                return Ok(reply);
            }
            let Some(lease) = lease else {
                return Err(NoReply::Ended { run: self.run.name(), status: self.run.command("status") });
            };
            if standstill.observe(&lease, Instant::now()) >= STILL {
                let take_over = self.run.command("resume --take-over");
                return Err(NoReply::Still { run: self.run.name(), holder: lease.holder(), take_over });
            }
            thread::sleep(INTERVAL);
        }
    }

    fn reply_within(&mut self, limit: Duration) -> io::Result<Option<Reply>> {
        let deadline = Instant::now() + limit;
        loop {
            if self.replies.is_empty() {
                let news = self.placed.news()?;
                self.replies.extend(news.iter().filter_map(|text| line::decode(text)).filter_map(reply_in));
            }
            if let Some(reply) = self.replies.pop_front() {
                return Ok(Some(reply));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(INTERVAL);
        }
    }
}

fn reply_in(update: Update) -> Option<Reply> {
    match update {
        Update::Reply { accepted, message } => Some(Reply { accepted, message }),
        _ => None,
    }
}
