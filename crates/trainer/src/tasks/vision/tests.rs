use super::{Augment, Classifier, Vision, VisionBatch, VisionData, VisionModel, batch::score_sample};
use crate::task::{BatchRequest, Pass, Split, Task, Train};
use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::module::{AutodiffModule, list_param_ids};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};

type Cpu = Autodiff<Flex>;

fn digits() -> VisionData {
    VisionData { source: "embedded:digits".into(), validation: None, size: None, augment: Augment::default() }
}

fn request(split: Split, indices: &[u32], epoch: u64) -> BatchRequest<'_> {
    BatchRequest { split, indices, epoch, seed: 7 }
}

#[test]
fn invalid_values_are_named_with_a_fix() {
    type Case = (&'static str, fn(&mut VisionData, &mut VisionModel));
    let table: [Case; 8] = [
        ("data.source", |data, _| data.source = "embedded:cats".into()),
        ("data.source", |data, _| data.source.clear()),
        ("data.validation", |data, _| data.validation = Some(1.0)),
        ("data.validation", |data, _| data.validation = Some(f64::NAN)),
        ("data.size", |data, _| data.size = Some(0)),
        ("model.channels", |_, model| model.channels = 0),
        ("model.layers", |_, model| model.layers = 0),
        ("model.dropout", |_, model| model.dropout = 1.0),
    ];
    assert_eq!(Vision::check(&digits(), &VisionModel::default()), []);
    for (path, spoil) in table {
        let (mut data, mut model) = (digits(), VisionModel::default());
        spoil(&mut data, &mut model);
        let problems = Vision::check(&data, &model);
        assert_eq!(problems.len(), 1, "{path}: {problems:?}");
        assert_eq!(problems[0].path, path);
        assert!(!problems[0].fix.is_empty());
    }
}

#[test]
fn sections_are_read_with_defaults_and_unknown_keys_are_refused() {
    let data: VisionData = serde_json::from_str(r#"{"source": "x", "augment": {"flip": true}}"#).unwrap();
    assert_eq!((data.validation, data.augment), (None, Augment { shift: 0, flip: true }));
    let model: VisionModel = serde_json::from_str("{}").unwrap();
    assert_eq!(model, VisionModel::default());
    assert!(serde_json::from_str::<VisionData>(r#"{"source": "x", "sorce": 1}"#).is_err());
    assert!(serde_json::from_str::<VisionModel>(r#"{"width": 3}"#).is_err());
}

#[test]
fn only_real_paths_are_made_absolute() {
    let mut data = digits();
    Vision::resolve_paths(&mut data, &|path| format!("/base/{path}"));
    assert_eq!(data.source, "embedded:digits");
    data.source = "data/x".into();
    Vision::resolve_paths(&mut data, &|path| format!("/base/{path}"));
    assert_eq!(data.source, "/base/data/x");
}

#[test]
fn the_digits_are_split_normalised_and_prepared_deterministically() {
    let mut config = digits();
    let set = Vision::load(&config, &VisionModel::default(), 7).unwrap();
    assert_eq!((Vision::len(&set, Split::Training), Vision::len(&set, Split::Validation)), (1438, 359));
    let all: Vec<u32> = (0..1438).collect();
    let batch = Vision::batch(&set, request(Split::Training, &all, 0));
    let mean = batch.pixels.iter().sum::<f32>() / batch.pixels.len() as f32;
    let square = batch.pixels.iter().map(|pixel| pixel * pixel).sum::<f32>() / batch.pixels.len() as f32;
    assert!(mean.abs() < 1e-3 && (square - 1.0).abs() < 1e-2, "{mean} {square}");
    assert_eq!(batch, Vision::batch(&set, request(Split::Training, &all, 9)), "no augmentation, no change");

    config.augment.shift = 1;
    let moving = Vision::load(&config, &VisionModel::default(), 7).unwrap();
    let at = |split, epoch| Vision::batch(&moving, request(split, &[3, 4, 5], epoch));
    assert_eq!(at(Split::Training, 1), at(Split::Training, 1));
    assert_ne!(at(Split::Training, 1), at(Split::Training, 2));
    assert_eq!(at(Split::Validation, 1), at(Split::Validation, 2));
    assert_eq!(at(Split::Training, 1).labels, Vision::batch(&set, request(Split::Training, &[3, 4, 5], 0)).labels);

    config.augment.shift = 8;
    let error = Vision::load(&config, &VisionModel::default(), 7).unwrap_err();
    assert!(error.message.contains("data.augment.shift"), "{error}");
}

#[test]
fn a_set_with_a_test_part_is_not_split_unless_asked_and_one_too_small_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let record = |label: u8| [vec![label], vec![label; 3072]].concat();
    let training: Vec<u8> = (0..20).flat_map(|index| record(index % 2)).collect();
    std::fs::write(folder.path().join("data_batch_1.bin"), training).unwrap();
    std::fs::write(folder.path().join("test_batch.bin"), [record(0), record(1), record(1)].concat()).unwrap();
    let mut config = digits();
    config.source = folder.path().display().to_string();
    let sizes = |config: &VisionData| {
        Vision::load(config, &VisionModel::default(), 7)
            .map(|set| (Vision::len(&set, Split::Training), Vision::len(&set, Split::Validation)))
    };
    assert_eq!(sizes(&config).unwrap(), (20, 3));
    let hash = || Vision::fingerprint(&Vision::load(&config, &VisionModel::default(), 7).unwrap());
    let (first, again) = (hash(), hash());
    std::fs::write(folder.path().join("test_batch.bin"), [record(0), record(1), record(0)].concat()).unwrap();
    assert!(first.is_some() && first == again && first != hash());
    config.validation = Some(0.2);
    assert_eq!(sizes(&config).unwrap(), (16, 4));
    config.validation = Some(0.01);
    assert!(sizes(&config).unwrap_err().message.contains("20 for training and 0"));
}

#[test]
fn sample_scores_match_the_formula() {
    let answer = score_sample(&[1.0, 3.0, 2.0], 1, 7);
    let wanted = (1.0 + (-1.0f64).exp() + (-2.0f64).exp()).ln();
    assert!((answer.loss - wanted).abs() < 1e-6, "{answer:?}");
    assert!((f64::from(answer.confidence) - (-wanted).exp()).abs() < 1e-6, "the answer is right: {answer:?}");
    assert_eq!((answer.sample, answer.label, answer.answer), (7, 1, 1));
    assert_eq!(score_sample(&[1.0, 3.0, 2.0], 0, 7).answer, 1);
    let answer = score_sample(&[f32::NAN, 1.0], 1, 7);
    assert!(answer.loss.is_nan() && answer.answer == 1);
    assert_eq!(score_sample(&[f32::NAN; 2], 1, 7).answer, 2, "no class");
}

#[test]
fn every_weight_gets_a_gradient_and_evaluation_agrees_with_the_loss() {
    let device = FlexDevice;
    let config = VisionModel { channels: 8, layers: 2, ..VisionModel::default() };
    let set = Vision::load(&digits(), &config, 7).unwrap();
    let batch: VisionBatch = Vision::batch(&set, request(Split::Training, &(0..64).collect::<Vec<_>>(), 0));
    let mut model = <Vision as Train<Cpu>>::init(&config, &set, &device);
    let measure = |model: &_| {
        let loss: f32 = <Vision as Train<Cpu>>::loss(model, batch.clone(), &Pass::plain(&device)).into_scalar();
        loss
    };
    let mut optimizer = AdamWConfig::new().init::<Cpu, Classifier<Cpu>>();
    let before = measure(&model);
    let tally = <Vision as Train<Cpu>>::evaluate(&model.valid(), batch.clone(), &device);
    assert_eq!(tally.count, 64);
    assert!((tally.loss_sum / 64.0 - f64::from(before)).abs() < 1e-4);
    for _ in 0..40 {
        let loss = <Vision as Train<Cpu>>::loss(&model, batch.clone(), &Pass::plain(&device));
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        assert_eq!(gradients.len(), list_param_ids(&model).len());
        model = optimizer.step(0.01, model, gradients);
    }
    let after = measure(&model);
    assert!(after < 0.5 * before, "{before} -> {after}");
    let tally = <Vision as Train<Cpu>>::evaluate(&model.valid(), batch.clone(), &device);
    assert!(tally.sums["accuracy"] > 32.0, "{tally:?}");
}
