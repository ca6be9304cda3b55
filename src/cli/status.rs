//! `status`: shows one run, from its keeper or, without one, from its store.

use super::client::current_status;
use super::line;
use super::{Failure, LineFormat, Outcome, Which};
use crate::cockpit::run_cells::done;
use crate::format::{self, age, count, counted, figure, learning_rate, rate};
use crate::protocol::companion::CompanionNews;
use crate::protocol::control::{Proposal, RunState, RungRecord, Status};
use crate::protocol::metrics;
use crate::protocol::resume::describe_ignored;
use crate::protocol::resumed::Resumed;
use crate::protocol::worker::ReducedRate;
use crate::store::continuation::continuation;
use crate::store::owners;
use crate::store::reader::{UnreadableStore, refuse_newer, unreadable};
use crate::store::run_dir::RunDir;
use crate::store::run_dir::name::without_stamp;
use crate::untrusted::text;
use clap::Args;
use std::fmt::Write;
use std::path::Path;

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    which: Which,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: LineFormat,
}

pub fn print_status(args: &StatusArgs, runs: &Path) -> Outcome {
    let run = match RunDir::find(runs, args.which.run.as_deref()) {
        // A status line without a run is empty; this is not an error.
        Err(_) if args.format == LineFormat::Tmux => {
            line!("");
            return Ok(0);
        }
        found => found?,
    };
    refuse_newer(&run).map_err(|refusal| Failure::new(1, format!("{}: {refusal}", run.name())))?;
    let nothing = || {
        let recovery = owners::parent_record(&run).and_then(|record| record.recovery);
        if let Some(recovery) = recovery.filter(|_| owners::keeper(&run).is_none()) {
            return Failure::new(1, format!("{} is recovering: {}", run.name(), recovery.sentence()));
        }
        unreadable(&run).unwrap_or_else(|| UnreadableStore::NotBegun { run: run.name() }).into()
    };
    let status = current_status(&run).ok_or_else(nothing)?;
    match args.format {
        LineFormat::Json => {
            let mut shown = serde_json::to_value(&status)?;
            shown["useful"] = status.time.useful().into();
            if let Some(stalled_ms) = status.stalled_ms(now_ms()) {
                shown["stalled_ms"] = stalled_ms.into();
            }
            line!("{}", serde_json::to_string_pretty(&shown)?);
        }
        LineFormat::Text => print_text(&run, &status),
        LineFormat::Tmux => line!("{}", tmux(&status, now_ms())),
    }
    Ok(0)
}

/// Prints the status for reading: a line of facts, a line for each note, and how the run goes on.
pub fn print_text(run: &RunDir, status: &Status) {
    line!("{}", text::escape_line(&facts(status, now_ms())));
    for note in notes(status) {
        line!("  {}", text::escape_line(&note));
    }
    if status.step > 0 {
        line!("  {}: {}", status.time, status.time.parts_text().join(", "));
    }
    if let Some(way) = continuation_line(run, status) {
        line!("  {way}");
    }
}

/// Returns how a run continues that is paused, or over and not finished. Without a keeper, the reason of the state says so.
pub(super) fn continuation_line(run: &RunDir, status: &Status) -> Option<String> {
    let is_shown = match status.state {
        RunState::Paused => status.why.is_none(),
        RunState::Failed | RunState::NeedsPerson | RunState::Stopped => true,
        _ => false,
    };
    is_shown.then(|| continuation(run, Some(status)).to_string())
}

/// Formats the status as one line of text.
pub fn status_line(status: &Status) -> String {
    status_line_at(status, now_ms())
}

fn status_line_at(status: &Status, now_ms: i64) -> String {
    let mut line = facts(status, now_ms);
    for note in notes(status) {
        let _ = write!(line, "  ({note})");
    }
    text::escape_line(&line).into_owned()
}

