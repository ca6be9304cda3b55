//! Tracebacks in their forms, of one process and of several.

use super::{Exception, OwnFrame, TracebackReader, frame_of};
use proptest::prelude::*;
use std::fmt::Write as _;

fn exceptions(log: &str) -> Vec<Exception> {
    let mut reader = TracebackReader::default();
    for (index, line) in log.lines().enumerate() {
        reader.push(line.as_bytes(), index as u64 + 1);
    }
    reader.finish()
}

fn frames(log: &str) -> Vec<OwnFrame> {
    exceptions(log).into_iter().filter_map(|exception| exception.own).collect()
}

const LOG: &str = "step 1\nTraceback (most recent call last):\n  File \"/home/me/train.py\", line 40, in <module>\n    \
    main()\n    ~~~~^^\n  File \"/home/me/model.py\", line 12, in forward\n    return self.fc(x)\n           ^^^^^^^^^^\n  \
    File \"/venv/lib/python3.12/site-packages/torch/nn/functional.py\", line 9, in linear\n    return linear(x)\n  \
    File \"/usr/lib/python3.12/runpy.py\", line 5, in run\n  File \"<frozen importlib._bootstrap>\", line 1, in f\n\
    torch.OutOfMemoryError: CUDA out of memory.\nafter\n";

#[test]
fn the_last_own_frame_is_found_behind_those_of_packages() {
    let found = frames(LOG);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].to_string(), "/home/me/model.py:12, in forward: return self.fc(x)");
    assert_eq!(found[0].exception_line, 13);
    assert_eq!(
        found[0].describe_with_exception(),
        "torch.OutOfMemoryError: CUDA out of memory. at /home/me/model.py:12, in forward: return self.fc(x)"
    );
}

#[test]
fn ranks_that_print_at_the_same_time_are_told_apart() {
    let mut log = String::new();
    for (line, second) in LOG.lines().skip(1).zip(LOG.replace("model.py", "other.py").lines().skip(1)) {
        let _ = write!(log, "[rank0]: {line}\n[rank1]: {second}\nnoise\n");
    }
    let files: Vec<String> = frames(&log).into_iter().map(|frame| frame.file).collect();
    assert_eq!(files, ["/home/me/model.py", "/home/me/other.py"]);
}

#[test]
fn the_traceback_of_the_cause_is_chosen_and_one_without_own_frames_is_none() {
    let second = "\nDuring handling of the above exception, another exception occurred:\n\n\
                  Traceback (most recent call last):\n  File \"/home/me/save.py\", line 3, in save\nOSError: no space\n";
    let found = exceptions(&format!("{LOG}{second}"));
    let (model, save) = ("/home/me/model.py", "/home/me/save.py");
    let file = |line| frame_of(&found, line, None).map(|frame| frame.file.as_str());
    assert_eq!([12, 13, 20, 40].map(file), [Some(model), Some(model), Some(save), Some(save)]);
    assert_eq!(file(999), None, "long after them");
    assert_eq!(found.iter().map(Exception::is_chained).collect::<Vec<_>>(), [false, true]);
    let after_a_bar = frames(
        "\r  7%|#   | 99/1000 [00:04<00:40, 22it/s]Traceback (most recent call last):\n  File \"/home/me/a.py\", \
                              line 9, in <module>\n    raise ValueError(\"x\")\nValueError: x\n\r  7%|#   | 99/1000\n",
    );
    assert_eq!((after_a_bar[0].line, after_a_bar[0].exception.as_str()), (9, "ValueError: x"));
    let alien = "Traceback (most recent call last):\n  File \"/x/site-packages/a.py\", line 1, in f\nValueError\n";
    assert_eq!(frames(alien), []);
    assert_eq!(frames(&alien.replace("/x/site-packages", "/c/downshift/companion-1a2b/downshift")), []);
    let syntax =
        "Traceback (most recent call last):\n  File \"t.py\", line 1\n    x = = 1\nSyntaxError: invalid syntax\n";
    assert_eq!(frames(syntax)[0].to_string(), "t.py:1: x = = 1");
}

proptest! {
    #[test]
    fn no_log_brings_it_down(parts in proptest::collection::vec(prop::sample::select(vec![
        "Traceback (most recent call last):", "\n", "  File \"", "a.py", "\", line ", "7", ", in f", "    code", "[rank0]: ", "é"
    ]), 0..60)) {
        frames(&parts.concat());
    }
}

