//! Wrong set-ups of several ranks: each is refused or named before a rank starts, with its way out. The real program with
//! real ports, hosts and processes; `python/tests/end_to_end_worlds.py` does the same with PyTorch.

#![expect(clippy::unwrap_used, reason = "a test: what is missing fails it")]

use crate::helper::{Place, journal_says, wait_for};
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Creates a place with a Python that is a shell script.
fn place(python: &str) -> Place {
    let place = Place::real();
    let path = place.dir.path().join("python");
    fs::write(&path, format!("#!/bin/sh\n{python}\n")).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    fs::write(place.dir.path().join("train.py"), "").unwrap();
    place
}

fn write_run(place: &Place, command: &str, more: &str) {
    let file = format!("name: ranked\ntask: command\ncommand: [./python, {command}]\n{more}");
    fs::write(place.dir.path().join("run.yaml"), file).unwrap();
}

/// Takes a free port.
fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

const TORCHRUN: &str = "-m, torch.distributed.run";

#[test]
fn a_wrong_set_up_is_named_before_the_start_with_its_way_out() {
    let place = place("exit 1");
    let (_listener, port) = listen();
    let taken = format!("rendezvous port {port} is in use by ");
    let torchrun = |options: &str| format!("{TORCHRUN}, {options}, train.py");
    let meeting = format!("environment: {{ WORLD_SIZE: 2, RANK: 0, MASTER_ADDR: localhost, MASTER_PORT: {port} }}\n");
    for (command, more, device, verdict, wanted) in [
        (
            "train.py".to_owned(),
            "ranks: 4\n",
            "cuda:0,1",
            "fail",
            ["4 ranks on this machine need 4 GPUs, and 2 are visible", "start 2, choose 4 cards"],
        ),
        (
            torchrun("--standalone, --nproc-per-node=2"),
            "",
            "cuda:1",
            "warn",
            ["2 ranks on this machine need 2 GPUs, and 1 is visible", "--device cpu"],
        ),
        (torchrun(&format!("--master-port={port}")), "", "cpu", "fail", [&taken, "another port with --master-port"]),
        ("train.py".to_owned(), &meeting, "cpu", "fail", [&taken, "another port with MASTER_PORT"]),
        (
            torchrun("--nnodes=2, --node-rank=1, --master-addr=no-such-host.invalid"),
            "",
            "cpu",
            "warn",
            ["rendezvous host no-such-host.invalid does not resolve", "correct the host's name"],
        ),
        (
            torchrun("--nnodes=2, --node-rank=1, '--master-addr=2001:db8::1'"),
            "",
            "cpu",
            "warn",
            ["rendezvous host 2001:db8::1 cannot be reached", "no firewall"],
        ),
        (
            torchrun("'--master-addr=2001:db8::1'"),
            "",
            "cpu",
            "warn",
            ["2001:db8::1 is no address of this machine", "127.0.0.1 for one machine"],
        ),
        (
            torchrun("--nnodes=2, --standalone"),
            "",
            "cpu",
            "warn",
            ["on 2 machines: downshift keeps the ranks of this one", "`downshift sbatch --nodes`"],
        ),
        ("train.py".to_owned(), "ranks: 4\n", "cpu", "ok  ", ["4 ranks", ""]),
    ] {
        write_run(&place, &command, more);
        let checked = place.output(&["check", "--preflight", "run.yaml", "--device", device]);
        let said = text(&checked);
        assert!(wanted.iter().all(|words| said.contains(*words)), "{command}: {wanted:?}: {said}");
        assert!(said.contains(&format!("{verdict}  ranks  ")), "{command}: {said}");
    }
}

#[test]
fn nothing_is_started_while_the_port_is_taken() {
    let place = place("exit 1");
    let (_listener, port) = listen();
    write_run(&place, &format!("{TORCHRUN}, --master-port={port}, train.py"), "");
    let started = place.output(&["run", "run.yaml", "--headless", "--trust", "--device", "cpu"]);
    assert_eq!(started.status.code(), Some(13), "{}", text(&started));
    assert!(place.newest().is_none(), "nothing was started");
}

