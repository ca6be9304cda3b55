//! The harness's dealings with the companion of its command: the training as it reports it, and the orders to it.

mod absence;
mod introduce;
mod news;
mod output_steps;
mod parts;
mod publish;
mod resume;

use self::output_steps::OutputSteps;
use self::parts::Absence;
pub use self::parts::NotWritten;
pub use self::publish::Published;
use self::publish::Publishing;
use super::companion_link::{CompanionLink, LinkEvent, Member, Role};
use super::container_state::ContainerState;
use super::prepare::context_of;
use super::rank_watch::RankWatch;
use super::resume_point::Chosen;
use super::run_loop::{Harness, Life};
use super::save_timer::SaveTimer;
use super::setup::{self, SetupFile};
use super::stacks::StackWriters;
use super::{HarnessArgs, Purpose};
use crate::config::command::SaveRequest;
use crate::config::units::Every;
use crate::protocol::companion::{
    CompanionLine, CompanionNews, CompanionOrder, Framework, FromCompanion, Introduction,
};
use crate::protocol::worker::{CommandNews, Event, Failed, FailureClass, Level};
use crate::store::checkpoint::state::TrainState;
use std::time::{Duration, Instant};

/// Time that the companion has to save and end, unless the run file gives the script another one.
const SAVING: Duration = Duration::from_mins(1);
/// Time for a command to exit after its companion reported that it ends.
const LEAVING: Duration = Duration::from_secs(15);
/// Time after which a companion that is gone while its command runs is given up. A second training may follow.
const GIVEN_UP: Duration = Duration::from_secs(3);

/// The companion as the harness knows it.
pub struct Companion {
    /// Its connections; none if the command cannot have a companion.
    link: Option<CompanionLink>,
    /// The file that its processes read at their start.
    setup: Option<SetupFile>,
    /// The process that reports the training, as it introduced itself.
    introduction: Option<Introduction>,
    /// The same process.
    speaker: Option<Member>,
    /// The news that the keeper has of it.
    news: Option<CompanionNews>,
    /// The processes that can write their stacks.
    pub(super) stacks: StackWriters,
    /// Where its ranks stand.
    pub(super) ranks: RankWatch,
    /// It ends because it was asked to.
    stopping: bool,
    /// The first training of the command took its last step.
    first_has_ended: bool,
    /// The steps that the output names.
    pub(super) output: OutputSteps,
    /// When the process that reported the training went away.
    gone: Option<Instant>,
    /// It ended by itself.
    has_left: bool,
    /// The state for its containers.
    state: ContainerState,
    timer: SaveTimer,
    publishing: Publishing,
    reported: Reported,
}

/// Problems that are reported once.
#[derive(Debug, Default)]
struct Reported {
    /// A line that was not understood.
    unreadable: bool,
    /// Its absence, and faults that need it.
    missed: bool,
}

impl Companion {
    /// Creates the companion of a start; it has sent nothing yet.
    pub(super) fn new(connection: Option<(CompanionLink, SetupFile)>, state: ContainerState, timer: SaveTimer) -> Self {
        let publishing = Publishing::default();
        let (link, setup) = connection.unzip();
        Self {
            link,
            setup,
            introduction: None,
            speaker: None,
            news: None,
            stacks: StackWriters::default(),
            ranks: RankWatch::default(),
            stopping: false,
            first_has_ended: false,
            output: OutputSteps::default(),
            gone: None,
            has_left: false,
            state,
            timer,
            publishing,
            reported: Reported::default(),
        }
    }

    /// Returns the companion of a command that the harness did not start: there is none.
    pub fn none(args: &HarnessArgs) -> Self {
        Self::new(None, ContainerState::new(base_state(args, None)), SaveTimer::new(Every::Never, args.faults))
    }

    /// Waits for a message.
    pub async fn receive(&mut self) -> LinkEvent {
        match &mut self.link {
            Some(link) => link.receive().await,
            None => std::future::pending().await,
        }
    }

    /// Reports whether it may still say something, or a checkpoint of it is being published.
    pub fn is_busy(&self) -> bool {
        self.publishing.is_busy()
    }

    /// Reports whether a process of it is still connected.
    pub fn is_connected(&self) -> bool {
        self.link.as_ref().is_some_and(CompanionLink::is_connected)
    }

    /// Reports whether the steps that the output counts started over, and none is certain any more.
    pub fn count_is_uncertain(&self) -> bool {
        self.output.is_uncertain
    }

