//! A run file is code: lists everything it loads, contacts or discloses. Computed from the resolved run
//! alone; the command line shows the list, asks for approval, and remembers the answer.

mod command;

use super::integrations::{TELEGRAM, Text, Webhook};
use super::run::Run;
use std::path::{Path, PathBuf};
use std::slice;

/// Longest subject that the keys are aligned to.
const MAX_ALIGNED: usize = 80;

/// A resource outside its data that a run file accesses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Loads this library into a process.
    Library(PathBuf),
    /// Sends messages to this address.
    Address(String),
    /// Reads this environment variable and sends its value, or sends messages to the address in it.
    Environment(String),
    /// Reads this file and sends its text, or sends messages to the address in it.
    File(PathBuf),
    /// Starts a program with these arguments.
    Command(String),
    /// Starts it in this folder.
    Directory(PathBuf),
    /// Gives it this variable: `NAME=text`.
    Variable(String),
    /// Gives it this text: `knob=text`.
    Knob(String),
    /// Writes it this file: `name: text`.
    Written(String),
    /// Deletes files that match this pattern.
    Deletion(String),
}

impl Access {
    /// Returns the kind in one word.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Library(_) => "library",
            Self::Address(_) => "address",
            Self::Environment(_) => "environment",
            Self::File(_) => "file",
            Self::Command(_) => "command",
            Self::Directory(_) => "directory",
            Self::Variable(_) => "variable",
            Self::Knob(_) => "value",
            Self::Written(_) => "writes",
            Self::Deletion(_) => "deletes",
        }
    }

    /// Returns the path, address or name.
    #[must_use]
    pub fn subject(&self) -> String {
        match self {
            Self::Library(path) | Self::File(path) | Self::Directory(path) => path.display().to_string(),
            Self::Address(text)
            | Self::Environment(text)
            | Self::Command(text)
            | Self::Variable(text)
            | Self::Knob(text)
            | Self::Written(text)
            | Self::Deletion(text) => text.clone(),
        }
    }
}

/// An access, and the key of the run file that requests it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The access.
    pub access: Access,
    /// The dotted path of the key.
    pub key: String,
}

/// All accesses that need approval before a run file may run. Empty for a file that only trains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants(Vec<Grant>);

impl Grants {
    /// Collects the grants of a run.
    #[must_use]
    pub fn from_run(run: &Run) -> Self {
        let library =
            run.probe.nvml.iter().map(|path| new_grant(Access::Library(path.clone()), "probe.nvml".to_owned()));
        let hooks = run.notify.iter().flat_map(|notify| &notify.webhooks).enumerate();
        let hooks = hooks.flat_map(|(index, hook)| webhook_grants(index, hook));
        let command = run.command.iter().flat_map(|spec| command::grants(spec, run));
        let quality = run.quality.iter().flat_map(command::quality_grants);
        Self(command.chain(quality).chain(library).chain(hooks).collect())
    }

    /// Reports whether nothing needs approval.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a hash of the list: a run file with another one was not approved.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for grant in self {
            for part in [grant.access.word(), &grant.access.subject(), &grant.key] {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part.as_bytes());
            }
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Iterates over the grants in file order.
    pub fn iter(&self) -> slice::Iter<'_, Grant> {
        self.0.iter()
    }

    /// Formats one aligned line per grant. Escapes control and formatting characters, so that the list
    /// cannot disguise itself.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let subjects: Vec<String> = self.iter().map(|grant| escape_text(&grant.access.subject())).collect();
        let widths = subjects.iter().map(|subject| subject.chars().count());
        // The text of a file may be long; it does not push the keys of the others away.
        let width = widths.filter(|width| *width <= MAX_ALIGNED).max().unwrap_or(0);
        let line = |(grant, subject): (&Grant, &String)| {
            let word = grant.access.word();
            // A key that says no more than the row before it is left out.
            let repeats =
                grant.key == word || subject.strip_prefix(&grant.key).is_some_and(|rest| rest.starts_with('='));
            if repeats {
                return format!("  {word:<12} {subject}");
            }
            format!("  {word:<12} {subject:<width$}  {}", grant.key)
        };
        self.iter().zip(&subjects).map(line).collect()
    }
}

