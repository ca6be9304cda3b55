//! The ranks of a distributed training: the first one that fails is the cause. The others only lose it: their errors, such
//! as "connection closed by peer", and the launcher's exit code say nothing.
//!
//! ```text
//! rank 1 ends ── its connection closes ──▶ its node reads its exit ──▶ 0.4 s for the launcher to report and end the rest
//!             ──▶ 2.5 s for a lost node to show, unless the rank has a cause of its own ──▶ all ranks are ended
//! ```

use super::companion::NotWritten;
use super::companion_link::Member;
use super::ending::Reason;
use super::node_pid::{Node, NodePid};
use super::run_loop::{Harness, Life, Report};
use crate::config::command::CommandLaunch;
use crate::config::command::ranks::Ranks;
use crate::process_tree::{EndedBy, wait_for_end};
use crate::protocol::companion::{CompanionOrder, Introduction};
use crate::protocol::device::DeviceChoice;
use crate::protocol::exit::Exit;
use crate::protocol::worker::{Event, Failed, FailureClass, Level};
use crate::untrusted::port::check_meeting;
use crate::untrusted::thread::run_beside;
use rustix::process::Signal;
use std::cmp::Reverse;
use std::env;
use std::time::Duration;

/// Longest time for the launcher to end the other ranks and itself.
const LAUNCHER: Duration = Duration::from_millis(400);

/// The failures of ranks, and their versions.
#[derive(Debug, Default)]
pub struct RankFailures {
    /// The first rank that ended with a failure, and its exit unless the launcher reaped it.
    first: Option<(Member, Option<Exit>)>,
    /// The reports of ranks, oldest first.
    reports: Vec<(Member, Failed)>,
    /// Ranks whose connection closed while the others train, and whose end is not known yet.
    leaving: Vec<Member>,
    /// A sentence about the first rank that ended, while a lost node may still be the cause.
    note: Option<String>,
    versions: RankVersions,
}

/// How likely a report names the cause, the least likely first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// A failed collective: the rank lost another one.
    Consequence,
    /// An exception of no known class: gloo raises one too when a rank is lost.
    Unknown,
    Cause,
}

impl Weight {
    fn of(failed: &Failed) -> Self {
        match failed.class {
            FailureClass::Collective => Self::Consequence,
            FailureClass::Unknown => Self::Unknown,
            _ => Self::Cause,
        }
    }
}

/// The cause of an end, among all ranks.
#[derive(Debug, Default, PartialEq)]
pub struct RankCause {
    /// The process that ended first, and its exit; none if no rank was seen to fail.
    pub exit: Option<(NodePid, Exit)>,
    /// The report of that rank.
    pub failed: Option<Failed>,
}

impl RankFailures {
    /// Records the end of a rank. Reports whether it is the first failure. If its launcher has reaped it already, it may
    /// have ended as it should: then its own report decides, or else the launcher.
    fn record_end(&mut self, member: Member, ended: EndedBy) -> bool {
        let exit = (ended != EndedBy::default()).then(|| Exit::of_command(ended.code, ended.signal));
        let reported = || self.likeliest().is_some_and(|(reporter, _)| *reporter == member);
        if ended.code == Some(0) || self.first.is_some() || exit.is_none() && !reported() {
            return false;
        }
        self.first = Some((member, exit));
        true
    }

    /// Reports whether a rank failed by itself: it was killed, or reported an error of its own.
    pub fn has_own_cause(&self) -> bool {
        let killed = Signal::KILL.as_raw();
        let was_killed = self.first.is_some_and(|(_, exit)| exit.is_some_and(|exit| exit.signal == Some(killed)));
        was_killed || self.reports.iter().any(|(_, failed)| Weight::of(failed) == Weight::Cause)
    }

    /// Reports whether a rank on this node has reported its failure, or ended: the node is not lost.
    pub fn have_failed_on(&self, node: Node) -> bool {
        let mut reporters =
            self.reports.iter().map(|(member, _)| member).chain(self.first.iter().map(|(first, _)| first));
        reporters.any(|member| member.process.node == node)
    }

    /// Forgets a rank whose end will not be known.
    pub fn forget_leaving(&mut self, member: Member) {
        self.leaving.retain(|leaving| *leaving != member);
    }

    /// Takes the sentence that waits.
    pub fn take_note(&mut self) -> Option<String> {
        self.note.take()
    }

