//! Tests against models and adapters made by the real transformers and peft (scripts/fixtures_hf.py).

use super::weights::TensorFiles;
use super::{ModelSource, check_weights, config, export, load_weights, peft};
use crate::load_values::load_values;
use crate::lora::Lora;
use crate::params::{HostTensors, TensorReader, collect_parameters};
use crate::stored_tensor::Masters;
use crate::task::{ExportError, Format, NamedFile, Weights};
use crate::tasks::lm::layer_builder::ModelSpec;
use crate::tasks::lm::model::Transformer;
use crate::tasks::lm::{TextModel, model_config, text};
use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::module::AutodiffModule;
use burn::tensor::{Int, Tensor, TensorData};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

type Cpu = Autodiff<Flex>;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/hf").join(name)
}

fn place(name: &str) -> ModelSource {
    ModelSource::parse(&fixture(name).display().to_string())
}

/// Returns the plan of a fixture's model, with adapters like those of its `-lora` variant, of this rank.
fn plan(name: &str, rank: Option<usize>) -> ModelSpec {
    let targets =
        if name == "gpt2" { ["query", "key", "value", "narrow"].as_slice() } else { &["query", "value", "narrow"] };
    let targets: Vec<String> = targets.iter().map(|target| (*target).to_owned()).collect();
    // Not the fixture's alpha: the loaded values must compensate for it.
    let lora = rank.map(|rank| Lora { rank, alpha: Some(5.0), dropout: 0.3, targets, init_from: None });
    ModelSpec { shape: config::read_config(&place(name), name).unwrap(), sequence: 12, dropout: 0.0, lora }
}

fn model(plan: &ModelSpec, mut weights: Weights) -> Transformer<Cpu> {
    let model = Transformer::<Cpu>::new(plan, &FlexDevice);
    let model = load_values::<Cpu, _>(model, |path| weights.remove(path), &mut Masters::<Flex>::new(), &FlexDevice);
    assert!(weights.is_empty(), "nowhere to put {:?}", weights.keys());
    model
}

fn weights(plan: &ModelSpec, name: &str, adapter: bool) -> Weights {
    let mut all = load_weights(&place(name), &plan.shape).unwrap();
    if adapter {
        let lora = plan.lora.as_ref().unwrap();
        let targets: Vec<&str> = lora.targets.iter().map(String::as_str).collect();
        all.extend(peft::load_adapters(&fixture(&format!("{name}-lora")), &plan.shape, lora, &targets).unwrap());
    }
    all
}

/// Returns the input tokens and the real library's logits for them.
fn expected(folder: &str) -> [TensorData; 2] {
    let mut file = TensorFiles::open(&fixture(folder), Some(&fixture(folder).join("expected.safetensors"))).unwrap();
    ["tokens", "logits"].map(|name| file.read_tensor(name).unwrap())
}

fn logits(model: &Transformer<Cpu>, tokens: &TensorData) -> TensorData {
    let ids: Vec<i32> = tokens.iter::<i32>().collect();
    let ids = Tensor::<Flex, 2, Int>::from_data(TensorData::new(ids, tokens.shape.clone()), &FlexDevice);
    model.valid().forward(ids).into_data()
}

/// Returns the largest difference, relative to the largest value.
fn distance(found: &TensorData, wanted: &TensorData) -> f32 {
    assert_eq!(found.shape, wanted.shape);
    let size = wanted.iter::<f32>().map(f32::abs).fold(0.0, f32::max);
    let values = found.iter::<f32>().zip(wanted.iter::<f32>());
    values.map(|(found, wanted)| (found - wanted).abs()).fold(0.0, f32::max) / size
}

fn read(model: &Transformer<Cpu>) -> Weights {
    let mut reader = TensorReader::<Flex>::default();
    collect_parameters(&model.valid(), &Masters::<Flex>::new(), &mut reader);
    let read: HostTensors = reader.read_all().unwrap();
    read.into_iter().map(|(path, data)| (path, Arc::unwrap_or_clone(data))).collect()
}

#[test]
fn logits_are_those_of_transformers() {
    for name in ["gpt2", "llama"] {
        let plan = plan(name, None);
        let model = model(&plan, weights(&plan, name, false));
        let [tokens, wanted] = expected(name);
        let found = distance(&logits(&model, &tokens), &wanted);
        assert!(found < 1e-5, "{name}: {found}");
    }
}