impl<'a> IntoIterator for &'a Grants {
    type Item = &'a Grant;
    type IntoIter = slice::Iter<'a, Grant>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

fn new_grant(access: Access, key: String) -> Grant {
    Grant { access, key }
}

/// Returns the webhook's address and the secrets sent to it.
fn webhook_grants(index: usize, hook: &Webhook) -> Vec<Grant> {
    let key = |name: &str| format!("notify.webhooks[{index}].{name}");
    let mut grants = match &hook.url {
        Some(text) => vec![new_grant(disclosed_access(text), key("url"))],
        None => vec![new_grant(Access::Address(TELEGRAM.to_owned()), key("kind"))],
    };
    grants.extend(hook.token.iter().map(|text| new_grant(disclosed_access(text), key("token"))));
    grants.extend(hook.chat.iter().map(|chat| new_grant(Access::Address(format!("chat {chat}")), key("chat"))));
    grants
}

fn disclosed_access(text: &Text) -> Access {
    match text {
        Text::Plain(text) => Access::Address(text.clone()),
        Text::Env(name) => Access::Environment(name.clone()),
        Text::File(path) => Access::File(path.clone()),
    }
}

/// Reports whether a library belongs to the system, where only an administrator can replace it.
#[must_use]
pub fn is_system_library(library: &Path) -> bool {
    ["/usr", "/lib", "/lib64", "/nix/store", "/run/opengl-driver"].iter().any(|folder| library.starts_with(folder))
}

fn escape_text(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\'' | '"' | '\\' => shown.push(letter),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::{Access, Grants, is_system_library};
    use crate::config::run::{AsWritten, Run, Source};
    use std::path::Path;

    fn grants(more: &str) -> Grants {
        let text =
            format!("name: x\ntask: t\ntraining: {{ steps: 4, micro_batch: 8 }}\noptimizer: {{ lr: 0.1 }}\n{more}");
        let source = Source { file: "x.yaml", text: &text, base: Path::new("/project"), overrides: &[] };
        Grants::from_run(&Run::read(&source, &AsWritten).unwrap())
    }

    #[test]
    fn every_library_address_and_secret_is_listed_with_its_key() {
        let more = "probe: { nvml: ./x.so }\nnotify:\n  webhooks:\n    - { kind: ntfy, url: 'https://ntfy.sh/t', token: 'env:T' }\n    - { kind: telegram, token: 'file:keys/tg', chat: '12' }\n    - { kind: discord, url: 'env:D' }\n    - { kind: json, url: 'file:~/hook' }\n";
        let listed = grants(more);
        let listed: Vec<(&str, String, &str)> =
            listed.iter().map(|grant| (grant.access.word(), grant.access.subject(), grant.key.as_str())).collect();
        let expected = [
            ("library", "/project/./x.so", "probe.nvml"),
            ("address", "https://ntfy.sh/t", "notify.webhooks[0].url"),
            ("environment", "T", "notify.webhooks[0].token"),
            ("address", "https://api.telegram.org", "notify.webhooks[1].kind"),
            ("file", "/project/keys/tg", "notify.webhooks[1].token"),
            ("address", "chat 12", "notify.webhooks[1].chat"),
            ("environment", "D", "notify.webhooks[2].url"),
            ("file", "~/hook", "notify.webhooks[3].url"),
        ];
        let expected: Vec<_> = expected.iter().map(|(word, what, key)| (*word, (*what).to_owned(), *key)).collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn a_file_that_only_trains_needs_no_approval() {
        assert!(grants("").is_empty());
        assert!(grants("notify: { bell: false, desktop: true }\nprobe: {}\n").is_empty());
    }

    #[test]
    fn a_command_is_listed_with_everything_that_it_is_given_on_any_rung() {
        let text = "name: x\ntask: command\ncommand: [python, my train.py, '--batch={training.micro_batch}', '{knobs.mode}']\n\
            directory: sub\nenvironment: { A: one }\nfiles: { c.json: '{knobs}' }\ntraining: { micro_batch: 4 }\n\
            knobs: { mode: fast, size: 3 }\nresume: { arguments: ['--from={checkpoint}'], environment: { R: '1' } }\n\
            checkpoints: { match: 'out/c-*', keep_last: 2 }\nladder:\n\
            \x20 - { name: low, set: { training.micro_batch: 2, environment.A: two } }\n\
            \x20 - { name: slow, set: { knobs.mode: slow } }\n";
        let source = Source { file: "x.yaml", text, base: Path::new("/project"), overrides: &[] };
        let listed = Grants::from_run(&Run::read(&source, &AsWritten).unwrap());
        let listed: Vec<String> = listed
            .iter()
            .map(|grant| format!("{} | {} | {}", grant.access.word(), grant.access.subject(), grant.key))
            .collect();
        let expected = [
            "command | python 'my train.py' '--batch={training.micro_batch}' '{knobs.mode}' | command",
            "command | … '--from={checkpoint}' | resume.arguments",
            "directory | /project/sub | directory",
            "variable | A=one | environment.A",
            "value | knobs.mode=fast | knobs.mode",
            "variable | A=two | ladder[0].set.environment.A",
            "value | knobs.mode=slow | ladder[1].set.knobs.mode",
            "variable | R=1 | resume.environment.R",
            "writes | c.json: {knobs} | files.c.json",
            "deletes | out/c-* | checkpoints.keep_last",
        ];
        assert_eq!(listed, expected);
    }

    #[test]
    fn a_command_that_measures_quality_is_listed_and_metrics_of_the_task_are_not() {
        assert!(grants("quality: { every: 5 steps, metrics: [calibration] }\n").is_empty());
        let listed =
            grants("quality: { every: 5 steps, command: [python, score it.py, '{checkpoint}'], directory: s }\n");
        assert_eq!(
            listed.lines(),
            [
                "  command      python 'score it.py' '{checkpoint}'  quality.command",
                "  directory    /project/s                           quality.directory",
            ]
        );
    }

    #[test]
    fn the_list_cannot_be_made_to_read_as_something_else() {
        let more = "notify: { webhooks: [{ kind: json, url: \"https://x/\\r\\e[2K\\u202egpj\", token: 'env:A' }] }\n";
        let lines = grants(more).lines().join("\n");
        assert!(!lines.contains(['\r', '\u{1b}', '\u{202e}']), "{lines:?}");
        assert!(lines.contains(r"https://x/\r\u{1b}[2K\u{202e}gpj"), "{lines}");
    }

    #[test]
    fn a_library_beside_the_run_file_is_not_the_systems() {
        assert!(is_system_library(Path::new("/usr/lib/wsl/lib/libnvidia-ml.so.1")));
        for path in ["/home/me/usr/lib/x.so", "/usrx/x.so", "/opt/x.so", "x.so"] {
            assert!(!is_system_library(Path::new(path)), "{path}");
        }
        assert_eq!(Access::Library("/x".into()).word(), "library");
    }
}
