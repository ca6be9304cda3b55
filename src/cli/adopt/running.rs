//! A training that already runs, and the run file that was written for it.

use crate::cli::Failure;
use crate::cli::init::script;
use crate::config::command::first_launch;
use crate::config::command::invocation::{Target, find_script};
use crate::config::run::Run;
use crate::config::yaml;
use crate::format::quoted;
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use serde_json::Value;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// A process, as the system shows it.
pub struct Running {
    pub pid: u32,
    /// Its command line.
    pub words: Vec<String>,
    /// Its folder.
    pub directory: PathBuf,
}

impl Running {
    /// Reads the command line and the folder of a process.
    pub fn of(pid: u32) -> Result<Self, Failure> {
        let words = read_words(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default());
        let directory = fs::read_link(format!("/proc/{pid}/cwd")).map_err(|error| {
            let why = format!("the folder of process {pid} cannot be read: {error}; adopt processes of your own user");
            Failure::new(1, why)
        })?;
        if words.is_empty() {
            return Err(Failure::new(2, format!("process {pid} has no command line, so it is not a training")));
        }
        Ok(Self { pid, words, directory })
    }

    /// Finds the run file whose command starts the same script: in the folder of the process, or in the current one.
    ///
    /// # Errors
    /// Returns an error if there are several.
    pub fn find_run_file(&self) -> Result<Option<PathBuf>, Failure> {
        let here = env::current_dir().ok().filter(|here| *here != self.directory);
        match (self.find_run_file_in(&self.directory)?, here) {
            (None, Some(here)) => self.find_run_file_in(&here),
            (found, _) => Ok(found),
        }
    }

    fn find_run_file_in(&self, folder: &Path) -> Result<Option<PathBuf>, Failure> {
        let Some(own) = find_target(&self.words, &self.directory) else { return Ok(None) };
        let is_mine = |path: &PathBuf| {
            let written = read_command(path);
            let other = written.and_then(|(words, there)| Some((find_target(&words, &there)?, there)));
            other.is_some_and(|(target, there)| own.is_same(&self.directory, &target, &there))
        };
        let found: Vec<PathBuf> = run_files(folder).into_iter().filter(is_mine).collect();
        match found.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            several => Err(self.refuse_several(several)),
        }
    }

    fn refuse_several(&self, files: &[PathBuf]) -> Failure {
        let names: Vec<String> = files.iter().map(|file| text::path(file)).collect();
        let (names, pid) = (names.join(" and "), self.pid);
        Failure::new(2, format!("{names} start the script of process {pid}; name the one to keep it by, before --pid"))
    }

    /// Says that its arguments are others than those of the run's first rung, if they are.
    pub fn describe_difference(&self, run: &Run) -> Option<String> {
        let launch = first_launch(run, run.first_rung(), 1)?;
        let pid = self.pid;
        let rung = &run.rungs[run.first_rung()].name;
        let (own, other) = (find_script(&self.words), find_script(&launch.argv));
        let is_same = own
            .as_ref()
            .zip(other.as_ref())
            .is_none_or(|(own, other)| own.target.is_same(&self.directory, &other.target, &launch.directory));
        if !is_same {
            return Some(format!("process {pid} runs another script than the command of rung {rung}"));
        }
        let (own, other) = (&self.words[own?.arguments..], &launch.argv[other?.arguments..]);
        let (more, fewer) = (missing_in(other, own), missing_in(own, other));
        let (holder, words) = match (more.is_empty(), fewer.is_empty()) {
            (true, true) => return None,
            (false, _) => (format!("process {pid}"), more),
            (true, false) => (format!("rung {rung}"), fewer),
        };
        Some(format!("only {holder} has {}", text::escape_line(&words.join(", "))))
    }

    /// Says how to get a run file for it.
    pub fn advise_run_file(&self) -> String {
        let words: Vec<String> = self.words.iter().map(|word| quoted(word)).collect();
        format!(
            "no run file in {} starts this script, so nothing starts it again when it dies; `downshift init -- {}`, typed there, \
             proposes one",
            text::path(&self.directory),
            text::escape_line(&words.join(" "))
        )
    }
}

/// Reads the words of a command line as the system stores it: each ends in a zero byte, and a word may be empty. A program
/// that writes a title in its place fills up with zero bytes.
fn read_words(line: &[u8]) -> Vec<String> {
    let word = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let filled = line.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    match &line[..filled] {
        [] => Vec::new(),
        title if !title.contains(&0) => vec![word(title)],
        _ => line.strip_suffix(&[0]).unwrap_or(line).split(|byte| *byte == 0).map(word).collect(),
    }
}

