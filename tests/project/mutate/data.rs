//! Files that only the trainer reads: models, tokenizers, images.

use super::kinds::{Reading, program_command, read_source};
use super::mutator::{Draw, mutate};
use image::{ImageFormat, Rgb, RgbImage};
use std::fs;
use std::io::Cursor;
use std::path::Path;

/// Writes a damaged file into a folder and says how the program reads it.
type Make = fn(&Path, &mut Draw) -> Reading;

pub const KINDS: [(&str, Make); 9] = [
    ("tokenizer", tokenizer),
    ("words", words),
    ("safetensors", safetensors),
    ("shards", shards),
    ("config.json", config),
    ("idx", idx),
    ("cifar", cifar),
    ("png", png),
    ("jpeg", jpeg),
];

const TEXT: &str = "to be or not to be, that is the question: whether tis nobler in the mind\n";

fn check(folder: &Path, task: &str, data: &str, model: &str) -> std::process::Command {
    let text = format!(
        "name: t\ntask: {task}\ndata: {data}\nmodel: {model}\ntraining: {{ steps: 1, micro_batch: 1 }}\noptimizer: {{ lr: 0.001 }}\n"
    );
    fs::write(folder.join("run.yaml"), text).unwrap();
    fs::write(folder.join("words.txt"), TEXT.repeat(20)).unwrap();
    program_command(folder, &["check", "run.yaml", "--device", "cpu"])
}

fn tokenizer(folder: &Path, draw: &mut Draw) -> Reading {
    let data = "{ source: words.txt, tokenizer: tokenizer.json, validation: 0.3 }";
    let command = check(folder, "lm", data, "{ layers: 1, heads: 2, width: 8, sequence: 8 }");
    let sample = match draw.below(4) {
        0 => read_source("tests/fixtures/hf/gpt2/tokenizer.json"),
        1 => unigram().into_bytes(),
        2 => word_piece().into_bytes(),
        _ => read_source("tests/fixtures/hf/llama/tokenizer.json"),
    };
    Reading { file: folder.join("tokenizer.json"), sample, command }
}

fn unigram() -> String {
    let pieces: Vec<String> = ('a'..='z').map(|letter| format!("[\"{letter}\", -3.5]")).collect();
    format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{{"id": 0, "content": "<unk>",
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}}],
        "normalizer": {{"type": "Sequence", "normalizers": [{{"type": "NFKC"}}, {{"type": "Replace", "pattern":
        {{"Regex": " {{2,}}"}}, "content": " "}}]}}, "pre_tokenizer": {{"type": "Metaspace", "replacement": "▁",
        "prepend_scheme": "always", "split": true}}, "post_processor": null, "decoder": null,
        "model": {{"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁", -2.0], {}], "byte_fallback": false}}}}"#,
        pieces.join(", ")
    )
}

fn word_piece() -> String {
    let pieces: Vec<String> = ('a'..='z')
        .enumerate()
        .map(|(id, letter)| format!("\"{letter}\": {}, \"##{letter}\": {}", 2 * id + 1, 2 * id + 2))
        .collect();
    format!(
        r###"{{"version": "1.0", "truncation": {{"direction": "Right", "max_length": 512, "strategy": "LongestFirst",
        "stride": 0}}, "padding": null, "added_tokens": [], "normalizer": {{"type": "BertNormalizer", "clean_text": true,
        "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}}, "pre_tokenizer": {{"type":
        "BertPreTokenizer"}}, "post_processor": {{"type": "TemplateProcessing", "single": [{{"Sequence": {{"id": "A",
        "type_id": 0}}}}], "pair": [{{"Sequence": {{"id": "A", "type_id": 0}}}}, {{"Sequence": {{"id": "B", "type_id":
        1}}}}], "special_tokens": {{}}}}, "decoder": {{"type": "WordPiece", "prefix": "##", "cleanup": true}},
        "model": {{"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": {{"[UNK]": 0, {}}}}}}}"###,
        pieces.join(", ")
    )
}

