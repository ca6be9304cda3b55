//! Other users of the machine: with umask 002 and a shared group they can change nothing that a run is made of, and what they
//! prepare is neither used nor written through. With root's rights, a second user really tries.
#![expect(clippy::unwrap_used, reason = "a test")]

use crate::helper::{Place, journal_says, kill, wait_for};
use downshift::store::run_dir::RunDir;
use rustix::process::{getgid, getuid};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A user without an account.
const STRANGER: u32 = 4242;

/// Sleeps in its first attempt until it is killed. In the second, it writes its umask.
const SCRIPT: &str = "umask > umask.txt
mkdir -p \"$1/out\"
echo weights > \"$1/out/step_1.pt\"
if [ ! -e go ]; then echo $$ > first.new; mv first.new first.pid; exec sleep 600; fi
echo step 1 loss 1.0
echo step 2 loss 0.5
";

const FILE: &str = "name: shared\ntask: command\ncommand: [sh, train.sh, '{run_dir}']\nrestart: from_start\n\
    files: { conf.json: 'prepared: {rung}' }\ncheckpoints: { match: '{run_dir}/out/step_*.pt', copy: true }\n";

/// Starts the program with a umask. Its caches, state and runs do not exist yet.
fn start(place: &Place, umask: &str) -> (Child, RunDir) {
    fs::write(place.dir.path().join("train.sh"), SCRIPT).unwrap();
    fs::write(place.dir.path().join("run.yaml"), FILE).unwrap();
    let program = place.command(&["run", "run.yaml", "--headless", "--trust", "--device", "cpu"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\"")]).arg(program.get_program());
    shell.args(program.get_args()).current_dir(place.dir.path());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let child = shell.spawn().unwrap();
    (child, wait_for("a run directory", || place.newest()))
}

/// Waits for the command of the first attempt; returns its process.
fn first_attempt(place: &Place) -> u32 {
    let pid = place.dir.path().join("first.pid");
    wait_for("the first attempt", || fs::read_to_string(&pid).ok()?.trim().parse().ok())
}

fn end_first_attempt(place: &Place) {
    end_attempt(place, first_attempt(place));
}

/// Kills the first command; the second one ends by itself.
fn end_attempt(place: &Place, pid: u32) {
    fs::write(place.dir.path().join("go"), "").unwrap();
    kill(pid);
}

/// Returns everything below a folder, and the folder.
fn all_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let below = entries.flat_map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => all_below(&entry.path()),
        _ => vec![entry.path()],
    });
    below.chain([folder.to_owned()]).collect()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn with_umask_002_nothing_of_a_run_can_be_changed_by_the_group_and_the_script_keeps_the_umask() {
    let place = Place::scripted();
    let (mut child, run) = start(&place, "002");
    end_first_attempt(&place);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let place_of = |name: &str| place.dir.path().join(name);
    let umask = fs::read_to_string(place_of("umask.txt")).unwrap();
    assert_eq!(umask.trim().trim_start_matches('0'), "2", "the script's files are the user's business");
    let of_script = run.path().join("out");
    assert_eq!(mode(&of_script.join("step_1.pt")), 0o664);
    let folders = ["runs", "cache", "state"].map(place_of);
    let open: Vec<(PathBuf, String)> =
        folders.iter().flat_map(|folder| all_below(folder)).fold(Vec::new(), |mut open, path| {
            let is_link = path.is_symlink();
            if !is_link && !path.starts_with(&of_script) && mode(&path) & 0o022 != 0 {
                open.push((path.clone(), format!("{:o}", mode(&path))));
            }
            open
        });
    assert!(open.is_empty(), "{open:#?}");
    for folder in ["cache", "state"] {
        assert_eq!(mode(&place_of(folder)), 0o700, "{folder}");
    }
    assert_eq!((mode(run.path()), mode(&run.file("run.yaml"))), (0o755, 0o644), "others may read a run");
    if !getuid().is_root() {
        return;
    }
    // A real member of the group looks for what it may write.
    fs::set_permissions(place.dir.path(), Permissions::from_mode(0o755)).unwrap();
    let mut find = Command::new("find");
    find.arg("runs").args(["-writable", "-not", "-type", "l"]).current_dir(place.dir.path());
    let found = find.uid(STRANGER).gid(getgid().as_raw()).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    let found: Vec<&str> = found.lines().filter(|path| !path.contains("/out")).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_stricter_umask_stays() {
    let place = Place::scripted();
    let (mut child, run) = start(&place, "077");
    end_first_attempt(&place);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!((mode(run.path()), mode(&run.file("run.yaml"))), (0o700, 0o600));
    assert_eq!(fs::read_to_string(place.dir.path().join("umask.txt")).unwrap().trim(), "0077");
}

#[test]
fn a_prepared_folder_of_the_next_attempt_is_not_written_through() {
    let place = Place::scripted();
    let (mut child, run) = start(&place, "022");
    let pid = first_attempt(&place);
    let secret = place.dir.path().join("secret");
    fs::write(&secret, "kept").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    // As versions before left it under umask 002.
    fs::set_permissions(run.path().join("attempts"), Permissions::from_mode(0o775)).unwrap();
    let prepared = run.path().join("attempts/2");
    fs::create_dir(&prepared).unwrap();
    symlink(&secret, prepared.join("conf.json")).unwrap();
    if getuid().is_root() {
        chown(&prepared, Some(STRANGER), None).unwrap();
    }
    end_attempt(&place, pid);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(fs::read_to_string(&secret).unwrap(), "kept");
    let written = run.path().join("attempts/2/conf.json");
    assert!(!written.is_symlink());
    assert_eq!(fs::read_to_string(&written).unwrap(), "prepared: full");
    assert_eq!(mode(&run.path().join("attempts")), 0o755, "closed again");
    if getuid().is_root() {
        assert_eq!(fs::metadata(&prepared).unwrap().uid(), 0);
        assert!(run.path().join("attempts/2.foreign-1/conf.json").is_symlink());
        assert!(journal_says(&run, "another user made") && journal_says(&run, "was set aside as"));
    }
}
