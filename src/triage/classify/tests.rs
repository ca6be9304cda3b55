//! Evidence and verdict, case by case.

use super::{Evidence, classify};
use crate::faults::of_class as row;
use crate::protocol::cause::Cause;
use crate::protocol::class::FailureClass as Class;
use crate::protocol::exit::Exit;
use crate::protocol::worker::Failed;
use crate::triage::catalogue::Catalogue;
use crate::triage::kernel::read_line;
use crate::triage::scan::scan;
use crate::triage::scan::scan_line;
use proptest::prelude::*;
use std::sync::LazyLock;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::build(None).unwrap());

fn judge(evidence: &Evidence) -> Cause {
    classify(evidence, &CATALOGUE)
}

fn code(code: i32) -> Evidence {
    Evidence { exit: Exit::with_code(code), pid: Some(4242), ..Evidence::default() }
}

fn signal(signal: i32) -> Evidence {
    Evidence { exit: Exit::by_signal(signal), pid: Some(4242), ..Evidence::default() }
}

fn said(class: Class, message: &str) -> Evidence {
    let failed = Failed { class, message: message.to_owned(), step: Some(7), thread: None, injected: false };
    Evidence { failed: Some(failed), ..code(i32::from(class.exit_code())) }
}

fn with_kernel(mut evidence: Evidence, lines: &[&str]) -> Evidence {
    evidence.kernel.extend(lines.iter().filter_map(|line| read_line(line)));
    evidence
}

fn with_log(evidence: Evidence, log: &str) -> Evidence {
    let scan = scan(&mut log.as_bytes(), &CATALOGUE).unwrap();
    Evidence { frame: scan.own_frame, log: scan.findings, last_lines: scan.last_lines, ..evidence }
}

const XID_31: &str = "NVRM: Xid (PCI:0000:01:00): 31, pid=4242, name=exe, MMU Fault";
const XID_45: &str = "NVRM: Xid (PCI:0000:01:00): 45, pid=4242, name=exe, Ch 00000008";
const XID_79: &str = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.";
const OOM: &str = "Out of memory: Killed process 4242 (exe) total-vm:9kB, anon-rss:8kB";

#[test]
fn only_ctrl_c_is_an_end_by_the_user() {
    let gone = || Evidence { exit: Exit::of_command(None, None), ..Evidence::default() };
    let trace = "step 7 loss 2\n^CTraceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n    step()\n\
                 KeyboardInterrupt\n";
    let interrupted = judge(&with_log(gone(), trace));
    assert_eq!((interrupted.class, interrupted.by_user), (Class::Killed, true), "{interrupted:?}");
    let killed = judge(&with_log(gone(), "step 7 loss 2\nTerminated\n"));
    assert_eq!((killed.class, killed.by_user), (Class::Killed, false), "{killed:?}");
}

#[test]
fn a_kill_from_outside_is_not_explained_by_bad_numbers() {
    let log = "step 1 loss 2\nWARNING: loss is NaN, skipping batch 2\nstep 3 loss nan\nstep 4 loss nan\n";
    let found = with_log(signal(9), log);
    assert!(!found.log.is_empty(), "the log names them");
    let killed = judge(&found);
    assert_eq!((killed.class, killed.evidence.len()), (Class::Killed, 1), "{killed:?}");
    // A line that may have led to the kill stays.
    let memory = judge(&with_log(signal(9), "step 1 loss 2\nMemoryError: cannot allocate 9 GiB\n"));
    assert!(memory.evidence.iter().any(|line| line.contains("MemoryError")), "{memory:?}");
    // A process of which only the log is known ended with them.
    let gone = Evidence { exit: Exit::with_code(1), ..found };
    assert!(judge(&gone).evidence.iter().any(|line| line.contains("nan")), "{:?}", judge(&gone));
}

#[test]
fn a_hang_names_where_its_processes_stood() {
    let stands = vec!["process 7 stands at train.py:9 in fetch".to_owned()];
    let evidence = Evidence { ended_for: Some((Class::Hang, "no step for 50 s".to_owned())), stands, ..signal(9) };
    let cause = classify(&evidence, &CATALOGUE);
    assert_eq!(
        cause.evidence[..2],
        ["the keeper ended it: no step for 50 s", "process 7 stands at train.py:9 in fetch"]
    );
}

