//! Limits for the planner that a keeper starts: the user did not ask for it, so it must cost almost nothing. It runs at
//! the lowest priority, ends with its keeper, and gives up rather than take much memory.

use crate::cli::Failure;
use crate::format::bytes;
use crate::probe::host::parse_kibibytes;
use crate::process_tree::background::{keeper_is_gone, yield_to_training};
use crate::protocol::plan::{PLAN_FILE, Plan};
use crate::store::run_dir::RunDir;
use std::time::{Duration, Instant};
use std::{fs, process, thread};

/// Resident memory above which a run is not planned: most of it is its data.
const MOST_BYTES: u64 = 1 << 30;
/// Time after which planning is abandoned.
const LONGEST: Duration = Duration::from_mins(10);

/// Keeps this process within its limits from now on. If it exceeds them, `unplanned` becomes the plan of
/// the run, with the reason, and the process exits.
pub fn keep_within(dir: RunDir, unplanned: Plan) -> Result<(), Failure> {
    yield_to_training();
    let begun = Instant::now();
    let watch = move || {
        loop {
            if keeper_is_gone() {
                process::exit(0);
            }
            if let Some(why) = excess(resident(), begun.elapsed()) {
                let plan = refused(unplanned, &why);
                let written = serde_json::to_vec_pretty(&plan).map(|text| dir.write_atomically(PLAN_FILE, &text));
                process::exit(i32::from(!matches!(written, Ok(Ok(())))));
            }
        }
    };
    thread::Builder::new().name("bounds".to_owned()).spawn(watch)?;
    Ok(())
}

fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_kibibytes(&status, "VmRSS").unwrap_or(0)
}

/// Returns the limit that is exceeded, if any.
fn excess(resident: u64, took: Duration) -> Option<String> {
    if resident > MOST_BYTES {
        return Some(format!("planning takes more than {} of memory", bytes(MOST_BYTES)));
    }
    let minutes = LONGEST.as_secs() / 60;
    (took > LONGEST).then(|| format!("planning takes more than {minutes} minutes"))
}

fn refused(mut plan: Plan, why: &str) -> Plan {
    for rung in &mut plan.rungs {
        rung.unknown = Some(format!("not planned: too large ({why})"));
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, MOST_BYTES, excess, refused};
    use crate::protocol::plan::{Fit, Plan, RungPlan};
    use std::time::Duration;

    #[test]
    fn planning_ends_just_above_its_limits_and_says_which() {
        assert_eq!(excess(MOST_BYTES, LONGEST), None);
        let memory = excess(MOST_BYTES + 1, Duration::ZERO);
        assert_eq!(memory.as_deref(), Some("planning takes more than 1.0 GiB of memory"));
        let time = excess(0, LONGEST + Duration::from_secs(1));
        assert_eq!(time.as_deref(), Some("planning takes more than 10 minutes"));
    }

    #[test]
    fn a_refused_plan_has_its_reason_on_every_rung() {
        let rung = |name: &str| RungPlan {
            name: name.to_owned(),
            micro_batch: 1,
            estimate: None,
            unknown: None,
            total_bytes: None,
            verdict: Fit::Unknown,
            measured: None,
            failed: None,
        };
        let (run, task, device) = ("a".to_owned(), "lm".to_owned(), "cpu".to_owned());
        let rungs = vec![rung("full"), rung("safe")];
        let plan = refused(Plan { version: 1, run, task, device, gpu: false, card: None, rungs }, "why");
        assert!(plan.rungs.iter().all(|rung| rung.unknown.as_deref() == Some("not planned: too large (why)")));
        assert_eq!(plan.unknown_for_all().as_deref(), Some("not planned: too large (why)"));
    }
}
