//! A run file is code: everything it loads, contacts and discloses needs approval, and read-only commands run
//! none of it.
#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

mod bundles;

use crate::helper::{Place, example, journal_says, kill, wait_for, wait_state, wait_status};
use downshift::protocol::control::RunState;
use downshift::store::run_dir::RunDir;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A place whose run file names a library and a webhook, with markers that show if either is used.
struct Trap {
    place: Place,
    library: PathBuf,
    url: String,
    contacts: Arc<AtomicUsize>,
}

impl Trap {
    fn new() -> Self {
        let mut place = Place::scripted();
        place.variables.push(("HOOK_SECRET", "s3cret-of-hook".into()));
        let library = place.dir.path().join("libtrap.so");
        fs::copy(example("libfake_nvml.so"), &library).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let contacts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&contacts);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::Relaxed);
                let _ = stream.read(&mut [0; 4096]);
                let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            }
        });
        let trap = Self { place, library, url, contacts };
        trap.place.script("{ step_ms: 2, save_ms: 1 }", &trap.sections("HOOK_SECRET"));
        trap
    }

    /// Returns the sections of a run file that need approval.
    fn sections(&self, variable: &str) -> String {
        let hook = format!("{{ kind: json, url: '{}', token: 'env:{variable}' }}", self.url);
        format!(
            "probe: {{ nvml: {} }}\nnotify: {{ bell: false, desktop: false, level: info, webhooks: [{hook}] }}\n",
            self.library.display()
        )
    }

    fn loaded(&self) -> bool {
        self.library.with_extension("loaded").exists()
    }

    fn contacts(&self) -> usize {
        self.contacts.load(Ordering::Relaxed)
    }

    /// Creates a finished run from a harmless file, then puts all of them into its run.yaml.
    fn planted_run(&self) -> RunDir {
        self.place.script("{ step_ms: 1, save_ms: 1 }", "");
        let (mut child, run) = self.place.start(&["--set", "training.steps=60"]);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        wait_status(&run, "the keeper's end", |status| status.pid_keeper.is_none());
        let file = run.file("run.yaml");
        let text = fs::read_to_string(&file).unwrap();
        let without = text.replace("probe: {}\n", "").replace("notify: null\n", "");
        assert!(without.len() < text.len() - 20, "{text}");
        fs::write(&file, without + &self.sections("HOOK_SECRET")).unwrap();
        run
    }

    /// Runs a command in its own terminal, with an answer to its question.
    fn asked(&self, words: &[&str], answer: &str) -> (Option<i32>, String) {
        let (mut master, terminal) = terminal();
        let mut command = self.place.command(words);
        command.stdin(terminal.try_clone().unwrap()).stderr(terminal.try_clone().unwrap());
        let out = File::create(self.place.dir.path().join("out.txt")).unwrap();
        let mut child = command.stdout(out).spawn().unwrap();
        drop((terminal, command));
        let mut shown = read_until(&mut master, "[y/N] ");
        if shown.contains("[y/N] ") {
            master.write_all(answer.as_bytes()).unwrap();
        }
        shown += &read_until(&mut master, "\0");
        (child.wait().unwrap().code(), shown)
    }
}

/// Opens a terminal: the user's side and the program's side.
fn terminal() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize { ws_row: 40, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = File::options().read(true).write(true).open(OsStr::from_bytes(name.as_bytes())).unwrap();
    (File::from(master), terminal)
}

