//! Builds the request for each kind of webhook: a pure function of the message.

use super::secret::resolve_secret;
use super::{Message, NotifyError};
use crate::config::integrations::{TELEGRAM, Webhook, WebhookKind};
use crate::protocol::worker::Level;
use serde_json::json;

/// Maximum characters sent to Discord, below its limit.
const LONGEST: usize = 1900;

/// A webhook with its secrets.
#[derive(Clone)]
pub struct Address {
    kind: WebhookKind,
    url: String,
    token: Option<String>,
    chat: String,
}

/// One request to send. Not `Debug`: it holds secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Post {
    /// The URL.
    pub url: String,
    /// Header names and values.
    pub headers: Vec<(&'static str, String)>,
    /// The request body.
    pub body: String,
}

impl Address {
    /// Builds the address of a section and reads its secrets.
    ///
    /// # Errors
    /// Returns an error that names the secret that cannot be read.
    pub fn from_webhook(hook: &Webhook) -> Result<Self, NotifyError> {
        let url = hook.url.as_ref().map(resolve_secret).transpose()?;
        Ok(Self {
            kind: hook.kind,
            url: url.unwrap_or_else(|| TELEGRAM.to_owned()),
            token: hook.token.as_ref().map(resolve_secret).transpose()?,
            chat: hook.chat.clone().unwrap_or_default(),
        })
    }

    /// Builds the request for a message.
    pub fn build_post(&self, message: &Message, time: &str) -> Post {
        let plain = format!("{}\n{}", message.title, message.text);
        let plain: String = plain.chars().take(LONGEST).collect();
        let json_type = ("content-type", "application/json".to_owned());
        let bearer = self.token.iter().map(|token| ("authorization", format!("Bearer {token}")));
        match self.kind {
            WebhookKind::Json => Post {
                url: self.url.clone(),
                headers: bearer.chain([json_type]).collect(),
                body: json!({
                    "source": "downshift", "run": message.run, "level": message.level,
                    "title": message.title, "text": message.text, "time": time,
                })
                .to_string(),
            },
            WebhookKind::Telegram => Post {
                url: format!(
                    "{}/bot{}/sendMessage",
                    self.url.trim_end_matches('/'),
                    self.token.as_deref().unwrap_or_default()
                ),
                headers: vec![json_type],
                body: json!({ "chat_id": self.chat, "text": plain, "disable_web_page_preview": true }).to_string(),
            },
            WebhookKind::Discord => Post {
                url: self.url.clone(),
                headers: vec![json_type],
                body: json!({ "content": plain, "allowed_mentions": { "parse": [] } }).to_string(),
            },
            WebhookKind::Ntfy => {
                let (priority, tag) = match message.level {
                    Level::Info => ("3", "white_check_mark"),
                    Level::Warn => ("4", "warning"),
                    Level::Error => ("5", "rotating_light"),
                };
                // Headers are ASCII; the full title is in the body as well.
                let title: String = message.title.chars().filter(|c| (' '..='~').contains(c)).collect();
                let headers = [("title", title), ("priority", priority.to_owned()), ("tags", tag.to_owned())];
                Post { url: self.url.clone(), headers: bearer.chain(headers).collect(), body: message.text.clone() }
            }
        }
    }

    /// Returns the protocol's display name.
    pub fn name(&self) -> &'static str {
        match self.kind {
            WebhookKind::Json => "json",
            WebhookKind::Telegram => "telegram",
            WebhookKind::Discord => "discord",
            WebhookKind::Ntfy => "ntfy",
        }
    }
}
