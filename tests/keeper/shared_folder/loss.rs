//! A lease that is lost, or must be kept: to another host, by a keeper that dies for good, on a full disk.

use super::{BOOT, Hosts, shown};
use crate::helper::{Disk, fill_disk, journal, kill, wait_for};
use downshift::protocol::control::{Request, RunState};
use downshift::store::owners;
use downshift::store::reader::Reader;
use downshift::store::run_dir::RunDir;
use downshift::store::shared_folder::lease;
use downshift::store::shared_folder::orders::{self, Inbox, Order};
use std::fs;
use std::process::{Command, Stdio};

/// The command of a dead keeper, which trains on until this is dropped.
struct Left(String);

impl Drop for Left {
    fn drop(&mut self) {
        let mark = format!("DOWNSHIFT_TOKEN={}", self.0);
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let has_token = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
            if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).filter(|_| has_token) {
                kill(pid);
            }
        }
    }
}

#[test]
fn a_keeper_that_dies_for_good_keeps_the_lease_while_its_command_lives() {
    let Some(hosts) = Hosts::new() else { return };
    let words = ["run", "--headless", "--device", "cpu", "--", "sleep", "1000"];
    let mut child = hosts.on_node(&hosts.place.command(&words)).stdout(Stdio::null()).spawn().unwrap();
    let run = wait_for("a run directory", || hosts.place.newest());
    let pid = |name: &str| -> Option<u32> {
        let text = fs::read_to_string(run.file(name)).ok()?;
        serde_json::from_str::<serde_json::Value>(&text).ok()?["pid"].as_u64().map(|pid| pid as u32)
    };
    let harness = wait_for("the harness", || pid("worker.lock"));
    let _left = Left(wait_for("its token", || owners::worker_record(&run)?.token));
    let mut last = None;
    for _ in 0..6 {
        let next = wait_for("another keeper", || pid("keeper.lock").filter(|pid| Some(*pid) != last));
        // A keeper of this lock is not yet the holder of the lease.
        wait_for("its lease", || {
            lease::newest(run.path()).ok()?.filter(|lease| lease.owner.pid == next && lease.beat > 0)
        });
        kill(next);
        last = Some(next);
    }
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert!(fs::exists(format!("/proc/{harness}")).unwrap(), "its command trains on");
    let held = lease::newest(run.path()).unwrap().unwrap();
    assert_eq!((held.end, held.host.name.as_str()), (None, "node7"));
    let second = hosts.place.output(&["keeper", "--run-dir", run.path().to_str().unwrap(), "--device", "cpu"]);
    assert!(!second.status.success() && shown(&second).contains(" on host node7"), "{}", shown(&second));
}

/// The files that a keeper writes.
fn written(run: &RunDir) -> (Option<RunState>, usize, usize) {
    let reader = Reader::open(run).unwrap();
    let ended = reader.attempts().unwrap().iter().filter(|attempt| attempt.ended_ms.is_some()).count();
    (reader.status().map(|status| status.state), ended, journal(run).len())
}

#[test]
fn a_keeper_that_lost_its_lease_saves_and_writes_nothing_more() {
    let Some(hosts) = Hosts::new() else { return };
    // The first save would be the one of a worker that is asked to end.
    let file = hosts.place.dir.path().join("run.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("every: 50 steps", "every: 1000000 steps")).unwrap();
    let (mut child, run) = hosts.start();
    let worker = hosts.place.status_json()["pid_worker"].clone();
    let before = written(&run);
    let held = lease::newest(run.path()).unwrap().unwrap();
    assert!(lease::supersede(run.path(), &held, "its host was thought to be gone").unwrap());
    assert_ne!(child.wait().unwrap().code(), Some(0));
    assert_eq!(owners::worker(&run), None, "{worker}");
    assert_eq!(written(&run), before);
    let checkpoints = fs::read_dir(run.file("checkpoints")).unwrap().flatten();
    let saved: Vec<_> = checkpoints.map(|entry| entry.file_name()).collect();
    assert!(saved.iter().all(|name| !name.to_string_lossy().starts_with("step-")), "{saved:?}");
    assert_eq!(lease::newest(run.path()).unwrap().unwrap().number, held.number + 1);
}

#[test]
fn a_full_or_read_only_disk_keeps_its_holder_and_takes_no_orders() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(dir.path().join("disk")) else { return };
    let held = lease::take(&disk.0).unwrap().unwrap();
    let _inbox = Inbox::open(&disk.0).unwrap();
    let order = Order { to: BOOT.to_owned(), by: "a test".to_owned(), request: Request::Stop };
    fill_disk(&disk.0.join("full"));
    held.renewal().renew().unwrap().unwrap();
    assert_eq!(lease::newest(&disk.0).unwrap().unwrap().beat, 1, "renewed without room");
    assert!(orders::place(&disk.0, &order).is_err());
    drop(held);
    assert!(lease::newest(&disk.0).unwrap().unwrap().end.is_some(), "given back without room");
    fs::remove_file(disk.0.join("full")).unwrap();

    let mut remount = Command::new("mount");
    remount.args(["-o", "remount,ro"]).arg(&disk.0).stderr(Stdio::null());
    // A process that another test starts right now may still have a file of this disk open for writing.
    wait_for("the disk to be read-only", || remount.status().unwrap().success().then_some(()));
    assert!(lease::newest(&disk.0).unwrap().is_some(), "it can be read");
    assert!(lease::take(&disk.0).is_err() && orders::place(&disk.0, &order).is_err());
}
