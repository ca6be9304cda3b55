use super::model::{Transformer, token_losses};
use super::section::{self, heads_that_fit};
use super::{Corpus, LanguageModel, Sources, TextData, TextModel};
use crate::train::lora::Lora;
use crate::train::task::{BatchRequest, Split, Task, Train};
use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::module::{AutodiffModule, Module};
use burn::optim::GradientsParams;
use burn::tensor::{Int, Tensor};
use proptest::prelude::*;

type Cpu = Autodiff<Flex>;

fn shipped() -> TextData {
    TextData { source: Sources::One("embedded:text".into()), tokenizer: Some("bytes".into()), validation: 0.1 }
}

fn small() -> TextModel {
    TextModel { layers: Some(2), heads: Some(2), width: Some(16), sequence: 12, ..TextModel::default() }
}

fn lora() -> Lora {
    Lora { rank: 4, alpha: None, dropout: 0.0, targets: vec!["query".into(), "c_proj".into()], init_from: None }
}

fn fresh(config: &TextModel) -> Transformer<Flex> {
    Transformer::new(&section::plan(config, 256).unwrap(), &FlexDevice)
}

fn random_tokens(batch: usize, length: usize) -> Tensor<Flex, 2, Int> {
    let tokens = Tensor::<Flex, 1, Int>::arange(0..i64::try_from(batch * length).unwrap(), &FlexDevice);
    (tokens * 37 + 11).remainder_scalar(256).reshape([batch, length])
}