#[test]
fn adapters_of_peft_give_its_logits_in_any_rank_that_holds_them() {
    // GPT-2's adapters of rank 4 on three layers in one are three adapters of rank 4.
    for name in ["gpt2", "llama"] {
        let plan = plan(name, Some(4));
        let with_adapter = model(&plan, weights(&plan, name, true));
        let [tokens, wanted] = expected(&format!("{name}-lora"));
        let found = distance(&logits(&with_adapter, &tokens), &wanted);
        assert!(found < 1e-5, "{name}: {found}");
        let unadapted = model(&plan, weights(&plan, name, false));
        let away = distance(&logits(&unadapted, &tokens), &wanted);
        assert!(away > 0.01, "the adapter of {name} changes too little to tell: {away}");
        // A lower rank loses some of the update, but not all.
        let low = ModelSpec { lora: plan.lora.clone().map(|lora| Lora { rank: 2, ..lora }), ..plan.clone() };
        let low = distance(&logits(&model(&low, weights(&low, name, true)), &tokens), &wanted);
        assert!(low > found && low < away, "{name}: {found} {low} {away}");
        let high = Lora { rank: 5, ..plan.lora.clone().unwrap() };
        let refused =
            peft::load_adapters(&fixture(&format!("{name}-lora")), &plan.shape, &high, &["query"]).unwrap_err();
        assert!(refused.message.contains("set model.lora.rank to 4"), "{refused}");
        let elsewhere = peft::load_adapters(
            &fixture(&format!("{name}-lora")),
            &plan.shape,
            plan.lora.as_ref().unwrap(),
            &["query"],
        );
        assert!(elsewhere.unwrap_err().message.contains("model.lora.targets omits"));
    }
}

#[test]
fn the_tokenizer_of_the_model_is_used_and_gives_the_same_tokens() {
    #[derive(serde::Deserialize)]
    struct Expected {
        text: String,
        ids: Vec<u32>,
    }
    for name in ["gpt2", "llama"] {
        let expected: Expected = serde_json::from_slice(&fs::read(fixture(name).join("text.json")).unwrap()).unwrap();
        let config = TextModel { init_from: Some(fixture(name).display().to_string()), ..TextModel::default() };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.txt");
        fs::write(&file, expected.text).unwrap();
        let codec = text::Codec::open(&model_config::default_tokenizer(&config)).unwrap();
        let ids = text::tokenize_sources(&[file.display().to_string()], &codec).unwrap();
        assert_eq!(ids, expected.ids);
    }
}

