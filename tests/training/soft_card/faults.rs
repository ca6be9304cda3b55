//! Faults on order.

use super::card::Argument::{Float, Memory, Number};
use super::card::{Card, Launch, on_card};
use super::kernels::SOURCE;
use std::time::{Duration, Instant};
use std::{fs, ptr};

/// Runs `body` on a card with these faults, which it may change by writing the file.
fn on_faulty_card(test: &str, faults: &str, body: impl FnOnce(&Card)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faults.json");
    fs::write(&path, faults).unwrap();
    on_card(test, &[("FAULTS", path.to_str().unwrap()), ("MEMORY_MIB", "64")], body);
}

fn change_faults(faults: &str) {
    fs::write(std::env::var("SOFT_CARD_FAULTS").unwrap(), faults).unwrap();
}

/// Launches a kernel that doubles 256 numbers.
fn double(card: &Card, memory: [u64; 2]) -> i32 {
    let (function, stream) = (card.load_kernel(SOURCE, "scale"), ptr::null_mut());
    let arguments = [Memory(&memory[0]), Memory(&memory[1]), Number(&256), Float(&2.0)];
    card.launch(&Launch { function, blocks: 1, threads: 256, shared_bytes: 0, stream, arguments: &arguments })
}

fn numbers(card: &Card) -> [u64; 2] {
    [card.put(&[3_f32; 256]), card.put(&[0_f32; 256])]
}

#[test]
fn a_sticky_error_arrives_late_and_stays() {
    on_faulty_card("faults::a_sticky_error_arrives_late_and_stays", r#"[{"launch": 2, "code": 719}]"#, |card| {
        let memory = numbers(card);
        assert_eq!(double(card, memory), 0);
        assert_eq!(card.get::<f32>(memory[1], 256), [6.0; 256]);
        // The second launch and calls behind it succeed until one waits.
        assert_eq!(double(card, memory), 0);
        let event = card.record(ptr::null_mut());
        assert_eq!(card.synchronize_event(event), 719);
        assert_eq!(card.synchronize(ptr::null_mut()), 719);
        assert_eq!(card.read::<f32>(memory[1], 256), Err(719));
        assert_eq!(card.allocate(512), Err(719));
    });
}

#[test]
fn an_error_that_is_not_sticky_is_over_with_its_launch() {
    let faults = r#"[{"launch": 1, "code": 701, "sticky": false}]"#;
    on_faulty_card("faults::an_error_that_is_not_sticky_is_over_with_its_launch", faults, |card| {
        let memory = numbers(card);
        assert_eq!(double(card, memory), 701);
        assert_eq!(card.get::<f32>(memory[1], 256), [0.0; 256]);
        assert_eq!(double(card, memory), 0);
        assert_eq!(card.get::<f32>(memory[1], 256), [6.0; 256]);
    });
}