#[test]
fn a_process_whose_end_is_not_known_ended_with_the_exception_at_the_end_of_its_log() {
    let gone = || Evidence { exit: Exit { of_command: true, ..Exit::default() }, ..Evidence::default() };
    let raised = "Traceback (most recent call last):\n  File \"bad.py\", line 23, in <module>\n    step()\n\
                  RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x10 and 11x32)\n";
    assert_eq!(judge(&with_log(gone(), raised)).class, Class::Exception);
    let went_on = format!("{raised}{}", "step 7 loss 0.5\n".repeat(200));
    assert_eq!(judge(&with_log(gone(), &went_on)).class, Class::Unknown, "it was caught");
}

#[test]
fn every_end_has_one_class() {
    let hang = Evidence { ended_for: Some((Class::Hang, "no step for 50 s".to_owned())), ..signal(9) };
    let cases = vec![
        (said(Class::DeviceOutOfMemory, "can't allocate buffer of size: 4"), Class::DeviceOutOfMemory),
        (said(Class::DeviceFault, "an illegal memory access was encountered"), Class::DeviceFault),
        (said(Class::DeviceFault, "NVML: GPU is lost"), Class::GpuLost),
        (said(Class::DeviceFault, "something new"), Class::DeviceFault),
        (said(Class::Panic, "write: No space left on device"), Class::DiskFull),
        (said(Class::Panic, "index out of bounds: the len is 3"), Class::Panic),
        (said(Class::Unknown, "rank 1 of 2: OSError: write: No space left on device"), Class::DiskFull),
        (
            with_log(said(Class::Unknown, "rank 1 of 2: ValueError: no label"), "write: No space left on device\n"),
            Class::Unknown,
        ),
        (with_kernel(said(Class::Unknown, "rank 1 of 2: RuntimeError: lost"), &[XID_79]), Class::Xid),
        (said(Class::Data, "images.bin: CUDA out of memory. Tried to allocate"), Class::Data),
        (said(Class::NonFinite, "50 steps in a row"), Class::NonFinite),
        (code(10), Class::DeviceOutOfMemory),
        (code(14), Class::Checkpoint),
        (code(101), Class::Panic),
        (code(0), Class::EarlyExit),
        (code(1), Class::Unknown),
        (with_log(code(1), "x\nOSError: [Errno 28] No space left on device\n"), Class::DiskFull),
        (with_log(code(101), "thread 'main' (3) panicked at a.rs:1:1:\nNo space left on device\n"), Class::DiskFull),
        (with_log(code(0), "RuntimeError: CUDA out of memory. Tried to allocate 1 MiB\n"), Class::EarlyExit),
        (signal(9), Class::Killed),
        (signal(15), Class::Killed),
        (signal(11), Class::Crash),
        (signal(6), Class::Crash),
        (signal(31), Class::Crash),
        (with_kernel(signal(9), &[OOM]), Class::HostOutOfMemory),
        (with_kernel(signal(9), &[&OOM.replace("4242", "77")]), Class::Killed),
        (Evidence { oom_kills: 1, ..signal(9) }, Class::HostOutOfMemory),
        (Evidence { oom_kills: 1, ..signal(11) }, Class::Crash),
        (Evidence { killed_just_now: true, ..signal(9) }, Class::HostOutOfMemory),
        (hang.clone(), Class::Hang),
        (with_kernel(hang.clone(), &[XID_45]), Class::Hang),
        (with_kernel(hang.clone(), &[XID_31]), Class::Hang),
        (with_kernel(hang, &[XID_79]), Class::Xid),
        (with_kernel(signal(11), &[&XID_31.replace("31", "999")]), Class::Crash),
        (with_log(code(1), XID_79), Class::Xid),
        (said(Class::Panic, "ModuleNotFoundError: No module named 'x'"), Class::Panic),
        (with_kernel(said(Class::DeviceFault, "x"), &[XID_31]), Class::Xid),
        (with_kernel(said(Class::DeviceOutOfMemory, "can't allocate"), &[XID_31]), Class::DeviceOutOfMemory),
        (with_kernel(said(Class::DeviceOutOfMemory, "can't allocate"), &[XID_79]), Class::Xid),
        (with_kernel(signal(9), &[XID_45]), Class::Killed),
        (Evidence { lost: Some("GPU is lost".to_owned()), ..signal(9) }, Class::GpuLost),
        (Evidence { xids: vec![48], ..code(11) }, Class::Xid),
        (Evidence::default(), Class::Unknown),
    ];
    for (evidence, expected) in cases {
        let cause = judge(&evidence);
        assert_eq!(cause.class, expected, "{evidence:?}: {cause:?}");
        assert!(evidence == Evidence::default() || !cause.evidence.is_empty(), "{cause:?}");
    }
}

