//! Known secrets: values from the environment and from notification settings.

use super::GONE;
use super::assigned::{holds_secret, is_secret, looks_like_password};
use crate::config::integrations::{Notify, Text};
use crate::config::run::Run;
use crate::notify::secret::expand_home;
use crate::store::lock::no_link;
use regex::Regex;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Minimum length of a secret; removing shorter values would garble the text.
const SHORTEST: usize = 6;
/// Maximum size of a secret file.
const LONGEST: u64 = 16 << 10;

/// Strings to remove, and environment variables whose values are removed.
#[derive(Default)]
pub struct Known {
    words: Vec<(String, String)>,
    names: Vec<String>,
}

impl Known {
    /// Adds the environment: the home folder, and every variable with a secret's name.
    pub fn variables(&mut self, variables: &[(String, String)]) {
        for (name, value) in variables {
            if name == "HOME" && value.len() > 1 {
                self.add_word(value.trim_end_matches('/'), "~");
            } else if holds_secret(name) {
                self.add_secret(value);
            }
        }
    }

    /// Adds the secrets in the environment and in the arguments of a run's command.
    pub fn add_run(&mut self, run: &Run) {
        for (name, value) in run.rungs.iter().flat_map(|rung| &rung.preset.environment) {
            self.add_named(name, value);
        }
        let Some(spec) = &run.command else { return };
        let resumed = spec.resume.iter().flat_map(|resume| &resume.arguments);
        let words: Vec<&String> = spec.command.iter().chain(resumed).collect();
        for (place, word) in words.iter().enumerate() {
            if *word == "-p"
                && let Some(value) = words.get(place + 1).filter(|value| looks_like_password(value))
            {
                self.add_secret(value);
            }
            let Some(option) = word.strip_prefix("--") else { continue };
            let after = || words.get(place + 1).map(|value| (option, value.as_str()));
            if let Some((name, value)) = option.split_once('=').or_else(after) {
                self.add_named(name, value);
            }
        }
    }

    fn add_named(&mut self, name: &str, value: &str) {
        if is_secret(name, value) {
            self.names.push(name.to_owned());
            self.add_secret(value);
        }
    }

    /// Adds the machine's name.
    pub fn host(&mut self, host: &str) {
        if host != "localhost" {
            self.add_word(host, "[host]");
        }
    }

    /// Adds addresses and tokens. An address may grant access to anyone who knows it, so its path is removed too.
    pub fn settings(&mut self, notify: &Notify) {
        for hook in &notify.webhooks {
            for text in hook.url.iter().chain(&hook.token) {
                self.add_text(text);
            }
        }
    }

    /// Adds the same from a file's text, if it cannot be parsed as settings.
    pub fn add_named_in(&mut self, text: &str) {
        let named = r#"\b((?:env|file):[^\s'",}\]]+)|\burl["']?\s*:\s*["']?(https?://[^\s'",}\]]+)"#;
        for found in Regex::new(named).iter().flat_map(|named| named.captures_iter(text)) {
            if let Some(text) = found.get(1).or(found.get(2)).and_then(|text| text.as_str().parse().ok()) {
                self.add_text(&text);
            }
        }
        let variable = r#"\b([A-Z][A-Z0-9_]*)["']?[ \t]*[:=]"#;
        for found in Regex::new(variable).iter().flat_map(|variable| variable.captures_iter(text)) {
            if holds_secret(&found[1]) && !self.names.contains(&found[1].to_owned()) {
                self.names.push(found[1].to_owned());
            }
        }
    }

    /// Returns the variables whose values are removed wherever they are assigned; they may be unset here.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the exact strings and their replacements, longest first.
    pub fn into_words(mut self) -> Vec<(String, String)> {
        self.words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        self.words
    }

    fn add_text(&mut self, text: &Text) {
        match text {
            Text::Plain(text) => self.add_secret(text),
            Text::Env(name) => {
                self.names.push(name.clone());
                if let Ok(value) = std::env::var(name) {
                    self.add_secret(&value);
                }
            }
            Text::File(path) => {
                if let Some(value) = read_secret_file(path) {
                    self.add_secret(&value);
                }
            }
        }
    }

    fn add_secret(&mut self, value: &str) {
        let value = value.trim();
        if let Some((server, path)) = address(value) {
            self.add_word(value, &format!("{server}/{GONE}"));
            if path.len() >= SHORTEST {
                self.add_word(path, GONE);
            }
        } else if value.len() >= SHORTEST {
            self.add_word(value, GONE);
            let escaped = serde_json::Value::from(value).to_string();
            self.add_word(escaped.trim_matches('"'), GONE);
        }
    }

    fn add_word(&mut self, word: &str, instead: &str) {
        if word.len() > 2 {
            self.words.push((word.to_owned(), instead.to_owned()));
        }
    }
}

/// Splits an address into the part before its path, and the path.
fn address(text: &str) -> Option<(&str, &str)> {
    let (_, place) = text.split_once("://")?;
    let (_, path) = place.split_once('/')?;
    let server = &text[..text.len() - path.len() - 1];
    let path = path.trim_end_matches('/');
    (!path.is_empty()).then_some((server, path))
}

/// Reads the secret in a file: one line. Ignores pipes and devices.
fn read_secret_file(path: &Path) -> Option<String> {
    let path = expand_home(path).canonicalize().ok()?;
    let file = File::options().read(true).custom_flags(no_link()).open(path).ok()?;
    let about = file.metadata().ok()?;
    let mut text = String::new();
    if !about.is_file() || about.len() > LONGEST {
        return None;
    }
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    let text = text.trim();
    (text.lines().count() == 1).then(|| text.to_owned())
}