#[test]
fn the_forms_of_rich_and_of_exception_groups_are_read() {
    let boxed = "[rank0]: ╭────── Traceback (most recent call last) ──────╮\n[rank0]: │ /home/me/train.py:33 in main  │\n\
                 [rank0]: │   32 │  for name in names:    │\n[rank0]: │ ❱ 33 │   │   x = d['foo']    │\n\
                 [rank0]: │ /v/lib/python3.12/site-packages/x.py:9 in f │\n[rank0]: ╰─────────────────────╯\n\
                 [rank0]: KeyError: 'foo'\n";
    let found = exceptions(boxed);
    let own = found[0].own.as_ref().unwrap();
    assert_eq!((found[0].line, found[0].text.as_str(), found[0].rank()), (7, "KeyError: 'foo'", Some(0)));
    assert_eq!(own.to_string(), "/home/me/train.py:33, in main: x = d['foo']");
    let group = "  + Exception Group Traceback (most recent call last):\n  |   File \"/home/me/a.py\", line 3, in <module>\n  |     \
                 raise group\n  | ExceptionGroup: x (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | \
                 ValueError: 1\n    +---------------- 2 ----------------\n    | Traceback (most recent call last):\n    |   \
                 File \"/home/me/b.py\", line 7, in f\n    |     g()\n    | KeyError: 'b'\n    \
                 +------------------------------------\n";
    let found = exceptions(group);
    let told: Vec<_> = found.iter().map(|found| (found.text.as_str(), found.is_chained())).collect();
    assert_eq!(told, [("ValueError: 1", false), ("KeyError: 'b'", true)]);
    let places: Vec<String> = found.iter().map(|found| found.own.as_ref().unwrap().to_string()).collect();
    assert_eq!(places, ["/home/me/a.py:3, in <module>: raise group", "/home/me/b.py:7, in f: g()"]);
}

#[test]
fn a_crash_in_native_code_has_the_innermost_own_frame_of_its_thread() {
    let log = "[rank1]: Fatal Python error: Segmentation fault\n[rank1]: \n[rank1]: Thread 0x1 (most recent call first):\n\
               [rank1]:   File \"/home/me/loader.py\", line 1 in run\n[rank1]: \n\
               [rank1]: Current thread 0x2 [python] (most recent call first):\n\
               [rank1]:   File \"/v/lib/python3.12/site-packages/x.py\", line 2 in g\n\
               [rank1]:   File \"/home/me/ops.py\", line 12 in fwd\n[rank1]:   File \"/home/me/a.py\", line 4 in <module>\n";
    let found = exceptions(log);
    assert_eq!(found[0].own.as_ref().unwrap().to_string(), "/home/me/ops.py:12, in fwd");
    assert_eq!((found[0].line, found[0].rank()), (1, Some(1)));
    let only = log.replace("Current thread", "Thread");
    assert_eq!(exceptions(&only)[0].own.as_ref().unwrap().file, "/home/me/loader.py");
}

#[test]
fn what_python_ignores_is_no_exception_and_children_have_their_own_source() {
    let traceback = "Traceback (most recent call last):\n  File \"/home/me/a.py\", line 1, in f\nKeyError: 'a'\n";
    assert_eq!(exceptions(&format!("Exception ignored in: <function f>\n{traceback}")), []);
    let sources = |log: String| exceptions(&log).into_iter().map(|found| found.source).collect::<Vec<_>>();
    assert_eq!(sources(format!("Process Process-1:\n{traceback}{traceback}")), ["Process Process-1", ""]);
    assert_eq!(
        sources(format!("Exception in thread Thread-3 (f):\n{traceback}")),
        ["Exception in thread Thread-3 (f)"]
    );
    let retold = exceptions(&format!("{traceback}Original {traceback}"));
    assert_eq!(retold.iter().map(Exception::is_chained).collect::<Vec<_>>(), [false, true]);
    let spawned = exceptions(&format!("{traceback}\n-- Process 1 terminated with the following error:\n{traceback}"));
    assert!(spawned[1].is_chained() && spawned[1].own.is_some(), "{spawned:?}");
}