#[test]
fn a_cause_without_a_matching_line_has_the_advice_of_its_class() {
    let of_class = |class| row(class).advice.clone();
    for class in Class::ALL {
        let ended = Evidence { ended_for: Some((class, "by the keeper".to_owned())), ..signal(9) };
        let cause = judge(&ended);
        assert_eq!((cause.class, cause.advice), (class, of_class(class)));
    }
    let cases = [
        code(10),
        code(11),
        code(13),
        code(77),
        signal(9),
        signal(11),
        said(Class::DeviceOutOfMemory, "no pattern matches this"),
        said(Class::DeviceFault, "nor this"),
        with_log(code(10), "step 1\nstep 2\n"),
    ];
    for evidence in cases {
        let cause = judge(&evidence);
        assert_eq!(cause.advice, of_class(cause.class), "{evidence:?}");
    }
    let matched = judge(&with_log(code(10), "RuntimeError: CUDA out of memory. Tried to allocate 1 MiB\n"));
    assert_ne!(matched.advice, of_class(Class::DeviceOutOfMemory), "the entry's own advice comes first");
    assert_eq!(
        judge(&said(Class::Data, "images.bin: not found; correct data.path")).advice,
        "",
        "its message has the fix"
    );
}

#[test]
fn the_number_of_the_right_card_counts_and_the_gravest_first() {
    let evidence = with_kernel(code(11), &[XID_31, XID_79]);
    let cause = judge(&evidence);
    assert_eq!((cause.xid, cause.restart_helps), (Some(79), false));
    assert!(cause.evidence[0].starts_with("Xid 79") && cause.advice.contains("restart the machine"), "{cause:?}");
    let cause = judge(&with_kernel(code(11), &[XID_31]));
    assert_eq!((cause.xid, cause.restart_helps), (Some(31), true));

    let other = Evidence { pci: Some("00000000:02:00.0".to_owned()), ..evidence };
    assert_eq!(judge(&other).class, Class::DeviceFault, "another card fell off the bus");
}

#[test]
fn evidence_names_its_places() {
    let log = "one\ntwo\nRuntimeError: CUDA error: unspecified launch failure\n";
    let cause = judge(&with_log(code(1), log));
    assert_eq!(cause.class, Class::DeviceFault);
    assert!(cause.evidence.iter().any(|line| line.contains("exit code 1")), "{cause:?}");
    assert!(cause.evidence.iter().any(|line| line.starts_with("worker.log line 3: RuntimeError")), "{cause:?}");
    let cause = judge(&with_kernel(Evidence { oom_kills: 2, ..signal(9) }, &[OOM]));
    assert!(cause.evidence[0].starts_with("kernel log: Out of memory"), "{cause:?}");
    assert!(cause.evidence.iter().any(|line| line.contains("oom_kill went up by 2")), "{cause:?}");
    assert!(cause.evidence.iter().any(|line| line.contains("SIGKILL")), "{cause:?}");
}

#[test]
fn a_failure_that_only_the_log_names_is_summarised_by_its_line() {
    let log = "Traceback (most recent call last):\n  File \"train.py\", line 1\nModuleNotFoundError: No module named 'torch'\n";
    let command = |code| Evidence { exit: Exit::of_command(Some(code), None), ..Evidence::default() };
    let cause = judge(&with_log(command(1), log));
    assert_eq!(cause.class, Class::Config);
    let line = "worker.log line 3: ModuleNotFoundError: No module named 'torch'";
    assert_eq!(cause.summary(), "configuration: ModuleNotFoundError: No module named 'torch'");
    assert_eq!(cause.evidence.iter().filter(|evidence| *evidence == line).count(), 1, "{cause:?}");
    assert!(cause.evidence.contains(&"exit code 1".to_owned()), "{cause:?}");
    // A worker that knows why it ended says more than its log.
    let own = Evidence { log: with_log(code(1), log).log, ..said(Class::Config, "no such file") };
    assert!(judge(&own).evidence[0].starts_with("the worker reported"), "{:?}", judge(&own));
}

