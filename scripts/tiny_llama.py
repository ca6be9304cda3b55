"""Makes crates/trainer/assets/tiny-llama: a small Llama that has learnt plain lower-case prose.

It reads bytes (its 128 tokens are ASCII) and learns the first four fifths of the shipped novel with
capitals and punctuation taken out, so that a fine-tune has something to add: both.

    python3 -m venv env && env/bin/pip install torch transformers
    env/bin/python scripts/tiny_llama.py
"""

import json
import pathlib
import re
import shutil
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "crates/trainer/assets/tiny-llama"
STEPS, BATCH, LENGTH = int(sys.argv[1]) if len(sys.argv) > 1 else 1500, 16, 128


def main():
    torch.manual_seed(7)
    torch.set_num_threads(1)
    text = (ROOT / "crates/trainer/assets/persuasion.txt").read_text().lower()
    text = re.sub(r"[^a-z\n]+", " ", text[: len(text) * 4 // 5])
    tokens = torch.tensor(list(text.encode()))
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, rope_theta=10000.0, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, STEPS, pct_start=0.05)
    for step in range(STEPS):
        starts = torch.randint(len(tokens) - LENGTH - 1, (BATCH,)).tolist()
        batch = torch.stack([tokens[start : start + LENGTH] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(step + 1, round(loss.item(), 3), flush=True)
    folder = OUT.with_suffix(".new")
    model.to(torch.bfloat16).save_pretrained(folder)
    OUT.mkdir(exist_ok=True)
    shutil.copy(folder / "model.safetensors", OUT / "model.safetensors")
    described = json.loads((folder / "config.json").read_text())
    described.pop("transformers_version", None)
    (OUT / "config.json").write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")
    shutil.rmtree(folder)


main()
