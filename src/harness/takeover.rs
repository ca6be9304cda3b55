//! A keeper that takes over a command that outlived the last one.

use super::run_loop::Harness;
use crate::format::count;
use crate::protocol::worker::{CommandNews, Event, Level, Phase};

impl Harness {
    /// Introduces the command to a keeper that takes over: its identity, its progress, and every event not stored yet.
    pub(super) fn introduce_again(&mut self, after: u64) {
        self.link.replay_after(after);
        self.link.send_unkept(&Event::Hello(self.hello.clone()));
        let phase =
            if self.progress.step > self.hello.resumed_from.unwrap_or(0) { Phase::Training } else { Phase::Starting };
        self.link.send_unkept(&Event::Phase { phase });
        if let Some(resumed) = self.resume_check.known().cloned() {
            let samples = self.hello.position.samples;
            self.link.send_unkept(&Event::Command { news: CommandNews::Resumed { resumed, samples } });
        }
        self.introduce_companion_again();
        self.progress.sent_epoch = None;
        self.send_epoch();
        if self.progress.total.is_some() {
            self.send_length();
        }
        self.note_dropped();
    }

    /// Says how many steps no keeper will get.
    pub(super) fn note_dropped(&mut self) {
        let dropped = self.link.take_dropped();
        if dropped > 0 {
            let text = format!(
                "{} steps are missing from the curve: there was no keeper for too long, or it was too slow",
                count(dropped)
            );
            self.link.send(&Event::Note { level: Level::Warn, text });
        }
    }

    /// Sends the epoch that the command reported, if it is another one.
    pub(super) fn send_epoch(&mut self) {
        if let Some(epoch) = self.progress.epoch_news() {
            self.link.send_unkept(&Event::Command { news: CommandNews::Epoch { epoch } });
        }
    }

    /// Sends the length of the training; 0 if it is not known any more.
    pub(super) fn send_length(&mut self) {
        let steps = self.progress.total.unwrap_or(0);
        // A companion knows its epochs, whose last batches may be smaller.
        let told = Some(self.hello.total_units).filter(|units| *units > 0 && self.hello.total_steps == steps);
        let units = told.unwrap_or_else(|| self.progress.samples(steps));
        self.link.send_unkept(&Event::Command { news: CommandNews::Length { steps, units } });
    }
}