#[test]
fn a_port_that_is_taken_later_refuses_a_resume() {
    let place = place("exit 1");
    let (listener, port) = listen();
    drop(listener);
    write_run(&place, &format!("{TORCHRUN}, --master-port={port}, train.py"), "restart: from_start\n");
    place.output(&["run", "run.yaml", "--headless", "--trust", "--device", "cpu"]);
    let _listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let resumed = place.output(&["resume", "--headless"]);
    assert_eq!(resumed.status.code(), Some(13), "{}", text(&resumed));
    let words = format!("rendezvous port {port} is in use by ");
    let said = text(&resumed);
    assert!(said.contains(&words) && said.contains("another port with --master-port"), "{said}");
}

#[test]
fn a_port_that_is_taken_between_two_attempts_is_noted() {
    let place = place("touch begun; until [ -e taken ]; do sleep 0.05; done; exit 1");
    let (listener, port) = listen();
    drop(listener);
    write_run(&place, &format!("{TORCHRUN}, --master-port={port}, train.py"), "restart: from_start\n");
    std::thread::scope(|scope| {
        scope.spawn(|| place.output(&["run", "run.yaml", "--headless", "--trust", "--device", "cpu"]));
        wait_for("the first attempt", || place.dir.path().join("begun").exists().then_some(()));
        let _listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        fs::write(place.dir.path().join("taken"), "").unwrap();
        let words = format!("rendezvous port {port} is in use");
        let run = place.newest().unwrap();
        wait_for("the note of the second attempt", || journal_says(&run, &words).then_some(()));
    });
}

#[test]
fn ranks_of_a_run_are_started_under_torchrun() {
    let place = place("echo \"started: $*\"");
    write_run(&place, "train.py, '--lr={optimizer.lr}'", "ranks: 2\noptimizer: { lr: 0.5 }\n");
    let checked = text(&place.output(&["check", "run.yaml"]));
    let launcher = "-m torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=0 train.py";
    assert!(checked.contains(launcher), "the approval shows what runs: {checked}");
    place.succeed(&["run", "run.yaml", "--headless", "--trust", "--device", "cpu"]);
    let log = fs::read_to_string(place.newest().unwrap().file("worker.log")).unwrap();
    assert!(log.contains(&format!("started: {launcher} --lr=0.5")), "{log}");
}

#[test]
fn the_doctor_names_the_rank_that_fails_and_leaves_no_process() {
    let done = |step: &str| format!("echo '{{\"done\": \"{step}\", \"torch\": \"2.15.0\"}}'");
    let start = done("start");
    let other = "echo \"{\\\"done\\\": \\\"start\\\", \\\"torch\\\": \\\"2.1$RANK.0\\\"}\"; sleep 100";
    for (python, limit, wanted) in [
        ("echo no such library >&2; exit 3".to_owned(), "60", "ended during start: no such library"),
        (format!("{start}; [ $RANK = 1 ] && exit 3; sleep 100"), "60", "rank 1 ended during init"),
        (
            format!("{start}; [ $RANK = 0 ] && {}; sleep 100", done("init")),
            "5",
            "no answer within 5 s: init has not ended on rank 1 of 2, and the others wait for it",
        ),
        (other.to_owned(), "60", "rank 0 has torch 2.10.0, rank 1 has torch 2.11.0"),
    ] {
        let place = place(&python);
        let checked = place.output(&["doctor", "--ranks", "2", "--limit", limit, "--python", "./python"]);
        let said = text(&checked);
        assert!(said.contains(wanted), "{wanted}: {said}");
        assert!(said.contains('→'), "a way out: {said}");
        assert_eq!(checked.status.code(), Some(1), "{said}");
        let left = fs::read_dir("/proc").unwrap().flatten().filter(|process| {
            let of_place = fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == place.dir.path());
            of_place && process.file_name().to_string_lossy().parse::<u32>().is_ok()
        });
        assert_eq!(left.count(), 0, "{wanted}");
    }
    let missing = text(&place("").output(&["doctor", "--ranks", "2", "--python", "/no/python"]));
    assert!(missing.contains("/no/python cannot be started") && missing.contains("--python"), "{missing}");
}
