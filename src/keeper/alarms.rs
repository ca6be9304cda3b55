//! Alerts to the user, and how often they repeat. Each alarm has a key; an alarm is not repeated for a
//! while, unless its condition cleared in between.

use super::recorder::Recorder;
use super::sentences;
use crate::config::integrations::Notify;
use crate::config::knobs::Watch;
use crate::config::run::Run;
use crate::notify::{self, Limit, Message, Outbox};
use crate::protocol::cause::Cause;
use crate::protocol::control::JournalKind;
use crate::protocol::probe::{Gpu, Reading};
use crate::protocol::worker::Level;
use crate::recipe::learning::Learning;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Degrees below its threshold at which a heat alarm clears.
const COOLER_BY_C: f64 = 5.0;
/// Share below its threshold at which a memory alarm clears.
const LESS_BY: f64 = 0.03;
/// How long to wait for the last messages of a run.
const GOODBYE: Duration = Duration::from_secs(3);

/// Sends alerts to the user.
pub struct Alarms {
    run: String,
    limit: Limit,
    outbox: Outbox,
    watch: Watch,
    ecc_seen: Option<EccSeen>,
}

/// Uncorrected ECC errors in the newest reading. Stored, because a keeper that was restarted must report
/// those of the time in between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccSeen {
    /// The GPU's PCI address, if known.
    pub pci: Option<String>,
    /// Errors since its driver was loaded.
    pub uncorrected: u64,
}

impl Alarms {
    /// Creates the alarms of a run. Mistakes in the user's settings are noted in its journal.
    pub fn new(name: String, run: &Run, ecc_seen: Option<EccSeen>, recorder: &mut Recorder) -> Self {
        let settings = notify::read_settings(run.notify.as_ref()).unwrap_or_else(|wrong| {
            recorder.note(Level::Warn, JournalKind::Health, format!("notifications: {wrong}"));
            Notify::default()
        });
        let limit = Limit::new(Duration::from_mins(settings.again_min));
        Self { run: name, limit, outbox: Outbox::start(&settings), watch: run.watch.clone(), ecc_seen }
    }

    /// Raises an alarm, unless it was raised a while ago and still lasts. Returns true when it is sent now.
    pub fn raise(&mut self, key: &str, level: Level, what: &str, text: &str, now: Duration) -> bool {
        let new = self.limit.raise(key, now);
        if new {
            let title = format!("{}: {what}", self.run);
            self.outbox.post(Message { run: self.run.clone(), level, title, text: text.to_owned() });
        }
        new
    }

    /// Clears an alarm's condition.
    pub fn clear(&mut self, key: &str) {
        self.limit.end(key);
    }

    /// Raises the alarm of an attempt that ended unasked.
    pub fn raise_cause(&mut self, cause: &Cause, now: Duration) {
        let key = format!("{} {:?}", cause.class.word(), cause.xid);
        let text = cause.evidence.first().into_iter().chain([&cause.advice]).cloned().collect::<Vec<_>>().join("; ");
        let level = if cause.restart_helps { Level::Warn } else { Level::Error };
        self.raise(&key, level, &cause.class.to_string(), &text, now);
    }

    /// Takes in a reading. Returns the alarms raised now, for the journal. A GPU that the run does not use is ignored.
    pub fn check_reading(&mut self, reading: &Reading, uses_card: bool, now: Duration) -> Vec<String> {
        let gpu = reading.gpu.as_ref().ok().filter(|_| uses_card);
        let mut told = gpu.map_or_else(Vec::new, |gpu| self.check_gpu(gpu, now));
        if let Some(free) = reading.host.disk_free_bytes.get() {
            let least = self.watch.disk_free_mib << 20;
            let text = format!(
                "only {} are free on the run's disk; the limit is {}",
                sentences::bytes(free),
                sentences::bytes(least)
            );
            told.extend(self.follow_condition("disk", free < least, free > 2 * least, "disk almost full", text, now));
        }
        told
    }

