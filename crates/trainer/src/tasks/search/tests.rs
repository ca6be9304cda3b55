use super::config::{Order, SearchData, SearchKnobs, SearchModel};
use super::network::{SearchNetwork, softmax_rows};
use super::{Search, SearchBatch, SearchSet};
use crate::params;
use crate::task::{BatchRequest, Format, Pass, Split, Task, Train};
use crate::tasks::cells::genotype::{Genotype, GenotypeSource, Operation};
use crate::tasks::vision::{Vision, VisionModel};
use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::module::{AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use downshift_core::recipe::phases::{Phases, SearchPhase};
use downshift_core::recipe::seed::{Purpose, Stream};
use std::collections::{BTreeMap, BTreeSet};

type Cpu = Autodiff<Flex>;
type Net = SearchNetwork<Cpu>;

/// One warm-up epoch, then weights and architecture in turn.
fn model(order: Order) -> SearchModel {
    let phases = Phases { warmup_epochs: 1, weight_epochs: 1, arch_epochs: 1 };
    let search = SearchKnobs { phases, order, unrolled_lr: 0.1, skip_epochs: 4 };
    SearchModel { channels: 3, layers: 3, nodes: 2, fused_separable: true, search }
}

fn digits(model: &SearchModel) -> SearchSet {
    let data: SearchData = serde_json::from_str(r#"{"source": "embedded:digits", "train_portion": 0.6}"#).unwrap();
    assert_eq!(Search::check(&data, model), []);
    Search::load(&data, model, 7).unwrap()
}

fn fresh(model: &SearchModel, set: &SearchSet) -> Net {
    Cpu::seed(&FlexDevice, 3);
    let net = <Search as Train<Cpu>>::init(model, set, &FlexDevice);
    // Draws the weights now, as a session does: a copy of lazy ones would draw its own.
    params::parameter_shapes::<Cpu, _>(&net);
    net
}

fn batch(set: &SearchSet, epoch: u64, samples: u32) -> SearchBatch {
    let indices: Vec<u32> = (0..samples).collect();
    Search::batch(set, BatchRequest { split: Split::Training, indices: &indices, epoch, seed: 7 })
}

/// Returns the loss, and the gradients of a backward pass by path.
fn grads(net: &Net, batch: SearchBatch, recompute: bool) -> (f64, BTreeMap<String, Vec<f64>>) {
    let pass = Pass { gradient_checkpointing: recompute, ..Pass::plain(&FlexDevice) };
    let loss = <Search as Train<Cpu>>::loss(net, batch, &pass);
    let (mut raw, mut grads) = (loss.backward(), params::Tensors::<Flex>::new());
    params::add_gradients::<Cpu, _>(net, &mut raw, 1.0, true, &mut grads);
    let values = |tensor| params::with_rank::<Flex, 1>(Flex::float_reshape_flat(tensor)).into_data().iter().collect();
    (loss.into_scalar().into(), grads.into_iter().map(|(path, tensor)| (path, values(tensor))).collect())
}

/// Flattens a tensor of any rank.
trait Flatten: Backend {
    fn float_reshape_flat(tensor: Self::FloatTensorPrimitive) -> Self::FloatTensorPrimitive;
}

impl Flatten for Flex {
    fn float_reshape_flat(tensor: Self::FloatTensorPrimitive) -> Self::FloatTensorPrimitive {
        use burn::tensor::TensorMetadata;
        use burn::tensor::ops::FloatTensorOps;
        let size = tensor.shape().num_elements();
        Self::float_reshape(tensor, [size].into())
    }
}

/// Returns the network with `change` added to the logit at `place` of the normal cells, or the reducing ones.
fn nudge(net: &Net, path: &str, place: usize, change: f32) -> Net {
    struct Nudge<'a> {
        trail: params::Trail,
        path: &'a str,
        place: usize,
        change: f32,
    }
    impl ModuleMapper<Cpu> for Nudge<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.trail.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.trail.leave();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<Cpu, D>>) -> Param<Tensor<Cpu, D>> {
            if self.trail.path() != self.path {
                return param;
            }
            param.map(|tensor| {
                let shape = tensor.shape();
                let mut values: Vec<f32> = tensor.into_data().iter().collect();
                values[self.place] += self.change;
                Tensor::from_data(TensorData::new(values, shape), &FlexDevice).require_grad()
            })
        }
    }
    net.clone().map(&mut Nudge { trail: params::Trail::default(), path, place, change })
}

