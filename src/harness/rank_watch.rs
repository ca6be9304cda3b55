//! Where the ranks stand: each node reads their files and /proc at intervals, and one message tells the keeper of all. On a
//! hang, the flight recorders of the ranks tell who has not begun the operation in which the others wait.

use super::companion_link::Member;
use super::node_pid::{Node, NodePid};
use super::rank_files::{RankFile, Record, STANDS, helpers_cpu_s, monotonic_now, stands_for};
use super::rank_marks::{MeanLoss, RankMarks, Sign};
use super::run_loop::{Harness, Life};
use crate::process_tree::{Process, scan};
use crate::protocol::companion::{CompanionOrder, Introduction};
use crate::protocol::node::{RankReading, WatchedRank};
use crate::protocol::ranks::{Collective, RankPhase, RankRow, find_laggard};
use crate::protocol::worker::{CommandNews, Event, Level};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time over which means are taken.
const WINDOW: Duration = Duration::from_secs(10);
/// Most readings in a window.
const READINGS: usize = 64;
/// Share of a core below which a process is idle.
const IDLE: f64 = 0.05;
/// Ranks whose stacks are shown where no single one is known to have left first.
const TELLING: usize = 4;

/// The ranks of the command.
#[derive(Debug, Default)]
pub struct RankWatch {
    ranks: BTreeMap<u32, Rank>,
    /// Where they stood at the newest reading; none while one of them is missing.
    rows: Vec<RankRow>,
    marks: RankMarks,
    /// The newest collectives of the ranks, asked for on a hang.
    collectives: BTreeMap<u32, Collective>,
    world: u32,
}

#[derive(Debug)]
struct Rank {
    process: NodePid,
    source: Source,
    /// Readings of the last seconds, oldest first.
    window: VecDeque<(Duration, Record)>,
    loss: MeanLoss,
    cpu: Use,
    helpers: Use,
    /// When it last used the processor.
    active: Duration,
}

/// Where the readings of a rank come from.
#[derive(Debug)]
enum Source {
    /// Its file on this node.
    File(RankFile),
    /// The node that reads this file; the newest of its readings, and when it came.
    Node(PathBuf, Option<(Duration, RankReading)>),
}

/// The processor time of something, when it was last read.
#[derive(Debug, Default)]
struct Use(Option<(Duration, f64)>);

impl Use {
    /// Returns the share of a core since the last reading.
    fn measure(&mut self, cpu_s: f64, now: Duration) -> Option<f64> {
        let (at, before) = self.0.replace((now, cpu_s))?;
        let took = now.saturating_sub(at).as_secs_f64();
        (took > 0.0).then(|| (cpu_s - before).max(0.0) / took)
    }
}

impl RankWatch {
    /// Takes in the introduction of a rank.
    pub fn introduce(&mut self, member: Member, introduction: &Introduction, socket: &Path) {
        let known = self.ranks.get(&member.rank).is_some_and(|rank| rank.process == member.process);
        let Some(path) = introduction.rank_file.as_ref().filter(|_| member.world > 1 && !known) else { return };
        let source = match member.process.here() {
            Some(_) => RankFile::named(path, socket).map(Source::File),
            None => Some(Source::Node(path.clone(), None)),
        };
        let Some(source) = source else { return };
        self.world = member.world;
        let (process, active) = (member.process, monotonic_now());
        let (window, loss, cpu, helpers) = Default::default();
        self.ranks.insert(member.rank, Rank { process, source, window, loss, cpu, helpers, active });
    }

    /// Returns the ranks that a node reads.
    pub fn watched_on(&self, node: Node) -> Vec<WatchedRank> {
        let on_node = self.ranks.values().filter(|rank| rank.process.node == node);
        let watched = on_node.filter_map(|rank| match &rank.source {
            Source::File(_) => None,
            Source::Node(file, _) => Some(WatchedRank { pid: rank.process.pid, file: file.clone() }),
        });
        watched.collect()
    }

    /// Takes the readings of a node.
    pub fn take_readings(&mut self, node: Node, readings: Vec<RankReading>) {
        let now = monotonic_now();
        for reading in readings {
            let process = NodePid { node, pid: reading.pid };
            let rank = self.ranks.values_mut().find(|rank| rank.process == process);
            if let Some(Rank { source: Source::Node(_, newest), .. }) = rank {
                *newest = Some((now, reading));
            }
        }
    }

    /// Forgets a rank that is gone.
    pub fn forget(&mut self, member: Member) {
        self.ranks.retain(|_, rank| rank.process != member.process);
    }