    fn check_gpu(&mut self, gpu: &Gpu, now: Duration) -> Vec<String> {
        let (hot, full) = (self.watch.temperature_c, self.watch.vram);
        let mut told = Vec::new();
        if let Some(celsius) = gpu.temperature_c.get() {
            let text = format!("the GPU is at {celsius:.0} °C; the limit is {hot:.0} °C");
            told.extend(self.follow_condition("heat", celsius >= hot, celsius < hot - COOLER_BY_C, "hot", text, now));
        }
        if let Some((used, total)) = gpu.vram_used_bytes.get().zip(gpu.vram_total_bytes.get()) {
            let share = used as f64 / total as f64;
            let (now_percent, limit) = (share * 100.0, full * 100.0);
            let text = format!("{now_percent:.0} % of the GPU's memory is in use; the limit is {limit:.0} %");
            told.extend(self.follow_condition(
                "vram",
                share >= full,
                share < full - LESS_BY,
                "memory almost full",
                text,
                now,
            ));
        }
        for number in gpu.more.xids.value().into_iter().flatten() {
            // The policy already notes it in the journal, with its consequence.
            let text = format!("the driver reported Xid {number}");
            self.raise(&format!("xid {number}"), Level::Warn, "GPU error", &text, now);
        }
        if let Some(action) = gpu.more.recovery.value() {
            let wanted = action != "none";
            let text = format!("the driver requests: {action}");
            told.extend(self.follow_condition("recovery", wanted, !wanted, "the GPU needs attention", text, now));
        }
        if let Some(ecc) = gpu.more.ecc.get() {
            let seen = EccSeen { pci: gpu.more.pci.last().cloned(), uncorrected: ecc.uncorrected };
            told.extend(self.check_ecc(seen, now));
        }
        told
    }

    /// Takes in the evaluations so far. Returns the alarm if it is raised now, for the journal. It clears with the next
    /// best evaluation; where nothing ranks them, once the loss no longer rises.
    pub fn check_learning(&mut self, learning: &Learning, now: Duration) -> Option<String> {
        let setback = learning.setback(self.watch.patience);
        let text = setback.map_or_else(String::new, |setback| setback.to_string());
        let is_better = learning.since_best().is_none_or(|since| since == 0);
        self.follow_condition("learning", setback.is_some(), is_better, "not learning", text, now)
    }

    /// Returns the memory errors seen last, to be stored.
    pub fn ecc_seen(&self) -> Option<&EccSeen> {
        self.ecc_seen.as_ref()
    }

    /// Reports every rise of the count: more of the GPU's memory is failing.
    fn check_ecc(&mut self, seen: EccSeen, now: Duration) -> Option<String> {
        let all = seen.uncorrected;
        let before = self.ecc_seen.take().filter(|before| before.pci == seen.pci).map(|before| before.uncorrected);
        self.ecc_seen = Some(seen);
        let more = all.checked_sub(before?).filter(|more| *more > 0)?;
        let text = format!(
            "{more} new uncorrectable ECC {} in the GPU's memory, {all} since the driver was loaded; `downshift \
             doctor` says what to do",
            if more == 1 { "error" } else { "errors" }
        );
        self.raise(&format!("ecc {all}"), Level::Warn, "GPU memory errors", &text, now).then_some(text)
    }

    fn follow_condition(
        &mut self,
        key: &str,
        on: bool,
        off: bool,
        what: &str,
        text: String,
        now: Duration,
    ) -> Option<String> {
        if on {
            return self.raise(key, Level::Warn, what, &text, now).then_some(text);
        }
        if off {
            self.clear(key);
        }
        None
    }

    /// Returns the channels that failed for the first time.
    pub fn troubles(&self) -> Vec<String> {
        self.outbox.troubles()
    }

    /// Waits, within a bound, for the last messages to be delivered, and notes those that were not.
    pub fn finish(&mut self, recorder: &mut Recorder) {
        let sent = self.outbox.finish(GOODBYE);
        let late = "the last notification was not delivered before the run ended: the server does not answer";
        let troubles = self.outbox.troubles().into_iter().chain((!sent).then(|| late.to_owned()));
        for trouble in troubles {
            recorder.note(Level::Warn, JournalKind::Health, trouble);
        }
        recorder.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::Alarms;
    use crate::config::integrations::Notify;
    use crate::config::knobs::Watch;
    use crate::notify::{Limit, Outbox};
    use crate::recipe::learning::{Learning, Measured};
    use std::time::Duration;

    #[test]
    fn the_alarm_of_an_unranked_run_clears_once_its_loss_no_longer_rises() {
        let limit = Limit::new(Duration::from_hours(1));
        let outbox = Outbox::start(&Notify { bell: false, desktop: false, ..Notify::default() });
        let watch = Watch::default();
        let mut alarms = Alarms { run: "run".to_owned(), limit, outbox, watch, ecc_seen: None };
        let mut learning = Learning::default();
        let mut raised = Vec::new();
        for loss in [0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.8, 0.9, 1.0, 1.1, 1.2] {
            learning.record(Measured { loss: Some(loss), cost: None });
            raised.extend(alarms.check_learning(&learning, Duration::ZERO).map(|_| loss));
        }
        assert_eq!(raised, [0.9, 1.2], "once for each rise");
    }
}
