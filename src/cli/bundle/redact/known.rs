//! Values that are known to be secret: those of the environment, and of notification settings.

use super::GONE;
use super::assigned::holds_secret;
use crate::config::around::{Notify, Text};
use crate::store::lock::no_link;
use regex::Regex;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A shorter value is no secret, and taking it out would spoil the text.
const SHORTEST: usize = 6;
/// A file that holds more is no secret.
const LONGEST: u64 = 16 << 10;

/// Words to take out, and variables of the environment whose values are to go.
#[derive(Default)]
pub struct Known {
    words: Vec<(String, String)>,
    names: Vec<String>,
}

impl Known {
    /// The environment: the home folder, and every variable with the name of a secret.
    pub fn variables(&mut self, variables: &[(String, String)]) {
        for (name, value) in variables {
            if name == "HOME" && value.len() > 1 {
                self.word(value.trim_end_matches('/'), "~");
            } else if holds_secret(name) {
                self.secret(value);
            }
        }
    }

    /// The name of the machine.
    pub fn host(&mut self, host: &str) {
        if host != "localhost" {
            self.word(host, "[host]");
        }
    }

    /// Addresses and tokens. An address lets in whoever knows it, so its path goes too.
    pub fn settings(&mut self, notify: &Notify) {
        for hook in &notify.webhooks {
            for text in hook.url.iter().chain(&hook.token) {
                self.place(text);
            }
        }
    }

    /// The same from the text of a file, where it cannot be read as settings.
    pub fn text(&mut self, text: &str) {
        let named = r#"\b((?:env|file):[^\s'",}\]]+)|\burl["']?\s*:\s*["']?(https?://[^\s'",}\]]+)"#;
        for found in Regex::new(named).iter().flat_map(|named| named.captures_iter(text)) {
            if let Some(text) = found.get(1).or(found.get(2)).and_then(|text| text.as_str().parse().ok()) {
                self.place(&text);
            }
        }
    }

    /// The variables whose values go wherever they are assigned: they may not be set here.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Exact texts and what takes their place, longest first.
    pub fn into_words(mut self) -> Vec<(String, String)> {
        self.words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        self.words
    }

    fn place(&mut self, text: &Text) {
        match text {
            Text::Plain(text) => self.secret(text),
            Text::Env(name) => {
                self.names.push(name.clone());
                if let Ok(value) = std::env::var(name) {
                    self.secret(&value);
                }
            }
            Text::File(path) => {
                if let Some(value) = read(path) {
                    self.secret(&value);
                }
            }
        }
    }

    fn secret(&mut self, value: &str) {
        let value = value.trim();
        if let Some((server, path)) = address(value) {
            self.word(value, &format!("{server}/{GONE}"));
            if path.len() >= SHORTEST {
                self.word(path, GONE);
            }
        } else if value.len() >= SHORTEST {
            self.word(value, GONE);
            let escaped = serde_json::Value::from(value).to_string();
            self.word(escaped.trim_matches('"'), GONE);
        }
    }

    fn word(&mut self, word: &str, instead: &str) {
        if word.len() > 2 {
            self.words.push((word.to_owned(), instead.to_owned()));
        }
    }
}

/// An address with a path: what is before the path, and the path.
fn address(text: &str) -> Option<(&str, &str)> {
    let (_, place) = text.split_once("://")?;
    let (_, path) = place.split_once('/')?;
    let server = &text[..text.len() - path.len() - 1];
    let path = path.trim_end_matches('/');
    (!path.is_empty()).then_some((server, path))
}

/// The secret in a file: one line. A pipe or a device is none.
fn read(path: &Path) -> Option<String> {
    let path = match (path.strip_prefix("~"), std::env::var_os("HOME")) {
        (Ok(below), Some(home)) => PathBuf::from(home).join(below),
        _ => path.to_owned(),
    };
    let file = File::options().read(true).custom_flags(no_link()).open(path.canonicalize().ok()?).ok()?;
    let about = file.metadata().ok()?;
    let mut text = String::new();
    if !about.is_file() || about.len() > LONGEST {
        return None;
    }
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    let text = text.trim();
    (text.lines().count() == 1).then(|| text.to_owned())
}
