"""GPT-2's shape in PyTorch, trained for a few steps, eager and compiled: tokens a second and peak memory.

    python3 -m venv env && env/bin/pip install torch
    env/bin/python scripts/gpt2_torch.py

124M parameters, bf16 (weights and moments f32), 8 × 1024 tokens, AdamW, attention that PyTorch fuses, as a
person would write it today; like downshift's fresh model without biases but those of the norms, and with the
exact GELU. Memory is what the card holds more than before, context and kernels included, by nvidia-smi; on the
CPU what is resident over what was there before the model. Each way has a process of its own. Without a GPU it says so and computes in f32 on the CPU: a tiny shape is then
the thing to ask for (--layers 2 --heads 4 --width 64 --sequence 64 --batch 2 --vocabulary 256). A line of
JSON for each way; `cargo bench --bench gpt2` puts them beside downshift's.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

# Makes the first GPU the same one for CUDA and nvidia-smi.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.output = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.widen, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention(self.before(x)).split(width, dim=2)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.widen(self.between(x))))


class Gpt2(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.sequence, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for part in (self.tokens, self.positions):
            nn.init.normal_(part.weight, std=0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def on_card():
    """Bytes in use on the card, whoever uses them; None where nothing tells."""
    card = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    query = ["nvidia-smi", "-i", card, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(query, check=True, capture_output=True, text=True).stdout) * 2**20
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(shape, device, compiled, before):
    torch.manual_seed(7)
    model = Gpt2(shape).to(device)
    parameters = sum(values.numel() for values in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")
    step_model = torch.compile(model) if compiled else model
    tokens = torch.randint(shape.vocabulary, (shape.batch, shape.sequence + 1), device=device)
    half = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")

    def step():
        with half:
            loss = step_model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def wait(loss):
        return loss.item()

    for _ in range(shape.warm_up):
        wait(step())
    times = []
    for _ in range(shape.steps):
        begun = time.perf_counter()
        loss = wait(step())
        times.append(time.perf_counter() - begun)
    middle = sorted(times)[len(times) // 2]
    if device == "cuda":
        # The allocator keeps the memory it reserved, so the GPU holds the peak now.
        now = on_card()
        if before is None or now is None:
            peak = torch.cuda.max_memory_reserved()
            print(json.dumps({"note": "no nvidia-smi: PyTorch's memory is without the context of CUDA"}), flush=True)
        else:
            peak = now - before
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    name = "PyTorch, torch.compile" if compiled else "PyTorch, eager"
    tokens_per_s = shape.batch * shape.sequence / middle
    told = {"name": name, "units_per_s": tokens_per_s, "peak_bytes": peak, "parameters": parameters, "loss": loss}
    print(json.dumps(told), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag, usual in [("layers", 12), ("heads", 12), ("width", 768), ("sequence", 1024), ("batch", 8),
                        ("vocabulary", 50257), ("steps", 20), ("warm-up", 5)]:
        parser.add_argument(f"--{flag}", type=int, default=usual)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--no-compile", action="store_true", help="eager alone")
    parser.add_argument("--way", choices=["eager", "compiled"], help=argparse.SUPPRESS)
    shape = parser.parse_args()
    if shape.way is None:
        ways = ["eager"] if shape.no_compile else ["eager", "compiled"]
        ended = [subprocess.run([sys.executable, __file__, *sys.argv[1:], "--way", way]).returncode for way in ways]
        sys.exit(max(map(abs, ended)))
    held = on_card()  # before a context exists
    there = torch.cuda.is_available()
    if shape.device == "cuda" and not there:
        raise SystemExit("no GPU that PyTorch can use; --device cpu computes in f32, at a tiny shape")
    device = "cuda" if there and shape.device != "cpu" else "cpu"
    if shape.way == "eager":
        note = torch.cuda.get_device_name() if device == "cuda" else "no GPU is used: f32 on the CPU"
        print(json.dumps({"note": f"PyTorch {torch.__version__}, {note}"}), flush=True)
    try:
        measure(shape, device, shape.way == "compiled", held if device == "cuda" else resident())
    except Exception as error:
        if shape.way == "eager":
            raise
        # No compiler or an old GPU: the eager figure is still useful.
        print(json.dumps({"note": f"torch.compile does not work here: {str(error).splitlines()[0]}"}), flush=True)


main()
