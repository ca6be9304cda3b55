//! The short form of the campaign: kills, injected errors, damaged checkpoints and power cuts against the
//! real program. RELIABILITY.md describes the long form.
#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

#[cfg(feature = "train")]
#[test]
fn nothing_is_lost_in_the_short_campaign() {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().and_then(Path::parent).unwrap().join("examples/campaign");
    assert!(program.exists(), "{} is missing: cargo build --example campaign", program.display());
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(program)
        .args(["--quick", "--kills", "12", "--seed", "7", "--dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    // A campaign that tries nothing loses nothing, so every part must have run.
    for fault in [
        "kill -9 worker |",
        "kill -9 keeper |",
        "kill -9 at each system call: next save |",
        "ENOSPC at each call: next save |",
        "EIO at each call: next save |",
        "one bit flipped, in each of ",
        "power cut: states of the disk",
        "control: without syncs of files, ",
        "control: without syncs of folders, ",
        "keeper killed while the disk fails (EIO) |",
        "keeper killed while run.db is locked |",
        "run.db locked, nothing killed |",
        "run.db lost after three attempts |",
        "lock files deleted, resume |",
        "run.db: a damaged page, each of ",
        "kill -9 worker, in a search |",
        "control: a forgotten count of architecture updates, differences found |",
        "kill -9 worker, mixed with stops |",
        "SIGSTOP worker, mixed with kills |",
        "kill -9 keeper, mixed with stops |",
        "SIGSTOP keeper for 3 s, mixed with kills |",
    ] {
        assert!(said.contains(&format!("\n| {fault}")), "{fault} was not tried:\n{said}");
    }
    // The only part that may be left out, and never without a word: a file system cannot be mounted everywhere.
    let full = "keeper killed while the disk is full";
    assert!(said.contains(&format!("\n| {full} |")) || said.contains(&format!("{full}: skipped, ")), "{said}");
}

/// Commands of the script instead of the real ones: `cargo` passes everything and says so.
fn command(folder: &Path, words: &[&str]) -> String {
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let author =
        ["AUTHOR", "COMMITTER"].map(|who| [(format!("GIT_{who}_NAME"), "a"), (format!("GIT_{who}_EMAIL"), "a@b")]);
    let output = Command::new(words[0])
        .args(&words[1..])
        .current_dir(folder)
        .env("PATH", path)
        .envs(author.into_iter().flatten())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words:?}: {said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn a_unit_counts_as_passed_for_the_code_that_passed_it_alone() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    for name in ["bin", "scripts", "src"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/campaign"), folder.join("scripts/campaign")).unwrap();
    fs::write(folder.join("bin/cargo"), "#!/bin/sh\necho \"$@\"\n").unwrap();
    fs::set_permissions(folder.join("bin/cargo"), Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.join(".gitignore"), "/target\n").unwrap();
    fs::write(folder.join("src/lib.rs"), "one\n").unwrap();
    for words in [&["init", "-q"][..], &["add", "-A"], &["commit", "-q", "-m", "a"]] {
        command(folder, &[&["git"], words].concat());
    }
    let passed_before = || command(folder, &["scripts/campaign", "recover"]).contains("passed before");
    assert!(!passed_before() && passed_before(), "a unit that passed is skipped");
    for change in ["two\n", "three\n"] {
        fs::write(folder.join("src/lib.rs"), change).unwrap();
        assert!(!passed_before(), "this code was never run");
        assert!(passed_before());
    }
    fs::write(folder.join("src/new.rs"), "four\n").unwrap();
    assert!(!passed_before(), "a new file is new code");
    fs::remove_file(folder.join("src/new.rs")).unwrap();
    fs::write(folder.join("src/lib.rs"), "one\n").unwrap();
    assert!(passed_before(), "the commit itself");
}
