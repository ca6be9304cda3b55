//! The sender thread and its queue.

use super::webhook::Address;
use super::{Message, bell, desktop, http};
use crate::config::integrations::{Least, Notify};
use std::collections::HashSet;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum queued messages; more are dropped, since nobody would read them all.
const QUEUE: usize = 64;
/// The first pause before a retry.
const PAUSE: Duration = Duration::from_secs(1);

/// One notification channel.
pub enum Channel {
    /// The bell of a tmux pane.
    Bell,
    /// The desktop.
    Desktop,
    /// A webhook, or the reason why it cannot be used.
    Webhook(Result<Box<Address>, String>),
}

impl Channel {
    /// Returns the channel's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bell => "bell",
            Self::Desktop => "desktop",
            Self::Webhook(Ok(address)) => address.name(),
            Self::Webhook(Err(_)) => "webhook",
        }
    }

    /// Returns the reason why the channel cannot work here, as far as that is known without sending.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        match self {
            Self::Bell => std::env::var_os("TMUX").is_none().then(|| "not inside tmux".to_owned()),
            Self::Desktop => desktop::missing().map(str::to_owned),
            Self::Webhook(Ok(_)) => None,
            Self::Webhook(Err(why)) => Some(why.clone()),
        }
    }

    /// Sends a message; may block for a while.
    ///
    /// # Errors
    /// Returns an error when the message did not arrive, with the reason; it never contains a secret.
    pub fn send(&self, message: &Message) -> Result<(), String> {
        self.send_with(message, PAUSE)
    }

    fn send_with(&self, message: &Message, pause: Duration) -> Result<(), String> {
        let message = &message.printable();
        match self {
            Self::Bell => bell::ring(),
            Self::Desktop => desktop::show(message),
            Self::Webhook(Ok(address)) => {
                let time = jiff::Timestamp::now().to_string();
                http::send(&http::agent(), &address.post(message, &time), pause)
            }
            Self::Webhook(Err(why)) => Err(why.clone()),
        }
    }
}

/// Builds the configured channels and reads their secrets.
#[must_use]
pub fn channels(settings: &Notify) -> Vec<Channel> {
    let mut channels = Vec::new();
    if settings.bell {
        channels.push(Channel::Bell);
    }
    if settings.desktop {
        channels.push(Channel::Desktop);
    }
    channels.extend(settings.webhooks.iter().map(|hook| {
        let named = |why| format!("{}: {why}", hook.kind.word());
        Channel::Webhook(Address::of(hook).map(Box::new).map_err(named))
    }));
    channels
}

/// A queue and the thread that drains it.
pub struct Outbox {
    queue: Option<SyncSender<Message>>,
    troubles: Receiver<String>,
    done: Receiver<()>,
    least: Least,
}

impl Outbox {
    /// Starts the thread.
    #[must_use]
    pub fn start(settings: &Notify) -> Self {
        Self::with(channels(settings), settings.level, PAUSE)
    }

    fn with(channels: Vec<Channel>, least: Least, pause: Duration) -> Self {
        let (queue, waiting) = mpsc::sync_channel::<Message>(QUEUE);
        let (report, troubles) = mpsc::channel();
        let (ended, done) = mpsc::channel();
        thread::spawn(move || {
            let mut said = HashSet::new();
            for message in waiting {
                for (index, channel) in channels.iter().enumerate() {
                    // On a server without a desktop or tmux this failure is normal.
                    let normal = matches!(channel, Channel::Bell | Channel::Desktop);
                    if let Err(why) = channel.send_with(&message, pause)
                        && !normal
                        && said.insert(index)
                    {
                        let _ = report.send(format!("notification by {} failed: {why}", channel.name()));
                    }
                }
            }
            drop(ended);
        });
        Self { queue: Some(queue), troubles, done, least }
    }

    /// Queues a message if it reaches the configured level. Never blocks.
    pub fn post(&self, message: Message) {
        if message.reaches(self.least)
            && let Some(queue) = &self.queue
        {
            let _ = queue.try_send(message);
        }
    }

    /// Returns the channels that have failed for the first time since the last call.
    pub fn troubles(&self) -> Vec<String> {
        self.troubles.try_iter().collect()
    }

    /// Closes the queue and waits up to `limit` until all queued messages are sent.
    pub fn finish(&mut self, limit: Duration) -> bool {
        self.queue = None;
        let deadline = Instant::now() + limit;
        let left = deadline.saturating_duration_since(Instant::now());
        self.done.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
    }
}

#[cfg(test)]
#[path = "outbox/tests.rs"]
mod tests;
