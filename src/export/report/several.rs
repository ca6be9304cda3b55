//! A page over several runs: a row for each, with its loss in small. It has no script.

use super::Taken;
use super::html::Page;
use super::summary::state_class;
use super::{STYLE, policy};
use crate::protocol::control::RunState;
use crate::redact::Redactor;
use crate::store::run_dir::RunDir;

/// Width and height of a small curve.
const CURVE: (f64, f64) = (110.0, 22.0);

/// The runs of a page.
#[derive(Debug, Clone, Copy)]
pub struct Overview<'a> {
    /// The sentence at the top.
    pub title: &'a str,
    /// The runs, from top to bottom.
    pub rows: &'a [Row],
    /// The run whose secrets are removed, with those of the user.
    pub run: &'a RunDir,
    /// When the page is made.
    pub taken: &'a Taken,
}

/// A run in a row.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: RunState,
    /// Its state in words.
    pub state_text: String,
    /// Why it was set aside, or what happened on the way.
    pub remark: String,
    /// When its first worker started, Unix milliseconds.
    pub started_ms: Option<i64>,
    /// How long its workers lived.
    pub worked: String,
    /// The share of useful time.
    pub useful: String,
    /// Where most of the other time went.
    pub lost: String,
    /// Steps taken.
    pub steps: String,
    /// The best evaluation.
    pub best: String,
    /// Losses along the run, oldest first.
    pub curve: Vec<f64>,
}

impl Row {
    /// Returns its cells as text, for a terminal; the remark stands below them.
    #[must_use]
    pub fn cells(&self) -> Vec<String> {
        let named = |name: &str, value: &str| if value.is_empty() { String::new() } else { format!("{name}{value}") };
        vec![
            self.name.clone(),
            self.state_text.clone(),
            self.worked.clone(),
            named("useful ", &self.useful),
            named("step ", &self.steps),
            self.best.clone(),
        ]
    }
}

/// Writes the page.
#[must_use]
pub fn write_overview(of: &Overview<'_>) -> String {
    let redactor = Redactor::of_run(of.run);
    let mut page = Page::new(&redactor);
    page.markup("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.markup("<meta http-equiv=\"Content-Security-Policy\" content=\"").value(&policy::of(STYLE, ""));
    page.markup("\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.markup("<meta name=\"referrer\" content=\"no-referrer\">\n<link rel=\"icon\" href=\"data:,\">\n");
    page.markup("<title>Runs · downshift</title>\n<style>").markup(STYLE).markup("</style>\n</head>\n<body>\n<main>\n");
    page.markup("<header class=\"head\"><h1>Runs</h1>\n<p class=\"verdict\">").text(of.title);
    page.markup("</p></header>\n<section><div class=\"wide\"><table>\n<tr><th>run</th><th>state</th><th>started</th>");
    page.markup("<th class=\"num\">trained</th><th class=\"num\">useful</th><th>rest, mostly</th>");
    page.markup("<th class=\"num\">steps</th><th>best</th><th>loss</th><th>on the way</th></tr>\n");
    for row in of.rows {
        write_row(&mut page, row, of.taken);
    }
    page.markup("</table></div></section>\n<footer>Made by downshift ").value(env!("CARGO_PKG_VERSION")).markup(" on ");
    page.value(&of.taken.moment(of.taken.now_ms));
    page.markup(". `downshift report RUN` has more about one of them.</footer>\n</main>\n</body>\n</html>\n");
    page.into_html()
}

fn write_row(page: &mut Page<'_>, row: &Row, taken: &Taken) {
    page.markup("<tr>").cell(&row.name).markup("<td class=\"short\">").markup(state_class(row.state));
    page.value(&row.state_text).markup("</span></td><td class=\"time\">");
    page.value(&row.started_ms.map(|ms| taken.moment(ms)).unwrap_or_default()).markup("</td>");
    page.figure(&row.worked).figure(&row.useful).cell(&row.lost).figure(&row.steps).cell(&row.best).markup("<td>");
    write_curve(page, &row.curve);
    page.markup("</td>").cell(&row.remark).markup("</tr>\n");
}

/// Draws a curve between its lowest and its highest value.
fn write_curve(page: &mut Page<'_>, curve: &[f64]) {
    let (low, high) = curve.iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
    let span = if high > low { high - low } else { 1.0 };
    if curve.len() < 2 {
        return;
    }
    let (width, height) = CURVE;
    page.markup("<svg width=\"").number(width).markup("\" height=\"").number(height);
    page.markup("\"><polyline class=\"line\" points=\"");
    for (place, value) in curve.iter().enumerate() {
        let x = width * place as f64 / (curve.len() - 1) as f64;
        page.number(x).markup(",").number(1.0 + (height - 2.0) * (high - value) / span).markup(" ");
    }
    page.markup("\"/></svg>");
}