#[test]
fn an_exception_that_nothing_explains_is_a_cause_and_other_ends_show_the_last_lines() {
    let log = "step 1\nTraceback (most recent call last):\n  File \"train.py\", line 7, in load\n    x = table['b']\nKeyError: 'b'\n";
    let command = |code, signal| Evidence { exit: Exit::of_command(code, signal), ..Evidence::default() };
    let cause = judge(&with_log(command(Some(1), None), log));
    let told = "exception: KeyError: 'b'";
    assert_eq!((cause.class, cause.summary().as_str()), (Class::Exception, told), "{cause:?}");
    assert!(cause.evidence.contains(&"your code: train.py:7, in load: x = table['b']".to_owned()), "{cause:?}");
    // A process that a signal ended had handled it.
    assert_eq!(judge(&with_log(command(None, Some(11)), log)).class, Class::Crash);
    let handled = format!("{log}{}", "step 2\n".repeat(6));
    assert_eq!(judge(&with_log(command(Some(3), None), &handled)).class, Class::Unknown);
    let launched = format!("{log}E1 torch.distributed.elastic failed\n{}", "====\n".repeat(30));
    assert_eq!(judge(&with_log(command(Some(1), None), &launched)).class, Class::Exception);
    // A rank reports its exception as one of no known class.
    let reported =
        Evidence { exit: Exit::of_command(Some(1), None), ..said(Class::Unknown, "rank 1 of 2: KeyError: 'b'") };
    assert_eq!(judge(&with_log(reported, log)).class, Class::Exception);
    let silent = judge(&with_log(command(Some(3), None), "a\n\nb\nc\rbye\nd\n"));
    let wanted = ["exit code 3", "worker.log line 4: bye", "worker.log line 5: d"];
    assert_eq!((silent.class, silent.evidence), (Class::Unknown, wanted.map(str::to_owned).to_vec()));
}

#[test]
fn the_report_of_a_rank_is_an_exception_with_the_frame_of_that_rank() {
    let trace = |rank: u32, line: u64, error: &str| {
        format!(
            "[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File \"ddp.py\", line {line}, in f\n\
             [rank{rank}]:     f()\n[rank{rank}]: {error}\n"
        )
    };
    let log = trace(1, 9, "IndexError: list index out of range")
        + &trace(0, 4, "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:33123");
    let reported = || Evidence {
        exit: Exit::of_command(Some(1), None),
        ..said(Class::Unknown, "rank 1 of 2: IndexError: list index out of range")
    };
    let cause = judge(&with_log(reported(), &log));
    assert_eq!((cause.class, cause.restart_helps), (Class::Exception, false));
    assert_eq!(cause.advice, row(Class::Exception).advice);
    assert!(cause.evidence.contains(&"your code: ddp.py:9, in f: f()".to_owned()), "{cause:?}");
    assert_eq!(cause.evidence.iter().filter(|line| line.contains("IndexError")).count(), 1, "{cause:?}");
    assert_eq!(judge(&reported()).class, Class::Exception, "its output may lie elsewhere");
}

#[test]
fn labels_out_of_range_are_no_fault_of_the_device() {
    let log = "../aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: \
               [0,0,0] Assertion `t >= 0 && t < n_classes` failed.\nRuntimeError: CUDA error: device-side assert triggered\n";
    for evidence in [code(1), said(Class::DeviceFault, "CUDA error: device-side assert triggered")] {
        let cause = judge(&with_log(evidence, log));
        assert_eq!((cause.class, cause.restart_helps), (Class::Data, false), "{cause:?}");
        let check = scan_line(log.as_bytes(), 1, &CATALOGUE).unwrap();
        assert_eq!(cause.advice, check.advice, "that of the check, not of the device");
    }
}

proptest! {
    /// Host memory is never blamed without evidence from the kernel or the cgroup.
    #[test]
    fn no_evidence_no_host_out_of_memory(code: Option<i32>, signal in proptest::option::of(1..32_i32), log in ".{0,80}") {
        let exit = Exit { code: code.filter(|_| signal.is_none()), signal, of_command: false };
        let evidence = with_log(Evidence { exit, ..Evidence::default() }, &log);
        prop_assert_ne!(judge(&evidence).class, Class::HostOutOfMemory);
    }
}