    /// Reports whether it saves checkpoints.
    pub fn has_checkpoints(&self) -> bool {
        self.news.as_ref().is_some_and(|news| news.saves)
    }

    /// Reports whether it keeps a plain loop, whose checkpoints consist of parts.
    pub fn keeps_loop(&self) -> bool {
        self.introduction.as_ref().is_some_and(|found| found.framework == Framework::Loop)
    }

    /// Reports whether it reports every step, with those that were left out.
    pub fn reports_each_step(&self) -> bool {
        self.introduction.as_ref().is_some_and(|found| found.framework.sees_losses())
    }

    /// Returns the introduction of the process that reports the training.
    pub fn introduced(&self) -> Option<&Introduction> {
        self.introduction.as_ref()
    }

    /// Reports whether it ends because it was asked to.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    pub(super) fn order(&self, order: &CompanionOrder) {
        if let Some(link) = &self.link {
            link.order(order);
        }
    }
}

impl Harness {
    /// Handles a message of the companion.
    pub(super) fn handle_companion(&mut self, message: LinkEvent) {
        match message {
            LinkEvent::Introduced { member, introduction, role } => {
                let attempt_dir = context_of(&self.args, None).attempt_dir;
                self.companion.stacks.introduce(member.process, &introduction, &attempt_dir);
                if role != Role::Other {
                    self.companion.publishing.parts.join(member);
                    self.compare_versions(member, &introduction);
                    if let Some(link) = &self.companion.link {
                        self.companion.ranks.introduce(member, &introduction, link.socket());
                    }
                }
                match role {
                    Role::Speaker => self.introduce_companion(member, *introduction),
                    Role::Rank => self.introduce_rank(member, *introduction),
                    Role::Other => {}
                }
            }
            LinkEvent::Message(member, message) => match *message {
                FromCompanion::Event(event) => self.relay(member, event),
                FromCompanion::Line(line) => self.handle_line(member, line),
            },
            LinkEvent::Unreadable if !std::mem::replace(&mut self.companion.reported.unreadable, true) => {
                self.warn(
                    "downshift's helper in the script sent a line that is not understood; it is ignored".to_owned(),
                );
            }
            LinkEvent::Unreadable => {}
            LinkEvent::RefusedSave(staged) => self.discard_staged(&staged),
            LinkEvent::Gone { member, role } => {
                if role != Role::Other {
                    self.excuse_rank(member, Absence::Gone);
                    self.watch_rank_end(member);
                    self.companion.ranks.forget(member);
                }
                self.discard_staged_by(member.process);
                self.companion.stacks.forget(member.process);
                if role == Role::Speaker {
                    self.companion.gone = Some(Instant::now());
                }
            }
            LinkEvent::Ended { member, ended } => self.record_rank_end(member, ended),
            LinkEvent::Remains { member } => self.ranks.forget_leaving(member),
        }
    }

    pub(super) fn warn(&mut self, text: String) {
        self.link.send(&Event::Note { level: Level::Warn, text });
    }

    fn handle_line(&mut self, member: Option<Member>, line: CompanionLine) {
        match line {
            CompanionLine::Staged(staged) => {
                if let Some(member) = member {
                    self.take_part(member, staged.step, Ok(staged));
                }
            }
            CompanionLine::Loaded(loaded) => self.observe_loads(loaded),
            CompanionLine::Wrote(written) => self.adopt_written(written),
            CompanionLine::Stopping { .. } => {
                self.companion.stopping = true;
                if let Life::Saving { until, .. } = &mut self.life {
                    *until = (*until).min(Instant::now() + LEAVING);
                }
            }
            CompanionLine::Ended { step } => {
                self.progress.end_training(step);
                self.keep_only_the_first_training();
            }
            CompanionLine::Left => self.companion.has_left |= member.is_some() && member == self.companion.speaker,
            CompanionLine::Fingerprint(fingerprint) if self.args.purpose == Purpose::Trial => {
                self.link.send(&Event::Command { news: CommandNews::Fingerprint(fingerprint) });
            }
            CompanionLine::Collective(collective) => {
                if let Some(member) = member {
                    self.take_collective(member, collective);
                }
            }
            // Introductions come with the connection that they belong to.
            CompanionLine::Fingerprint(_) | CompanionLine::Companion(_) => {}
        }
    }