    /// Returns the report that most likely names the cause: the earliest of the weightiest.
    fn likeliest(&self) -> Option<&(Member, Failed)> {
        self.reports.iter().min_by_key(|(_, failed)| Reverse(Weight::of(failed)))
    }

    /// Records the report of a rank. Returns its text if it names the cause better than earlier ones: the command may end in
    /// another way before the rank does, such as by a stop or as a hang in the teardown.
    fn record_report(&mut self, member: Member, mut failed: Failed) -> Option<String> {
        failed.message = format!("{member}: {}", failed.message);
        let earlier = self.reports.iter().map(|(_, earlier)| Weight::of(earlier)).max().unwrap_or(Weight::Consequence);
        let is_news = self.first.is_none() && Weight::of(&failed) > earlier;
        let text = is_news.then(|| failed.message.clone());
        self.reports.push((member, failed));
        text
    }

    /// Returns the cause.
    pub fn cause(&self) -> RankCause {
        let exit = self.first.and_then(|(member, exit)| Some((member.process, exit?)));
        let of_first = |(member, _): &&(Member, Failed)| self.first.is_some_and(|(first, _)| first == *member);
        let own = self.reports.iter().find(of_first);
        let found = if self.first.is_some() { own } else { self.likeliest() };
        RankCause { exit, failed: found.map(|(_, failed)| failed.clone()) }
    }
}

/// Returns the restarts that torchrun is allowed: `--max-restarts=3`, `--max_restarts 3`.
fn find_restarts(command: &[String]) -> Option<u32> {
    let is_name = |text: &str| matches!(text, "--max-restarts" | "--max_restarts");
    command.iter().enumerate().find_map(|(at, argument)| match argument.split_once('=') {
        Some((name, value)) if is_name(name) => value.parse().ok(),
        None if is_name(argument) => command.get(at + 1)?.parse().ok(),
        _ => None,
    })
}

/// Returns what stands in the way of the ranks of a start. It is only noted, because the command itself decides.
pub(super) fn find_obstacles(launch: &CommandLaunch, device: &str) -> Vec<String> {
    let Some(ranks) = Ranks::of(launch, |name| env::var_os(name)) else { return Vec::new() };
    let cards = match device.parse() {
        Ok(DeviceChoice::Cuda(names)) => names.names().len(),
        _ => 0,
    };
    let misfit = ranks.misfit(cards).map(|(wrong, fix)| format!("{wrong}: {fix}"));
    let meeting = ranks.meeting.as_ref().and_then(|meeting| {
        let refused = check_meeting(&meeting.host, meeting.port, meeting.is_here).err()?;
        Some(format!("{refused}: {}", refused.fix(meeting.key)))
    });
    misfit.into_iter().chain(meeting).collect()
}

/// The versions that ranks were introduced with: other ones compute other numbers, or cannot join a collective.
#[derive(Debug, Default)]
struct RankVersions {
    first: Option<(Member, [Option<String>; 3])>,
    /// Another version was reported.
    told: bool,
}

impl RankVersions {
    /// Compares a rank with the first one. Returns a sentence for the first that differs.
    fn compare(&mut self, member: Member, introduction: &Introduction) -> Option<String> {
        let Introduction { python, torch, version, .. } = introduction;
        let own = [torch, python, version].map(Clone::clone);
        let Some((first, of_first)) = &self.first else {
            self.first = Some((member, own));
            return None;
        };
        let framework = introduction.framework.to_string();
        let names = ["torch", "Python", &framework];
        let mut pairs = names.into_iter().zip(of_first.iter().zip(&own));
        let (name, (one, other)) = pairs.find(|(_, (one, other))| one != other).filter(|_| !self.told)?;
        self.told = true;
        let shown = |version: &Option<String>| version.clone().unwrap_or_else(|| "none".to_owned());
        Some(format!(
            "{first} has {name} {}, {member} has {name} {}: start all ranks with the same environment, or their collectives \
             may hang and their numbers differ",
            shown(one),
            shown(other)
        ))
    }
}

impl Harness {
    /// Warns of ranks with different versions.
    pub(super) fn compare_versions(&mut self, member: Member, introduction: &Introduction) {
        if member.world > 1
            && let Some(text) = self.ranks.versions.compare(member, introduction)
        {
            self.warn(text);
        }
    }