#[test]
fn each_phase_gives_gradients_to_its_own_parameters_from_its_own_images() {
    let config = model(Order::First);
    let (set, mut seen) = (digits(&config), [BTreeSet::new(), BTreeSet::new()]);
    let net = fresh(&config, &set);
    let samples = u32::try_from(Search::len(&set, Split::Training)).unwrap();
    for (epoch, phase) in [(0, SearchPhase::Weights), (1, SearchPhase::Weights), (2, SearchPhase::Architecture)] {
        assert_eq!(Search::phases(&set).unwrap().at(epoch), phase);
        let (_, grads) = grads(&net, batch(&set, epoch, 4), false);
        let searched = grads.keys().filter(|path| path.starts_with("architecture.")).count();
        match phase {
            SearchPhase::Weights => assert!(searched == 0 && grads.len() > 20, "{:?}", grads.keys()),
            SearchPhase::Architecture => assert_eq!((searched, grads.len()), (2, 2)),
        }
        seen[phase.index()].extend(batch(&set, epoch, samples).images.indices);
    }
    assert!(seen[0].is_disjoint(&seen[1]));
    assert_eq!(seen[0].len() + seen[1].len(), 1438, "all training images are used");
    assert!(seen[0].len() > 800 && seen[1].len() > 500, "six tenths are for the weights");
}

#[test]
fn recomputed_activations_give_the_same_gradients_in_both_phases() {
    let config = model(Order::First);
    let set = digits(&config);
    let net = fresh(&config, &set);
    for epoch in [1, 2] {
        let (loss, kept) = grads(&net, batch(&set, epoch, 5), false);
        let (again, recomputed) = grads(&net, batch(&set, epoch, 5), true);
        assert!((loss - again).abs() < 1e-6, "{loss} {again}");
        assert!(kept.keys().eq(recomputed.keys()));
        for (path, values) in &kept {
            let most = values.iter().fold(1e-3_f64, |most, value| most.max(value.abs()));
            for (a, b) in values.iter().zip(&recomputed[path]) {
                assert!((a - b).abs() < 1e-4 * most, "{path}: {a} {b}");
            }
        }
    }
}

/// Compares gradients of the architecture with central differences of `loss`.
fn compare_with_differences(net: &Net, found: &BTreeMap<String, Vec<f64>>, tolerance: f64, loss: impl Fn(&Net) -> f64) {
    const STEP: f32 = 0.003;
    let mut largest: f64 = 0.0;
    for (path, grads) in found {
        for (place, grad) in grads.iter().enumerate() {
            let [ahead, behind] = [STEP, -STEP].map(|change| loss(&nudge(net, path, place, change)));
            let wanted = (ahead - behind) / f64::from(2.0 * STEP);
            assert!((grad - wanted).abs() < tolerance, "{path} {place}: {grad} and {wanted}");
            largest = largest.max(wanted.abs());
        }
    }
    assert!(largest > 10.0 * tolerance, "a gradient of nothing proves nothing: {largest}");
}

#[test]
fn architecture_gradients_equal_finite_differences_on_fixed_weights() {
    let config = model(Order::First);
    let set = digits(&config);
    let net = fresh(&config, &set);
    let images = batch(&set, 2, 24);
    let (_, found) = grads(&net, images.clone(), false);
    compare_with_differences(&net, &found, 2e-4, |net| grads(net, images.clone(), false).0);
}

