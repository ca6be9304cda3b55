//! Alerts to the user, and how often they repeat. Each alarm has a key; an alarm is not repeated for a
//! while, unless its condition cleared in between.

use super::notice::{Need, Notice};
use super::ram_growth::RamGrowth;
use super::recorder::Recorder;
use super::sentences;
use crate::config::integrations::Notify;
use crate::config::knobs::Watch;
use crate::config::run::Run;
use crate::notify::{self, Limit, Message, Outbox};
use crate::protocol::control::JournalKind;
use crate::protocol::probe::{DRILL_FILE, Gpu, Host, RamUse, Reading};
use crate::protocol::worker::Level;
use crate::recipe::learning::Learning;
use crate::store::run_dir::RunDir;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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
    /// Messages that are sent once the effects of their events are on disk.
    due: Vec<Message>,
    /// A drill sends nothing: it holds what another run would send.
    withheld: Option<Vec<Message>>,
    watch: Watch,
    ram: RamGrowth,
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
    pub fn new(
        run_dir: &RunDir,
        run: &Run,
        ecc_seen: Option<EccSeen>,
        (raised, now): (BTreeMap<String, Duration>, Duration),
        recorder: &mut Recorder,
    ) -> Self {
        let settings = notify::read_settings(run.notify.as_ref()).unwrap_or_else(|wrong| {
            recorder.note(Level::Warn, JournalKind::Health, format!("notifications: {wrong}"));
            Notify::default()
        });
        Self {
            run: run_dir.name(),
            limit: Limit::new(Duration::from_mins(settings.again_min), raised, now),
            outbox: Outbox::start(&settings),
            due: Vec::new(),
            withheld: run_dir.file(DRILL_FILE).exists().then(Vec::new),
            watch: run.watch.clone(),
            ram: RamGrowth::default(),
            ecc_seen,
        }
    }

    /// Takes in a notice, unless it was told a while ago and still holds. Returns true when it is sent with the next
    /// [`Alarms::post`].
    pub fn admit(&mut self, notice: &Notice, place: &str, now: Duration) -> bool {
        let new = self.limit.raise(&notice.key, now);
        if new {
            let title = format!("{}: {}", self.run, notice.what);
            self.due.push(Message { run: self.run.clone(), level: notice.level, title, text: notice.message(place) });
        }
        new
    }

    /// Sends what is due.
    pub fn post(&mut self) {
        for message in self.due.drain(..) {
            match &mut self.withheld {
                Some(withheld) => withheld.push(message),
                None => self.outbox.post(message),
            }
        }
    }

    /// Returns the alarms raised, and when, to be stored.
    pub fn raised(&self) -> &BTreeMap<String, Duration> {
        self.limit.raised()
    }

    /// Clears an alarm's condition.
    pub fn clear(&mut self, key: &str) {
        self.limit.end(key);
    }

    /// Takes in a reading. Returns the alarms raised now, for the journal. A GPU that the run does not use is ignored.
    pub fn check_reading(&mut self, reading: &Reading, uses_card: bool, (place, now): (&str, Duration)) -> Vec<String> {
        let moment = (place, now);
        let gpu = reading.gpu.as_ref().ok().filter(|_| uses_card);
        let mut told = gpu.map_or_else(Vec::new, |gpu| self.check_gpu(gpu, moment));
        told.extend(self.check_ram(&reading.host, moment));
        if let Some(free) = reading.host.disk_free_bytes.get() {
            let least = self.watch.disk_free_mib << 20;
            let text = format!(
                "only {} are free on the run's disk; the limit is {}",
                sentences::bytes(free),
                sentences::bytes(least)
            );
            told.extend(self.follow_condition(
                "disk",
                free < least,
                free > 2 * least,
                "disk almost full",
                text,
                moment,
            ));
        }
        told
    }

    fn check_ram(&mut self, host: &Host, moment: (&str, Duration)) -> Option<String> {
        self.ram.observe(host);
        let (ram, full) = (host.tightest_ram()?, self.watch.ram);
        let share = ram.share();
        let text = self.describe_ram(host, &ram);
        self.follow_condition("ram", share >= full, share < full - LESS_BY, "host memory almost full", text, moment)
    }

    /// Says how much of the memory is this run's, and which of its processes has grown.
    fn describe_ram(&self, host: &Host, ram: &RamUse) -> String {
        let (now_percent, limit) = (ram.share() * 100.0, self.watch.ram * 100.0);
        let own = host
            .ram_worker_bytes
            .get()
            .map(|own| format!("; this run uses {} of {}", sentences::bytes(own), sentences::bytes(ram.total)));
        let own = own.unwrap_or_default();
        let grew = self.ram.largest().map(|grown| format!("; {grown}")).unwrap_or_default();
        format!(
            "{now_percent:.0} % of {} is in use; the limit is {limit:.0} %{own}{grew}; fewer loader processes and less \
             prefetch need less",
            ram.bound
        )
    }

    fn check_gpu(&mut self, gpu: &Gpu, moment: (&str, Duration)) -> Vec<String> {
        let (hot, full) = (self.watch.temperature_c, self.watch.vram);
        let mut told = Vec::new();
        if let Some(celsius) = gpu.temperature_c.get() {
            let text = format!("the GPU is at {celsius:.0} °C; the limit is {hot:.0} °C");
            told.extend(self.follow_condition(
                "heat",
                celsius >= hot,
                celsius < hot - COOLER_BY_C,
                "hot",
                text,
                moment,
            ));
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
                moment,
            ));
        }
        if let Some(action) = gpu.more.recovery.value() {
            let wanted = action != "none";
            let text = format!("the driver requests: {action}");
            told.extend(self.follow_condition("recovery", wanted, !wanted, "the GPU needs attention", text, moment));
        }
        if let Some(ecc) = gpu.more.ecc.get() {
            let seen = EccSeen { pci: gpu.more.pci.last().cloned(), uncorrected: ecc.uncorrected };
            told.extend(self.check_ecc(seen, moment));
        }
        told
    }

    /// Takes in the evaluations so far. Returns the alarm if it is raised now, for the journal. It clears with the next
    /// best evaluation; where nothing ranks them, once the loss no longer rises.
    pub fn check_learning(&mut self, learning: &Learning, moment: (&str, Duration)) -> Option<String> {
        let setback = learning.setback(self.watch.patience);
        let text = setback.map_or_else(String::new, |setback| setback.to_string());
        let is_better = learning.since_best().is_none_or(|since| since == 0);
        self.follow_condition("learning", setback.is_some(), is_better, "not learning", text, moment)
    }

    /// Returns the memory errors seen last, to be stored.
    pub fn ecc_seen(&self) -> Option<&EccSeen> {
        self.ecc_seen.as_ref()
    }

    /// Reports every rise of the count: more of the GPU's memory is failing.
    fn check_ecc(&mut self, seen: EccSeen, moment: (&str, Duration)) -> Option<String> {
        let all = seen.uncorrected;
        let before = self.ecc_seen.take().filter(|before| before.pci == seen.pci).map(|before| before.uncorrected);
        self.ecc_seen = Some(seen);
        let more = all.checked_sub(before?).filter(|more| *more > 0)?;
        let text = format!(
            "{more} new uncorrectable ECC {} in the GPU's memory, {all} since the driver was loaded; `downshift \
             doctor` says what to do",
            if more == 1 { "error" } else { "errors" }
        );
        self.raise(&format!("ecc {all}"), "GPU memory errors", text, moment)
    }

    fn follow_condition(
        &mut self,
        key: &str,
        on: bool,
        off: bool,
        what: &str,
        text: String,
        moment: (&str, Duration),
    ) -> Option<String> {
        if on {
            return self.raise(key, what, text, moment);
        }
        if off {
            self.clear(key);
        }
        None
    }

    /// Sends the alarm of a condition that ends no worker. Returns its text if it is raised now.
    fn raise(&mut self, key: &str, what: &str, text: String, (place, now): (&str, Duration)) -> Option<String> {
        let (key, what, need) = (key.to_owned(), what.to_owned(), Need::Look);
        let notice = Notice { key, level: Level::Warn, what, text, need };
        let new = self.admit(&notice, place, now);
        self.post();
        new.then_some(notice.text)
    }

    /// Returns the channels that failed for the first time, and what a drill would have sent.
    pub fn news(&mut self) -> Vec<(Level, String)> {
        let withheld =
            self.withheld.iter_mut().flat_map(|withheld| withheld.drain(..)).map(|Message { title, text, .. }| {
                (Level::Info, format!("a drill sends no notification; this one would say: {title}: {text}"))
            });
        let withheld: Vec<_> = withheld.collect();
        self.outbox.troubles().into_iter().map(|trouble| (Level::Warn, trouble)).chain(withheld).collect()
    }

    /// Waits, within a bound, for the last messages to be delivered, and notes those that were not.
    pub fn finish(&mut self, recorder: &mut Recorder) {
        let sent = self.outbox.finish(GOODBYE);
        let late = "the last notification was not delivered before the run ended: the server does not answer";
        let late = (!sent).then(|| (Level::Warn, late.to_owned()));
        for (level, text) in self.news().into_iter().chain(late) {
            recorder.note(level, JournalKind::Health, text);
        }
        recorder.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::Alarms;
    use crate::config::integrations::Notify;
    use crate::config::knobs::Watch;
    use crate::keeper::ram_growth::RamGrowth;
    use crate::notify::{Limit, Outbox};
    use crate::protocol::probe::{Host, HostMore, Metric, RamProcess};
    use crate::recipe::learning::{Learning, Measured};
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn alarms(watch: Watch) -> Alarms {
        Alarms {
            run: "run".to_owned(),
            limit: Limit::new(Duration::from_hours(1), BTreeMap::new(), Duration::ZERO),
            outbox: Outbox::start(&Notify { bell: false, desktop: false, ..Notify::default() }),
            due: Vec::new(),
            withheld: None,
            watch,
            ram: RamGrowth::default(),
            ecc_seen: None,
        }
    }

    #[test]
    fn full_memory_is_named_with_its_bound_and_the_share_of_this_run() {
        let is = |gib: u64| Metric::Is(gib << 30);
        for (machine, limit_free, own, wanted) in [
            (
                62,
                Metric::default(),
                is(60),
                "97 % of the host's memory is in use; the limit is 90 %; this run uses 60.0 GiB of 64.0 GiB",
            ),
            (
                62,
                is(7),
                is(1),
                "97 % of the host's memory is in use; the limit is 90 %; this run uses 1.0 GiB of 64.0 GiB",
            ),
            (
                10,
                is(0),
                is(7),
                "100 % of the memory that its cgroup allows this run is in use; the limit is 90 %; this run uses 7.0 GiB of 8.0 GiB",
            ),
            (
                62,
                Metric::default(),
                Metric::default(),
                "97 % of the host's memory is in use; the limit is 90 %; fewer loader processes",
            ),
        ] {
            let process = RamProcess { pid: 7, name: "python3".to_owned(), bytes: 60 << 30 };
            let host = Host {
                ram_total_bytes: is(64),
                ram_used_bytes: is(machine),
                ram_worker_bytes: own,
                cpu: Metric::default(),
                disk_free_bytes: Metric::default(),
                more: HostMore {
                    ram_limit_bytes: is(8),
                    ram_limit_free_bytes: limit_free,
                    ram_processes: Metric::Is(vec![process]),
                    ..HostMore::default()
                },
            };
            let mut alarms = alarms(Watch { ram: 0.9, ..Watch::default() });
            let said = alarms.check_ram(&host, ("", Duration::ZERO)).unwrap();
            assert!(said.contains(wanted) && !said.contains("something else"), "{said}");
        }
    }

    #[test]
    fn the_alarm_of_an_unranked_run_clears_once_its_loss_no_longer_rises() {
        let mut alarms = alarms(Watch::default());
        let mut learning = Learning::default();
        let mut raised = Vec::new();
        for loss in [0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.8, 0.9, 1.0, 1.1, 1.2] {
            learning.record(Measured { loss: Some(loss), cost: None });
            raised.extend(alarms.check_learning(&learning, ("", Duration::ZERO)).map(|_| loss));
        }
        assert_eq!(raised, [0.9, 1.2], "once for each rise");
    }
}
