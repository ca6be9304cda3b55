//! Logs of several ranks, of several starts and of failures that follow from another.

use crate::triage::catalogue::Catalogue;
use crate::triage::scan::{Scan, scan};
use std::sync::LazyLock;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::build(None).unwrap());

fn read(log: &str) -> Scan {
    scan(&mut log.as_bytes(), &CATALOGUE).unwrap()
}

/// Returns the name and line of the most likely cause, and the line of the user's own code.
fn cause(log: &str) -> Option<(String, u64, Option<u64>)> {
    let scan = read(log);
    let own = scan.own_frame.as_ref().map(|frame| frame.line);
    scan.root_cause().map(|root| (root.name.clone(), root.line, own))
}

fn raised(place: u64, exception: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/home/me/train.py\", line {place}, in f\n    x = f()\n{exception}\n"
    )
}

/// Puts the prefix of a launcher before each line.
fn prefixed(prefix: &str, log: &str) -> String {
    log.lines().flat_map(|line| [prefix, line, "\n"]).collect()
}

const NCCL: &str =
    "[E1127 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(Seq=1)\n";
const GLOO: &str = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:33123";
const TORCHRUN: &str = "E1127 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 9)\n\
    Traceback (most recent call last):\n  File \"/root/venv/bin/torchrun\", line 8, in <module>\n    sys.exit(main())\n\
    torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n=====\nRoot Cause (first observed failure):\n\
    [0]:\n  time      : 2026-11-27\n  host      : box\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 9)\n=====\n";

#[test]
fn the_exception_of_one_rank_is_the_cause_of_what_the_others_lose() {
    let value = raised(70, "ValueError: 'cat' is not in list");
    let lost = raised(4, GLOO);
    let ranks = |one: &str, zero: &str| {
        [prefixed(one, &value), prefixed(zero, NCCL), prefixed(zero, &lost), TORCHRUN.to_owned()].concat()
    };
    for (one, zero) in [("[rank1]: ", "[rank0]: "), ("[default1]:", "[default0]:"), ("", "")] {
        assert_eq!(cause(&ranks(one, zero)), Some(("exception".to_owned(), 4, Some(70))), "{one}");
    }
    let scan = read(&ranks("[rank1]: ", "[rank0]: "));
    assert_eq!(scan.root_cause().unwrap().meaning, "rank 1 ended with an exception of the script");
    assert!(scan.findings.iter().all(|finding| finding.symptom || finding.name == "exception"));
    // Rank 0 prints first, or at the same time.
    let (value, lost) = (prefixed("[rank1]: ", &value), prefixed("[rank0]: ", &lost));
    assert_eq!(cause(&format!("{lost}{value}{TORCHRUN}")), Some(("exception".to_owned(), 8, Some(70))));
    let both: String = value.lines().zip(lost.lines()).flat_map(|(one, zero)| [zero, "\n", one, "\n"]).collect();
    assert_eq!(cause(&both), Some(("exception".to_owned(), 8, Some(70))));
    // Nothing but the summary of the launcher follows.
    assert_eq!(cause(&format!("{value}{TORCHRUN}")), Some(("exception".to_owned(), 4, Some(70))));
    assert_eq!(cause(TORCHRUN), Some(("rank-failed".to_owned(), 1, None)), "its own frames are not yours");
}

#[test]
fn the_rank_that_torchrun_names_comes_first() {
    let zero = prefixed("[rank0]: ", &raised(4, "RuntimeError: the queue was closed"));
    let one = prefixed("[rank1]: ", &raised(70, "IndexError: list index out of range"));
    assert_eq!(cause(&format!("{zero}{one}{NCCL}{TORCHRUN}")), Some(("exception".to_owned(), 8, Some(70))));
    assert_eq!(cause(&format!("{zero}{one}{NCCL}")), Some(("exception".to_owned(), 4, Some(4))));
}

fn steps(from: u64, count: u64) -> String {
    let lines: Vec<String> = (from..from + count).map(|step| format!("step {step} loss 1.5\n")).collect();
    lines.concat()
}

