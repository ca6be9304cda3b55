//! Events on their way to the keeper. They are kept until a keeper takes them, and for a while after that, because a
//! keeper may die before it has stored them.

use crate::protocol::line;
use crate::protocol::worker::{CommandNews, Event, Step};
use std::borrow::Cow;
use std::collections::VecDeque;

/// Events kept after they were sent.
const SENT: usize = 4096;
/// Most events kept. Beyond this, every second step is dropped: the curve becomes coarser, but keeps its end.
const MOST: usize = 100_000;

/// An event, and the step at which it happened.
#[derive(Debug)]
struct PendingEvent {
    step: u64,
    is_step: bool,
    line: String,
}

/// The events of an attempt that the current keeper, or the next one, may still need.
#[derive(Debug, Default)]
pub struct Backlog {
    entries: VecDeque<PendingEvent>,
    /// Entries at the front that were sent.
    sent: usize,
    step: u64,
    /// Steps dropped because there was no keeper for too long.
    pub dropped: u64,
}

impl Backlog {
    /// Adds an event.
    pub fn push(&mut self, event: &Event) {
        let is_step = matches!(event, Event::Step(_) | Event::Skipped(_));
        match event {
            Event::Step(step) => self.step = self.step.max(step.step),
            // Another process of the command takes the steps after it again.
            Event::Command { news: CommandNews::WentBack { step, .. } } => self.step = *step,
            _ => {}
        }
        let Ok(line) = line::encode(&timed(event)) else { return };
        self.entries.push_back(PendingEvent { step: self.step, is_step, line });
        while self.sent > SENT {
            self.entries.pop_front();
            self.sent -= 1;
        }
        if self.entries.len() > MOST {
            self.thin();
        }
    }

    /// Drops every second step that waits, but never the newest.
    fn thin(&mut self) {
        let (before, sent) = (self.entries.len(), self.sent);
        let waiting = self.entries.range(sent..).filter(|entry| entry.is_step).count();
        let (mut at, mut left) = (0, waiting);
        self.entries.retain(|entry| {
            at += 1;
            let waits = at > sent && entry.is_step;
            left -= usize::from(waits);
            !waits || left % 2 == 0
        });
        self.dropped += (before - self.entries.len()) as u64;
        // Only notes and checkpoints are left: drop the oldest.
        while self.entries.len() > MOST {
            self.entries.pop_front();
            self.sent = self.sent.saturating_sub(1);
        }
    }

    /// Returns the newest step.
    pub fn newest_step(&self) -> Option<Event> {
        line::decode(&self.entries.iter().rev().find(|entry| entry.is_step)?.line)
    }

    /// Returns the next line to send.
    pub fn next(&self) -> Option<&str> {
        self.entries.get(self.sent).map(|entry| entry.line.as_str())
    }

    /// Marks the next line as sent.
    pub fn mark_sent(&mut self) {
        self.sent += usize::from(self.sent < self.entries.len());
    }

    /// Starts over for a keeper that has stored everything up to step `after`.
    pub fn replay_after(&mut self, after: u64) {
        let known = |entry: &PendingEvent| entry.step < after || entry.is_step && entry.step <= after;
        self.sent = self.entries.iter().take_while(|entry| known(entry)).count();
    }
}

/// Adds the time to a step.
fn timed(event: &Event) -> Cow<'_, Event> {
    match event {
        Event::Step(step) if step.time_ms.is_none() => {
            let time_ms = Some(jiff::Timestamp::now().as_millisecond());
            Cow::Owned(Event::Step(Step { time_ms, ..step.clone() }))
        }
        other => Cow::Borrowed(other),
    }
}

#[cfg(test)]
mod tests {
    use super::{Backlog, MOST, SENT};
    use crate::harness::progress::tests::step_event;
    use crate::protocol::worker::{CommandNews, Event, Level};

    fn drain(backlog: &mut Backlog) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = backlog.next() {
            lines.push(line.to_owned());
            backlog.mark_sent();
        }
        lines
    }

    #[test]
    fn another_keeper_gets_what_the_last_one_has_not_stored() {
        let mut backlog = Backlog::default();
        for step in 1..=10 {
            backlog.push(&step_event(step));
        }
        backlog.push(&Event::Note { level: Level::Info, text: "said at step 10".to_owned() });
        assert_eq!(drain(&mut backlog).len(), 11);
        assert_eq!(backlog.next(), None);
        backlog.replay_after(10);
        assert_eq!(drain(&mut backlog).len(), 1, "the note may be new, step 10 is not");
        backlog.replay_after(9);
        assert!(drain(&mut backlog)[0].contains("\"time_ms\":"), "it is old when the other keeper hears of it");
        backlog.replay_after(7);
        assert_eq!(drain(&mut backlog).len(), 4);
    }

    #[test]
    fn another_keeper_goes_back_too_and_gets_the_steps_that_were_taken_again() {
        let mut backlog = Backlog::default();
        let went_back = Event::Command { news: CommandNews::WentBack { step: 6, samples: 6 } };
        (1..=10).for_each(|step| backlog.push(&step_event(step)));
        backlog.push(&went_back);
        (7..=9).for_each(|step| backlog.push(&step_event(step)));
        drain(&mut backlog);
        // The last keeper stored the steps up to 8: those of which process is not known.
        backlog.replay_after(8);
        let lines = drain(&mut backlog);
        assert_eq!(lines.len(), 2 + 1 + 3, "{lines:?}");
        // The steps of the first process are no longer kept.
        backlog.entries.drain(..11);
        backlog.sent = 3;
        backlog.replay_after(8);
        assert_eq!(drain(&mut backlog).len(), 1, "only step 9 is new");
    }

    #[test]
    fn memory_is_bounded_with_and_without_a_keeper() {
        let mut backlog = Backlog::default();
        for step in 1..=20_000 {
            backlog.push(&step_event(step));
            drain(&mut backlog);
        }
        assert!(backlog.entries.len() <= SENT + 2);
        for step in 20_001..=20_000 + 2 * MOST as u64 {
            backlog.push(&step_event(step));
        }
        assert!(backlog.entries.len() <= MOST);
        assert!(backlog.dropped > 0);
        let lines = drain(&mut backlog);
        assert!(lines.last().unwrap().contains(&format!("\"step\":{}", 20_000 + 2 * MOST)), "the newest step is there");
    }

    #[test]
    fn a_slow_keeper_gets_nothing_twice_and_always_the_newest_step() {
        for length in [2 * MOST as u64, 2 * MOST as u64 + 1] {
            let mut backlog = Backlog::default();
            backlog.push(&Event::Note { level: Level::Info, text: "said once".to_owned() });
            (1..=100).for_each(|step| backlog.push(&step_event(step)));
            let first = drain(&mut backlog);
            (101..=length).for_each(|step| backlog.push(&step_event(step)));
            let lines = drain(&mut backlog);
            assert_eq!((first.len(), lines.iter().filter(|line| line.contains("said once")).count()), (101, 0));
            assert!(lines.first().unwrap().contains("\"step\":10"), "{:?}", lines.first());
            assert!(lines.last().unwrap().contains(&format!("\"step\":{length},")), "{:?}", lines.last());
            assert!(matches!(backlog.newest_step(), Some(Event::Step(step)) if step.step == length));
        }
    }
}
