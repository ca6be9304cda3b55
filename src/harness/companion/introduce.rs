//! The introductions of the ranks. A command of one rank may train in several processes, one after the other: a loop in a
//! shell, or a launcher that restarts its process.

use super::news;
use super::parts::Absence;
use crate::format::count;
use crate::harness::companion_link::Member;
use crate::harness::ending::Reason;
use crate::harness::run_loop::Harness;
use crate::harness::setup::SetupFile;
use crate::protocol::companion::{Framework, Grade, Introduction, PROTOCOL};
use crate::protocol::worker::{CommandNews, Event};
use crate::store::companion::KnownCompanion;

impl Harness {
    /// Takes in an introduction of the process that reports the training.
    pub(super) fn introduce_companion(&mut self, member: Member, mut introduction: Introduction) {
        if introduction.protocol != PROTOCOL {
            let theirs = introduction.protocol;
            return self.warn(format!(
                "downshift's helper in the script speaks protocol {theirs} instead of {PROTOCOL}; it is ignored"
            ));
        }
        if let Some(obstacle) = self.companion.publishing.parts.obstacle() {
            (introduction.saves, introduction.grade, introduction.reason) = (false, Grade::None, Some(obstacle));
        }
        let is_another = self.companion.gone.take().is_some() || self.companion.introduction.is_none();
        if is_another && self.companion.stopping {
            // The training ended as it was asked to, but the command has started it again: that one counts no more.
            self.companion.link = None;
            return self.end(Reason::Asked);
        }
        if self.companion.news.is_none() {
            self.warn_of_restarts(introduction.world);
        }
        if is_another {
            if self.companion.news.is_some() {
                self.resume_check.trust_numbers();
                self.note_other_resume(&introduction);
            }
            self.go_back(&introduction);
            self.companion.timer.begin(self.began.elapsed(), self.progress.epoch());
        }
        if introduction.saves && introduction.framework == Framework::Loop {
            self.companion.state.collect();
        }
        if !self.trusts_output_over(&introduction) {
            let total = self.progress.total;
            self.progress.follow(&introduction);
            if self.progress.total != total {
                self.remember_length();
            }
        }
        self.observe_restored(&introduction);
        self.complete_hello(&introduction);
        self.progress.skips.trust_told(introduction.counts_skips);
        let stored = || KnownCompanion::of_run(&self.args.run_dir).map(|known| known.news);
        let before = self.companion.news.clone().or_else(stored);
        let mut news = news::news_of(&introduction, &self.args.preset.tree(), before.as_ref());
        let program = self.args.spec.command.first().map_or("", String::as_str);
        let is_command = member.process.here() == Some(self.command.pid) && self.nodes.is_none();
        news.imports_ahead = is_command && news::can_import_ahead(&introduction, program);
        self.companion.introduction = Some(introduction);
        (self.companion.speaker, self.companion.has_left) = (Some(member), false);
        if self.companion.news.as_ref() != Some(&news) {
            if let Err(error) = KnownCompanion::record(&self.args.run_dir, &news) {
                self.warn(format!("downshift's helper in the script cannot be recorded in the run directory: {error}"));
            }
            self.companion.news = Some(news);
            self.send_companion();
        }
    }

    /// Takes in an introduction of another rank. If it cannot save, rank 0 cannot either.
    pub(super) fn introduce_rank(&mut self, member: Member, introduction: Introduction) {
        if introduction.framework != Framework::Loop || introduction.saves {
            return;
        }
        let reason = introduction.reason.unwrap_or_else(|| "its state cannot be saved".to_owned());
        self.excuse_rank(member, Absence::CannotSave(reason));
        if let (Some(speaker), Some(introduction)) = (self.companion.speaker, self.companion.introduction.clone()) {
            self.introduce_companion(speaker, introduction);
        }
    }

    /// Goes back with a process that trains on from a step before the last one that an earlier process took. A training
    /// after the first one counts on instead, and a companion that counts only its own steps does not know where it is.
    fn go_back(&mut self, introduction: &Introduction) {
        let step = introduction.resumed_from.unwrap_or(0);
        let is_first = self.companion.news.is_none();
        let knows_step = introduction.framework.sees_losses();
        if is_first || !knows_step || self.companion.first_has_ended || step >= self.progress.step {
            return;
        }
        self.progress.go_back(step);
        self.companion.state.go_back(step);
        let samples = introduction.samples.unwrap_or_else(|| self.progress.samples(step));
        self.link.send(&Event::Command { news: CommandNews::WentBack { step, samples } });
    }

    /// Reports a later process that did not resume where it should have.
    fn note_other_resume(&mut self, introduction: &Introduction) {
        let wanted = self.companion.setup.as_ref().map_or(self.hello.resumed_from, SetupFile::resume_step);
        if introduction.resumed_from == wanted {
            return;
        }
        if let Some(wanted) = wanted {
            let actual = introduction.resumed_from.map_or_else(
                || "started from the beginning".to_owned(),
                |step| format!("resumed from step {}", count(step)),
            );
            self.warn(format!("the training {actual} instead of resuming from checkpoint {}", count(wanted)));
        }
    }

    /// Adds to the harness's hello what only the companion knows; the next keeper gets it.
    fn complete_hello(&mut self, introduction: &Introduction) {
        let hello = &mut self.hello;
        hello.parameters = introduction.parameters.unwrap_or(hello.parameters);
        hello.epoch_units = introduction.epoch_units.unwrap_or(hello.epoch_units);
        if let Some(unit) = &introduction.unit {
            hello.unit.clone_from(unit);
        }
        if let Some(steps) = self.progress.total {
            hello.total_steps = steps;
            hello.total_units = introduction.total_units.unwrap_or_else(|| self.progress.samples(steps));
        }
    }

    /// Returns what the companion has reported about itself, and the length of the run that it gave.
    fn companion_events(&self) -> Vec<Event> {
        let Some(news) = &self.companion.news else { return Vec::new() };
        let (steps, units) = (self.hello.total_steps, self.hello.total_units);
        let length = (steps > 0).then_some(CommandNews::Length { steps, units });
        let news = [CommandNews::Companion(Box::new(news.clone()))].into_iter().chain(length);
        news.map(|news| Event::Command { news }).collect()
    }

    pub(super) fn send_companion(&mut self) {
        for event in self.companion_events() {
            self.link.send(&event);
        }
    }

    /// Introduces the companion to a keeper that takes over.
    pub(in crate::harness) fn introduce_companion_again(&mut self) {
        for event in self.companion_events() {
            self.link.send_unkept(&event);
        }
    }
}