#[test]
fn mismatches_are_listed_by_their_name_in_the_file() {
    let plan = plan("llama", None);
    let mut shape = plan.shape.clone();
    (shape.hidden, shape.layers) = (64, 1);
    let refused = check_weights(&place("llama"), &shape).unwrap_err().to_string();
    for part in [
        "model.safetensors.index.json",
        "unexpected in the checkpoint: model.layers.1.input_layernorm.weight",
        "model.layers.0.mlp.down_proj.weight [32, 48] in the checkpoint, [32, 64] in the model",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    (shape.hidden, shape.layers) = (48, 3);
    let refused = check_weights(&place("llama"), &shape).unwrap_err().to_string();
    assert!(refused.contains("missing in the checkpoint: model.layers.2.input_layernorm.weight"), "{refused}");
    assert!(check_weights(&place("llama"), &plan.shape).is_ok());
    // A named shard is not the whole model.
    let shard = ModelSource::parse(&fixture("llama").join("model-00001-of-00003.safetensors").display().to_string());
    assert!(check_weights(&shard, &plan.shape).unwrap_err().message.contains("missing"));
}

#[test]
fn a_bare_model_without_its_prefix_and_with_old_buffers_is_read_too() {
    let plan = plan("gpt2", None);
    let folder = tempfile::tempdir().unwrap();
    let mut whole = TensorFiles::open(&fixture("gpt2"), None).unwrap();
    let names = whole.shapes().into_keys();
    let mut bare: std::collections::BTreeMap<String, TensorData> = names
        .map(|name| (name.trim_start_matches("transformer.").to_owned(), whole.read_tensor(&name).unwrap()))
        .collect();
    bare.insert("h.0.attn.bias".to_owned(), TensorData::zeros::<f32, _>([1, 1, 16, 16]));
    fs::write(folder.path().join("model.safetensors"), export::serialize_safetensors(&bare).unwrap()).unwrap();
    let read = load_weights(&ModelSource::parse(&folder.path().display().to_string()), &plan.shape).unwrap();
    assert_eq!(read, weights(&plan, "gpt2", false));
}

#[test]
fn the_shipped_model_can_be_loaded() {
    let place = ModelSource::parse(super::SHIPPED);
    let shape = config::read_config(&place, super::SHIPPED).unwrap();
    let weights = load_weights(&place, &shape).unwrap();
    assert_eq!((shape.vocabulary, weights["tokens.weight"].shape.to_vec()), (128, vec![128, 64]));
}

fn write(folder: &Path, files: Vec<NamedFile>, tokens: &TensorData, logits: TensorData) {
    fs::create_dir_all(folder).unwrap();
    for (name, content) in files {
        fs::write(folder.join(name), content).unwrap();
    }
    let expected = [("tokens".to_owned(), tokens.clone()), ("logits".to_owned(), logits)].into();
    fs::write(folder.join("expected.safetensors"), export::serialize_safetensors(&expected).unwrap()).unwrap();
}

/// Returns the distance of the real libraries' logits from the expected ones, if they are installed.
fn real_distance(folders: &[&Path]) -> Option<f32> {
    let python = std::env::var("DOWNSHIFT_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let there = Command::new(&python).args(["-c", "import torch, transformers, peft"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        println!(
            "not checked with the real libraries: {python} has no torch, transformers and peft (DOWNSHIFT_PYTHON names one that has)"
        );
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/check_hf.py");
    let output = Command::new(&python).arg(script).args(folders).output().unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let last = said.lines().last().and_then(|line| line.parse().ok());
    Some(last.unwrap_or_else(|| panic!("{said}\n{wrong}")))
}

#[test]
fn exported_weights_equal_the_loaded_ones_and_the_real_libraries_agree() {
    let folder = tempfile::tempdir().unwrap();
    for (name, rank) in [("gpt2", 4), ("llama", 4), ("llama", 3)] {
        let plan = plan(name, Some(rank));
        let [tokens, _] = expected(name);
        let base = model(&ModelSpec { lora: None, ..plan.clone() }, weights(&plan, name, false));
        let out = folder.path().join(format!("{name}{rank}"));
        let whole = export::model_files(&plan.shape, Some(&place(name)), None, read(&base)).unwrap();
        write(&out, whole, &tokens, logits(&base, &tokens));
        let again = load_weights(&ModelSource::parse(&out.display().to_string()), &plan.shape).unwrap();
        assert_eq!(again, weights(&plan, name, false));
        assert!(out.join("tokenizer.json").is_file());

        let learnt = model(&plan, weights(&plan, name, true));
        let wanted = logits(&learnt, &tokens);
        let lora = plan.lora.as_ref().unwrap();
        let adapter = folder.path().join(format!("{name}{rank}-lora"));
        let alone = peft::adapter_files(&plan.shape, lora, "", &weights(&plan, name, false), &read(&learnt)).unwrap();
        write(&adapter, alone, &tokens, wanted.clone());
        let targets: Vec<&str> = lora.targets.iter().map(String::as_str).collect();
        let mut both = weights(&plan, name, false);
        both.extend(peft::load_adapters(&adapter, &plan.shape, lora, &targets).unwrap());
        let found = distance(&logits(&model(&plan, both), &tokens), &wanted);
        assert!(found < 1e-5, "{name}: {found}");

        let whole_again = folder.path().join(format!("{name}{rank}-merged"));
        write(
            &whole_again,
            export::model_files(&plan.shape, None, None, read(&learnt)).unwrap(),
            &tokens,
            wanted.clone(),
        );
        let without = ModelSpec { lora: None, ..plan.clone() };
        let read_again = load_weights(&ModelSource::parse(&whole_again.display().to_string()), &plan.shape).unwrap();
        let found = distance(&logits(&model(&without, read_again), &tokens), &wanted);
        assert!(found < 1e-5, "{name}, merged: {found}");

        for folders in [&[out.as_path(), &adapter][..], &[&whole_again]] {
            if let Some(found) = real_distance(folders) {
                assert!(found < 1e-5, "{name}: {found} with the real libraries");
                println!("{name}: {found:e} from the real libraries");
            }
        }
    }
}

#[test]
fn modules_trained_in_addition_to_adapters_are_exported_whole() {
    let folder = tempfile::tempdir().unwrap();
    for (name, head) in [("gpt2", "tokens.weight"), ("llama", "head.weight")] {
        let plan = plan(name, Some(4));
        let lora = plan.lora.clone().unwrap();
        let config = TextModel {
            init_from: Some(fixture(name).display().to_string()),
            sequence: plan.sequence,
            lora: plan.lora.clone(),
            ..TextModel::default()
        };
        let export = |weights: &Weights| model_config::export_weights(None, &config, weights.clone(), Format::Peft);
        let mut learnt = read(&model(&plan, weights(&plan, name, true)));
        let bare = export(&learnt).unwrap();
        for path in [head, "norm.gamma", "blocks.1.attention_norm.gamma"] {
            let data = learnt.get_mut(path).unwrap();
            *data = TensorData::new(data.iter::<f32>().map(|value| 1.5 * value).collect(), data.shape.clone());
        }
        let [tokens, _] = expected(name);
        let wanted = logits(&model(&plan, learnt.clone()), &tokens);
        let adapter = folder.path().join(name);
        let files = export(&learnt).unwrap();
        assert!(files[1].1.len() > bare[1].1.len());
        write(&adapter, files, &tokens, wanted.clone());
        let targets: Vec<&str> = lora.targets.iter().map(String::as_str).collect();
        let mut again = weights(&plan, name, false);
        again.extend(peft::load_adapters(&adapter, &plan.shape, &lora, &targets).unwrap());
        let found = distance(&logits(&model(&plan, again), &tokens), &wanted);
        assert!(found < 1e-5, "{name}: {found}");
        if let Some(found) = real_distance(&[&fixture(name), &adapter]) {
            assert!(found < 1e-5, "{name}: {found} with the real libraries");
        }
        // Weights below an adapter cannot be saved separately.
        learnt.get_mut("blocks.0.narrow.weight").unwrap().bytes = learnt["blocks.1.narrow.weight"].bytes.clone();
        let refused = export(&learnt).unwrap_err();
        assert!(matches!(&refused, ExportError::TrainedUnderAdapter(_)), "{refused}");
    }
    let own = TextModel { lora: plan("gpt2", Some(4)).lora, ..TextModel::default() };
    let tokens = TensorData::new(vec![0.0_f32; 96 * 16], [96, 16]);
    let weights = Weights::from([("tokens.weight".to_owned(), tokens)]);
    let refused = model_config::export_weights(None, &own, weights, Format::Peft).unwrap_err();
    assert!(matches!(refused, ExportError::NoPretrainedBase), "{refused}");
}

#[test]
fn an_embedding_without_the_head_that_it_is_tied_to_is_refused() {
    let plan = plan("gpt2", Some(4));
    let folder = tempfile::tempdir().unwrap();
    let adapter = fixture("gpt2-lora");
    fs::copy(adapter.join("adapter_config.json"), folder.path().join("adapter_config.json")).unwrap();
    let mut file = TensorFiles::open(&adapter, Some(&adapter.join("adapter_model.safetensors"))).unwrap();
    let mut tensors: std::collections::BTreeMap<String, TensorData> =
        file.shapes().into_keys().map(|name| (name.clone(), file.read_tensor(&name).unwrap())).collect();
    let tokens = weights(&plan, "gpt2", false)["tokens.weight"].clone();
    tensors.insert("base_model.model.transformer.wte.weight".to_owned(), tokens);
    fs::write(folder.path().join("adapter_model.safetensors"), export::serialize_safetensors(&tensors).unwrap())
        .unwrap();
    let lora = plan.lora.unwrap();
    let refused =
        peft::load_adapters(folder.path(), &plan.shape, &lora, &["query", "key", "value", "narrow"]).unwrap_err();
    assert!(refused.message.contains("one matrix for both"), "{refused}");
}

#[test]
fn a_fresh_model_is_exported_as_a_gpt_2() {
    let config = TextModel { layers: Some(2), heads: Some(2), width: Some(16), sequence: 12, ..TextModel::default() };
    let plan = model_config::build_spec(&config, 96).unwrap();
    let own = Transformer::<Cpu>::new(&plan, &FlexDevice);
    let [tokens, _] = expected("gpt2");
    let folder = tempfile::tempdir().unwrap();
    let wanted = logits(&own, &tokens);
    let tokenizer = fixture("gpt2").join("tokenizer.json").display().to_string();
    let export = |tokenizer| model_config::export_weights(Some(tokenizer), &config, read(&own), Format::HuggingFace);
    let lost = export("/nowhere/tokenizer.json").unwrap_err().to_string();
    assert!(lost.contains("data.tokenizer: /nowhere/tokenizer.json: "), "{lost}");
    assert!(!export("bytes").unwrap().iter().any(|(name, _)| name == "tokenizer.json"));
    let files = export(&tokenizer).unwrap();
    let copied = files.iter().find(|(name, _)| name == "tokenizer.json").map(|(_, text)| text.clone());
    assert_eq!(copied, fs::read(&tokenizer).ok());
    write(folder.path(), files, &tokens, wanted.clone());
    let place = ModelSource::parse(&folder.path().display().to_string());
    let shape = config::read_config(&place, "own").unwrap();
    let plan = ModelSpec { shape: shape.clone(), ..plan };
    let found = distance(&logits(&model(&plan, load_weights(&place, &shape).unwrap()), &tokens), &wanted);
    assert!(found < 1e-6, "{found}");
    if let Some(found) = real_distance(&[folder.path()]) {
        assert!(found < 1e-5, "{found} with the real libraries");
    }
}
