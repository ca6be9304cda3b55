//! Settings for the integrations of a run: where the probe finds NVML, and where alerts go.
//! This section never holds a secret, only its location: an environment variable or a file.

use super::document;
use super::problem::Problem;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::path::{Path, PathBuf};
use std::{fmt, str::FromStr};

/// Settings of the probe.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Probe {
    /// Path of the NVML library; searched for when absent. The environment variable `DOWNSHIFT_NVML_PATH`
    /// outranks it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvml: Option<PathBuf>,
}

/// Settings for alerts: their level and their channels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Notify {
    /// Ring the bell of the tmux pane that the run was started from.
    pub bell: bool,
    /// Show a notification on the desktop: by notify-send, or as a toast of Windows under WSL2.
    pub desktop: bool,
    /// The lowest level that is sent.
    pub level: Least,
    /// Minutes before the same message is sent again.
    pub again_min: u64,
    /// Webhooks to notify.
    pub webhooks: Vec<Webhook>,
}

impl Default for Notify {
    fn default() -> Self {
        Self { bell: true, desktop: true, level: Least::Warn, again_min: 60, webhooks: Vec::new() }
    }
}

/// How important a message must be to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Least {
    /// Everything, including that the run has finished.
    Info,
    /// Warnings worth a look.
    Warn,
    /// Problems that need attention.
    Error,
}

/// Base URL of the Telegram bot API, unless `url` names another server.
pub const TELEGRAM: &str = "https://api.telegram.org";

/// One webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// The protocol of the endpoint.
    pub kind: WebhookKind,
    /// The URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<Text>,
    /// The bot token, or a token for the `Authorization` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Text>,
    /// The Telegram chat id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat: Option<String>,
}

/// The protocol of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WebhookKind {
    /// A plain JSON object.
    Json,
    /// The Telegram bot API.
    Telegram,
    /// A Discord channel webhook.
    Discord,
    /// An ntfy topic.
    Ntfy,
}

impl WebhookKind {
    /// Returns the name used in files.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Telegram => "telegram",
            Self::Discord => "discord",
            Self::Ntfy => "ntfy",
        }
    }
}

/// A text, or a reference to it: `env:NAME` or `file:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    /// The literal text.
    Plain(String),
    /// The value of this environment variable.
    Env(String),
    /// The contents of this file, which only its owner may read.
    File(PathBuf),
}

impl fmt::Display for Text {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(text) => formatter.write_str(text),
            Self::Env(name) => write!(formatter, "env:{name}"),
            Self::File(path) => write!(formatter, "file:{}", path.display()),
        }
    }
}

/// A reference that names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadReference {
    /// `env:` without a name.
    #[error("write the name of a variable: env:NAME")]
    Variable,
    /// `file:` without a path.
    #[error("write the path of a file: file:PATH")]
    File,
}

impl FromStr for Text {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        match text.split_once(':') {
            Some(("env", "")) => Err(BadReference::Variable),
            Some(("env", name)) => Ok(Self::Env(name.to_owned())),
            Some(("file", "")) => Err(BadReference::File),
            Some(("file", path)) => Ok(Self::File(path.into())),
            _ => Ok(Self::Plain(text.to_owned())),
        }
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Text {
    /// Makes a relative `file:` path absolute from `base`; leaves `~` alone.
    fn settle(&mut self, base: &Path) {
        if let Self::File(path) = self
            && !path.starts_with("~")
        {
            *path = base.join(&*path);
        }
    }
}

impl Notify {
    /// Makes relative `file:` paths absolute from `base`.
    pub fn settle_paths(&mut self, base: &Path) {
        for hook in &mut self.webhooks {
            hook.url.iter_mut().chain(&mut hook.token).for_each(|text| text.settle(base));
        }
    }

