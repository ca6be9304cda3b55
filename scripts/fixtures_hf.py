"""Makes tests/fixtures/hf: random models of a few kilobytes by the real transformers and peft, with
the logits that they compute, which tests/hf.rs compares ours with.

    python3 -m venv env && env/bin/pip install torch transformers peft
    env/bin/python scripts/fixtures_hf.py
"""

import json
import pathlib
import shutil

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests/fixtures/hf"
VOCABULARY = 96
NONE = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)


def stirred(model):
    """Every parameter random, those too that start at zero or one."""
    for parameter in model.parameters():
        with torch.no_grad():
            parameter += torch.randn_like(parameter) * 0.1
    return model.float().eval()


def tidy(folder, name):
    """Without what changes from one version of a library to the next."""
    path = folder / name
    described = json.loads(path.read_text())
    for key in ["transformers_version", "peft_version", "runtime_config", "base_model_name_or_path"]:
        described.pop(key, None)
    path.write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")
    for extra in ["README.md", "generation_config.json"]:
        (folder / extra).unlink(missing_ok=True)


def expect(folder, model, tokens):
    with torch.no_grad():
        logits = model(input_ids=tokens).logits
    save_file({"tokens": tokens.float(), "logits": logits.contiguous()}, folder / "expected.safetensors")


def tokenizer(folder):
    made = Tokenizer(models.BPE(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["[UNK]"], show_progress=False)
    novel = (ROOT / "crates/trainer/assets/persuasion.txt").read_text()
    made.train_from_iterator(novel[:50000].splitlines(), trainer)
    made.save(str(folder / "tokenizer.json"))
    text = "Sir Walter Elliot, of Kellynch Hall, in Somersetshire"
    ids = made.encode(text, add_special_tokens=False).ids
    (folder / "text.json").write_text(json.dumps({"text": text, "ids": ids}) + "\n")


def main():
    torch.manual_seed(7)
    shutil.rmtree(OUT, ignore_errors=True)
    tokens = torch.randint(VOCABULARY, (2, 9))
    gpt2 = GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=16, embd_pdrop=0.0, attn_pdrop=0.0,
        resid_pdrop=0.0, **NONE,
    )
    llama = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, rope_theta=5000.0, tie_word_embeddings=False, **NONE,
    )
    for name, model, shard, targets in [
        ("gpt2", GPT2LMHeadModel(gpt2), "1GB", ["c_attn", "mlp.c_proj"]),
        ("llama", LlamaForCausalLM(llama), "40KB", ["q_proj", "v_proj", "down_proj"]),
    ]:
        folder = OUT / name
        model = stirred(model)
        model.save_pretrained(folder, max_shard_size=shard)
        tidy(folder, "config.json")
        tokenizer(folder)
        expect(folder, model, tokens)
        lora = LoraConfig(r=4, lora_alpha=12, target_modules=targets, task_type="CAUSAL_LM", lora_dropout=0.0)
        adapted = get_peft_model(model, lora)
        for path, parameter in adapted.named_parameters():
            if "lora_B" in path:
                torch.nn.init.normal_(parameter, std=0.1)
        adapter = OUT / f"{name}-lora"
        adapted.eval().save_pretrained(adapter)
        tidy(adapter, "adapter_config.json")
        expect(adapter, adapted, tokens)


main()
