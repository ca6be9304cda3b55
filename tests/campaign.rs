//! The short form of the campaign: kills, injected errors, damaged checkpoints and power cuts against the
//! real program. RELIABILITY.md describes the long form.
#![cfg(feature = "train")]

use std::path::Path;
use std::process::Command;

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
        "kill -9 worker",
        "kill -9 at each system call: next save",
        "ENOSPC",
        "EIO",
        "power cut",
        "control",
        "keeper killed while run.db is locked",
        "run.db lost after three attempts",
        "lock files deleted",
        "a damaged page",
        "mixed with kills",
    ] {
        assert!(said.contains(fault), "{fault} was not tried:\n{said}");
    }
}
