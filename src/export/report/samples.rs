//! The samples of a report: what the model did at its newest, best and first evaluation. Files that only match a
//! pattern of the run file are left out: they may lie anywhere, and a run from elsewhere would choose them.

use super::html::Page;
use crate::format::{count, figure, percent};
use crate::protocol::samples::{Confusion, Sample};
use crate::store::run_dir::RunDir;
use crate::store::samples::{self, StoredSample, StoredSet, WHOLE_TEXT};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fs;
use std::path::Path;

/// Largest picture, and all pictures together, in bytes.
const PICTURE: u64 = 512 << 10;
const PICTURES: usize = 6 << 20;
/// Samples of one set, characters of a text, and classes of a confusion matrix.
const SAMPLES: usize = 24;
const TEXT: usize = 4000;
const CLASSES: usize = 32;

/// A set of samples with its pictures.
pub struct ShownSet {
    title: &'static str,
    step: u64,
    samples: Vec<ShownSample>,
    confusion: Option<Confusion>,
}

/// A sample with its picture, if it can be shown.
struct ShownSample {
    sample: Sample,
    picture: Option<Picture>,
}

/// A picture inside the page.
struct Picture {
    kind: &'static str,
    data: String,
}

/// Reads the newest, the best and the first set of samples of a run.
pub fn read(run: &RunDir, best: Option<u64>) -> Vec<ShownSet> {
    let steps = samples::steps(run.path());
    let best = best.filter(|best| steps.contains(best));
    let wanted = [("Newest", steps.first().copied()), ("Best", best), ("First", steps.last().copied())];
    let mut room = PICTURES;
    let mut shown: Vec<ShownSet> = Vec::new();
    for (title, step) in wanted.into_iter().filter_map(|(title, step)| Some((title, step?))) {
        if shown.iter().any(|set| set.step == step) {
            continue;
        }
        if let Ok(StoredSet { samples, confusion, .. }) = samples::read(run.path(), step, WHOLE_TEXT) {
            let samples = samples.into_iter().take(SAMPLES).map(|sample| show_sample(sample, &mut room)).collect();
            shown.push(ShownSet { title, step, samples, confusion });
        }
    }
    shown
}

fn show_sample(StoredSample { sample, picture }: StoredSample, room: &mut usize) -> ShownSample {
    let small = |path: &Path| fs::symlink_metadata(path).is_ok_and(|about| about.is_file() && about.len() <= PICTURE);
    let bytes = picture.filter(|path| small(path)).and_then(|path| samples::read_picture(&path).ok());
    ShownSample { sample, picture: bytes.and_then(|bytes| embed_picture(&bytes, room)) }
}

/// Embeds a picture of a known format, while there is room for it.
fn embed_picture(bytes: &[u8], room: &mut usize) -> Option<Picture> {
    let kind = match bytes {
        [0x89, b'P', b'N', b'G', ..] => "data:image/png;base64,",
        [0xff, 0xd8, 0xff, ..] => "data:image/jpeg;base64,",
        [b'G', b'I', b'F', b'8', ..] => "data:image/gif;base64,",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "data:image/webp;base64,",
        _ => return None,
    };
    let data = STANDARD.encode(bytes);
    *room = room.checked_sub(data.len())?;
    Some(Picture { kind, data })
}

/// Writes the samples, if there are any.
pub fn write(page: &mut Page<'_>, sets: &[ShownSet]) {
    if sets.is_empty() {
        return;
    }
    page.markup("<section id=\"samples\">\n<h2>Samples</h2>\n");
    for shown in sets {
        page.markup("<h3>").markup(shown.title).markup(", step ").value(&count(shown.step)).markup("</h3>\n");
        let has_pictures = shown.samples.iter().any(|sample| sample.picture.is_some());
        page.markup(if has_pictures { "<div class=\"samples\">\n" } else { "<div class=\"samples texts\">\n" });
        for ShownSample { sample, picture } in &shown.samples {
            write_sample(page, sample, picture.as_ref());
        }
        page.markup("</div>\n");
        if let Some(confusion) = &shown.confusion {
            write_confusion(page, confusion);
        }
    }
    page.markup("</section>\n");
}

fn write_sample(page: &mut Page<'_>, sample: &Sample, picture: Option<&Picture>) {
    page.markup("<div class=\"sample\">");
    if let Some(picture) = picture {
        page.markup("<img alt=\"\" src=\"").markup(picture.kind).value(&picture.data).markup("\">");
    }
    if let Some(prompt) = &sample.prompt {
        page.markup("<p class=\"dim\">").text(prompt).markup("</p>");
    }
    if let Some(text) = &sample.text {
        page.markup("<pre>").lines(&text.chars().take(TEXT).collect::<String>()).markup("</pre>");
    }
    if let Some(answer) = &sample.answer {
        let wrong = sample.label.as_ref().is_some_and(|label| label != answer);
        page.markup(if wrong { "<p class=\"wrong\">" } else { "<p>" }).text(answer);
        page.value(&sample.confidence.map(|share| format!(" {}", percent(share.into()))).unwrap_or_default());
        page.markup("</p>");
    }
    if let Some(label) = &sample.label {
        page.markup("<p class=\"dim\">truth ").text(label).markup("</p>");
    }
    let loss = sample.loss.map(|loss| format!("loss {}", figure(loss.into())));
    let rest: Vec<&str> = sample.name.as_deref().into_iter().chain(loss.as_deref()).collect();
    if !rest.is_empty() {
        page.markup("<p class=\"dim\">").text(&rest.join(" · ")).markup("</p>");
    }
    page.markup("</div>\n");
}

/// Writes a confusion matrix: a row for each truth, a column for each answer.
fn write_confusion(page: &mut Page<'_>, Confusion { classes, counts }: &Confusion) {
    if classes.len() > CLASSES || counts.len() != classes.len() {
        return;
    }
    page.markup("<div class=\"wide\"><table class=\"confusion\"><thead><tr><th>truth ↓ answer →</th>");
    for class in classes {
        page.markup("<th>").text(class).markup("</th>");
    }
    page.markup("</tr></thead>\n<tbody>\n");
    for (truth, (class, row)) in classes.iter().zip(counts).enumerate() {
        page.markup("<tr><th>").text(class).markup("</th>");
        for (answer, value) in row.iter().take(CLASSES).enumerate() {
            page.markup(match (*value > 0, truth == answer) {
                (false, _) => "<td>",
                (true, true) => "<td class=\"hit\">",
                (true, false) => "<td class=\"miss\">",
            });
            page.value(&if *value > 0 { count(*value) } else { "·".to_owned() }).markup("</td>");
        }
        page.markup("</tr>\n");
    }
    page.markup("</tbody></table></div>\n");
}
