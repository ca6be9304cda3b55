//! What a person is told of while away, and how often: each alarm has a key; one that has been told
//! is not told again for a while, unless its cause ended in between.

use super::recorder::Recorder;
use super::sentences;
use crate::config::around::Notify;
use crate::config::knobs::Watch;
use crate::config::run::Run;
use crate::notify::{self, Limit, Message, Outbox};
use crate::protocol::cause::Cause;
use crate::protocol::control::JournalKind;
use crate::protocol::probe::{Ecc, Gpu, Reading};
use crate::protocol::worker::Level;
use std::time::Duration;

/// An alarm about heat ends this many degrees below its threshold.
const COOLER_BY_C: f64 = 5.0;
/// And one about memory this share below.
const LESS_BY: f64 = 0.03;
/// The last messages of a run are waited for so long.
const GOODBYE: Duration = Duration::from_secs(3);

/// Tells a person.
pub struct Alarms {
    run: String,
    limit: Limit,
    outbox: Outbox,
    watch: Watch,
    /// ECC errors that could not be corrected, by the newest reading.
    uncorrected: Option<u64>,
}

impl Alarms {
    /// The alarms of a run. What is wrong with the user's settings is noted in its journal.
    pub fn new(name: String, run: &Run, recorder: &mut Recorder) -> Self {
        let settings = notify::settings(run.notify.as_ref()).unwrap_or_else(|wrong| {
            recorder.note(Level::Warn, JournalKind::Health, format!("notifications: {wrong}"));
            Notify::default()
        });
        let limit = Limit::new(Duration::from_mins(settings.again_min));
        Self { run: name, limit, outbox: Outbox::start(&settings), watch: run.watch.clone(), uncorrected: None }
    }

    /// Tells of something, unless it was told a while ago and still lasts. True where it is told now.
    pub fn raise(&mut self, key: &str, level: Level, what: &str, text: &str, now: Duration) -> bool {
        let new = self.limit.raise(key, now);
        if new {
            let title = format!("{}: {what}", self.run);
            self.outbox.post(Message { run: self.run.clone(), level, title, text: text.to_owned() });
        }
        new
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

    /// The probe measured. Gives what is told now, for the journal. A card that the run does not use
    /// is none of its business.
    pub fn measured(&mut self, reading: &Reading, uses_card: bool, now: Duration) -> Vec<String> {
        let gpu = reading.gpu.as_ref().ok().filter(|_| uses_card);
        let mut told = gpu.map_or_else(Vec::new, |gpu| self.measured_card(gpu, now));
        if let Some(free) = reading.host.disk_free_bytes.get() {
            let least = self.watch.disk_free_mib << 20;
            let text = format!(
                "only {} are free where the run is; the limit is {}",
                sentences::bytes(free),
                sentences::bytes(least)
            );
            told.extend(self.follow("disk", free < least, free > 2 * least, "disk almost full", text, now));
        }
        told
    }

    fn measured_card(&mut self, gpu: &Gpu, now: Duration) -> Vec<String> {
        let (hot, full) = (self.watch.temperature_c, self.watch.vram);
        let mut told = Vec::new();
        if let Some(celsius) = gpu.temperature_c.get() {
            let text = format!("the GPU is at {celsius:.0} °C; the limit is {hot:.0} °C");
            told.extend(self.follow("heat", celsius >= hot, celsius < hot - COOLER_BY_C, "hot", text, now));
        }
        if let Some((used, total)) = gpu.vram_used_bytes.get().zip(gpu.vram_total_bytes.get()) {
            let share = used as f64 / total as f64;
            let (now_percent, limit) = (share * 100.0, full * 100.0);
            let text = format!("{now_percent:.0} % of the GPU's memory is in use; the limit is {limit:.0} %");
            told.extend(self.follow("vram", share >= full, share < full - LESS_BY, "memory almost full", text, now));
        }
        for number in gpu.more.xids.value().into_iter().flatten() {
            // The journal has it from the policy, with what it leads to.
            let text = format!("the driver reported Xid {number}");
            self.raise(&format!("xid {number}"), Level::Warn, "error of the GPU", &text, now);
        }
        if let Some(action) = gpu.more.recovery.value() {
            let wanted = action != "none";
            let text = format!("the driver asks for it: {action}");
            told.extend(self.follow("recovery", wanted, !wanted, "the GPU needs a person", text, now));
        }
        told.extend(gpu.more.ecc.get().and_then(|ecc| self.measured_ecc(ecc, now)));
        told
    }

    /// Every rise of the count is news: more of the card's memory goes bad.
    fn measured_ecc(&mut self, ecc: Ecc, now: Duration) -> Option<String> {
        let all = ecc.uncorrected;
        let before = self.uncorrected.replace(all).filter(|before| *before < all)?;
        let more = all - before;
        let text = format!(
            "the GPU's memory has {more} more ECC {} that could not be corrected, {all} since the driver was loaded;              `downshift doctor` says what to do",
            if more == 1 { "error" } else { "errors" }
        );
        self.raise(&format!("ecc {all}"), Level::Warn, "memory errors of the GPU", &text, now).then_some(text)
    }

    fn follow(&mut self, key: &str, on: bool, off: bool, what: &str, text: String, now: Duration) -> Option<String> {
        if on {
            return self.raise(key, Level::Warn, what, &text, now).then_some(text);
        }
        if off {
            self.end(key);
        }
        None
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
