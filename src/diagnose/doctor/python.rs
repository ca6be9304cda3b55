//! Checks the Python environment of a run that starts a command.

use super::check::Check;
use crate::config::run::Run;
use crate::diagnose::python::{InterpreterError, PythonEnvironment, TorchBuild};
use crate::protocol::probe::Reading;

/// Packages that a training depends on, besides PyTorch.
const PACKAGES: [&str; 6] = ["transformers", "accelerate", "deepspeed", "trl", "peft", "lightning"];

/// Runs all checks; none for a run without a command.
pub fn checks(run: &Run, reading: Option<&Reading>) -> Vec<Check> {
    match PythonEnvironment::of_run(run) {
        None => Vec::new(),
        Some(Err(error @ InterpreterError::NoPython(_))) => vec![Check::ok("Python", error.to_string())],
        Some(Err(error)) => {
            vec![Check::fail("Python", error.to_string(), "correct `command` or `environment` in the run file")]
        }
        Some(Ok(found)) => {
            let version = found.version.as_deref().unwrap_or("of unknown version");
            let python = Check::ok("Python", format!("{version}, {}", found.interpreter.display()));
            vec![python, torch(&found, reading), packages(&found)]
        }
    }
}

fn torch(found: &PythonEnvironment, reading: Option<&Reading>) -> Check {
    let Some(torch) = &found.torch else {
        return Check::warn("PyTorch", "not installed in this environment", "if the script needs it, install it there");
    };
    let gpu = reading.and_then(|reading| reading.gpu.as_ref().ok());
    let driver = gpu.and_then(|gpu| gpu.more.cuda.value());
    match torch {
        TorchBuild { cuda: None, hip: None, .. } if gpu.is_some() => {
            let fix = "install a build for CUDA: https://pytorch.org/get-started/locally";
            Check::warn("PyTorch", format!("{torch}, so it does not use the GPU"), fix)
        }
        TorchBuild { cuda: Some(cuda), .. } if driver.is_some_and(|driver| major(cuda) > major(driver)) => {
            let driver = driver.map_or("", String::as_str);
            let text = format!("{torch}, but the driver supports CUDA {driver} at most");
            Check::fail("PyTorch", text, "update the driver, or install a build for an older CUDA")
        }
        _ => Check::ok("PyTorch", torch.to_string()),
    }
}

fn packages(found: &PythonEnvironment) -> Check {
    let known = PACKAGES.iter().filter_map(|name| Some(format!("{name} {}", found.version_of(name)?)));
    let known: Vec<String> = known.collect();
    let count = found.packages.len();
    let text = if known.is_empty() {
        format!("{count} installed")
    } else {
        format!("{count} installed: {}", known.join(", "))
    };
    Check::ok("packages", text)
}

fn major(version: &str) -> u64 {
    version.split('.').next().and_then(|major| major.trim().parse().ok()).unwrap_or(0)
}
