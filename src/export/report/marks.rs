//! Where workers began on the curve and the learning rate was lowered, and why.

use super::facts::Facts;
use crate::format::learning_rate;
use serde::Serialize;

/// Newest marks on the curves.
const MOST: usize = 500;

/// A mark on the curves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// The first step after it.
    pub step: u64,
    /// The event, as a sentence.
    pub kind: Kind,
    /// Whether a fault was the reason.
    pub fault: bool,
    /// A word or two beside the line.
    pub label: String,
    /// The whole story, in a sentence.
    pub text: String,
}

/// The kind of event at a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Another rung.
    Shift,
    /// The same rung again.
    Restart,
    /// The learning rate was lowered.
    Rate,
    /// The last worker ended, and none followed.
    End,
}

/// Returns the marks of a run, oldest first.
pub fn of(facts: &Facts) -> Vec<Mark> {
    let segments = facts.loaded.series.segments();
    let later = segments.iter().zip(segments.iter().skip(1)).map(|(before, segment)| {
        let attempt = facts.attempts.iter().find(|attempt| attempt.id == segment.attempt);
        let cause = facts.causes.range(before.attempt..segment.attempt).next_back().map(|(_, cause)| cause);
        let rung = facts.rung_name(segment.rung);
        let shifted = before.rung != segment.rung;
        let why = cause.map(|cause| format!(" after {}", cause.summary()));
        let did = if shifted { format!("continued on {rung}") } else { format!("restarted on {rung}") };
        let reason = attempt.filter(|_| cause.is_none()).map(|attempt| format!(": {}", attempt.reason));
        Mark {
            step: segment.first,
            kind: if shifted { Kind::Shift } else { Kind::Restart },
            fault: cause.is_some(),
            label: if shifted { rung } else { "again".to_owned() },
            text: format!("{did}{}{}", why.unwrap_or_default(), reason.unwrap_or_default()),
        }
    });
    let reduced = facts.loaded.evals.iter().filter_map(|row| {
        let reduced = row.eval.reduced.as_ref()?;
        let label = format!("lr {}", learning_rate(reduced.to));
        Some(Mark { step: row.eval.step, kind: Kind::Rate, fault: false, label, text: reduced.to_string() })
    });
    let mut marks: Vec<Mark> = later.chain(reduced).collect();
    marks.sort_by_key(|mark| mark.step);
    marks.extend(end(facts));
    marks.split_off(marks.len().saturating_sub(MOST))
}

/// Returns the mark of a fault that ended the run.
fn end(facts: &Facts) -> Option<Mark> {
    let last = facts.attempts.last().filter(|_| facts.is_over())?;
    let cause = facts.causes.get(&last.id)?;
    let (_, step) = facts.loaded.series.ends()?;
    let text = format!("the last worker ended: {}", cause.summary());
    Some(Mark { step, kind: Kind::End, fault: true, label: cause.class.to_string(), text })
}