    /// Reads all ranks. Returns their rows, and what to tell the user about one that differs. Rows are of no use before all
    /// ranks are there.
    fn read(&mut self, now: Duration) -> (Vec<RankRow>, Vec<String>) {
        self.rows.clear();
        let read = self.ranks.iter_mut().map(|(number, rank)| rank.read(*number, now));
        let Some(mut rows) = read.collect::<Option<Vec<RankRow>>>().filter(|rows| rows.len() == self.world as usize)
        else {
            return Default::default();
        };
        self.watch_helpers(&mut rows, now);
        let signs: Vec<Sign> = self.ranks.values().map(Rank::sign).collect();
        let texts = self.marks.mark(&mut rows, &signs, now);
        self.rows.clone_from(&rows);
        (rows, texts)
    }

    /// Counts the work of what the last ranks have started as their own: a script may wait for a compiler. This reads all
    /// of /proc, so only for ranks that seem to hang.
    fn watch_helpers(&mut self, rows: &mut [RankRow], now: Duration) {
        let idle = |row: &RankRow| row.stands_ms.min(row.idle_ms) >= in_ms(STANDS);
        let Some(last) = find_laggard(rows).filter(|last| last.together().all(idle)) else { return };
        let numbers: Vec<u32> = last.together().map(|row| row.rank).collect();
        let all = scan();
        for row in rows.iter_mut().filter(|row| numbers.contains(&row.rank)) {
            let Some(rank) = self.ranks.get_mut(&row.rank) else { continue };
            let Some(used) = rank.helpers_cpu_s(&all) else { continue };
            if rank.helpers.measure(used, now).is_some_and(|share| share >= IDLE) {
                rank.active = now;
                row.idle_ms = 0;
            }
        }
    }

    /// Returns the rank that left first, and one of those that wait for it; or the ranks among which it cannot be told.
    fn find_telling(&self) -> Vec<u32> {
        let Some(last) = find_laggard(&self.rows) else { return Vec::new() };
        if last.is_one_of_several() {
            return last.together().map(|row| row.rank).take(TELLING).collect();
        }
        let first = last.row.rank;
        let waits = self.rows.iter().find(|row| row.rank != first && row.phase == RankPhase::Reduction);
        [first].into_iter().chain(waits.map(|row| row.rank)).collect()
    }

    /// Returns which ranks have not begun the newest collective, from their flight recorders; none if all have.
    fn describe_collectives(&self) -> Option<String> {
        let newest = self.collectives.values().max_by_key(|found| found.number).filter(|found| found.number > 0)?;
        let waits = self.collectives.values().filter(|found| found.number == newest.number && !found.done).count();
        let behind = |rank: &&u32| self.collectives.get(rank).is_some_and(|found| found.number < newest.number);
        let silent = |rank: &&u32| !self.collectives.contains_key(rank);
        let list = |ranks: Vec<&u32>| ranks.iter().take(4).map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (behind, silent): (Vec<&u32>, Vec<&u32>) =
            (self.ranks.keys().filter(behind).collect(), self.ranks.keys().filter(silent).collect());
        if waits == 0 || behind.is_empty() && silent.is_empty() {
            return None;
        }
        let mut parts = Vec::new();
        if !behind.is_empty() {
            parts.push(format!("not begun by rank {}", list(behind)));
        }
        if !silent.is_empty() {
            parts.push(format!("no answer from rank {}", list(silent)));
        }
        let (name, number) = (crate::untrusted::text::escape_line(&newest.name).into_owned(), newest.number);
        Some(format!(
            "flight recorder: {waits} of {} ranks wait in {name}, number {number}; {}",
            self.world,
            parts.join(", ")
        ))
    }
}

