//! Runs in a directory that several hosts use. The other host is a process with its own host name, boot id and sockets, in
//! namespaces of its own; keepers, stores and files are real. The kernel behind both is one, so its locks reach further than
//! those of two machines would: refusals are therefore checked by the lease that they name.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

mod loss;

use crate::helper::terminal::Terminal;
use crate::helper::{Place, cut_power, journal, journal_says, kill, send_signal, wait_for};
use downshift::protocol::control::{Request, Target};
use downshift::store::run_dir::RunDir;
use downshift::store::shared_folder::lease;
use downshift::store::shared_folder::orders::Order;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const NODE: &str = "node7";
const BOOT: &str = "11111111-2222-3333-4444-555555555555";
const SLOW: &str = "{ step_ms: 20, save_ms: 1 }";

/// A place that a second host uses too.
struct Hosts {
    place: Place,
}

impl Hosts {
    /// Returns none, and says why, where namespaces are not permitted.
    fn new() -> Option<Self> {
        let mut place = Place::scripted();
        place.variables.push(("DOWNSHIFT_SHARED_FOLDER", PathBuf::from("yes")));
        fs::write(place.dir.path().join("boot"), format!("{BOOT}\n")).unwrap();
        fs::create_dir(place.dir.path().join("node-sockets")).unwrap();
        place.script(SLOW, "");
        let hosts = Self { place };
        let tried = hosts.on_node(Command::new("cat").arg("/proc/sys/kernel/random/boot_id")).output().unwrap();
        if String::from_utf8_lossy(&tried.stdout).trim() == BOOT {
            return Some(hosts);
        }
        say_untested(&format!("namespaces are not permitted: {tried:?}"));
        None
    }

    /// Returns a command that runs another one on the node.
    fn on_node(&self, command: &Command) -> Command {
        let mut node = Command::new("unshare");
        node.args(["--mount", "--uts"]);
        if !rustix::process::getuid().is_root() {
            node.arg("--map-root-user");
        }
        let script = format!("hostname {NODE} && mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"");
        node.args(["sh", "-c", &script]).arg(self.place.dir.path().join("boot"));
        node.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
        node.current_dir(self.place.dir.path());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => node.env(name, value),
                None => node.env_remove(name),
            };
        }
        node.env("XDG_RUNTIME_DIR", self.place.dir.path().join("node-sockets"));
        node
    }

    /// Starts a run on the node, and returns once it trains.
    fn start(&self) -> (Child, RunDir) {
        let words = ["run", "run.yaml", "--headless", "--set", "training.steps=100000"];
        let mut command = self.on_node(&self.place.command(&words));
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let run = wait_for("a run directory", || self.place.newest());
        self.wait_step(5);
        (child, run)
    }

    fn wait_step(&self, step: u64) -> Value {
        wait_for("steps", || Some(self.place.status_json()).filter(|status| status["step"].as_u64() > Some(step)))
    }

    fn wait_rung(&self, rung: u64) {
        wait_for("the rung", || (self.place.status_json()["rung"] == rung).then_some(()));
    }
}

/// Says it past the test harness, which hides what a passing test prints.
fn say_untested(why: &str) {
    let _ = writeln!(std::io::stderr(), "not tested here: {why}");
}

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn shifts(run: &RunDir) -> usize {
    journal(run).iter().filter(|row| row.text.contains("shift down") && row.text.contains("requested by")).count()
}

