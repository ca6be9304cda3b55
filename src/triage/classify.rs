//! The verdict on an attempt: a pure function of the evidence.
//!
//! Evidence in order of strength: a GPU that is lost or needs a reset, facts only the keeper knows (it ended a hanging
//! worker), a failure that the worker explains itself, any other Xid, the signal, the exit code, the log. Weaker evidence
//! never overrules stronger evidence; it is listed after it. The policy answers this verdict, and no other.

use super::catalogue::Catalogue;
use super::catalogue::entry::EndedBy;
use super::kernel::{is_same_gpu, parse_xid};
use super::ranking::{is_bad_numbers, root_cause};
use super::scan::{Finding, scan_line};
use super::traceback::OwnFrame;
use crate::faults::response::Response;
use crate::faults::{self, xid};
use crate::protocol::cause::{Cause, KernelKind, KernelLine};
use crate::protocol::class::FailureClass;
use crate::protocol::exit::Exit;
use crate::protocol::worker::Failed;

/// Maximum log lines cited as evidence.
const LINES: usize = 4;

/// All evidence on how an attempt ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// Exit of the process.
    pub exit: Exit,
    /// The process id.
    pub pid: Option<u32>,
    /// The reason if the keeper ended it deliberately: a hang, heat.
    pub ended_for: Option<(FailureClass, String)>,
    /// The worker's own report.
    pub failed: Option<Failed>,
    /// Catalogue matches in the attempt's part of the worker's log.
    pub log: Vec<Finding>,
    /// The place in the user's own files that the log's traceback names.
    pub frame: Option<OwnFrame>,
    /// The last lines of the attempt's part of the worker's log, with their numbers.
    pub last_lines: Vec<(u64, String)>,
    /// Kernel messages during the attempt.
    pub kernel: Vec<KernelLine>,
    /// Whether the kernel reported an OOM kill of some process at the moment of the end.
    pub killed_just_now: bool,
    /// OOM kills counted by the cgroup during the attempt.
    pub oom_kills: u64,
    /// The probe's reason if it reports the GPU as lost.
    pub lost: Option<String>,
    /// Xid numbers that the driver reported to the probe.
    pub xids: Vec<u32>,
    /// The GPU's PCI address; `None` if unknown.
    pub pci: Option<String>,
    /// Where the processes of a hung worker stood, as sentences.
    pub stands: Vec<String>,
}

/// Returns the class of the failure, and its evidence.
#[must_use]
pub fn classify(evidence: &Evidence, catalogue: &Catalogue) -> Cause {
    let verdict = Judge { evidence, catalogue };
    let (class, xid) = verdict.class();
    let known = xid.and_then(xid::find);
    let advice = known.map(|xid| xid.advice.clone()).or_else(|| verdict.advice(class)).unwrap_or_default();
    let damage = verdict.catalogue_finding().filter(|finding| finding.class == class).and_then(|found| found.damage);
    let may_pass = verdict.may_pass(class);
    let is_by_user = |finding: Finding| finding.ended_by == EndedBy::User;
    let by_user = class == FailureClass::Killed && verdict.catalogue_finding().is_some_and(is_by_user);
    let restart_helps = may_pass || faults::response(class, xid, damage).restart_helps();
    Cause { class, xid, damage, restart_helps, may_pass, by_user, evidence: verdict.lines(class, xid), advice }
}

struct Judge<'a> {
    evidence: &'a Evidence,
    catalogue: &'a Catalogue,
}

