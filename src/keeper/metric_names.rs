//! Decides which named metrics of a worker enter the run: names are sanitized, their number is limited, and
//! the user is told once when one is left out.

use crate::protocol::metrics::{LOSS, MAX_NAMES, Metrics, sanitize_name};
use crate::protocol::worker::Event;
use crate::store::summary::{Metric, MetricNames};
use std::collections::BTreeSet;
use std::mem::{Discriminant, discriminant, take};

/// The names of a run's metrics.
#[derive(Debug, Default)]
pub struct Admission {
    names: BTreeSet<String>,
    /// Kinds of refusals that the user was told of.
    told: Vec<Discriminant<Refused>>,
}

/// Reason why a metric is left out.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The run has as many as it may.
    #[error("metric {0} is left out, like every later new one: a run has at most {MAX_NAMES}")]
    TooMany(String),
    /// It has the name of a built-in metric.
    #[error("metric {0} is left out: downshift measures one of this name itself")]
    BuiltIn(String),
}

impl Admission {
    /// Begins with the names that the run has already.
    pub fn new(known: impl IntoIterator<Item = String>) -> Self {
        Self { names: known.into_iter().collect(), told: Vec::new() }
    }

    /// Leaves out of an event what may not enter the run. Returns the reason, once for each kind.
    pub fn admit(&mut self, event: &mut Event) -> Option<Refused> {
        let every = MetricNames::default();
        let (metrics, of_step) = match event {
            Event::Step(step) => (&mut step.metrics, true),
            Event::Eval(eval) => (&mut eval.metrics, false),
            Event::Saved(saved) => (&mut saved.metrics, false),
            _ => return None,
        };
        let built_in = |name: &str| if of_step { Metric::find(name, &every).is_some() } else { name == LOSS };
        let mut refusal = None;
        let mut admitted = Metrics::new();
        for (text, value) in take(metrics) {
            let Some(name) = sanitize_name(&text) else { continue };
            if built_in(&name) {
                refusal.get_or_insert(Refused::BuiltIn(name));
            } else if self.names.contains(&name) || self.names.len() < MAX_NAMES {
                self.names.insert(name.clone());
                admitted.insert(name, value);
            } else {
                refusal.get_or_insert(Refused::TooMany(name));
            }
        }
        *metrics = admitted;
        let kind = discriminant(refusal.as_ref()?);
        let told = self.told.contains(&kind);
        if told {
            return None;
        }
        self.told.push(kind);
        refusal
    }
}

#[cfg(test)]
mod tests {
    use super::{Admission, Refused};
    use crate::protocol::metrics::{MAX_NAMES, Metrics};
    use crate::protocol::worker::{Eval, Event, Step};

    fn step(names: &[&str]) -> Event {
        let metrics = names.iter().map(|name| ((*name).to_owned(), 1.0)).collect();
        Event::Step(Step { step: 1, metrics, ..Step::default() })
    }

    fn names(event: &Event) -> Vec<&str> {
        match event {
            Event::Step(Step { metrics, .. }) | Event::Eval(Eval { metrics, .. }) => {
                metrics.keys().map(String::as_str).collect()
            }
            _ => Vec::new(),
        }
    }

    #[test]
    fn names_are_sanitized_and_those_of_built_in_metrics_left_out() {
        let mut admission = Admission::default();
        let mut event = step(&["val loss", "lr", "\u{1b}[2J", ""]);
        assert_eq!(admission.admit(&mut event), Some(Refused::BuiltIn("lr".to_owned())));
        assert_eq!(names(&event), ["__2J", "val_loss"]);
        let metrics = Metrics::from([("loss".to_owned(), 1.0), ("lr".to_owned(), 2.0)]);
        let mut event = Event::Eval(Eval { step: 1, metrics, ..Eval::default() });
        assert_eq!(admission.admit(&mut event), None, "said once");
        assert_eq!(names(&event), ["lr"], "an evaluation has no rate of its own");
    }

    #[test]
    fn more_than_the_limit_are_left_out_with_one_note() {
        let known = (0..MAX_NAMES - 1).map(|number| format!("m{number}"));
        let mut admission = Admission::new(known);
        let mut event = step(&["a", "b", "m7"]);
        assert_eq!(admission.admit(&mut event), Some(Refused::TooMany("b".to_owned())));
        assert_eq!(names(&event), ["a", "m7"]);
        assert_eq!(admission.admit(&mut step(&["c"])), None);
    }
}
