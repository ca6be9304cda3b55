//! Several run files at once: a night with faults and a reboot, the order of the queue, and what is refused. The real
//! program with the scripted worker and a fake NVML library with two cards.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test: what is missing fails it")]

use crate::devices::{begin, stop, text, trains, two_cards, waits};
use crate::helper::{Place, cut_power, journal_says, send_signal, wait_for, wait_parent_end, wait_state, wait_status};
use downshift::protocol::control::RunState;
use downshift::store::owners;
use downshift::store::run_dir::RunDir;
use rustix::process::Signal;
use std::fs;
use std::process::{Child, Stdio};

/// Writes a run file of the scripted task into the folder `night`.
fn write_file(place: &Place, name: &str, model: &str, steps: u64) {
    let text = format!(
        "name: {name}\ntask: scripted\nmodel: {model}\ntraining: {{ steps: {steps}, micro_batch: 8 }}\n\
         optimizer: {{ lr: 0.1 }}\ncheckpoint: {{ every: 20 steps }}\nladder:\n\
         \x20 - {{ name: accumulate, relieves: [memory], set: {{ training.micro_batch: 4, training.accumulation: 2 }} }}\n\
         \x20 - {{ name: safe, relieves: [memory, numerics], set: {{ optimizer.lr: 0.05 }} }}\n"
    );
    fs::create_dir_all(place.dir.path().join("night")).unwrap();
    fs::write(place.dir.path().join(format!("night/{name}.yaml")), text).unwrap();
}

/// Starts these words headless, on the first card.
fn queue(place: &Place, words: &[&str]) -> Child {
    let words = [&["run"][..], words, &["--headless", "--trust", "--device", "cuda:0"]].concat();
    let out = fs::File::create(place.dir.path().join("out.txt")).unwrap();
    place.command(&words).stdout(out).stderr(Stdio::null()).spawn().unwrap()
}

fn find(place: &Place, name: &str) -> RunDir {
    wait_for(name, || RunDir::find(&place.dir.path().join("runs"), Some(name)).ok())
}

