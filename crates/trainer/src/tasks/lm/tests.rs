use super::layer_builder::ModelSpec;
use super::model::Transformer;
use super::model_config::{self, suggest_heads};
use super::shape::Shape;
use super::text::Codec;
use super::{Corpus, LanguageModel, Sources, TextBatch, TextData, TextModel};
use crate::lora::Lora;
use crate::params::{TensorReader, Tensors, Trail, add_gradients, follow_trail, parameter_shapes};
use crate::task::{BatchRequest, Pass, Split, Task, Train};
use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::module::{AutodiffModule, Module, ModuleMapper, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Int, Tensor, TensorData, activation::log_softmax};
use proptest::prelude::*;

type Cpu = Autodiff<Flex>;

fn shipped() -> TextData {
    TextData {
        source: Sources::One("embedded:text".into()),
        tokenizer: Some("bytes".into()),
        validation: 0.1,
        prompt: None,
    }
}

fn small() -> TextModel {
    TextModel { layers: Some(2), heads: Some(2), width: Some(16), sequence: 12, ..TextModel::default() }
}

fn lora() -> Lora {
    Lora { rank: 4, alpha: None, dropout: 0.0, targets: vec!["query".into(), "c_proj".into()], init_from: None }
}

fn fresh(config: &TextModel) -> Transformer<Flex> {
    Transformer::new(&model_config::build_spec(config, 256).unwrap(), &FlexDevice)
}

fn random_tokens(batch: usize, length: usize) -> Tensor<Flex, 2, Int> {
    let tokens = Tensor::<Flex, 1, Int>::arange(0..i64::try_from(batch * length).unwrap(), &FlexDevice);
    (tokens * 37 + 11).remainder_scalar(256).reshape([batch, length])
}

