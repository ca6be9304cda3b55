//! The outputs of a run outside the cockpit: plots, event files, a tmux status line. The real program on a
//! generated run.
#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

#[path = "../../examples/long_run/make.rs"]
mod make;

use crate::helper::Place;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const STEPS: u64 = 5000;

fn place() -> Place {
    let place = Place::real();
    make::long_run(&place.dir.path().join("runs"), "made", STEPS).unwrap();
    place
}

#[test]
fn plots_are_written_as_svg_and_png() {
    let place = place();
    for theme in ["light", "dark"] {
        place.succeed(&["plot", "--out", "a.svg", "--metric", "loss,lr,eval", "--theme", theme]);
        let svg = fs::read_to_string(place.dir.path().join("a.svg")).unwrap();
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "NaN or infinity in a picture");
        for word in ["Loss", "Learning rate", "Validation loss", "made-", ">full<", "best "] {
            assert!(svg.contains(word), "{word} in {theme}");
        }
        // At least the skips of the streak at the midpoint.
        assert!(svg.matches("l-3.5 6Z").count() > 0);
    }
    place.succeed(&["plot", "made", "made", "--out", "b.png", "--log", "--size", "600x300", "--scale", "1"]);
    let png = fs::read(place.dir.path().join("b.png")).unwrap();
    assert_eq!((&png[..8], &png[16..24]), (&b"\x89PNG\r\n\x1a\n"[..], &[0, 0, 2, 88, 0, 0, 1, 44][..]));
    let refused = |words: &[&str], says: &str| {
        let out = place.output(words);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && text.contains(says), "{words:?}: {text}");
    };
    refused(&["plot", "--out", "a.gif"], ".svg or .png");
    refused(&["plot", "--out", "a.svg", "--metric", "los"], "unknown metric `los`");
    refused(&["plot", "--out", "a.svg", "--theme", "pink"], "unknown theme `pink`");
    refused(&["plot", "--out", "a.svg", "--steps", "9000..9001"], "nothing to draw");
    refused(&["plot", "nobody", "--out", "a.svg"], "no run named `nobody`");
}

#[test]
fn event_files_hold_the_curve() {
    let place = place();
    let (file, _) = exported(&place);
    let losses = scalars(&fs::read(&file).unwrap(), "train/loss");
    let expected: Vec<(u64, f32)> = (1..=STEPS)
        .filter(|step| !make::is_skipped(*step, STEPS))
        .map(|step| (step, make::row(1, 0, step, STEPS).loss.unwrap() as f32))
        .collect();
    assert_eq!(losses, expected);
    let skipped = scalars(&fs::read(&file).unwrap(), "train/skipped");
    assert_eq!(skipped.len() as u64, STEPS);
    let count = (1..=STEPS).filter(|step| make::is_skipped(*step, STEPS)).count();
    assert_eq!(skipped.iter().filter(|(_, value)| *value > 0.5).count(), count);
    let again = place.output(&["export", "--format", "tensorboard", "--out", "tb"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("already has event files"));
    let without = place.output(&["export", "--format", "tensorboard"]);
    assert!(String::from_utf8_lossy(&without.stderr).contains("--out"));
}

/// TensorBoard itself reads the export, if `python3` (or the one in TENSORBOARD_PYTHON) has it.
#[test]
fn tensorboard_reads_what_was_exported() {
    let python = std::env::var("TENSORBOARD_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let asked = Command::new(&python).args(["-c", "import tensorboard"]).stderr(Stdio::null()).status();
    if !asked.is_ok_and(|status| status.success()) {
        println!("left out: {python} has no tensorboard package");
        return;
    }
    let place = place();
    let (_, folder) = exported(&place);
    let script = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0, 'tensors': 0})
events.Reload()
tags = events.Tags()
texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tags['tensors']}
print(json.dumps({'scalars': {tag: [(e.step, e.value, e.wall_time) for e in events.Scalars(tag)]
                              for tag in tags['scalars']}, 'texts': texts}))
";
    let out = Command::new(&python).args(["-c", script]).arg(&folder).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let read: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let losses = read["scalars"]["train/loss"].as_array().unwrap();
    let taken = (1..=STEPS).filter(|step| !make::is_skipped(*step, STEPS)).count();
    assert_eq!(losses.len(), taken);
    let (last, row) = (losses.last().unwrap(), make::row(3, 0, STEPS, STEPS));
    assert_eq!(last[0], STEPS);
    assert!((last[1].as_f64().unwrap() - row.loss.unwrap()).abs() < 1e-6);
    assert!((last[2].as_f64().unwrap() - row.time_ms as f64 / 1e3).abs() < 1e-3);
    assert_eq!(read["scalars"]["eval/loss"].as_array().unwrap().len(), 20);
    assert!(read["texts"]["run.yaml"].as_str().unwrap().contains("micro_batch: 32"));
    assert!(read["texts"]["journal"].as_str().unwrap().contains("device fault at step"));
}

#[test]
fn the_status_bar_gets_one_short_line_without_arguments() {
    let place = place();
    let line = place.succeed(&["status", "--format", "tmux"]);
    assert_eq!(line.lines().count(), 1, "{line:?}");
    assert!(line.contains("#[fg=") && line.contains("#[default]") && line.contains("finished"), "{line}");
    assert!(line.contains("made"), "{line}");
    let plain = line.replace("#[fg=green]", "").replace("#[default]", "");
    assert!(plain.chars().count() < 60 && !plain.contains("#["), "{plain}");
    let status: serde_json::Value = serde_json::from_str(&place.succeed(&["status", "--format", "json"])).unwrap();
    assert_eq!((status["state"].as_str(), status["step"].as_u64()), (Some("finished"), Some(STEPS)));
}

/// Exports a run; returns the event file and its folder.
fn exported(place: &Place) -> (PathBuf, PathBuf) {
    let printed = place.succeed(&["export", "--format", "tensorboard", "--out", "tb"]);
    let file = place.dir.path().join(printed.trim());
    let folder = file.parent().map(Path::to_owned).unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing but the event file");
    (file, folder)
}

/// Returns steps and values of a tag: an independent reader of records and messages.
fn scalars(mut file: &[u8], tag: &str) -> Vec<(u64, f32)> {
    let mut found = Vec::new();
    let mut wanted = vec![0x0a, u8::try_from(tag.len()).unwrap()];
    wanted.extend(tag.as_bytes());
    wanted.push(0x15);
    while !file.is_empty() {
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        assert_eq!(u32::from_le_bytes(file[8..12].try_into().unwrap()), masked(&file[..8]));
        let record = &file[12..12 + length];
        assert_eq!(u32::from_le_bytes(file[12 + length..16 + length].try_into().unwrap()), masked(record));
        if let Some(place) = record.windows(wanted.len()).position(|part| part == wanted) {
            let value = place + wanted.len();
            let value = f32::from_le_bytes(record[value..value + 4].try_into().unwrap());
            // 1 byte key and 8 bytes wall time, then the key of the step.
            assert_eq!((record[0], record[9]), (0x09, 0x10));
            let step = record[10..].iter().take(10).enumerate();
            let end = step.clone().find(|(_, byte)| **byte < 0x80).unwrap().0;
            found.push((step.take(end + 1).map(|(at, byte)| u64::from(byte & 0x7f) << (7 * at)).sum(), value));
        }
        file = &file[16 + length..];
    }
    found
}

/// Computes the checksum bit by bit.
fn masked(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 })
    });
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}
