//! The texts of the journal.

use super::retention::Unmatched;
use crate::format::counted;
use crate::outlook::continuation::{Continuation, How};
use crate::protocol::cause::Cause;
use crate::protocol::control::{Passage, Status};
use crate::protocol::metrics::{self, Metrics};
use crate::protocol::resumed::Resumed;
use crate::protocol::worker::{Eval, Hello, Level, Saved, Skipped};
use std::fmt::Write;

pub use crate::format::{bytes, count as grouped};

/// Most quality metrics in a line of the journal.
const MOST_QUALITY: usize = 8;

/// Formats milliseconds as seconds.
#[must_use]
pub fn seconds(ms: f64) -> String {
    if ms < 995.0 { format!("{:.2} s", ms / 1000.0) } else { format!("{:.1} s", ms / 1000.0) }
}

/// Formats a duration with three digits at most: `10 ms`, `2.1 s`.
fn took(ms: f64) -> String {
    if ms < 999.5 { format!("{ms:.0} ms") } else { seconds(ms) }
}

/// Describes a worker that is ready, and takes this many steps again.
#[must_use]
pub fn hello(hello: &Hello, resumed: Option<&Resumed>, again: u64) -> String {
    let (place, doubt) = match resumed {
        None => ("starts at step 0".to_owned(), ""),
        Some(Resumed::Unverified { asked, .. }) => {
            (format!("is asked to resume from step {}", grouped(*asked)), "; not verified yet")
        }
        Some(known) => (known.to_string(), ""),
    };
    let mut text = format!("worker {} {place} on {} ({})", hello.pid, hello.device, hello.backend);
    if hello.parameters > 0 {
        let _ = write!(text, ", {} parameters", grouped(hello.parameters));
    }
    text + &taken_again(again) + doubt
}

/// Describes where a command trains on, once that is known, and how many steps it takes again.
#[must_use]
pub fn resumed(resumed: &Resumed, again: u64) -> String {
    let again = if resumed.is_known() { taken_again(again) } else { String::new() };
    format!("{resumed}{again}")
}

fn taken_again(steps: u64) -> String {
    if steps == 0 { String::new() } else { format!(", and takes {} again", counted(steps, "step")) }
}

/// Describes a command that trains on in another process.
#[must_use]
pub fn went_back(step: u64) -> String {
    match step {
        0 => "another process of the command trains from the beginning".to_owned(),
        step => format!("another process of the command trains on from checkpoint {}", grouped(step)),
    }
}

/// Describes a durable checkpoint.
#[must_use]
pub fn saved(saved: &Saved) -> String {
    let (step, size) = (grouped(saved.step), bytes(saved.bytes));
    let (total, pause) = (took(saved.total_ms), took(saved.pause_ms));
    let paused = if saved.pause_ms >= 100.0 { format!(" · training paused {pause}") } else { String::new() };
    format!("checkpoint {step} · {size} · {total}{paused}")
}

/// Describes the end of a watch over a training that goes on.
#[must_use]
pub fn stopped_watching(step: u64, pid: u32, resume: &str) -> String {
    format!("stopped watching at step {}; process {pid} trains on, and `{resume}` watches it again", grouped(step))
}

/// Describes a start from the beginning after steps that no checkpoint holds.
#[must_use]
pub fn starts_again(redone: u64, can_resume: bool) -> String {
    let why = if can_resume { "no checkpoint yet" } else { "the command cannot resume" };
    let verb = if redone == 1 { "is" } else { "are" };
    format!("{why}: starts again from step 0, {} {verb} redone", counted(redone, "step"))
}

/// Describes a failed save.
#[must_use]
pub fn save_failed(step: u64, message: &str) -> String {
    let step = grouped(step);
    format!(
        "checkpoint {step} not saved: {message}; training continues, older checkpoints stay, and the next scheduled save retries"
    )
}