impl Judge<'_> {
    fn class(&self) -> (FailureClass, Option<u32>) {
        let evidence = self.evidence;
        let said = evidence.failed.as_ref().map(|failed| failed.class);
        // A failure in the worker itself, which a GPU fault does not explain.
        let of_its_own = said.is_some_and(|class| {
            !matches!(class, FailureClass::DeviceFault | FailureClass::Panic | FailureClass::Unknown)
        });
        // An Xid that a restart repairs only accompanies such a failure, or a hang.
        let is_explained = of_its_own || evidence.ended_for.is_some();
        if let Some(number) = self.xid().filter(|number| xid::respond(*number).ends_run() || !is_explained) {
            return (FailureClass::Xid, Some(number));
        }
        if self.is_lost() && !of_its_own {
            return (FailureClass::GpuLost, None);
        }
        if let Some((class, _)) = &evidence.ended_for {
            return (*class, None);
        }
        let class = said.map_or_else(|| self.by_the_end(), |class| self.refined(class));
        (class, self.xid_of_message().filter(|_| class == FailureClass::Xid))
    }

    /// Classifies by the signal, the exit code and the log, without a report from the worker.
    fn by_the_end(&self) -> FailureClass {
        let evidence = self.evidence;
        match (evidence.exit.signal, evidence.exit.contract_code()) {
            (Some(9), _) if self.memory_killed() => FailureClass::HostOutOfMemory,
            (Some(_), _) if evidence.exit.is_crash() => self.known_class().unwrap_or(FailureClass::Crash),
            (Some(_), _) => FailureClass::Killed,
            (None, Some(0 | 3)) => FailureClass::EarlyExit,
            (None, Some(code)) => match FailureClass::from_exit_code(code) {
                Some(class) => self.refined(class),
                None => self.log_class().unwrap_or(FailureClass::Unknown),
            },
            (None, None) if evidence.exit.of_command => {
                let is_told = evidence.exit.code.is_some() || self.ends_in_its_cause();
                let class = if is_told { self.log_class() } else { self.known_class() };
                class.unwrap_or(FailureClass::Unknown)
            }
            (None, None) => FailureClass::Unknown,
        }
    }

    /// Refines the worker's fallback class by its report or its log.
    fn refined(&self, class: FailureClass) -> FailureClass {
        if !matches!(class, FailureClass::Panic | FailureClass::DeviceFault | FailureClass::Unknown) {
            return class;
        }
        // The device only reports that its check failed; the check itself names the data.
        let of_data = self.root().is_some_and(|root| root.class == FailureClass::Data && !root.symptom);
        if class == FailureClass::DeviceFault && of_data {
            return FailureClass::Data;
        }
        let found =
            self.catalogue_finding().map(|finding| finding.class).filter(|class| *class != FailureClass::Unknown);
        // Of several ranks, each reports an exception of no known class.
        let is_told = self.evidence.failed.is_some() || self.log_class() == Some(FailureClass::Exception);
        let raised = self.evidence.exit.of_command && is_told;
        match (class, found) {
            (FailureClass::Unknown, None) if raised => FailureClass::Exception,
            (FailureClass::Panic, Some(found)) if is_mistake(found) => class,
            (FailureClass::Panic | FailureClass::Unknown, Some(found)) => found,
            (_, Some(found)) if concerns_device(found) => found,
            _ => class,
        }
    }

    /// Returns the catalogue's finding for the worker's report, or for its log if there is none.
    fn catalogue_finding(&self) -> Option<Finding> {
        match &self.evidence.failed {
            Some(failed) => failed.message.lines().find_map(|line| scan_line(line.as_bytes(), 0, self.catalogue)),
            None => self.root().cloned(),
        }
    }

    /// Reports whether the message that names the class is one of a failure that may pass.
    fn may_pass(&self, class: FailureClass) -> bool {
        let named = self.catalogue_finding().is_some_and(|finding| finding.transient && finding.class == class);
        named && !(class == FailureClass::GpuLost && self.is_lost())
    }

    /// Reports whether the probe or the kernel has lost the GPU.
    fn is_lost(&self) -> bool {
        self.evidence.lost.is_some() || self.evidence.kernel.iter().any(|line| line.kind == KernelKind::GpuLost)
    }

    fn root(&self) -> Option<&Finding> {
        root_cause(&self.evidence.log)
    }

    fn log_class(&self) -> Option<FailureClass> {
        self.root().map(|finding| finding.class)
    }

    /// Reports whether the log ends in the line that names the failure, as it does if an exception ended the process.
    fn ends_in_its_cause(&self) -> bool {
        let last = self.evidence.last_lines.first().map(|(line, _)| *line);
        self.root().zip(last).is_some_and(|(root, last)| root.line >= last)
    }

    /// Returns the class of the log, unless it is an exception: a process that ends with one exits with a code.
    fn known_class(&self) -> Option<FailureClass> {
        self.log_class().filter(|class| *class != FailureClass::Exception)
    }

    /// Reports whether the GPU in use has this PCI address, as far as known.
    fn is_own_gpu(&self, pci: &str) -> bool {
        self.evidence.pci.as_deref().is_none_or(|own| is_same_gpu(own, pci))
    }

    /// Returns the number of the Xid in the message that names the class.
    fn xid_of_message(&self) -> Option<u32> {
        let (pci, number) = parse_xid(&self.catalogue_finding()?.text)?;
        self.is_own_gpu(&pci).then_some(number)
    }

    /// Returns the gravest Xid that the driver reported for this GPU and that means a failure.
    fn xid(&self) -> Option<u32> {
        let logged = self.evidence.kernel.iter().filter_map(|line| match &line.kind {
            KernelKind::Xid { number, pci } if self.is_own_gpu(pci) && !xid::asks_for_nothing(*number, &line.text) => {
                Some(*number)
            }
            _ => None,
        });
        // The driver's library names no action.
        let counted = self.evidence.xids.iter().copied().filter(|number| *number != xid::ACTION);
        let numbers = logged.chain(counted);
        let failures = numbers.filter(|number| xid::respond(*number) != Response::Note);
        failures.min_by_key(|number| !xid::respond(*number).ends_run())
    }

    fn memory_killed(&self) -> bool {
        self.evidence.oom_kills > 0 || self.evidence.killed_just_now || self.kernel_killed().is_some()
    }

    /// Returns the kernel's line about an OOM kill of this worker.
    fn kernel_killed(&self) -> Option<&KernelLine> {
        let own = self.evidence.pid;
        self.evidence.kernel.iter().find(|line| match &line.kind {
            KernelKind::OutOfMemory { pid, .. } => self.evidence.killed_just_now || pid.is_some() && *pid == own,
            _ => false,
        })
    }

    fn advice(&self, class: FailureClass) -> Option<String> {
        let is_meant =
            |found: &Finding| found.class == class || class == FailureClass::Panic && is_mistake(found.class);
        let named = self.catalogue_finding().filter(is_meant).map(|finding| finding.advice);
        let reported = self.evidence.failed.as_ref().map(|failed| failed.class);
        let of_log = || self.root().filter(|root| root.class == class && reported != Some(class));
        let named = named.or_else(|| of_log().map(|root| root.advice.clone()));
        // The worker's messages on run file, data and checkpoints already contain the fix.
        let said = reported.is_some() && is_mistake(class);
        named.or_else(|| (!said).then(|| faults::of_class(class).advice.clone()))
    }

    /// Returns the evidence for the class, line by line.
    fn lines(&self, class: FailureClass, xid: Option<u32>) -> Vec<String> {
        let evidence = self.evidence;
        let mut lines = Vec::new();
        if let Some((_, why)) = &evidence.ended_for {
            lines.push(format!("the keeper ended it: {why}"));
        }
        if class == FailureClass::Hang {
            lines.extend(evidence.stands.iter().take(LINES).cloned());
        }
        if let Some(number) = xid {
            lines.push(format!("Xid {number}: {}", xid::meaning(number)));
            let deciding = evidence.kernel.iter().find(|line| self.is_ours(line, Some(number)));
            lines.extend(deciding.map(|line| format!("kernel log: {}", line.text)));
        }
        lines.extend(evidence.lost.as_ref().map(|why| format!("probe: {why}")));
        lines.extend(evidence.failed.as_ref().map(|failed| format!("the worker reported: {}", failed.message)));
        if class == FailureClass::HostOutOfMemory {
            lines.extend(self.kernel_killed().map(|line| format!("kernel log: {}", line.text)));
            if evidence.oom_kills > 0 {
                lines.push(format!("cgroup: oom_kill went up by {}", evidence.oom_kills));
            }
        }
        // A failure that only the log names is better told by that line than by its exit code.
        let telling = self.root().filter(|_| self.is_told_by_log(class));
        lines.extend(telling.map(describe_finding));
        lines.extend((evidence.exit != Exit::default()).then(|| evidence.exit.to_string()));
        let is_told = self.root().is_some() || evidence.failed.is_some();
        let described = |frame: &OwnFrame| if is_told { frame.to_string() } else { frame.describe_with_exception() };
        lines.extend(evidence.frame.as_ref().map(|frame| format!("your code: {}", described(frame))));
        let root = self.root().filter(|_| telling.is_none());
        let others = evidence.log.iter().filter(|finding| Some(*finding) != self.root());
        let belongs = |finding: &&Finding| !self.is_reported(finding) && may_explain(finding, class);
        for finding in root.into_iter().chain(others).filter(belongs) {
            if lines.len() > LINES + 3 + usize::from(evidence.frame.is_some()) {
                break;
            }
            lines.push(describe_finding(finding));
        }
        if !is_told && evidence.frame.is_none() && matches!(class, FailureClass::Unknown | FailureClass::EarlyExit) {
            let last = evidence.last_lines.iter();
            lines.extend(last.map(|(line, text)| describe_line(*line, text)));
        }
        let told = lines.clone();
        let more = evidence.kernel.iter().filter(|line| match &line.kind {
            KernelKind::OutOfMemory { .. } => false,
            KernelKind::Xid { .. } => self.is_ours(line, None),
            KernelKind::GpuLost | KernelKind::DeviceOutOfMemory => true,
        });
        let more = more.map(|line| format!("kernel log: {}", line.text)).filter(|line| !told.contains(line));
        lines.extend(more.take(LINES));
        lines
    }

    /// Reports whether a line of the log repeats what the worker reported, which may name the rank before it.
    fn is_reported(&self, finding: &Finding) -> bool {
        let reported =
            self.evidence.failed.as_ref().map(|failed| failed.message.as_str()).filter(|text| !text.is_empty());
        reported.is_some_and(|text| finding.text.contains(text) || text.ends_with(finding.text.as_str()))
    }

    /// Reports whether the class comes from the log alone: the process reported nothing, and its exit code has no meaning.
    fn is_told_by_log(&self, class: FailureClass) -> bool {
        let Evidence { exit, failed, ended_for, .. } = self.evidence;
        let says_nothing =
            exit.signal.is_none() && exit.contract_code().and_then(FailureClass::from_exit_code).is_none();
        failed.is_none() && ended_for.is_none() && says_nothing && self.log_class() == Some(class)
    }

    /// Reports whether a kernel line is an Xid of the GPU in use, with this number or any.
    fn is_ours(&self, line: &KernelLine, wanted: Option<u32>) -> bool {
        match &line.kind {
            KernelKind::Xid { number, pci } => self.is_own_gpu(pci) && wanted.is_none_or(|wanted| wanted == *number),
            _ => false,
        }
    }
}

fn describe_finding(finding: &Finding) -> String {
    describe_line(finding.line, &finding.text)
}

/// Describes a line of the log. The worker's own report has no line in it.
fn describe_line(line: u64, text: &str) -> String {
    let place = if line == 0 { String::new() } else { format!(" line {line}") };
    format!("worker.log{place}: {text}")
}

/// Reports whether retrying changes nothing, as far as the message tells. An external trainer may panic over the same
/// message for a reason that passes, so a panic stays one.
fn is_mistake(class: FailureClass) -> bool {
    faults::of_class(class).response == Response::Fail
}

/// Reports whether a line of the log may tell more about a failure of this class. Bad numbers send no signal.
fn may_explain(finding: &Finding, class: FailureClass) -> bool {
    use FailureClass::{HostOutOfMemory, Killed};
    !(matches!(class, Killed | HostOutOfMemory) && is_bad_numbers(finding.class))
}

fn concerns_device(class: FailureClass) -> bool {
    use FailureClass::{DeviceFault, DeviceOutOfMemory, Driver, GpuLost};
    matches!(class, DeviceFault | DeviceOutOfMemory | Driver | GpuLost)
}

#[cfg(test)]
#[path = "classify/tests.rs"]
mod tests;
