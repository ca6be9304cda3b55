//! `quality:`: measurements that cost more than a loss. The keeper makes them beside the training, on its newest
//! checkpoint, in a process of low priority.
//!
//! ```yaml
//! quality:
//!   every: 5 epochs
//!   metrics: [accuracy_by_class, calibration]
//!   command: [python, score.py, "{checkpoint}"]      # prints `name value`, `name=value` or a JSON object
//! ```
//! Its numbers become metrics of an evaluation at the checkpoint's step, named `quality.NAME`.

use super::best::{Best, Goal};
use super::command::launch::find_knob;
use super::command::template::{Placeholder, Template};
use super::problem::{Findings, Problem};
use super::typed;
use super::units::Every;
use crate::recipe::metrics::{CLASS_ACCURACY, QUALITY};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Share of correct answers in each class.
pub const ACCURACY_BY_CLASS: &str = "accuracy_by_class";
/// The expected calibration error.
pub const CALIBRATION: &str = "calibration";
/// Distinct words and pairs of words in generated samples.
pub const DISTINCT: &str = "distinct";
/// The perplexity on a second text.
pub const PERPLEXITY: &str = "perplexity";

/// The time a measurement may have.
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(24);
/// Sections whose knobs the command may name.
const KNOB_SECTIONS: [&str; 3] = ["training", "optimizer", "knobs"];

/// The measurements beside the training, and their rhythm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// The interval; the end of the run is always measured.
    pub every: Every,
    /// Metrics of the task, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<String>,
    /// A second text, for `perplexity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<PathBuf>,
    /// A program that prints numbers, and its arguments with placeholders; empty if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The folder that the program starts in; the run file's own, or that of the run's command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// The devices that the program sees.
    #[serde(default)]
    pub device: Visible,
    /// The time a measurement may take.
    #[serde(default = "default_timeout")]
    pub timeout: Every,
}

/// The devices that a program sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visible {
    /// No GPU: its memory stays with the training.
    #[default]
    Cpu,
    /// Those of the run.
    Run,
}

/// The parts of the run file that a check depends on.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// The name of the task.
    pub task: &'a str,
    /// The quality metrics of the task; `None` if any name is possible.
    pub metrics: Option<&'a [&'a str]>,
    /// The run starts a command.
    pub is_command: bool,
    /// The knobs of rung 0.
    pub knobs: &'a Value,
}

