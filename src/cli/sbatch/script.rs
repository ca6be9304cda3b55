//! The script of a Slurm job.

use crate::cli::Failure;
use crate::cli::run::Overrides;
use crate::format::quoted;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The content of a job's script.
pub struct Script {
    /// This program.
    pub program: PathBuf,
    /// The directory of the job.
    pub directory: PathBuf,
    /// The run file.
    pub config: PathBuf,
    /// The runs directory.
    pub runs: PathBuf,
    /// The name of the job.
    pub name: String,
    /// The time limit.
    pub time: Option<String>,
    /// The partition.
    pub partition: Option<String>,
    /// The number of nodes.
    pub nodes: u32,
    /// The number of GPUs.
    pub gpus: Option<String>,
    /// Seconds from the signal to the time limit.
    pub lead_s: u32,
    /// Changes to the run file.
    pub overrides: Overrides,
    /// Further options of sbatch.
    pub more: Vec<String>,
}

const SIGNALS: &str = r#"# Slurm signals this shell: SIGUSR1 ahead of the time limit, SIGTERM at the limit, for scancel, a preemption or
# `scontrol requeue`. On each of them downshift saves and ends; a SIGTERM while it saves does not end it sooner.
# Only after the notice is it up to this script to go back to the queue.
notice='' end='' signalled=''
trap 'notice=yes; signalled=yes; kill -USR1 "$downshift" 2>/dev/null' USR1
trap 'end=yes; signalled=yes; kill -TERM "$downshift" 2>/dev/null' TERM
"#;

const WAIT: &str = r#"downshift=$!

# A signal interrupts `wait`, so it is repeated until the code is downshift's own.
while :; do
  signalled=
  wait "$downshift"
  code=$?
  [ "$signalled" ] || break
done

# A cancelled job must not come back. While it ends, Slurm shows the same state as at the time limit, for another reason.
at_limit() { [[ "$(scontrol show job -o "$SLURM_JOB_ID")" == *" Reason=TimeLimit "* ]]; }

# 75: interrupted, with its last step saved. Every other end is final: finished (0), stopped by you (3), failed.
if [ "$code" = 75 ] && [ "$notice" ] && { [ ! "$end" ] || at_limit; }; then
  echo "back to the queue: scontrol requeue $SLURM_JOB_ID"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"#;

impl Script {
    /// Renders the script.
    ///
    /// # Errors
    /// Returns an error for a value that cannot stand in a line of a script.
    pub fn render(&self) -> Result<String, Failure> {
        let mut text =
            String::from("#!/bin/bash\n# Keeps a training run across requeues. Written by `downshift sbatch`.\n");
        self.write_options(&mut text)?;
        // `%` begins a pattern of Slurm in the name of the log, not here.
        let (program, directory, runs) = (word(&self.program)?, word(&self.directory)?, word(&self.runs)?);
        let _ = write!(text, "\ncd {directory} || exit\n\n{SIGNALS}\n");
        text.push_str("# A requeued job keeps its id, so it continues the run in this folder.\n");
        text.push_str("# Slurm decides who shares a node: --another accepts other runs on it.\n");
        let _ = write!(text, "{program} run {}", word(&self.config)?);
        let _ = write!(text, " --job {}-\"$SLURM_JOB_ID\" --runs-dir {runs} --another", self.name);
        for (path, value) in &self.overrides.set {
            let _ = write!(text, " --set {}", one_line(&quoted(&format!("{path}={value}")))?);
        }
        if self.overrides.device != "auto" {
            let _ = write!(text, " --device {}", one_line(&quoted(&self.overrides.device))?);
        }
        let _ = write!(text, " &\n{WAIT}");
        Ok(text)
    }

