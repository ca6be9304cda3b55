//! Notifications: one for each event. It says what happened, what the keeper did, where the run is now, and whether anyone
//! is needed.
//!
//! The policy's effects tell what it decided; its state after that tells where the run is.

use super::keeper_state::Keeper;
use super::sentences::grouped;
use super::stored_state::ALARMS;
use crate::policy::event::Effect;
use crate::policy::lifecycle::{Lifecycle, Outcome, Start, Then};
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{FailureClass, Level, Phase};

/// Whether anyone is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// The event needs no word about it.
    Unsaid,
    /// The keeper does all that is needed.
    NoOne,
    /// The run goes on; look at it sometime.
    Look,
    /// The run goes on; this command accepts what the keeper proposes.
    Decide(String),
    /// The run does not go on without you.
    You,
}

impl Need {
    fn sentence(&self) -> Option<String> {
        match self {
            Self::Unsaid => None,
            Self::NoOne => Some("No one is needed.".to_owned()),
            Self::Look => Some("Have a look when you can.".to_owned()),
            Self::Decide(accept) => Some(format!("Your decision is needed: `{accept}` accepts.")),
            Self::You => Some("You are needed.".to_owned()),
        }
    }
}

/// A notification of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Events with the same key are told once in a while.
    pub key: String,
    pub level: Level,
    /// The event in a few words.
    pub what: String,
    /// The event and the response.
    pub text: String,
    pub need: Need,
}

impl Notice {
    /// Returns the text with the place of the run.
    #[must_use]
    pub fn message(&self, place: &str) -> String {
        let end = |text: &str| if text.ends_with(['.', '!', '?']) { text.to_owned() } else { format!("{text}.") };
        let parts = [self.text.as_str(), place].into_iter().filter(|part| !part.is_empty()).map(end);
        parts.chain(self.need.sentence()).collect::<Vec<_>>().join(" ")
    }
}

/// The keeper's response to trouble.
#[derive(Debug, PartialEq, Eq)]
enum Done {
    Shifts { to: String },
    GoesBack,
    Restarts { on: String },
    Cools,
    Nothing,
}

/// Returns the start that follows from these effects, or from the state after them.
fn next_start<'a>(effects: &'a [Effect], life: &'a Lifecycle) -> Option<&'a Start> {
    let now = effects.iter().find_map(|effect| match effect {
        Effect::Start(start) => Some(start),
        _ => None,
    });
    now.or(match life {
        Lifecycle::Stopping { then: Then::Start(start), .. }
        | Lifecycle::AwaitingTurn { start, .. }
        | Lifecycle::AwaitingVram { start, .. }
        | Lifecycle::BackingOff { start, .. } => Some(start),
        _ => None,
    })
}

impl Keeper {
    /// Returns the notice of trouble of this class that the policy has answered with these effects; `why` says what happened,
    /// where the effects do not. None if the run ends by it, which is told then.
    pub(super) fn notice_of(
        &self,
        class: FailureClass,
        xid: Option<u32>,
        why: &str,
        effects: &[Effect],
    ) -> Option<Notice> {
        let life = self.policy.life();
        if matches!(life, Lifecycle::Over(_) | Lifecycle::Stopping { then: Then::Conclude(_), .. }) {
            return None;
        }
        let done = self.describe_done(effects);
        let proposes = journal(effects).any(|(kind, _)| kind == JournalKind::Request);
        let told: Vec<&str> = journal(effects).map(|(_, text)| text).collect();
        // The journal says why of all but a relief that no rung offers.
        let says_why = |kind| matches!(kind, JournalKind::Worker | JournalKind::Request | JournalKind::Health);
        let is_told =
            journal(effects).any(|(kind, _)| says_why(kind)) || !matches!(done, Done::Nothing | Done::Restarts { .. });
        let happened = Some(why).filter(|_| !is_told);
        let text = happened.into_iter().chain(told).collect::<Vec<_>>().join("; ");
        let what = match &done {
            Done::Shifts { to } => format!("{class}, shifts to {to}"),
            Done::GoesBack => format!("{class}, goes back"),
            Done::Restarts { on } => format!("{class}, restarts on {on}"),
            Done::Cools => format!("{class}, pauses to cool"),
            Done::Nothing if proposes => format!("{class}, waits for your decision"),
            Done::Nothing => class.to_string(),
        };
        let need = match done {
            _ if proposes => Need::Decide(self.run_dir.command("accept")),
            Done::Nothing => Need::Look,
            _ => Need::NoOne,
        };
        let key = format!("{} {xid:?} {done:?}", class.word());
        Some(Notice { key, level: Level::Warn, what, text, need })
    }

    fn describe_done(&self, effects: &[Effect]) -> Done {
        let life = self.policy.life();
        if matches!(life, Lifecycle::Cooling { .. } | Lifecycle::Stopping { then: Then::Cool(_), .. }) {
            return Done::Cools;
        }
        let name = |rung: usize| self.run.rungs.get(rung).map_or_else(String::new, |rung| rung.name.clone());
        match next_start(effects, life) {
            Some(start) if start.rung != self.recorder.attempt.rung => Done::Shifts { to: name(start.rung) },
            Some(start) if start.back.is_some() => Done::GoesBack,
            Some(start) => Done::Restarts { on: name(start.rung) },
            None => Done::Nothing,
        }
    }

