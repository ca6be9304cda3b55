//! The layers of a report: a heat map for each measure, over the evaluations, and a table of the last one.

use super::html::Page;
use crate::format::{UNKNOWN, count};
use crate::protocol::control::LayerRow;
use crate::protocol::samples::Layer;
use crate::series::layers::{LayerHistory, Measure};
use std::collections::HashMap;

/// Cells of all heat maps together, columns of one, and layers in a map and in the table.
const CELLS: usize = 12_000;
const COLUMNS: usize = 120;
const LAYERS: usize = 200;
/// Height of a layer in a heat map, in pixels; the style sheet gives its name the same.
const ROW: f64 = 18.0;
/// Classes of the shades, from low to high.
const SHADES: [&str; 8] = ["h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7"];
/// Class of a layer whose gradient was not finite.
const BAD: &str = "bad";

/// Writes the layers, if any evaluation measured them.
pub fn write(page: &mut Page<'_>, history: &LayerHistory) {
    let all: Vec<&LayerRow> = history.rows_until(None).collect();
    let Some(last) = all.last() else { return };
    let layers = &history.names()[..history.names().len().min(LAYERS)];
    page.markup("<section id=\"layers\">\n<h2>Layers</h2>\n");
    if let Some(first) = &history.first_non_finite {
        page.markup("<p class=\"bad-layer\">First not finite: ").text(&first.parameter).markup(" at step ");
        page.value(&count(first.step)).markup("</p>\n");
    }
    let hidden = history.names().len() - layers.len();
    if hidden > 0 {
        page.markup("<p class=\"note\">").value(&count(hidden as u64)).markup(" more layers are not shown.</p>\n");
    }
    let shown = spread(&all, (CELLS / (Measure::ALL.len() * layers.len().max(1))).clamp(1, COLUMNS));
    let columns: Vec<Column<'_>> = shown.into_iter().map(Column::of).collect();
    for measure in Measure::ALL {
        write_map(page, layers, &columns, measure);
    }
    write_table(page, layers, &Column::of(last));
    page.markup("</section>\n");
}

/// Returns `wanted` of the evaluations at even distances, the first and the last among them.
fn spread<'a>(all: &[&'a LayerRow], wanted: usize) -> Vec<&'a LayerRow> {
    if all.len() <= wanted {
        return all.to_vec();
    }
    let last = all.len() - 1;
    (1..=wanted).map(|place| all[if wanted > 1 { (place - 1) * last / (wanted - 1) } else { last }]).collect()
}

/// An evaluation in a heat map.
struct Column<'a> {
    step: u64,
    layers: HashMap<&'a str, &'a Layer>,
}

impl<'a> Column<'a> {
    fn of(row: &'a LayerRow) -> Self {
        let layers = row.stats.layers.iter().map(|layer| (layer.name.as_str(), layer)).collect();
        Self { step: row.stats.step, layers }
    }
}

/// Draws one measure: a row for each layer, a column for each evaluation.
fn write_map(page: &mut Page<'_>, layers: &[String], columns: &[Column<'_>], measure: Measure) {
    let measured = || columns.iter().flat_map(|column| column.layers.values().copied());
    if !measured().any(|layer| measure.value(layer).is_some()) {
        return;
    }
    let Some((scale, low, high)) = measure.scale(measure.extent(measured())) else { return };
    page.markup("<h3>").value(measure.name()).markup("</h3>\n<div class=\"heat\"><ol>");
    for name in layers {
        page.markup("<li title=\"").text(name).markup("\"><bdi>").text(name).markup("</bdi></li>");
    }
    page.markup("</ol>\n<svg role=\"img\" preserveAspectRatio=\"none\" aria-label=\"").value(measure.name());
    page.markup(" by layer over steps\" height=\"").number(ROW * layers.len() as f64);
    page.markup("\" viewBox=\"0 0 ").number(columns.len() as f64).markup(" ").number(layers.len() as f64);
    page.markup("\">\n");
    for (row, name) in layers.iter().enumerate() {
        let shade = |column: &Column<'_>| {
            let layer = column.layers.get(name.as_str())?;
            if layer.non_finite {
                return Some(BAD);
            }
            let share = scale.share(measure.value(layer)?);
            Some(SHADES[(share * (SHADES.len() - 1) as f64).round() as usize])
        };
        let shades: Vec<Option<&'static str>> = columns.iter().map(shade).collect();
        write_cells(page, row, &shades);
    }
    page.markup("</svg></div>\n<p class=\"heat-foot\"><span>steps ");
    let ends = columns.first().zip(columns.last()).map(|(first, last)| (first.step, last.step)).unwrap_or_default();
    page.value(&format!("{} to {}", count(ends.0), count(ends.1))).markup("</span><span>");
    page.value(&measure.format_value(low)).markup(" <svg viewBox=\"0 0 8 1\" preserveAspectRatio=\"none\">");
    write_cells(page, 0, &SHADES.map(Some));
    page.markup("</svg> ").value(&measure.format_value(high));
    page.markup(if scale.is_log() { ", logarithmic</span></p>\n" } else { "</span></p>\n" });
}

/// Draws the cells of a row; neighbours of the same shade are one rectangle.
fn write_cells(page: &mut Page<'_>, row: usize, shades: &[Option<&'static str>]) {
    let mut x = 0;
    for run in shades.chunk_by(|one, other| one == other) {
        if let Some(shade) = run[0] {
            page.markup("<rect class=\"").markup(shade).markup("\" x=\"").value(&x.to_string());
            page.markup("\" y=\"").value(&row.to_string()).markup("\" width=\"").value(&run.len().to_string());
            page.markup("\" height=\"1\"/>");
        }
        x += run.len();
    }
    page.markup("\n");
}

/// Writes the values of the last evaluation.
fn write_table(page: &mut Page<'_>, layers: &[String], last: &Column<'_>) {
    page.markup("<h3>At step ").value(&count(last.step)).markup("</h3>\n<div class=\"wide\"><table><thead><tr>");
    page.markup("<th>Layer</th>");
    for measure in Measure::ALL {
        page.markup("<th class=\"num\">").value(measure.name()).markup("</th>");
    }
    page.markup("</tr></thead>\n<tbody>\n");
    for (name, layer) in layers.iter().filter_map(|name| Some((name, last.layers.get(name.as_str())?))) {
        page.markup(if layer.non_finite { "<tr><td class=\"danger\">" } else { "<tr><td>" });
        page.text(name).markup("</td>");
        for measure in Measure::ALL {
            let value = measure.value(layer).map(|value| measure.format_value(value));
            page.figure(&value.unwrap_or_else(|| UNKNOWN.to_owned()));
        }
        page.markup("</tr>\n");
    }
    page.markup("</tbody></table></div>\n");
}
