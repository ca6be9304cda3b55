//! Values that follow a name which marks them as secret: `password: x`, `API_KEY=x`,
//! `AWS_SECRET_ACCESS_KEY x`, `--token x`.

use super::GONE;
use regex::{Captures, Regex};

/// Suffixes of secret names.
const NAMES: &str = r"token|passwo?r?d|passphrase|secret|credentials?|(?:api|access|secret|private|account|storage|auth|shared|signing|encryption|master|subscription|wandb|openai)[_-]?key(?:[_-]?(?:id|base))?";
/// A value: quoted (also with escaped quotes), or up to the next space.
const VALUE: &str = r#"\\?"(?:[^"\\\n]|\\[^"\n])*\\?"?|'[^'\n]*'?|[^\s"',}\]]+"#;
/// A value of several words: quoted, or up to the end of the line, a quote or a delimiter.
const PHRASE: &str = r#"\\?"(?:[^"\\\n]|\\[^"\n])*\\?"?|'[^'\n]*'?|[^\s"',}\]](?:[^"',}\]\r\n]*[^\s"',}\]])?"#;
/// Words before `token` that mean a piece of text, as in machine learning.
const OF_TEXT: [&str; 38] = [
    "eos",
    "bos",
    "pad",
    "unk",
    "sep",
    "cls",
    "mask",
    "eot",
    "eod",
    "next",
    "last",
    "first",
    "special",
    "image",
    "audio",
    "start",
    "stop",
    "end",
    "begin",
    "prev",
    "previous",
    "current",
    "max",
    "min",
    "num",
    "per",
    "new",
    "added",
    "bad",
    "decoder",
    "input",
    "output",
    "target",
    "source",
    "each",
    "every",
    "unexpected",
    "unknown",
];
/// Words that follow such a name in ordinary prose.
const IN_SENTENCES: [&str; 44] = [
    "is",
    "isn't",
    "are",
    "was",
    "were",
    "not",
    "must",
    "has",
    "have",
    "in",
    "from",
    "for",
    "and",
    "or",
    "to",
    "of",
    "on",
    "needs",
    "need",
    "should",
    "could",
    "cannot",
    "can",
    "missing",
    "unset",
    "set",
    "required",
    "variable",
    "variables",
    "environment",
    "found",
    "invalid",
    "expired",
    "may",
    "will",
    "if",
    "when",
    "with",
    "as",
    "by",
    "at",
    "does",
    "the",
    "before",
];

/// Reports whether a variable of this name holds a secret, rather than a path to one or a count of tokens.
pub fn holds_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    let ends = ["_file", "_path", "_dir", "_sock", "tokens"].iter().any(|end| name.ends_with(end));
    let parts = ["token", "secret", "password", "passwd", "passphrase", "credential", "webhook", "dsn", "apikey"];
    let tails = ["_key", "_pass", "_pwd", "_pat", "_auth"].iter().any(|tail| name.ends_with(tail));
    let whole = tails || ["sshpass", "auth", "pat"].contains(&name.as_str());
    let whole = whole || parts.iter().any(|part| name.contains(part));
    whole && !ends && !name.contains("tokenizer")
}

/// Reports whether the value of an option or a variable is a secret: by its name, and not a piece of text.
pub fn is_secret(name: &str, value: &str) -> bool {
    holds_secret(&name.replace('-', "_")) && !value.starts_with("--") && !is_harmless("", &format!("{name}="), value)
}

/// Reports whether the value of an option `-p` is a password by its shape: letters with digits or signs. Ports, paths and
/// kinds of numbers are none.
pub fn looks_like_password(value: &str) -> bool {
    let has = |is: fn(char) -> bool| value.chars().any(is);
    let is_place = value.starts_with(['-', '<', '{', '$', '~', '.']) || value.contains(['/', '\\']);
    let is_file = value.rsplit_once('.').is_some_and(|(_, end)| (1..=5).contains(&end.len()));
    let is_setting = value.contains(['=', ':', ',']);
    let number = value.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    let is_kind = ["fp", "bf", "tf", "nf", "int", "uint", "float", "bfloat"]
        .contains(&&value[..value.len() - number.len()])
        && number.chars().all(|letter| letter.is_ascii_digit());
    let mixed = has(char::is_alphabetic)
        && (has(|letter| letter.is_ascii_digit()) || has(|letter| "!@#%^&*+?".contains(letter)));
    value.chars().count() >= 6 && mixed && !is_place && !is_file && !is_setting && !is_kind
}

/// Removes values by the names before them.
pub struct Assigned {
    expressions: Vec<Regex>,
    /// Options whose values are passwords by their shape only.
    options: Option<Regex>,
}