    /// Warns of a launcher that would restart its ranks: it is ended before it can.
    pub(super) fn warn_of_restarts(&mut self, world: u32) {
        let restarts = find_restarts(&self.args.spec.command).filter(|restarts| world > 1 && *restarts > 0);
        if let Some(restarts) = restarts {
            self.warn(format!(
                "the command allows {restarts} restarts of its ranks, but when a rank fails, downshift ends all of them and \
                 starts the command again: use --max-restarts=0"
            ));
        }
    }

    /// Watches the end of a rank whose connection closed.
    pub(super) fn watch_rank_end(&mut self, member: Member) {
        let is_over = self.companion.is_stopping() || self.progress.training_has_ended();
        if member.world == 1 || is_over || !matches!(self.life, Life::Running) {
            return;
        }
        self.ranks.leaving.push(member);
    }

    /// Records the end of a rank whose connection closed while the others train, and waits for the launcher.
    pub(super) fn record_rank_end(&mut self, member: Member, ended: EndedBy) {
        let Some(at) = self.ranks.leaving.iter().position(|leaving| *leaving == member) else { return };
        self.ranks.leaving.swap_remove(at);
        let (reports, launcher) = (self.reports.clone(), self.command.pid);
        run_beside("launcher", move || {
            let _ = wait_for_end(launcher, LAUNCHER);
            let _ = reports.send(Report::RanksLeft(member));
        });
        if self.ranks.record_end(member, ended) {
            let exit = Exit::of_command(ended.code, ended.signal);
            let how = if ended == EndedBy::default() { String::new() } else { format!(": {exit}") };
            let place = self.nodes.describe(member.process.node);
            let text = format!("{member}{place} ended first{how}; the other ranks are ended too");
            self.ranks.note = Some(text);
            self.note_first_rank();
        }
    }

    /// Names the first rank that ended, unless a lost node may be the cause.
    fn note_first_rank(&mut self) {
        if self.knows_cause()
            && let Some(text) = self.ranks.take_note()
        {
            self.link.send(&Event::Note { level: Level::Error, text });
        }
    }

    /// Ends the ranks that are left after the first one failed.
    pub(super) fn end_other_ranks(&mut self, member: Member) {
        if self.ranks.first.is_some_and(|(first, _)| first == member) {
            self.end_as_failed(Reason::RankFailed);
        }
    }

