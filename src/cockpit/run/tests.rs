use super::{Changes, Cockpit, Others, Sources};
use crate::cockpit::fixture;
use crate::cockpit::log_tail::LogTail;
use crate::cockpit::pictures::PictureError;
use crate::cockpit::read_error::ReadError;
use crate::cockpit::readers::samples::SampleSources;
use crate::cockpit::state::State;
use crate::cockpit::surface::Surface;
use crate::cockpit::update::{Msg, RunChange};
use crate::protocol::control::{Request, RunState, Update};
use crate::store::removal::RunSize;
use crate::theme::Theme;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Reports the step each frame showed.
struct Frames(mpsc::UnboundedSender<(u64, usize)>);

impl Surface for Frames {
    fn draw(&mut self, state: &State, _: &Theme) -> io::Result<()> {
        let step = state.status().map_or(0, |status| status.step);
        let _ = self.0.send((step, state.facts.series.len()));
        Ok(())
    }

    fn repaint(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn ring_bell(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn copy_text(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn suspend(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn status(step: u64) -> Msg {
    Msg::Keeper(Update::Status(Box::new(fixture::status(RunState::Training, step))))
}

#[tokio::test]
async fn it_draws_updates_reads_the_store_sends_requests_and_closes() {
    let folder = tempfile::tempdir().unwrap();
    let (inbox, messages) = mpsc::channel(64);
    let (ask, mut requests) = mpsc::channel(64);
    let (frames, mut drawn) = mpsc::unbounded_channel();
    let cockpit = Cockpit {
        state: State::new(fixture::ladder(), crate::config::knobs::Watch::default(), (80, 24), 0, 0),
        screen: Frames(frames),
        themes: Theme::shipped().unwrap(),
        messages,
        inbox: inbox.clone(),
        ask,
        log: LogTail::new(folder.path().join("worker.log")),
        run_dir: folder.path().to_owned(),
        sources: Sources {
            history: Arc::new(|| Ok(fixture::history(50, false))),
            status: Arc::new(|| None),
            rows: Arc::new(|_| Vec::new()),
            moment: Arc::new(|_| Err(ReadError::Run("not here".to_owned()))),
            others: Others {
                list: Arc::new(Vec::new),
                read: Arc::new(|_, _| Err(ReadError::Run("not here".to_owned()))),
            },
            samples: SampleSources {
                list: Arc::new(Vec::new),
                read: Arc::new(|_| Err(ReadError::Run("not here".to_owned()))),
                picture: Arc::new(|_| Err(PictureError::Unread("not here".to_owned()))),
                layers: Arc::new(|| Err(ReadError::Run("not here".to_owned()))),
            },
            changes: Changes {
                label: Arc::new(|_, _| RunChange::Labelled),
                measure: Arc::new(|_| RunSize::default()),
                delete: Arc::new(|_| RunChange::Labelled),
                queue: Arc::new(|_, _| RunChange::Labelled),
            },
        },
    };
    let cockpit = tokio::spawn(cockpit.run());
    inbox.send(Msg::KeeperBack).await.unwrap();
    for step in 1..=500 {
        inbox.send(status(step)).await.unwrap();
    }
    let mut frames = 0;
    let limit = Duration::from_secs(10);
    while timeout(limit, drawn.recv()).await.unwrap().unwrap() != (500, 50) {
        frames += 1;
    }
    assert!(frames < 200, "{frames} frames for 500 messages");
    inbox.send(Msg::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::NONE))).await.unwrap();
    assert_eq!(timeout(limit, requests.recv()).await.unwrap(), Some(Request::Checkpoint));
    inbox.send(Msg::Key(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE))).await.unwrap();
    let outcome = timeout(limit, cockpit).await.unwrap().unwrap().unwrap();
    assert!(outcome.keeper_answers && outcome.status.is_some_and(|status| status.step == 500));
}