#[test]
fn impossible_values_are_named_with_what_would_work() {
    type Case = (&'static str, fn(&mut TextData, &mut TextModel));
    let table: [Case; 14] = [
        ("data.source", |data, _| data.source = Sources::Many(vec![])),
        ("data.source", |data, _| data.source = Sources::One("embedded:bible".into())),
        ("data.tokenizer", |data, _| data.tokenizer = Some(String::new())),
        ("data.validation", |data, _| data.validation = 0.0),
        ("model.layers", |_, model| model.layers = Some(0)),
        ("model.width", |_, model| model.width = Some(0)),
        ("model.sequence", |_, model| model.sequence = 0),
        ("model.heads", |_, model| model.heads = Some(3)),
        ("model.dropout", |_, model| model.dropout = -0.1),
        ("model.width", |_, model| (model.init_from, model.width) = (Some("embedded:tiny-llama".into()), Some(64))),
        ("model.lora.rank", |_, model| model.lora = Some(Lora { rank: 0, ..lora() })),
        ("model.lora.alpha", |_, model| model.lora = Some(Lora { alpha: Some(-1.0), ..lora() })),
        ("model.lora.dropout", |_, model| model.lora = Some(Lora { dropout: 1.0, ..lora() })),
        ("model.lora.targets", |_, model| model.lora = Some(Lora { targets: vec!["qurey".into()], ..lora() })),
    ];
    assert_eq!(LanguageModel::check(&shipped(), &TextModel::default()), []);
    for (path, spoil) in table {
        let (mut data, mut model) = (shipped(), TextModel::default());
        spoil(&mut data, &mut model);
        let problems = LanguageModel::check(&data, &model);
        assert_eq!(problems.len(), 1, "{path}: {problems:?}");
        assert_eq!(problems[0].path, path);
    }
    assert_eq!(heads_that_fit(3, 128), "2 or 4 heads can");
    assert_eq!(heads_that_fit(200, 128), "128 can");
}

#[test]
fn sections_are_read_and_paths_resolved() {
    let mut data: TextData =
        serde_json::from_str(r#"{"source": ["embedded:text", "a.txt"], "tokenizer": "t.json"}"#).unwrap();
    LanguageModel::resolve_paths(&mut data, &|path| format!("/base/{path}"));
    assert_eq!(data.source.as_slice(), ["embedded:text", "/base/a.txt"]);
    assert_eq!((data.tokenizer.as_deref(), data.validation), (Some("/base/t.json"), 0.1));
    let mut data: TextData = serde_json::from_str(r#"{"source": "b"}"#).unwrap();
    let mut model = TextModel::default();
    LanguageModel::complete(&mut data, &mut model, &|path| format!("/base/{path}"));
    assert_eq!(data.tokenizer.as_deref(), Some("bytes"));
    assert_eq!((model.layers, model.heads, model.width, model.tied), (Some(4), Some(4), Some(128), Some(true)));
    assert_eq!(data.source.as_slice(), ["/base/b".to_owned()]);
    assert!(serde_json::from_str::<TextData>(r#"{"source": "b", "tokeniser": "x"}"#).is_err());
    let refusal = serde_json::from_str::<TextData>(r#"{"source": 3}"#).unwrap_err().to_string();
    assert!(refusal.contains("a path, or a list of paths"), "{refusal}");
}

#[test]
fn a_text_too_short_for_its_windows_is_refused_with_a_length_that_works() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "x".repeat(100)).unwrap();
    let data = TextData { source: Sources::One(file.path().display().to_string()), ..shipped() };
    let mut model = TextModel { sequence: 10, ..small() };
    let error = LanguageModel::load(&data, &model, 7).unwrap_err();
    assert!(error.message.contains("model.sequence to 9 or less"), "{error}");
    model.sequence = 9;
    let corpus = LanguageModel::load(&data, &model, 7).unwrap();
    assert_eq!((LanguageModel::len(&corpus, Split::Training), LanguageModel::len(&corpus, Split::Validation)), (9, 1));
}

proptest! {
    #[test]
    fn windows_cover_the_text_once_in_order_and_predict_the_next_token(
        sequence in 1usize..9, length in 2usize..200, held_out in 2usize..60, seed: u64, epoch in 0u64..50,
    ) {
        let numbers = |from: usize, count: usize| (from..from + count).map(|n| u32::try_from(n).unwrap()).collect::<Vec<_>>();
        let corpus = Corpus {
            training: numbers(0, length), validation: numbers(1000, held_out), sequence,
            plan: section::plan(&TextModel::default(), 2000).unwrap(),
        };
        for (split, first, total) in [(Split::Training, 0, length), (Split::Validation, 1000, held_out)] {
            let all = numbers(0, LanguageModel::len(&corpus, split));
            let request = BatchRequest { split, indices: &all, epoch, seed };
            let batch = LanguageModel::batch(&corpus, request);
            prop_assert_eq!(&batch, &LanguageModel::batch(&corpus, request));
            prop_assert_eq!(batch.inputs.len(), all.len() * sequence);
            prop_assert!(batch.inputs.windows(2).all(|pair| pair[1] == pair[0] + 1), "in order, without holes");
            prop_assert!(batch.inputs.iter().zip(&batch.targets).all(|(input, target)| *target == input + 1));
            if let (Some(start), Some(end)) = (batch.inputs.first(), batch.targets.last()) {
                prop_assert!((*start as usize) < first + sequence);
                prop_assert!((*end as usize) < first + total);
                // What is left over on both sides is less than two windows.
                prop_assert!(total - all.len() * sequence <= 2 * sequence);
            }
        }
    }
}

#[test]
fn epochs_start_their_windows_at_different_places() {
    let corpus = LanguageModel::load(&shipped(), &TextModel::default(), 7).unwrap();
    let starts: std::collections::BTreeSet<_> = (0..50).map(|epoch| corpus.first_start(7, epoch)).collect();
    assert!(starts.len() > 30, "{starts:?}");
    assert!(starts.iter().all(|start| *start < 128));
}

#[test]
fn no_position_sees_a_later_one() {
    let model = fresh(&small());
    let tokens = random_tokens(2, 12);
    let logits = model.forward(tokens.clone());
    for changed in [0, 5, 11] {
        let mut other = tokens.clone();
        let place = [0..2, changed..changed + 1];
        let value = (other.clone().slice(place.clone()) + 1).remainder_scalar(256);
        other = other.slice_assign(place, value);
        let difference = (model.forward(other) - logits.clone()).abs().max_dim(2).max_dim(0).reshape([12]);
        let difference: Vec<f32> = difference.into_data().to_vec().unwrap();
        assert!(difference[..changed].iter().all(|d| *d == 0.0), "{changed}: {difference:?}");
        assert!(difference[changed..].iter().all(|d| *d > 0.0), "{changed}: {difference:?}");
    }
}

#[test]
fn shorter_inputs_give_the_same_logits() {
    let model = fresh(&small());
    let tokens = random_tokens(1, 12);
    let whole = model.forward(tokens.clone()).slice([0..1, 0..7]);
    let short = model.forward(tokens.slice([0..1, 0..7]));
    assert!((whole - short).abs().max().into_scalar() < 1e-6);
}

#[test]
fn a_tied_head_is_one_parameter_less_and_reads_with_the_embedding() {
    let count = |tied| fresh(&TextModel { tied: Some(tied), ..small() }).num_params();
    assert_eq!(count(false) - count(true), 256 * 16);
    // positions, embedding, final norm; a block: two norms, four attention matrices, two of the MLP
    assert_eq!(count(true), 12 * 16 + 256 * 16 + 2 * 16 + 2 * (4 * 16 + 4 * 16 * 16 + 2 * 4 * 16 * 16));
}

#[test]
fn losses_are_those_of_the_formula_and_in_f32_for_any_precision() {
    let device = FlexDevice;
    let logits = Tensor::<Flex, 3>::from_floats([[[0.0, 0.0], [3.0, 1.0]]], &device);
    let targets = Tensor::<Flex, 2, Int>::from_ints([[0, 1]], &device);
    let losses: Vec<f32> = token_losses(logits.clone(), targets.clone()).into_data().to_vec().unwrap();
    let wanted = [2f32.ln(), (1.0 + 2f32.exp()).ln()];
    assert!(losses.iter().zip(wanted).all(|(loss, wanted)| (loss - wanted).abs() < 1e-6), "{losses:?}");
    let half = token_losses(logits.cast(burn::tensor::FloatDType::BF16), targets);
    assert_eq!(half.dtype(), burn::tensor::DType::F32);
}

#[test]
fn every_weight_gets_a_gradient_and_evaluation_agrees_with_the_loss() {
    let device = FlexDevice;
    for tied in [true, false] {
        let config = TextModel { tied: Some(tied), ..small() };
        let corpus = LanguageModel::load(&shipped(), &config, 7).unwrap();
        let request = BatchRequest { split: Split::Training, indices: &[0, 1, 2], epoch: 0, seed: 7 };
        let batch = LanguageModel::batch(&corpus, request);
        let model = <LanguageModel as Train<Cpu>>::init(&config, &corpus, &device);
        let loss = <LanguageModel as Train<Cpu>>::loss(&model, batch.clone(), &device);
        let value = loss.clone().into_scalar();
        // Fresh weights know nothing: the loss is near that of guessing among 256 bytes.
        assert!((value - 256f32.ln()).abs() < 1.0, "{value}");
        let tally = <LanguageModel as Train<Cpu>>::evaluate(&model.valid(), batch, &device);
        assert_eq!(tally.count, 3 * 12);
        assert!((tally.loss_sum / 36.0 - f64::from(value)).abs() < 1e-4);

        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let weights = burn::module::list_param_ids(&model).len();
        assert_eq!(weights, if tied { 24 } else { 25 });
        assert_eq!(gradients.len(), weights);
    }
}