#[test]
fn the_newest_start_of_a_log_has_the_cause() {
    let memory = raised(9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB");
    let key = raised(20, "KeyError: 'acc'");
    let started = |second: &str| format!("{}{memory}{}{second}", steps(1, 9), steps(1, 9));
    assert_eq!(cause(&started(&key)), Some(("exception".to_owned(), 26, Some(20))));
    assert_eq!(cause(&started("")), None, "the second one has not failed");
    assert!(read(&started("")).findings[0].earlier && read(&started("")).own_frame.is_none());
    let both = read(&started(&memory));
    let lines: Vec<_> = both.findings.iter().map(|finding| (finding.line, finding.earlier)).collect();
    assert_eq!(lines, [(13, true), (26, false)]);
    // It failed before its first step.
    let import = raised(1, "ModuleNotFoundError: No module named 'apex'");
    assert_eq!(cause(&format!("{memory}{import}")).unwrap().0, "python-import");
    assert_eq!(cause(&format!("{memory}{key}")).unwrap().0, "exception");
    // A NaN lasts as long as it is printed.
    let nan = |end: &str| format!("step 1 loss 2.0\nstep 2 loss nan\nstep 3 loss nan\nstep 4 loss nan\n{end}");
    assert_eq!(cause(&nan("")).unwrap().1, 2);
    assert_eq!(cause(&nan(&steps(1, 5))), None);
}

#[test]
fn what_follows_from_an_exception_or_a_lost_gpu_is_told_so() {
    let memory = raised(9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB");
    let link = "\nDuring handling of the above exception, another exception occurred:\n\n";
    let told = |log: &str| -> Vec<(String, bool)> {
        read(log).findings.into_iter().map(|finding| (finding.name, finding.symptom)).collect()
    };
    let named = |names: &[(&str, bool)]| names.iter().map(|(name, is)| ((*name).to_owned(), *is)).collect::<Vec<_>>();
    let full = raised(20, "OSError: [Errno 28] No space left on device");
    assert_eq!(told(&format!("{memory}{link}{full}")), named(&[("torch-out-of-memory", false), ("no-space", true)]));
    assert_eq!(
        told(&format!("{memory}{link}{}", raised(7, "KeyError: 'a'"))),
        named(&[("torch-out-of-memory", false)])
    );
    let plain = format!("{}{link}{}", raised(7, "KeyError: 'a'"), raised(8, "ValueError: unknown model"));
    assert_eq!(cause(&plain), Some(("exception".to_owned(), 11, Some(8))), "the last one ended it");
    let bus = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\nNVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n";
    let launch = raised(9, "RuntimeError: CUDA error: unspecified launch failure");
    let wanted = named(&[("xid 79", false), ("fell-off-the-bus", true), ("launch-failure", true)]);
    assert_eq!(told(&format!("{bus}{launch}")), wanted);
    let killed = "Killed\nOut of memory: Killed process 5121 (python) total-vm:61220044kB\n";
    assert_eq!(told(killed), named(&[("killed", true), ("oom-killer", false)]));
}

/// Puts a traceback into an installed package.
fn packaged(exception: &str) -> String {
    raised(9, exception).replace("/home/me/train.py", "/v/lib/python3.12/site-packages/kit/run.py")
}

#[test]
fn an_exception_of_a_package_alone_ends_a_log_unless_a_thread_or_a_helper_raised_it() {
    let error = packaged("RuntimeError: no such stage");
    let ended = format!("{}{error}", steps(1, 4));
    assert_eq!(cause(&ended), Some(("exception".to_owned(), 8, None)));
    assert_eq!(read(&ended).root_cause().unwrap().meaning, "the log ends with an exception");
    for harmless in [
        format!("{}Exception in thread Thread-3:\n{error}", steps(1, 4)),
        format!("{}Error in atexit._run_exitfuncs:\n{error}", steps(1, 4)),
        format!("{}--- Logging error ---\n{error}", steps(1, 4)),
        format!("{error}{}", steps(1, 4)),
        format!("{}{error}", steps(1, 4)).replace("kit/run.py", "multiprocessing/resource_tracker.py"),
    ] {
        assert_eq!(cause(&harmless), None, "{harmless}");
    }
    // The script's own exception tells more than one of a package that follows from it.
    let own = raised(4, "KeyError: 'acc'");
    assert_eq!(cause(&format!("{own}{error}")), Some(("exception".to_owned(), 4, Some(4))));
}

#[test]
fn a_chain_is_told_by_its_root() {
    let cause_link = "\nThe above exception was the direct cause of the following exception:\n\n";
    let other_link = "\nDuring handling of the above exception, another exception occurred:\n\n";
    let (first, second) = (raised(7, "ValueError: bad cell"), raised(8, "RuntimeError: cannot read"));
    assert_eq!(cause(&format!("{first}{cause_link}{second}")).unwrap().1, 4);
    assert_eq!(cause(&format!("{first}{other_link}{second}")).unwrap().1, 11);
    // The interrupt follows from the failure, not from the wait.
    let interrupted = |error: &str| format!("{}{other_link}{}", packaged(error), raised(8, "KeyboardInterrupt"));
    assert_eq!(cause(&interrupted("_queue.Empty")).unwrap().0, "interrupted");
    assert_eq!(cause(&interrupted("OSError: [Errno 5] Input/output error")).unwrap().0, "io-error-of-program");
}

#[test]
fn an_end_that_is_announced_lets_a_few_steps_pass() {
    let limit = "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-01-05T10:00:00 DUE TO TIME LIMIT ***\n";
    let after = |more: &str| cause(&format!("{}{limit}{more}", steps(1, 9))).map(|cause| cause.0);
    assert_eq!(after(&steps(10, 9)).as_deref(), Some("time-limit"));
    assert_eq!(after(&steps(1, 5)), None, "it was started again");
    assert_eq!(after(&steps(10, 90)), None, "it goes on and on");
    let done = "step 1/2 loss 2.0\nstep 2/2 loss 1.9\n[1]+  Terminated              tail -f log\n";
    assert_eq!(cause(done), None, "a helper of a training that is done");
}

#[test]
fn losses_without_steps_and_bars_show_that_a_training_went_on() {
    let memory = raised(9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB");
    let dicts = |epochs: [&str; 3]| -> String {
        epochs.map(|epoch| format!("{{'loss': 1.9, 'grad_norm': 1.0, 'epoch': {epoch}}}\n")).concat()
    };
    assert_eq!(cause(&format!("{}{memory}{}", dicts(["0.1", "0.2", "0.3"]), dicts(["0.1", "0.2", "0.3"]))), None);
    let bars = |counts: [u64; 3]| -> String {
        counts.map(|count| format!("fit:  1%|  | {count}/900 [00:01<00:10, 3.1it/s]\n")).concat()
    };
    assert_eq!(cause(&format!("{}{memory}{}", bars([7, 8, 9]), bars([1, 2, 3]))), None);
    let upload = "up:  50%|  | 1/2 [00:01<00:10, 3.1it/s]\nup: 100%|  | 2/2 [00:01<00:10, 3.1it/s]\n";
    assert!(cause(&format!("{}{memory}{upload}", bars([7, 8, 9]))).is_some(), "another bar");
}