impl Quality {
    /// Returns the time a measurement may take.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.timeout.duration().unwrap_or_default()
    }

    /// Makes the paths absolute. `home` is where the command starts unless the file says otherwise.
    pub fn settle_paths(&mut self, base: &Path, home: &Path) {
        self.text = self.text.take().map(|text| base.join(text).components().collect());
        let directory = self.directory.take();
        self.directory = match directory {
            Some(directory) => Some(base.join(directory).components().collect()),
            None => (!self.command.is_empty()).then(|| home.to_owned()),
        };
    }

    /// Returns every invalid setting.
    #[must_use]
    pub fn check(&self, around: &Surroundings<'_>) -> Vec<Problem> {
        let mut found = Findings::below("quality");
        match self.every {
            Every::Auto => found.push("every", "nothing derives this interval", "write 5 epochs, 500 steps or 30 min"),
            Every::Epochs(_) if around.is_command => {
                found.push("every", "the epochs of a command are not known", "write 500 steps or 30 min");
            }
            _ => {}
        }
        let bounded = self.timeout.duration().is_some_and(|limit| TIMEOUTS.contains(&limit));
        found.unless(bounded, "timeout", "must be a time of 1 s to 24 h", "write 10 min");
        let empty = self.metrics.is_empty() && self.command.is_empty();
        let fix = "name `metrics` of the task, or a `command` that prints numbers; or remove the section";
        found.unless(!empty, "", "it measures nothing", fix);
        let reads_text = self.metrics.iter().any(|name| name == PERPLEXITY);
        let fix = "add `perplexity` to `metrics`, or remove it";
        found.unless(self.text.is_none() || reads_text, "text", "only `perplexity` reads a second text", fix);
        let fix = "name the file of a second text in `quality.text`";
        found.unless(self.text.is_some() || !reads_text, "metrics", "`perplexity` needs a second text", fix);
        self.check_program(&mut found);
        let mut problems = found.into_problems();
        problems.extend(self.check_metrics(around));
        problems.extend(self.check_arguments(around.knobs));
        problems
    }

    fn check_program(&self, found: &mut Findings) {
        if self.command.is_empty() {
            let fix = "remove it, or write a `command`";
            found.unless(self.directory.is_none(), "directory", "only `command` starts in a folder", fix);
            let fix = "remove it, or write a `command`: the metrics of the task are measured on the CPU";
            found.unless(self.device == Visible::Cpu, "device", "only `command` sees devices", fix);
        }
        let named = self.command.first().is_none_or(|program| !program.trim().is_empty());
        let fix = "write the program and its arguments as a list, such as [python, score.py, \"{checkpoint}\"]";
        found.unless(named, "command", "the command names no program", fix);
    }

    /// Returns the metrics that the task does not have.
    fn check_metrics(&self, around: &Surroundings<'_>) -> Vec<Problem> {
        if around.is_command {
            let fix = "write a `quality.command` that loads {checkpoint} and prints numbers";
            let wrong = "only a built-in task knows its metrics, a command does not";
            return (!self.metrics.is_empty())
                .then(|| Problem::at("quality.metrics", wrong, fix))
                .into_iter()
                .collect();
        }
        let Some(known) = around.metrics else { return Vec::new() };
        let unknown = self.metrics.iter().enumerate().filter(|(_, name)| !known.contains(&name.as_str()));
        let problem = |(index, name): (usize, &String)| {
            let wrong = format!("task {} has no quality metric `{name}`", around.task);
            let fix = if known.is_empty() {
                "write a `quality.command` that prints numbers".to_owned()
            } else {
                typed::suggest(name, known)
            };
            Problem::at(format!("quality.metrics[{index}]"), wrong, fix)
        };
        unknown.map(problem).collect()
    }

    /// Returns the arguments whose placeholders have no value.
    fn check_arguments(&self, knobs: &Value) -> Vec<Problem> {
        let check = |(index, text): (usize, &String)| {
            let path = format!("quality.command[{index}]");
            let template = match Template::parse(text) {
                Ok(_) if text.contains('\0') => {
                    return Some(Problem::at(path, "it contains a NUL character", "remove it"));
                }
                Ok(template) => template,
                Err(error) => return Some(Problem::at(path, error.to_string(), "write {{ and }} for single braces")),
            };
            let unknown = template.placeholders().find(|place| !has_value(place, knobs))?;
            let fix = "write {checkpoint}, {step}, {rung}, {run_dir} or a knob such as {training.micro_batch}";
            Some(Problem::at(path, format!("`{unknown}` has no value in a measurement"), fix))
        };
        self.command.iter().enumerate().filter_map(check).collect()
    }

    /// Reports whether it can measure a metric of this name.
    fn may_report(&self, name: &str) -> bool {
        let source = source_of(name).map(|(metric, _)| metric);
        let of_task = |metric: &String| {
            source == Some(metric)
                || name.strip_prefix(metric.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        !self.command.is_empty() || self.metrics.iter().any(of_task)
    }
}

/// Returns the built-in metric that reports a number of this name, and the number's goal.
#[must_use]
pub fn source_of(name: &str) -> Option<(&'static str, Goal)> {
    Some(match name {
        "balanced_accuracy" | "worst_class_accuracy" => (ACCURACY_BY_CLASS, Goal::Max),
        name if name.starts_with(CLASS_ACCURACY) => (ACCURACY_BY_CLASS, Goal::Max),
        "distinct_1" | "distinct_2" => (DISTINCT, Goal::Max),
        CALIBRATION => (CALIBRATION, Goal::Min),
        PERPLEXITY => (PERPLEXITY, Goal::Min),
        _ => return None,
    })
}

/// Refuses to rank checkpoints by a quality metric that nothing measures.
#[must_use]
pub fn check_ranking(best: &Best, quality: Option<&Quality>) -> Option<Problem> {
    let name = best.metric.strip_prefix(QUALITY)?;
    let (wrong, fix) = match quality {
        None => ("no section `quality` measures it", "add `quality:`, or rank by a metric of evaluations".to_owned()),
        Some(quality) if !quality.may_report(name) => {
            ("`quality.metrics` does not measure it", "add it to `quality.metrics`, or rank by another".to_owned())
        }
        Some(_) => return None,
    };
    Some(Problem::at("checkpoint.best.metric", wrong, fix))
}

/// Reports whether a placeholder has a value in a measurement, which belongs to no attempt.
fn has_value(place: &Placeholder, knobs: &Value) -> bool {
    match place {
        Placeholder::AttemptDir => false,
        Placeholder::Knob(name) => {
            let section = name.split('.').next().unwrap_or_default();
            KNOB_SECTIONS.contains(&section) && find_knob(knobs, name).is_some()
        }
        _ => true,
    }
}

fn default_timeout() -> Every {
    Every::Seconds(600.0)
}

#[cfg(test)]
mod tests {
    use super::{Quality, Surroundings, check_ranking};
    use crate::config::best::{Best, Goal};
    use crate::config::typed;
    use serde_json::{Value, json};
    use std::path::Path;

    fn read(quality: &Value) -> Quality {
        let (read, problems) = typed::read_tree::<Quality>(quality);
        assert_eq!(problems, []);
        read.unwrap()
    }

    #[test]
    fn each_mistake_is_named_with_its_place_and_the_way_out() {
        let metrics = ["accuracy_by_class", "calibration"];
        for (written, task, place, wrong) in [
            (json!({"every": "auto", "metrics": ["calibration"]}), "vision", "quality.every", "30 min"),
            (json!({"every": "1 epoch"}), "vision", "quality", "measures nothing"),
            (json!({"every": "1 epoch", "metrics": ["calibratoin"]}), "vision", "metrics[0]", "did you mean `calib"),
            (json!({"every": "1 epoch", "metrics": ["calibration"], "text": "x"}), "vision", "quality.text", "perpl"),
            (json!({"every": "1 epoch", "metrics": ["perplexity"]}), "vision", "quality.metrics", "second text"),
            (json!({"every": "1 epoch", "metrics": ["calibration"], "device": "run"}), "vision", "device", "CPU"),
            (
                json!({"every": "9 steps", "metrics": ["calibration"], "directory": "x"}),
                "vision",
                "directory",
                "folder",
            ),
            (json!({"every": "9 steps", "metrics": ["calibration"], "timeout": "3 steps"}), "vision", "timeout", "1 s"),
            (json!({"every": "9 steps", "command": [" "]}), "command", "quality.command", "no program"),
            (json!({"every": "2 epochs", "command": ["x"]}), "command", "quality.every", "not known"),
            (json!({"every": "9 steps", "metrics": ["calibration"]}), "command", "metrics", "quality.command"),
            (json!({"every": "9 steps", "command": ["x", "{attempt_dir}"]}), "vision", "command[1]", "{checkpoint}"),
            (json!({"every": "9 steps", "command": ["x", "{knobs.a}"]}), "vision", "command[1]", "`{knobs.a}`"),
            (json!({"every": "9 steps", "command": ["x{"]}), "vision", "command[0]", "single braces"),
        ] {
            let knobs = json!({"training": {"micro_batch": 3}});
            let is_command = task == "command";
            let around = Surroundings { task, metrics: Some(&metrics), is_command, knobs: &knobs };
            let found: Vec<String> = read(&written).check(&around).iter().map(ToString::to_string).collect();
            let named = found.iter().any(|problem| problem.contains(place) && problem.contains(wrong));
            assert!(named, "{written}: {found:?}");
        }
        let fine =
            json!({"every": "2 epochs", "metrics": ["calibration"], "command": ["x", "{training.micro_batch}{step}"]});
        let knobs = json!({"training": {"micro_batch": 3}});
        let around = Surroundings { task: "vision", metrics: Some(&metrics), is_command: false, knobs: &knobs };
        assert_eq!(read(&fine).check(&around), []);
    }

    #[test]
    fn paths_start_from_the_file_and_a_command_from_its_folder() {
        let mut quality = read(&json!({"every": "1 epoch", "command": ["x"], "text": "a/b.txt"}));
        quality.settle_paths(Path::new("/base"), Path::new("/base/scripts"));
        assert_eq!(quality.text.as_deref(), Some(Path::new("/base/a/b.txt")));
        assert_eq!(quality.directory.as_deref(), Some(Path::new("/base/scripts")));
        let again = read(&serde_json::to_value(&quality).unwrap());
        assert_eq!(again, quality, "run.yaml reads what it writes");
    }

    #[test]
    fn checkpoints_are_ranked_only_by_what_is_measured() {
        let ranked = |metric: &str, quality: Option<&Quality>| {
            let best = Best { metric: metric.to_owned(), goal: Goal::Min };
            check_ranking(&best, quality).map(|problem| problem.wrong)
        };
        let by_class = read(&json!({"every": "1 epoch", "metrics": ["accuracy_by_class"]}));
        let command = read(&json!({"every": "1 epoch", "command": ["x"]}));
        assert_eq!(ranked("loss", None), None);
        assert!(ranked("quality.fid", None).is_some_and(|wrong| wrong.contains("no section")));
        assert!(ranked("quality.fid", Some(&by_class)).is_some());
        for name in ["quality.accuracy.3", "quality.balanced_accuracy"] {
            assert_eq!(ranked(name, Some(&by_class)), None, "{name}");
        }
        assert_eq!(ranked("quality.fid", Some(&command)), None);
    }
}