/// Returns the words that another list lacks, each with the option before it.
fn missing_in(list: &[String], words: &[String]) -> Vec<String> {
    let lacks = |word: &String| !list.contains(word);
    let option = |at: usize| words[..at].last().filter(|before| before.starts_with('-') && !lacks(before));
    let told = words.iter().enumerate().filter(|(_, word)| lacks(word));
    told.map(|(at, word)| match option(at) {
        Some(option) if !word.starts_with('-') => format!("`{option} {word}`"),
        _ => format!("`{word}`"),
    })
    .collect()
}

/// Returns the script of a command, also the one that a shell script starts.
fn find_target(words: &[String], folder: &Path) -> Option<Target> {
    let read = script::find(words, folder).ok().map(|found| found.invocation.target);
    read.or_else(|| find_script(words).map(|invocation| invocation.target))
}

fn run_files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    let mut files: Vec<PathBuf> = paths.filter(|path| is_yaml(path) && path.is_file()).collect();
    files.sort();
    files
}

/// Returns the command of a run file, and the folder that it starts in; none for any other file. Mistakes elsewhere in it
/// are reported when it is loaded.
fn read_command(path: &Path) -> Option<(Vec<String>, PathBuf)> {
    let (tree, _) = yaml::parse(&file::read_text(path, Limit::Handwritten).ok()?).ok()?;
    let words = tree.get("command")?.as_array()?.iter().map(|word| word.as_str().map(str::to_owned));
    let folder = path.parent()?.join(tree.get("directory").and_then(Value::as_str).unwrap_or_default());
    Some((words.collect::<Option<_>>()?, folder))
}

#[cfg(test)]
mod tests {
    use super::{Running, missing_in, read_words};
    use std::fs;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_run_file_of_the_same_script_is_found_and_two_are_not_chosen_from() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("train.py", "print('step 1 loss 2')\n");
        write("other.py", "print('step 1 loss 2')\n");
        write("deepspeed.yaml", "zero_optimization: { stage: 2 }\n");
        write("other.yaml", "task: command\ncommand: [python, other.py]\n");
        let line = words("/usr/bin/python3 train.py --lr 1");
        let running = Running { pid: 7, words: line, directory: folder.path().to_owned() };
        assert_eq!(running.find_run_file().unwrap(), None);
        write("mine.yaml", "task: command\ncommand: [python, ./train.py, \"--lr={optimizer.lr}\"]\n");
        assert_eq!(running.find_run_file().unwrap(), Some(folder.path().join("mine.yaml")));
        write("second.yml", "task: command\ncommand: [torchrun, train.py]\n");
        let several = running.find_run_file().unwrap_err();
        assert!(
            several.message.contains("mine.yaml and ") && several.message.contains("second.yml"),
            "{}",
            several.message
        );
    }

    #[test]
    fn a_run_file_in_the_current_folder_is_not_that_of_a_program_elsewhere() {
        let (theirs, mine) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |text: &str| fs::write(mine.path().join("mine.yaml"), text).unwrap();
        let line = words("bash train.sh");
        let running = Running { pid: 7, words: line, directory: theirs.path().to_owned() };
        write("task: command\ncommand: [bash, train.sh]\n");
        assert_eq!(running.find_run_file_in(mine.path()).unwrap(), None, "its own train.sh");
        write(&format!("task: command\ncommand: [bash, train.sh]\ndirectory: {}\n", theirs.path().display()));
        assert_eq!(running.find_run_file_in(mine.path()).unwrap(), Some(mine.path().join("mine.yaml")));
    }

    #[test]
    fn an_empty_word_of_a_command_line_stays_and_a_title_is_one_word() {
        assert_eq!(read_words(b"train\0--name\0\0--lr\x001\0"), ["train", "--name", "", "--lr", "1"]);
        assert_eq!(read_words(b"train\0--name\0\0"), ["train", "--name", ""]);
        assert_eq!(read_words(b"train: step 7\0\0\0\0"), ["train: step 7"]);
        assert_eq!((read_words(b""), read_words(b"\0\0")), (vec![], vec![]), "a kernel thread");
    }

    #[test]
    fn other_arguments_are_named_with_their_option() {
        let (own, other) = (words("--lr 2 --batch=8 --fp16"), words("--lr 1 --batch=8"));
        assert_eq!(missing_in(&other, &own), ["`--lr 2`", "`--fp16`"]);
        assert_eq!(missing_in(&own, &other), ["`--lr 1`"]);
    }
}
