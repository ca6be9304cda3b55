"""Trains a model of downshift's in PyTorch: the same weights, batches and optimizer, eager or compiled.

`cargo bench --bench torch` writes the case (weights, batches, settings) and starts this. One line of JSON: the losses
of the first pass over the batches, the median time of a step, and the peak of resident memory above that before the
weights were loaded. With --profile, the operations that took the most time follow on stderr.
"""

import argparse
import json
import os
import resource
import sys
import time

import numpy
import torch
from torch import nn
from torch.nn import functional


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = bytearray(file.read())
    kinds = {"F32": numpy.float32, "I32": numpy.int32}
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            values = numpy.frombuffer(data, kinds[entry["dtype"]], offset=first, count=(last - first) // 4)
            tensors[name] = torch.from_numpy(values.copy()).reshape(entry["shape"])
    return tensors


class Model(nn.Module):
    """Parameters by the paths that downshift gives them."""

    def __init__(self, weights, trained):
        super().__init__()
        self.names = {path.replace(".", "/"): path for path in weights}
        for name, path in self.names.items():
            learns = not path.endswith("lora_scale") and (not trained or path.endswith(tuple(trained)))
            self.register_parameter(name, nn.Parameter(weights[path], requires_grad=learns))
        self.paths = set(weights)

    def at(self, path):
        return getattr(self, path.replace(".", "/"))

    def has(self, path):
        return path in self.paths

    def linear(self, path, x):
        y = functional.linear(x, self.at(path + ".weight").T, self.at(path + ".bias") if self.has(path + ".bias") else None)
        if self.has(path + ".lora_a"):
            low = functional.linear(x, self.at(path + ".lora_a").T)
            y = y + functional.linear(low, self.at(path + ".lora_b").T) * self.at(path + ".lora_scale")
        return y

    def norm(self, path, x, epsilon):
        gamma = self.at(path + ".gamma")
        if self.has(path + ".beta"):
            return functional.layer_norm(x, gamma.shape, gamma, self.at(path + ".beta"), epsilon)
        return functional.rms_norm(x, gamma.shape, gamma, epsilon)


class Decoder(Model):
    def __init__(self, weights, shape, trained):
        super().__init__(weights, trained)
        self.shape = shape
        if shape["family"] == "llama":
            half = torch.arange(shape["head_size"]) % (shape["head_size"] // 2)
            angle = torch.arange(shape["sequence"])[:, None] / shape["theta"] ** (2 * half / shape["head_size"])
            self.register_buffer("cosine", angle.cos().float())
            self.register_buffer("sine", angle.sin().float())

    def rotated(self, x):
        first, second = x.chunk(2, dim=-1)
        return x * self.cosine + torch.cat([-second, first], dim=-1) * self.sine

    def attention(self, path, x):
        batch, length, _ = x.shape
        parts = [(name, self.shape[count]) for name, count in (("query", "heads"), ("key", "kv_heads"), ("value", "kv_heads"))]
        query, key, value = (
            self.linear(f"{path}.{name}", x).view(batch, length, count, -1).transpose(1, 2) for name, count in parts)
        if self.shape["family"] == "llama":
            query, key = self.rotated(query), self.rotated(key)
        shared = self.shape["heads"] != self.shape["kv_heads"]
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=shared)
        return self.linear(f"{path}.output", mixed.transpose(1, 2).reshape(batch, length, -1))

    def forward(self, inputs, targets):
        epsilon = self.shape["epsilon"]
        x = functional.embedding(inputs, self.at("tokens.weight"))
        if self.has("positions"):
            x = x + self.at("positions")[: inputs.shape[1]]
        for layer in range(self.shape["layers"]):
            block = f"blocks.{layer}"
            x = x + self.attention(f"{block}.attention", self.norm(f"{block}.attention_norm", x, epsilon))
            read = self.norm(f"{block}.widen_norm", x, epsilon)
            hidden = self.linear(f"{block}.widen", read)
            if self.shape["activation"] == "silu":
                hidden = functional.silu(self.linear(f"{block}.gate", read)) * hidden
            else:
                tanh = self.shape["activation"] == "gelu_tanh"
                hidden = functional.gelu(hidden, approximate="tanh" if tanh else "none")
            x = x + self.linear(f"{block}.narrow", hidden)
        x = self.norm("norm", x, epsilon)
        logits = self.linear("head", x) if self.has("head.weight") else functional.linear(x, self.at("tokens.weight"))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Classifier(Model):
    def forward(self, images, labels):
        x = functional.conv2d(images, self.at("stem.weight"), self.at("stem.bias"), padding=1)
        layer = 0
        while self.has(f"blocks.{layer}.depthwise.weight"):
            block = f"blocks.{layer}"
            channels = x.shape[1]
            weight = self.at(f"{block}.pointwise.weight")
            stride = 1 if weight.shape[0] == weight.shape[1] else 2
            spatial = functional.conv2d(x, self.at(f"{block}.depthwise.weight"), stride=stride, padding=1, groups=channels)
            normed = self.norm(f"{block}.norm", spatial.permute(0, 2, 3, 1), 1e-5)
            out = self.linear(f"{block}.pointwise", functional.relu(normed)).permute(0, 3, 1, 2)
            x = x + out if stride == 1 else out
            layer += 1
        return functional.cross_entropy(self.linear("head", self.norm("norm", x.mean(dim=(2, 3)), 1e-5)), labels)


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="the case: case.json, weights.safetensors, batches.safetensors")
    parser.add_argument("--way", choices=["eager", "compiled"], default="eager")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    with open(os.path.join(chosen.folder, "case.json")) as file:
        case = json.load(file)
    before = resident()
    weights = read_safetensors(os.path.join(chosen.folder, "weights.safetensors"))
    batches = read_safetensors(os.path.join(chosen.folder, "batches.safetensors"))
    model = Decoder(weights, case["shape"], case["trained"]) if "shape" in case else Classifier(weights, case["trained"])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    knobs = case["optimizer"]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": knobs["weight_decay"]},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=knobs["lr"], betas=knobs["betas"], eps=knobs["epsilon"])
    stepped = torch.compile(model) if chosen.way == "compiled" else model
    pairs = [(first, second.long()) for first, second in zip(batches["inputs"], batches["targets"])]
    if "shape" in case:
        pairs = [(inputs.long(), targets) for inputs, targets in pairs]

    def step(number):
        loss = stepped(*pairs[number % len(pairs)])
        loss.backward()
        nn.utils.clip_grad_norm_(trained, knobs["max_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    losses = [step(number) for number in range(len(pairs))]
    times = []
    for number in range(chosen.steps):
        begun = time.perf_counter()
        step(number)
        times.append(time.perf_counter() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(json.dumps({"losses": losses, "step_s": sorted(times)[len(times) // 2], "peak_bytes": peak}))
    if chosen.profile:
        with torch.profiler.profile() as profile:
            for number in range(3):
                step(number)
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=12), file=sys.stderr)


main()