    /// Sends an event of the companion on to the keeper.
    fn relay(&mut self, member: Option<Member>, event: Event) {
        if self.life.is_ended_by_us() && matches!(event, Event::Failed(_)) {
            return;
        }
        let Some(event) = self.take_of_rank(member, event) else { return };
        if let (Event::StopRefused { .. }, Life::Saving { .. }) = (&event, &self.life) {
            self.life = Life::Running;
        }
        if let Event::Injected { fault, .. } = &event {
            self.leave_out_fault(fault);
        }
        let event = self.resume_check.renumber(event);
        let own = self.companion.introduction.as_ref();
        if own.is_some_and(|introduction| !introduction.framework.sees_losses()) {
            self.progress.skips.take_told(&event);
        }
        // The steps that the output names are other ones.
        if matches!(event, Event::Step(_) | Event::Skipped(_))
            && own.is_some_and(|introduction| self.trusts_output_over(introduction))
        {
            return;
        }
        for event in self.progress.take_told(event, self.began.elapsed()) {
            self.send(&event);
        }
    }

    /// Reports whether steps are read from the output although a companion counts them. It sees no losses: a loss in the
    /// output belongs to the step that it names, and a skipped or second optimizer step makes the counts differ.
    fn trusts_output_over(&self, introduction: &Introduction) -> bool {
        let output_counts = self.args.purpose == Purpose::Trial || self.companion.output.has_steps;
        output_counts && !introduction.framework.sees_losses()
    }

    /// Reports whether the companion can save now.
    pub(super) fn companion_saves(&self) -> bool {
        let saves = self.companion.introduction.as_ref().is_some_and(|introduction| introduction.saves);
        let speaks = self.companion.link.as_ref().is_some_and(CompanionLink::has_speaker);
        saves && speaks && !self.progress.training_has_ended() && !self.companion.stopping
    }

    /// Orders the companion to save.
    pub(super) fn order_save(&self) {
        self.companion.order(&CompanionOrder::Checkpoint);
    }

    /// Orders the companion to save and to end the command.
    pub(super) fn order_stop(&mut self) {
        self.companion.order(&CompanionOrder::Stop { checkpoint: true });
        let limit = self.args.spec.save.as_ref().map_or(SAVING, SaveRequest::limit);
        self.life = Life::Saving { until: Instant::now() + limit, since_ns: None };
    }

    /// Takes back the order to end the command. A rank knows by the order of the two answers whether its save was in time,
    /// and all ranks hear them in the same order.
    pub(super) fn withdraw_stop(&mut self) {
        self.companion.order(&CompanionOrder::WithdrawStop);
        self.give_up_saves();
    }

    /// Asks for saves that are due, and reports the absence of a companion.
    pub(super) fn tick_companion(&mut self) {
        self.retry_setup();
        self.send_skips();
        let now = self.began.elapsed();
        if self.companion.keeps_loop() && matches!(self.life, Life::Running) && self.companion_saves() {
            let has_trained = self.progress.step > self.hello.resumed_from.unwrap_or(0);
            if has_trained && self.companion.timer.is_due(now, self.progress.epoch()) {
                self.order_save();
            }
        }
        let is_given_up = self.companion.gone.is_some_and(|gone| gone.elapsed() >= GIVEN_UP);
        if is_given_up && !self.progress.training_has_ended() && !self.companion.stopping {
            self.give_up_companion();
        }
        if self.companion.news.is_none() && !self.companion.reported.missed {
            self.note_missing_companion();
        }
    }

    /// Records an event for the next container.
    pub(super) fn record_for_container(&mut self, event: &Event) {
        self.companion.state.record(event, jiff::Timestamp::now().as_millisecond());
    }

    /// Returns the failure of a command whose losses stay NaN.
    pub(super) fn broken_by_nan(&self) -> Failed {
        let (class, step) = (FailureClass::NonFinite, Some(self.progress.step));
        let nan = self.progress.nan_in_a_row;
        let message = format!("the last {nan} losses that the command reported are NaN or infinite");
        Failed { class, message, step, thread: None, injected: false }
    }
}

/// Returns the state that the containers of an attempt begin with.
pub(super) fn base_state(args: &HarnessArgs, chosen: Option<&Chosen>) -> TrainState {
    let before = match chosen {
        Some(Chosen::Container { state, .. }) => TrainState::clone(state),
        _ => TrainState::default(),
    };
    let seed = setup::seed_of(&args.preset.tree(), chosen, setup::seeding_path(args));
    TrainState {
        seed,
        rung: args.rung,
        rung_name: args.rung_name.clone(),
        is_foreign: false,
        attempt: args.attempt,
        ..before
    }
}
