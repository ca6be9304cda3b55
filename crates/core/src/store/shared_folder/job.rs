//! The Slurm job that a keeper belongs to, and whether Slurm knows that it has ended.

use crate::untrusted::child::wait_within;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit for an answer of Slurm.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer that is read.
const LONGEST: u64 = 1 << 16;
/// States after which no process of a job's start is left. A queued job was requeued: its earlier start is over.
const ENDED: [&str; 14] = [
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PENDING",
    "PREEMPTED",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REVOKED",
    "SPECIAL_EXIT",
    "TIMEOUT",
];

/// A job of Slurm, and how often it was started again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// `SLURM_JOB_ID`.
    pub id: String,
    /// `SLURM_CLUSTER_NAME`; ids are unique in a cluster only.
    pub cluster: String,
    /// `SLURM_RESTART_COUNT`.
    pub restarts: u64,
}

/// Slurm's word on a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// It has ended, in this state.
    Ended(String),
    /// It may have processes, in this state.
    Lives(String),
    /// Slurm cannot be asked, or is another cluster's.
    Unknown,
}

impl Job {
    /// Returns the job of this process.
    #[must_use]
    pub fn own(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let id = variable("SLURM_JOB_ID").filter(|id| is_id(id))?;
        let cluster = variable("SLURM_CLUSTER_NAME").unwrap_or_default();
        let restarts = variable("SLURM_RESTART_COUNT").and_then(|count| count.parse().ok()).unwrap_or(0);
        Some(Self { id, cluster, restarts })
    }

    /// Reports whether this is a later start of the same job. Slurm starts a job again only when its earlier start is over.
    #[must_use]
    pub fn follows(&self, earlier: &Self) -> bool {
        (&self.id, &self.cluster) == (&earlier.id, &earlier.cluster) && self.restarts > earlier.restarts
    }

    /// Asks Slurm about the job.
    #[must_use]
    pub fn ask_slurm(&self) -> JobState {
        if !is_id(&self.id) {
            return JobState::Unknown;
        }
        let cluster = || ask("scontrol", &["show", "config"]).and_then(|told| cluster_of(&told.out));
        match ask("squeue", &["--noheader", "--states=all", "--format=%T", "--jobs", &self.id]) {
            // Another cluster has another job of this number.
            Some(told) if cluster().as_deref() == Some(self.cluster.as_str()) => judge(&told),
            _ => JobState::Unknown,
        }
    }
}

/// Ids end up on a command line, and the lease that holds them may come from elsewhere.
fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= 20 && id.bytes().all(|byte| byte.is_ascii_digit())
}

/// The output of a program of Slurm.
struct SlurmOutput {
    worked: bool,
    out: String,
    wrong: String,
}

/// Judges the answer of `squeue`: a line for each task of an array. A job that Slurm no longer knows has ended some time ago;
/// an empty answer tells nothing.
fn judge(told: &SlurmOutput) -> JobState {
    if !told.worked {
        let forgotten = told.out.trim().is_empty() && told.wrong.contains("Invalid job id specified");
        return if forgotten { JobState::Ended("forgotten".to_owned()) } else { JobState::Unknown };
    }
    let states = || told.out.lines().map(str::trim).filter(|line| !line.is_empty());
    match (states().find(|state| !ENDED.contains(state)), states().next()) {
        (Some(alive), _) => JobState::Lives(alive.to_owned()),
        (None, Some(ended)) => JobState::Ended(ended.to_owned()),
        (None, None) => JobState::Unknown,
    }
}

/// Returns the name of the cluster in `scontrol show config`.
fn cluster_of(config: &str) -> Option<String> {
    let line = config.lines().find(|line| line.trim_start().starts_with("ClusterName"))?;
    Some(line.split_once('=')?.1.trim().to_owned())
}

/// Returns a program of Slurm that answers alike for every user: variables would filter what it lists, or ask another cluster.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| changes_answers(name)) {
        command.env_remove(name);
    }
    command
}

