//! A run file is code: shows once what it loads, contacts and discloses, and asks for approval. The
//! answer applies to exactly that list and to the current contents of its libraries.

mod approvals;

use super::{Failure, confirm, say};
use crate::config::run::Run;
use crate::config::trust::{Access, Grants, is_system_library};
use crate::protocol::exit_code::CONFIG;
use crate::store::lock::no_link;
use approvals::Approvals;
use clap::Args;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The option of every command that executes a run file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub struct Trust {
    /// Approve the command, libraries, addresses and secrets that the run file names, without asking
    #[arg(long)]
    trust: bool,
}

/// Returns once everything the run names is approved: earlier, on the command line, or now.
pub fn require_approval(run: &Run, Trust { trust }: Trust) -> Result<(), Failure> {
    let grants = Grants::from_run(run);
    if grants.is_empty() {
        return Ok(());
    }
    let (approvals, digest) = (Approvals::of_user(), digest(&grants));
    match approvals.contains(&digest) {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(error) => say(&error.to_string()),
    }
    let list = format!("{} needs your approval for:\n{}", run.name, grants.lines().join("\n"));
    if trust {
        say(&format!("{list}\napproved by --trust"));
    } else if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        let way_out = "nothing was started; if you want this, repeat the command in a terminal and answer y, or add --trust: \
                       an approval holds for later runs too, until the list changes";
        return Err(Failure::new(CONFIG, format!("{list}\n{way_out}")));
    } else if !ask_user(&list)? {
        return Err(Failure::new(CONFIG, "not approved; nothing was started"));
    }
    if let Err(error) = approvals.add(&digest, &run.name) {
        say(&format!("{error}; you will be asked again"));
    }
    Ok(())
}

/// Stores an approval that the user gave by typing the command.
pub fn approve_typed(run: &Run) {
    let grants = Grants::from_run(run);
    if !grants.is_empty()
        && let Err(error) = Approvals::of_user().add_once(&digest(&grants), &run.name)
    {
        say(&format!("{error}; `resume` will ask for approval"));
    }
}

/// Reports whether the user has approved this list before.
pub fn is_approved(grants: &Grants) -> bool {
    Approvals::of_user().contains(&digest(grants)).unwrap_or(false)
}

/// Shows the list on the terminal and reads the answer.
fn ask_user(list: &str) -> io::Result<bool> {
    say(list);
    say("An approval holds for later runs too, until this list changes. What a script does is not checked.");
    confirm("Approve it? y approves; any other answer refuses, and nothing starts")
}

/// Hashes the list and the contents of its libraries. System libraries change with every driver update,
/// made by the administrator: for them the path is enough.
fn digest(grants: &Grants) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &[u8]| {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    };
    add(b"downshift trust 1");
    for grant in grants {
        for part in [grant.access.word(), &grant.access.subject(), &grant.key] {
            add(part.as_bytes());
        }
        if let Access::Library(path) = &grant.access {
            add(library_hash(path).as_bytes());
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// Hashes a library's bytes.
fn library_hash(path: &Path) -> String {
    let hash = |path: &Path| -> io::Result<String> {
        let path = path.canonicalize()?;
        if is_system_library(&path) {
            return Ok("of the system".to_owned());
        }
        let file = File::options().read(true).custom_flags(no_link()).open(path)?;
        if !file.metadata()?.is_file() {
            return Ok("no file".to_owned());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file)?;
        Ok(hasher.finalize().to_hex().to_string())
    };
    hash(path).unwrap_or_else(|_| "unreadable".to_owned())
}

#[cfg(test)]
mod tests {
    use super::digest;
    use crate::config::run::{AsWritten, Run, Source};
    use crate::config::trust::Grants;
    use std::fs;
    use std::path::Path;

    fn grants(base: &Path, lr: &str, more: &str) -> Grants {
        let head = "task: t\ntraining: { steps: 4, micro_batch: 8 }";
        let text = format!("name: x\n{head}\noptimizer: {{ lr: {lr} }}\nprobe: {{ nvml: x.so }}\n{more}");
        let source = Source { file: "x.yaml", text: &text, base, overrides: &[] };
        Grants::from_run(&Run::read(&source, &AsWritten).unwrap())
    }

    #[test]
    fn an_approval_covers_only_the_list_and_the_libraries() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("x.so");
        let hook =
            |token: &str| format!("notify: {{ webhooks: [{{ kind: json, url: 'https://x/y', token: '{token}' }}] }}\n");
        let missing = digest(&grants(dir.path(), "0.1", &hook("env:A")));
        fs::write(&library, "one").unwrap();
        let first = digest(&grants(dir.path(), "0.1", &hook("env:A")));
        assert_ne!(first, missing);
        assert_eq!(first, digest(&grants(dir.path(), "0.2", &hook("env:A"))), "a learning rate asks for nothing");
        assert_ne!(first, digest(&grants(dir.path(), "0.1", &hook("env:B"))));
        assert_ne!(first, digest(&grants(dir.path(), "0.1", &hook("file:/A"))));
        assert_ne!(first, digest(&grants(dir.path(), "0.1", "")));
        fs::write(&library, "two").unwrap();
        assert_ne!(first, digest(&grants(dir.path(), "0.1", &hook("env:A"))), "another library under the same name");
    }
}
