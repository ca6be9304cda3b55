//! Tests the catalogue on real program output, and the command that applies it.
#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use downshift::protocol::class::FailureClass;
use downshift::protocol::plan::LESS_MEMORY;
use downshift::triage::catalogue::Catalogue;
use downshift::triage::scan::{scan, scan_line};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

const KNOWN: &str = include_str!("../triage/known.txt");
const LOOKALIKES: &str = include_str!("../triage/lookalikes.txt");
const CAUSES: &str = include_str!("../triage/causes.txt");

fn catalogue() -> Catalogue {
    Catalogue::build(None).unwrap()
}

/// Returns the lines of a table, without comments.
fn table_rows(text: &str) -> impl Iterator<Item = &str> {
    text.lines().skip(1).filter(|line| !line.trim().is_empty())
}

#[test]
fn real_messages_are_recognised() {
    let catalogue = catalogue();
    let (mut wrong, mut count, mut classes) = (Vec::new(), 0, BTreeSet::new());
    for row in table_rows(KNOWN) {
        let (class, message) = row.split_once(" | ").unwrap();
        let found = scan_line(message.as_bytes(), 1, &catalogue).map(|finding| finding.class.word());
        count += 1;
        classes.insert(class);
        if found != Some(class) {
            wrong.push(format!("{class}, not {found:?}: {message}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 60 && classes.len() >= 16, "{count} messages of {classes:?}");
}

#[test]
fn lookalikes_are_not() {
    let catalogue = catalogue();
    let found: Vec<String> = table_rows(LOOKALIKES)
        .filter_map(|line| {
            scan_line(line.as_bytes(), 1, &catalogue).map(|found| format!("{line} is not {}", found.name))
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(table_rows(LOOKALIKES).count() >= 20);
}

#[test]
fn each_cause_is_recognised_by_its_messages_and_not_by_lookalikes() {
    let catalogue = catalogue();
    let (mut wrong, mut names) = (Vec::new(), BTreeSet::new());
    for block in CAUSES.split("\n\n").skip(1) {
        let (name, lines) = block.split_once('\n').unwrap();
        assert!(names.insert(name), "{name} is listed twice");
        let mut kinds = BTreeSet::new();
        for line in lines.lines() {
            let (kind, text) = line.split_once(": ").unwrap();
            kinds.insert(kind);
            let found = scan_line(text.as_bytes(), 1, &catalogue).map(|finding| finding.name);
            match kind {
                "says" if found.as_deref() != Some(name) => wrong.push(format!("{name}, not {found:?}: {text}")),
                "not" if found.is_some() => wrong.push(format!("not {found:?}: {text}")),
                _ => {}
            }
        }
        assert_eq!(kinds, BTreeSet::from(["from", "not", "says"]), "{name}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(names.len() >= 70, "{} causes", names.len());
}

#[test]
fn the_cause_comes_before_what_follows_from_it() {
    const GLOO: &str =
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.2.3]:14311";
    const LOADER: &str = "RuntimeError: DataLoader worker (pid(s) 4431) exited unexpectedly";
    const OOM_KILL: &str =
        "[351.2] Out of memory: Killed process 4431 (python) total-vm:74120368kB, anon-rss:63012344kB";
    const RANK_KILLED: &str = "  exitcode  : -9 (pid: 71235)";
    const NCCL: &str = "[E ProcessGroupNCCL.cpp:475] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL";
    const BARRIER: &str = "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 (world_size=8, worker_count=7, timeout=0:30:00)";
    const CHILD: &str = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:";
    let cases: [(&[&str], &str); 11] = [
        (&[LOADER, OOM_KILL], "oom-killer"),
        (&[LOADER], "loader-gone"),
        (&["Killed", OOM_KILL], "oom-killer"),
        (&[GLOO, CHILD, RANK_KILLED], "killed"),
        (&[GLOO, CHILD], "nccl-error"),
        (&[BARRIER, CHILD], "rank-never-came"),
        (&[NCCL, "  exitcode  : -6 (pid: 7)", CHILD], "nccl-timeout"),
        (&[NCCL, "KeyboardInterrupt"], "nccl-timeout"),
        (&["Received SIGTERM, shutting down", LOADER, GLOO], "ended-from-outside"),
        (
            &["WARNING retrying with batch size 16 after CUDA out of memory. Tried to allocate 2.00 GiB", "loss: nan"],
            "loss-nan",
        ),
        (
            &[
                "F0926 1 client.h:77] Terminating process because the JAX distributed service detected fatal errors.",
                "Fatal Python error: Aborted",
            ],
            "jax-peer-died",
        ),
    ];
    let catalogue = catalogue();
    for (lines, cause) in cases {
        let scan = scan(&mut lines.join("\n").as_bytes(), &catalogue).unwrap();
        assert_eq!(scan.root_cause().map(|finding| finding.name.as_str()), Some(cause), "{lines:?}");
    }
}

#[test]
fn a_single_cause_is_the_root_and_lines_are_counted_in_english() {
    let said = |log: &str| String::from_utf8(run_triage(&["-"], log.as_bytes(), None).stdout).unwrap();
    let alone = said("RuntimeError: DataLoader worker (pid(s) 4431) exited unexpectedly\n");
    assert!(!alone.contains("follows from another failure"), "{alone}");
    let with_cause = said("RuntimeError: DataLoader worker (pid(s) 4431) exited unexpectedly\nCUDA out of memory\n");
    assert!(with_cause.starts_with("device_out_of_memory: "), "{with_cause}");
    assert!(with_cause.contains("(follows from another failure)"), "{with_cause}");
    let silent = said("all is well\n");
    assert!(
        silent.starts_with("No known failure in 1 line.\nIf it ended too early: a process that is killed, hangs"),
        "{silent}"
    );
    assert!(said("all\nis well\n").starts_with("No known failure in 2 lines.\n"));
}

#[test]
fn the_catalogue_is_complete_and_its_names_are_unique() {
    let catalogue = catalogue();
    let names: BTreeSet<&str> = catalogue.entries().iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names.len(), catalogue.entries().len());
    // The book says "more than 140 causes".
    assert!(names.len() > 140, "{}", names.len());
    assert!(include_str!("../../docs/src/diagnosis.md").contains("more than 140"));
}

#[test]
fn advice_on_device_memory_keeps_one_order() {
    let catalogue = catalogue();
    let ways = ["micro-batch", "smaller model", "mixed precision", "accumul"];
    let places = |text: &str| ways.map(|way| text.find(way)).into_iter().flatten().collect::<Vec<_>>();
    let entries = catalogue.entries().iter().filter(|entry| entry.class == FailureClass::DeviceOutOfMemory);
    let mut whole = 0;
    for entry in entries {
        let places = places(&entry.advice);
        assert!(places.is_sorted(), "{}: {}", entry.name, entry.advice);
        whole += usize::from(places.len() == ways.len());
    }
    assert!(whole >= 3, "{whole} entries list every way");
    let page = include_str!("../../docs/src/faults.md");
    let of_class = page.lines().find(|line| line.contains("`device_out_of_memory`")).unwrap();
    let of_class = of_class.rsplit(" | ").next().unwrap();
    for text in [LESS_MEMORY, of_class] {
        let places = places(text);
        assert!(places.len() == ways.len() && places.is_sorted(), "{text}");
    }
}

#[test]
fn whole_logs_have_their_root_cause() {
    let catalogue = catalogue();
    let torchrun = scan(&mut include_bytes!("../triage/logs/torchrun_oom.log").as_slice(), &catalogue).unwrap();
    let root = torchrun.root_cause().unwrap();
    assert_eq!((root.class.word(), root.line), ("device_out_of_memory", 7));
    assert!(torchrun.findings.iter().any(|finding| finding.class.word() == "collective" && finding.symptom));
    let healthy = scan(&mut include_bytes!("../triage/logs/healthy.log").as_slice(), &catalogue).unwrap();
    assert_eq!(healthy.findings, []);
}

fn run_triage(words: &[&str], input: &[u8], config: Option<&str>) -> Output {
    let home = tempfile::tempdir().unwrap();
    if let Some(text) = config {
        std::fs::create_dir(home.path().join("downshift")).unwrap();
        std::fs::write(home.path().join("downshift/catalogue.yaml"), text).unwrap();
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_downshift"))
        .arg("triage")
        .args(words)
        .env("XDG_CONFIG_HOME", home.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).ok();
    child.wait_with_output().unwrap()
}

#[test]
fn the_command_prints_json_and_words() {
    let log = b"fine\nRuntimeError: CUDA error: an illegal memory access was encountered\n\xff\xff\n";
    let output = run_triage(&["-", "--format", "json"], log, None);
    assert!(output.status.success());
    let list: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list.len(), 1);
    let keys: BTreeSet<&str> = list[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        BTreeSet::from(["class", "line", "text", "meaning", "advice", "keeper", "symptom", "earlier", "likely"])
    );
    assert_eq!((list[0]["class"].as_str(), list[0]["line"].as_u64()), (Some("device_fault"), Some(2)));

    let words = String::from_utf8(run_triage(&["-"], log, None).stdout).unwrap();
    assert!(words.contains("line 2: RuntimeError") && words.contains("do: "), "{words}");
    assert_eq!(run_triage(&["-", "--format", "json"], b"all is well\n", None).stdout, b"[]\n");
    let packed = run_triage(&["-"], b"\x1f\x8b\x08\0\0\0\0\0", None);
    assert_eq!(packed.status.code(), Some(1));
    assert!(String::from_utf8(packed.stderr).unwrap().contains("gzip"));
    let missing = run_triage(&["/nonexistent.log"], b"", None);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8(missing.stderr).unwrap().contains("/nonexistent.log"));
}

#[test]
fn json_marks_the_cause_and_the_keepers_response_as_the_text_does() {
    let log = b"DataLoader worker (pid(s) 4431) exited unexpectedly\nOut of memory: Killed process 4431 (python)\nOut of memory: Killed process 4432 (python)\n";
    let list: Vec<Value> = serde_json::from_slice(&run_triage(&["-", "--format", "json"], log, None).stdout).unwrap();
    let marks = |key: &str| list.iter().map(|finding| finding[key].as_bool().unwrap()).collect::<Vec<_>>();
    assert_eq!((marks("likely"), marks("symptom")), (vec![false, true, false], vec![true, false, false]));
    let words = String::from_utf8(run_triage(&["-"], log, None).stdout).unwrap();
    assert!(words.starts_with("host_out_of_memory: ") && words.contains("most likely the cause"), "{words}");
    assert!(words.contains(&format!("in a run, the keeper {}", list[1]["keeper"].as_str().unwrap())), "{words}");
}

#[test]
fn json_tells_how_far_a_log_without_a_cause_got() {
    let read = |log: &str| -> Vec<Value> {
        serde_json::from_slice(&run_triage(&["-", "--format", "json"], log.as_bytes(), None).stdout).unwrap()
    };
    let cut = read("step 1/9 loss 2.0\nstep 2/9 loss 1.9\n");
    assert_eq!(cut.len(), 1);
    assert_eq!(cut[0]["progress"], serde_json::json!({ "count": 2, "total": 9, "line": 2, "is_bar": false }));
    assert_eq!(cut[0]["likely"], false);
    let failed = read("step 1/9 loss 2.0\nstep 2/9 loss 1.9\nCUDA out of memory\n");
    assert!(failed.iter().all(|entry| entry["progress"].is_null()), "the cause tells more: {failed:?}");
}

#[test]
fn several_logs_are_each_diagnosed_under_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let memory = path("a.log", b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n");
    let disk = path("b.log", b"OSError: [Errno 28] No space left on device\n");
    let noise = path("noise", &(0..=u8::MAX).cycle().take(300_000).collect::<Vec<_>>());
    let both = run_triage(&[&memory, &disk], b"", None);
    let words = String::from_utf8(both.stdout).unwrap();
    let at = |part: String| words.find(&part).unwrap_or_else(|| panic!("{part}: {words}"));
    let places = [format!("{memory}:\ndevice_out_of_memory: "), format!("\n\n{disk}:\ndisk_full: ")].map(at);
    assert!(places.is_sorted(), "{words}");
    let list: Vec<Value> =
        serde_json::from_slice(&run_triage(&[&memory, &disk, "--format", "json"], b"", None).stdout).unwrap();
    assert_eq!(list.iter().map(|entry| entry["file"].as_str().unwrap()).collect::<Vec<_>>(), [&memory, &disk]);
    let mixed = run_triage(&[&noise, &disk], b"", None);
    assert_eq!(mixed.status.code(), Some(1));
    assert!(String::from_utf8(mixed.stdout).unwrap().contains("disk_full: "), "the others are read");
    assert!(String::from_utf8(mixed.stderr).unwrap().contains("noise is not text"));
    // A pipe named as a file, as a shell passes it: `triage <(…)`.
    let piped = run_triage(&["/dev/stdin"], b"OSError: [Errno 28] No space left on device\n", None);
    assert!(String::from_utf8(piped.stdout).unwrap().starts_with("disk_full: "));
}

#[test]
fn a_log_without_a_cause_says_how_far_it_got_and_one_of_two_starts_which_failed_last() {
    let said = |log: &str| String::from_utf8(run_triage(&["-"], log.as_bytes(), None).stdout).unwrap();
    let bars: Vec<String> =
        (0..=430).step_by(5).map(|count| format!("\r 4%|█  | {count}/900 [00:01<00:10, 3it/s]")).collect();
    let cut = said(&bars.concat());
    assert!(
        cut.contains(
            "The log stops in a progress bar at 430 of 900 (line 1).\nIf it ended too early: a process that is killed"
        ),
        "{cut}"
    );
    let whole = said("step 1/2 loss 2.0\nstep 2/2 loss 1.5\ntraining finished\n");
    assert_eq!(whole, "No known failure in 3 lines.\nThe training reached its last step, 2 of 2 (line 2).\n");
    let steps: Vec<String> = (1..=9).map(|step| format!("step {step} loss 1.9\n")).collect();
    let steps = steps.concat();
    let memory = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n";
    let raised = "Traceback (most recent call last):\n  File \"t.py\", line 7, in f\n    x\nKeyError: 'acc'\n";
    let twice = said(&format!("{steps}{memory}{steps}{raised}"));
    assert!(twice.starts_with("exception: the log ends with an exception of the script\n"), "{twice}");
    assert!(twice.contains("a GPU memory allocation failed  (earlier in this log: "), "{twice}");
    let went_on = said(&format!("{steps}{memory}{steps}"));
    assert!(
        went_on.starts_with("No known failure at the end of 19 lines.\nThe log stops at step 9 (line 19).\n"),
        "{went_on}"
    );
    assert!(!went_on.contains("most likely the cause"), "{went_on}");
}

#[test]
fn memory_figures_are_tabulated_over_time() {
    let log = b"2025-11-20 03:10:04 step 1 VRAM 11.2/24.0 GB\nno figure\n2025-11-20 03:11:04 [rank1] VRAM 23.5/24.0 GB\n[rank1]: CUDA out of memory. Tried to allocate 512.00 MiB\n";
    let table = String::from_utf8(run_triage(&["-", "--memory"], log, None).stdout).unwrap();
    let expected = "\
line  time                 where   figure       GiB     of
   1  2025-11-20 03:10:04          used       11.20  24.00
   3  2025-11-20 03:11:04  rank 1  used       23.50  24.00
   4                       rank 1  requested   0.50

peak  used       11.20 of 24.00 GiB, line 1
peak  used       23.50 of 24.00 GiB, rank 1, line 3
peak  requested   0.50 GiB, rank 1, line 4
";
    assert_eq!(table, expected);
    let list: Vec<Value> =
        serde_json::from_slice(&run_triage(&["-", "--memory", "--format", "json"], log, None).stdout).unwrap();
    assert_eq!(list.len(), 3);
    assert_eq!((list[1]["line"].as_u64(), list[1]["mib"].as_f64()), (Some(3), Some(24064.0)));
    assert_eq!(
        (&list[1]["time"], &list[1]["device"], &list[1]["figure"]),
        (&"2025-11-20 03:11:04".into(), &"rank 1".into(), &"used".into())
    );
    assert!(list[2]["time"].is_null() && list[2]["of_mib"].is_null());
    let none = run_triage(&["-", "--memory"], b"step 1\n", None);
    assert_eq!(String::from_utf8(none.stdout).unwrap(), "No memory figures in 1 line.\n");
}

#[test]
fn the_users_catalogue_extends_the_shipped_one() {
    let own = "causes:\n  - name: lab\n    class: data\n    patterns: ['LAB-ERROR \\d+']\n    meaning: the sampler failed\n    advice: call the lab\n";
    let output = run_triage(&["-", "--format", "json"], b"LAB-ERROR 7\nNo space left on device\n", Some(own));
    let list: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list[0]["advice"], "call the lab");
    assert_eq!(list[1]["class"], "disk_full");

    let output = run_triage(&["-"], b"", Some(&own.replace("advice: call", "advise: call")));
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(words.contains("catalogue.yaml:6:"), "{words}");
}

#[test]
fn a_pipe_is_read_once_a_program_writes_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("log");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut reader = Command::new(env!("CARGO_BIN_EXE_downshift"))
        .arg("triage")
        .arg(&pipe)
        .env("XDG_CONFIG_HOME", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(reader.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("no program writes to"), "it looked at a pipe that nothing had opened: {said}");
    assert!(reader.try_wait().unwrap().is_none(), "it waits");
    // Opening waits for the reader, too, so both are there.
    std::fs::write(&pipe, "OSError: [Errno 28] No space left on device\n").unwrap();
    let output = reader.wait_with_output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("disk_full: "));
}
