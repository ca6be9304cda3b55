//! Updates that a script leaves out by itself: counted from what it prints, unknown if it prints nothing about them.

use super::{place_with, shown};
use crate::helper::{Place, journal};
use serde_json::Value;
use std::fs;

const FILE: &str = "name: skips\ntask: command\ncommand: [sh, train.sh]\n\
    checkpoints: { match: 'ckpt_*' }\nresume: { arguments: ['{checkpoint}'] }\n\
    ladder:\n\x20 - { name: safe, relieves: [numerics], set: { environment.CALM: '1' } }\n";

/// Returns a script that prints a loss for each of its steps but every tenth, which it drops until it is calm.
/// `burst` steps are printed between pauses of 20 ms.
fn script(last: u64, burst: u64, dropped: &str) -> String {
    format!(
        "step=${{1:+${{1##*_}}}}; step=${{step:-0}}; skipped=0\n\
         while [ $step -lt {last} ]; do step=$((step + 1))\n\
         if [ -z \"$CALM\" ] && [ $((step % 10)) = 0 ]; then skipped=$((skipped + 1)); {dropped}\n\
         else echo \"step $step loss 0.5\"; fi\n\
         [ $((step % 50)) = 0 ] && echo x > ckpt_$step\n\
         [ -z \"$CALM\" ] && [ $((step % {burst})) = 0 ] && sleep 0.02\n\
         done; true\n"
    )
}

/// Runs a script to its end. Returns its status and what the journal says.
fn run(script: &str) -> (Place, Value, String) {
    let place = place_with(FILE);
    fs::write(place.dir.path().join("train.sh"), script).unwrap();
    let said = shown(&place.output(&["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]));
    let status = place.status_json();
    assert_eq!(status["state"], "finished", "{said}");
    let journal: Vec<String> = journal(&place.newest().unwrap()).into_iter().map(|row| row.text).collect();
    (place, status, journal.join("\n"))
}

#[test]
fn a_script_that_drops_every_tenth_batch_is_shifted_at_any_speed() {
    // 50 and 1 000 steps a second.
    for (last, burst) in [(500, 1), (4_000, 20)] {
        let (_place, status, journal) = run(&script(last, burst, "echo \"step $step: NaN loss, skipping batch\""));
        assert!(journal.contains("updates were skipped, since a value was not finite"), "{burst}: {journal}");
        assert_eq!((&status["rung_name"], &status["shifts"]), (&"safe".into(), &1.into()), "{burst}: {journal}");
        assert!(status["skipped"].as_u64().unwrap() >= 5, "{burst}: {status}");
    }
}

#[test]
fn a_trainer_that_counts_its_skips_is_believed() {
    let dropped = "echo \"[INFO] [Rank 0] step=$step, skipped=$skipped, lr=[0.001], mom=[(0.9, 0.999)]\"";
    let (_place, status, journal) = run(&script(500, 1, dropped));
    assert_eq!(status["rung_name"], "safe", "{journal}");
    assert!(status["skipped"].as_u64().unwrap() >= 5, "{status}");
}

#[test]
fn a_script_that_says_nothing_of_skips_has_an_unknown_number() {
    let (place, status, journal) = run(&script(500, 20, "true"));
    assert_eq!((status.get("skipped"), &status["shifts"]), (Some(&Value::Null), &0.into()), "{journal}");
    drop(place);
}
