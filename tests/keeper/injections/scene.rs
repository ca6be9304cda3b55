//! One fault: a run in its own place, the fault injected, and the reports expected.

use crate::helper::{LIMIT, Place, example, journal, wait_for};
use downshift::protocol::control::JournalRow;
use downshift::store::run_dir::RunDir;
use std::fmt::Write;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Child;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

/// A fault and its expected outcome.
pub struct Case {
    /// Its number in the list of injections.
    pub number: u32,
    /// The description of the fault.
    pub fault: &'static str,
    /// The section `model:`, which holds the scenario.
    pub model: &'static str,
    /// The section `watch:`.
    pub watch: &'static str,
    /// The checkpoint interval.
    pub every: &'static str,
    /// The argument of `--inject`.
    pub inject: &'static str,
    /// The script of the fake NVML library; None means there is no GPU.
    pub nvml: Option<&'static str>,
    /// An action on the run while it is alive.
    pub act: Option<fn(&Scene)>,
    /// The text for the cause in the journal.
    pub cause: &'static str,
    /// The text for the response in the journal.
    pub response: &'static str,
    /// Text that must never appear.
    pub never: &'static str,
    /// The expected exit code.
    pub code: i32,
    /// Whether the curve must have no gap up to its last step, each step with its own data.
    pub whole: bool,
    /// Further checks at the end.
    pub holds: Option<fn(&Scene)>,
}

/// The defaults of a case.
pub const PLAIN: Case = Case {
    number: 0,
    fault: "",
    model: "step_ms: 2, save_ms: 1",
    watch: "",
    every: "50 steps",
    inject: "",
    nvml: None,
    act: None,
    cause: "",
    response: "",
    never: "needs attention",
    code: 0,
    whole: true,
    holds: None,
};

/// A run in progress.
pub struct Scene {
    pub place: Place,
    pub run: RunDir,
}

/// The result of a case.
pub struct Row {
    pub line: String,
    pub wrong: Option<String>,
}

impl Scene {
    /// Plays a case to its end.
    pub fn play(case: &Case) -> Row {
        let played = catch_unwind(AssertUnwindSafe(|| Self::begin(case)));
        let name = format!("{} {}", case.number, case.fault);
        let (took, wrong) = match played {
            Ok((rows, wrong)) => (time(&rows), wrong.map(|why| format!("{name}: {why}\n    {}", told(&rows)))),
            Err(panic) => {
                let why = panic.downcast_ref::<String>().cloned();
                ("–".to_owned(), Some(format!("{name}: {}", why.unwrap_or_else(|| "it panicked".to_owned()))))
            }
        };
        let told = [case.cause, case.response].map(or_dash).join(" | ");
        let line = format!("| {} | {} | {told} | {took} |", case.number, case.fault);
        Row { line, wrong }
    }

    fn begin(case: &Case) -> (Vec<JournalRow>, Option<String>) {
        let mut place = Place::scripted();
        if let Some(script) = case.nvml {
            let library = place.dir.path().join("libfake_nvml.so");
            fs::copy(example("libfake_nvml.so"), &library).unwrap();
            fs::write(library.with_extension("json"), script).unwrap();
            place.variables.push(("DOWNSHIFT_NVML_PATH", library));
        }
        let kernel = place.dir.path().join("kernel.log");
        fs::write(&kernel, "").unwrap();
        place.variables.push(("DOWNSHIFT_KERNEL_LOG", kernel));
        fs::write(place.dir.path().join("run.yaml"), run_file(case)).unwrap();
        let mut words = Vec::new();
        if !case.inject.is_empty() {
            words.extend(["--inject", case.inject]);
        }
        let (mut child, run) = place.start(&words);
        let scene = Self { place, run };
        if let Some(act) = case.act {
            act(&scene);
        }
        let code = wait_exit(&mut child);
        let rows = journal(&scene.run);
        let wrong = judge(case, &rows, code);
        if wrong.is_none() && case.whole && code == 0 {
            scene.place.curve(400, 8);
        }
        if let Some(holds) = case.holds {
            holds(&scene);
        }
        (rows, wrong)
    }

    /// Changes the script of the fake NVML library atomically.
    pub fn nvml(&self, script: &str) {
        let folder = self.place.dir.path();
        fs::write(folder.join("new"), script).unwrap();
        fs::rename(folder.join("new"), folder.join("libfake_nvml.json")).unwrap();
    }

    /// Waits until the journal contains this text.
    pub fn wait_words(&self, words: &str) {
        wait_for(words, || crate::helper::journal_says(&self.run, words).then_some(()));
    }
}

fn judge(case: &Case, rows: &[JournalRow], code: i32) -> Option<String> {
    let says = |words: &str| words.is_empty() || rows.iter().any(|row| row.text.contains(words));
    if code != case.code {
        return Some(format!("exit code {code}, {} wanted", case.code));
    }
    for words in [case.cause, case.response] {
        if !says(words) {
            return Some(format!("`{words}` was not reported"));
        }
    }
    (!case.never.is_empty() && case.code == 0 && says(case.never)).then(|| format!("`{}` was reported", case.never))
}

fn wait_exit(child: &mut Child) -> i32 {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap_or(-1);
        }
        assert!(Instant::now() < deadline, "no end within {LIMIT:?}");
        park_timeout(Duration::from_millis(10));
    }
}

fn run_file(case: &Case) -> String {
    let rungs = [
        "{ name: accumulate, relieves: [memory], set: { training.micro_batch: 4, training.accumulation: 2 } }",
        "{ name: plain, relieves: [kernels], from: full, set: { training.fused_kernels: false } }",
        "{ name: cool, relieves: [heat], set: { training.autotune: minimal } }",
        "{ name: safe, relieves: [memory, kernels, numerics], set: { optimizer.lr: 0.05 } }",
    ];
    let mut text = format!(
        "name: scripted\ntask: scripted\nmodel: {{ {} }}\ntraining: {{ steps: 400, micro_batch: 8 }}\n\
         optimizer: {{ lr: 0.1 }}\ncheckpoint: {{ every: {} }}\nwatch: {{ {} }}\nladder:\n",
        case.model, case.every, case.watch
    );
    for rung in rungs {
        let _ = writeln!(text, "  - {rung}");
    }
    text
}

/// Returns the time from the first death to the first new step, or to the end.
fn time(rows: &[JournalRow]) -> String {
    let first = rows.iter().position(|row| {
        ["worker ended", "injected", "the keeper was killed", "by the keeper", "pause to cool", "go back to a"]
            .iter()
            .any(|words| row.text.contains(words))
    });
    let Some(first) = first else { return "no pause".to_owned() };
    let arrives = |row: &&JournalRow| {
        ["restarted ", "shifted ", "needs attention", "failed: ", "finished "]
            .iter()
            .any(|words| row.text.starts_with(words))
    };
    let end = rows[first..].iter().find(arrives);
    end.map_or("–".to_owned(), |end| format!("{:.2} s", (end.time_ms - rows[first].time_ms) as f64 / 1e3))
}

fn told(rows: &[JournalRow]) -> String {
    rows.iter().map(|row| row.text.as_str()).collect::<Vec<_>>().join("\n    ")
}

fn or_dash(words: &str) -> &str {
    if words.is_empty() { "none" } else { words }
}