/// Returns the terminal output up to a text, or to its end.
fn read_until(master: &mut File, end: &str) -> String {
    let mut shown = String::new();
    let mut bytes = [0; 1024];
    // Reading a terminal fails once no process holds it open.
    while let Ok(count @ 1..) = master.read(&mut bytes) {
        shown += &String::from_utf8_lossy(&bytes[..count]);
        if shown.contains(end) {
            break;
        }
    }
    shown
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn finish(mut child: Child) -> Option<i32> {
    child.wait().unwrap().code()
}

#[test]
fn reading_commands_load_and_contact_nothing() {
    let trap = Trap::new();
    let run = trap.planted_run();
    trap.place.script("{ step_ms: 1 }", &trap.sections("HOOK_SECRET"));
    let log = run.file("worker.log").display().to_string();
    for words in [
        &["check", "run.yaml"][..],
        &["runs"],
        &["status"],
        &["status", "--format", "json"],
        &["export"],
        &["plot", "--out", "plot.svg"],
        &["report", "--out", "report.html"],
        &["triage", &log],
        &["checkpoints", "list"],
        &["bundle", "--out", "b.tar.gz"],
    ] {
        let done = trap.place.output(words);
        assert!(done.status.success(), "{words:?}: {}", stderr(&done));
        assert!(!trap.loaded() && trap.contacts() == 0, "{words:?}");
    }
    let (mut master, terminal) = terminal();
    let mut cockpit = trap.place.command(&["attach"]);
    cockpit.stdin(terminal.try_clone().unwrap()).stdout(terminal).env("TERM", "xterm-256color");
    let mut shown = cockpit.spawn().unwrap();
    read_until(&mut master, "finished");
    shown.kill().unwrap();
    shown.wait().unwrap();
    assert!(!trap.loaded() && trap.contacts() == 0, "attach");
    let shown = String::from_utf8(trap.place.output(&["check", "run.yaml"]).stdout).unwrap();
    assert!(shown.contains("needs your approval for") && shown.contains(&trap.url), "{shown}");
    // The markers work: an approved run leaves both.
    let approved = trap.place.output(&["run", "run.yaml", "--headless", "--trust", "--set", "training.steps=300"]);
    assert_eq!(approved.status.code(), Some(0), "{}", stderr(&approved));
    wait_for("both signs", || (trap.loaded() && trap.contacts() > 0).then_some(()));
}

#[test]
fn without_a_terminal_running_commands_refuse_and_list_the_grants() {
    let trap = Trap::new();
    for words in [
        &["run", "run.yaml", "--headless"][..],
        &["trial", "run.yaml", "--for", "1s"],
        &["plan", "run.yaml", "--measure"],
        &["prepare", "run.yaml"],
        &["compare-knob", "run.yaml", "optimizer.lr", "0.1", "0.2", "--steps", "2"],
        &["notify", "test", "run.yaml"],
    ] {
        let refused = trap.place.output(words);
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(13), "{words:?}: {said}");
        let library = trap.library.display().to_string();
        for part in ["library", &library, "probe.nvml", &trap.url, "environment", "HOOK_SECRET", "--trust"] {
            assert!(said.contains(part), "{words:?} does not say {part}: {said}");
        }
        assert!(!said.contains("s3cret-of-hook"), "{said}");
        assert!(trap.place.newest().is_none() && !trap.loaded() && trap.contacts() == 0, "{words:?}");
    }
    let measured = trap.place.output(&["plan", "run.yaml", "--measure", "--trust"]);
    assert!(!stderr(&measured).contains("nothing was started"), "{}", stderr(&measured));
}

