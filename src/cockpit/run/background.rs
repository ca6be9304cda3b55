//! Work on blocking threads: reads, pictures, changes of other runs. Each result arrives as a message.

use super::Cockpit;
use crate::cockpit::chart_picture::ChartPicture;
use crate::cockpit::clipboard;
use crate::cockpit::state::facts::History;
use crate::cockpit::surface::Surface;
use crate::cockpit::update::{Effect, HistoryBox, Msg, OtherBox};
use crate::store::labels::LabelEdit;
use crate::store::run_dir::RunDir;
use crate::theme::Theme;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl<S: Surface> Cockpit<S> {
    /// Starts the work of an effect whose result arrives later.
    pub(super) fn start_in_background(&self, effect: Effect) {
        match effect {
            Effect::EditLabels(name, edit) => self.label_run(name, edit),
            Effect::MeasureRun(name) => self.measure_run(name),
            Effect::DeleteRun(name) => self.delete_run(name),
            Effect::ChangeQueue(name, change) => {
                let queue = Arc::clone(&self.sources.changes.queue);
                self.spawn_read(move || Msg::RunChanged { change: queue(&name, change), name });
            }
            Effect::WriteChart(picture) => self.write_chart(picture),
            Effect::LoadHistory(asked) => self.load_history(asked),
            Effect::LoadStatus => {
                let source = Arc::clone(&self.sources.status);
                self.spawn_read(move || Msg::StoredStatus(source().map(Box::new)));
            }
            Effect::LoadRows(steps) => {
                let source = Arc::clone(&self.sources.rows);
                self.spawn_read(move || Msg::Rows(source(&steps)));
            }
            Effect::LoadMoment(at_ms) => {
                let source = Arc::clone(&self.sources.moment);
                self.spawn_read(move || Msg::Moment { at_ms, history: source(at_ms).map(boxed_history) });
            }
            Effect::ListRuns => {
                let source = Arc::clone(&self.sources.others.list);
                self.spawn_read(move || Msg::Runs(source()));
            }
            Effect::LoadOther(name, with_curve) => {
                let source = Arc::clone(&self.sources.others.read);
                self.spawn_read(move || {
                    let run = source(&name, with_curve).map(|run| OtherBox(Box::new(run)));
                    Msg::Other { name, run }
                });
            }
            Effect::ListSamples => {
                let source = Arc::clone(&self.sources.samples.list);
                self.spawn_read(move || Msg::SampleSets(source()));
            }
            Effect::LoadSamples(id) => {
                let source = Arc::clone(&self.sources.samples.read);
                self.spawn_read(move || Msg::SampleSet { id, set: source(id).map(Arc::new) });
            }
            Effect::LoadPicture(order) => {
                let source = Arc::clone(&self.sources.samples.picture);
                self.spawn_read(move || Msg::Picture { picture: source(&order), order });
            }
            Effect::LoadLayers => {
                let source = Arc::clone(&self.sources.samples.layers);
                self.spawn_read(move || Msg::LayerHistory(source()));
            }
            Effect::CheckRunDir => {
                let run_dir = self.run_dir.clone();
                self.spawn_read(move || Msg::RunDirExists(run_dir.is_dir()));
            }
            // The screen, the keeper and the log are served at once.
            _ => {}
        }
    }

    pub(super) fn copy_by_tmux(&self, text: String) {
        self.spawn_read(|| match clipboard::load_tmux_buffer(&text) {
            Ok(()) => Msg::Copied(text),
            Err(_) => Msg::TmuxRefused(text),
        });
    }

    fn load_history(&self, asked: u64) {
        let source = Arc::clone(&self.sources.history);
        self.spawn_read(move || Msg::History { asked, history: source().map(boxed_history) });
    }

    /// Writes a chart in the colours of the current theme, as it ships: this terminal may have fewer.
    fn write_chart(&self, picture: ChartPicture) {
        let current = self.themes.get(self.state.screen.theme % self.themes.len().max(1)).cloned();
        let run_dir = self.run_dir.clone();
        self.spawn_read(move || {
            let shipped = Theme::shipped().unwrap_or_default().into_iter();
            let named = |theme: &Theme| current.as_ref().is_some_and(|current| current.name == theme.name);
            let theme = shipped.into_iter().find(named).or_else(|| current.clone()).unwrap_or_else(Theme::plain);
            let written = RunDir::open(&run_dir).map_err(|error| error.to_string());
            let written = written.and_then(|run| picture.write(&run, &theme).map_err(|error| error.to_string()));
            let here = std::env::current_dir().unwrap_or_default();
            let relative = |path: PathBuf| path.strip_prefix(&here).map(Path::to_owned).unwrap_or(path);
            written.map_or_else(Msg::ChartRefused, |path| Msg::ChartWritten(relative(path)))
        });
    }

    fn label_run(&self, name: String, edit: LabelEdit) {
        let label = Arc::clone(&self.sources.changes.label);
        self.spawn_read(move || Msg::RunChanged { change: label(&name, &edit), name });
    }

    fn measure_run(&self, name: String) {
        let measure = Arc::clone(&self.sources.changes.measure);
        self.spawn_read(move || Msg::RunMeasured { size: measure(&name), name });
    }

    fn delete_run(&self, name: String) {
        let delete = Arc::clone(&self.sources.changes.delete);
        self.spawn_read(move || Msg::RunChanged { change: delete(&name), name });
    }

    /// Runs work on a blocking thread; its result arrives as a message.
    fn spawn_read(&self, work: impl FnOnce() -> Msg + Send + 'static) {
        let inbox = self.inbox.clone();
        tokio::task::spawn_blocking(move || drop(inbox.blocking_send(work())));
    }
}

fn boxed_history(history: History) -> HistoryBox {
    HistoryBox(Box::new(history))
}
