//! The nodes of the Slurm job that this process runs in.

use std::io;
use std::process::{Command, Stdio};

/// The nodes of a run: this one, then the others of its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobNodes {
    names: Vec<String>,
}

/// Reason why the nodes of a job cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodesError {
    /// Slurm did not list them.
    #[error("the job has {nodes} nodes, and `scontrol show hostnames` does not list them: {source}")]
    NotListed {
        /// Their number.
        nodes: u32,
        /// The reason.
        source: io::Error,
    },
    /// Slurm listed another number of nodes.
    #[error("the job has {nodes} nodes, but its list names {listed}")]
    Other {
        /// Their number.
        nodes: u32,
        /// The number in the list.
        listed: usize,
    },
    /// This process runs elsewhere.
    #[error("the job has {nodes} nodes, and this is not the first of them, {first}; start it in the batch script")]
    NotFirst {
        /// Their number.
        nodes: u32,
        /// The first one.
        first: String,
    },
}

impl JobNodes {
    /// Returns this machine alone.
    #[must_use]
    pub fn alone() -> Self {
        Self { names: vec!["127.0.0.1".to_owned()] }
    }

    /// Finds the nodes of the job of this process: this machine alone, unless the job has several nodes.
    ///
    /// # Errors
    /// Returns an error when the job has several nodes that cannot be used from here.
    pub fn find() -> Result<Self, NodesError> {
        Self::decide(|name| std::env::var(name).ok(), expand)
    }

    fn decide(
        variable: impl Fn(&str) -> Option<String>,
        expand: impl FnOnce(&str) -> io::Result<Vec<String>>,
    ) -> Result<Self, NodesError> {
        let nodes: u32 = variable("SLURM_JOB_NUM_NODES").and_then(|count| count.parse().ok()).unwrap_or(1);
        if nodes <= 1 {
            return Ok(Self::alone());
        }
        let names = expand(&variable("SLURM_JOB_NODELIST").unwrap_or_default());
        let names = names.map_err(|source| NodesError::NotListed { nodes, source })?;
        if names.len() != nodes as usize {
            return Err(NodesError::Other { nodes, listed: names.len() });
        }
        if variable("SLURMD_NODENAME").as_ref() != names.first() {
            return Err(NodesError::NotFirst { nodes, first: names.into_iter().next().unwrap_or_default() });
        }
        Ok(Self { names })
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.names.len()).unwrap_or(u32::MAX)
    }

    /// Returns the name of the first node.
    #[must_use]
    pub fn head(&self) -> &str {
        &self.names[0]
    }

    /// Returns the numbers and names of the other nodes.
    pub fn others(&self) -> impl Iterator<Item = (u32, &str)> {
        (0..).zip(self.names.iter().map(String::as_str)).skip(1)
    }
}

/// Lists the nodes in Slurm's short form: `gpu[1-2]` → gpu1, gpu2.
fn expand(list: &str) -> io::Result<Vec<String>> {
    let mut command = Command::new("scontrol");
    command.args(["show", "hostnames", list]).env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::{JobNodes, NodesError};

    fn decide(variables: &[(&str, &str)], listed: &[&str]) -> Result<JobNodes, NodesError> {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        JobNodes::decide(variable, |_| Ok(listed.iter().map(|name| (*name).to_owned()).collect()))
    }

    #[test]
    fn a_job_of_one_node_is_this_machine_alone() {
        for variables in [&[][..], &[("SLURM_JOB_NUM_NODES", "1")], &[("SLURM_JOB_NUM_NODES", "x")]] {
            assert_eq!(decide(variables, &["n1", "n2"]).unwrap(), JobNodes::alone());
        }
    }

    #[test]
    fn the_first_node_keeps_the_others() {
        let job = |here| [("SLURM_JOB_NUM_NODES", "2"), ("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURMD_NODENAME", here)];
        let nodes = decide(&job("n1"), &["n1", "n2"]).unwrap();
        assert_eq!((nodes.count(), nodes.head(), nodes.others().collect::<Vec<_>>()), (2, "n1", vec![(1, "n2")]));
        let error = decide(&job("n2"), &["n1", "n2"]).unwrap_err();
        assert!(error.to_string().contains("not the first of them, n1; start it in the batch script"), "{error}");
        assert!(matches!(decide(&job("n1"), &["n1"]), Err(NodesError::Other { listed: 1, .. })));
    }
}