#[test]
fn gradients_of_second_order_equal_differences_of_the_loss_after_a_step() {
    const TOLERANCE: f64 = 6e-4;
    let config = SearchModel { channels: 4, layers: 2, nodes: 1, ..model(Order::Second) };
    let set = digits(&config);
    let net = fresh(&config, &set);
    let mut images = batch(&set, 2, 4);
    // Noise, since digits have pixels without contrast, where norms bend too sharply for differences.
    let mut noise = Stream::for_purpose(7, Purpose::Task, [0; 3]);
    let unrolled = images.unrolled.as_mut().unwrap();
    for pixel in images.images.pixels.iter_mut().chain(&mut unrolled.0.pixels) {
        *pixel = noise.unit() * 4.0 - 2.0;
    }
    // The loss that it returns is the one after the step on training images.
    let (_, found) = grads(&net, images.clone(), false);
    let (_, first) = grads(&net, SearchBatch { unrolled: None, ..images.clone() }, false);
    let loss = |net: &Net| grads(net, images.clone(), false).0;
    let mut unlike_first = 0;
    for (path, place) in found.iter().flat_map(|(path, grads)| (0..grads.len()).map(move |place| (path, place))) {
        let [ahead, behind] = [0.002, -0.002].map(|change| loss(&nudge(&net, path, place, change)));
        let (difference, grad) = ((ahead - behind) / 0.004, found[path][place]);
        unlike_first += usize::from((difference - first[path][place]).abs() > 2.0 * TOLERANCE);
        assert!((grad - difference).abs() < TOLERANCE, "{path} {place}: {grad} and {difference}");
    }
    assert!(unlike_first >= 20, "{unlike_first} of 28 differ from the first order");
}

#[test]
fn the_auxiliary_skip_fades_out_and_evaluations_leave_it_out() {
    let config = model(Order::First);
    let set = digits(&config);
    let strengths: Vec<f64> = (0..6).map(|epoch| batch(&set, epoch, 1).auxiliary).collect();
    assert_eq!(strengths, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]);
    let net = fresh(&config, &set);
    let with = |auxiliary| grads(&net, SearchBatch { auxiliary, ..batch(&set, 1, 8) }, false).0;
    assert!((with(1.0) - with(0.0)).abs() > 1e-4);
    let tally = <Search as Train<Cpu>>::evaluate(&net.valid(), batch(&set, 0, 8), &FlexDevice);
    assert!((tally.mean_loss() - with(0.0)).abs() < 1e-5, "{} {}", tally.mean_loss(), with(0.0));
    let metrics: BTreeMap<_, _> = Search::metrics(&tally).into_iter().collect();
    assert_eq!(super::STRENGTHS.map(str::to_owned), Operation::ALL.map(|one| format!("strength_{}", one.name())));
    assert!(metrics.keys().copied().eq(Search::METRICS.iter().copied().collect::<BTreeSet<_>>()), "{metrics:?}");
    assert!(metrics["entropy"] > 0.999 && (metrics["strength_none"] - 1.0 / 7.0).abs() < 1e-3, "{metrics:?}");
}

#[test]
fn both_ways_to_compute_separable_convolutions_agree() {
    let config = model(Order::First);
    let set = digits(&config);
    let plain = SearchModel { fused_separable: false, ..config.clone() };
    let [fused, plain] = [&config, &plain].map(|config| grads(&fresh(config, &set), batch(&set, 1, 6), false));
    assert!((fused.0 - plain.0).abs() < 1e-5, "{} {}", fused.0, plain.0);
}

/// Collects values by path.
struct Visitor<'a>(params::Trail, &'a mut BTreeMap<String, TensorData>);
impl ModuleVisitor<Cpu> for Visitor<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.0.enter(name);
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.leave();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Cpu, D>>) {
        self.1.insert(self.0.path(), param.val().into_data());
    }
}

