//! The checks of a run file that need all of it: its task, every rung, the pinned knobs and the plan of a climb.

use super::file::RunFile;
use super::{Origin, OwnedSections, Run, TaskSections};
use crate::config::best::Best;
use crate::config::ladder::{FULL, Resolved, resolve_ladder};
use crate::config::problem::Problem;
use crate::config::quality::{Quality, Surroundings, check_ranking};
use crate::config::{check, command, typed, watch};
use crate::recipe::metrics::{LOSS, is_quality};
use serde_json::Value;
use std::collections::HashSet;
use std::path::Path;

/// Validates a run file as written, and adds what is wrong with it to `problems`.
pub fn validate_run(
    mut file: RunFile,
    tasks: &dyn TaskSections,
    base: &Path,
    origin: Origin,
    problems: &mut Vec<Problem>,
) -> Run {
    problems.extend(check::check_name("name", &file.name));
    problems.extend(watch::check_watch(&file.watch));
    problems.extend(file.notify.iter().flat_map(|notify| notify.check("notify")));
    // Relative to the file, like all paths in it; run.yaml stores it absolute.
    file.probe.nvml = file.probe.nvml.take().map(|path| base.join(path));
    if let Some(notify) = &mut file.notify {
        notify.settle_paths(base);
    }
    for (index, spec) in file.ladder.iter().enumerate() {
        problems.extend(check::check_name(&format!("ladder[{index}].name"), &spec.name));
    }
    let trained = settle_task(&mut file, tasks, base, problems);
    let full = file.preset();
    let (rungs, wrong) = resolve_ladder(full, &file.ladder, &file.pinned);
    problems.extend(wrong);
    problems.extend(check_pinned(&file.pinned, &rungs[0].tree));
    check_rungs(&rungs, trained.then_some((tasks, file.task.as_str(), base)), file.quality.as_ref(), problems);
    let command = file.command_spec(base);
    // A command that could not be read is empty.
    let is_unread = problems.iter().any(|problem| problem.path.starts_with("command"));
    let wrong = command.iter().flat_map(|command| command::check::check_command(command, &rungs));
    problems.extend(wrong.filter(|problem| !(is_unread && problem.path == "command")).collect::<Vec<_>>());
    if let Some(quality) = &mut file.quality {
        quality.settle_paths(base, command.as_ref().map_or(base, |command| &command.directory));
        let (metrics, is_command) = (tasks.quality_metrics(&file.task), command.is_some());
        let around = Surroundings { task: &file.task, metrics, is_command, knobs: &rungs[0].tree };
        problems.extend(quality.check(&around));
    }
    let names: Vec<&str> = [FULL].into_iter().chain(file.ladder.iter().map(|spec| spec.name.as_str())).collect();
    let (plan, wrong) = file.climb.resolve(&names);
    problems.extend(wrong);
    let ladder = rungs.iter().map(|resolved| resolved.rung.clone()).collect();
    let (watch, probe, quality, notify) = (file.watch, file.probe, file.quality, file.notify);
    let run = Run {
        name: file.name,
        task: file.task,
        command,
        watch,
        probe,
        quality,
        notify,
        pinned: file.pinned,
        plan,
        rungs: ladder,
    };
    // Reachability is undefined while the ladder has errors.
    if problems.is_empty() {
        problems.extend(run.broken_stages());
        if origin == Origin::Written {
            problems.extend(run.unusable(&rungs));
            if let Some(command) = &run.command {
                problems.extend(command::reach::useless_knobs(command, &rungs));
                problems.extend(command::reach::useless_rungs(command, &rungs));
            }
        }
    }
    run
}

/// Resolves the sections that the task owns. Returns whether a trainer knows the task.
fn settle_task(file: &mut RunFile, tasks: &dyn TaskSections, base: &Path, problems: &mut Vec<Problem>) -> bool {
    if file.task == command::TASK {
        return false;
    }
    let names = tasks.names();
    // Without a trainer, any task may be one of another build, but none of them has a command.
    let is_foreign = names.is_empty() && !file.command.is_empty();
    if is_foreign || !tasks.knows(&file.task) {
        let known: Vec<&str> = names.iter().map(String::as_str).chain([command::TASK]).collect();
        let wrong = format!("no task is called `{}`", file.task);
        problems.push(Problem::at("task", wrong, typed::suggest(&file.task, &known)));
        return false;
    }
    let (sections, wrong) = tasks.resolve(&file.task, OwnedSections { data: &file.data, model: &file.model, base });
    problems.extend(wrong);
    if let Some((data, model)) = sections {
        (file.data, file.model) = (data, model);
    }
    true
}

/// Checks every rung. A problem shared by all rungs is reported once, in the body of the file.
fn check_rungs(
    rungs: &[Resolved],
    tasks: Option<(&dyn TaskSections, &str, &Path)>,
    quality: Option<&Quality>,
    problems: &mut Vec<Problem>,
) {
    let mut seen = HashSet::new();
    let sound = |problems: &[Problem]| {
        !problems.iter().any(|problem| problem.path.starts_with("data") || problem.path.starts_with("model"))
    };
    for rung in rungs {
        let preset = &rung.rung.preset;
        let mut found = check::check_preset(preset);
        found.extend(check_ranking(&preset.checkpoint.best, quality));
        if let Some((tasks, task, base)) = tasks {
            let metrics = tasks.eval_metrics(task);
            let best = Some(&preset.checkpoint.best).filter(|best| !is_quality(&best.metric));
            found.extend(best.and_then(|by| unknown_ranking("checkpoint.best.metric", by, task, metrics)));
            let plateau = preset.optimizer.plateau.as_ref().map(|plateau| &plateau.by);
            found.extend(plateau.and_then(|by| unknown_ranking("optimizer.plateau.metric", by, task, metrics)));
            if rung.place.is_some() {
                let sections = OwnedSections { data: &preset.data, model: &preset.model, base };
                found.extend(tasks.resolve(task, sections).1);
            }
            // This loads the data and builds the model, so it must not run on an invalid section.
            if sound(problems) && sound(&found) {
                found.extend(tasks.misfits(task, preset));
            }
        }
        found.retain(|problem| {
            let known = problems.iter().any(|earlier| earlier.path == problem.path && earlier.wrong == problem.wrong);
            !known && seen.insert((problem.path.clone(), problem.wrong.clone()))
        });
        problems.extend(found.into_iter().map(|problem| rung.blame(problem)));
    }
}

/// Refuses to rank evaluations by a metric that none of the task reports.
fn unknown_ranking(path: &str, by: &Best, task: &str, metrics: Option<&[&str]>) -> Option<Problem> {
    let known = [&[LOSS][..], metrics?].concat();
    let wrong = format!("evaluations of task {task} do not report `{}`", by.metric);
    (!known.contains(&by.metric.as_str())).then(|| Problem::at(path, wrong, typed::suggest(&by.metric, &known)))
}

fn check_pinned(pinned: &[String], full: &Value) -> Vec<Problem> {
    let known = |path: &str| full.pointer(&format!("/{}", path.replace('.', "/"))).is_some();
    let unknown = pinned.iter().enumerate().filter(|(_, path)| !known(path));
    unknown
        .map(|(index, path)| {
            Problem::at(
                format!("pinned[{index}]"),
                format!("unknown knob `{path}`"),
                "write a dotted path, such as training.accumulation",
            )
        })
        .collect()
}