/// Says why the files of a command are not deleted.
#[must_use]
pub fn keeps_all(unmatched: &Unmatched) -> String {
    format!(
        "checkpoints.keep_last deletes nothing for now: {unmatched}. A file that is written right before or after its \
         evaluation, or named by its step or epoch, is matched with it"
    )
}

/// Describes a skipped step.
#[must_use]
pub fn skipped(skipped: &Skipped) -> String {
    let step = grouped(skipped.step);
    if skipped.applied {
        return format!(
            "step {step}: {} not finite ({}); the command goes on, and the keeper acts after watch.skips_in_a_row of these",
            skipped.what, skipped.place
        );
    }
    format!(
        "step {step} skipped: {} not finite ({}); weights and optimizer state unchanged",
        skipped.what, skipped.place
    )
}

/// Describes the end of a streak of steps that were not finite, from the first to the last. Those that were taken are known as
/// far as the script printed them.
#[must_use]
pub fn end_of_skips((first, last): (u64, u64), were_taken: bool) -> String {
    let steps = format!("{} to {}", grouped(first), grouped(last));
    if were_taken {
        format!("what was printed from step {steps} was not finite, and the steps were taken")
    } else {
        format!("skipped steps {steps}")
    }
}

/// Describes a finished run. `took_no_step`: its last worker counted none.
pub fn finished(step: u64, eval: Option<&Eval>, took_no_step: bool) -> String {
    let measured = eval.map_or_else(String::new, |eval| format!(", validation {}", measured(eval)));
    let nothing = if took_no_step {
        "; no step was counted after its checkpoint: to train longer, raise the number of epochs or steps and begin with \
         `downshift run CONFIG --from RUN`"
    } else {
        ""
    };
    format!("finished at step {}{measured}{nothing}", grouped(step))
}

/// Adds the share of useful time to the end of a run that has trained.
pub fn with_time(text: String, status: &Status) -> String {
    if status.step == 0 { text } else { format!("{text}; {}", status.time) }
}

/// Warns of a run whose loss or gradient was not finite from a step to the end.
pub fn ends_in_streak(since: Option<(&str, u64)>) -> String {
    since.map_or_else(String::new, |(what, step)| format!("; its {what} was not finite from step {} on", grouped(step)))
}

/// Describes a run that the user ended, and how it continues.
#[must_use]
pub fn stopped(step: u64, way: &Continuation) -> (Level, String) {
    let at = grouped(step);
    match way.how {
        How::Resume(durable) if durable >= step => (Level::Info, format!("stopped; {way}")),
        How::Resume(durable) => {
            let lost = counted(step - durable, "step");
            (Level::Warn, format!("stopped at step {at}, not saved; {way} and redoes {lost}"))
        }
        How::RunAgain => (Level::Info, format!("stopped at step {at}; the command cannot resume: {way}")),
        _ => (Level::Warn, format!("stopped at step {at}, not saved; {way}")),
    }
}

/// Formats a loss with its significant digits.
#[must_use]
pub fn loss(loss: f64) -> String {
    let is_plain = loss == 0.0 || (1e-3..1e6).contains(&loss.abs());
    if is_plain { format!("{loss:.4}") } else { format!("{loss:.1e}") }
}

/// Describes an evaluation, without the parts of single classes.
#[must_use]
pub fn measured(eval: &Eval) -> String {
    let metric = |(name, value): (&String, &f64)| match name.as_str() {
        metrics::ACCURACY => format!("{name} {:.2} %", value * 100.0),
        metrics::PERPLEXITY if *value < 1e5 => format!("{name} {value:.2}"),
        _ => format!("{name} {}", loss(*value)),
    };
    let mean = eval.loss.map(|mean| format!("loss {}", loss(mean)));
    let named = eval.metrics.iter().filter(|(name, _)| !metrics::is_of_class(name));
    mean.into_iter().chain(named.map(metric)).collect::<Vec<_>>().join(", ")
}

