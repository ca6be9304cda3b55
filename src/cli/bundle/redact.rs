//! Takes out what is nobody else's business: secrets, the home folder, names of user and machine.

use crate::config::around::{Notify, Text};
use regex::{Captures, Regex};

/// What stands in the place of a secret.
const GONE: &str = "[removed]";
/// A shorter value is no secret, and taking it out would spoil the text.
const SHORTEST: usize = 6;
/// Names of variables that hold secrets.
const NAMES: [&str; 6] = ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "WEBHOOK"];

/// Knows what to take out.
pub struct Redactor {
    /// Exact texts and what takes their place, longest first.
    words: Vec<(String, String)>,
    shapes: Vec<(Regex, &'static str)>,
    named: Option<Regex>,
}

impl Redactor {
    /// Of this process's environment, and of the secrets that a run uses.
    pub fn new(notify: Option<&Notify>) -> Self {
        let variables: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let texts =
            notify.into_iter().flat_map(|notify| &notify.webhooks).flat_map(|hook| hook.url.iter().chain(&hook.token));
        let own: Vec<String> = texts.flat_map(|text| held(text).into_iter().chain(path_of(text))).collect();
        Self::of(&variables, &host, &own)
    }

    fn of(variables: &[(String, String)], host: &str, secrets: &[String]) -> Self {
        let mut words: Vec<(String, String)> = Vec::new();
        let mut add = |word: &str, instead: &str| {
            if word.len() > 2 {
                words.push((word.to_owned(), instead.to_owned()));
            }
        };
        for (name, value) in variables {
            match name.as_str() {
                "HOME" if value.len() > 1 => add(value.trim_end_matches('/'), "~"),
                name if NAMES.iter().any(|part| name.to_uppercase().contains(part)) && value.len() >= SHORTEST => {
                    add(value, GONE);
                }
                _ => {}
            }
        }
        secrets.iter().filter(|secret| secret.len() >= SHORTEST).for_each(|secret| add(secret, GONE));
        if host != "localhost" {
            add(host, "[host]");
        }
        words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        let shapes = [
            (r"(/home/|/Users/|/mnt/[a-z]/Users/|[A-Z]:\\Users\\)[^/\\\s:\x22']+", "${1}user"),
            (r"\bbot\d{6,}:[A-Za-z0-9_-]{20,}", GONE),
            (r"\b\d{8,10}:[A-Za-z0-9_-]{30,}", GONE),
            (r"https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/\S+", GONE),
            (r"https://hooks\.slack\.com/\S+", GONE),
            (r"(?i)\b(bearer|basic) [A-Za-z0-9._~+/=-]{6,}", "$1 [removed]"),
            (r"://[^/\s:@]+:[^/\s@]+@", "://[removed]@"),
            (r"\b(hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abpr]-|tk_|AKIA)[A-Za-z0-9_-]{10,}", GONE),
            (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----", GONE),
        ];
        let shapes =
            shapes.into_iter().filter_map(|(shape, instead)| Some((Regex::new(shape).ok()?, instead))).collect();
        let named =
            r#"(?i)\b([\w-]*(?:token|passwo?r?d|secret|api[_-]?key|wandb_key))(["']?\s*[:=]\s*["']?)([^\s"',}\]]+)"#;
        Self { words, shapes, named: Regex::new(named).ok() }
    }

    /// The text without what is nobody else's business.
    pub fn clean(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (word, instead) in &self.words {
            text = text.replace(word, instead);
        }
        for (shape, instead) in &self.shapes {
            text = shape.replace_all(&text, *instead).into_owned();
        }
        let Some(named) = &self.named else { return text };
        let keep = |value: &str| value.starts_with("env:") || value.starts_with("file:") || value == "null";
        let instead = |found: &Captures<'_>| {
            if keep(&found[3]) { found[0].to_owned() } else { format!("{}{}{GONE}", &found[1], &found[2]) }
        };
        named.replace_all(&text, instead).into_owned()
    }
}

/// What stands behind the host of an address: a topic or a hook lets in whoever knows it.
fn path_of(text: &Text) -> Option<String> {
    let Text::Plain(url) = text else { return None };
    let (_, place) = url.split_once("://")?;
    let (_, path) = place.split_once('/')?;
    Some(path.trim_end_matches('/').to_owned())
}

/// The secret that a setting leads to; none where it cannot be had, and so stands nowhere.
fn held(text: &Text) -> Option<String> {
    match text {
        Text::Plain(_) => None,
        Text::Env(name) => std::env::var(name).ok(),
        Text::File(path) => std::fs::read_to_string(path).ok(),
    }
    .map(|secret| secret.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::Redactor;
    use crate::config::around::Notify;

    fn clean(text: &str) -> String {
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let variables = [
            variable("HOME", "/home/ada"),
            variable("MY_TOKEN", "abc123xyz"),
            variable("SHORT_TOKEN", "ab"),
            variable("PATH", "/usr/bin:/bin"),
        ];
        Redactor::of(&variables, "lab-box-7", &["https://x/hook/9999".to_owned()]).clean(text)
    }

    #[test]
    fn what_is_private_goes_and_the_rest_stays() {
        let cases = [
            ("reading /home/ada/runs/x", "reading ~/runs/x"),
            ("/home/grace/data and C:\\Users\\Grace\\x", "/home/user/data and C:\\Users\\user\\x"),
            ("sent abc123xyz to https://x/hook/9999", "sent [removed] to [removed]"),
            ("kernel on lab-box-7", "kernel on [host]"),
            ("POST https://discord.com/api/webhooks/12/ab-CD_e", "POST [removed]"),
            ("/bot123456789:AAabcdefghijklmnopqrstuvwxyz012345/send", "/[removed]/send"),
            ("Authorization: Bearer abcdef123456", "Authorization: Bearer [removed]"),
            ("git clone https://me:pw@host/x", "git clone https://[removed]@host/x"),
            ("hf_abcdefghijklmnop", "[removed]"),
            ("WANDB_API_KEY=0123456789abcdef", "WANDB_API_KEY=[removed]"),
            ("{\"password\": \"hunter2\"}", "{\"password\": \"[removed]\"}"),
            ("token: env:NTFY", "token: env:NTFY"),
            ("tokens: 512, tokenizer: bytes, loss 2.31", "tokens: 512, tokenizer: bytes, loss 2.31"),
            ("/usr/bin/python at step 1200", "/usr/bin/python at step 1200"),
        ];
        for (text, expected) in cases {
            assert_eq!(clean(text), expected, "{text}");
        }
        let key = "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----\nb";
        assert_eq!(clean(key), "a\n[removed]\nb");
    }

    #[test]
    fn the_path_of_a_webhook_is_taken_out() {
        let text = "webhooks:\n  - { kind: json, url: 'https://x.example/hook/ABCSECRET' }\n  - { kind: ntfy, url: 'https://ntfy.sh/my-topic-9' }\n";
        let notify = Notify::read("n.yaml", text).unwrap();
        let clean = Redactor::new(Some(&notify)).clean(text);
        assert!(!clean.contains("ABCSECRET") && !clean.contains("my-topic-9"), "{clean}");
    }
}
