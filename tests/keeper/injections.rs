//! Faults, one at a time, through the real program: keeper, probe, store and the scripted worker, with a fake
//! NVML library where a GPU is needed. Each case names the cause and the response that must be reported, and
//! how the run must end; the test prints the table.
#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

mod scene;
mod table;

use scene::{Case, Scene};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs at a time: most of them spend most of their time waiting.
const AT_ONCE: usize = 6;

#[test]
fn every_fault_is_named_answered_and_survived() {
    let cases = table::cases();
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((at, case)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    cases.get(at).map(|case| (at, case))
                } {
                    let row = Scene::play(case);
                    rows.lock().unwrap().push((at, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap();
    rows.sort_by_key(|(at, _)| *at);
    println!("| # | fault | cause | response | fault → first new step, or end |\n|---|---|---|---|---|");
    for (_, row) in &rows {
        println!("{}", row.line);
    }
    let wrong: Vec<&String> = rows.iter().flat_map(|(_, row)| &row.wrong).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let numbers: BTreeSet<u32> = cases.iter().map(|case: &Case| case.number).collect();
    assert!(numbers.len() >= 30, "{} of the injections", numbers.len());
}