#[test]
fn a_fault_reaches_a_live_process() {
    on_faulty_card("faults::a_fault_reaches_a_live_process", "[]", |card| {
        let memory = numbers(card);
        assert_eq!((double(card, memory), card.synchronize(ptr::null_mut())), (0, 0));
        change_faults(r#"[{"code": 700}]"#);
        assert_eq!((double(card, memory), card.synchronize(ptr::null_mut())), (0, 700));
    });
}

#[test]
fn a_lost_card_fails_every_call() {
    on_faulty_card("faults::a_lost_card_fails_every_call", "[]", |card| {
        let memory = numbers(card);
        change_faults(r#"[{"lost": true}]"#);
        assert_eq!(double_without_loading(card, memory), [999, 999, 999]);
    });
}

#[test]
fn a_card_is_lost_with_the_code_on_order() {
    on_faulty_card("faults::a_card_is_lost_with_the_code_on_order", "[]", |card| {
        let memory = numbers(card);
        change_faults(r#"[{"lost": true, "code": 2}]"#);
        assert_eq!(double_without_loading(card, memory), [2, 2, 2]);
    });
}

fn double_without_loading(card: &Card, memory: [u64; 2]) -> [i32; 3] {
    let allocated = card.allocate(512).unwrap_err();
    [allocated, card.read::<f32>(memory[0], 1).unwrap_err(), card.synchronize(ptr::null_mut())]
}

#[test]
fn a_hanging_launch_never_ends() {
    on_faulty_card("faults::a_hanging_launch_never_ends", r#"[{"launch": 1, "hang": true}]"#, |card| {
        let memory = numbers(card);
        assert_eq!(double(card, memory), 0);
        let event = card.record(ptr::null_mut());
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            assert_eq!(card.query_event(event), 600);
        }
    });
}

/// A copy to memory of the host that is pinned does not wait, so what waits is the event behind it.
#[test]
fn a_hanging_copy_never_ends() {
    on_faulty_card("faults::a_hanging_copy_never_ends", r#"[{"hang_copy": true}]"#, |card| {
        let (memory, pinned) = (numbers(card), card.allocate_pinned(1 << 10).unwrap());
        assert_eq!(double(card, memory), 0);
        assert_eq!(card.copy_to_host_later(pinned, memory[0], 1 << 10, ptr::null_mut()), 0);
        let event = card.record(ptr::null_mut());
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            assert_eq!(card.query_event(event), 600);
        }
    });
}

#[test]
fn a_slow_card_takes_its_time() {
    on_faulty_card(
        "faults::a_slow_card_takes_its_time",
        r#"[{"launch": 2, "slow_ms": 60, "slow_copy_ms": 90}]"#,
        |card| {
            let memory = numbers(card);
            assert_eq!((double(card, memory), card.synchronize(ptr::null_mut())), (0, 0));
            let started = Instant::now();
            assert_eq!((double(card, memory), double(card, memory)), (0, 0));
            assert_eq!(card.synchronize(ptr::null_mut()), 0);
            assert!(started.elapsed() >= Duration::from_millis(120));
            let started = Instant::now();
            assert!(card.read::<f32>(memory[1], 1).is_ok());
            assert!(started.elapsed() >= Duration::from_millis(90));
        },
    );
}

#[test]
fn a_cut_capacity_leaves_less_than_is_used() {
    on_faulty_card("faults::a_cut_capacity_leaves_less_than_is_used", "[]", |card| {
        let block = card.allocate(32 << 20).unwrap();
        change_faults(r#"[{"capacity_mib": 16}]"#);
        assert_eq!(card.allocate(512), Err(2));
        assert_eq!((card.memory(), card.free(block)), ((0, 16 << 20), 0));
        assert!(card.allocate(8 << 20).is_ok());
    });
}

#[test]
fn a_swallowed_out_of_memory_is_a_success() {
    on_faulty_card("faults::a_swallowed_out_of_memory_is_a_success", "[]", |card| {
        change_faults(r#"[{"capacity_mib": 16, "swallowed": true}]"#);
        assert!(card.allocate(32 << 20).is_ok());
        assert_eq!(card.memory(), (0, 16 << 20));
    });
}

#[test]
fn host_memory_to_pin_is_limited() {
    on_faulty_card("faults::host_memory_to_pin_is_limited", "[]", |card| {
        assert!(card.allocate_pinned(1 << 20).is_ok());
        change_faults(r#"[{"pinned_mib": 2}]"#);
        assert!(card.allocate_pinned(1 << 20).is_ok());
        assert_eq!(card.allocate_pinned(1), Err(2));
    });
}

/// Of two processes with the same faults, one plays a fault that is meant once.
#[test]
fn a_fault_that_is_meant_once_is_played_by_one_process() {
    let faults = r#"[{"launch": 1, "code": 719, "once": true}]"#;
    on_faulty_card("faults::a_fault_that_is_meant_once_is_played_by_one_process", faults, |card| {
        fs::write(format!("{}.played-0", std::env::var("SOFT_CARD_FAULTS").unwrap()), "").unwrap();
        let memory = numbers(card);
        assert_eq!((double(card, memory), card.synchronize(ptr::null_mut())), (0, 0));
    });
}
