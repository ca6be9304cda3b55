//! The line below the verdict: how well the run learns, by its evaluations. Parts that do not fit are left out, the
//! least important first.

use crate::cockpit::state::State;
use crate::cockpit::state::learning::{LearningSummary, Tracked};
use crate::cockpit::ui;
use crate::cockpit::verdict::format_accuracy;
use crate::format::{UNKNOWN, count, counted, figure};
use crate::protocol::metrics::{ACCURACY, LOSS};
use crate::recipe::learning::Setback;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};

/// Draws the line.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let Some(summary) = state.learning().filter(|_| area.height > 0) else { return };
    let area = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    let room = usize::from(area.width);
    let lines = FORMS.iter().map(|form| (form.left(&summary, theme), form.right(&summary, theme)));
    let fits = |(left, right): &(Line<'_>, Line<'_>)| left.width() + right.width() + GAP.len() <= room;
    let Some((left, right)) = lines.into_iter().find(fits) else { return };
    ui::render_two_sides(frame, area, left, right);
}

/// Space between the parts of the line.
const GAP: &str = "   ";

/// How much of the line is written.
struct Form {
    /// Whole words instead of short ones.
    long: bool,
    /// Number of values with their best so far: the metric of the task comes first.
    bests: usize,
    /// Width of the curve of validation losses.
    curve: u16,
    /// The validation loss beside the metric of the task.
    loss: bool,
}

/// From the widest to the narrowest.
const FORMS: [Form; 10] = [
    Form { long: true, bests: 2, curve: 24, loss: true },
    Form { long: true, bests: 2, curve: 12, loss: true },
    Form { long: true, bests: 1, curve: 12, loss: true },
    Form { long: true, bests: 1, curve: 8, loss: true },
    Form { long: false, bests: 1, curve: 8, loss: true },
    Form { long: false, bests: 1, curve: 4, loss: true },
    Form { long: false, bests: 1, curve: 0, loss: true },
    Form { long: false, bests: 0, curve: 8, loss: true },
    Form { long: false, bests: 0, curve: 0, loss: true },
    Form { long: false, bests: 0, curve: 0, loss: false },
];

impl Form {
    /// Writes the values.
    fn left(&self, summary: &LearningSummary, theme: &Theme) -> Line<'static> {
        let mut line = Line::default();
        let mut bests = self.bests;
        if let Some(task) = &summary.task {
            push_value(&mut line, task, self.long, bests > 0, theme.strong, theme);
            bests = bests.saturating_sub(1);
        }
        let Some(loss) = summary.loss.as_ref().filter(|_| self.loss || summary.task.is_none()) else { return line };
        if !line.spans.is_empty() {
            line.push_span(Span::raw(GAP));
        }
        let rising = matches!(summary.setback, Some(Setback::Rising { .. }));
        push_value(&mut line, loss, self.long, bests > 0, if rising { theme.warn } else { theme.strong }, theme);
        if self.curve > 0 && summary.losses.len() > 2 {
            line.push_span(Span::raw("  "));
            line.spans.extend(ui::small_curve(self.curve, &summary.losses, theme.second).spans);
        }
        line
    }

    /// Says how long ago the best evaluation was.
    fn right(&self, summary: &LearningSummary, theme: &Theme) -> Line<'static> {
        let metric = ui::cut(&summary.ranking, 16);
        let text = match (summary.since_best, self.long) {
            (None, _) => return Line::default(),
            (Some(0), true) => format!("the newest {metric} is the best"),
            (Some(0), false) => format!("newest {metric} is best"),
            (Some(since), true) => format!("best {metric} {} ago", counted(since, "evaluation")),
            (Some(since), false) => format!("best {metric} {} ago", counted(since, "eval")),
        };
        let rises = matches!(summary.setback, Some(Setback::Rising { .. }));
        Line::styled(text, if rises { theme.warn } else { theme.dim })
    }
}

/// Writes a value and its best so far.
fn push_value(line: &mut Line<'static>, value: &Tracked, long: bool, with_best: bool, style: Style, theme: &Theme) {
    let is_loss = value.metric == LOSS;
    let name = if is_loss { "validation loss" } else { value.metric.as_str() };
    let newest = value.newest.map_or_else(|| UNKNOWN.to_owned(), |newest| format_metric(&value.metric, newest));
    line.push_span(Span::styled(format!("{} ", ui::cut(name, 24)), theme.dim));
    line.push_span(Span::styled(newest, style));
    if let Some((best, step)) = value.best.filter(|_| with_best) {
        let word = if is_loss { "lowest" } else { "best" };
        let place = if long { format!(" @ {}", count(step)) } else { String::new() };
        let text = format!(" · {word} {}{place}", format_metric(&value.metric, best));
        line.push_span(Span::styled(text, theme.dim));
    }
}

fn format_metric(metric: &str, value: f64) -> String {
    if metric == ACCURACY { format_accuracy(value) } else { figure(value) }
}
