//! The panic hook: a panic on any thread ends the process with its failure class.
//!
//! A failed allocation on a CUDA device panics on the device's own thread inside `catch_unwind`; the training
//! thread is not notified and would continue with garbage. The hook runs before any unwinding, so nothing can
//! hide a panic from it. It takes no lock, waits for no reader, at most a second for the driver, and runs no
//! destructor, since the device may never respond again.

use super::failure_record::write_record;
use crate::device_failure::{ask_driver, classify_panic, describe_error};
use crate::exit::exit_now;
use crate::job::{StepPulse, WorkerArgs};
use downshift_core::protocol::line;
use downshift_core::protocol::worker::{Event, Failed, FailureClass};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{self, Location, PanicHookInfo},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// Bytes that a pipe accepts atomically.
const PIPE_BUF: usize = 4096;

/// Installs the hook for the rest of the process.
pub fn install_hook(stdout: &Arc<OwnedFd>, args: &WorkerArgs, pulse: Arc<StepPulse>) {
    let (stdout, args, taken) = (Arc::clone(stdout), args.clone(), AtomicBool::new(false));
    panic::set_hook(Box::new(move |panic| {
        if taken.swap(true, Ordering::SeqCst) {
            // The first panic is the cause; its thread is about to end the process.
            loop {
                thread::park();
            }
        }
        let failed = describe_panic(panic, &pulse);
        let event = Event::Failed(failed.clone());
        // Another thread may have written half a line.
        write_without_blocking(stdout.as_fd(), format!("\n{}", line::encode(&event).unwrap_or_default()).as_bytes());
        write_record(&args, &failed);
        let place = panic.location().map_or_else(String::new, |place| format!(" at {}", shorten_place(place)));
        let thread = failed.thread.as_deref().unwrap_or("?");
        write_stderr(&format!("\nthread {thread} panicked{place}: {} ({})\n", failed.message, failed.class));
        exit_now(failed.class.exit_code());
    }));
}

fn describe_panic(panic: &PanicHookInfo<'_>, pulse: &StepPulse) -> Failed {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("panicked without a message");
    let thread = thread::current().name().unwrap_or("unnamed").to_owned();
    let (class, message) = match classify_panic(&thread, text, None) {
        FailureClass::Panic => (FailureClass::Panic, text.chars().take(1000).collect()),
        FailureClass::Config => (FailureClass::Config, describe_error(text, None)),
        _ => {
            let driver = ask_driver();
            (classify_panic(&thread, text, driver.as_ref()), describe_error(text, driver.as_ref()))
        }
    };
    Failed { class, message, step: pulse.step(), thread: Some(thread), injected: pulse.injected() }
}

/// Returns a place in a source file, without the folder that holds the sources of all crates.
fn shorten_place(place: &Location<'_>) -> String {
    let file = place.file().split_once("/registry/src/").and_then(|(_, rest)| rest.split_once('/'));
    format!("{}:{}", file.map_or(place.file(), |(_, file)| file), place.line())
}

/// Writes to stderr, if it can without blocking.
pub fn write_stderr(text: &str) {
    write_without_blocking(rustix::stdio::stderr(), text.as_bytes());
}

/// Makes one write, and only if it does not block.
fn write_without_blocking(fd: BorrowedFd<'_>, bytes: &[u8]) {
    let mut ready = [PollFd::new(&fd, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0) && ready[0].revents().contains(PollFlags::OUT) {
        rustix::io::write(fd, &bytes[..bytes.len().min(PIPE_BUF)]).ok();
    }
}
