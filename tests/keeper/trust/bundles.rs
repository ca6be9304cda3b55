//! A bundle discloses nothing that a link points to, and no secret.

use super::{Trap, finish, stderr};
use crate::helper::wait_status;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::Path;

/// Returns the files of an archive, with their names.
fn unpacked(archive: &Path) -> Vec<(String, String)> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(archive).unwrap()));
    let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.unwrap();
        let (name, mut text) = (entry.path().unwrap().display().to_string(), String::new());
        entry.read_to_string(&mut text).unwrap();
        (name.split_once('/').unwrap().1.to_owned(), text)
    };
    archive.entries().unwrap().map(read).collect()
}

#[test]
fn logs_that_are_links_are_neither_written_nor_packed() {
    let trap = Trap::new();
    trap.place.script("{ step_ms: 1, save_ms: 1 }", "");
    let (child, run) = trap.place.start(&["--set", "training.steps=60"]);
    assert_eq!(finish(child), Some(0));
    wait_status(&run, "the keeper's end", |status| status.pid_keeper.is_none());
    let private = trap.place.dir.path().join("private");
    fs::write(&private, "nobody else's business\n").unwrap();
    let link = |name: &str| {
        fs::rename(run.file(name), run.file(&format!("{name}.kept"))).unwrap();
        symlink(&private, run.file(name)).unwrap();
    };
    link("keeper.log");
    let refused = trap.place.output(&["resume", "--headless"]);
    assert!(stderr(&refused).contains("keeper.log: a symbolic link, or not a regular file"), "{}", stderr(&refused));
    link("worker.log");
    let checkpoint = fs::read_dir(run.file("checkpoints")).unwrap().flatten().next().unwrap().path();
    fs::remove_file(checkpoint.join("state.json")).unwrap();
    symlink(&private, checkpoint.join("state.json")).unwrap();
    let made = trap.place.output(&["bundle", "--out", "b.tar.gz"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let listed = String::from_utf8_lossy(&made.stdout).into_owned();
    for name in ["keeper.log", "worker.log", "state.json"] {
        assert!(listed.contains(&format!("{name}: it is a symbolic link")), "{listed}");
    }
    let parts = unpacked(&trap.place.dir.path().join("b.tar.gz"));
    for (name, text) in &parts {
        assert!(!text.contains("nobody else's"), "{name}");
    }
    assert!(parts.iter().any(|(name, text)| name == "left-out.txt" && text.contains("worker.log: ")), "{parts:?}");
    assert_eq!(fs::read_to_string(&private).unwrap(), "nobody else's business\n");
}

#[test]
fn a_bundle_leaves_out_the_secrets_of_the_users_own_settings_and_of_other_programs() {
    let trap = Trap::new();
    trap.place.script("{ step_ms: 1, save_ms: 1 }", "");
    let (child, run) = trap.place.start(&["--set", "training.steps=60"]);
    assert_eq!(finish(child), Some(0));
    let kept = trap.place.dir.path().join("token");
    fs::write(&kept, "kept-in-a-file").unwrap();
    let hooks = format!(
        "webhooks:\n  - {{ kind: ntfy, url: 'https://ntfy.sh/my-topic', token: 'file:{}' }}\n  - {{ kind: discord, url: 'env:NOT_SET_HERE' }}\n",
        kept.display()
    );
    let settings = trap.place.dir.path().join("config/downshift/notify.yaml");
    fs::write(settings, format!("bell: false\ndesktop: false\n{hooks}")).unwrap();
    let lines = "sent to https://ntfy.sh/my-topic with kept-in-a-file\nNOT_SET_HERE=https://example.org/9f8e7d\n\
                 AWS_SECRET_ACCESS_KEY wJalrXUtnFEMI\nAuthorization: token 0a1b2c3d\naccess_key=hunter2hunter\n";
    File::options().append(true).open(run.file("worker.log")).unwrap().write_all(lines.as_bytes()).unwrap();
    let made = trap.place.output(&["bundle", "--out", "b.tar.gz"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let parts = unpacked(&trap.place.dir.path().join("b.tar.gz"));
    for (name, text) in &parts {
        for secret in ["my-topic", "kept-in-a-file", "9f8e7d", "wJalrXUtnFEMI", "0a1b2c3d", "hunter2hunter"] {
            assert!(!text.contains(secret), "{name} holds {secret}");
        }
    }
    assert!(
        parts.iter().any(|(name, text)| name == "worker.log" && text.contains("sent to https://ntfy.sh/[removed]"))
    );
}