/// Formats what is known of every run: state, rung, progress and figures.
fn facts(status: &Status, now_ms: i64) -> String {
    let stalled = status.stalled_ms(now_ms).map(|still| format!("stalled: no step for {}", age(still)));
    let state = stalled.as_deref().unwrap_or(status.state.word());
    let mut line = format!("{}  {state}  ", status.run);
    // Without a ladder there is nothing to count.
    let _ = match status.rungs.len() {
        0 | 1 => write!(line, "{}", status.rung_name),
        rungs => write!(line, "rung {} ({} of {rungs})", status.rung_name, status.rung + 1),
    };
    if let Some(level) = status.describe_resume() {
        let _ = write!(line, "  {level}");
    }
    let _ = write!(line, "  step {}{}", count(status.step), percent(status));
    if let Some(loss) = status.format_loss() {
        let _ = write!(line, "  loss {loss}");
    }
    if let Some(steps_per_s) = speed(status).filter(|_| stalled.is_none()) {
        let _ = write!(line, "  {} steps/s", rate(steps_per_s));
    }
    if let Some(left) = status.left_ms(now_ms).filter(|_| stalled.is_none()) {
        let _ = write!(line, "  {} left", age(left));
    }
    if let Some(eval) = &status.eval {
        line.push_str(if eval.loss.is_some() { "  validation loss" } else { "  evaluation" });
        if let Some(loss) = eval.loss {
            let _ = write!(line, " {}", figure(loss));
        }
        if let Some(accuracy) = eval.value(metrics::ACCURACY) {
            let _ = write!(line, " ({:.2} %)", accuracy * 100.0);
        } else if let Some((name, value)) = eval.metrics.first_key_value() {
            let _ = write!(line, " ({name} {})", figure(*value));
        }
    }
    if let Some(best) = &status.best {
        let name = if best.metric == metrics::LOSS { String::new() } else { format!("{} ", best.metric) };
        let _ = write!(line, "  best {name}{} at step {}", figure(best.value), count(best.step));
    }
    line
}

/// Returns what is special about the run now, and why.
fn notes(status: &Status) -> Vec<String> {
    let reduced = |reduced: &ReducedRate| {
        let factor = learning_rate(reduced.factor);
        format!("learning rate × {factor} since step {}", count(reduced.step))
    };
    let proposal =
        |proposal: &Proposal| format!("proposal: {}; the keeper {}; `downshift accept`", proposal.why, proposal.does);
    let ignored = |companion: &CompanionNews| describe_ignored(&companion.ignored);
    let resumed = status.resumed.as_ref().filter(|resumed| resumed.is_doubtful()).map(Resumed::to_string);
    let unusable =
        |record: &RungRecord| Some(format!("{} cannot start here: {}", record.name, record.unusable.as_ref()?));
    let troubles = troubles(status).into_iter().chain(status.rungs.iter().filter_map(unusable));
    let notes = [
        status.pid_quality.map(|_| "measuring quality".to_owned()),
        status.setback.as_ref().map(ToString::to_string),
        status.unread.as_ref().map(ToString::to_string),
        status.reduced.as_ref().map(reduced),
        status.why.clone(),
        status.host.as_ref().map(|host| format!("on host {host}, through the run's folder")),
        resumed,
        status.companion.as_deref().and_then(ignored),
        status.proposal.as_ref().map(proposal),
    ];
    troubles.chain(notes.into_iter().flatten()).collect()
}

/// Returns what is wrong with a run that may train on: saves that fail, losses that are not finite.
pub fn troubles(status: &Status) -> Vec<String> {
    let saves = status.failed_saves.as_ref().map(ToString::to_string);
    let losses = (status.unguarded > 0).then(|| format!("{} not finite", counted(status.unguarded, "step")));
    saves.into_iter().chain(losses).collect()
}

/// Returns the speed of a training run: the figure shown in the cockpit.
fn speed(status: &Status) -> Option<f64> {
    status.rungs.get(status.rung).filter(|_| status.state.is_moving())?.steps_per_s
}

/// Formats one short styled line for tmux: name, state, progress, loss; problems are highlighted.
fn tmux(status: &Status, now_ms: i64) -> String {
    let stalled = status.stalled_ms(now_ms).map(|still| format!("stalled {}", age(still)));
    let colour = match status.state {
        _ if stalled.is_some() => "yellow",
        RunState::Training | RunState::Evaluating | RunState::Checkpointing | RunState::Finished => "green",
        RunState::Failed | RunState::NeedsPerson | RunState::Interrupted => "red",
        _ => "yellow",
    };
    // The start time is useless in a narrow space.
    let name = escape_for_tmux(without_stamp(&status.run));
    let loss = status.format_loss().map_or_else(String::new, |loss| format!(" loss {loss}"));
    let (state, rung) = (stalled.as_deref().unwrap_or(status.state.word()), &status.rung_name);
    let rung = if status.rungs.len() > 1 { format!(" {}", escape_for_tmux(rung)) } else { String::new() };
    format!("#[fg={colour}]●#[default] {name} #[fg={colour}]{state}#[default]{rung}{}{loss}", percent(status))
}

/// Escapes a name for tmux, where `#` starts a style.
fn escape_for_tmux(name: &str) -> String {
    text::escape_line(&name.replace('#', "")).into_owned()
}

fn percent(status: &Status) -> String {
    done(status).map_or_else(String::new, |share| format!(" {}", format::percent(share)))
}

fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

