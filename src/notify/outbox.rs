//! The sender thread and its queue.

use super::bell::ring_bell;
use super::desktop::{missing_program, show_notification};
use super::http::{http_agent, send_post};
use super::webhook::Address;
use super::{Message, NotifyError};
use crate::config::integrations::{Least, Notify};
use crate::untrusted::thread;
use std::collections::HashSet;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

/// Maximum queued messages; more are dropped, since no user would read them all.
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
    Webhook(Result<Box<Address>, NotifyError>),
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
    pub fn missing_requirement(&self) -> Option<NotifyError> {
        match self {
            Self::Bell => std::env::var_os("TMUX").is_none().then_some(NotifyError::NotInTmux),
            Self::Desktop => missing_program(),
            Self::Webhook(Ok(_)) => None,
            Self::Webhook(Err(error)) => Some(error.clone()),
        }
    }

    /// Sends a message; may block for a while.
    ///
    /// # Errors
    /// Returns an error when the message did not arrive, with the reason; it never contains a secret.
    pub fn send(&self, message: &Message) -> Result<(), NotifyError> {
        self.send_with(message, PAUSE)
    }

    fn send_with(&self, message: &Message, pause: Duration) -> Result<(), NotifyError> {
        let message = &message.printable();
        match self {
            Self::Bell => ring_bell(),
            Self::Desktop => show_notification(message),
            Self::Webhook(Ok(address)) => {
                let time = jiff::Timestamp::now().to_string();
                send_post(&http_agent(), &address.build_post(message, &time), pause)
            }
            Self::Webhook(Err(error)) => Err(error.clone()),
        }
    }
}

/// Builds the configured channels and reads their secrets.
#[must_use]
pub fn build_channels(settings: &Notify) -> Vec<Channel> {
    let mut channels = Vec::new();
    if settings.bell {
        channels.push(Channel::Bell);
    }
    if settings.desktop {
        channels.push(Channel::Desktop);
    }
    channels.extend(settings.webhooks.iter().map(|hook| {
        let named = |error| NotifyError::Webhook { kind: hook.kind.word(), error: Box::new(error) };
        Channel::Webhook(Address::from_webhook(hook).map(Box::new).map_err(named))
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
        Self::with_channels(build_channels(settings), settings.level, PAUSE)
    }

    fn with_channels(channels: Vec<Channel>, least: Least, pause: Duration) -> Self {
        let (queue, waiting) = mpsc::sync_channel::<Message>(QUEUE);
        let (report, troubles) = mpsc::channel();
        let (ended, done) = mpsc::channel();
        // Without it, messages are dropped.
        let _ = thread::start("notifications", move || {
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
