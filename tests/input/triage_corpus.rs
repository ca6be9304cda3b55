//! Whole logs with their right class, line and advice, and the ways a process ends, in every combination.
#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use downshift::triage::catalogue::Catalogue;
use downshift::triage::scan::scan;
use std::collections::BTreeSet;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/triage/corpus")
}

/// A row of the index.
struct Case {
    name: String,
    class: String,
    line: Option<u64>,
    advice: String,
}

fn cases() -> Vec<Case> {
    let index = std::fs::read_to_string(folder().join("index.txt")).unwrap();
    let rows = index.lines().filter(|row| !row.starts_with('#'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [name, class, line, advice] = <[&str; 4]>::try_from(cells).unwrap();
        Case { name: name.into(), class: class.into(), line: line.parse().ok(), advice: advice.into() }
    })
    .collect()
}

#[test]
fn every_log_of_the_corpus_has_its_class_line_and_advice() {
    let catalogue = Catalogue::build(None).unwrap();
    let cases = cases();
    let mut wrong = Vec::new();
    for case in &cases {
        let log = std::fs::read(folder().join(format!("{}.log", case.name))).unwrap();
        let scan = scan(&mut log.as_slice(), &catalogue).unwrap();
        let found = scan.root_cause();
        let told = found.map(|found| (found.class.word(), found.line, found.advice.to_lowercase()));
        let is_right = match &told {
            None => case.class == "none",
            Some((class, line, advice)) => {
                *class == case.class && Some(*line) == case.line && advice.contains(&case.advice.to_lowercase())
            }
        };
        if !is_right {
            wrong.push(format!("{}: not {told:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    let classes: BTreeSet<&str> = cases.iter().map(|case| case.class.as_str()).collect();
    assert!(cases.len() >= 190 && classes.len() >= 14, "{} logs of {classes:?}", cases.len());
}

#[test]
fn the_index_names_every_log() {
    let listed: BTreeSet<String> = cases().into_iter().map(|case| format!("{}.log", case.name)).collect();
    let files = std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let logs: BTreeSet<String> = files.filter(|name| name != "index.txt" && name != "README.md").collect();
    assert_eq!(listed, logs);
}

/// The prefixes of launchers, runtimes and loggers; `{s}` are seconds, which differ from line to line.
const PREFIXES: [&str; 37] = [
    "",
    "[rank3]: ",
    "[default0]:",
    "[rank: 1] ",
    "[1,2]<stderr>:",
    "[prterun-gn1-88@1,2]<stderr>: ",
    "[2]: ",
    "2: ",
    "(RayTrainWorker pid=77, ip=10.1.1.2) ",
    "(pid=77) ",
    "trainer-0  | ",
    "[pod/fit-0/main] ",
    "gpunode07: ",
    "2026-02-03T04:05:{s}.789Z ",
    "2026-02-03 04:05:{s},789 - launch - ERROR - ",
    "2026-02-03 04:05:{s}.789 | ERROR    | launch:run:12 - ",
    "[2026-02-03 04:05:{s}] ",
    "[2026-02-03 04:05:{s},789] [ERROR] ",
    "Feb  3 04:05:{s} ",
    "Feb  3 04:05:{s} gpunode07 fit[77]: ",
    "2026-02-03T04:05:{s}+0000 gpunode07 fit[77]: ",
    "2026-02-03T04:05:{s}.789Z stderr F ",
    "2026-02-03T04:05:{s}.789123Z 01O ",
    "2026-02-03T04:05:{s}.789Z [rank3]: ",
    "E0203 04:05:{s}.789123 140123 fit.py:88] ",
    "[2026-02-03T04:05:{s}.789+0000] {subprocess.py:93} INFO - ",
    "Tue Feb  3 04:05:{s} 2026[1,2]<stderr>:",
    "trainer-0  | 2026-02-03T04:05:{s}.789Z ",
    "[pod/fit-0/main] 2026-02-03T04:05:{s}.789Z ",
    "fit-7d9f8b5c4-x2x9z pytorch ",
    "fit-worker-0 pytorch 2026-02-03T04:05:{s}.789Z ",
    "team fit-worker-0 pytorch ",
    "team/fit-worker-0[pytorch]: ",
    "(worker1, rank=1, pid=77, ip=10.1.1.2) ",
    "ERROR\t2026-02-03 04:05:{s} +0000\tworkerpool0-0\t",
    "trainer/0 ",
    "epoch 1:  12%|█▏        | 120/1000 [01:40<12:10,  1.20it/s, loss=2.1]",
];

/// The signals: number, name, the words of glibc and of zsh, the class, a word of the advice.
const SIGNALS: [(i32, &str, &str, &str, &str, &str); 8] = [
    (9, "SIGKILL", "Killed", "killed", "killed", "dmesg"),
    (11, "SIGSEGV", "Segmentation fault", "segmentation fault", "crash", "native"),
    (7, "SIGBUS", "Bus error", "bus error", "host_out_of_memory", "shm-size"),
    (8, "SIGFPE", "Floating point exception", "floating point exception", "crash", "native"),
    (4, "SIGILL", "Illegal instruction", "illegal hardware instruction", "crash", "native"),
    (6, "SIGABRT", "Aborted", "abort", "crash", "lines above"),
    (15, "SIGTERM", "Terminated", "terminated", "killed", "limits"),
    (1, "SIGHUP", "Hangup", "hangup", "killed", "tmux"),
];

/// Returns a prefix as it stands before this line.
fn prefix_of(prefix: &str, line: usize) -> String {
    prefix.replace("{s}", &format!("{:02}", line % 60))
}

/// How shells and launchers tell of a signal; `{n}`, `{name}`, `{words}`, `{zsh}` and `{shell}` (128 + n) are filled in.
const FORMS: [&str; 25] = [
    "fit.sh: line 9:  4711 {words}                 python fit.py",
    "/usr/bin/bash: line 1:  4711 {words}      (core dumped) python fit.py",
    "[1]+  {words}                 nohup python fit.py > log",
    "[1]  + 4711 {zsh}     python fit.py",
    "zsh: {zsh}  python fit.py",
    "fish: Job 1, 'python fit.py' terminated by signal {name} (some words)",
    "make: *** [Makefile:9: fit] {words}",
    "make: *** [fit] Error {shell}",
    "srun: error: gn1: task 3: {words}",
    "srun: error: gn1: task 3: Exited with exit code {shell}",
    "mpirun noticed that process rank 1 with PID 4711 on node gn1 exited on signal {n} ({words}).",
    "fit-0 exited with code {shell}",
    "Process finished with exit code {shell}",
    "    Exit Code:    {shell}",
    "Main process exited, code=killed, status={n}/X",
    "subprocess.CalledProcessError: Command '['fit']' died with <Signals.{name}: {n}>.",
    "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal {name}",
    "Command terminated by signal {n}",
    "  traceback : Signal {n} ({name}) received by PID 4711",
    "npm error code {shell}",
    "error: process didn't exit successfully: `target/release/fit` (signal: {n}, {name}: words)",
    "error: Recipe `fit` was terminated on line 2 by signal {n}",
    "ERROR: failed to reproduce 'fit': failed to run: python fit.py, exited with {shell}",
    "##[error]Process completed with exit code {shell}.",
    "##[error]Bash exited with code '{shell}'.",
];

#[test]
fn a_signal_is_told_by_every_shell_and_launcher_behind_every_prefix() {
    let catalogue = Catalogue::build(None).unwrap();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for prefix in PREFIXES {
        for form in FORMS {
            for (number, name, words, zsh, class, advice) in SIGNALS {
                let told = form.replace("{shell}", &(128 + number).to_string()).replace("{n}", &number.to_string());
                let told = told.replace("{name}", name).replace("{words}", words).replace("{zsh}", zsh);
                let prefix = prefix_of(prefix, 3);
                let log = format!("step 1 loss 2.5\nstep 2 loss 2.4\n{prefix}{told}\n");
                let scan = scan(&mut log.as_bytes(), &catalogue).unwrap();
                let found = scan.root_cause().map(|root| (root.class.word(), root.line));
                let is_advised = scan.root_cause().is_some_and(|root| root.advice.contains(advice));
                count += 1;
                if found != Some((class, 3)) || !is_advised {
                    wrong.push(format!("{class}, not {found:?}: {prefix}{told}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_log_keeps_its_cause_where_every_line_has_a_prefix() {
    let catalogue = Catalogue::build(None).unwrap();
    let mut wrong = Vec::new();
    for (place, case) in cases().iter().enumerate() {
        let log = std::fs::read_to_string(folder().join(format!("{}.log", case.name))).unwrap();
        // Each log has some of the prefixes, and each prefix some of the logs.
        for prefix in PREFIXES[1..PREFIXES.len() - 1].iter().skip(place % 5).step_by(5) {
            let prefixed: String = log
                .lines()
                .enumerate()
                .flat_map(|(number, line)| [prefix_of(prefix, number), format!("{line}\n")])
                .collect();
            let scan = scan(&mut prefixed.as_bytes(), &catalogue).unwrap();
            let found = scan.root_cause().map_or(("none", None), |root| (root.class.word(), Some(root.line)));
            if found != (case.class.as_str(), case.line) {
                wrong.push(format!("{}, not {found:?}: {prefix}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Lines that anchor their pattern at the beginning, with their entry's class.
const ANCHORED: [(&str, &str); 8] = [
    ("MemoryError", "host_out_of_memory"),
    ("Segmentation fault (core dumped)", "crash"),
    ("ModuleNotFoundError: No module named 'apex'", "config"),
    ("JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "data"),
    ("thread 'main' panicked at src/fit.rs:9:5:", "unknown"),
    ("KeyboardInterrupt", "killed"),
    ("CUDA out of memory.", "device_out_of_memory"),
    ("Fatal Python error: Bus error", "host_out_of_memory"),
];

#[test]
fn a_pattern_that_begins_a_line_is_found_behind_every_prefix() {
    let catalogue = Catalogue::build(None).unwrap();
    let mut wrong = Vec::new();
    for prefix in PREFIXES {
        for (line, class) in ANCHORED {
            let log = format!("{}{line}\n", prefix_of(prefix, 1));
            let scan = scan(&mut log.as_bytes(), &catalogue).unwrap();
            let found = scan.root_cause().map(|root| root.class.word());
            if found != Some(class) {
                wrong.push(format!("{class}, not {found:?}: {prefix}{line}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn healthy_lines_stay_healthy_behind_every_prefix() {
    let catalogue = Catalogue::build(None).unwrap();
    let healthy = [
        "exited with code 0",
        "Terminated early: patience 5 reached",
        "Killed 2 idle workers",
        "loss: 2.31",
        "exit code: 1",
        "gpu3:51:88 [1] NCCL INFO NET/Plugin: libnccl-net.so: cannot open shared object file: No such file or directory",
    ];
    for prefix in PREFIXES {
        for line in healthy {
            let log = format!("{}{line}\n", prefix_of(prefix, 1));
            let scan = scan(&mut log.as_bytes(), &catalogue).unwrap();
            assert_eq!(scan.findings, [], "{log}");
        }
    }
}
