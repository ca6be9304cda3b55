//! A synthetic task with a known best operation: the classes are those that the same network gives the images with one
//! operation on every edge. From equal strengths, the search has to find that operation.

use super::config::{Order, SearchData, SearchKnobs, SearchModel};
use super::network::SearchNetwork;
use super::{Search, SearchSet};
use crate::optimizer::AdamW;
use crate::param_rules::ParamRules;
use crate::params;
use crate::task::{BatchRequest, Pass, Split, Task, Train};
use crate::tasks::cells::cell::Mixture;
use crate::tasks::cells::genotype::{Operation, edge_count};
use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::tensor::{Tensor, backend::Backend};
use downshift_core::config::knobs;
use downshift_core::recipe::order::{epoch_order, shuffle};
use downshift_core::recipe::phases::{Phases, SearchPhase};
use downshift_core::recipe::seed::{Purpose, Stream};
use std::fs;
use std::path::Path;

/// The best operations: a search that always ends with the same one fails.
const BEST: [Operation; 3] = [Operation::Separable3, Operation::Separable5, Operation::Dilated3];

type Cpu = Autodiff<Flex>;

const SIDE: usize = 8;
const CLASSES: u32 = 8;

/// The length of a search.
#[derive(Clone, Copy)]
struct Length {
    images: u32,
    epochs: u64,
}

/// Short enough for every run of the tests; each of these seeds finds its operation by far.
const SHORT: (Length, [u64; 3]) = (Length { images: 400, epochs: 60 }, [1, 5, 6]);
const FULL: Length = Length { images: 4800, epochs: 200 };

fn model() -> SearchModel {
    let phases = Phases { warmup_epochs: 0, weight_epochs: 1, arch_epochs: 4 };
    let search = SearchKnobs { phases, order: Order::First, unrolled_lr: 0.1, skip_epochs: 0 };
    SearchModel { channels: 4, layers: 2, nodes: 1, fused_separable: true, search }
}

/// Writes images in the format of MNIST, of noise in two sizes. Returns their pixels.
fn write_images(folder: &Path, images: u32, seed: u64) -> Vec<u8> {
    let mut draw = Stream::for_purpose(seed, Purpose::Task, [0; 3]);
    let mut pixels = Vec::new();
    for _ in 0..images {
        let coarse: Vec<f32> = (0..(SIDE / 2).pow(2)).map(|_| draw.unit()).collect();
        for at in 0..SIDE * SIDE {
            let (row, column) = (at / SIDE, at % SIDE);
            pixels.push(((coarse[row / 2 * (SIDE / 2) + column / 2] + draw.unit()) * 127.0) as u8);
        }
    }
    write_idx(&folder.join("train-images-idx3-ubyte"), &[images, SIDE as u32, SIDE as u32], &pixels);
    pixels
}

fn write_idx(path: &Path, sizes: &[u32], bytes: &[u8]) {
    let header = [0, 0, 8, sizes.len() as u8].into_iter().chain(sizes.iter().flat_map(|size| size.to_be_bytes()));
    fs::write(path, header.chain(bytes.iter().copied()).collect::<Vec<u8>>()).unwrap();
}