impl Assigned {
    /// Builds the patterns for the usual names and for secret environment variables of this run.
    pub fn new(variables: &[String]) -> Self {
        let mut expressions = vec![
            // A passphrase is several words: up to the end of the line.
            format!(r#"(?i)(passphrase["'\\]*[ \t]*(?::=|=>|[:=])[ \t]*)({PHRASE})"#),
            format!(r#"([A-Z0-9_]*PASSPHRASE["'\\]*[ \t]+|--[A-Za-z0-9_-]*passphrase[ \t]+)({PHRASE})"#),
            // A colon or an equals sign after any such name.
            format!(r#"(?i)((?:{NAMES})["'\\]*[ \t]*(?::=|=>|[:=])[ \t]*)({VALUE})"#),
            // A space after a variable or an option.
            r#"([A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|SECRET|PRIVATE|ACCOUNT|STORAGE|AUTH|WANDB)_?KEY)["'\\]*[ \t]+)([^\s,}\]]+)"#.to_owned(),
            format!(r"(--[A-Za-z0-9_-]*(?:token|password|passwd|secret|(?:api|access|private|secret)[_-]?key)[ \t]+)({VALUE})"),
            // An option and its value in a list: on two lines, or with a comma between them.
            format!(r#"(--[A-Za-z0-9_-]*(?:token|passwo?r?d|passphrase|secret|credentials?|webhook|dsn|apikey|[_-]key|[_-]pass)["']?(?:,[ \t]*|[ \t]*\r?\n[ \t]*-[ \t]+))({VALUE})"#),
            // Short names of passwords: of a variable, of a part of a connection's description, of an option.
            format!(r#"(\b(?:[A-Z0-9_]+_(?:PWD|PAT|AUTH|PASS)["'\\]*[ \t]*[:=]|(?:AUTH|PAT|SSHPASS|PASS)["'\\]*[ \t]*=)[ \t]*)({VALUE})"#),
            r#"(?i)(\bpwd=)([^\s;"'/~.$][^\s;"']*)"#.to_owned(),
            format!(r#"(--(?:[A-Za-z0-9]+[_-])*(?:auth|pwd)=|--(?:(?:http|basic|proxy|api|user|db)[_-])?(?:auth|pwd)(?:[ \t]+|["'],[ \t]*|[ \t]*\r?\n[ \t]*-[ \t]+))({VALUE})"#),
            // A user and a password for curl, also in a list.
            r#"(\bcurl\b[^\n|;]*?[ \t](?:-u|--user|--proxy-user|-U)[ \t=]*["']?[^\s:"']+:)([^\s"']+)"#.to_owned(),
            r#"((?:^|[\s"'\[])(?:-u|--user|--proxy-user)(?:["']?,[ \t]*|["']?[ \t]*\r?\n[ \t]*-[ \t]+)["']?[^\s:"',]+:)([^\s"',\]]+)"#.to_owned(),
            // A netrc file.
            r"(?i)(\blogin\s+\S+\s+password\s+)(\S+)".to_owned(),
        ];
        for name in variables {
            let name = regex::escape(name);
            expressions.push(format!(r#"(\b{name}["'\\]*(?:[ \t]*[:=]+[ \t]*|[ \t]+))({VALUE})"#));
        }
        let options = format!(r#"((?:^|[\s"'\[])-p(?:[ \t]+|=|["'],[ \t]*|["']?[ \t]*\r?\n[ \t]*-[ \t]+))({VALUE})"#);
        Self {
            expressions: expressions.iter().filter_map(|expression| Regex::new(expression).ok()).collect(),
            options: Regex::new(&options).ok(),
        }
    }

    /// Returns the text without such values.
    pub fn clean(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for expression in &self.expressions {
            let instead = |found: &Captures<'_>| {
                let (start, end) = found.get(0).map_or((0, 0), |all| (all.start(), all.end()));
                let (name, value) = (&found[1], &found[2]);
                let core = value.trim_matches(['"', '\'', '\\']);
                let (before, after) = (&text[..start], &text[end..]);
                if is_harmless(before, name, core) || is_message(before, core, after) {
                    found[0].to_owned()
                } else {
                    format!("{name}{}", value.replacen(core, GONE, 1))
                }
            };
            text = expression.replace_all(&text, instead).into_owned();
        }
        let Some(options) = &self.options else { return text };
        let instead = |found: &Captures<'_>| {
            let core = found[2].trim_matches(['"', '\'', '\\']);
            let value = if looks_like_password(core) { found[2].replacen(core, GONE, 1) } else { found[2].to_owned() };
            format!("{}{value}", &found[1])
        };
        options.replace_all(&text, instead).into_owned()
    }
}

/// Reports whether a value is harmless; `before` is the text up to the matched name.
fn is_harmless(before: &str, name: &str, value: &str) -> bool {
    let lower = value.to_lowercase();
    let empty = ["", "null", "none", "true", "false", "~"].contains(&lower.as_str());
    let placed = ["env:", "file:", "[removed"].iter().any(|start| value.starts_with(start));
    let is_word = !value.contains(char::is_alphanumeric) || value.starts_with("--");
    let spaced = !name.contains([':', '=']);
    let first = lower.split_whitespace().next().unwrap_or_default();
    if empty || placed || spaced && (is_word || IN_SENTENCES.contains(&first)) {
        return true;
    }
    let name = name.trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric()).to_lowercase();
    name.ends_with("token") && is_piece_of_text(before, &name, value)
}

/// Reports whether a value is the first word of a message about a key of a list:
/// `webhooks[0].token: a secret does not belong here`.
fn is_message(before: &str, value: &str, after: &str) -> bool {
    let is_word = |text: &str| !text.is_empty() && text.chars().all(char::is_alphabetic);
    let mut next = after.strip_prefix(' ').unwrap_or_default().split(' ');
    before.ends_with("].") && is_word(value) && next.next().is_some_and(is_word) && next.next().is_some_and(is_word)
}

/// Reports whether a token is a piece of text or a count: `eos_token: </s>`, `next token: the`.
fn is_piece_of_text(before: &str, name: &str, value: &str) -> bool {
    let number = value.len() <= 7 && value.parse::<f64>().is_ok();
    let marked = value.starts_with('<') || value.starts_with("[PAD") || value.starts_with('▁');
    let joined = |letter: char| letter.is_ascii_alphanumeric() || "_-./ ".contains(letter);
    let lead: String = before.chars().rev().take(32).take_while(|letter| joined(*letter)).collect();
    let lead: String = lead.chars().rev().chain(name.chars()).collect();
    let mut words = lead.rsplit(|letter: char| !letter.is_ascii_alphanumeric());
    let word_before = words.nth(1).unwrap_or_default().to_lowercase();
    number || marked || OF_TEXT.contains(&word_before.as_str())
}