fn changes_answers(name: &str) -> bool {
    name.starts_with("SQUEUE_") || name.starts_with("SCONTROL_") || name == "SLURM_CLUSTERS"
}

/// Runs a program of Slurm; none if it is missing or does not answer in time.
fn ask(program: &str, words: &[&str]) -> Option<SlurmOutput> {
    let mut command = command(program);
    command.args(words).env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let (out, wrong) = (child.stdout.take()?, child.stderr.take()?);
    let reading = std::thread::spawn(move || (read(out), read(wrong)));
    let status = wait_within(&mut child, PATIENCE).ok()??;
    let (out, wrong) = reading.join().ok()?;
    Some(SlurmOutput { worked: status.success(), out, wrong })
}

fn read(pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = pipe.take(LONGEST).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{Job, JobState, SlurmOutput, changes_answers, cluster_of, judge};

    fn job(restarts: &str) -> Job {
        let variables = [("SLURM_JOB_ID", "7"), ("SLURM_CLUSTER_NAME", "stage"), ("SLURM_RESTART_COUNT", restarts)];
        Job::own(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())).unwrap()
    }

    #[test]
    fn a_later_start_of_the_same_job_follows_an_earlier_one() {
        assert!(job("1").follows(&job("")) && !job("1").follows(&job("1")) && !job("0").follows(&job("1")));
        assert!(!job("1").follows(&Job { cluster: "other".to_owned(), ..job("0") }));
        assert!(!job("1").follows(&Job { id: "8".to_owned(), ..job("0") }));
        assert_eq!(Job::own(|_| None), None);
        assert_eq!(Job::own(|_| Some("7;reboot".to_owned())), None, "an id is a number");
    }

    #[test]
    fn only_a_final_state_is_an_end() {
        let judged = |worked, out: &str, wrong: &str| {
            judge(&SlurmOutput { worked, out: out.to_owned(), wrong: wrong.to_owned() })
        };
        for state in ["COMPLETED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "PENDING"] {
            assert_eq!(judged(true, &format!("{state}\n"), ""), JobState::Ended(state.to_owned()));
        }
        for state in ["RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING", "SIGNALING", "STAGE_OUT", "NEW"] {
            assert_eq!(judged(true, &format!("{state}\n"), ""), JobState::Lives(state.to_owned()));
        }
        let forgotten = JobState::Ended("forgotten".to_owned());
        assert_eq!(judged(false, "", "slurm_load_jobs error: Invalid job id specified\n"), forgotten);
        assert_eq!(judged(true, "", ""), JobState::Unknown, "a filter may hide the job");
        assert_eq!(judged(true, "COMPLETED\nSUSPENDED\n", ""), JobState::Lives("SUSPENDED".to_owned()), "an array");
        assert_eq!(judged(true, "FAILED\nCOMPLETED\n", ""), JobState::Ended("FAILED".to_owned()));
        let unreachable = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)";
        assert_eq!(judged(false, "", unreachable), JobState::Unknown, "silence is no end");
        assert_eq!(judged(false, "COMPLETED\n", unreachable), JobState::Unknown);
    }

    #[test]
    fn the_variables_of_the_user_do_not_change_the_answer() {
        for name in ["SQUEUE_STATES", "SQUEUE_FORMAT", "SCONTROL_ALL", "SLURM_CLUSTERS"] {
            assert!(changes_answers(name), "{name}");
        }
        for name in ["SLURM_CONF", "SLURM_JOB_ID", "PATH"] {
            assert!(!changes_answers(name), "{name}: the programs need it");
        }
    }

    #[test]
    fn the_cluster_is_read_from_the_configuration() {
        let config = "Configuration data as of 2026\nAccountingStorageHost   = x\nClusterName             = stage\n";
        assert_eq!(cluster_of(config).as_deref(), Some("stage"));
        assert_eq!(cluster_of(""), None);
    }
}
