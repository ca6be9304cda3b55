//! The end of an attempt: the reason, how long its processes get, and the last events for the keeper. Pure.

use super::progress::CommandProgress;
use crate::process_tree::Grace;
use crate::protocol::exit::Exit;
use crate::protocol::exit_code::{FINISHED, STOPPED};
use crate::protocol::worker::{CommandNews, DoneReason, Event, Failed, FailureClass};
use std::time::Duration;

/// Why the attempt ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// The command has exited on its own.
    Exited,
    /// The keeper asked it to stop.
    Asked,
    /// A signal told the harness to end.
    Signalled,
    /// A rank has failed, so the harness ends the others.
    RankFailed,
    /// The harness ends it: its losses are NaN, or a node is lost.
    Broken(Failed),
}

impl Reason {
    /// Reports whether the command failed on its own: then the first process of it that failed is the cause.
    #[must_use]
    pub fn is_failure_of_command(&self) -> bool {
        matches!(self, Self::Exited | Self::RankFailed)
    }

    /// Returns how long the processes get to exit. The sum stays well below five seconds, after which a stopped run
    /// must be gone.
    #[must_use]
    pub fn grace(&self) -> Grace {
        let ms = Duration::from_millis;
        let (command, others) = match self {
            // Only processes that outlived the command are left.
            Self::Exited => (Duration::ZERO, ms(1000)),
            // The launcher had its time to end them.
            Self::RankFailed => (ms(250), ms(250)),
            Self::Asked | Self::Broken(_) => (ms(2000), ms(750)),
            // The keeper sends this before it kills, or the machine shuts down.
            Self::Signalled => (ms(1500), ms(500)),
        };
        Grace { command, others, kill: Duration::from_secs(30) }
    }
}

/// Reports whether the command took all its steps. The exit code of an adopted command is unknown: it finished if its
/// last step is known and was seen.
fn has_finished(exit: Exit, progress: &CommandProgress) -> bool {
    let is_unknown = exit.code.is_none() && exit.signal.is_none();
    progress.is_complete() && (exit.code == Some(0) || is_unknown && progress.total.is_some())
}

/// Returns the last events of an attempt and the exit code of the harness. `pid` and `exit` are those of the process that is
/// the cause; `failed` is its report. `log_end` is the length of worker.log when the harness began to end the command.
#[must_use]
pub fn conclude(
    reason: &Reason,
    pid: u32,
    exit: Exit,
    progress: &CommandProgress,
    failed: Option<Failed>,
    log_end: Option<u64>,
) -> (Vec<Event>, u8) {
    // One that was asked to stop may be too near its end to hear it.
    let has_finished = match reason {
        Reason::Exited => has_finished(exit, progress),
        Reason::Asked => exit.code == Some(0) && progress.has_taken_last_step(),
        Reason::Signalled | Reason::RankFailed | Reason::Broken(_) => false,
    };
    let code = exit.code.or(has_finished.then_some(0));
    let news = CommandNews::Ended { pid, code, signal: exit.signal, log_end };
    let mut events = vec![Event::Command { news }];
    let step = progress.step;
    let code = match reason {
        Reason::Broken(failed) => {
            events.push(Event::Failed(failed.clone()));
            failed.class.exit_code()
        }
        _ if has_finished => {
            events.push(Event::Done { reason: DoneReason::Finished, step });
            FINISHED
        }
        Reason::Asked => {
            events.push(Event::Done { reason: DoneReason::Stopped, step });
            STOPPED
        }
        Reason::Exited | Reason::RankFailed => {
            let code = failed.as_ref().map_or(FailureClass::Unknown, |failed| failed.class).exit_code();
            events.extend(failed.map(Event::Failed));
            code
        }
        Reason::Signalled => FailureClass::Unknown.exit_code(),
    };
    (events, code)
}

#[cfg(test)]
mod tests {
    use super::{Reason, conclude};
    use crate::harness::progress::CommandProgress;
    use crate::log_metrics::Reading;
    use crate::protocol::exit::Exit;
    use crate::protocol::worker::{DoneReason, Event, Failed, FailureClass};
    use std::time::Duration;

    #[test]
    fn only_a_command_that_took_its_last_step_has_finished() {
        let at = |step, total| {
            let mut progress = CommandProgress::new(0, 1, 1, total);
            for step in 1..=step {
                let reading = Reading { step: Some(step), ..Reading::default() };
                progress.take(&reading, Duration::ZERO);
            }
            progress
        };
        let ends = |reason: &Reason, exit, progress: &CommandProgress| {
            let (events, code) = conclude(reason, 7, exit, progress, None, None);
            let done = events.iter().find_map(|event| match event {
                Event::Done { reason, .. } => Some(*reason),
                _ => None,
            });
            (done, code)
        };
        let fine = Exit::with_code(0);
        assert_eq!(ends(&Reason::Exited, fine, &at(50, None)), (Some(DoneReason::Finished), 0));
        assert_eq!(ends(&Reason::Exited, fine, &at(99, Some(100))), (Some(DoneReason::Finished), 0));
        assert_eq!(ends(&Reason::Exited, fine, &at(50, Some(100))), (None, 1), "an early exit");
        let unknown = Exit::of_command(None, None);
        assert_eq!(ends(&Reason::Exited, unknown, &at(99, Some(100))), (Some(DoneReason::Finished), 0));
        assert_eq!(
            ends(&Reason::Exited, unknown, &at(99, None)),
            (None, 1),
            "the exit code and the last step are unknown"
        );
        assert_eq!(ends(&Reason::Exited, Exit::by_signal(9), &at(100, Some(100))), (None, 1));
        assert_eq!(ends(&Reason::Asked, Exit::by_signal(15), &at(5, None)), (Some(DoneReason::Stopped), 3));
        assert_eq!(ends(&Reason::Asked, fine, &at(100, Some(100))), (Some(DoneReason::Finished), 0), "it was faster");
        assert_eq!(
            ends(&Reason::Asked, fine, &at(99, Some(100))),
            (Some(DoneReason::Stopped), 3),
            "it saved and ended"
        );
        assert_eq!(ends(&Reason::Asked, fine, &at(99, None)), (Some(DoneReason::Stopped), 3));
        assert_eq!(ends(&Reason::Signalled, Exit::by_signal(15), &at(5, None)), (None, 1));
        let (class, message) = (FailureClass::NonFinite, "NaN".to_owned());
        let failed = Failed { class, message, step: None, thread: None, injected: false };
        let broken = Reason::Broken(failed.clone());
        assert_eq!(ends(&broken, Exit::by_signal(15), &at(5, None)), (None, 12));
        assert_eq!(ends(&Reason::RankFailed, Exit::by_signal(9), &at(100, Some(100))), (None, 1));
        let failed = Failed { class: FailureClass::DeviceOutOfMemory, message: "rank 1".to_owned(), ..failed };
        let (events, code) = conclude(&Reason::Exited, 7, Exit::with_code(1), &at(5, None), Some(failed.clone()), None);
        assert_eq!((events.last(), code), (Some(&Event::Failed(failed)), 10), "the first rank's report");
    }

    #[test]
    fn no_grace_reaches_the_five_seconds() {
        for reason in [Reason::Exited, Reason::Asked, Reason::Signalled, Reason::RankFailed] {
            let grace = reason.grace();
            assert!(grace.command + grace.others < Duration::from_secs(4), "{reason:?}");
        }
    }
}