fn files(run: &RunDir, folder: &str) -> Vec<String> {
    let names = fs::read_dir(run.file(folder)).unwrap().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn orders_reach_the_keeper_on_another_host_through_the_folder() {
    let Some(hosts) = Hosts::new() else { return };
    let (mut child, run) = hosts.start();
    let status = hosts.place.status_json();
    assert_eq!((&status["host"], &status["state"]), (&json!(NODE), &json!("training")));
    let line = hosts.place.succeed(&["status"]);
    assert!(line.contains("training") && line.contains("\n  on host node7, through the run's folder"), "{line}");
    assert!(hosts.place.succeed(&["runs"]).contains("training"));
    assert!(!run.file("run.db-wal").exists(), "a log whose index other hosts do not see");
    assert!(journal_says(&run, "run.db uses a rollback journal, and orders from other hosts come through requests/"));

    assert!(hosts.place.succeed(&["shift", "down"]).contains("will shift to accumulate"));
    hosts.wait_rung(1);
    let text = journal(&run).iter().find(|row| row.text.contains("shift down")).unwrap().text.clone();
    assert!(text.contains("requested by downshift (process ") && text.contains(" on host "), "{text}");
    hosts.place.succeed(&["pause"]);
    wait_for("the pause", || (hosts.place.status_json()["state"] == "paused").then_some(()));
    let refused = hosts.place.output(&["checkpoint"]);
    assert!(!refused.status.success() && shown(&refused).contains("nothing new to save"), "{}", shown(&refused));

    // What is on the node itself needs no folder.
    let resumed = hosts.on_node(&hosts.place.command(&["shift", "safe"])).output().unwrap();
    assert!(resumed.status.success(), "{}", shown(&resumed));
    let ended = hosts.place.succeed(&["stop"]);
    assert_eq!(ended.lines().count(), 2, "the answer, and the outcome: {ended}");
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let status = hosts.place.status_json();
    assert_eq!((&status["host"], &status["state"]), (&Value::Null, &json!("stopped")));
    assert_eq!(files(&run, "requests"), Vec::<String>::new());
    assert_eq!((shifts(&run), lease::newest(run.path()).unwrap().unwrap().end.as_deref()), (2, Some("given back")));
}

#[test]
fn the_cockpit_follows_and_steers_a_run_on_another_host() {
    let Some(hosts) = Hosts::new() else { return };
    let (mut child, run) = hosts.start();
    let terminal = Terminal::open(&hosts.place, (120, 40));
    terminal.write(&format!("{} attach\n", env!("CARGO_BIN_EXE_downshift")));
    terminal.wait("the host", |screen| screen.contains("● training") && screen.contains("on host node7"));
    terminal.press(&["d"]);
    terminal.wait("the preview", |screen| screen.contains("accumulate"));
    terminal.confirm("Enter shift");
    terminal.wait("the next rung", |screen| screen.contains("rung 1 accumulate"));
    assert_eq!(shifts(&run), 1);
    let keeper = hosts.place.status_json()["pid_keeper"].as_u64().unwrap();
    kill(keeper as u32);
    let text = "the keeper was killed by SIGKILL and was restarted";
    wait_for("the next keeper", || journal_says(&run, text).then_some(()));
    let step = hosts.place.status_json()["step"].as_u64().unwrap();
    hosts.wait_step(step + 20);
    hosts.place.succeed(&["stop"]);
    terminal.wait("the end", |screen| screen.contains("○ stopped"));
    child.wait().unwrap();
}

#[test]
fn on_a_disk_of_this_host_nothing_is_shared() {
    let mut place = Place::scripted();
    place.variables.push(("DOWNSHIFT_SHARED_FOLDER", PathBuf::from("no")));
    place.script(SLOW, "");
    let (mut child, run) = place.start(&[]);
    wait_for("steps", || (place.status_json()["step"].as_u64() > Some(5)).then_some(()));
    assert!(run.file("run.db-wal").exists());
    assert!(!run.file("leases").exists() && !run.file("requests").exists());
    place.succeed(&["stop"]);
    assert_eq!(child.wait().unwrap().code(), Some(3));

    place.variables[0].1 = PathBuf::from("true");
    let wrong = place.output(&["runs"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(shown(&wrong).contains("DOWNSHIFT_SHARED_FOLDER is `true`; write `yes`"), "{}", shown(&wrong));
}

#[test]
fn a_run_of_another_host_is_refused_by_name_whether_its_keeper_lives_or_not() {
    let Some(hosts) = Hosts::new() else { return };
    let (mut child, run) = hosts.start();
    let path = run.path().to_str().unwrap();
    let holder = |text: &str| text.contains("process ") && text.contains(" on host node7, since 2");
    let second = || {
        for words in [&["keeper", "--run-dir", path, "--device", "cpu"][..], &["keeper", "--parent", "--run-dir", path]]
        {
            let refused = hosts.place.output(words);
            assert!(!refused.status.success() && holder(&shown(&refused)), "{words:?}: {}", shown(&refused));
        }
        let kept = hosts.place.output(&["delete", &run.name(), "--yes"]);
        assert!(!kept.status.success() && holder(&shown(&kept)) && run.file("run.yaml").exists(), "{}", shown(&kept));
    };
    second();
    let beat = || lease::newest(run.path()).unwrap().unwrap().beat;
    let before = beat();
    wait_for("a beat", || (beat() > before).then_some(()));
    second();

    // A keeper whose parent sees its end would give the lease back.
    let lost: Vec<u32> = hosts.place.processes().into_iter().chain([child.id()]).collect();
    // Half a transaction could be taken back on the other host alone.
    let signal = |signal| lost.iter().for_each(|pid| send_signal(*pid, signal));
    wait_for("a moment between two transactions", || {
        signal(Signal::STOP);
        let between = !fs::metadata(run.file("run.db-journal")).is_ok_and(|journal| journal.len() > 0);
        if !between {
            signal(Signal::CONT);
        }
        between.then_some(())
    });
    cut_power(&lost);
    child.wait().unwrap();
    second();
    let status = || -> Value { serde_json::from_str(&hosts.place.succeed(&["status", "--format", "json"])).unwrap() };
    assert_eq!(status()["host"], NODE, "nothing here knows that it is gone");
    let silent = hosts.place.output(&["resume", "--headless"]);
    let said = shown(&silent);
    assert!(holder(&said) && said.contains("has not answered") && said.contains("resume --take-over"), "{said}");
    assert_eq!(files(&run, "requests"), Vec::<String>::new(), "the order was withdrawn");

    // The host itself knows its processes, and goes on.
    let resume = hosts.place.command(&["resume", "--headless"]);
    let mut child = hosts.on_node(&resume).stdout(Stdio::null()).spawn().unwrap();
    let step = status()["step"].as_u64().unwrap();
    hosts.wait_step(step + 5);
    let refused = hosts.place.output(&["resume", "--take-over", "--headless"]);
    assert!(shown(&refused).contains("renews its lease, so it is alive"), "{}", shown(&refused));
    hosts.place.succeed(&["stop"]);
    assert_eq!(child.wait().unwrap().code(), Some(3));
    // Given back, it is anyone's.
    let mut child = hosts.place.command(&["resume", "--headless"]).stdout(Stdio::null()).spawn().unwrap();
    wait_for("training here", || {
        let status = hosts.place.status_json();
        (status["state"] == "training" && status["host"] == Value::Null).then_some(())
    });
    hosts.place.succeed(&["stop"]);
    child.wait().unwrap();
}

/// A folder that is mounted over SFTP: a file system of its own, with a cache of its own, whose locks end at it.
struct Sshfs {
    at: PathBuf,
    server: Child,
    client: Child,
}

impl Sshfs {
    /// Mounts `folder`; none where that is not possible.
    fn mount(folder: &Path, at: PathBuf) -> Option<Self> {
        fs::create_dir(&at).unwrap();
        let servers = ["/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server"];
        let server = servers.iter().find(|server| Path::new(server).exists())?;
        Command::new("sshfs").arg("--version").stdout(Stdio::null()).status().ok()?;
        let mut server = Command::new(server).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut client = Command::new("sshfs");
        client.args(["-f", "-o", "passive"]).arg(format!(":{}", folder.display())).arg(&at);
        client.stdin(server.stdout.take().unwrap()).stdout(server.stdin.take().unwrap()).stderr(Stdio::null());
        let client = client.spawn().unwrap();
        let mut mounted = Self { at, server, client };
        wait_for("the mount", || mounted.state()).then_some(mounted)
    }

    /// Returns whether it is mounted once that is known.
    fn state(&mut self) -> Option<bool> {
        let parent = self.at.parent().unwrap();
        let is_mounted = fs::metadata(&self.at).unwrap().dev() != fs::metadata(parent).unwrap().dev();
        (is_mounted || self.client.try_wait().unwrap().is_some()).then_some(is_mounted)
    }
}

impl Drop for Sshfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.at).stderr(Stdio::null()).status();
        for process in [&mut self.client, &mut self.server] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

#[test]
fn a_lease_and_orders_suffice_where_locks_end_at_the_mount() {
    let Some(hosts) = Hosts::new() else { return };
    let runs = hosts.place.dir.path().join("runs");
    let (mut child, run) = hosts.start();
    let Some(far) = Sshfs::mount(&runs, hosts.place.dir.path().join("far")) else {
        say_untested("sshfs cannot mount a folder");
        return;
    };
    let on_login = |words: &[&str]| {
        let mut command = hosts.place.command(words);
        // Detected, not told.
        command.env_remove("DOWNSHIFT_SHARED_FOLDER").env("DOWNSHIFT_RUNS_DIR", &far.at).output().unwrap()
    };
    assert!(shown(&on_login(&["status"])).contains("on host node7, through the run's folder"));
    let there = far.at.join(run.path().file_name().unwrap());
    let second = on_login(&["keeper", "--run-dir", there.to_str().unwrap(), "--device", "cpu"]);
    assert!(
        shown(&second).contains("the run has a keeper, process ") && !second.status.success(),
        "{}",
        shown(&second)
    );
    let shifted = on_login(&["shift", "down"]);
    assert!(shown(&shifted).contains("will shift to accumulate"), "{}", shown(&shifted));
    assert!(on_login(&["stop"]).status.success());
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert_eq!(shifts(&run), 1);
}

/// An order as a client on another host writes it.
fn shift_down() -> Vec<u8> {
    let request = Request::Shift { to: Target::Down };
    serde_json::to_vec(&Order { to: BOOT.to_owned(), by: "a test".to_owned(), request }).unwrap()
}

/// Kills the keeper after this change of the folder, and returns the next keeper's answer to the order `id`.
fn answer_after_a_kill(hosts: &Hosts, run: &RunDir, id: &str, change: impl FnOnce(u32)) -> String {
    let keeper = hosts.place.status_json()["pid_keeper"].as_u64().unwrap() as u32;
    change(keeper);
    kill(keeper);
    wait_for("the next keeper", || {
        (hosts.place.status_json()["pid_keeper"].as_u64()? != u64::from(keeper)).then_some(())
    });
    let answer = run.file(&format!("requests/{id}.answer"));
    // What kept the dead keeper from answering.
    fs::remove_dir(&answer).ok();
    wait_for("an answer", || fs::read_to_string(&answer).ok().filter(|text| !text.is_empty()))
}

#[test]
fn an_order_is_obeyed_once_whenever_the_keeper_is_killed() {
    let Some(hosts) = Hosts::new() else { return };
    let (mut child, run) = hosts.start();
    let place = |name: &str| {
        fs::write(run.file(".draft"), shift_down()).unwrap();
        fs::rename(run.file(".draft"), run.file("requests").join(name)).unwrap();
    };
    // Before it reads the order.
    let answer = answer_after_a_kill(&hosts, &run, "1-a", |keeper| {
        send_signal(keeper, Signal::STOP);
        place("1-a.json");
    });
    assert!(answer.contains("will shift to accumulate"), "{answer}");
    hosts.wait_rung(1);
    assert_eq!(shifts(&run), 1);

    // After it has obeyed, and before it can answer.
    hosts.wait_step(0);
    let answer = answer_after_a_kill(&hosts, &run, "2-b", |_| {
        fs::create_dir(run.file("requests/2-b.answer")).unwrap();
        place("2-b.json");
        wait_for("the shift", || (shifts(&run) == 2).then_some(()));
    });
    assert!(answer.contains("\"accepted\":true"), "{answer}");
    hosts.wait_rung(2);
    assert_eq!(shifts(&run), 2, "obeyed again");
    // A keeper that was killed while it wrote an answer leaves half of it, under a hidden name.
    let is_order = |name: &String| !name.ends_with(".answer") && !name.starts_with('.');
    wait_for("no order", || (!files(&run, "requests").iter().any(is_order)).then_some(()));
    hosts.place.succeed(&["stop"]);
    child.wait().unwrap();
}

#[test]
fn what_others_wrote_is_refused_and_named_in_the_journal() {
    let Some(hosts) = Hosts::new() else { return };
    let (mut child, run) = hosts.start();
    let file = run.file("requests/3-c.json");
    fs::write(run.file(".draft"), shift_down()).unwrap();
    let mut chmod = Command::new("chmod");
    assert!(chmod.arg("666").arg(run.file(".draft")).status().unwrap().success());
    fs::rename(run.file(".draft"), &file).unwrap();
    wait_for("the refusal", || {
        journal_says(&run, "requests/3-c.json can be changed by other users (mode 666)").then_some(())
    });
    let mut chmod = Command::new("chmod");
    assert!(chmod.args([OsStr::new("755"), run.file("requests").as_os_str()]).status().unwrap().success());
    wait_for("the warning", || journal_says(&run, "requests is open to others (mode 755)").then_some(()));
    let mut chmod = Command::new("chmod");
    assert!(chmod.args([OsStr::new("700"), run.file("requests").as_os_str()]).status().unwrap().success());
    hosts.place.succeed(&["stop"]);
    child.wait().unwrap();
    assert_eq!(shifts(&run), 0);
}
