//! A tokenizer with as many words as a benchmark needs.

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The novel whose words become the tokens.
const NOVEL: &str = include_str!("../../crates/trainer/assets/persuasion.txt");

/// Builds a tokenizer.json: the words of the novel, padded with filler words to `size`.
pub fn of_words(size: usize) -> Value {
    let words: BTreeSet<&str> = NOVEL.split(|letter: char| !letter.is_alphanumeric()).collect();
    let known =
        ["?".to_owned()].into_iter().chain(words.into_iter().filter(|word| !word.is_empty()).map(str::to_owned));
    let all = known.chain((0..).map(|number| format!("no-word-{number}"))).take(size);
    let vocabulary: Map<String, Value> = all.enumerate().map(|(number, word)| (word, json!(number))).collect();
    json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": { "type": "Whitespace" },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "?" },
    })
}