    fn write_options(&self, text: &mut String) -> Result<(), Failure> {
        let mut option = |name: &str, value: &str| -> Result<(), Failure> {
            let _ = writeln!(text, "#SBATCH --{name}={}", argument(value)?);
            Ok(())
        };
        option("job-name", &self.name)?;
        option("nodes", &self.nodes.to_string())?;
        // downshift starts a step on each other node by itself.
        option("ntasks-per-node", "1")?;
        for (name, value) in [("time", &self.time), ("partition", &self.partition), ("gpus", &self.gpus)] {
            value.as_ref().map_or(Ok(()), |value| option(name, value))?;
        }
        let log = self.runs.join(&self.name).display().to_string().replace('%', "%%");
        option("output", &format!("{log}-%j.log"))?;
        text.push_str("# A requeued job adds to its log.\n#SBATCH --open-mode=append\n");
        text.push_str(
            "# Slurm may start it again: after a failed node, a preemption, its time limit.\n#SBATCH --requeue\n",
        );
        let lead = self.lead_s;
        let _ = writeln!(text, "# SIGUSR1 to this shell {lead} s before the time limit, or up to 60 s earlier.");
        let _ = writeln!(text, "#SBATCH --signal=B:USR1@{lead}");
        for line in option_lines(&self.more)? {
            let _ = writeln!(text, "#SBATCH {line}");
        }
        Ok(())
    }
}

/// Returns the lines of further options: each begins with a dash, and a value may follow as a word of its own.
fn option_lines(words: &[String]) -> Result<Vec<String>, Failure> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match (word.strip_prefix('-'), lines.last_mut()) {
            (Some(_), _) => lines.push(argument(word)?),
            (None, Some(line)) => {
                line.push(' ');
                line.push_str(&argument(word)?);
            }
            (None, None) => {
                return Err(Failure::new(
                    2,
                    format!("-- {word}: an option of sbatch begins with a dash, such as --mem=32G"),
                ));
            }
        }
    }
    Ok(lines)
}

/// Quotes a value as sbatch reads its lines: in double quotation marks, where a backslash makes the next letter plain.
/// Nothing is expanded there, and outside of them `#` would begin a comment.
fn argument(value: &str) -> Result<String, Failure> {
    let value = one_line(value)?;
    let plain = |letter: char| letter.is_alphanumeric() || "_-./+,:@%=[]*".contains(letter);
    if value.chars().all(plain) {
        return Ok(value.to_owned());
    }
    Ok(format!("\"{}\"", value.replace('\\', r"\\").replace('"', "\\\"")))
}

/// Quotes a path for the shell.
fn word(path: &Path) -> Result<String, Failure> {
    let text =
        path.to_str().ok_or_else(|| Failure::new(2, format!("{}: its path is not UTF-8 text", path.display())))?;
    Ok(quoted(one_line(text)?))
}

/// Refuses a line break, which would end an option or begin a command.
fn one_line(text: &str) -> Result<&str, Failure> {
    if text.contains(['\n', '\r', '\0']) {
        return Err(Failure::new(2, format!("{text:?} has a line break, which a job script cannot hold")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{argument, option_lines};

    fn lines(words: &[&str]) -> Result<Vec<String>, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        option_lines(&words).map_err(|failure| failure.message)
    }

    #[test]
    fn each_further_option_becomes_a_line() {
        assert_eq!(lines(&[]), Ok(vec![]));
        assert_eq!(
            lines(&["--mem=32G", "-A", "vision", "--exclusive"]).unwrap(),
            ["--mem=32G", "-A vision", "--exclusive"]
        );
        assert!(lines(&["vision"]).unwrap_err().contains("-- vision: an option of sbatch begins with a dash"));
        assert!(lines(&["--comment=a\nrm -rf"]).unwrap_err().contains("line break"));
    }

    /// As Slurm 22.05 reads them: `#` outside of quotation marks begins a comment, a backslash makes the next letter plain.
    #[test]
    fn a_value_is_quoted_as_sbatch_reads_it() {
        let quoted = [
            ("a100:2", "a100:2"),
            ("a b", "\"a b\""),
            ("a#b", "\"a#b\""),
            ("a\"b\\c", "\"a\\\"b\\\\c\""),
            ("it's", "\"it's\""),
        ];
        for (value, line) in quoted {
            assert_eq!(argument(value).ok().unwrap(), line);
        }
    }
}
