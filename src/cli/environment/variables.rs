//! Which variables belong to a run, and which to the session, the job or the process that starts it.

use crate::store::environment::KeptEnvironment;
use std::ffi::OsString;

/// Longest value that is kept, and most bytes of all names and values.
const LONGEST: usize = 32 << 10;
const MOST: usize = 96 << 10;

/// Variables that a terminal, a login, a desktop or a service manager sets for itself.
const OF_SESSION: [&str; 52] = [
    "_",
    "ALACRITTY_*",
    "COLORTERM",
    "COLUMNS",
    "CREDENTIALS_DIRECTORY",
    "DBUS_*",
    "DESKTOP_*",
    "DISPLAY",
    "GNOME_*",
    "GPG_AGENT_INFO",
    "GPG_TTY",
    "INVOCATION_ID",
    "ITERM_*",
    "JOURNAL_STREAM",
    "KITTY_*",
    "KONSOLE_*",
    "LINES",
    "LISTEN_*",
    "LS_COLORS",
    "MAINPID",
    "MANAGERPID",
    "MEMORY_PRESSURE_*",
    "NOTIFY_SOCKET",
    "OLDPWD",
    "PWD",
    "SESSION_MANAGER",
    "SHLVL",
    "SSH_*",
    "STY",
    "SUDO_*",
    "SYSTEMD_*",
    "TERM",
    "TERM_*",
    "TMUX",
    "TMUX_*",
    "VSCODE_*",
    "VTE_VERSION",
    "WATCHDOG_*",
    "WAYLAND_DISPLAY",
    "WEZTERM_*",
    "WINDOW",
    "WINDOWID",
    "WSLENV",
    "WSL_*",
    "WT_*",
    "XAUTHORITY",
    "XDG_CURRENT_DESKTOP",
    "XDG_MENU_PREFIX",
    "XDG_RUNTIME_DIR",
    "XDG_SEAT*",
    "XDG_SESSION_*",
    "XDG_VTNR",
];
/// Variables of a batch job: the next job has its own.
const OF_JOB: [&str; 14] = [
    "COBALT_*",
    "FLUX_*",
    "JOB_ID",
    "KUBERNETES_*",
    "LSB_*",
    "LS_JOBPID",
    "OMPI_*",
    "PALS_*",
    "PBS_*",
    "PMIX_*",
    "PMI_*",
    "PRTE_*",
    "SLURMD_*",
    "SLURM_*",
];
/// Variables that a scheduler sets in a job, and a user elsewhere.
const GIVEN_IN_JOBS: [&str; 7] = [
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HIP_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "TMPDIR",
    "ZE_AFFINITY_MASK",
];
/// Variables that say that this is a job.
const MARKS_JOB: [&str; 6] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "COBALT_JOBID", "FLUX_JOB_ID", "JOB_ID"];
/// The user's settings among our own variables; the others belong to one process.
const SETTINGS: [&str; 7] = [
    "DOWNSHIFT_KERNEL_LOG",
    "DOWNSHIFT_LOG_LIMIT",
    "DOWNSHIFT_NVML_PATH",
    "DOWNSHIFT_RUNS_DIR",
    "DOWNSHIFT_SHARED_FOLDER",
    "DOWNSHIFT_WORKER",
    "DOWNSHIFT_WSL",
];
/// Variables whose value may be shown: none is ever a secret.
const PUBLIC: [&str; 25] = [
    "CONDA_DEFAULT_ENV",
    "CONDA_PREFIX",
    "CUDA_*",
    "GPU_DEVICE_ORDINAL",
    "HF_DATASETS_*",
    "HF_HOME",
    "HF_HUB_*",
    "HIP_VISIBLE_DEVICES",
    "HSA_*",
    "KMP_*",
    "LANG",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MKL_*",
    "NCCL_*",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_*",
    "PYTHONPATH",
    "PYTORCH_*",
    "ROCR_VISIBLE_DEVICES",
    "TMPDIR",
    "TORCH_*",
    "TRANSFORMERS_*",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
];

/// Returns the variables that belong to a run.
pub fn of_run(
    all: impl Iterator<Item = (OsString, OsString)>,
    is_secret: impl Fn(&str, &str) -> bool,
) -> KeptEnvironment {
    let mut all: Vec<(OsString, OsString)> = all.collect();
    all.sort();
    let is_job = all.iter().any(|(name, _)| MARKS_JOB.iter().any(|mark| name == mark));
    let (mut kept, mut bytes) = (KeptEnvironment::default(), 0);
    for (name, value) in all {
        // A name that is not UTF-8 cannot be stored.
        let Ok(name) = name.into_string() else { continue };
        if is_elsewhere(&name, is_job) {
            continue;
        }
        let size = name.len() + value.len();
        match value.into_string() {
            Ok(value) if is_secret(&name, &value) => kept.secrets.extend([name]),
            Ok(value) if value.len() <= LONGEST && bytes + size <= MOST => {
                bytes += size;
                kept.variables.insert(name, value);
            }
            // Of a name that is itself too long, nothing is kept.
            _ => kept.left_out.extend(Some(name).filter(|name| name.len() <= 256)),
        }
    }
    kept
}

