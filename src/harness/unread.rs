//! A script whose output is not understood says so: after some lines without a step, and at its end.

use super::run_loop::Harness;
use crate::protocol::unread::UnreadOutput;
use crate::protocol::worker::{CommandNews, Event, Level};
use crate::untrusted::text;

/// Lines without a step after which the output is taken to name none.
const LINES: u64 = 20;

impl Harness {
    /// Reports an output that names no step, once its lines repeat as those of a training do.
    pub(super) fn note_unread_output(&mut self) {
        let lines = self.reader.unread_lines();
        if self.companion.output.is_unread_noted || lines.count() < LINES || !lines.repeats() || self.knows_steps() {
            return;
        }
        let Some(pattern) = lines.pattern() else { return };
        let unread = self.unread_output(Some(pattern));
        self.link.send(&Event::Note { level: Level::Warn, text: unread.to_string() });
        self.send_unread(unread);
    }

    /// Reports an output that has ended and named no step.
    pub(super) fn note_unread_end(&mut self) {
        let lines = self.reader.unread_lines();
        if self.companion.output.is_unread_noted || lines.count() == 0 || self.knows_steps() {
            return;
        }
        let unread = self.unread_output(lines.pattern());
        self.send_unread(unread);
    }

    fn send_unread(&mut self, unread: UnreadOutput) {
        self.companion.output.is_unread_noted = true;
        self.link.send(&Event::Command { news: CommandNews::Unread(unread) });
    }

    fn unread_output(&self, pattern: Option<String>) -> UnreadOutput {
        let lines = self.reader.unread_lines();
        UnreadOutput { lines: lines.count(), newest: text::escape_line(lines.newest()).into_owned(), pattern }
    }

    fn knows_steps(&self) -> bool {
        self.args.purpose.is_temporary() || self.progress.is_told() || self.progress.step > 0
    }
}