fn words(folder: &Path, draw: &mut Draw) -> Reading {
    fs::write(folder.join("tokenizer.json"), read_source("tests/fixtures/hf/gpt2/tokenizer.json")).unwrap();
    let tokenizer = draw.pick(&["bytes", "tokenizer.json"]);
    let data = format!("{{ source: words.txt, tokenizer: {tokenizer}, validation: 0.3 }}");
    let command = check(folder, "lm", &data, "{ layers: 1, heads: 2, width: 8, sequence: 8 }");
    Reading { file: folder.join("words.txt"), sample: TEXT.repeat(20).into_bytes(), command }
}

/// Copies a pretrained model that ships with the tests, and returns the command that checks it.
fn pretrained(folder: &Path, name: &str) -> std::process::Command {
    let (from, to) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hf").join(name), folder.join("model"));
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    check(folder, "lm", "{ source: words.txt, validation: 0.3 }", "{ init_from: model, sequence: 8 }")
}

/// Half of the time damages only the header, with a matching length, so that its JSON is parsed.
fn safetensors(folder: &Path, draw: &mut Draw) -> Reading {
    let command = pretrained(folder, "gpt2");
    let whole = read_source("tests/fixtures/hf/gpt2/model.safetensors");
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let sample = if draw.below(2) == 0 {
        let header = mutate(&whole[8..8 + length], draw);
        [&(header.len() as u64).to_le_bytes(), header.as_slice(), &whole[8 + length..]].concat()
    } else {
        whole[..8 + length + 64].to_vec()
    };
    Reading { file: folder.join("model/model.safetensors"), sample, command }
}

fn shards(folder: &Path, _: &mut Draw) -> Reading {
    let command = pretrained(folder, "llama");
    let sample = read_source("tests/fixtures/hf/llama/model.safetensors.index.json");
    Reading { file: folder.join("model/model.safetensors.index.json"), sample, command }
}

fn config(folder: &Path, draw: &mut Draw) -> Reading {
    let name = draw.pick(&["gpt2", "llama"]);
    let command = pretrained(folder, name);
    let sample = read_source(&format!("tests/fixtures/hf/{name}/config.json"));
    Reading { file: folder.join("model/config.json"), sample, command }
}

fn pictures(folder: &Path) -> std::process::Command {
    fs::create_dir(folder.join("set")).unwrap();
    check(folder, "vision", "{ source: set, validation: 0.5 }", "{ channels: 2, layers: 1 }")
}

fn idx(folder: &Path, draw: &mut Draw) -> Reading {
    let command = pictures(folder);
    let images = [&[0, 0, 8, 3, 0, 0, 0, 8, 0, 0, 0, 4, 0, 0, 0, 4], [7; 128].as_slice()].concat();
    let labels = [&[0, 0, 8, 1, 0, 0, 0, 8], [0, 1, 0, 1, 0, 1, 0, 1].as_slice()].concat();
    let [first, second] =
        ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"].map(|name| folder.join("set").join(name));
    fs::write(&first, &images).unwrap();
    fs::write(&second, &labels).unwrap();
    let (file, sample) = if draw.below(2) == 0 { (first, images) } else { (second, labels) };
    Reading { file, sample, command }
}

fn cifar(folder: &Path, _: &mut Draw) -> Reading {
    let command = pictures(folder);
    let records: Vec<u8> = (0..4u8).flat_map(|label| [vec![label], vec![label; 3072]].concat()).collect();
    for name in ["data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"] {
        fs::write(folder.join("set").join(name), &records).unwrap();
    }
    Reading { file: folder.join("set/data_batch_2.bin"), sample: records, command }
}

fn png(folder: &Path, _: &mut Draw) -> Reading {
    picture(folder, ImageFormat::Png, "png")
}

fn jpeg(folder: &Path, _: &mut Draw) -> Reading {
    picture(folder, ImageFormat::Jpeg, "jpg")
}

fn picture(folder: &Path, format: ImageFormat, ending: &str) -> Reading {
    let command = pictures(folder);
    let mut sample = Cursor::new(Vec::new());
    RgbImage::from_fn(24, 24, |x, y| Rgb([x as u8 * 9, y as u8 * 9, 40])).write_to(&mut sample, format).unwrap();
    let sample = sample.into_inner();
    for name in ["cats/1", "cats/2", "dogs/1", "dogs/2"] {
        let file = folder.join("set").join(format!("{name}.{ending}"));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, &sample).unwrap();
    }
    Reading { file: folder.join("set").join(format!("dogs/2.{ending}")), sample, command }
}