#[test]
fn invalid_values_are_named_with_a_fix() {
    type Case = (&'static str, fn(&mut TextData, &mut TextModel));
    let table: [Case; 15] = [
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
        ("model.shape", |_, model| model.shape = Some(tiny_llama_shape())),
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
    assert_eq!(suggest_heads(3, 128), "2 or 4 heads work");
    assert_eq!(suggest_heads(200, 128), "128 works");
}

fn tiny_llama_shape() -> Shape {
    let mut model = TextModel { init_from: Some("embedded:tiny-llama".into()), ..TextModel::default() };
    model_config::complete_model(&mut model, &str::to_owned);
    model.shape.unwrap()
}

#[test]
fn an_adapter_on_a_layer_that_the_model_lacks_is_refused() {
    let plan = |model: TextModel, targets: &[&str]| {
        let targets = targets.iter().map(|target| (*target).to_owned()).collect();
        model_config::build_spec(&TextModel { lora: Some(Lora { targets, ..lora() }), ..model }, 256).map(drop)
    };
    let llama = || TextModel { init_from: Some("embedded:tiny-llama".into()), ..TextModel::default() };
    for (model, targets, layer) in [
        (small(), &["gate"][..], "gate"),
        (small(), &["query", "gate_proj"], "gate_proj"),
        (small(), &["all", "head"], "head"),
        (llama(), &["gate", "lm_head"], "lm_head"),
    ] {
        let refused = plan(model, targets).unwrap_err();
        assert_eq!(refused.file, "model.lora.targets");
        assert!(refused.message.contains(&format!("no layer `{layer}`; choose all, or some of query, ")), "{refused}");
    }
    assert!(plan(small(), &["all"]).is_ok() && plan(llama(), &["gate", "c_attn"]).is_ok());
    assert!(plan(TextModel { tied: Some(false), ..small() }, &["head"]).is_ok());
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
    LanguageModel::complete_config(&mut data, &mut model, &|path| format!("/base/{path}"));
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
            spec: model_config::build_spec(&TextModel::default(), 2000).unwrap(),
            codec: Codec::Bytes, prompt: Vec::new(),
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
                // The unused tokens on both sides are less than two windows.
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
fn no_position_attends_to_a_later_one() {
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
fn a_tied_head_shares_the_embedding_parameter() {
    let count = |tied| fresh(&TextModel { tied: Some(tied), ..small() }).num_params();
    assert_eq!(count(false) - count(true), 256 * 16);
    // positions, embedding, final norm; a block: two norms, four attention matrices, two of the MLP
    assert_eq!(count(true), 12 * 16 + 256 * 16 + 2 * 16 + 2 * (4 * 16 + 4 * 16 * 16 + 2 * 4 * 16 * 16));
}

#[test]
fn the_parameter_count_matches_the_built_model() {
    let own = |tied| model_config::build_spec(&TextModel { tied: Some(tied), ..small() }, 256).unwrap().shape;
    let llama = serde_json::json!({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96, "attention_bias": true,
    });
    let gpt2 = serde_json::json!({
        "model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 16, "vocab_size": 96,
    });
    let [llama, gpt2] = [llama, gpt2].map(|config| super::hf::config::parse_config(&config).unwrap());
    for shape in [own(true), own(false), llama, gpt2] {
        let plan = ModelSpec { sequence: 8, dropout: 0.0, lora: None, shape };
        let built = Transformer::<Flex>::new(&plan, &FlexDevice);
        assert_eq!(plan.shape.parameter_count(), built.num_params() as u128, "{plan:?}");
    }
}

#[test]
fn every_weight_gets_a_gradient_and_evaluation_agrees_with_the_loss() {
    let device = FlexDevice;
    for (tied, recompute) in [(true, false), (false, false), (true, true), (false, true)] {
        let config = TextModel { tied: Some(tied), ..small() };
        let corpus = LanguageModel::load(&shipped(), &config, 7).unwrap();
        let request = BatchRequest { split: Split::Training, indices: &[0, 1, 2], epoch: 0, seed: 7 };
        let batch = LanguageModel::batch(&corpus, request);
        let model = <LanguageModel as Train<Cpu>>::init(&config, &corpus, &device);
        // Weights are initialized on first use; a copy made before would draw different ones.
        parameter_shapes(&model);
        let pass = Pass { device: &device, seed: 1, gradient_checkpointing: recompute, loss_scale: 1.0 };
        let loss = <LanguageModel as Train<Cpu>>::loss(&model, batch.clone(), &pass);
        let value = loss.clone().into_scalar();
        // A fresh model is near the loss of guessing among 256 bytes.
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

/// Returns the gradients of a pass, concatenated by parameter, and its loss.
fn gradients(model: &Transformer<Cpu>, batch: &TextBatch, recompute: bool, loss_scale: f64) -> (f32, Tensors<Flex>) {
    let pass = Pass { device: &FlexDevice, seed: 1, gradient_checkpointing: recompute, loss_scale };
    let loss = <LanguageModel as Train<Cpu>>::loss(model, batch.clone(), &pass);
    let mut found = Tensors::<Flex>::new();
    add_gradients(model, &mut loss.clone().backward(), 1.0, true, &mut found);
    (loss.into_scalar(), found)
}

/// Computes the same with Burn's graph alone and with full logits.
fn reference(model: &Transformer<Cpu>, batch: &TextBatch) -> (f32, Tensors<Flex>) {
    let [inputs, targets] = batch.clone().into_tensors::<Cpu>(&FlexDevice);
    let logits = model.forward(inputs).flatten::<2>(0, 1);
    let count = logits.dims()[0];
    let loss = log_softmax(logits, 1).gather(1, targets.reshape([count, 1])).mean().neg();
    let mut found = Tensors::<Flex>::new();
    add_gradients(model, &mut loss.clone().backward(), 1.0, true, &mut found);
    (loss.into_scalar(), found)
}

fn compare(found: &(f32, Tensors<Flex>), wanted: &(f32, Tensors<Flex>), what: &str) {
    assert!((found.0 / wanted.0 - 1.0).abs() < 1e-6, "{what}: loss {} and {}", found.0, wanted.0);
    assert!(found.1.keys().eq(wanted.1.keys()), "{what}: {:?}, {:?}", found.1.keys(), wanted.1.keys());
    let mut reader = [TensorReader::<Flex>::default(), TensorReader::<Flex>::default()];
    for (tensors, reader) in [&found.1, &wanted.1].into_iter().zip(&mut reader) {
        for (path, tensor) in tensors {
            reader.add(path.clone(), tensor.clone());
        }
    }
    let [found, wanted] = reader.map(|reader| reader.read_all().unwrap());
    for ((path, found), (_, wanted)) in found.iter().zip(&wanted) {
        let size = wanted.iter::<f64>().map(|n| n * n).sum::<f64>().sqrt();
        let apart = found.iter::<f64>().zip(wanted.iter::<f64>()).map(|(f, w)| (f - w).powi(2)).sum::<f64>().sqrt();
        assert!(apart <= 1e-5 * size, "{what}: {path} is {} apart", apart / size);
        assert!(size > 0.0, "{what}: {path} has no gradient, which proves nothing");
    }
}

#[test]
fn chunked_and_recomputed_passes_match_the_gradients_of_one_graph() {
    let llama = || TextModel { init_from: Some("embedded:tiny-llama".into()), sequence: 12, ..TextModel::default() };
    let all = || vec!["all".to_owned()];
    let adapters = |base: TextModel, targets| TextModel { lora: Some(Lora { targets, ..lora() }), ..base };
    let head_too = vec!["query".to_owned(), "head".to_owned()];
    let untied = || TextModel { tied: Some(false), ..small() };
    for (what, config) in [
        ("tied", small()),
        ("untied", untied()),
        ("llama", llama()),
        ("adapters", adapters(small(), all())),
        ("adapters on an untied head", adapters(untied(), head_too)),
        ("adapters on llama", adapters(llama(), all())),
    ] {
        let corpus = LanguageModel::load(&shipped(), &config, 7).unwrap();
        let request = BatchRequest { split: Split::Training, indices: &[0, 1, 2], epoch: 0, seed: 7 };
        let batch = LanguageModel::batch(&corpus, request);
        let whole = <LanguageModel as Train<Cpu>>::init(&config, &corpus, &FlexDevice);
        let whole = whole.map(&mut Nudge);
        let adapters: fn(&str) -> bool = |path| path.ends_with("lora_a") || path.ends_with("lora_b");
        let last: fn(&str) -> bool = |path| path.starts_with("blocks.1.") || path.starts_with("norm");
        let inner: fn(&str) -> bool = |path| path.starts_with("blocks.1.attention.query");
        for (part, trained) in
            [("all", (|_| true) as fn(&str) -> bool), ("adapters", adapters), ("last", last), ("inner", inner)]
        {
            let mut only = Only { trail: Trail::default(), trained, any: false };
            let model = whole.clone().map(&mut only);
            if !only.any {
                continue;
            }
            let what = format!("{what}, {part}");
            let wanted = reference(&model, &batch);
            compare(&gradients(&model, &batch, false, 1.0), &wanted, &what);
            compare(&gradients(&model, &batch, true, 1.0), &wanted, &what);
            compare(&gradients(&model, &batch, true, 1024.0), &wanted, &what);
        }
    }
}

/// Changes every parameter slightly: a fresh B is zero, and then A has no gradient.
struct Nudge;

impl ModuleMapper<Cpu> for Nudge {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<Cpu, D>>) -> Param<Tensor<Cpu, D>> {
        let (id, tensor, mapper) = param.consume();
        let count = tensor.shape().num_elements();
        let wave: Vec<f32> = (0..count).map(|at| 0.02 * (at as f32 * 1.7).sin()).collect();
        let wave = Tensor::<Flex, D>::from_data(TensorData::new(wave, tensor.shape()), &FlexDevice);
        Param::from_mapped_value(id, Tensor::from_inner(tensor.inner() + wave).require_grad(), mapper)
    }
}

/// Trains only the parameters that a path predicate selects.
struct Only {
    trail: Trail,
    trained: fn(&str) -> bool,
    any: bool,
}

impl ModuleMapper<Cpu> for Only {
    follow_trail!();
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<Cpu, D>>) -> Param<Tensor<Cpu, D>> {
        let path = self.trail.path();
        let trained = (self.trained)(&path) && !path.ends_with("lora_scale");
        self.any |= trained;
        param.set_require_grad(trained)
    }
}