    /// Returns every invalid setting, with its path below `prefix`.
    #[must_use]
    pub fn check(&self, prefix: &str) -> Vec<Problem> {
        let mut wrong = Vec::new();
        for (index, hook) in self.webhooks.iter().enumerate() {
            let mut push = |key: &str, what: &str, fix: &str| {
                let path = format!("webhooks[{index}].{key}");
                wrong.push(Problem::at(if prefix.is_empty() { path } else { format!("{prefix}.{path}") }, what, fix));
            };
            let kept = "write env:NAME or file:PATH (a file that only you can read)";
            if matches!(hook.token, Some(Text::Plain(_))) {
                push("token", "a secret does not belong in this file", kept);
            }
            match (&hook.url, hook.kind) {
                (Some(Text::Plain(_)), WebhookKind::Discord) => {
                    push("url", "the address of a Discord webhook is a secret", kept);
                }
                (Some(Text::Plain(url)), _) if !url.starts_with("https://") && !url.starts_with("http://") => {
                    push("url", "this is not a URL", "write https://…, env:NAME or file:PATH");
                }
                (Some(Text::Plain(url)), _) if url.contains('@') => {
                    push("url", "a password does not belong in this file", kept);
                }
                (Some(Text::Plain(url)), _) if url.contains('?') || url.contains("hooks.slack.com") => {
                    push("url", "a URL with a token is a secret", kept);
                }
                (None, kind) if kind != WebhookKind::Telegram => {
                    push("url", "this key is missing", "write https://…, env:NAME or file:PATH");
                }
                _ => {}
            }
            if hook.kind == WebhookKind::Telegram {
                if hook.token.is_none() {
                    push("token", "this key is missing", "write where the bot's token is: env:NAME or file:PATH");
                }
                if hook.chat.is_none() {
                    push("chat", "this key is missing", "write the number of the chat, in quotes");
                }
            }
        }
        if self.again_min == 0 {
            let path = if prefix.is_empty() { "again_min".to_owned() } else { format!("{prefix}.again_min") };
            wrong.push(Problem::at(path, "0 would repeat a message without end", "write minutes: 60"));
        }
        wrong
    }

    /// Parses a file that contains only this section.
    ///
    /// # Errors
    /// Returns an error when the file is invalid: every mistake, one line each with its position.
    pub fn read(file: &str, text: &str) -> Result<Self, Vec<String>> {
        document::read(file, text, |notify: &Self| notify.check("")).map_err(|error| error.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Least, Notify, Text, WebhookKind};

    #[test]
    fn a_whole_file_is_read() {
        let text = "level: error\ndesktop: false\nwebhooks:\n  - { kind: ntfy, url: 'https://ntfy.sh/x', token: 'env:T' }\n  - { kind: telegram, token: 'file:~/.tg', chat: '12' }\n  - { kind: discord, url: 'env:D' }\n";
        let notify = Notify::read("n.yaml", text).unwrap();
        assert_eq!((notify.level, notify.bell, notify.desktop), (Least::Error, true, false));
        assert_eq!(notify.webhooks[1].token, Some(Text::File("~/.tg".into())));
        assert_eq!(notify.webhooks[2].kind, WebhookKind::Discord);
    }

    #[test]
    fn secrets_and_mistakes_are_refused_with_their_place() {
        let cases = [
            (
                "webhooks:\n  - { kind: discord, url: 'https://discord.com/api/webhooks/1/abc' }\n",
                "n.yaml:2:27: webhooks[0].url: the address of a Discord webhook is a secret",
            ),
            ("webhooks:\n  - { kind: ntfy, url: 'https://u:p@x/y' }\n", "password"),
            ("webhooks:\n  - { kind: json, url: 'https://x/hook?token=abc' }\n", "is a secret"),
            ("webhooks:\n  - { kind: json, url: 'https://x', token: abc }\n", "a secret does not belong"),
            ("webhooks:\n  - { kind: json }\n", "this key is missing"),
            ("webhooks:\n  - { kind: telegram, token: 'env:T' }\n", "webhooks[0].chat"),
            ("webhooks:\n  - { kind: pigeon, url: 'https://x' }\n", "pigeon"),
            ("again_min: 0\n", "without end"),
            ("bel: true\n", "bel"),
        ];
        for (text, expected) in cases {
            let wrong = Notify::read("n.yaml", text).unwrap_err().join("\n");
            assert!(wrong.contains(expected), "{text}: {wrong}");
            assert!(!wrong.contains("abc"), "no secret is repeated: {wrong}");
        }
    }
}
