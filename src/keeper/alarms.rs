//! What a person is told of while away, and how often: each alarm has a key; one that has been told
//! is not told again for a while, unless its cause ended in between.

use super::recorder::Recorder;
use crate::config::around::Notify;
use crate::config::knobs::Watch;
use crate::config::run::Run;
use crate::notify::{self, Limit, Message, Outbox};
use crate::protocol::cause::Cause;
use crate::protocol::control::JournalKind;
use crate::protocol::probe::Reading;
use crate::protocol::worker::Level;
use std::time::Duration;

/// An alarm about heat ends this many degrees below its threshold.
const COOLER_BY_C: f64 = 5.0;
/// And one about memory this share below.
const LESS_BY: f64 = 0.03;
/// Less free space than this is told of.
const DISK_FREE_BYTES: u64 = 1 << 30;
/// The last messages of a run are waited for so long.
const GOODBYE: Duration = Duration::from_secs(3);

/// Tells a person.
pub struct Alarms {
    run: String,
    limit: Limit,
    outbox: Outbox,
    watch: Watch,
}

impl Alarms {
    /// The alarms of a run. What is wrong with the user's settings is noted in its journal.
    pub fn new(name: String, run: &Run, recorder: &mut Recorder) -> Self {
        let settings = notify::settings(run.notify.as_ref()).unwrap_or_else(|wrong| {
            recorder.note(Level::Warn, JournalKind::Health, format!("notifications: {wrong}"));
            Notify::default()
        });
        let limit = Limit::new(Duration::from_mins(settings.again_min));
        Self { run: name, limit, outbox: Outbox::start(&settings), watch: run.watch.clone() }
    }

    /// Tells of something, unless it was told a while ago and still lasts.
    pub fn raise(&mut self, key: &str, level: Level, what: &str, text: &str, now: Duration) {
        if self.limit.raise(key, now) {
            let title = format!("{}: {what}", self.run);
            self.outbox.post(Message { run: self.run.clone(), level, title, text: text.to_owned() });
        }
    }

    /// The cause of an alarm has ended.
    pub fn end(&mut self, key: &str) {
        self.limit.end(key);
    }

    /// An attempt ended by itself.
    pub fn concluded(&mut self, cause: &Cause, now: Duration) {
        let key = format!("{} {:?}", cause.class.word(), cause.xid);
        let first = cause.evidence.first().map_or("", String::as_str);
        let level = if cause.restart_helps { Level::Warn } else { Level::Error };
        self.raise(&key, level, &cause.class.to_string(), &format!("{first}. {}", cause.advice), now);
    }

    /// The probe measured.
    pub fn measured(&mut self, reading: &Reading, now: Duration) {
        let watch = self.watch.clone();
        if let Ok(gpu) = &reading.gpu {
            if let Some(celsius) = gpu.temperature_c.get() {
                let hot = celsius >= watch.temperature_c;
                let text = format!("the GPU is at {celsius:.0} °C; the limit is {:.0} °C", watch.temperature_c);
                self.follow("heat", hot, celsius < watch.temperature_c - COOLER_BY_C, "hot", &text, now);
            }
            if let Some((used, total)) = gpu.vram_used_bytes.get().zip(gpu.vram_total_bytes.get()) {
                let share = used as f64 / total as f64;
                let text = format!("{:.0} % of the GPU's memory is in use", share * 100.0);
                self.follow(
                    "vram",
                    share >= watch.vram,
                    share < watch.vram - LESS_BY,
                    "memory almost full",
                    &text,
                    now,
                );
            }
            for number in gpu.more.xids.value().into_iter().flatten() {
                let text = format!("the driver reported Xid {number}");
                self.raise(&format!("xid {number}"), Level::Warn, "error of the GPU", &text, now);
            }
            if let Some(action) = gpu.more.recovery.value() {
                let wanted = action != "none";
                let text = format!("the driver asks for it: {action}");
                self.follow("recovery", wanted, !wanted, "the GPU needs a person", &text, now);
            }
        }
        if let Some(free) = reading.host.disk_free_bytes.get() {
            let text = format!("only {} are free where the run is", super::sentences::bytes(free));
            self.follow("disk", free < DISK_FREE_BYTES, free > 2 * DISK_FREE_BYTES, "disk almost full", &text, now);
        }
    }

    fn follow(&mut self, key: &str, on: bool, off: bool, what: &str, text: &str, now: Duration) {
        if on {
            self.raise(key, Level::Warn, what, text, now);
        } else if off {
            self.end(key);
        }
    }

    /// Channels that failed for the first time.
    pub fn troubles(&self) -> Vec<String> {
        self.outbox.troubles()
    }

    /// The last messages are on their way; waits for them, within a bound, and notes what did not
    /// arrive.
    pub fn finish(&mut self, recorder: &mut Recorder) {
        let sent = self.outbox.finish(GOODBYE);
        let late = "the last message to a person was not delivered when the run ended: its address does not answer";
        let troubles = self.outbox.troubles().into_iter().chain((!sent).then(|| late.to_owned()));
        for trouble in troubles {
            recorder.note(Level::Warn, JournalKind::Health, trouble);
        }
        recorder.flush();
    }
}
