//! Every rung of the shipped ladders, fused and not: losses and the gradient of each tensor on the card and on the CPU, from
//! one checkpoint.
//!
//! `DOWNSHIFT_LADDER=text` goes through all rungs of a run file (`scripts/campaign card`); without it, a seed chooses one case.

use super::card::{place_with_card, seed};
use super::gradients::{Differences, GELU, compare_steps, write_text};
use crate::helper::Place;
use downshift::config::run::{AsWritten, Run, Source};
use downshift::shipped;
use std::fs;
use std::path::Path;

/// A shipped ladder in small shapes.
struct Ladder {
    name: &'static str,
    shape: &'static [&'static str],
    /// The largest share by which a gradient may differ.
    gradient: f64,
}

/// The largest share by which the loss of one of the four steps may differ.
const LOSS: f64 = 1e-5;

const LADDERS: [Ladder; 3] = [
    Ladder {
        name: "text",
        shape: &["model.width=16", "model.layers=2", "model.heads=2", "model.sequence=16"],
        gradient: GELU,
    },
    Ladder { name: "lora", shape: &["model.sequence=16"], gradient: 1e-5 },
    Ladder {
        name: "cifar10",
        shape: &[
            "model.channels=8",
            "model.layers=2",
            "training.micro_batch=8",
            "ladder.accumulate.training.micro_batch=4",
            "ladder.frugal.training.micro_batch=2",
            "ladder.safe.training.micro_batch=1",
        ],
        gradient: 1e-5,
    },
];

fn rungs(name: &str) -> Vec<String> {
    let (file, text) = shipped::run_file(Path::new(name)).unwrap();
    let source = Source { file, text, base: Path::new("/"), overrides: &[] };
    Run::read(&source, &AsWritten).unwrap().rungs.into_iter().map(|rung| rung.name).collect()
}

/// Writes pictures in the format of CIFAR-10, each with a bright bar whose place depends on its label.
fn write_pictures(place: &Place) -> String {
    let folder = place.dir.path().join("cifar");
    fs::create_dir(&folder).unwrap();
    let picture = |number: usize| {
        let label = number % 10;
        let pixel = move |at: usize| {
            let (row, column) = (at % 1024 / 32, at % 32);
            let bar = if row / 3 == label { 120 } else { 0 };
            (bar + (at * 7 + number * 31 + column * row) % 97) as u8
        };
        std::iter::once(label as u8).chain((0..3072).map(pixel)).collect::<Vec<u8>>()
    };
    for (file, name) in ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
        .iter()
        .enumerate()
    {
        let bytes: Vec<u8> = (0..40).flat_map(|number| picture(file * 40 + number)).collect();
        fs::write(folder.join(format!("{name}.bin")), bytes).unwrap();
    }
    format!("data.source={}", folder.display())
}

/// Takes steps 5 to 8 on this rung. What it ships with applies, but for the choice of kernels: the first that run.
fn compare_rung(ladder: &Ladder, rung: &str, fused: bool) -> Differences {
    let place = place_with_card();
    let data = if ladder.name == "cifar10" { write_pictures(&place) } else { write_text(&place) };
    let below = if rung == "full" { String::new() } else { format!("ladder.{rung}.") };
    let kernels = [format!("{below}training.fused_kernels={fused}"), format!("{below}training.autotune=later")];
    let changes = ladder.shape.iter().copied().chain(["evaluation.every=1000 steps", data.as_str()]);
    let changes = changes.chain(kernels.iter().map(String::as_str)).flat_map(|change| ["--set", change]);
    let words: Vec<&str> = [ladder.name, "--rung", rung].into_iter().chain(changes).collect();
    compare_steps(&place, &words, "f32", 8)
}

fn check_rung(ladder: &Ladder, rung: &str, fused: bool) {
    let differences = compare_rung(ladder, rung, fused);
    let kernels = if fused { "fused" } else { "one kernel per operation" };
    println!("{} {rung}, {kernels}: {differences:?}", ladder.name);
    assert!(differences.loss <= LOSS && differences.gradient <= ladder.gradient, "{differences:?}");
}

#[test]
fn a_rung_of_the_shipped_ladders_computes_what_the_cpu_does() {
    let chosen = std::env::var("DOWNSHIFT_LADDER").unwrap_or_default();
    if let Some(ladder) = LADDERS.iter().find(|ladder| ladder.name == chosen) {
        for rung in rungs(ladder.name) {
            check_rung(ladder, &rung, true);
            check_rung(ladder, &rung, false);
        }
    } else {
        assert!(chosen.is_empty(), "DOWNSHIFT_LADDER={chosen}: write text, lora or cifar10");
        let ladder = &LADDERS[seed() as usize % LADDERS.len()];
        let rungs = rungs(ladder.name);
        check_rung(ladder, &rungs[seed() as usize / LADDERS.len() % rungs.len()], seed() % 2 == 1);
    }
}
