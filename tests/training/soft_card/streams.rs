//! Streams, events, devices, and memory shared between processes.

use super::card::Argument::{Float, Memory, Number};
use super::card::{Card, Handle, Launch, child, on_card};
use super::kernels::SOURCE;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::{fs, ptr};

const MIB: usize = 1 << 20;
/// A launch that takes long enough to be overtaken.
const SLOW: &str = r#"[{"slow_ms": 200}]"#;

fn slow_card(folder: &Path) -> String {
    let path = folder.join("faults.json");
    fs::write(&path, SLOW).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Launches a kernel that doubles 256 threes; returns the address of its output.
fn double_threes(card: &Card, stream: Handle) -> u64 {
    let (input, output) = (card.put(&[3_f32; 256]), card.put(&[0_f32; 256]));
    let function = card.load_kernel(SOURCE, "scale");
    let arguments = [Memory(&input), Memory(&output), Number(&256), Float(&2.0)];
    let launch = Launch { function, blocks: 1, threads: 256, shared_bytes: 0, stream, arguments: &arguments };
    assert_eq!(card.launch(&launch), 0);
    output
}

#[test]
fn a_launch_returns_before_it_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let faults = slow_card(folder.path());
    on_card("streams::a_launch_returns_before_it_is_done", &[("FAULTS", &faults)], |card| {
        let stream = card.create_stream();
        let output = double_threes(card, stream);
        let event = card.record(stream);
        assert_eq!((card.query(stream), card.query_event(event)), (600, 600));
        // Nothing has been written so far, and another stream does not wait.
        assert_eq!(card.get::<f32>(output, 256), [0.0; 256]);
        // A stream that waits for the event does.
        let other = card.create_stream();
        assert_eq!(card.wait_for_event(other, event), 0);
        let pinned = card.allocate_pinned(1024).unwrap();
        assert_eq!(card.copy_to_host_later(pinned, output, 1024, other), 0);
        assert_eq!(card.query(other), 600);
        assert_eq!(card.synchronize(other), 0);
        // SAFETY: the pinned memory has 1024 bytes, and the copy to it is done.
        let copied = unsafe { std::slice::from_raw_parts(pinned, 1024) };
        assert_eq!((copied, card.query_event(event)), (6_f32.to_ne_bytes().repeat(256).as_slice(), 0));
    });
}

/// Pageable memory belongs to the caller again after the call; pinned memory only once the copy is done.
#[test]
fn copies_from_pageable_memory_are_staged() {
    let folder = tempfile::tempdir().unwrap();
    let faults = slow_card(folder.path());
    on_card("streams::copies_from_pageable_memory_are_staged", &[("FAULTS", &faults)], |card| {
        let stream = card.create_stream();
        double_threes(card, stream);
        let (mut pageable, pinned) = (vec![1_u8; 1024], card.allocate_pinned(1024).unwrap());
        let targets = [card.put(&[0_u8; 1024]), card.put(&[0_u8; 1024])];
        // SAFETY: the pinned memory has 1024 bytes.
        unsafe { pinned.write_bytes(1, 1024) };
        assert_eq!(card.copy_to_device_later(targets[0], pageable.as_ptr(), 1024, stream), 0);
        assert_eq!(card.copy_to_device_later(targets[1], pinned, 1024, stream), 0);
        pageable.fill(2);
        // SAFETY: as above.
        unsafe { pinned.write_bytes(2, 1024) };
        assert_eq!(card.synchronize(stream), 0);
        assert_eq!(card.get::<u8>(targets[0], 1024), [1; 1024]);
        assert_eq!(card.get::<u8>(targets[1], 1024), [2; 1024]);
    });
}

#[test]
fn devices_have_memory_and_errors_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let faults = folder.path().join("faults.json");
    fs::write(&faults, r#"[{"launch": 1, "code": 719, "device": 1}]"#).unwrap();
    let settings = [("DEVICES", "2"), ("MEMORY_MIB", "64"), ("FAULTS", faults.to_str().unwrap())];
    on_card("streams::devices_have_memory_and_errors_of_their_own", &settings, |card| {
        assert_eq!(card.device_count(), 2);
        assert!(card.allocate(48 * MIB).is_ok());
        assert_eq!(card.allocate(48 * MIB), Err(2));
        card.choose_device(1);
        assert!(card.allocate(48 * MIB).is_ok());
        double_threes(card, ptr::null_mut());
        assert_eq!(card.synchronize(ptr::null_mut()), 719);
        card.choose_device(0);
        let output = double_threes(card, ptr::null_mut());
        assert_eq!(card.get::<f32>(output, 256), [6.0; 256]);
    });
}

#[test]
fn memory_is_counted_and_limited() {
    on_card("streams::memory_is_counted_and_limited", &[("MEMORY_MIB", "64")], |card| {
        assert_eq!(card.memory(), (64 * MIB, 64 * MIB));
        let block = card.allocate(40 * MIB + 1).unwrap();
        assert_eq!(card.memory(), (24 * MIB - 512, 64 * MIB));
        assert_eq!(card.allocate(24 * MIB), Err(2));
        assert_eq!((card.free(block), card.free(block)), (0, 1));
        assert!(card.allocate(64 * MIB).is_ok());
    });
}

/// Holds 40 of 64 MiB until its input ends: the other process of the next test.
#[test]
#[ignore = "`processes_share_the_capacity` runs it as its second process"]
fn hold_memory() {
    on_card("streams::hold_memory", &[], |card| {
        assert!(card.allocate(40 * MIB).is_ok());
        println!("\nholds");
        std::io::stdout().flush().unwrap();
        let _ = std::io::stdin().read_line(&mut String::new());
    });
}

#[test]
fn processes_share_the_capacity() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [("MEMORY_MIB", "64"), ("LEDGER", folder.path().to_str().unwrap())];
    on_card("streams::processes_share_the_capacity", &settings, |card| {
        let ledger = std::env::var("SOFT_CARD_LEDGER").unwrap();
        let mut other = child("streams::hold_memory", &[("MEMORY_MIB", "64"), ("LEDGER", &ledger)]);
        let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "holds"));
        assert_eq!(card.memory(), (24 * MIB, 64 * MIB));
        assert_eq!(card.allocate(40 * MIB), Err(2));
        let block = card.allocate(20 * MIB).unwrap();
        let entry = |pid: u32| fs::read_to_string(Path::new(&ledger).join(pid.to_string())).unwrap();
        assert_eq!(entry(other.id()), format!("{} 0 listed", 40 * MIB));
        assert_eq!(entry(std::process::id()), format!("{} 0 listed", 20 * MIB));
        // A process that dies leaves its entry, which does not count any more.
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(card.memory(), (44 * MIB, 64 * MIB));
        // Unless its memory is not released.
        let entry = Path::new(&ledger).join(other.id().to_string());
        fs::write(&entry, format!("{} 9 stuck", 40 * MIB)).unwrap();
        assert_eq!(card.memory(), (4 * MIB, 64 * MIB));
        fs::remove_file(entry).unwrap();
        assert!(card.allocate(40 * MIB).is_ok());
        assert_eq!(card.free(block), 0);
    });
}
