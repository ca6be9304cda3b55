//! The batch job that a run belongs to, for the journal.

/// Describes the Slurm job of this process: its id, how often it was started again, and its nodes.
pub fn describe_job(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let id = variable("SLURM_JOB_ID")?;
    let nodes = variable("SLURM_JOB_NODELIST").map(|nodes| format!(" on {nodes}")).unwrap_or_default();
    let restarts = variable("SLURM_RESTART_COUNT").filter(|count| count != "0");
    let restarts = restarts.map(|count| format!(", restart {count}")).unwrap_or_default();
    Some(format!("Slurm job {id}{restarts}{nodes}"))
}

#[cfg(test)]
mod tests {
    use super::describe_job;

    #[test]
    fn a_job_is_described_as_far_as_slurm_does() {
        let described = |variables: &[(&str, &str)]| {
            describe_job(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(described(&[("SLURM_RESTART_COUNT", "2")]), None);
        assert_eq!(described(&[("SLURM_JOB_ID", "7")]).unwrap(), "Slurm job 7");
        let first = [("SLURM_JOB_ID", "7"), ("SLURM_RESTART_COUNT", "0"), ("SLURM_JOB_NODELIST", "gpu-[3]")];
        assert_eq!(described(&first).unwrap(), "Slurm job 7 on gpu-[3]");
        let later = [("SLURM_JOB_ID", "7"), ("SLURM_RESTART_COUNT", "2"), ("SLURM_JOB_NODELIST", "gpu-4")];
        assert_eq!(described(&later).unwrap(), "Slurm job 7, restart 2 on gpu-4");
    }
}
