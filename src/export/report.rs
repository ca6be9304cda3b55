//! A run as one page for a browser: a single file that loads nothing.
//!
//! ```text
//! store ─▶ Facts ─┬─ curves ───▶ JSON ─▶ assets/report/*.js ─▶ SVG, drawn by the browser
//!                 ├─ sections ─▶ Page: redacts and escapes every text ─▶ HTML
//!                 └─ samples ──▶ pictures as data: URLs
//! ```
//! Its content security policy allows one script and one style sheet, by their hashes, and pictures inside the file.
//! Every part is bounded: curves are reduced to 160 000 columns in all, by the pyramid that keeps extremes; the newest
//! 5 000 lines of the journal, 300 attempts, 200 faults and 12 000 cells of layers are shown, and 6 MiB of pictures. A run of a million steps
//! makes a page of less than 2 MiB.

mod curves;
mod facts;
mod faults;
mod html;
mod journal;
mod ladder;
mod layers;
mod machine;
mod marks;
mod policy;
mod samples;
pub mod several;
mod summary;

use super::ExportError;
use crate::protocol::control::Status;
use crate::redact::Redactor;
use crate::store::run_dir::RunDir;
use curves::Curves;
use facts::Facts;
use html::Page;
use jiff::tz::TimeZone;

const STYLE: &str = include_str!("../../assets/report/report.css");
const SCRIPT: &str =
    concat!(include_str!("../../assets/report/charts.js"), "\n", include_str!("../../assets/report/page.js"));

/// When and where a report is made.
#[derive(Debug, Clone)]
pub struct Taken {
    /// The time, Unix milliseconds.
    pub now_ms: i64,
    /// The time zone of the times in the report.
    pub zone: TimeZone,
}

impl Taken {
    /// Formats a time of the report: `28 Nov 22:04`.
    #[must_use]
    pub fn moment(&self, unix_ms: i64) -> String {
        let time = jiff::Timestamp::from_millisecond(unix_ms).unwrap_or_default();
        time.to_zoned(self.zone.clone()).strftime("%-d %b %H:%M").to_string()
    }
}

/// Writes the report of a run. `status` is the current one, if it is known; else the store's.
///
/// # Errors
/// Returns an error when the store cannot be read.
pub fn write_page(run: &RunDir, status: Option<Status>, taken: &Taken) -> Result<String, ExportError> {
    let mut facts = Facts::read(run, status, taken)?;
    let curves = Curves::of(&mut facts, run)?;
    let redactor = Redactor::of_run(run);
    let mut page = Page::new(&redactor);
    page.markup("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.markup("<meta http-equiv=\"Content-Security-Policy\" content=\"").value(&policy::of(STYLE, SCRIPT));
    page.markup("\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.markup("<meta name=\"referrer\" content=\"no-referrer\">\n<link rel=\"icon\" href=\"data:,\">\n<title>");
    page.text(&facts.name).markup(" · downshift</title>\n<style>").markup(STYLE).markup("</style>\n</head>\n<body>\n");
    let sample_sets = samples::read(run, facts.best_step());
    write_bar(&mut page, &facts, !sample_sets.is_empty());
    page.markup("<main>\n");
    summary::write(&mut page, &facts);
    write_charts(&mut page, &curves);
    ladder::write(&mut page, &facts);
    layers::write(&mut page, &facts.layers);
    samples::write(&mut page, &sample_sets);
    journal::write(&mut page, &facts);
    machine::write(&mut page, &facts);
    write_footer(&mut page, &facts);
    page.markup("</main>\n<div id=\"tip\" role=\"status\" hidden></div>\n");
    page.markup("<script type=\"application/json\" id=\"data\">").json(&curves.as_json()).markup("</script>\n");
    page.markup("<script>").markup(SCRIPT).markup("</script>\n</body>\n</html>\n");
    Ok(page.into_html())
}

