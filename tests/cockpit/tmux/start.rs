//! The start screen, the table of runs and the menus, in a real terminal.

use super::{DOWNSHIFT, SMALL};
use crate::helper::terminal::Terminal;
use crate::helper::{Place, wait_for, wait_state};
use downshift::protocol::control::RunState;
use downshift::store::labels::Labels;

#[test]
fn a_bare_start_offers_runs_and_commands_and_an_ended_run_goes_on_from_a_checkpoint() {
    let place = Place::scripted();
    place.script("{ step_ms: 1, noise: true }", "");
    place.succeed(&["run", "run.yaml", "--headless", "--set", "training.steps=120"]);
    let first = place.newest().unwrap();
    let terminal = Terminal::open(&place, SMALL);
    terminal.enter(DOWNSHIFT);
    terminal.wait_words(&["recent", &first.name(), "finished", "a new run", "Enter start"]);
    // A second run, typed here.
    terminal.press(&["c"]);
    terminal.wait_words(&["Esc back"]);
    terminal.write("run run.yaml --set training.steps=200 --set name=second | tee");
    terminal.wait_words(&["needs a shell"]);
    terminal.press(&["BSpace", "BSpace", "BSpace", "BSpace", "BSpace", "BSpace"]);
    terminal.wait_words(&["starts the run file run.yaml"]);
    terminal.press(&["Enter"]);
    let second = wait_for("the second run", || place.newest().filter(|run| *run != first));
    wait_state(&second, RunState::Finished);
    terminal.wait_words(&["● finished", "second-"]);

    // Tags from the table.
    terminal.press(&["6"]);
    terminal.wait_words(&["runs ──", &first.name(), "steps"]);
    terminal.press(&["/"]);
    terminal.write("second");
    terminal.wait("one run", |screen| screen.contains("find runs: second") && !screen.contains(&first.name()));
    terminal.press(&["Enter", "m"]);
    terminal.wait_words(&["branch as a new run", "tags …"]);
    // A resume of a finished run is refused, so the cursor begins below it.
    terminal.press(&["Down", "Down", "Down", "Enter"]);
    terminal.wait_words(&["tags: ", "Enter save"]);
    terminal.write("wide");
    terminal.press(&["Enter"]);
    wait_for("the tag", || Labels::read(&second).ok().filter(|labels| labels.tags.len() == 1));

    // Back to a checkpoint, from the health view: the run goes on in the same terminal.
    terminal.press(&["5"]);
    terminal.wait_words(&["checkpoints ──"]);
    terminal.press(&["Enter"]);
    terminal.wait_words(&["resume here", "branch as a new run"]);
    terminal.press(&["Down", "Enter"]);
    let branch = wait_for("the branch", || place.newest().filter(|run| *run != first && *run != second));
    wait_state(&branch, RunState::Finished);
    terminal.wait_words(&["● finished", &branch.name()]);
    terminal.press(&["q"]);
    terminal.expect_given_back();
}