#[test]
fn a_genotype_is_exported_and_trained_from_scratch_with_the_counted_parameters() {
    let config = model(Order::First);
    let set = digits(&config);
    let net = fresh(&config, &set);
    let counted = Search::parameters(&config, &set);
    assert_eq!(counted, Some(u128::from(params::parameter_count::<Cpu, _>(&net))));
    let mut weights = BTreeMap::new();
    nudge(&net, "architecture.normal", 4, 2.0).visit(&mut Visitor(params::Trail::default(), &mut weights));
    let data = serde_json::from_str(r#"{"source": "embedded:digits"}"#).unwrap();
    let files = Search::export(&data, &config, weights.clone(), Format::Genotype).unwrap();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["genotype.json", "genotype.svg"]);
    let genotype: Genotype = serde_json::from_slice(&files[0].1).unwrap();
    assert_eq!((genotype.normal[0][0].from, genotype.normal[0][0].operation.name()), (0, "sep_conv_3x3"));
    assert!(Search::export(&data, &config, weights, Format::HuggingFace).is_err());

    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("genotype.json"), &files[0].1).unwrap();
    let source = GenotypeSource::File("genotype.json".to_owned());
    let mut model = VisionModel { channels: 3, layers: 3, genotype: Some(source), ..VisionModel::default() };
    let mut data = serde_json::from_str(r#"{"source": "embedded:digits"}"#).unwrap();
    assert_eq!(Vision::check(&data, &model), []);
    Vision::complete_config(&mut data, &mut model, &|path| folder.path().join(path).display().to_string());
    assert_eq!(model.genotype, Some(GenotypeSource::Inline(genotype)), "the run does not depend on the file");
    let images = Vision::load(&data, &model, 7).unwrap();
    let built = <Vision as Train<Cpu>>::init(&model, &images, &FlexDevice);
    params::parameter_shapes::<Cpu, _>(&built);
    assert_eq!(Vision::parameters(&model, &images), Some(u128::from(params::parameter_count::<Cpu, _>(&built))));
    let request = BatchRequest { split: Split::Training, indices: &[0, 1, 2, 3], epoch: 0, seed: 7 };
    let losses = [false, true].map(|recompute| {
        let pass = Pass { gradient_checkpointing: recompute, ..Pass::plain(&FlexDevice) };
        let loss = <Vision as Train<Cpu>>::loss(&built, Vision::batch(&images, request), &pass);
        let count = {
            let (mut raw, mut grads) = (loss.backward(), params::Tensors::<Flex>::new());
            params::add_gradients::<Cpu, _>(&built, &mut raw, 1.0, true, &mut grads);
            grads.len()
        };
        (loss.into_scalar(), count)
    });
    assert_eq!(losses[0].1, params::parameter_shapes::<Cpu, _>(&built).len(), "every parameter gets a gradient");
    assert!((losses[0].0 - losses[1].0).abs() < 1e-6 && losses[0].1 == losses[1].1);
}

