//! Checks that several ranks work together on this machine.

use super::check::Check;
use crate::diagnose::rank_check::{RankFailure, Step, StepReport, Trial, try_ranks};
use crate::format::{bytes, counted};

/// Tries out the ranks: a line for each step, or one for what is wrong.
pub fn check_ranks(trial: &Trial) -> Vec<Check> {
    match try_ranks(trial) {
        Ok(found) => Step::ALL.into_iter().zip(&found).map(|(step, found)| describe(trial, step, found)).collect(),
        Err(failure) => vec![Check::fail("ranks", failure.to_string(), fix(&failure))],
    }
}

fn describe(trial: &Trial, step: Step, found: &StepReport) -> Check {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
    let time = format!("{:.1} ms", found.seconds * 1e3);
    match step {
        Step::Start => {
            let (ranks, device) = (counted(u64::from(trial.ranks), "rank"), known(&found.device));
            let versions = format!("torch {}, Python {}", known(&found.torch), known(&found.python));
            Check::ok("ranks", format!("{ranks} over {} on {device}; {versions}", known(&found.backend)))
        }
        Step::Bandwidth => {
            let rate = found.bytes_per_s.unwrap_or(0.0).max(0.0) as u64;
            Check::ok(step.name(), format!("{}/s over each link, in sums of 16 MiB", bytes(rate)))
        }
        Step::Init | Step::AllReduce | Step::Barrier => Check::ok(step.name(), time),
    }
}

fn fix(failure: &RankFailure) -> &'static str {
    match failure {
        RankFailure::Package(_) | RankFailure::System(_) => "see the message of the system",
        RankFailure::Python { .. } => "name the interpreter of the training with --python",
        RankFailure::Stuck { .. } => {
            "see `dmesg`; a reset of the card or a reboot ends a process that its driver holds"
        }
        RankFailure::Versions { .. } => "start all ranks with the same environment",
        RankFailure::Failed { step: Step::Start, message, .. } if message.contains("GPUs") => {
            "try fewer ranks, or the CPU with CUDA_VISIBLE_DEVICES= before the command"
        }
        RankFailure::Failed { step: Step::Start, .. } | RankFailure::Ended { step: Step::Start, .. } => {
            "install PyTorch for this interpreter, or name another one with --python"
        }
        RankFailure::Late { step: Step::Start, .. } => {
            "importing PyTorch takes long: try again, or with a longer --limit"
        }
        RankFailure::Failed { .. } | RankFailure::Ended { .. } | RankFailure::Late { .. } => {
            "let the ranks use the loopback, with NCCL_SOCKET_IFNAME=lo and GLOO_SOCKET_IFNAME=lo; between cards, \
             NCCL_DEBUG=INFO says more, and NCCL_P2P_DISABLE=1 shows whether their link is the cause"
        }
    }
}
