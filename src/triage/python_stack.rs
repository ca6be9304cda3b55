//! Stacks of a Python process, as `faulthandler` writes them: the place where its main thread stands.
//!
//! ```text
//! Thread 0x00007f6e3da836c0 (most recent call first):
//!   File "/usr/lib/python3.12/threading.py", line 982 in run
//!
//! Current thread 0x00007f6e3edd1b80 (most recent call first):     the thread that handled the signal
//!   File "/home/me/data.py", line 33 in __getitem__
//!   File "/home/me/train.py", line 12 in <module>                 the main thread is the last one
//! ```

use super::traceback::is_own;
use crate::format::counted;
use std::fmt;

/// Innermost frames that are shown.
const SHOWN: usize = 3;
/// The outermost frame of the main thread.
const MODULE: &str = "<module>";

/// A frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The file, as Python printed it.
    pub file: String,
    /// The line in it.
    pub line: u64,
    /// The function.
    pub function: String,
}

/// The stack of the main thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MainThread {
    /// Its frames, innermost first.
    pub frames: Vec<Frame>,
    /// The number of threads whose stacks were written.
    pub threads: usize,
}

/// A thread, as written.
#[derive(Debug, Default)]
struct Thread {
    is_current: bool,
    frames: Vec<Frame>,
}

impl Thread {
    fn ends_in_module(&self) -> bool {
        self.frames.last().is_some_and(|frame| frame.function == MODULE)
    }
}

/// Finds the main thread among the stacks of a process; none if the text holds no stack.
#[must_use]
pub fn find_main_thread(text: &str) -> Option<MainThread> {
    let mut threads: Vec<Thread> = Vec::new();
    for line in text.lines() {
        if is_thread(line) {
            threads.push(Thread { is_current: line.starts_with("Current thread"), frames: Vec::new() });
        } else if let Some(thread) = threads.last_mut() {
            thread.frames.extend(parse_frame(line));
        }
    }
    threads.retain(|thread| !thread.frames.is_empty());
    let count = threads.len();
    // Threads are written newest first, up to a limit. The signal is usually handled by the main thread.
    let current = threads.iter().position(|thread| thread.is_current && thread.ends_in_module());
    let main = current.or_else(|| threads.iter().rposition(Thread::ends_in_module)).or(count.checked_sub(1))?;
    Some(MainThread { frames: threads.swap_remove(main).frames, threads: count })
}

/// Reports whether a line begins the stack of a thread.
pub(super) fn is_thread(line: &str) -> bool {
    line.contains("hread 0x")
}

/// Parses `  File "/home/me/data.py", line 33 in __getitem__`.
pub(super) fn parse_frame(line: &str) -> Option<Frame> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.rsplit_once("\", line ")?;
    let (line, function) = rest.split_once(" in ")?;
    Some(Frame { file: file.to_owned(), line: line.parse().ok()?, function: function.trim_end().to_owned() })
}

impl fmt::Display for Frame {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.file.rsplit('/').next().unwrap_or_default();
        write!(formatter, "{name}:{} in {}", self.line, self.function)
    }
}

impl fmt::Display for MainThread {
    /// Names the innermost frames, and the innermost one in the user's own files if it is further out.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.frames.iter().take(SHOWN).map(ToString::to_string).collect();
        formatter.write_str(&shown.join(" ← "))?;
        let own = self.frames.iter().position(|frame| is_own(&frame.file)).filter(|own| *own >= SHOWN);
        if let Some(own) = own {
            let between = own - SHOWN;
            let gap = if between > 0 { format!(" ← {}", counted(between as u64, "frame")) } else { String::new() };
            write!(formatter, "{gap} ← {}", self.frames[own])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::find_main_thread;
    use proptest::prelude::*;

    const LOADER: &str = "Thread 0x00007f6e3da836c0 (most recent call first):\n  File \"/home/me/train.py\", line 5 in worker\n  File \
         \"/usr/lib/python3.12/threading.py\", line 982 in run\n\n";
    const MAIN: &str = "Current thread 0x00007f6e3edd1b80 (most recent call first):\n  File \
         \"/usr/lib/python3.12/threading.py\", line 320 in wait\n  File \"/usr/lib/python3.12/queue.py\", line 171 in get\n  \
         File \"/v/lib/python3.12/site-packages/torch/utils/data/dataloader.py\", line 1133 in _try_get_data\n  File \
         \"/v/lib/python3.12/site-packages/torch/utils/data/dataloader.py\", line 1295 in _get_data\n  File \
         \"/home/me/train.py\", line 12 in main\n  File \"/home/me/train.py\", line 40 in <module>\n";

    #[test]
    fn the_main_thread_is_named_by_its_innermost_frames_and_the_users_own() {
        let main = find_main_thread(&format!("{LOADER}{MAIN}")).unwrap();
        assert_eq!((main.threads, main.frames.len()), (2, 6));
        assert_eq!(
            main.to_string(),
            "threading.py:320 in wait ← queue.py:171 in get ← dataloader.py:1133 in _try_get_data ← 1 frame ← \
             train.py:12 in main"
        );
        let own = "Current thread 0x1 [python] (most recent call first):\n  File \"/a b/x\", line 2 in f\n  File \"/a b/x\", line 9 in <module>\n";
        assert_eq!(find_main_thread(own).unwrap().to_string(), "x:2 in f ← x:9 in <module>");
    }

    #[test]
    fn a_signal_that_another_thread_handled_still_shows_the_main_thread() {
        let (loader, main) = (LOADER.replace("Thread", "Current thread"), MAIN.replace("Current thread", "Thread"));
        let found = find_main_thread(&format!("{loader}{main}")).unwrap();
        assert_eq!(found.frames.last().unwrap().function, "<module>");
        // Beyond a hundred threads faulthandler stops, so the main thread may be missing.
        let found = find_main_thread(&format!("{loader}...\n")).unwrap();
        assert_eq!(found.frames[0].function, "worker");
        for empty in ["", "Thread 0x1 (most recent call first):\n  <no Python frame>\n", "Fatal Python error\n"] {
            assert_eq!(find_main_thread(empty), None, "{empty:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_reader(
            lines in prop::collection::vec("(Thread 0x|Current thread 0x|  File \"|\", line 3 in |x|[0-9 ]|.){0,6}", 0..9),
        ) {
            if let Some(main) = find_main_thread(&lines.join("\n")) {
                prop_assert!(!main.to_string().is_empty());
            }
        }
    }
}