#[test]
fn recomputation_reaches_the_stem_past_a_cell_that_nothing_reads() {
    let edge = |from| format!(r#"[{{"from": {from}, "operation": "sep_conv_3x3"}}]"#);
    let genotype = format!(r#"{{"normal": [{}], "reduce": [{}]}}"#, edge(0), edge(0));
    let genotype = GenotypeSource::Inline(serde_json::from_str(&genotype).unwrap());
    let model = VisionModel { channels: 3, layers: 5, genotype: Some(genotype), ..VisionModel::default() };
    let data = serde_json::from_str(r#"{"source": "embedded:digits"}"#).unwrap();
    let images = Vision::load(&data, &model, 7).unwrap();
    Cpu::seed(&FlexDevice, 3);
    let built = <Vision as Train<Cpu>>::init(&model, &images, &FlexDevice);
    params::parameter_shapes::<Cpu, _>(&built);
    let request = BatchRequest { split: Split::Training, indices: &[0, 1, 2, 3], epoch: 0, seed: 7 };
    let [kept, recomputed] = [false, true].map(|recompute| {
        let pass = Pass { gradient_checkpointing: recompute, ..Pass::plain(&FlexDevice) };
        let loss = <Vision as Train<Cpu>>::loss(&built, Vision::batch(&images, request), &pass);
        let (mut raw, mut grads) = (loss.backward(), params::Tensors::<Flex>::new());
        params::add_gradients::<Cpu, _>(&built, &mut raw, 1.0, true, &mut grads);
        grads
            .into_iter()
            .map(|(path, tensor)| {
                let values: Vec<f64> =
                    params::with_rank::<Flex, 1>(Flex::float_reshape_flat(tensor)).into_data().iter().collect();
                (path, values.iter().map(|value| value * value).sum::<f64>())
            })
            .collect::<BTreeMap<_, _>>()
    });
    for (path, square) in kept.iter().filter(|(_, square)| **square > 0.0) {
        let found = recomputed.get(path).copied().unwrap_or(0.0);
        assert!((found / square - 1.0).abs() < 1e-4, "{path}: {square} kept, {found} recomputed");
    }
    assert!(kept.keys().any(|path| path.starts_with("stem") && kept[path] > 0.0));
}

#[test]
fn searches_that_decide_nothing_are_refused() {
    use downshift_core::config::knobs::{Precision, Training};
    let config = model(Order::First);
    let paths = |config: &SearchModel, training: Training| -> Vec<String> {
        Search::check_training(config, &training).into_iter().map(|problem| problem.path).collect()
    };
    let epochs = |epochs: u64| -> Training {
        serde_json::from_value(serde_json::json!({"epochs": epochs, "micro_batch": 8})).unwrap()
    };
    assert_eq!(paths(&config, epochs(2)), ["training.epochs"], "warm-up and weights fill two epochs");
    assert_eq!(paths(&config, epochs(3)), [""; 0]);
    let rounded = || Training { precision: Precision::Bf16, ..epochs(3) };
    assert_eq!(paths(&config, rounded()), [""; 0]);
    assert_eq!(paths(&model(Order::Second), rounded()), ["training.precision"]);
    // The digits have 8 × 8 pixels.
    let data: SearchData = serde_json::from_str(r#"{"source": "embedded:digits"}"#).unwrap();
    let one = SearchModel { layers: 1, ..config };
    let error = Search::load(&data, &one, 7).unwrap_err().to_string();
    assert!(error.contains("1 layers on 8 × 8 pixels have no cell that keeps the size of the image"), "{error}");
}

#[test]
fn mistakes_in_the_sections_are_named_with_a_fix() {
    type Case = (&'static str, fn(&mut SearchData, &mut SearchModel));
    let table: [Case; 7] = [
        ("data.source", |data, _| data.source = "embedded:cats".into()),
        ("data.train_portion", |data, _| data.train_portion = 1.0),
        ("model.nodes", |_, model| model.nodes = 0),
        ("model.channels", |_, model| model.channels = 0),
        ("model.search.arch_epochs", |_, model| model.search.phases.arch_epochs = 0),
        ("model.search.weight_epochs", |_, model| model.search.phases.weight_epochs = 0),
        ("model.search.unrolled_lr", |_, model| model.search.unrolled_lr = 0.0),
    ];
    for (path, spoil) in table {
        let mut data: SearchData = serde_json::from_str(r#"{"source": "embedded:digits"}"#).unwrap();
        let mut model = SearchModel::default();
        spoil(&mut data, &mut model);
        let paths: Vec<String> = Search::check(&data, &model).into_iter().map(|problem| problem.path).collect();
        assert_eq!(paths, [path]);
    }
    let rows = softmax_rows(&[0.0; 14]);
    assert!(rows.len() == 2 && rows.iter().flatten().all(|share| (share - 1.0 / 7.0).abs() < 1e-12));
    assert!(serde_json::from_str::<SearchModel>(r#"{"search": {"weigth_epochs": 2}}"#).is_err());
}