#[test]
fn the_preflight_list_names_pending_approvals_and_what_is_missing() {
    let mut trap = Trap::new();
    let preflight = |trap: &Trap| {
        let listed = trap.place.output(&["check", "run.yaml", "--preflight"]);
        (listed.status.code(), String::from_utf8_lossy(&listed.stdout).into_owned())
    };
    let (code, shown) = preflight(&trap);
    assert_eq!(code, Some(13), "{shown}");
    assert!(shown.contains("fail  approval") && shown.contains("probe.nvml") && shown.contains(&trap.url), "{shown}");
    let start = ["run", "run.yaml", "--headless", "--trust", "--set", "training.steps=10"];
    assert_eq!(trap.place.output(&start).status.code(), Some(0));
    let (code, shown) = preflight(&trap);
    assert!(code == Some(0) && shown.contains("ok    approval") && !shown.contains("warn"), "{code:?} {shown}");
    fs::remove_file(&trap.library).unwrap();
    trap.place.variables.clear();
    let (_, shown) = preflight(&trap);
    for part in ["probe.nvml: ", "libtrap.so does not exist", "the environment variable HOOK_SECRET is not set"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn an_approval_is_kept_and_holds_for_what_was_shown() {
    let trap = Trap::new();
    let start = |more: &[&str]| {
        let words = [&["run", "run.yaml", "--headless", "--set", "training.steps=10"], more].concat();
        trap.place.output(&words).status.code()
    };
    assert_eq!(start(&["--trust"]), Some(0));
    let kept = trap.place.dir.path().join("state/downshift/trusted");
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(start(&[]), Some(0), "approved before");
    assert_eq!(start(&["--set", "optimizer.lr=0.2"]), Some(0), "nothing more is asked for");
    File::options().append(true).open(&trap.library).unwrap().write_all(b"more").unwrap();
    assert_eq!(start(&[]), Some(13), "another library under the same name");
    trap.place.script("{ step_ms: 1 }", &trap.sections("AWS_SECRET_ACCESS_KEY"));
    assert_eq!(start(&[]), Some(13), "another secret");
    trap.place.script("{ step_ms: 1 }", "");
    fs::remove_file(&kept).unwrap();
    assert_eq!(start(&[]), Some(0), "a file that only trains needs none");
}

#[test]
fn on_a_terminal_it_asks_and_only_yes_starts_it() {
    let trap = Trap::new();
    let words = ["run", "run.yaml", "--set", "training.steps=10"];
    for no in ["n\n", "\n", "yesterday\n", "\u{4}"] {
        let (code, shown) = trap.asked(&words, no);
        assert_eq!(code, Some(13), "{no:?}: {shown}");
        assert!(shown.contains(&trap.url) && shown.contains("HOOK_SECRET"), "{shown}");
        for part in
            ["holds for later runs too, until this list changes", "any other answer refuses, and nothing starts"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(trap.place.newest().is_none() && !trap.loaded());
    }
    let (code, shown) = trap.asked(&words, "y\n");
    assert_eq!(code, Some(0), "{shown}");
    let (code, shown) = trap.asked(&words, "");
    assert_eq!(code, Some(0), "asked again: {shown}");
    assert!(!shown.contains("[y/N]"), "{shown}");
}

#[test]
fn a_restarted_keeper_does_not_ask_and_resume_asks_about_an_edited_file() {
    let trap = Trap::new();
    let (child, run) = trap.place.start(&["--trust", "--set", "training.steps=100000"]);
    let first = wait_status(&run, "steps", |status| status.step > 20);
    let state = trap.place.dir.path().join("state/downshift");
    fs::rename(state.join("trusted"), state.join("aside")).unwrap();
    kill(first.pid_keeper.unwrap());
    wait_status(&run, "a second keeper at work", |status| {
        status.pid_keeper.is_some_and(|pid| Some(pid) != first.pid_keeper) && status.state == RunState::Training
    });
    wait_for("the journal", || journal_says(&run, "and was restarted").then_some(()));
    assert!(trap.place.output(&["stop"]).status.success());
    wait_state(&run, RunState::Stopped);
    assert_eq!(finish(child), Some(3));
    let refused = |why: &str| {
        for words in [&["resume", "--headless"][..], &["resume", "--headless", "--as-base", "--epochs", "1"]] {
            let done = trap.place.output(words);
            assert_eq!(done.status.code(), Some(13), "{words:?}: {why}: {}", stderr(&done));
        }
    };
    refused("the approval was taken back");
    fs::rename(state.join("aside"), state.join("trusted")).unwrap();
    let (file, text) = (run.file("run.yaml"), fs::read_to_string(run.file("run.yaml")).unwrap());
    fs::write(&file, text.replace("HOOK_SECRET", "AWS_SECRET_ACCESS_KEY")).unwrap();
    refused("the file was edited");
    fs::write(&file, text).unwrap();
    let child = trap.place.command(&["resume", "--headless"]).spawn().unwrap();
    wait_state(&run, RunState::Training);
    assert!(trap.place.output(&["stop"]).status.success());
    assert_eq!(finish(child), Some(3));
}

#[test]
fn a_run_directory_that_others_can_write_is_not_resumed() {
    let trap = Trap::new();
    trap.place.script("{ step_ms: 1, save_ms: 1 }", "");
    let (child, run) = trap.place.start(&["--set", "training.steps=60"]);
    assert_eq!(finish(child), Some(0));
    wait_status(&run, "the keeper's end", |status| status.pid_keeper.is_none());
    for (path, open, usual) in [(run.path().to_owned(), 0o777, 0o755), (run.file("run.yaml"), 0o666, 0o644)] {
        fs::set_permissions(&path, Permissions::from_mode(open)).unwrap();
        for words in [
            &["resume", "--headless"][..],
            &["resume", "--headless", "--as-base"],
            &["checkpoints", "prune"],
            &["checkpoints", "compare"],
            &["checkpoints", "export", "--format", "hf", "--out", "hf"],
            &["plan", "scripted", "--measure"],
        ] {
            let refused = trap.place.output(words);
            assert_eq!(refused.status.code(), Some(1), "{words:?}");
            assert!(stderr(&refused).contains("chmod go-w"), "{}", stderr(&refused));
        }
        let reading = ["status", "checkpoints list", "checkpoints export --out weights"];
        let read = |words: &str| trap.place.output(&words.split(' ').collect::<Vec<_>>()).status.success();
        assert_eq!(reading.map(read), [true; 3], "reading does no harm");
        let again = trap.place.output(&["checkpoints", "export", "--out", "weights"]);
        assert!(stderr(&again).contains("weights exists; nothing was written"), "{}", stderr(&again));
        fs::remove_file(trap.place.dir.path().join("weights")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(usual)).unwrap();
    }
    assert!(trap.place.output(&["checkpoints", "prune"]).status.success());
    // Only root can give a directory to another user.
    if std::os::unix::fs::chown(run.path(), Some(1), None).is_ok() {
        let refused = trap.place.output(&["resume", "--headless"]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).contains("belongs to user 1"), "{}", stderr(&refused));
    }
}

#[test]
fn a_run_file_that_changes_what_it_starts_is_not_started_at_the_next_attempt() {
    let place = Place::scripted();
    let script = "if [ ! -e \"$1\" ]; then echo $$ > first.new; mv first.new first.pid; exec sleep 600; fi\n";
    fs::write(place.dir.path().join("train.sh"), script).unwrap();
    let text = "name: changed\ntask: command\ncommand: [sh, train.sh, go]\nrestart: from_start\n";
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    let (mut child, run) = place.start(&["--trust", "--device", "cpu"]);
    let first = place.dir.path().join("first.pid");
    let pid = wait_for("the command", || fs::read_to_string(&first).ok()?.trim().parse::<u32>().ok());
    let stored = fs::read_to_string(run.file("run.yaml")).unwrap();
    let changed = stored.replace("- go", "- planted");
    assert_ne!(stored, changed, "{stored}");
    fs::write(run.file("run.yaml"), changed).unwrap();
    fs::write(place.dir.path().join("planted"), "").unwrap();
    wait_for("a warning", || journal_says(&run, "nobody has approved that").then_some(()));
    // Not even a keeper that never saw the other file starts it.
    let keeper = wait_status(&run, "the keeper", |status| status.pid_keeper.is_some()).pid_keeper.unwrap();
    kill(keeper);
    wait_status(&run, "another keeper", |status| status.pid_keeper.is_some_and(|pid| pid != keeper));
    kill(pid);
    assert_eq!(child.wait().unwrap().code(), Some(4));
    let status = wait_state(&run, RunState::NeedsPerson);
    assert!(status.why.is_some_and(|why| why.contains("asks for approval")), "{:?}", status.attempts);
    assert_eq!(status.attempts, 1, "nothing was started");
    let refused = place.output(&["resume"]);
    assert_eq!(refused.status.code(), Some(13), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("needs your approval for"), "{}", stderr(&refused));
}
