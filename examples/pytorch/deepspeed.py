"""Reads a configuration as DeepSpeed does, as in guide (d), and writes its metrics as JSON lines."""

import json
import sys

import torch

INTEGERS = ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"]
config = json.load(open(sys.argv[1]))
for name in INTEGERS:
    if not isinstance(config[name], int):
        # The guide met this after minutes of loading.
        raise TypeError(f"{name} must be an integer, not {config[name]!r}")
batch, micro_batch, accumulation = (config[name] for name in INTEGERS)
assert batch == micro_batch * accumulation, "train_batch_size must be micro-batch x accumulation x GPUs"

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=config["optimizer"]["params"]["lr"])
with open(sys.argv[2], "a", buffering=1) as metrics:
    for step in range(1, 61):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(accumulation):
            inputs = torch.randn(micro_batch, 16)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean() / accumulation
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config["gradient_clipping"])
        optimizer.step()
        values = {"global_step": step, "loss": total, "lr": optimizer.param_groups[0]["lr"], "grad_norm": norm.item()}
        metrics.write(json.dumps(values) + "\n")