fn write_bar(page: &mut Page<'_>, facts: &Facts, samples: bool) {
    page.markup("<div class=\"bar\"><div><span class=\"brand\">downshift</span><nav>");
    page.markup("<a href=\"#curves\">Curves</a><a href=\"#ladder\">Ladder</a>");
    if !facts.causes.is_empty() {
        page.markup("<a href=\"#faults\">Faults</a>");
    }
    if facts.layers.rows_until(None).next().is_some() {
        page.markup("<a href=\"#layers\">Layers</a>");
    }
    if samples {
        page.markup("<a href=\"#samples\">Samples</a>");
    }
    page.markup("<a href=\"#journal\">Journal</a><a href=\"#checkpoints\">Checkpoints</a>");
    page.markup("<a href=\"#machine\">Machine</a><a href=\"#config\">Config</a></nav>");
    page.markup("<button id=\"theme\" type=\"button\">Light / dark</button></div></div>\n");
}

fn write_charts(page: &mut Page<'_>, curves: &Curves) {
    page.markup("<section id=\"curves\">\n<h2>Curves</h2>\n");
    if curves.is_empty() {
        page.markup("<p class=\"empty\">No step has been recorded.</p>\n");
    }
    page.markup("<noscript><p class=\"note\">The curves need JavaScript; everything else is below.</p></noscript>\n");
    page.markup(if curves.is_empty() { "<div hidden>" } else { "<div>" });
    page.markup(concat!(
        "<div class=\"controls\"><label>smoothing <select id=\"smoothing\"><option value=\"0\">none</option>",
        "<option value=\"0.6\">0.60</option><option value=\"0.9\" selected>0.90</option>",
        "<option value=\"0.97\">0.97</option><option value=\"0.99\">0.99</option></select></label>",
        "<label>scale <select id=\"scale\"><option value=\"auto\" selected>automatic</option>",
        "<option value=\"linear\">linear</option><option value=\"log\">logarithmic</option></select></label>",
        "<input id=\"metric\" type=\"search\" placeholder=\"find a metric\" aria-label=\"find a metric\">",
        "<span class=\"grow\"></span><span>drag to zoom</span>",
        "<button id=\"whole\" type=\"button\" disabled>Whole run</button></div>\n",
        "<div id=\"charts\"></div>\n<ul class=\"legend\">",
        "<li><svg><path class=\"line\" d=\"M0 6h18\"/></svg>smoothed</li>",
        "<li><svg><rect class=\"band\" y=\"1\" width=\"18\" height=\"10\"/></svg>measured</li>",
        "<li><svg><path class=\"evaluation\" d=\"M9 1l5 5l-5 5l-5 -5Z\"/></svg>evaluation</li>",
        "<li><svg><path class=\"skip\" d=\"M5 3h8l-4 7Z\"/></svg>step not finite</li>",
        "<li><svg><path class=\"mark shift\" d=\"M9 0v12\"/></svg>shift, lower learning rate</li>",
        "<li><svg><path class=\"mark restart\" d=\"M9 0v12\"/></svg>restart</li>",
        "<li><svg><path class=\"mark fault\" d=\"M9 0v12\"/></svg>after a fault</li>",
        "<li><svg><circle class=\"checkpoint\" cx=\"9\" cy=\"6\" r=\"3\"/></svg>checkpoint</li></ul>\n",
    ));
    if let Some(steps) = curves.steps_per_point() {
        page.markup("<p class=\"note\">Each point covers ").value(&steps);
        page.markup(" steps: their mean, smallest and largest value.</p>\n");
    }
    page.markup("</div>\n</section>\n");
}

fn write_footer(page: &mut Page<'_>, facts: &Facts) {
    page.markup("<footer>Made by downshift ").value(env!("CARGO_PKG_VERSION")).markup(" on ");
    page.value(&facts.times.moment(facts.times.now_ms)).markup(". Times are UTC");
    page.value(&facts.times.offset()).markup(". Secrets and the paths of the user's home are removed.</footer>\n");
}