/// Reports whether a variable belongs to something else than the run.
fn is_elsewhere(name: &str, is_job: bool) -> bool {
    let ours = name.starts_with("DOWNSHIFT_") && !SETTINGS.contains(&name);
    let of_job = fits_one(&OF_JOB, name) || is_job && fits_one(&GIVEN_IN_JOBS, name);
    name.is_empty() || ours || of_job || fits_one(&OF_SESSION, name)
}

/// Reports whether a value of this variable may be shown to anyone.
pub fn is_public(name: &str) -> bool {
    fits_one(&PUBLIC, name)
}

fn fits_one(patterns: &[&str], name: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *pattern,
    })
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, MOST, of_run};
    use crate::store::environment::KeptEnvironment;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    fn kept(variables: &[(&str, &str)]) -> KeptEnvironment {
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        of_run(variables, |name, _| name.ends_with("_TOKEN"))
    }

    fn names(variables: &[(&str, &str)]) -> Vec<String> {
        kept(variables).variables.into_keys().collect()
    }

    #[test]
    fn a_run_keeps_its_own_variables_and_no_secret() {
        let own = [
            ("CUDA_VISIBLE_DEVICES", "0"),
            ("DOWNSHIFT_NVML_PATH", "/x.so"),
            ("HF_HOME", "/data"),
            ("LD_LIBRARY_PATH", "/usr/lib/wsl/lib"),
            ("PATH", "/venv/bin"),
            ("TMPDIR", "/data/tmp"),
            ("XDG_CACHE_HOME", "/data/cache"),
        ];
        let others = [
            ("DBUS_SESSION_BUS_ADDRESS", "x"),
            ("DISPLAY", ":0"),
            ("DOWNSHIFT_TOKEN", "x"),
            ("DOWNSHIFT_COMPANION", "/x.json"),
            ("PWD", "/"),
            ("SSH_AUTH_SOCK", "/x"),
            ("TERM", "xterm"),
            ("TMUX_PANE", "%1"),
            ("WSL_INTEROP", "/run/WSL/8_interop"),
            ("XDG_RUNTIME_DIR", "/run/user/1"),
            ("XDG_SESSION_ID", "3"),
            ("_", "/usr/bin/downshift"),
        ];
        assert_eq!(names(&[&own[..], &others].concat()), own.map(|(name, _)| name));
        let secret = kept(&[("HF_TOKEN", "x"), ("HF_HOME", "/data")]);
        assert_eq!(secret.secrets.into_iter().collect::<Vec<_>>(), ["HF_TOKEN"]);
        assert_eq!(secret.variables.len(), 1);
    }

    #[test]
    fn the_next_job_has_devices_and_variables_of_its_own() {
        let variables =
            [("CUDA_VISIBLE_DEVICES", "3"), ("HF_HOME", "/data"), ("SLURM_PROCID", "0"), ("TMPDIR", "/job")];
        assert_eq!(names(&variables), ["CUDA_VISIBLE_DEVICES", "HF_HOME", "TMPDIR"]);
        assert_eq!(names(&[&variables[..], &[("SLURM_JOB_ID", "7")]].concat()), ["HF_HOME"]);
    }

    #[test]
    fn what_is_too_long_or_no_text_is_named_without_its_value() {
        let long = "x".repeat(LONGEST + 1);
        let some = kept(&[("LONG", &long), ("SHORT", "1")]);
        assert_eq!((some.variables.len(), some.left_out.contains("LONG")), (1, true));
        let value = "x".repeat(1000);
        let many: Vec<(String, &str)> = (0..200).map(|number| (format!("V{number}"), value.as_str())).collect();
        let many = kept(&many.iter().map(|(name, value)| (name.as_str(), *value)).collect::<Vec<_>>());
        let bytes: usize = many.variables.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!(bytes <= MOST && many.variables.len() + many.left_out.len() == 200);
        let binary = (OsString::from("BINARY"), OsString::from_vec(vec![0xff]));
        assert!(of_run([binary].into_iter(), |_, _| false).left_out.contains("BINARY"));
    }
}