impl Rank {
    /// Reads its file and its process.
    fn read(&mut self, number: u32, now: Duration) -> Option<RankRow> {
        let (read_at, reading) = match &self.source {
            Source::File(file) => (now, file.read(self.process.pid)?),
            Source::Node(_, newest) => newest.clone()?,
        };
        let record = Record::parse(&reading.record)?;
        let stands = stands_for(&reading, &record) + now.saturating_sub(read_at);
        self.window.push_back((now, record));
        while self.window.len() > READINGS
            || self.window.front().is_some_and(|(at, _)| now.saturating_sub(*at) > WINDOW)
        {
            self.window.pop_front();
        }
        self.loss.record(record.losses);
        let process = reading.process;
        let cpu = process.and_then(|process| self.cpu.measure(process.cpu_s, now));
        if cpu.is_none_or(|share| share >= IDLE) {
            self.active = now;
        }
        let means = self.means();
        let (device, resident) = (record.device_bytes, process.map(|process| process.resident_bytes));
        Some(RankRow {
            rank: number,
            pid: self.process.pid,
            node: (self.process.node != Node::HERE).then_some(self.process.node.0),
            card: record.card,
            step: record.step,
            phase: record.phase,
            stands_ms: in_ms(stands),
            idle_ms: in_ms(now.saturating_sub(self.active)),
            process: process.map(|process| process.state),
            cpu,
            step_ms: means.map(|means| means.step),
            own_ms: means.map(|means| means.own),
            data_wait_ms: means.map(|means| means.data_wait),
            loss: (record.losses.count > 0).then_some(record.losses.newest),
            memory_bytes: device.map(|(allocated, _)| allocated).or(resident),
            reserved_bytes: device.map(|(_, reserved)| reserved),
            mark: None,
        })
    }

    /// Returns the processor time of what it has started.
    fn helpers_cpu_s(&self, all: &[Process]) -> Option<f64> {
        match &self.source {
            Source::File(_) => Some(helpers_cpu_s(self.process.pid, all)),
            Source::Node(_, newest) => newest.as_ref()?.1.helpers_cpu_s,
        }
    }

    fn sign(&self) -> Sign {
        Sign { loss: self.loss, bad_step: self.window.back().and_then(|(_, record)| record.bad_step) }
    }

    fn means(&self) -> Option<Means> {
        let ((_, first), (_, last)) = (self.window.front()?, self.window.back()?);
        let steps = last.steps.checked_sub(first.steps).filter(|steps| *steps > 0)? as f64;
        let per_step = |phases: &[RankPhase]| -> f64 {
            let of = |phase: &RankPhase| RankPhase::ALL.iter().position(|known| known == phase).unwrap_or(0);
            let spent = phases.iter().map(of).map(|at| (last.spent_s[at] - first.spent_s[at]).max(0.0));
            spent.sum::<f64>() / steps * 1000.0
        };
        let own = per_step(&[RankPhase::Data, RankPhase::Compute, RankPhase::Script, RankPhase::Training]);
        let step = own + per_step(&[RankPhase::Reduction]);
        Some(Means { step, own, data_wait: per_step(&[RankPhase::Data]) })
    }
}

/// Mean times of a step over the window of a rank, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Means {
    step: f64,
    own: f64,
    data_wait: f64,
}

fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Harness {
    /// Sends the keeper where the ranks stand, and names one that differs from the others.
    pub(super) fn tick_ranks(&mut self) {
        if self.companion.ranks.ranks.is_empty() || !matches!(self.life, Life::Running | Life::Saving { .. }) {
            return;
        }
        let (rows, texts) = self.companion.ranks.read(monotonic_now());
        if !rows.is_empty() {
            self.link.send_unkept(&Event::Command { news: CommandNews::Ranks { rows } });
        }
        for text in texts {
            self.warn(text);
        }
    }

    /// Asks all ranks for their newest collective.
    pub(super) fn ask_for_collectives(&mut self) {
        self.companion.ranks.collectives.clear();
        if self.companion.ranks.world > 1 {
            self.companion.order(&CompanionOrder::Collective);
        }
    }

    /// Takes the newest collective of a rank.
    pub(super) fn take_collective(&mut self, member: Member, collective: Collective) {
        self.companion.ranks.collectives.insert(member.rank, collective);
    }

    /// Tells which ranks have not begun the collective in which the others wait.
    pub(super) fn report_collectives(&mut self) {
        if let Some(text) = self.companion.ranks.describe_collectives() {
            self.link.send(&Event::Note { level: Level::Warn, text });
        }
        self.companion.ranks.collectives.clear();
    }

    /// Returns the ranks whose stacks tell something.
    pub(super) fn ranks_of_interest(&self) -> Vec<u32> {
        self.companion.ranks.find_telling()
    }
}

#[cfg(test)]
mod tests {
    use super::{Collective, Introduction, Member, Node, NodePid, RankWatch, Source, find_laggard};
    use crate::harness::rank_files::monotonic_now;
    use crate::harness::rank_files::tests::bytes_of;
    use crate::protocol::ranks::RankPhase;
    use serde_json::json;

