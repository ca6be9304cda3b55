//! The models that are compared.

use serde_json::{Value, json};

/// A model, its run file and its changes to that.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// The shipped run file.
    pub file: &'static str,
    /// Changes to the run file.
    pub set: &'static [(&'static str, &'static str)],
    /// The words of the tokenizer, if the bytes of the text are not the tokens.
    pub vocabulary: Option<usize>,
    /// The decoder's shape, for PyTorch; a classifier's follows from its weights.
    pub shape: Option<fn() -> Value>,
    /// The ends of the paths that are trained; none means all.
    pub trained: &'static [&'static str],
}

/// The models.
pub const CASES: [Case; 5] = [
    Case { name: "digits", file: "digits", set: &[], vocabulary: None, shape: None, trained: &[] },
    Case { name: "text", file: "text", set: &[], vocabulary: None, shape: Some(|| decoder(4, 4, 64)), trained: &[] },
    Case {
        name: "lora",
        file: "lora",
        set: &[("optimizer.groups", "{}")],
        vocabulary: None,
        shape: Some(|| {
            json!({ "family": "llama", "activation": "silu", "layers": 3, "heads": 4, "kv_heads": 2, "head_size": 16,
                    "sequence": 64, "epsilon": 1e-6, "theta": 1e4 })
        }),
        trained: &["lora_a", "lora_b"],
    },
    Case {
        name: "decoder 25M, 8 × 256",
        file: "text",
        set: &[("model.layers", "8"), ("model.heads", "8"), ("model.width", "512"), ("model.sequence", "256")],
        vocabulary: None,
        shape: Some(|| decoder(8, 8, 256)),
        trained: &[],
    },
    Case {
        name: "GPT-2 124M, 1 × 256",
        file: "text",
        set: &[
            ("model.layers", "12"),
            ("model.heads", "12"),
            ("model.width", "768"),
            ("model.sequence", "256"),
            ("training.micro_batch", "1"),
        ],
        vocabulary: Some(50_257),
        shape: Some(|| decoder(12, 12, 256)),
        trained: &[],
    },
];

/// Returns the shape of a fresh decoder.
fn decoder(layers: usize, heads: usize, sequence: usize) -> Value {
    json!({ "family": "gpt2", "activation": "gelu", "layers": layers, "heads": heads, "kv_heads": heads,
            "sequence": sequence, "epsilon": 1e-5 })
}
