//! The page of the book is made from the tables, and the tables by hand agree with them.

use super::response::Response;
use super::{of_class, xid};
use crate::config::knobs::Relief;
use crate::protocol::class::FailureClass;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const INTRODUCTION: &str = "\
# Faults and responses

This page is made from [assets/faults.yaml](../../assets/faults.yaml), which the keeper and `triage` use too. A worker that ended gets one class, from all evidence
([Diagnosis](diagnosis.md)); a cause that the catalogue knows may have better advice than its class. A command gets these responses
as far as its [level](trainers.md#levels) allows, and [Staying alive](alive.md) has the limits: how often, how long, how far.

## By class

| class | the keeper | advice |
|---|---|---|
";
const NUMBERS: &str = "
## By Xid number

The NVIDIA driver writes these into the kernel log. An Xid that a restart repairs decides only where neither the worker nor a hang
explains the end. An unknown number is recorded.

| Xid | meaning | the keeper | advice |
|---|---|---|---|
";

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn write_page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for class in FailureClass::ALL {
        let row = of_class(class);
        writeln!(page, "| {class} (`{}`) | {} | {} |", class.word(), row.describe(), row.advice).unwrap();
    }
    page += NUMBERS;
    for known in xid::all() {
        writeln!(page, "| {} | {} | {} | {} |", known.number, known.meaning, known.response, known.advice).unwrap();
    }
    page
}

#[test]
fn every_class_has_a_row() {
    super::read_table().unwrap();
    for class in FailureClass::ALL {
        assert!(!of_class(class).advice.is_empty(), "{class}");
    }
}

#[test]
fn the_page_of_the_book_has_every_fault() {
    let (path, page) = (root("docs/src/faults.md"), write_page());
    if std::env::var_os("WRITE_BOOK").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/src/faults.md is out of date: WRITE_BOOK=1 cargo test --lib faults");
}

/// Returns the second cell of the row of a page's table that begins with this text.
fn told(page: &str, trouble: &str) -> String {
    let text = std::fs::read_to_string(root(page)).unwrap();
    let row = text.lines().find_map(|line| line.strip_prefix(&format!("| {trouble}")));
    let row = row.unwrap_or_else(|| panic!("{page} has no row `{trouble}`"));
    row.split(" | ").nth(1).unwrap_or_default().to_owned()
}

#[test]
fn the_tables_of_the_book_and_the_readme_promise_the_responses() {
    use FailureClass::{
        Crash, DeviceFault, DeviceOutOfMemory, Divergence, Exception, GpuLost, Hang, HostOutOfMemory, NonFinite,
        Overheating, Xid,
    };
    for (page, trouble, class, number) in [
        ("README.md", "out of memory", DeviceOutOfMemory, None),
        ("README.md", "NaN losses", NonFinite, None),
        ("README.md", "a hang, a crash", Hang, None),
        ("README.md", "a hang, a crash", Crash, None),
        ("README.md", "a device fault", DeviceFault, None),
        ("docs/src/alive.md", "out of device memory", DeviceOutOfMemory, None),
        ("docs/src/alive.md", "out of host memory", HostOutOfMemory, None),
        ("docs/src/alive.md", "NaN or infinite loss", NonFinite, None),
        ("docs/src/alive.md", "the loss diverges", Divergence, None),
        ("docs/src/alive.md", "a native crash", Crash, None),
        ("docs/src/alive.md", "device fault", DeviceFault, None),
        ("docs/src/alive.md", "no step for", Hang, None),
        ("docs/src/alive.md", "a script raises", Exception, None),
        ("docs/src/alive.md", "hot for a minute", Overheating, None),
        ("docs/src/alive.md", "GPU lost, an Xid", GpuLost, None),
        ("docs/src/alive.md", "GPU lost, an Xid", Xid, Some(79)),
    ] {
        let (told, response) = (told(page, trouble), super::response(class, number, None));
        let relieves = |relief: Relief| told.contains(&format!("helps against {}", relief.trouble()));
        let is_kept = match response {
            Response::Relieve(relief) => relieves(relief),
            Response::AgainThen(relief) => relieves(relief) && told.contains("restarts"),
            Response::Lean => told.contains("restarts once") && relieves(Relief::Memory),
            Response::UnlessSame | Response::Fail | Response::Stop => told.contains("stops"),
            Response::Note | Response::Again => match &of_class(class).only {
                Some(what) => what.split(' ').next().is_some_and(|verb| told.contains(verb)),
                _ => told.contains("restarts"),
            },
        };
        assert!(is_kept, "{page}: {class} gets {response:?}, not `{told}`");
    }
}