    fn watch_of(place: &std::path::Path, phases: &[RankPhase]) -> RankWatch {
        let socket = place.join("s.sock");
        let mut watch = RankWatch::default();
        for (rank, phase) in phases.iter().enumerate() {
            let file = place.join(format!("s.sock.rank-{rank}.1"));
            let mut bytes = bytes_of(12, *phase, &[1.5], 0, -1);
            let since = monotonic_now().as_secs_f64() - 3.0;
            bytes[32..40].copy_from_slice(&since.to_bits().to_le_bytes());
            std::fs::write(&file, bytes).unwrap();
            let introduction: Introduction = serde_json::from_value(json!({
                "protocol": 1, "pid": std::process::id(), "rank": rank, "world": phases.len(), "framework": "loop",
                "grade": "exact", "rank_file": file,
            }))
            .unwrap();
            let process = NodePid { node: Node::HERE, pid: introduction.pid };
            let member = Member { process, rank: rank as u32, world: phases.len() as u32 };
            watch.introduce(member, &introduction, &socket);
        }
        watch
    }

    #[test]
    fn the_ranks_are_read_from_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = watch_of(dir.path(), &[RankPhase::Reduction, RankPhase::Compute, RankPhase::Reduction]);
        let (rows, _) = watch.read(monotonic_now());
        assert_eq!(find_laggard(&rows).map(|laggard| (laggard.row.rank, laggard.waiting)), Some((1, 2)));
        assert!(rows[1].stands_ms >= 3000 && rows[1].memory_bytes.is_some() && rows[1].loss == Some(1.5), "{rows:?}");
        assert_eq!(watch.find_telling(), [1, 0]);
        watch.ranks.remove(&2);
        assert!(watch.read(monotonic_now()).0.is_empty() && watch.find_telling().is_empty(), "a rank is missing");
        let mut alike = watch_of(dir.path(), &[RankPhase::Compute; 2]);
        let _ = alike.read(monotonic_now());
        alike.rows[0].stands_ms = 7;
        alike.rows[1].stands_ms = 9;
        assert_eq!(alike.find_telling(), [1, 0], "either may have left first");
    }

    #[test]
    fn a_rank_on_another_node_is_read_there() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = watch_of(dir.path(), &[RankPhase::Compute; 2]);
        let (node, pid) = (Node(1), std::process::id());
        let local = watch.ranks.remove(&1).unwrap();
        let introduction: Introduction = serde_json::from_value(json!({
            "protocol": 1, "pid": pid, "rank": 1, "world": 2, "framework": "loop", "grade": "exact",
            "rank_file": "/elsewhere/s.sock.rank-1.7",
        }))
        .unwrap();
        let process = NodePid { node, pid };
        watch.introduce(Member { process, rank: 1, world: 2 }, &introduction, &dir.path().join("s.sock"));
        let watched = watch.watched_on(node);
        assert_eq!((watched.len(), watched[0].pid), (1, pid));
        assert!(watch.read(monotonic_now()).0.is_empty(), "its node has not answered");
        // The clock of another machine began at another time.
        let Source::File(file) = &local.source else { panic!("a file") };
        let mut reading = file.read(pid).unwrap();
        reading.clock_s += 1000.0;
        reading.record[4] = (f64::from_bits(reading.record[4]) + 1000.0).to_bits();
        watch.take_readings(node, vec![reading]);
        let (rows, _) = watch.read(monotonic_now());
        assert_eq!(rows.iter().map(|row| row.node).collect::<Vec<_>>(), [None, Some(1)]);
        assert!((3000..60_000).contains(&rows[1].stands_ms), "{rows:?}");
    }

    #[test]
    fn the_flight_recorders_name_who_has_not_begun() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = watch_of(dir.path(), &[RankPhase::Training; 3]);
        let collective = |number, done| Collective { number, name: "gloo:all_reduce".to_owned(), done };
        assert_eq!(watch.describe_collectives(), None);
        watch.collectives = [(0, collective(37, false)), (1, collective(36, true)), (2, collective(37, false))].into();
        let text = "flight recorder: 2 of 3 ranks wait in gloo:all_reduce, number 37; not begun by rank 1";
        assert_eq!(watch.describe_collectives().as_deref(), Some(text));
        watch.collectives.remove(&1);
        assert!(watch.describe_collectives().is_some_and(|text| text.ends_with("no answer from rank 1")));
        watch.collectives = [0, 1, 2].map(|rank| (rank, collective(37, false))).into();
        assert_eq!(watch.describe_collectives(), None, "all have begun it");
    }
}
