//! A process under observation: how it ended, its CPU time and peak memory, and whether its output is safe to print.

use downshift::untrusted::text::is_unsafe;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The limits of a process.
#[derive(Clone, Copy)]
pub struct Limits {
    /// CPU time: unlike wall-clock time it does not depend on other load.
    pub computing: Duration,
    /// Wall-clock time, for processes that wait.
    pub clock: Duration,
    /// Peak memory in bytes.
    pub memory: u64,
}

impl Limits {
    /// 5 s and 500 MB; 10 s in debug builds, which check every addition and inline nothing.
    pub const INPUT: Self = Self {
        computing: Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 5 }),
        clock: Duration::from_secs(30),
        memory: 500_000_000,
    };
}

/// Runs a command in a folder to completion and returns its output. An error names the forbidden behaviour.
#[expect(clippy::zombie_processes, reason = "`reap` waits, and also gives what was used")]
pub fn run_watched(mut command: Command, folder: &Path, limits: Limits) -> Result<String, String> {
    let said = folder.join("said");
    let out = File::create(&said).unwrap();
    command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
    let child = command.spawn().unwrap();
    let pid = Pid::from_child(&child);
    // The machine is shared: never let one process take all of its memory.
    let most = Some(16 << 30);
    let _ = prlimit(Some(pid), Resource::As, Rlimit { current: most, maximum: most });
    let begun = Instant::now();
    let ended = loop {
        if let Some(ended) = reap(child.id()) {
            break ended;
        }
        if begun.elapsed() > limits.clock {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::park_timeout(Duration::from_millis(3));
    };
    let text = String::from_utf8_lossy(&fs::read(&said).unwrap()).into_owned();
    let mut wrong = Vec::new();
    match ended.status {
        _ if begun.elapsed() > limits.clock => wrong.push(format!("did not end within {:?}", limits.clock)),
        Err(signal) => wrong.push(format!("died of signal {signal}")),
        Ok(101) => wrong.push("panicked".to_owned()),
        Ok(_) => {}
    }
    if text.lines().any(|line| line.starts_with("thread '") && line.contains("panicked at")) {
        wrong.push("printed a panic".to_owned());
    }
    if ended.computed > limits.computing {
        wrong.push(format!("used {:?} of CPU time", ended.computed));
    }
    if ended.memory > limits.memory {
        wrong.push(format!("had {} MB of memory", ended.memory / 1_000_000));
    }
    if let Some(letter) = text.chars().find(|letter| is_unsafe(*letter) && !matches!(letter, '\n' | '\t')) {
        wrong.push(format!("printed {}", letter.escape_unicode()));
    }
    if wrong.is_empty() {
        Ok(text)
    } else {
        Err(format!("{}\n{}", wrong.join(", "), text.chars().take(2_000).collect::<String>()))
    }
}

struct Ended {
    /// The exit code, or the signal.
    status: Result<i32, i32>,
    computed: Duration,
    memory: u64,
}

/// Reaps a child that has ended, and returns the resources that it and its children used.
#[expect(unsafe_code, reason = "the standard library does not report what a child used")]
fn reap(pid: u32) -> Option<Ended> {
    let mut status = 0;
    // SAFETY: the call writes both, and an all-zero `rusage` is valid.
    let (reaped, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(pid.cast_signed(), &raw mut status, libc::WNOHANG, &raw mut usage), usage)
    };
    if reaped <= 0 {
        return None;
    }
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1_000);
    Some(Ended {
        status: if libc::WIFSIGNALED(status) { Err(libc::WTERMSIG(status)) } else { Ok(libc::WEXITSTATUS(status)) },
        computed: time(usage.ru_utime) + time(usage.ru_stime),
        memory: usage.ru_maxrss as u64 * 1024,
    })
}
