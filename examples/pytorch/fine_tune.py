"""LoRA on a tiny transformer with the Hugging Face Trainer, as in guide (b): sixteen blocks, four configurations.

A card of 24 GB is played: a configuration that needs more runs out of memory after the first checkpoint.
"""

import json
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

CARD_GB = 24
RANK = 16
rung = json.load(open(sys.argv[1]))
checkpoint = sys.argv[2] if len(sys.argv) > 2 else None


class Adapter(torch.nn.Module):
    """Low-rank weights beside a frozen layer; a smaller rank uses the first rows, so that checkpoints fit every rung."""

    def __init__(self, layer, width, out):
        super().__init__()
        self.layer = layer
        self.down = torch.nn.Parameter(torch.randn(width, RANK) * 0.02)
        self.up = torch.nn.Parameter(torch.zeros(RANK, out))

    def forward(self, inputs):
        rank = rung["rank"]
        return self.layer(inputs) + inputs @ self.down[:, :rank] @ self.up[:rank]


class Card(TrainerCallback):
    """Simulates the card's memory."""

    def on_step_begin(self, args, state, control, **kwargs):
        needed_gb = 6 + rung["blocks"] * 0.75 + rung["micro_batch"] * rung["sequence"] * 0.28
        if state.global_step >= 10 and needed_gb > CARD_GB:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of {CARD_GB}.00 GiB"
            )


class Clipped(Trainer):
    """Clips blocks and head separately, as the guide does."""

    def _get_grad_norm(self, model, *arguments, **named):
        groups = {"head": [], "blocks": []}
        for name, weight in model.named_parameters():
            groups["head" if "lm_head" in name or "wte" in name else "blocks"].append(weight)
        for group, weights in groups.items():
            torch.nn.utils.clip_grad_norm_(weights, rung[f"clip_{group}"])
        return super()._get_grad_norm(model, *arguments, **named)


torch.manual_seed(0)
torch.set_num_threads(1)
model = GPT2LMHeadModel(GPT2Config(n_layer=16, n_head=2, n_embd=16, vocab_size=64, n_positions=8))
for weight in model.transformer.h.parameters():
    weight.requires_grad_(False)
for block in model.transformer.h:
    block.attn.c_attn = Adapter(block.attn.c_attn, 16, 48)
for block in model.transformer.h[: 16 - rung["blocks"]]:
    # Frozen by a zero gradient, so that the optimizer's state fits every rung.
    for weight in (block.attn.c_attn.down, block.attn.c_attn.up):
        weight.register_hook(torch.zeros_like)

words = torch.randint(0, 64, (256, rung["sequence"]))
data = [{"input_ids": row, "labels": row} for row in words]
arguments = TrainingArguments(
    output_dir=rung["output"], max_steps=rung["steps"], per_device_train_batch_size=rung["micro_batch"],
    gradient_accumulation_steps=rung["accumulation"], learning_rate=rung["lr"], logging_steps=1, save_steps=10,
    report_to=[], use_cpu=True, max_grad_norm=rung["clip_head"],
)
Clipped(model=model, args=arguments, train_dataset=data, callbacks=[Card()]).train(resume_from_checkpoint=checkpoint)
