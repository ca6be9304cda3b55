//! A command without a companion: it went away, or none has reported.

use crate::harness::run_loop::Harness;
use crate::process_tree::scan;
use crate::protocol::companion::{CompanionNews, Grade};
use crate::protocol::worker::{Event, Level};
use crate::store::{adopted, checkpoint};

/// Steps in the output after which the silence of a companion means that there is none.
const SILENT_STEPS: u64 = 20;

impl Harness {
    /// Goes back to the output of a command whose companion went away while it trains.
    pub(super) fn give_up_companion(&mut self) {
        self.companion.gone = None;
        self.companion.introduction = None;
        self.progress.follow_output();
        // A process that ended by itself may have been one of several.
        if !self.companion.has_left {
            self.warn(
                "downshift's helper in the script is gone; steps are read from the output again, and nothing is saved on order"
                    .to_owned(),
            );
        }
        // A new start resumes from what was saved before.
        let run_dir = self.args.run_dir.path();
        let resumes = !checkpoint::list(run_dir).is_empty() || !adopted::list(run_dir).is_empty();
        if let Some(news) = &mut self.companion.news {
            let reason = Some("downshift's helper in the script is gone".to_owned());
            let grade = if resumes { news.grade } else { Grade::None };
            *news = CompanionNews { saves: news.saves && resumes, guards: false, grade, reason, ..news.clone() };
        }
        self.send_companion();
    }

    /// Reports once that a training is kept without a companion, although Python would have loaded one, and that faults
    /// cannot be injected.
    pub(super) fn note_missing_companion(&mut self) {
        let taken = self.progress.step.saturating_sub(self.hello.resumed_from.unwrap_or(0));
        let first_fault = self.args.inject.iter().map(|fault| fault.first).min();
        let fault_is_due = taken > 0 && first_fault.is_some_and(|first| self.progress.step >= first);
        if taken < SILENT_STEPS && !fault_is_due {
            return;
        }
        self.companion.reported.missed = true;
        if !self.args.inject.is_empty() {
            let faults: Vec<String> = self.args.inject.iter().map(ToString::to_string).collect();
            self.warn(format!(
                "{} cannot be injected: downshift's helper in the script has not reported",
                faults.join(",")
            ));
        }
        let runs_torch =
            self.companion.link.is_some() && self.family.among(&scan()).iter().any(|process| has_torch(process.pid));
        if runs_torch {
            let text = "downshift's helper in the script has not reported: Python was started without it (-I, -E, -S, a \
                        container), or the script takes its steps without an optimizer of PyTorch";
            self.link.send(&Event::Note { level: Level::Info, text: text.to_owned() });
        }
    }
}

/// Reports whether a process has loaded PyTorch.
fn has_torch(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("/libtorch"))
}