/// Lists quality metrics; those with a part for each class come last, and are cut off.
#[must_use]
pub fn quality(metrics: &Metrics) -> String {
    let (parts, whole): (Vec<_>, Vec<_>) = metrics.iter().partition(|(name, _)| name.contains('.'));
    let all = whole.into_iter().chain(parts);
    let shown: Vec<String> = all.take(MOST_QUALITY).map(|(name, value)| format!("{name} {}", loss(*value))).collect();
    match metrics.len().saturating_sub(MOST_QUALITY) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Describes a run that is over, except for its last measurement.
#[must_use]
pub fn last_measurement(step: u64, command: &str) -> String {
    format!("training is over; measuring the quality of checkpoint {} (`{command}` skips it)", grouped(step))
}

/// Describes why an attempt ended.
#[must_use]
pub fn cause(cause: &Cause) -> String {
    let known_by: Vec<&str> = cause.evidence.iter().take(3).map(String::as_str).collect();
    let advice = if cause.advice.is_empty() { String::new() } else { format!("; do: {}", cause.advice) };
    format!("cause: {} ({}){advice}", cause.class, known_by.join("; "))
}

/// Compares the loss before and after a transition, as proof of continuity.
#[must_use]
pub fn passage(passage: &Passage) -> String {
    let way = if passage.from == passage.to {
        format!("restarted {}", passage.to)
    } else {
        format!("shifted {} → {}", passage.from, passage.to)
    };
    let parts: Vec<String> = passage
        .stages
        .iter()
        .filter_map(|stage| Some(format!("{} {}", stage.name.words(), seconds(stage.took_ms? as f64))))
        .collect();
    let mut text = format!("{way} in {}", seconds(passage.total_ms() as f64));
    if let Some(((before, loss_before), (after, loss_after))) = passage.before.zip(passage.after) {
        let again = passage.repeated_steps().map_or_else(String::new, |repeated| format!(", {repeated}"));
        let _ = write!(
            text,
            ": step {} → {}{again}, loss {} → {}",
            grouped(before),
            grouped(after),
            loss(loss_before),
            loss(loss_after)
        );
    }
    format!("{text} ({})", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::{bytes, grouped, loss, passage, seconds};
    use crate::protocol::control::{Passage, Stage, StageName};

    #[test]
    fn numbers_are_read_at_a_glance() {
        assert_eq!([grouped(7), grouped(1204), grouped(1_000_000)], ["7", "1 204", "1 000 000"]);
        assert_eq!(
            [bytes(31 << 20), bytes(4_200), bytes(2_500_000_000), bytes(12)],
            ["31.0 MiB", "4.1 KiB", "2.3 GiB", "12 B"]
        );
        assert_eq!(loss(1.398e34), "1.4e34");
        assert_eq!([loss(0.31), loss(0.000_57), loss(0.0)], ["0.3100", "5.7e-4", "0.0000"]);
        assert_eq!([seconds(53.0), seconds(994.0), seconds(2100.0)], ["0.05 s", "0.99 s", "2.1 s"]);
    }

    #[test]
    fn the_start_of_a_command_and_its_first_step_are_two_parts() {
        let took = |name, ms| Stage { name, took_ms: Some(ms) };
        let stages = vec![took(StageName::Save, 200), took(StageName::Start, 4100), took(StageName::FirstStep, 300)];
        let (from, to) = ("full".to_owned(), "safe".to_owned());
        let (before, after) = (Some((1204, 0.5)), Some((1205, 0.25)));
        let mut shift = Passage { from, to, stages, before, resumed_from: Some(1204), after };
        assert_eq!(
            passage(&shift),
            "shifted full → safe in 4.6 s: step 1 204 → 1 205, loss 0.5000 → 0.2500 (save 0.20 s, start 4.1 s, first \
             step 0.30 s)"
        );
        shift.resumed_from = Some(1100);
        let told = passage(&shift);
        assert!(told.contains("step 1 204 → 1 205, 104 steps again from checkpoint 1 100, loss"), "{told}");
    }
}