    /// Takes an event of a process that may be a rank. Returns what is handled as that of any companion.
    pub(super) fn take_of_rank(&mut self, member: Option<Member>, event: Event) -> Option<Event> {
        let Some(member) = member.filter(|member| member.world > 1) else { return Some(event) };
        match event {
            Event::Failed(failed) => {
                if let Some(text) = self.ranks.record_report(member, failed) {
                    self.link.send(&Event::Note { level: Level::Error, text });
                }
                None
            }
            Event::SaveFailed { step, message, of_disk } => {
                let message = format!("{member}: {message}");
                if !self.companion.keeps_loop() {
                    self.companion.order(&CompanionOrder::PublishFailed { step, message: message.clone(), of_disk });
                    return Some(Event::SaveFailed { step, message, of_disk });
                }
                self.take_part(member, step, Err(NotWritten { message, of_disk }));
                None
            }
            other => Some(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Member, RankCause, RankFailures, RankVersions, find_restarts};
    use crate::harness::node_pid::{Node, NodePid};
    use crate::process_tree::EndedBy;
    use crate::protocol::exit::Exit;
    use crate::protocol::worker::{Failed, FailureClass};

    fn rank(rank: u32) -> Member {
        Member { process: NodePid { node: Node(rank), pid: 40 }, rank, world: 2 }
    }

    fn failed(class: FailureClass, message: &str) -> Failed {
        Failed { class, message: message.to_owned(), step: None, thread: None, injected: false }
    }

    #[test]
    fn the_first_rank_that_failed_is_the_cause_whatever_the_others_report() {
        let mut ranks = RankFailures::default();
        assert_eq!(ranks.cause(), RankCause::default());
        assert_eq!(ranks.record_report(rank(0), failed(FailureClass::Collective, "connection closed")), None);
        assert!(!ranks.record_end(rank(0), EndedBy { code: Some(0), signal: None }), "a rank that ends as it should");
        assert!(ranks.record_end(rank(1), EndedBy { code: None, signal: Some(9) }));
        assert!(!ranks.record_end(rank(0), EndedBy { code: Some(1), signal: None }), "the second one");
        let killed = Exit::of_command(None, Some(9));
        assert_eq!(
            ranks.cause(),
            RankCause { exit: Some((rank(1).process, killed)), failed: None },
            "it was killed without a word"
        );
        ranks.record_report(rank(1), failed(FailureClass::DeviceOutOfMemory, "no memory"));
        assert_eq!(ranks.cause().failed.unwrap().message, "rank 1 of 2: no memory");
    }

    #[test]
    fn a_rank_that_reported_its_failure_counts_before_one_that_the_launcher_ended() {
        let mut ranks = RankFailures::default();
        ranks.record_report(rank(1), failed(FailureClass::Unknown, "ValueError"));
        ranks.record_report(rank(0), failed(FailureClass::Unknown, "connection closed"));
        assert!(ranks.record_end(rank(1), EndedBy::default()), "its launcher reaped it");
        assert!(!ranks.record_end(rank(0), EndedBy { code: None, signal: Some(15) }));
        let RankCause { exit, failed } = ranks.cause();
        assert_eq!((exit, failed.unwrap().message.as_str()), (None, "rank 1 of 2: ValueError"));
    }

    #[test]
    fn a_failure_that_a_lost_node_may_explain_is_no_cause_of_its_own() {
        let mut ranks = RankFailures::default();
        ranks.record_report(rank(0), failed(FailureClass::Unknown, "connection closed"));
        assert!(ranks.record_end(rank(0), EndedBy { code: Some(1), signal: None }));
        assert!(!ranks.has_own_cause(), "gloo fails so when another rank is gone");
        assert!(ranks.have_failed_on(Node(0)) && !ranks.have_failed_on(Node(1)), "node 1 may be lost");
        ranks.record_report(rank(1), failed(FailureClass::Collective, "connection closed"));
        assert!(ranks.have_failed_on(Node(1)) && !ranks.has_own_cause());
        ranks.record_report(rank(1), failed(FailureClass::DiskFull, "no space"));
        assert!(ranks.has_own_cause());
        let mut killed = RankFailures::default();
        assert!(killed.record_end(rank(0), EndedBy { code: None, signal: Some(9) }));
        assert!(killed.has_own_cause());
    }

    #[test]
    fn another_version_on_a_rank_is_said_once() {
        let introduction = |rank: u32, torch: &str| {
            let news = serde_json::json!({
                "protocol": 1, "pid": 40 + rank, "rank": rank, "world": 3, "torch": torch, "python": "3.11.7",
                "framework": "loop", "grade": "exact",
            });
            serde_json::from_value(news).unwrap()
        };
        let mut versions = RankVersions::default();
        assert_eq!(versions.compare(rank(1), &introduction(1, "2.15.0")), None);
        assert_eq!(versions.compare(rank(0), &introduction(0, "2.15.0")), None);
        let text = versions.compare(rank(2), &introduction(2, "2.14.1")).unwrap();
        assert!(
            text.starts_with("rank 1 of 2 has torch 2.15.0, rank 2 of 2 has torch 2.14.1: start all ranks"),
            "{text}"
        );
        assert_eq!(versions.compare(rank(2), &introduction(2, "2.14.1")), None, "a value in its introduction changed");
    }

    #[test]
    fn the_restarts_of_a_launcher_are_found_however_they_are_written() {
        let found = |text: &str| find_restarts(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(found("torchrun --max-restarts=3 train.py"), Some(3));
        assert_eq!(found("torchrun --max_restarts 0 train.py"), Some(0));
        assert_eq!(found("torchrun --max-restarts={knobs.restarts} train.py"), None);
        assert_eq!(found("torchrun train.py --max-restarts"), None);
    }

    #[test]
    fn without_a_known_end_a_failed_collective_counts_least() {
        let mut ranks = RankFailures::default();
        ranks.record_report(rank(0), failed(FailureClass::Collective, "connection closed"));
        assert_eq!(ranks.cause().failed.unwrap().class, FailureClass::Collective);
        let mut noted = |of, class, text: &str| ranks.record_report(rank(of), failed(class, text));
        assert_eq!(noted(0, FailureClass::Unknown, "closed").as_deref(), Some("rank 0 of 2: closed"));
        assert_eq!(noted(1, FailureClass::DiskFull, "no space").as_deref(), Some("rank 1 of 2: no space"));
        assert_eq!(noted(0, FailureClass::Unknown, "KeyError"), None, "a consequence");
        assert_eq!(ranks.cause().failed.unwrap().class, FailureClass::DiskFull);
        assert!(!ranks.record_end(rank(0), EndedBy::default()), "its launcher was faster, and decides");
        assert_eq!(ranks.cause().exit, None);
    }
}