#[cfg(test)]
mod tests {
    use super::{escape_for_tmux, status_line_at, tmux};
    use crate::cockpit::fixture;
    use crate::protocol::companion::CompanionNews;
    use crate::protocol::control::{RunState, Status};
    use crate::protocol::resume::Resume;
    use crate::protocol::worker::ReducedRate;
    use crate::recipe::learning::Setback;
    use serde_json::json;

    fn status_line(status: &Status) -> String {
        status_line_at(status, fixture::NOW)
    }

    #[test]
    fn a_run_without_progress_is_stalled_and_shows_no_speed() {
        let mut status = fixture::status(RunState::Training, 700);
        let moving = status_line_at(&status, fixture::NOW + 3_900);
        assert!(moving.contains("  training  ") && moving.contains(" steps/s"), "{moving}");
        let still = status_line_at(&status, fixture::NOW + 47_000);
        assert!(still.contains("  stalled: no step for 47 s  ") && !still.contains(" steps/s"), "{still}");
        let short = tmux(&status, fixture::NOW + 47_000);
        assert!(short.contains("#[fg=yellow]stalled 47 s#[default]"), "{short}");
        status.state = RunState::Evaluating;
        let evaluating = status_line_at(&status, fixture::NOW + 47_000);
        assert!(evaluating.contains("  evaluating  "), "{evaluating}");
    }

    #[test]
    fn the_time_left_is_that_of_the_command_while_it_runs() {
        let mut status = Status { ends_ms: Some(fixture::NOW + 720_000), ..fixture::status(RunState::Training, 700) };
        assert!(status_line(&status).contains("  12 min left  "), "{}", status_line(&status));
        status.state = RunState::Finished;
        assert!(!status_line(&status).contains(" left"), "{}", status_line(&status));
    }

    #[test]
    fn the_line_names_the_level_the_grade_and_ignored_knobs() {
        let mut status = fixture::status(RunState::Training, 7);
        let companion: CompanionNews = serde_json::from_value(json!({
            "framework": "loop", "version": null, "python": null, "torch": null, "grade": "same_data", "reason": null,
            "saves": true, "guards": true, "parameters": null, "epoch_units": null, "unit": null, "world": 1,
            "knobs": {}, "ignored": [{ "name": "training.micro_batch", "rung": 2, "in_force": 4 }],
        }))
        .unwrap();
        status.resume = Some(Resume::of_companion(&companion, false));
        (status.level, status.companion) = (Some(2), Some(Box::new(companion)));
        let line = status_line(&status);
        assert!(line.contains("  resume same data  "), "{line}");
        assert!(line.contains("(the script ignores training.micro_batch: the rung says 2, in force is 4)"), "{line}");
    }

    #[test]
    fn what_is_not_known_yet_is_not_counted_and_not_called_a_level() {
        let mut status = fixture::status(RunState::Starting, 1204);
        let rung = format!("  rung {} ({} of {})  ", status.rung_name, status.rung + 1, status.rungs.len());
        assert!(status_line(&status).contains(&rung), "{}", status_line(&status));
        assert!(status_line(&status).contains("  step 1 204"), "{}", status_line(&status));
        status.rungs.truncate(1);
        assert!(!status_line(&status).contains("(rung "), "{}", status_line(&status));
        (status.level, status.awaits_companion) = (Some(0), true);
        let line = status_line(&status);
        assert!(line.contains("  resume not known yet  ") && !line.contains("no resume"), "{line}");
        status.awaits_companion = false;
        assert!(status_line(&status).contains("  no resume  "), "{}", status_line(&status));
        (status.awaits_companion, status.state) = (true, RunState::Stopped);
        assert!(status_line(&status).contains("  no resume  "), "its keeper died while it waited");
    }

    #[test]
    fn the_line_says_when_a_run_no_longer_learns() {
        let mut status = fixture::status(RunState::Training, 7);
        assert!(!status_line(&status).contains("rising"), "{}", status_line(&status));
        status.setback = Some(Setback::Rising { evaluations: 4 });
        assert!(
            status_line(&status).ends_with("  (validation loss rising for 4 evaluations)"),
            "{}",
            status_line(&status)
        );
    }

    #[test]
    fn the_line_says_that_the_learning_rate_was_lowered() {
        let mut status = fixture::status(RunState::Training, 7);
        assert!(!status_line(&status).contains("learning rate"), "{}", status_line(&status));
        status.reduced = Some(ReducedRate { step: 1200, factor: 0.25, ..ReducedRate::default() });
        let line = status_line(&status);
        assert!(line.ends_with("  (learning rate × 0.25 since step 1 200)"), "{line}");
    }

    #[test]
    fn a_name_adds_no_style_and_no_escape_to_the_status_line() {
        assert_eq!(escape_for_tmux("#(reboot)#[fg=red]x\u{1b}[2J\n"), "(reboot)[fg=red]x\\u001b[2J\\n");
    }
}