    /// Returns the notices of what these effects do while a worker lives.
    pub(super) fn notices_of(&self, effects: &[Effect]) -> Vec<Notice> {
        let trouble = effects.iter().find_map(|effect| match effect {
            Effect::Trouble(class, why) => self.notice_of(*class, None, why, effects),
            _ => None,
        });
        let in_vain = effects.contains(&Effect::UncountShift).then(|| Notice {
            key: format!("in vain {}", self.policy.rung()),
            level: Level::Warn,
            what: "the shift changed nothing".to_owned(),
            text: journal(effects).map(|(_, text)| text).collect::<Vec<_>>().join("; "),
            need: Need::Look,
        });
        trouble.into_iter().chain(in_vain).collect()
    }

    /// Returns the notice of the end of the run.
    pub(super) fn notice_of_end(&self, outcome: &Outcome, level: Level, text: &str) -> Notice {
        let (what, need) = match outcome {
            Outcome::Finished if level == Level::Info => ("finished", Need::Unsaid),
            Outcome::Finished => ("finished", Need::Look),
            Outcome::Stopped => ("stopped", Need::Unsaid),
            Outcome::Refused(_) => ("not started", Need::You),
            Outcome::Failed(..) => ("failed", Need::You),
            Outcome::NeedsPerson(_) => ("needs attention", Need::You),
        };
        let mut text = text.to_owned();
        if matches!(outcome, Outcome::Failed(..)) && !self.worker.advice.is_empty() {
            text = format!("{text}; do: {}", self.worker.advice);
        }
        Notice { key: "end".to_owned(), level, what: what.to_owned(), text, need }
    }

    /// Sends a notice now, unless it was sent a while ago.
    pub(super) fn tell(&mut self, notice: &Notice) {
        self.admit(notice);
        self.recorder.put_fact(ALARMS, self.alarms.raised());
        self.recorder.persist();
        self.alarms.post();
    }

    /// Takes in a notice that is sent once the effects of its event are on disk: a keeper that dies in between does not tell
    /// of the same event as the next one.
    pub(super) fn admit(&mut self, notice: &Notice) {
        let (place, now) = (self.describe_place(), self.now());
        self.alarms.admit(notice, &place, now);
    }

    /// Describes where the run is.
    pub(super) fn describe_place(&self) -> String {
        let status = &self.recorder.status;
        let name = |rung: usize| self.run.rungs.get(rung).map_or("", |rung| rung.name.as_str());
        let from = || match status.durable_step {
            Some(step) => format!("from checkpoint {}", grouped(step)),
            None => "from the beginning".to_owned(),
        };
        let step = grouped(status.step);
        match self.policy.life() {
            Lifecycle::New | Lifecycle::Running(Phase::Starting) => {
                format!("A worker starts on {}, {}", name(self.policy.rung()), from())
            }
            Lifecycle::Running(_) => format!("Training continues on {}, step {step}", name(self.policy.rung())),
            Lifecycle::Stopping { then: Then::Start(start), .. } => {
                format!("The worker ends at step {step}, and the next one starts on {}", name(start.rung))
            }
            Lifecycle::Stopping { then: Then::Cool(_), .. } | Lifecycle::Cooling { .. } => {
                "Training goes on by itself once the GPU has cooled".to_owned()
            }
            Lifecycle::AwaitingTurn { start, .. }
            | Lifecycle::AwaitingVram { start, .. }
            | Lifecycle::BackingOff { start, .. } => {
                format!("The next worker will start on {}, {}", name(start.rung), from())
            }
            Lifecycle::Paused | Lifecycle::Stopping { then: Then::Pause, .. } => {
                format!("The run is paused at step {step}")
            }
            Lifecycle::Stopping { .. } => format!("The worker is being ended at step {step}"),
            Lifecycle::Over(Outcome::Failed(..) | Outcome::NeedsPerson(_)) => match status.durable_step {
                Some(durable) => format!("The run is over at step {step}; checkpoint {} is kept", grouped(durable)),
                None => format!("The run is over at step {step}, without a checkpoint"),
            },
            Lifecycle::Over(_) => String::new(),
        }
    }
}

/// Returns what these effects write into the journal as warnings and errors.
fn journal(effects: &[Effect]) -> impl Iterator<Item = (JournalKind, &str)> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Journal(Level::Warn | Level::Error, kind, text) => Some((*kind, text.as_str())),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::{Need, Notice};
    use crate::protocol::worker::Level;

    #[test]
    fn a_message_says_what_happened_where_the_run_is_and_who_is_needed() {
        let notice = |text: &str, need| Notice {
            key: String::new(),
            level: Level::Warn,
            what: String::new(),
            text: text.to_owned(),
            need,
        };
        let place = "Training continues on safe, step 9";
        for (need, wanted) in [
            (Need::NoOne, "hot. Training continues on safe, step 9. No one is needed."),
            (Need::Unsaid, "hot. Training continues on safe, step 9."),
            (
                Need::Decide("downshift accept x".to_owned()),
                "hot. Training continues on safe, step 9. Your decision is needed: `downshift accept x` accepts.",
            ),
        ] {
            assert_eq!(notice("hot", need).message(place), wanted);
        }
        assert_eq!(notice("Gone.", Need::You).message(""), "Gone. You are needed.");
    }
}