fn load(folder: &Path, labels: &[u8], seed: u64) -> SearchSet {
    write_idx(&folder.join("train-labels-idx1-ubyte"), &[labels.len() as u32], labels);
    let data = format!(r#"{{"source": {:?}, "validation": 0.2, "train_portion": 0.3}}"#, folder.display().to_string());
    let data: SearchData = serde_json::from_str(&data).unwrap();
    Search::load(&data, &model(), seed).unwrap()
}

/// Returns the classes of all images by a network with this operation on every edge: the half with the larger logits of
/// the second class has it.
fn label(net: &SearchNetwork<Cpu>, pixels: &[u8], operation: Operation) -> Vec<u8> {
    let column = Operation::ALL.iter().position(|other| *other == operation).unwrap();
    let one = |count: usize| {
        let row = (0..Operation::ALL.len()).map(|other| if other == column { 1.0 } else { 0.0 });
        let rows: Vec<f32> = std::iter::repeat_n(row, count).flatten().collect();
        Tensor::<Cpu, 1>::from_floats(rows.as_slice(), &FlexDevice).reshape([count, Operation::ALL.len()])
    };
    let strengths = [0, 1].map(|_| one(edge_count(model().nodes)));
    let pixels: Vec<f32> = pixels.iter().map(|pixel| (f32::from(*pixel) - 127.0) / 52.0).collect();
    let images =
        Tensor::<Cpu, 1>::from_floats(pixels.as_slice(), &FlexDevice).reshape([-1, 1, SIDE as i32, SIDE as i32]);
    let logits = net.network.forward_cells(images, Some(&Mixture { strengths, auxiliary: 0.0 }));
    // Without the means, which a bias can shift, all classes occur.
    let leads = (logits.clone() - logits.mean_dim(0)).argmax(1);
    leads.into_data().iter::<i64>().map(|class| class as u8).collect()
}

/// Trains both phases as a session does, and returns the mean strength of each operation.
fn search(mut net: SearchNetwork<Cpu>, set: &SearchSet, epochs: u64, seed: u64) -> Vec<f64> {
    let preset: knobs::Preset = serde_json::from_value(serde_json::json!({
        "data": {}, "model": {},
        "training": { "epochs": epochs, "micro_batch": 1, "seed": seed },
        "optimizer": { "lr": 0.0003, "architecture": { "lr": 0.1, "weight_decay": 0.0, "betas": [0.5, 0.999] } },
        "evaluation": { "every": "1 epoch" }, "checkpoint": { "every": "never" },
    }))
    .unwrap();
    let paths: Vec<String> = params::declared_shapes::<Cpu, _>(&net).into_keys().collect();
    let rules = ParamRules::new::<Search>(&preset, &paths).unwrap();
    let mut optimizer = AdamW::<Flex>::new(preset.optimizer, rules);
    for epoch in 0..epochs {
        let phase = model().search.phases.at(epoch);
        let lr = if phase == SearchPhase::Weights { 0.0003 } else { 0.1 };
        // All images of a phase in one step.
        let indices = &epoch_order(seed, epoch, Search::len(set, Split::Training));
        let batch = Search::batch(set, BatchRequest { split: Split::Training, indices, epoch, seed });
        let mut raw = <Search as Train<Cpu>>::loss(&net, batch, &Pass::plain(&FlexDevice)).backward();
        let mut grads = params::Tensors::<Flex>::new();
        params::add_gradients::<Cpu, _>(&net, &mut raw, 1.0, true, &mut grads);
        net = optimizer.update::<Cpu, _>(net, grads, phase, lr, &[1.0]).unwrap();
    }
    let rows = net.strengths().concat();
    (0..Operation::ALL.len())
        .map(|column| rows.iter().map(|row| row[column]).sum::<f64>() / rows.len() as f64)
        .collect()
}

/// Reports whether a search finds the operation that is the best by the labels; of other labels if they are shuffled.
fn finds(length: Length, seed: u64, shuffled: bool) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let pixels = write_images(folder.path(), length.images, seed);
    // The classes do not matter for the weights.
    let dummies: Vec<u8> = (0..length.images).map(|image| (image % CLASSES) as u8).collect();
    let unlabelled = load(folder.path(), &dummies, seed);
    Cpu::seed(&FlexDevice, seed);
    let net = <Search as Train<Cpu>>::init(&model(), &unlabelled, &FlexDevice);
    params::parameter_shapes::<Cpu, _>(&net);
    let best = BEST[seed as usize % BEST.len()];
    let mut labels = label(&net, &pixels, best);
    if shuffled {
        shuffle(&mut labels, &mut Stream::for_purpose(seed, Purpose::Task, [1, 0, 0]));
    }
    let strengths = search(net, &load(folder.path(), &labels, seed), length.epochs, seed);
    let strongest =
        (1..Operation::ALL.len()).max_by(|one, other| strengths[*one].total_cmp(&strengths[*other])).unwrap();
    println!("seed {seed}: {} is best, {} is found {strengths:.3?}", best.name(), Operation::ALL[strongest].name());
    Operation::ALL[strongest] == best
}

/// `DOWNSHIFT_SEEDS=21-30` takes these seeds in full length.
#[test]
fn a_known_best_operation_is_found() {
    if let Ok(seeds) = std::env::var("DOWNSHIFT_SEEDS") {
        let (first, last) = seeds.split_once('-').unwrap();
        let seeds: Vec<u64> = (first.parse().unwrap()..=last.parse().unwrap()).collect();
        let found = seeds.iter().filter(|seed| finds(FULL, **seed, false)).count();
        assert!(found * 10 >= seeds.len() * 9, "found in {found} of {} seeds", seeds.len());
        return;
    }
    let (length, seeds) = SHORT;
    assert!(seeds.into_iter().all(|seed| finds(length, seed, false)));
    assert!(
        !seeds.into_iter().all(|seed| finds(length, seed, true)),
        "labels without a meaning have no best operation"
    );
}