/// Waits until these runs are listed in this order, each with the word for its place.
fn listed(place: &Place, wanted: &[(&str, &str)]) {
    let mut last = String::new();
    let row = |line: &str| {
        let mut cells = line.split("  ").filter(|cell| !cell.is_empty());
        let state = cells.next().unwrap_or_default().trim().to_owned();
        let name = cells.next().unwrap_or_default().trim().split('-').next().unwrap_or_default().to_owned();
        (name, state)
    };
    let wanted: Vec<_> = wanted.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect();
    for _ in 0..600 {
        last = place.succeed(&["queue"]);
        if last.lines().map(row).collect::<Vec<_>>() == wanted {
            return;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
    panic!("{last}\ninstead of {wanted:?}");
}

/// Returns the words after the program in the line that systemd executes at a start of the machine.
fn autostart_words(place: &Place) -> Vec<String> {
    let unit = place.succeed(&["doctor", "--autostart"]);
    let line = unit.lines().find_map(|line| line.trim().strip_prefix("ExecStart=")).unwrap();
    line.split(' ').skip(1).map(|word| word.trim_matches('"').to_owned()).collect()
}

#[test]
fn after_a_night_with_faults_and_a_reboot_three_runs_are_done_and_one_is_set_aside() {
    let place = two_cards();
    write_file(&place, "a", "{ step_ms: 5, trouble: [{ step: 60, rungs: 1, class: device_out_of_memory }] }", 100);
    write_file(&place, "b", "{ step_ms: 10, trouble: [{ step: 45, rungs: 2, class: non_finite }] }", 300);
    let script = "echo \"ModuleNotFoundError: No module named 'kohya'\" >&2; exit 1";
    let broken = format!("name: c\ntask: command\ncommand: [sh, -c, {script:?}]\n");
    fs::write(place.dir.path().join("night/c.yaml"), broken).unwrap();
    write_file(&place, "d", "{ step_ms: 5 }", 100);
    let mut evening = queue(&place, &["night"]);
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| find(&place, name));
    wait_state(&a, RunState::Finished);
    waits(&d, "number 2 in the queue, after c-");
    // The run file is edited after it was queued; the queue has its copy.
    fs::write(place.dir.path().join("night/d.yaml"), "not a run file").unwrap();
    wait_status(&b, "steps after the shift", |status| status.rung == 2 && status.step > 60);

    cut_power(&place.processes());
    evening.kill().unwrap();
    evening.wait().unwrap();
    wait_for("the end of every keeper", || [&b, &c, &d].iter().all(|run| !owners::is_kept(run)).then_some(()));
    assert!(place.succeed(&["runs"]).contains("interrupted"));
    let words = autostart_words(&place);
    let said = place.succeed(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let at = |name: &str| said.find(&format!("{name}-20")).unwrap_or_else(|| panic!("{name} is not in {said}"));
    assert!(at("b") < at("c") && at("c") < at("d") && said.contains("waits for its turn again"), "{said}");

    for run in [&a, &b, &d] {
        let status = wait_state(run, RunState::Finished);
        assert_eq!(status.step, status.total_steps.unwrap(), "{}", run.name());
        wait_parent_end(run);
    }
    let aside = wait_status(&c, "an end", |status| status.state.is_over());
    assert!(aside.why.as_ref().is_some_and(|why| why.contains("No module named 'kohya'")), "{aside:#?}");
    assert!(journal_says(&a, "shift down: full → accumulate") && journal_says(&b, "→ safe"));
    assert!(wait_state(&b, RunState::Finished).attempts >= 3, "it went on after the reboot");
    assert_eq!(place.succeed(&["queue"]), "no run is alive; `downshift run a.yaml b.yaml` queues several\n");

    let said = place.succeed(&["report", "--since", "1h", "--out", "night.html"]);
    let page = fs::read_to_string(place.dir.path().join("night.html")).unwrap();
    assert!(said.contains(": 3 finished, 1 set aside") && page.contains(": 3 finished, 1 set aside"), "{said}");
    for (name, part, remark) in [
        ("a", "useful ", "1 shift, now on accumulate: out of device memory"),
        ("b", "validation loss 0.100", "now on safe"),
        ("c", "failed", "No module named 'kohya'"),
    ] {
        let mut lines = said.lines().skip_while(|line| !line.starts_with(&format!("{name}-")));
        let (row, below) = (lines.next().unwrap(), lines.next().unwrap());
        assert!(row.contains(part) && below.contains(remark), "{said}");
    }
    assert!(page.contains("No module named 'kohya'") && page.contains("<polyline"), "{page}");
}

#[test]
fn waiting_runs_are_moved_held_released_and_removed() {
    let place = two_cards();
    for name in ["a", "b", "c"] {
        write_file(&place, name, "{ step_ms: 2 }", 50);
    }
    let holder = begin(&place, "holder", &["--device", "cuda:0"]);
    let mut queued = queue(&place, &["night/a.yaml", "night/b.yaml", "night/c.yaml"]);
    let [a, b, c] = ["a", "b", "c"].map(|name| find(&place, name));
    let here = "training";
    listed(&place, &[("holder", here), ("a", "waiting, next"), ("b", "waiting, number 2"), ("c", "waiting, number 3")]);
    let refused = place.output(&["queue", "move", "holder", "last"]);
    assert!(refused.status.code() == Some(1) && text(&refused).contains("has its turn already"), "{}", text(&refused));
    let place_of = |words: &[&str]| place.succeed(&[&["queue"], words].concat());
    assert!(place_of(&["move", "c", "first"]).ends_with(": next in the queue\n"));
    assert!(place_of(&["move", "a", "down"]).ends_with(": number 3 in the queue\n"));
    listed(&place, &[("holder", here), ("c", "waiting, next"), ("b", "waiting, number 2"), ("a", "waiting, number 3")]);
    assert!(place_of(&["hold", "b"]).contains("held: others pass it"));
    listed(&place, &[("holder", here), ("c", "waiting, next"), ("b", "held in the queue"), ("a", "waiting, number 2")]);
    assert!(place_of(&["remove", "a"]).contains("removed from the queue"));
    let removed = wait_state(&a, RunState::Stopped);
    assert_eq!(removed.attempts, 0);
    stop(&place, &holder);
    wait_state(&c, RunState::Finished);
    wait_state(&b, RunState::Paused);
    place.succeed(&["queue", "release", "b"]);
    assert_eq!(wait_state(&b, RunState::Finished).time.ms(downshift::protocol::time_spent::Part::Card), 0);
    assert_eq!(queued.wait().unwrap().code(), Some(3), "of the first one that did not finish");

    // A removed run comes back at the end of the queue.
    let again = begin(&place, "again", &["--device", "cuda:0"]);
    let mut resumed = place.command(&["resume", "a", "--headless", "--wait-for-card"]).spawn().unwrap();
    listed(&place, &[("again", here), ("a", "waiting, next")]);
    stop(&place, &again);
    assert_eq!(resumed.wait().unwrap().code(), Some(0));
}

#[test]
fn an_interrupt_ends_the_queue_that_its_command_started() {
    let place = two_cards();
    for name in ["a", "b", "c"] {
        write_file(&place, name, "{ step_ms: 10 }", 100_000);
    }
    let mut queued = queue(&place, &["night"]);
    let [a, b, c] = ["a", "b", "c"].map(|name| find(&place, name));
    trains(&a);
    waits(&c, "number 2 in the queue");
    wait_for("the follower", || {
        fs::read_to_string(place.dir.path().join("out.txt")).ok()?.contains("run a-").then_some(())
    });
    send_signal(queued.id(), Signal::INT);
    assert_eq!(queued.wait().unwrap().code(), Some(3));
    for run in [&a, &b, &c] {
        wait_state(run, RunState::Stopped);
    }
    assert_eq!(wait_state(&b, RunState::Stopped).attempts, 0, "it never got its turn");
}

#[test]
fn nothing_is_queued_when_one_file_is_wrong() {
    let place = two_cards();
    write_file(&place, "a", "{ step_ms: 2 }", 50);
    fs::create_dir(place.dir.path().join("empty")).unwrap();
    fs::write(place.dir.path().join("bad.yaml"), "name: bad\ntask: scripted\ntraining: { steps: many }\n").unwrap();
    let a = "night/a.yaml";
    for (words, code, part) in [
        (&[a, "bad.yaml"][..], 13, "bad.yaml:"),
        (&[a, "missing.yaml"], 2, "missing.yaml:"),
        (&["empty"], 13, "empty: no run file (*.yaml) in this folder"),
        (&[a, "empty"], 13, "empty: no run file"),
        (&["python", "train.py"], 2, "a command of your own goes after `--`"),
        (&["python", a], 2, "`python` is not a run file"),
        (&[a, a, "--name", "x"], 2, "--name names one run"),
        (&[a, a, "--another"], 2, "--another starts at once"),
        (&[a, a, "--rung", "nothing"], 2, "night/a.yaml: --rung nothing"),
    ] {
        let out = place.output(&[&["run"][..], words, &["--headless"]].concat());
        let said = text(&out);
        assert_eq!(out.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains(part), "{words:?}: {said}");
        assert!(RunDir::all(&place.dir.path().join("runs")).is_empty(), "{words:?}");
    }
    let out = place.output(&["run", a, "bad.yaml", "--headless"]);
    assert!(text(&out).ends_with("nothing was queued\n"), "{}", text(&out));
}
