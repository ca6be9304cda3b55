//! Scripts whose output names no step, or epochs alone.

use super::{place_with, shown};
use crate::helper::Place;
use std::fs;

fn run(file: &str, script: &str) -> (Place, String) {
    let place = place_with(&format!("name: own\ntask: command\ncommand: [sh, train.sh]\n{file}"));
    fs::write(place.dir.path().join("train.sh"), script).unwrap();
    let said = shown(&place.output(&["run", "run.yaml", "--trust", "--headless", "--device", "cpu"]));
    (place, said)
}

/// Returns the steps of the rows with this kind of value.
fn steps(place: &Place) -> Vec<u64> {
    place.rows().iter().map(|row| row["step"].as_u64().unwrap()).collect()
}

#[test]
fn an_output_that_is_not_understood_gets_a_pattern_that_reads_it() {
    let script = "echo loading; for s in $(seq 1 30); do echo \"it=$s L=0.3\"; done\n";
    let (_place, said) = run("", script);
    let pattern = r"metrics: { patterns: ['it=(?P<step>\d+) L=(?P<loss>\S+)'] }";
    assert!(said.contains("warning: no step was found in ") && said.contains("the newest is `it="), "{said}");
    assert!(said.contains(pattern) && said.contains("finished, but no step was found in"), "{said}");
    let (place, said) = run(&format!("{pattern}\n"), script);
    assert!(said.contains("finished at step 30") && !said.contains("no step was found"), "{said}");
    assert_eq!(steps(&place), (1..=30).collect::<Vec<_>>());
}

#[test]
fn a_short_output_without_a_step_says_so_at_its_end() {
    let (_place, said) = run("", "echo loading\necho done\n");
    assert!(said.contains("finished, but no step was found in 2 lines of output; the newest is `done`"), "{said}");
}

#[test]
fn a_script_that_names_epochs_alone_is_counted_by_them() {
    let lines = |epoch: &str| format!("for e in 0 1 2; do echo \"{epoch}\"; done\n");
    let (place, said) = run("", &lines("Epoch $e/3 - train loss: 0.$e - val loss: 0.5 - val acc: 9$e %"));
    assert!(said.contains("finished at step 3") && !said.contains("no step"), "{said}");
    assert_eq!(steps(&place), [1, 2, 3]);
}
